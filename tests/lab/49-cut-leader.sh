# The leader is cut off: another machine leads and replaces its instances; it accepts no change, and follows the new leader when it is back
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
old=$(leader_at n1)
other=$([[ $old == n1 ]] && echo n2 || echo n1)
third=$(printf '%s\n' n1 n2 n3 | grep -v -e "$old" -e "$other")
lost=$(field_on web "$old" .metadata.name) pid=$(on "$old" pgrep -x web)
lab cut "$old"
can_write() { on "$other" timeout 2 katcall create namespace "after-$RANDOM$RANDOM"; }
wait_for 30 can_write
another_leads() { [[ $(leader_at "$other") == @("$other"|"$third") ]]; }
wait_for 10 another_leads
replaced() {
    on "$other" katcall get instances -o json | jq -e --arg old "$old" \
        '[.items[].status | select(.workload == "web" and .phase == "Running") | .node] | length == 3 and index($old) == null' >/dev/null
}
wait_for 60 replaced
# On the machine that is cut off, instances continue, reads are marked as old, and changes are
# refused.
equal "$pid" "$(on "$old" pgrep -x web)" "the process on the machine that is cut off"
shown=$(on "$old" katcall get instances -o name 2>"$LAB_WORK/stale")
contains "$shown" "$lost"
contains "$(<"$LAB_WORK/stale")" "no machine leads"
code=0
output=$(on "$old" timeout 20 katcall create namespace lonely 2>&1) || code=$?
equal 4 "$code" "exit code of a change"
contains "$output" "no machine leads the cluster"
# The machine returns as one of three: changes that the majority accepted remain, and changes that
# it refused do not appear.
on "$other" katcall create namespace kept
lab heal "$old"
wait_for 60 nodes_are_ready
wait_for 60 members_are_healthy 3
lost_instance_is_gone() {
    local listed
    listed=$(on "$old" katcall get instances -o name) && [[ $listed && $listed != *"$lost"* ]]
}
wait_for 60 lost_instance_is_gone
namespaces=$(on "$old" katcall get namespaces -o name)
contains "$namespaces" namespace/kept
lacks "$namespaces" lonely
wait_for 30 process_count_is 3
equal "$(leader_at "$other")" "$(leader_at "$old")" "the leader"
for name in $(on "$other" katcall get namespaces -o json | jq -r '.items[].metadata.name | select(startswith("after-") or . == "kept")'); do
    on "$other" katcall delete namespace "$name"
done
