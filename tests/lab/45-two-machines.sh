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

lab start n1
wait_for 60 nodes_are_ready
for node in n1 n2; do wait_for 60 backends_are 2 "$node"; done
wait_for 60 has_ready web 2
