# A backup of version 0.1.0 is restored by the programs of this version: a machine that survived follows, and the authorities of etcd are replaced once it is upgraded
# machines: 3
# bare
# leaves no cluster
# shellcheck shell=bash
# shellcheck source=tests/lab/migration/lib.sh
. tests/lab/migration/lib.sh
copy_packages n1 n2 n3
install_new() {
    on "$1" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet -o Dpkg::Use-Pty=0 --reinstall --allow-downgrades /root/new.deb
}
n1 sh -c 'printf "%s\n" "apiVersion: kat.dws.rip/v1alpha1" "kind: ClusterConfiguration" "metadata: {name: lab}" \
    "spec: {clusterCIDR: 10.100.0.0/16, serviceCIDR: 10.200.0.0/16, backupPath: /srv/kat/backups}" >/root/cluster.kat'
n1 kat-agent init --config /root/cluster.kat
line=$(n1 katcall token create --join)
on n3 kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }"
# n2 is in no cluster yet.
two_are_ready() { kat get nodes -o json | jq -e '.items | length == 2 and all(.status.phase == "Ready")' >/dev/null; }
wait_for 60 two_are_ready
lab exec n1 -- katcall secret set db --from-file PASSWORD=- <<<kept
run web --port 80 --replicas 2
equal '["n1","n3"]' "$(machines_running web)" "machines of two replicas"
pid=$(on n3 pgrep -x web)
file=$(n1 kat-agent backup)
n1 kat-agent recovery-key >"$LAB_WORK/key"
n1 cat "$file" >"$LAB_WORK/backup"
keep_certificate n1 leader-etcd
keep_certificate n3 node-etcd
clients=$(fingerprint_on n1 etcd-client-ca) peers=$(fingerprint_on n1 etcd-peer-ca)

lab kill n1
lab copy "$LAB_WORK/backup" n2:/root/backup
lab copy "$LAB_WORK/key" n2:/root/key
install_new n2
on n2 kat-agent restore /root/backup --recovery-key-file /root/key
# n2 is n1 now.
kat() { on n2 katcall "$@"; }
# What is left of version 0.1.0 still opens etcd, which is told, until its machine is upgraded.
wait_for 90 waits_for n3
kept_opens n3
equal "$pid" "$(on n3 pgrep -x web)" "the program on n3 while it is of version 0.1.0"
install_new n3
clients_are_replaced() { is_migrated "$clients"; }
peers_are_replaced() { phase_is etcd-peer-ca Settled && differs "$peers" "$(authority etcd-peer-ca .fingerprint)" "fingerprint"; }
wait_for 240 clients_are_replaced
wait_for 120 peers_are_replaced
for node in n1 n3; do kept_is_refused "$node"; done
present_opens
wait_for 60 users_are leader:n1
wait_for 90 kat status
equal "$pid" "$(on n3 pgrep -x web)" "the program on n3"
contains "$(kat get secrets)" db
kat create namespace later
