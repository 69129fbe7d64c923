# A host port of the machines that serve routes leads to instances on other machines, by TCP and UDP; the label moves it, a program of the machine keeps it, and a machine that loses power takes no caller with it
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
# address NODE: its address in the lab's network.
address() { on "$1" ip -4 -o address show dev host0 | awk '{ sub("/.*", "", $4); print $4; exit }'; }
n1_address=$(address n1) n2_address=$(address n2) n3_address=$(address n3)
# ingress_folder NAME CONTAINERPORT MORE [OPTION...]: the folder of a workload whose port has these further
# fields.
ingress_folder() {
    local name=$1 port=$2 more=$3 folder
    shift 3
    folder=$(workload "$name" --port "$port" "$@")
    on n1 sed -i "s/containerPort: $port/containerPort: $port, $more/" "$folder/VirtualLoadBalancer.kat"
    echo "$folder"
}
# page_at ADDRESS [FROM]: the page that a machine, or a caller outside the cluster, gets at the host port.
page_at() {
    if [[ ${2:-} ]]; then
        on "$2" curl --silent --fail --max-time 3 "http://$1:8080/"
    else
        nsenter --net="/run/netns/$KAT_LAB_NAME" -- curl --silent --fail --max-time 3 "http://$1:8080/"
    fi
}
page_has() { [[ $(page_at "$1" "${3:-}" 2>/dev/null) == *"$2"* ]]; }
is_closed() { ! page_at "$1" 2>/dev/null; }
check='http: {path: /healthz, port: web}, periodSeconds: 1'
elsewhere='nodeSelector: {place: here}'

# Only n1 serves routes, and the instance runs on n2.
kat label node n1 kat.dws.rip/role=ingress
kat label node n2 place=here
kat apply --wait --timeout 60s -f "$(ingress_folder web 8080 'hostPort: 8080, hostPortOn: ingress' --health "$check" --spec "$elsewhere")"
id=$(field web .metadata.name)
equal n2 "$(field web .status.node)" "machine of the instance"
wait_for 20 page_has "$n1_address" "host=$id"
for from in n1 n2 n3; do page_has "$n1_address" "host=$id" "$from"; done
# The instance calls the port, and is sent to itself.
contains "$(as_on n2 "$(field web .status.user)" podman exec "kat-default-$id" wget -q -T 3 -O- "http://$n1_address:8080/")" "host=$id"
is_closed "$n2_address"
is_closed "$n3_address"
contains "$(kat describe workload web)" "(host port 8080 of the machines that serve routes)"
contains "$(kat why workload web)" "the machines that serve routes have its host port 8080/TCP"

# A second workload does not get the port.
code=0
output=$(kat apply -f "$(ingress_folder other 8081 'hostPort: 8080, hostPortOn: ingress')" 2>&1) || code=$?
differs 0 "$code" "exit code of an apply with a port of another workload"
contains "$output" "workload web has port 8080/TCP of the machines that serve routes as a host port"

# By UDP.
kat apply --wait --timeout 60s -f "$(ingress_folder echo 5300 'protocol: UDP, hostPort: 5353, hostPortOn: ingress' --env UDP=1 --spec "$elsewhere")"
hears() {
    local answer
    # shellcheck disable=SC2016
    answer=$(on "$1" timeout 3 bash -c 'exec 3<>"/dev/udp/$1/5353" && echo ask >&3 && head -n 1 <&3' bash "$n1_address") || true
    equal "host=$(field echo .metadata.name)" "$answer" "what $1 hears by UDP"
}
for from in n1 n3; do wait_for 20 hears "$from"; done
kat delete workload echo --wait

# allowSources decides by the caller's own address.
kat apply --wait --timeout 60s -f "$(ingress_folder web 8080 "hostPort: 8080, hostPortOn: ingress, allowSources: [$n3_address]" --health "$check" --spec "$elsewhere")"
equal "$id" "$(field web .metadata.name)" "instance after a change of allowSources"
wait_for 20 is_closed "$n1_address"
wait_for 20 page_has "$n1_address" "host=$id" n3
kat apply --wait --timeout 60s -f "$(ingress_folder web 8080 'hostPort: 8080, hostPortOn: ingress' --health "$check" --spec "$elsewhere")"
wait_for 20 page_has "$n1_address" "host=$id"

# A program of the machine keeps its port there, and the machine says so.
n1 systemd-run --quiet --unit=program --setenv=PORT=8080 --setenv=VERSION=program /root/web
listens() { n1 curl --silent --output /dev/null --max-time 2 http://127.0.0.1:8080/; }
wait_for 10 listens
wait_for 40 page_has "$n1_address" version=program
says_so() { contains "$(kat why node n1)" "host port 8080/TCP of default/web stays with a program of this machine"; }
wait_for 30 says_so
n1 systemctl stop program.service
n1 systemctl restart kat-net
wait_for 30 page_has "$n1_address" "host=$id"

# The label moves to n3, and the port with it; without a label all machines have it.
kat label node n3 kat.dws.rip/role=ingress
kat label node n1 kat.dws.rip/role-
wait_for 20 page_has "$n3_address" "host=$id"
wait_for 20 is_closed "$n1_address"
kat label node n3 kat.dws.rip/role-
for one in "$n1_address" "$n2_address" "$n3_address"; do wait_for 20 page_has "$one" "host=$id"; done

# An instance ends while callers come: each new connection goes to another one.
kat label node n2 place-
kat apply --wait --timeout 120s -f "$(ingress_folder web 8080 'hostPort: 8080, hostPortOn: ingress' --health "$check" --replicas 3)"
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
all_answer() {
    local found
    found=$(for _ in {1..60}; do page_at "$n3_address" | grep -o 'host=[^ ]*'; done | sort -u | wc -l)
    equal 3 "$found" "instances behind the port of n3"
}
wait_for 20 all_answer
lab kill n2
# Before the leader counts n2 as lost, kat-net of n3 leaves it out.
twenty_answer() { for _ in {1..20}; do page_at "$n3_address" >/dev/null || return 1; done; }
wait_for 25 twenty_answer
wait_for 60 has_ready web 3
wait_for 20 twenty_answer
lab start n2
wait_for 90 nodes_are_ready
wait_for 30 page_has "$n2_address" host=

# Deletion closes the port everywhere.
kat delete workload web --wait
for one in "$n1_address" "$n2_address" "$n3_address"; do wait_for 20 is_closed "$one"; done
