# A machine loses power under load: new connections meet the others long before the machine is NotReady, also where the agent is stopped
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
address=$(service_address web) gone=$(field_on web n2 .status.ip)

# What kat-net does needs no agent.
on n3 systemctl stop kat-agent.service
start_calls n1 "$address" 30
start_calls n3 "$address" 30
began=$EPOCHREALTIME
lab kill n2
for node in n1 n3; do
    wait_for 25 backends_are 2 "$node"
    lacks "$(service_backends web "$node")" "$gone"
    echo "$node left the machine out $(seconds_since "$began") s after the loss of power"
done
equal Ready "$(kat get nodes n2 -o json | jq -r .status.phase)" "phase of the lost machine"
no_long_wait n1 150 25
no_long_wait n3 150 25
contains "$(on n1 journalctl --unit kat-net --since "@${began%.*}" --output cat)" "does not answer over the overlay"
on n3 systemctl start kat-agent.service
lab start n2
wait_for 60 nodes_are_ready
for node in n1 n3; do wait_for 60 backends_are 3 "$node"; done
wait_for 60 has_ready web 3
