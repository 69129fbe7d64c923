# A member of etcd whose disk is empty at its start does not pose as the old member: it is replaced by a new one by itself
# machines: 3
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
leader=$(leader_at n1)
node=$([[ $leader == n3 ]] && echo n2 || echo n3)
# member_id: etcd's id of the member on the machine.
member_id() { etcdctl_on n1 member list | awk -F', ' -v name="$node" '$3 == name { print $1 }'; }
before=$(member_id)
[[ $before ]]
equal "$before" "$(on "$node" cat /var/lib/kat/member)" "id that the machine knows"

on "$node" systemctl stop kat-agent.service kat-etcd.service
on "$node" find /var/lib/kat/etcd -mindepth 1 -delete
lab kill "$node"
kat create namespace while-away
began=$SECONDS
lab start "$node"
has_new_id() { local now; now=$(member_id) && [[ $now && $now != "$before" ]]; }
wait_for 120 has_new_id
wait_for 90 members_are_healthy 3
echo "the member was replaced $((SECONDS - began)) s after the power returned"
equal 3 "$(etcdctl_on n1 member list | grep -c ', started, .*, false$')" "voting members"
lacks "$(on "$node" journalctl --boot --unit kat-etcd.service -o cat)" "panic"
# The new member has all keys, including those written during its absence.
contains "$(etcdctl_on "$node" get --prefix --keys-only --consistency=s /kat/namespaces/)" /kat/namespaces/while-away
equal "$(n1 kat-agent recovery-key)" "$(on "$node" kat-agent recovery-key)" "recovery key of $node"
wait_for 30 nodes_are_ready
lacks "$(kat get nodes "$node" -o json | jq -c '.status.conditions[] | select(.status)')" EtcdDataLost
kat delete namespace while-away
wait_for 30 kat status
