# Host ports forward to instances, which see their callers' addresses: from outside, beside other workloads, under load during an update, and after a reboot without the agent
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
# address NODE: its own in the lab's network.
address() { on "$1" ip -4 -o address show dev host0 | awk '{ sub("/.*", "", $4); print $4; exit }'; }
n1_address=$(address n1) n2_address=$(address n2)
# publish NAME HOSTPORT [OPTION...]: the folder of a workload behind a port of its machines; its container's is 8080.
publish() {
    local name=$1 port=$2 folder
    shift 2
    folder=$(workload "$name" --port 8080 --health 'http: {path: /healthz, port: web}, periodSeconds: 1' "$@")
    on n1 sed -i "s/containerPort: 8080/containerPort: 8080, hostPort: $port/" "$folder/VirtualLoadBalancer.kat"
    echo "$folder"
}
# ask FROM ADDRESS PORT [PATH]: what is answered there.
ask() { on "$1" curl --silent --fail --max-time 3 "http://$2:$3/${4:-}"; }
machine_of() { field "$1" .status.node; }
other_than() { if [[ $1 == n1 ]]; then echo n2; else echo n1; fi; }
address_of() { if [[ $1 == n1 ]]; then echo "$n1_address"; else echo "$n2_address"; fi; }

# Ports that KAT needs are its own.
code=0
output=$(kat apply -f "$(publish web 9115)" 2>&1) || code=$?
equal 1 "$code" "exit code of an apply that takes KAT's own port"
contains "$output" "hostPort 9115: each machine needs its port 9115/TCP for KAT's API"

# A port below 1024, from the other machine, the machine itself and its loopback.
kat apply --wait --timeout 60s -f "$(publish web 80)"
node=$(machine_of web) id=$(field web .metadata.name)
other=$(other_than "$node") at=$(address_of "$node")
contains "$(ask "$other" "$at" 80)" "host=$id"
contains "$(ask "$node" "$at" 80)" "host=$id"
# What the machine's own programs call at 127.0.0.1 stays on it, until its owner says otherwise.
refused ask "$node" 127.0.0.1 80
for one in n1 n2; do add_agent_settings "$one" 'hostPortLoopback: true'; done
by_loopback() { contains "$(ask "$node" 127.0.0.1 80)" "host=$id"; }
wait_for 30 by_loopback
wait_for 30 nodes_are_ready
refused ask "$node" "$(address_of "$other")" 80
contains "$(kat describe workload web)" "(host port 80)"
equal '[{"port":80,"protocol":"TCP","containerPort":8080}]' "$(kat get workload web -o json | jq -c .status.hostPorts)" "host ports in the status"
# The program sees its caller's own address: the connection is open while its end is looked at inside.
lab exec "$other" -- curl --silent --max-time 20 "http://$at:80/slow?8000" </dev/null >/dev/null &
asking=$!
trap 'kill "$asking" 2>/dev/null || true' EXIT
user=$(field web .status.user) container=kat-default-$id
# The address in /proc/net/tcp is written as the machine's word: its bytes the other way round.
caller=$(address_of "$other" | awk -F. '{ printf "%02X%02X%02X%02X", $4, $3, $2, $1 }')
sees_caller() { as_on "$node" "$user" podman exec "$container" grep -q " $caller:" /proc/net/tcp; }
wait_for 10 sees_caller
wait "$asking"

# Another workload goes to the other machine; a third waits, and says for whom.
kat apply --wait --timeout 60s -f "$(publish second 80)"
equal "$other" "$(machine_of second)" "machine of the second workload"
contains "$(ask "$node" "$(address_of "$other")" 80)" "host=$(field second .metadata.name)"
kat apply -f "$(publish third 80)" >/dev/null
says_whose() {
    local why
    why=$(kat why workload third)
    contains "$why" "host port 80/TCP is taken by default/web on $node" &&
        contains "$why" "host port 80/TCP is taken by default/second on $other"
}
wait_for 20 says_whose
kat delete workload second --wait
wait_for 60 has_ready third 1
equal "$other" "$(machine_of third)" "machine of the third workload"
kat delete workload third --wait
closed() { ! ask "$node" "$(address_of "$other")" 80 2>/dev/null; }
wait_for 20 closed

# auto is one number on both machines, and stays over an update.
kat apply --wait --timeout 60s -f "$(publish everywhere auto --replicas 2)"
equal '["n1","n2"]' "$(machines_running everywhere)" "machines of two replicas"
number=$(kat get workload everywhere -o json | jq .status.hostPorts[0].port)
((number >= 30000 && number <= 32767))
for one in n1 n2; do
    instance=$(field_on everywhere "$one" .metadata.name)
    contains "$(ask "$(other_than "$one")" "$(address_of "$one")" "$number")" "host=$instance"
done
kat apply --wait --timeout 60s -f "$(publish everywhere auto --replicas 2 --env VERSION=2)"
equal "$number" "$(kat get workload everywhere -o json | jq .status.hostPorts[0].port)" "number after an update"
contains "$(ask n1 "$n2_address" "$number")" "version=2"
kat delete workload everywhere --wait

# A program of the machine keeps its port: the instance waits for it.
n1 systemd-run --quiet --unit=program --setenv=PORT=8088 --setenv=VERSION=program /root/web
listens() { n1 curl --silent --output /dev/null --max-time 2 http://127.0.0.1:8088/; }
wait_for 10 listens
kat label node n1 place=here
kat apply -f "$(publish taken 8088 --spec 'nodeSelector: {place: here}')" >/dev/null
says_in_use() { contains "$(field taken '.status | "\(.reason): \(.message)"')" "HostPortInUse: host port 8088/TCP is in use by "; }
wait_for 30 says_in_use
contains "$(kat why instance "$(field taken .metadata.name)")" "a program of n1 itself listens on its host port"
contains "$(ask n2 "$n1_address" 8088)" "version=program"
n1 systemctl stop program.service
# It may be starting anew: the port stays the machine's for a while, or until its owner gives it up.
kept_for_it() { contains "$(field taken '.status | "\(.reason): \(.message)"')" "HostPortInUse: a program of this machine listened on host port 8088/TCP in the last ten minutes"; }
wait_for 30 kept_for_it
refused ask n2 "$n1_address" 8088
n1 systemctl restart kat-net
wait_for 30 has_ready taken 1
contains "$(ask n2 "$n1_address" 8088)" "host=$(field taken .metadata.name)"
kat delete workload taken --wait
kat label node n1 place-

# Under load from outside, and on the machine by its loopback, a new version takes over on the same machine.
kat label node "$node" place=here
files() { publish web 80 --env DRAIN_MS=1000 --drain 2 --spec 'nodeSelector: {place: here}' "$@"; }
kat apply --wait --timeout 60s -f "$(files --env VERSION=1)"
equal "$node" "$(machine_of web)" "machine of the workload"
on "$other" test -x /root/web || lab copy "$LAB_WORK/images/web/bin/web" "$other:/root/web"
on "$node" test -x /root/web || lab copy "$LAB_WORK/images/web/bin/web" "$node:/root/web"
declare -A loads=()
trap 'kill "${loads[@]}" 2>/dev/null || true; tail -n 12 "$LAB_WORK"/load-* >&2' EXIT
# start WHICH MACHINE ADDRESS KEPT
start() {
    on "$2" /root/web load "$3" 80 100 150 /tmp/stop-load "$4" >"$LAB_WORK/load-$1.json" 2>"$LAB_WORK/load-$1.log" &
    loads[$1]=$!
}
began=$SECONDS
start outside "$other" "$at" 0
start outside-kept "$other" "$at" 10
start own "$node" "$at" 0
start loopback "$node" 127.0.0.1 0
for version in 2 3 4; do
    kat apply --wait --timeout 60s -f "$(files --env "VERSION=$version")"
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
contains "$(ask "$other" "$at" 80)" "version=4"
trap - EXIT

# The machine boots while its agent is masked: the port leads to the instance all the same.
id=$(field web .metadata.name)
on "$node" systemctl mask --now kat-agent.service
lab reboot "$node"
refused on "$node" systemctl is-active kat-agent.service
leads() { contains "$(ask "$other" "$at" 80)" "host=$id" && contains "$(ask "$node" 127.0.0.1 80)" "host=$id"; }
wait_for 60 leads
on "$node" systemctl unmask kat-agent.service
on "$node" systemctl start kat-agent.service
wait_for 60 nodes_are_ready
wait_for 60 has_ready web 1
leads
kat label node "$node" place-
kat delete workload web --wait
at_an_end() { ! ask "$other" "$at" 80 2>/dev/null && ! ask "$node" 127.0.0.1 80 2>/dev/null; }
wait_for 20 at_an_end
refused on "$node" sh -c 'nft list table inet kat-host-ports | grep -q "dnat ip"'
for one in n1 n2; do restore_agent_settings "$one"; done
wait_for 60 nodes_are_ready
