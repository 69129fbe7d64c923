# One machine gets another address, and then the leader: nothing is lost and no command is needed
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
program_on() { on "$1" pgrep -x web; }
# has_address NODE ADDRESS: whether the API lists ADDRESS for NODE, and the peers of all other
# machines have it.
has_address() {
    local node
    kat get nodes "$1" -o json | jq -e --arg address "$2" \
        '.status | (.endpoints | index("\($address):51820")) and (.addresses | index($address))' >/dev/null || return 1
    for node in n1 n2 n3; do
        [[ $node == "$1" ]] || on "$node" grep -q "\"$2:51820\"" /var/lib/kat/network/peers.json || return 1
    done
}
# answers_n1_and_n2 NODE: whether n1 and n2 reach the instance on NODE over the overlay.
answers_n1_and_n2() {
    local address
    address=$(field_on web "$1" .status.ip) && page "http://$address/" >/dev/null &&
        on n2 curl --silent --fail --max-time 3 "http://$address/" >/dev/null
}
pid=$(program_on n3)
lab readdress n3 192.168.77.113
wait_for 30 has_address n3 192.168.77.113
wait_for 30 answers_n1_and_n2 n3
wait_for 30 nodes_are_ready
equal "$pid" "$(program_on n3)" "the process on the machine that moved"
leader=$(leader_at n1)
before=$(kat get nodes "$leader" -o json | jq -r '.status.endpoints[0] | rtrimstr(":51820")')
pid=$(program_on "$leader")
lab readdress "$leader" 192.168.77.120
wait_for 60 has_address "$leader" 192.168.77.120
wait_for 30 answers_n1_and_n2 "$leader"
wait_for 60 nodes_are_ready
wait_for 60 members_are_healthy 3
equal "$pid" "$(program_on "$leader")" "the process on the machine that led"
can_write() { kat create namespace moved || kat get namespace moved; }
wait_for 30 can_write
kat delete namespace moved
lab readdress "$leader" "$before"
wait_for 60 has_address "$leader" "$before"
wait_for 60 nodes_are_ready
