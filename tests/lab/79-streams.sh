# The log of a workload on three machines is followed from any of them while one instance ends and another joins, and an unreachable machine hides no other log; commands run across machines
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 120 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
all_starts_are_logged() {
    local id ids text
    text=$(on "$1" katcall logs web --all) || return 1
    ids=$(instances web | jq -er '.[] | select(.status.phase == "Running") | .metadata.name') || return 1
    for id in $ids; do
        contains "$text" "$id | listening on port 80" || return 1
    done
}
# The leader's machine answers, and so do those that pass connections on to it.
for node in n1 n2 n3; do wait_for 10 all_starts_are_logged "$node"; done
# Agents answer the leader alone: callers without a certificate are refused, and other machines may
# only fetch data that moves to them.
overlay=$(kat get node n2 -o json | jq -r .status.overlayAddress)
refused on n3 curl --silent --insecure --max-time 5 "https://$overlay:9116/"
status_with_node_certificate() {
    on n3 curl --silent --insecure --max-time 5 --output /dev/null --write-out '%{http_code}' \
        --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key "https://$overlay:9116$1"
}
id=$(field_on web n2 .metadata.name)
equal 403 "$(status_with_node_certificate /v1alpha1/nodes/n2/usage)" "status of usage for another machine"
equal 403 "$(status_with_node_certificate "/v1alpha1/n/default/workloads/web/instances/$id/logs")" "status of logs for another machine"
equal 403 "$(status_with_node_certificate "/v1alpha1/n/default/workloads/web/volumes/data/copy?id=none")" "status of a copy that nobody asked for"
# Commands in each instance, from each machine: two of three go through the leader to a third
# machine.
for node in n1 n2 n3; do
    for id in $(instances web | jq -r '.[] | select(.status.phase == "Running") | .metadata.name'); do
        equal "$id" "$(on "$node" katcall exec "$id" -- hostname)" "hostname that an exec on $node sees"
    done
done
code=0
on n3 katcall exec "$(field_on web n2 .metadata.name)" -- sh -c 'exit 9' || code=$?
equal 9 "$code" "exit code of a command on another machine"
# `katcall top` shows each instance's usage, as its own machine measures it.
all_have_usage() { [[ $(on n3 katcall top instances | awk '/^web-/ && NF > 2' | wc -l) == 3 ]]; }
wait_for 30 all_have_usage
drained_instance=$(field_on web n2 .metadata.name)
on n3 timeout 120 katcall logs web -f --all >"$LAB_WORK/follow.log" 2>"$LAB_WORK/follow.err" &
following=$!
wait_for 20 grep -q "^$drained_instance | listening" "$LAB_WORK/follow.log"
kat drain n2 --timeout 60s
wait_for 30 grep -q "the log of .$drained_instance. has ended" "$LAB_WORK/follow.err"
logs_have_all_instances() {
    local id
    for id in $(instances web | jq -r '.[].metadata.name'); do
        grep -q "^$id | listening" "$LAB_WORK/follow.log" || return 1
    done
}
wait_for 30 logs_have_all_instances
kill "$following" || true
wait "$following" || true
kat uncordon n2
# One machine is unreachable, and the logs of the others are shown.
run other --port 8080 --replicas 3
wait_for 30 has_ready other 3
lost=$(field_on other n3 .metadata.name)
lab cut n3
one_log_is_unreachable() {
    local text
    text=$(on n1 timeout 30 katcall logs other --all 2>&1) && return 1
    contains "$text" "the log of \`$lost\`: the machine \`n3\` can't be reached" &&
        contains "$text" "logs could not be read" &&
        contains "$text" "listening on port 8080"
}
wait_for 60 one_log_is_unreachable
contains "$(kat top instances 2>&1)" "the machine \`n3\` can't be reached"
lab heal n3
wait_for 60 nodes_are_ready
