# A workload with onPartition stop has ended on a machine that is cut off before it starts elsewhere, and comes back once
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 20
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
apply_fenced() {
    local folder
    folder=$(workload web --port 80 --replicas 3 --container "terminationGraceSeconds: $1")
    n1 sed -i 's/^spec:$/spec:\n  onPartition: stop/' "$folder/workload.kat"
    kat apply -f "$folder" --wait
}
# An apply is refused if the program's grace period ends after the program's replacement.
output=$(apply_fenced 10 2>&1) && exit 1
contains "$output" "nodeLossTimeoutSeconds"
apply_fenced 2
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
status=$(field_on web n3 .status)
unit=$(jq -r .unit <<<"$status") lost=$(field_on web n3 .metadata.name)
lab cut n3
program_has_ended() { finds_nothing on n3 pgrep -x web; }
wait_for 30 program_has_ended
replaced() { [[ $(machines_running web) == '["n1","n2"]' ]] && has_ready web 3; }
wait_for 60 replaced
# The machines share one clock, so the times are comparable.
stopped_at=$(on n3 journalctl -q -o json --output-fields=__REALTIME_TIMESTAMP "USER_UNIT=$unit" | jq -s 'map(.__REALTIME_TIMESTAMP | tonumber) | max')
moved_at=$(kat get events -o json | jq -r --arg lost "$lost" '.items[] | select(.reason == "Lost" and .involvedObject.name == $lost) | .firstTimestamp' |
    head -n 1)
moved_at=$(date --date="$moved_at" +%s%6N)
echo "the program stopped $(((moved_at - stopped_at) / 1000)) ms before its replacement"
((stopped_at < moved_at))
contains "$(on n3 journalctl -q -u kat-agent -o cat)" "must not run while no leader is reached"
lab heal n3
wait_for 60 nodes_are_ready
wait_for 60 instance_is_gone web "$lost"
wait_for 30 process_count_is 3
has_ready web 3
# A restart of the agent, with a reachable leader, stops no program.
pids() { for node in n1 n2; do on "$node" pgrep -x web; done; }
before=$(pids)
on n2 systemctl restart kat-agent.service
reached=$(on n2 cat /run/kat/reached)
agent_reached_leader() {
    local now
    now=$(on n2 cat /run/kat/reached) && [[ $now && $now != "$reached" ]]
}
wait_for 30 agent_reached_leader
has_ready web 3
equal "$before" "$(pids)" "programs"
