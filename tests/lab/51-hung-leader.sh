# The leader's agent hangs, and then the etcd that leads raft: a write on another machine waits for the next leader and no longer, and callers notice nothing
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
start_load "$(service_address web)" 80 50
another_than() { printf '%s\n' n1 n2 n3 | grep -vx "$1" | head -n 1; }
# writes_on MACHINE NAME: one call; it must end by itself, whatever it says.
writes_on() {
    local code=0
    on "$1" timeout 12 katcall create namespace "$2" || code=$?
    ((code != 124)) || : >"$LAB_WORK/hung-call"
    return "$code"
}
# wait_for_write MACHINE NAME SECONDS
wait_for_write() {
    local began=$EPOCHREALTIME took
    wait_for "$3" writes_on "$1" "$2"
    took=$(tenths_since "$began")
    echo "the first write on $1 came after $((took / 10)).$((took % 10)) s"
    refused test -e "$LAB_WORK/hung-call"
    # wait_for takes a success that came late.
    ((took <= $3 * 10))
}

leader=$(leader_at n1) other=$(another_than "$leader")
on "$leader" systemctl kill --signal=STOP kat-agent.service
wait_for_write "$other" while-the-agent-hangs 30
differs "$leader" "$(leader_at "$other")" "leader"
on "$leader" systemctl kill --signal=CONT kat-agent.service
asked=$other
all_ready() { on "$asked" katcall get nodes -o json | jq -e '[.items[] | select(.status.phase == "Ready")] | length == 3' >/dev/null; }
wait_for 60 all_ready

raft_leader() {
    local id
    id=$(etcdctl_on n1 endpoint status --cluster | awk -F', ' '$5 == "true" { print $2 }')
    etcdctl_on n1 member list | awk -F', ' -v id="$id" '$1 == id { print $3 }'
}
raft=$(raft_leader)
[[ $raft == n? ]]
other=$(another_than "$raft")
on "$raft" systemctl kill --signal=STOP kat-etcd.service
# The bound of docs/internals/limits.md is 10 s, and the machines share the processors.
wait_for_write "$other" while-etcd-hangs 15
on "$raft" systemctl kill --signal=CONT kat-etcd.service
asked=$other
wait_for 60 all_ready
wait_for 60 members_are_healthy 3 "$other"
no_request_lost 500
wait_for 60 on "$other" katcall status
for name in while-the-agent-hangs while-etcd-hangs; do on "$other" katcall delete namespace "$name"; done
