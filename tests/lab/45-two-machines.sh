# Of two machines the leader with the only member of etcd loses power under load: the other one sends new connections to its own instance
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 30 members_are_healthy 1
equal n1 "$(leader_at n1)" "the leader"
run web --port 80 --replicas 2
equal '["n1","n2"]' "$(machines_running web)" "machines of two replicas"
address=$(service_address web) gone=$(field_on web n1 .status.ip)
wait_for 10 backends_are 2 n2

start_calls n2 "$address" 40
began=$EPOCHREALTIME
lab kill n1
wait_for 25 backends_are 1 n2
echo "n2 left the machine out $(seconds_since "$began") s after the loss of power"
lacks "$(service_backends web n2)" "$gone"
no_long_wait n2 200 25
backends_are 1 n2

# The other machine boots while nobody answers: its instance runs from what it has on its disk.
own=$(on n2 katcall get instances -A -o json | jq -er '.items[0].status.ip')
contains "$(on n2 curl --silent --max-time 3 "http://$own/")" host=
on n2 sync
lab kill n2
lab start n2
runs_alone() { on n2 curl --silent --max-time 3 "http://$own/" | grep -q '^host='; }
wait_for 60 runs_alone
says_nobody_answers() { contains "$(on n2 systemctl show --property=StatusText --value kat-agent.service)" "no leader answers since"; }
wait_for 30 says_nobody_answers
on n2 katcall status && exit 1

lab start n1
wait_for 60 nodes_are_ready
equal "$own" "$(field_on web n2 .status.ip)" "the instance that ran alone"
for node in n1 n2; do wait_for 60 backends_are 2 "$node"; done
wait_for 60 has_ready web 2

# The tunnel between the two is dead while both report: neither can say which one is cut off, and the screen tells it.
start_calls n2 "$address" 60
on n2 nft 'table inet dead { chain in { type filter hook input priority -300; udp dport 51820 drop; }
    chain out { type filter hook output priority -300; udp dport 51820 drop; }; }'
tells_of_the_overlay() {
    local output
    output=$(kat status) && return 1
    contains "$output" "over the overlay for"
}
wait_for 90 tells_of_the_overlay
nodes_are_ready
stop_calls n2
on n2 nft delete table inet dead
wait_for 90 kat status
