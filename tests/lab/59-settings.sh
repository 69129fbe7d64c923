# Settings of a running cluster change on every machine without a restart, and a reload takes a valid agent.yaml only
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 20
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
folder=$(workload web --port 80 --replicas 3 --container "terminationGraceSeconds: 2")
n1 sed -i 's/^spec:$/spec:\n  onPartition: stop/' "$folder/workload.kat"
kat apply -f "$folder" --wait
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
pids() { for node in n1 n2 n3; do on "$node" sh -c 'pgrep -x web || [ $? = 1 ]'; done; }
agents() { for node in n1 n2 n3; do on "$node" systemctl show --property=MainPID --value kat-agent.service; done; }
before=$(pids) agents_before=$(agents)

contains "$(kat config get)" "kind: ClusterConfiguration"
equal 20 "$(kat config get nodeLossTimeoutSeconds)" "timeout at first"

# A mistake names its place, and nothing changes.
output=$(kat config set nodeLossTimeoutSeconds=5 2>&1) && exit 1
contains "$output" "nodeLossTimeoutSeconds is 5, expected at least three ticks of agentTickSeconds: 9"
contains "$output" "cluster.kat:"
output=$(kat config set apiPort=9000 2>&1) && exit 1
contains "$output" "stays as it was at init"
output=$(kat config set agentTickSeconds=1 nodeLossTimeoutSeconds=4 2>&1) && exit 1
contains "$output" "default/web"
equal 20 "$(kat config get nodeLossTimeoutSeconds)" "timeout after refusals"
contains "$(kat config set nodeLossTimeoutSeconds=40 --dry-run)" "nodeLossTimeoutSeconds: 20 -> 40"
equal 20 "$(kat config get nodeLossTimeoutSeconds)" "timeout after a dry run"

# deadline NODE: seconds until kat-net would end the instance on the machine.
deadline() {
    local ends
    ends=$(on "$1" jq -r '.deadlines | to_entries[0].value' /run/kat/deadlines.json) || return 1
    echo $((ends / 1000000 - $(on "$1" cut -d . -f 1 /proc/uptime)))
}
# deadlines_between LEAST MOST: whether every machine's deadline is so many seconds away; for wait_for.
deadlines_between() {
    local node left
    for node in n1 n2 n3; do
        left=$(deadline "$node") || return 1
        ((left >= $1 && left <= $2)) || {
            echo "the deadline of $node is $left s away" >&2
            return 1
        }
    done
}
wait_for 30 deadlines_between 10 20

# Every machine follows a higher time.
kat config set agentTickSeconds=5 nodeLossTimeoutSeconds=90
wait_for 30 deadlines_between 60 90
for node in n1 n2 n3; do
    equal 90 "$(on "$node" jq .cluster.spec.nodeLossTimeoutSeconds /var/lib/kat/node.json)" "timeout in node.json of $node"
done

# A machine that is away holds a lower time back, and confirms it when it is back. Its instance is ended by the time that it knew.
# follower: a machine that does not lead, and on which no katcall runs.
follower() {
    local leader
    leader=$(leader_at n1) || return 1
    case $leader in
    n3) echo n2 ;;
    n1 | n2) echo n3 ;;
    *) return 1 ;;
    esac
}
away=$(follower)
lab cut "$away"
# etcd may have to elect another leader first.
wait_for 30 kat config set agentTickSeconds=3 nodeLossTimeoutSeconds=15
waits_for_it() {
    local out
    out=$(kat config history 2>&1) || return 1
    grep -q "nodeLossTimeoutSeconds 90; machines that have not confirmed the lower value: $away$" <<<"$out"
}
wait_for 30 waits_for_it
# More than the lower time, and less than the higher one.
cut_until=$((SECONDS + 25))
while ((SECONDS < cut_until)); do
    equal Ready "$(kat get nodes "$away" -o json | jq -r .status.phase)" "phase of $away, which may count with 90 s"
done
lab heal "$away"
wait_for 60 nodes_are_ready
all_follow() {
    local out
    # A call that fails says nothing of the machines.
    out=$(kat config history 2>&1) || return 1
    ! grep -q "leaders still go by" <<<"$out"
}
wait_for 30 all_follow
wait_for 30 deadlines_between 5 15
has_ready web 3
equal "$before" "$(pids)" "programs"
equal "$agents_before" "$(agents)" "agents' processes"
contains "$(kat get events -A)" ConfigurationFollowed

# A lost machine is replaced after the lower time, and not before its instance has ended.
away=$(follower)
case $away in
n2) stay='["n1","n3"]' ;;
*) stay='["n1","n2"]' ;;
esac
lab cut "$away"
program_has_ended() { finds_nothing on "$away" pgrep -x web; }
replaced() { [[ $(machines_running web) == "$stay" ]] && has_ready web 3; }
wait_for 30 program_has_ended
wait_for 40 replaced
lab heal "$away"
wait_for 60 nodes_are_ready
wait_for 60 process_count_is 3

# The MTU is that of the overlay at once.
kat config set mtu=1380
overlay_has_mtu() {
    local node
    for node in n1 n2 n3; do
        [[ $(on "$node" cat /sys/class/net/kat0/mtu) == "$1" ]] || return 1
    done
}
wait_for 30 overlay_has_mtu 1380
kat config unset mtu
wait_for 30 overlay_has_mtu 1420

# The history names who and what, and a rollback returns to an earlier configuration.
history=$(kat config history)
contains "$history" "nodeLossTimeoutSeconds: 20 -> 90"
contains "$history" init
kat config rollback 1
equal 20 "$(kat config get nodeLossTimeoutSeconds)" "timeout after the rollback"
wait_for 30 all_follow

# A reload takes a valid agent.yaml, and keeps the earlier settings with any other.
agent() { on n2 systemctl show --property=MainPID --value kat-agent.service; }
programs=$(pids) process=$(agent)
on n2 sh -c 'printf "reserved: {memry: 64Mi}\n" >/etc/kat/agent.yaml'
on n2 systemctl reload kat-agent.service
refused() { on n2 systemctl show --property=StatusText --value kat-agent.service | grep -q "agent.yaml is not taken"; }
wait_for 15 refused
contains "$(on n2 journalctl -q -u kat-agent -o cat --since=-1min)" "memry"
equal "$process" "$(agent)" "process of the agent after an invalid file"
allocatable() { kat get nodes n2 -o json | jq -r .status.allocatable.memory; }
memory=$(allocatable)
on n2 sh -c 'printf "reserved: {memory: 64Mi}\n" >/etc/kat/agent.yaml'
on n2 systemctl reload kat-agent.service
less_is_allocatable() { local now && now=$(allocatable) && [[ $now && $now != "$memory" ]]; }
wait_for 60 less_is_allocatable
finds_nothing on n2 sh -c 'systemctl show --property=StatusText --value kat-agent.service | grep "is not taken"'
on n2 rm /etc/kat/agent.yaml
on n2 systemctl reload kat-agent.service
as_before() { [[ $(allocatable) == "$memory" ]]; }
wait_for 60 as_before
wait_for 60 nodes_are_ready
equal "$programs" "$(pids)" "programs after the reloads"
