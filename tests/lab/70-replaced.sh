# A member of etcd that is gone for good is replaced by a machine that was none, and is an ordinary machine when it is back
# machines: 4
# settings: agentTickSeconds: 2, nodeLossTimeoutSeconds: 8
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 90 members_are_healthy 3
members() { kat get nodes -o json | jq -c '[.items[] | select(any(.status.conditions[]; .type == "EtcdMember" and .status)) | .metadata.name]'; }
members_are() { [[ $(members) == "$1" ]] || { members >&2; return 1; }; }
wait_for 60 members_are '["n1","n2","n3"]'
run web --port 80 --replicas 4

# The label of a machine that is never to be chosen has one value. Whom it keeps out is shown by the planner's tests.
refused kat label node n4 kat.dws.rip/etcd=no
kat label node n4 kat.dws.rip/etcd=never
contains "$(kat describe node n4)" "kat.dws.rip/etcd=never"
kat label node n4 kat.dws.rip/etcd-

# A member is replaced after five times nodeLossTimeoutSeconds.
began=$EPOCHREALTIME
lab kill n2
wait_for 150 members_are '["n1","n3","n4"]'
echo "replaced $(seconds_since "$began") s after the loss of power"
events=$(kat get events -A)
contains "$events" "etcd of n2 is no member any more"
contains "$events" "machine n4 becomes a member of etcd"
equal active "$(on n4 systemctl is-active kat-etcd.service)" "etcd on n4"
wait_for 60 has_ready web 4

# The machine returns, is no member any more, holds no member's keys, and runs workloads.
lab start n2
wait_for 90 nodes_are_ready
is_no_member() { on n2 sh -c '! systemctl is-active --quiet kat-etcd.service && [ ! -e /var/lib/kat/pki/cluster-ca.key.sealed ] && [ ! -e /var/lib/kat/pki/recovery.key ] && [ ! -e /var/lib/kat/etcd/member ]'; }
wait_for 60 is_no_member
members_are '["n1","n3","n4"]'
kat delete workload web --wait
run again --port 80 --replicas 4
equal '["n1","n2","n3","n4"]' "$(machines_running again)" "machines with instances"
