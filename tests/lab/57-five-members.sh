# etcd has five members without a command; the leaders of KAT and of raft are lost at once, and everything continues
# machines: 5
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 150 members_are_healthy 5
contains "$(kat status)" "5 of 5 members well"
run web --port 80 --replicas 5
equal '["n1","n2","n3","n4","n5"]' "$(machines_running web)" "machines of five replicas"
equal "$(n1 kat-agent recovery-key)" "$(on n5 kat-agent recovery-key)" "recovery key of n5"

declare -A overlays
for node in n1 n2 n3 n4 n5; do overlays[$node]=$(overlay_address "$node"); done
raft_leader() {
    local url node
    url=$(etcdctl_on n1 endpoint status --cluster | awk -F, '$5 ~ /true/ { print $1 }')
    for node in "${!overlays[@]}"; do [[ $url != *"//${overlays[$node]}:"* ]] || echo "$node"; done
}
leaders_differ() { leader=$(leader_at n1) && raft=$(raft_leader) && [[ $leader && $raft && $raft != "$leader" ]]; }
wait_for 30 leaders_differ
remaining=$(printf '%s\n' n1 n2 n3 n4 n5 | grep -v -e "$leader" -e "$raft")
other=$(head -n 1 <<<"$remaining")
lost=$(instances web | jq -c --arg a "$leader" --arg b "$raft" '[.[] | select(.status.node == $a or .status.node == $b) | .metadata.name]')
equal 2 "$(jq length <<<"$lost")" "instances on the two"

# From here on katcall runs on a remaining machine.
kat() { on "$other" katcall "$@"; }
can_write() { on "$other" timeout 2 katcall create namespace "five-$RANDOM$RANDOM"; }
began=$EPOCHREALTIME
lab kill "$leader" &
lab kill "$raft" &
wait
wait_for 60 can_write
echo "writes worked $(seconds_since "$began") s after $leader and $raft lost power"
# All values come from one answer: until the losses are noticed the workload also counts as
# complete.
remaining_machines_run_all() {
    instances web | jq -e --arg left "$remaining" '[.[].status | select(.phase == "Running")] |
        length == 5 and ([.[].node] | unique) == ($left | split("\n")) and ([.[].ip] | unique | length) == 5' >/dev/null
}
wait_for 60 remaining_machines_run_all
echo "all instances ran on remaining machines after $(seconds_since "$began") s"
wait_for 10 has_ready web 5
instance_answers() { on "$other" curl --silent --fail --max-time 3 "http://$1/" | grep -q '^host='; }
for address in $(instances web | jq -r '.[].status | select(.phase == "Running") | .ip'); do
    wait_for 20 instance_answers "$address"
done

# The machines return at the same time: they are members again, and do not start instances that were
# replaced.
lab start "$leader" &
lab start "$raft" &
wait
wait_for 90 nodes_are_ready
wait_for 90 members_are_healthy 5 "$other"
lost_instances_are_gone() { [[ $(instances web | jq --argjson lost "$lost" '[.[] | select(.metadata.name | IN($lost[]))] | length') == 0 ]]; }
wait_for 60 lost_instances_are_gone
wait_for 30 process_count_is 5
wait_for 30 has_ready web 5
for name in $(kat get namespaces -o json | jq -r '.items[].metadata.name | select(startswith("five-"))'); do
    kat delete namespace "$name"
done
