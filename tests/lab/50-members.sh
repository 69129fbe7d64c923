# After the third machine has joined, etcd has three members without a command, and the leaders of raft and of KAT are different machines
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
contains "$(kat status)" "3 of 3 members well"
# Debian 13's etcd has known holes: this is told, and does not make the cluster unwell.
tells_of_holes() { contains "$(kat status)" "on n3 have known holes in its users' rights (CVE-2026-33343)"; }
[[ ${KAT_LAB_SUITE:-trixie} != trixie ]] || wait_for 60 tells_of_holes
for node in n1 n2 n3; do
    contains "$(kat get nodes "$node" -o json | jq -c .status.roles)" etcd
    equal active "$(on "$node" systemctl is-active kat-etcd.service)" "etcd on $node"
    # etcd listens on the overlay and the loopback, and on no outside address.
    listening=$(on "$node" ss -tln)
    contains "$listening" ":2379"
    lacks "$listening" "192.168.77.1${node#n}:2379"
    lacks "$listening" "0.0.0.0:2379"
    lacks "$listening" "*:2379"
    equal "700 root" "$(on "$node" stat -c '%a %U' /var/lib/kat/pki)" "folder of keys on $node"
    for file in cluster-ca.key.sealed recovery.key; do
        equal "600 root" "$(on "$node" stat -c '%a %U' "/var/lib/kat/pki/$file")" "$file on $node"
        refused as_on "$node" kat-etcd cat "/var/lib/kat/pki/$file"
    done
    # No authority's key is in clear text, and all members have one recovery key.
    prints_nothing "keys in clear on $node" on "$node" find /var/lib/kat -name '*-ca.key'
    equal "$(n1 kat-agent recovery-key)" "$(on "$node" kat-agent recovery-key)" "recovery key of $node"
    refused as_on "$node" nobody kat-agent recovery-key
done
equal 3 "$(etcdctl_on n2 member list | grep -c ', started, .*, false$')" "voting members"
# Each machine that holds the store watches it as a whole, however many machines read it there: etcd has three watches for a
# member at most. A machine may watch in another one's etcd.
watches_on() {
    on "$1" curl --silent --show-error --cacert /var/lib/kat/pki/etcd-client-ca.crt --cert /var/lib/kat/pki/leader-etcd.crt \
        --key /var/lib/kat/pki/leader-etcd.key https://127.0.0.1:2379/metrics | awk '$1 == "etcd_debugging_mvcc_watcher_total" { print $2 }'
}
has_few_watches() {
    local node sum=0
    for node in n1 n2 n3; do sum=$((sum + $(watches_on "$node"))); done
    ((sum >= 3 && sum <= 9)) || {
        echo "watches in etcd: $sum" >&2
        return 1
    }
}
wait_for 30 has_few_watches
# KAT's leader is not raft's leader.
leader=$(leader_at n1)
raft_has_another_leader() { etcdctl_on n1 endpoint status --cluster | awk -F, -v own="$(overlay_address "$leader")" '$5 ~ /true/ { found = index($1, own) == 0 } END { exit !found }'; }
wait_for 30 raft_has_another_leader
# Callers on every machine get the leader's answers and may make changes.
for node in n1 n2 n3; do
    equal 3 "$(on "$node" katcall get nodes -o json | jq '.items | length')" "machines that katcall on $node lists"
    on "$node" katcall create namespace "of-$node"
    on "$node" katcall delete namespace "of-$node"
done
contains "$(n1 cat /etc/kat/admin.conf)" 192.168.77.13:9115
# A machine's certificate gets authority keys only for that machine itself.
fetch_as() {
    on "$1" curl --silent --insecure --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key \
        "https://127.0.0.1:9115/v1alpha1/nodes/$2/membership"
}
contains "$(fetch_as n2 n3)" Forbidden
