# A machine that is never upgraded does not hold the migration open: it is left out, opens etcd no more, and reads the cluster's state again when it is upgraded
# machines: 4
# leaves no cluster
# shellcheck shell=bash
# shellcheck source=tests/lab/migration/lib.sh
. tests/lab/migration/lib.sh
wait_for 60 nodes_are_ready
wait_for 120 members_are_well
copy_packages n1 n2 n3 n4
run web --port 80 --replicas 4
equal '["n1","n2","n3","n4"]' "$(machines_running web)" "machines of four replicas"
pid=$(on n4 pgrep -x web)
keep_certificate n4 node-etcd
kept_opens n4
authority_before=$(fingerprint_on n2 etcd-client-ca)
for node in n1 n2 n3; do
    put_package "$node" new
    wait_for 60 members_are_well
done
wait_for 60 waits_for n4
refused kat ca migrate --without n3
refused kat ca migrate --without n9
kept_opens n4
equal "$authority_before" "$(fingerprint_on n2 etcd-client-ca)" "authority while n4 is waited for"

kat ca migrate --without n4
migrated() { is_migrated "$authority_before"; }
wait_for 180 migrated
kept_is_refused n4
present_opens
wait_for 60 users_are leader:n1 leader:n2 leader:n3
equal "$pid" "$(on n4 pgrep -x web)" "the program on n4"
put_package n4 new
wait_for 90 kat status
kat scale workload web --replicas 3 --wait
kat scale workload web --replicas 4 --wait
wait_for 60 invariants_hold
