# A machine that is cut off keeps running its instances, and after the partition no instance is superfluous or missing
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
lost=$(field_on web n3 .metadata.name) pid=$(on n3 pgrep -x web)
lab cut n3
# The instance is replaced within the timeout and the time of a start; on the machine that is cut
# off it continues.
replaced() { [[ $(machines_running web) == '["n1","n2"]' ]] && has_ready web 3; }
wait_for 25 replaced
equal "$pid" "$(on n3 pgrep -x web)" "the process on the machine that is cut off"
lab heal n3
wait_for 60 nodes_are_ready
wait_for 60 instance_is_gone web "$lost"
wait_for 30 process_count_is 3
has_ready web 3
