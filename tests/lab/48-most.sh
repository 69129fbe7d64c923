# Instances on two of three machines are not moved while both machines are away
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# join: --no-etcd
# shellcheck shell=bash
wait_for 30 nodes_are_ready
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
ids() { instances web | jq -c '[.[] | .metadata.name] | sort'; }
before=$(ids)
lab cut n2
lab cut n3
two_machines_are_held() { [[ $(kat get nodes | grep -c MostMachinesLost) == 2 ]]; }
wait_for 30 two_machines_are_held
output=$(kat status) && exit 1
contains "$output" "2 of 3 machines vanished at once: nothing is moved"
contains "$(kat get events -A)" MostMachinesLost
contains "$(kat describe workload web)" "nothing is moved"
# No instance may change during one more nodeLossTimeoutSeconds.
deadline=$((SECONDS + 12))
while ((SECONDS < deadline)); do equal "$before" "$(ids)" "instances"; done
service_has_only_n1() { [[ $(service_backends web n1) == "$(field_on web n1 .status.ip)" ]]; }
wait_for 10 service_has_only_n1
lab heal n2
lab heal n3
wait_for 60 nodes_are_ready
wait_for 30 has_ready web 3
equal "$before" "$(ids)" "instances after the cut"
process_count_is 3
