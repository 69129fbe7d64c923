# etcd has five members without a command; the leaders of KAT and of raft are lost at once, and everything continues
# machines: 5
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
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
apart() { leader=$(leader_at n1) && raft=$(raft_leader) && [[ $leader && $raft && $raft != "$leader" ]]; }
wait_for 30 apart
left=$(printf '%s\n' n1 n2 n3 n4 n5 | grep -v -e "$leader" -e "$raft")
other=$(head -n 1 <<<"$left")
lost=$(instances web | jq -c --arg a "$leader" --arg b "$raft" '[.[] | select(.status.node == $a or .status.node == $b) | .metadata.name]')
equal 2 "$(jq length <<<"$lost")" "instances on the two"

# The commands from here on run on a remaining machine.
kat() { on "$other" katcall "$@"; }
writes() { on "$other" timeout 2 katcall create namespace "five-$RANDOM$RANDOM"; }
began=$EPOCHREALTIME
lab kill "$leader" &
lab kill "$raft" &
wait
wait_for 60 writes
echo "writing again $(seconds_since "$began") s after the plugs of $leader and $raft"
# One response must show all five instances, because the workload still counts as whole until the
# two machines are missed.
whole_elsewhere() {
    instances web | jq -e --arg left "$left" '[.[].status | select(.phase == "Running")] |
        length == 5 and ([.[].node] | unique) == ($left | split("\n")) and ([.[].ip] | unique | length) == 5' >/dev/null
}
wait_for 60 whole_elsewhere
echo "whole elsewhere $(seconds_since "$began") s after the plugs"
wait_for 10 has_ready web 5
serves() { on "$other" curl --silent --fail --max-time 3 "http://$1/" | grep -q '^host='; }
for address in $(instances web | jq -r '.[].status | select(.phase == "Running") | .ip'); do
    wait_for 20 serves "$address"
done

# Both machines return at once. They become members again, and do not start what runs elsewhere by
# now.
lab start "$leader" &
lab start "$raft" &
wait
wait_for 90 nodes_are_ready
wait_for 90 members_are_healthy 5 "$other"
are_gone() { [[ $(instances web | jq --argjson lost "$lost" '[.[] | select(.metadata.name | IN($lost[]))] | length') == 0 ]]; }
wait_for 60 are_gone
wait_for 30 process_count_is 5
wait_for 30 has_ready web 5
for name in $(kat get namespaces -o json | jq -r '.items[].metadata.name | select(startswith("five-"))'); do
    kat delete namespace "$name"
done
