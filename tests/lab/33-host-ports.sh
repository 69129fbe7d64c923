# Host ports forward to instances, which see their callers' addresses: from outside, beside other workloads, for some addresses alone, under load during an update, and after a reboot without the agent
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
# address NODE: its address in the lab's network.
address() { on "$1" ip -4 -o address show dev host0 | awk '{ sub("/.*", "", $4); print $4; exit }'; }
n1_address=$(address n1) n2_address=$(address n2)
# host_port_folder NAME HOSTPORT [OPTION...]: the folder of a workload with this host port; its
# container listens on port 8080.
host_port_folder() {
    local name=$1 port=$2 folder
    shift 2
    folder=$(workload "$name" --port 8080 --health 'http: {path: /healthz, port: web}, periodSeconds: 1' "$@")
    on n1 sed -i "s/containerPort: 8080/containerPort: 8080, hostPort: $port/" "$folder/VirtualLoadBalancer.kat"
    echo "$folder"
}
# fetch FROM ADDRESS PORT [PATH]: the page that machine FROM gets.
fetch() { on "$1" curl --silent --fail --max-time 3 "http://$2:$3/${4:-}"; }
# page_has FROM ADDRESS PORT TEXT: whether that page contains TEXT. A machine's rules follow a moment after the leader counts an
# instance as healthy, so the first page after a change is waited for.
page_has() { [[ $(fetch "$1" "$2" "$3" 2>/dev/null) == *"$4"* ]]; }
machine_of() { field "$1" .status.node; }
other_than() { if [[ $1 == n1 ]]; then echo n2; else echo n1; fi; }
address_of() { if [[ $1 == n1 ]]; then echo "$n1_address"; else echo "$n2_address"; fi; }

# A workload cannot take a port that KAT uses.
code=0
output=$(kat apply -f "$(host_port_folder web 9115)" 2>&1) || code=$?
equal 1 "$code" "exit code of an apply that takes KAT's own port"
contains "$output" "hostPort 9115: each machine needs its port 9115/TCP for KAT's API"

# A port below 1024 answers the other machine and the machine itself; 127.0.0.1 answers once the
# owner allows it.
kat apply --wait --timeout 60s -f "$(host_port_folder web 80)"
node=$(machine_of web) id=$(field web .metadata.name)
other=$(other_than "$node") at=$(address_of "$node")
wait_for 10 page_has "$other" "$at" 80 "host=$id"
contains "$(fetch "$node" "$at" 80)" "host=$id"
# By default calls to 127.0.0.1 stay on the machine.
refused fetch "$node" 127.0.0.1 80
for one in n1 n2; do add_agent_settings "$one" 'hostPortLoopback: true'; done
wait_for 30 page_has "$node" 127.0.0.1 80 "host=$id"
wait_for 30 nodes_are_ready
refused fetch "$node" "$(address_of "$other")" 80
contains "$(kat describe workload web)" "(host port 80)"
equal '[{"port":80,"protocol":"TCP","containerPort":8080}]' "$(kat get workload web -o json | jq -c .status.hostPorts)" "host ports in the status"
# The program sees its caller's own address: the test looks at the open connection inside the
# container.
lab exec "$other" -- curl --silent --max-time 20 "http://$at:80/slow?8000" </dev/null >/dev/null &
asking=$!
trap 'kill "$asking" 2>/dev/null || true' EXIT
user=$(field web .status.user) container=kat-default-$id
# /proc/net/tcp has the address in the machine's byte order, so its bytes are reversed.
caller=$(address_of "$other" | awk -F. '{ printf "%02X%02X%02X%02X", $4, $3, $2, $1 }')
sees_caller() { as_on "$node" "$user" podman exec "$container" grep -q " $caller:" /proc/net/tcp; }
wait_for 10 sees_caller
wait "$asking"

# A second workload with the same port runs on the other machine. A third one waits, and the reason
# names the workloads that have the port.
kat apply --wait --timeout 60s -f "$(host_port_folder second 80)"
equal "$other" "$(machine_of second)" "machine of the second workload"
wait_for 10 page_has "$node" "$(address_of "$other")" 80 "host=$(field second .metadata.name)"
kat apply -f "$(host_port_folder third 80)" >/dev/null
names_port_owners() {
    local why
    why=$(kat why workload third)
    contains "$why" "host port 80/TCP is taken by default/web on $node" &&
        contains "$why" "host port 80/TCP is taken by default/second on $other"
}
wait_for 20 names_port_owners
kat delete workload second --wait
wait_for 60 has_ready third 1
equal "$other" "$(machine_of third)" "machine of the third workload"
kat delete workload third --wait
port_is_closed() { ! fetch "$node" "$(address_of "$other")" 80 2>/dev/null; }
wait_for 20 port_is_closed

# `auto` gives one port number for both machines, and an update keeps it.
kat apply --wait --timeout 60s -f "$(host_port_folder everywhere auto --replicas 2)"
equal '["n1","n2"]' "$(machines_running everywhere)" "machines of two replicas"
number=$(kat get workload everywhere -o json | jq .status.hostPorts[0].port)
((number >= 30000 && number <= 32767))
for one in n1 n2; do
    instance=$(field_on everywhere "$one" .metadata.name)
    wait_for 10 page_has "$(other_than "$one")" "$(address_of "$one")" "$number" "host=$instance"
done
kat apply --wait --timeout 60s -f "$(host_port_folder everywhere auto --replicas 2 --env VERSION=2)"
equal "$number" "$(kat get workload everywhere -o json | jq .status.hostPorts[0].port)" "host port after an update"
wait_for 10 page_has n1 "$n2_address" "$number" version=2
kat delete workload everywhere --wait

# A program of the machine keeps its port: the instance waits.
n1 systemd-run --quiet --unit=program --setenv=PORT=8088 --setenv=VERSION=program /root/web
listens() { n1 curl --silent --output /dev/null --max-time 2 http://127.0.0.1:8088/; }
wait_for 10 listens
kat label node n1 place=here
kat apply -f "$(host_port_folder taken 8088 --spec 'nodeSelector: {place: here}')" >/dev/null
is_in_use() { contains "$(field taken '.status | "\(.reason): \(.message)"')" "HostPortInUse: host port 8088/TCP is in use by "; }
wait_for 30 is_in_use
contains "$(kat why instance "$(field taken .metadata.name)")" "a program of n1 itself listens on its host port"
contains "$(fetch n2 "$n1_address" 8088)" "version=program"
n1 systemctl stop program.service
# The program may be restarting: the port stays reserved for ten minutes, or until the owner
# restarts kat-net.
is_reserved() { contains "$(field taken '.status | "\(.reason): \(.message)"')" "HostPortInUse: a program of this machine listened on host port 8088/TCP in the last ten minutes"; }
wait_for 30 is_reserved
refused fetch n2 "$n1_address" 8088
n1 systemctl restart kat-net
wait_for 30 has_ready taken 1
wait_for 10 page_has n2 "$n1_address" 8088 "host=$(field taken .metadata.name)"
kat delete workload taken --wait
kat label node n1 place-

# allowSources opens a port to some addresses alone: another machine, the machine itself by each of its
# addresses, and a container are refused alike. A change replaces no instance and ends connections of
# callers that are not in the list any more. The port has the number of the container's, so that the
# rest of such a connection would have the same addresses and ports as a new one of the container.
kat label node n1 place=here
closed_folder() { host_port_folder closed "8080, allowSources: [$1]" --spec 'nodeSelector: {place: here}'; }
# is_refused_at FROM ADDRESS: curl's exit code is 7 for a refused connection and 28 for a timeout.
is_refused_at() { [[ $(on "$1" sh -c 'curl --silent --output /dev/null --max-time 3 "http://$1:8080/"; echo "$?"' sh "$2") == 7 ]]; }
kat apply --wait --timeout 60s -f "$(closed_folder "$n2_address")"
id=$(field closed .metadata.name)
wait_for 10 page_has n2 "$n1_address" 8080 "host=$id"
is_refused_at n1 "$n1_address"
is_refused_at n1 127.0.0.1
refused inside closed wget -q -T 3 -O- "http://$n1_address:8080/"
contains "$(kat describe workload closed)" "(host port 8080) for $n2_address alone"
contains "$(kat why workload closed)" "host port 8080/TCP refuses all but $n2_address"
lab exec n2 -- curl --silent --fail --max-time 15 "http://$n1_address:8080/slow?8000" </dev/null >/dev/null &
asking=$!
trap 'kill "$asking" 2>/dev/null || true' EXIT
caller=$(awk -F. '{ printf "%02X%02X%02X%02X", $4, $3, $2, $1 }' <<<"$n2_address")
closed_sees_caller() { inside closed grep -q " $caller:" /proc/net/tcp; }
wait_for 10 closed_sees_caller
kat apply --wait --timeout 60s -f "$(closed_folder "$n1_address, 127.0.0.1, 10.100.0.0\\/16")"
equal "$id" "$(field closed .metadata.name)" "instance after a change of allowSources"
wait_for 10 is_refused_at n2 "$n1_address"
wait_for 10 page_has n1 "$n1_address" 8080 "host=$id"
wait_for 10 page_has n1 127.0.0.1 8080 "host=$id"
contains "$(inside closed wget -q -T 3 -O- "http://$n1_address:8080/")" "host=$id"
code=0
wait "$asking" || code=$?
differs 0 "$code" "exit code of a caller that was admitted before"
trap - EXIT
kat apply --wait --timeout 60s -f "$(host_port_folder closed 8080 --spec 'nodeSelector: {place: here}')"
equal "$id" "$(field closed .metadata.name)" "instance without allowSources"
wait_for 10 page_has n2 "$n1_address" 8080 "host=$id"
kat delete workload closed --wait
kat label node n1 place-

# Under load from the other machine, and on the machine by its loopback, a new version takes over on
# the same machine without a lost request.
kat label node "$node" place=here
web_folder() { host_port_folder web 80 --env DRAIN_MS=1000 --drain 2 --spec 'nodeSelector: {place: here}' "$@"; }
kat apply --wait --timeout 60s -f "$(web_folder --env VERSION=1)"
equal "$node" "$(machine_of web)" "machine of the workload"
on "$other" test -x /root/web || lab copy "$LAB_WORK/images/web/bin/web" "$other:/root/web"
on "$node" test -x /root/web || lab copy "$LAB_WORK/images/web/bin/web" "$node:/root/web"
declare -A loads=()
trap 'kill "${loads[@]}" 2>/dev/null || true; tail -n 12 "$LAB_WORK"/load-* >&2' EXIT
# start_load_on NAME MACHINE ADDRESS KEPT_CONNECTIONS
start_load_on() {
    on "$2" /root/web load "$3" 80 100 150 /tmp/stop-load "$4" >"$LAB_WORK/load-$1.json" 2>"$LAB_WORK/load-$1.log" &
    loads[$1]=$!
}
began=$SECONDS
start_load_on outside "$other" "$at" 0
start_load_on outside-kept "$other" "$at" 10
start_load_on own "$node" "$at" 0
start_load_on loopback "$node" 127.0.0.1 0
for version in 2 3 4; do
    kat apply --wait --timeout 60s -f "$(web_folder --env "VERSION=$version")"
    equal "$node" "$(machine_of web)" "machine of version $version"
done
least=$(((SECONDS - began) * 80))
for one in n1 n2; do on "$one" sh -c "echo $least >/tmp/stop-load"; done
for which in "${!loads[@]}"; do
    code=0
    wait "${loads[$which]}" || code=$?
    unset "loads[$which]"
    echo "$which: exit code $code, $(cat "$LAB_WORK/load-$which.json")"
    jq -se --argjson least "$least" 'length == 1 and (.[0] | .failed == 0 and .ok == .sent and .sent >= $least)' \
        "$LAB_WORK/load-$which.json" >/dev/null
done
for one in n1 n2; do on "$one" rm /tmp/stop-load; done
wait_for 10 page_has "$other" "$at" 80 version=4
trap - EXIT

# After a boot with the agent masked the port still forwards to the instance.
id=$(field web .metadata.name)
on "$node" systemctl mask --now kat-agent.service
lab reboot "$node"
refused on "$node" systemctl is-active kat-agent.service
port_reaches_instance() { page_has "$other" "$at" 80 "host=$id" && page_has "$node" 127.0.0.1 80 "host=$id"; }
wait_for 60 port_reaches_instance
on "$node" systemctl unmask kat-agent.service
on "$node" systemctl start kat-agent.service
wait_for 60 nodes_are_ready
wait_for 60 has_ready web 1
wait_for 10 port_reaches_instance
kat label node "$node" place-
kat delete workload web --wait
ports_are_closed() { ! fetch "$other" "$at" 80 2>/dev/null && ! fetch "$node" 127.0.0.1 80 2>/dev/null; }
wait_for 20 ports_are_closed
refused on "$node" sh -c 'nft list table inet kat-host-ports | grep -q "dnat ip"'
for one in n1 n2; do restore_agent_settings "$one"; done
wait_for 60 nodes_are_ready
