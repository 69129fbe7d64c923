# A machine that holds the store is taken out: another takes its place, and then the leader is taken out
# machines: 4
# leaves no cluster
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 90 members_are_well 3
members() { on n3 katcall get nodes -o json | jq -c '[.items[] | select(any(.status.conditions[]; .type == "EtcdMember" and .status)) | .metadata.name]'; }
equal '["n1","n2","n3"]' "$(members)" "members, the oldest"
run web --port 80 --replicas 4
are() { [[ $(members) == "$1" ]] || { members >&2; return 1; }; }

on n2 kat-agent reset --yes
wait_for 60 are '["n1","n3","n4"]'
lacks "$(kat get nodes -o name)" node/n2
whole() { on n3 katcall get workload web -o json | jq -e '.status | .phase == "Running" and .ready == 4' >/dev/null; }
wait_for 60 whole
equal "" "$(on n2 ls /var/lib/kat/etcd /var/lib/kat/pki 2>/dev/null || true)" "files of the store and keys"

# Two could lose none, and one more could fail: the one that leads holds the store alone.
on n1 kat-agent reset --yes
alone() { [[ $(members) == '["n3"]' || $(members) == '["n4"]' ]] || { members >&2; return 1; }; }
wait_for 60 alone
wait_for 60 whole
on n3 katcall create namespace later
equal "$(members)" "[\"$(leader_at n3)\"]" "the leader"
wait_for 60 invariants_hold n3
