# Two of three members of etcd are destroyed: recover continues with the third, and the cluster grows to three members again
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# leaves no cluster
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 90 members_are_healthy 3
run web --port 80 --replicas 3
programs_on_n1() { n1 ps -C web -o pid=,lstart= | sort; }
address=$(field_on web n1 .status.ip)
before=$(programs_on_n1)
[[ $before ]]
no_program_was_stopped() { equal "" "$(comm -23 <(echo "$before") <(programs_on_n1))" "programs on n1 that were stopped"; }
key=$(n1 kat-agent recovery-key)
pki=/var/lib/kat/pki
on n2 sh -euc "rm -rf /root/old; umask 077; mkdir /root/old; cp $pki/leader-etcd.* /root/old"

# recover refuses while the quorum answers, without --yes, and for users other than root.
# Expired certificates are no proof of a lost quorum: etcd would refuse them.
n1 sh -euc 'cd /var/lib/kat/pki; openssl req -x509 -key leader-etcd.key -subj /CN=leader:n1 \
    -not_before 20200101000000Z -not_after 20200201000000Z -out leader-etcd.crt'
code=0
output=$(n1 kat-agent recover --yes 2>&1) || code=$?
equal 1 "$code" "exit code where the quorum answers"
contains "$output" "there is nothing to recover"
for node in n2 n3; do lab kill "$node"; done
output=$(n1 kat-agent recover 2>&1) && false
contains "$output" "needs --yes"
output=$(as nobody kat-agent recover --yes 2>&1) && false
contains "$output" "this needs root"

output=$(n1 kat-agent recover --yes 2>&1) || { echo "$output" >&2; false; }
contains "$output" "katcall delete node n2"
wait_for 30 n1 katcall create namespace later
no_program_was_stopped
page "http://$address/" | grep -q '^host='
equal "$key" "$(n1 kat-agent recovery-key)" "recovery key"
equal 1 "$(etcdctl_on n1 member list | grep -c ', started, ')" "members"
contains "$(n1 katcall get events -A)" "begun anew"

# n2 is deleted for good; n3 was only away. Both return at once with their old data. Together they
# were a quorum of the old store, and must learn that the cluster has a new one.
delete_n2() { n1 katcall delete node n2; }
wait_for 60 delete_n2
lab start n2 &
lab start n3 &
wait
holds_nothing() { absent "$1" /var/lib/kat/pki/recovery.key /var/lib/kat/etcd/member/wal; }
wait_for 60 holds_nothing n2
is_ready() { [[ $(n1 katcall get nodes "$1" -o json | jq -r .status.phase) == Ready ]]; }
wait_for 90 is_ready n3
n1 katcall delete namespace later
# It was deleted while it was off, and no state of the cluster has come since its boot.
knows_that_it_was_deleted() {
    local output
    output=$(on n2 katcall status 2>&1) && return 1
    contains "$output" "no member of the cluster any more"
}
wait_for 60 knows_that_it_was_deleted
on n2 kat-agent reset --yes
line=$(kat token create --join)
on n2 kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }"
wait_for 90 members_are_healthy 3
all_run() { [[ $(instances web | jq '[.[] | select(.status.phase == "Running")] | length') == 3 ]]; }
wait_for 90 all_run
wait_for 60 process_count_is 3
no_program_was_stopped
for node in n2 n3; do equal "$key" "$(on "$node" kat-agent recovery-key)" "recovery key of $node"; done
# A member was deleted, so its certificate opens etcd no more, although the store is that of before.
is_settled() { kat ca list -o json | jq -e '.items[] | select(.name == "etcd-client-ca") | .phase == "Settled"' >/dev/null; }
wait_for 120 is_settled
# version_with FOLDER: what n2's etcd answers to the certificate in the folder, or curl's error.
version_with() {
    on n2 curl --silent --show-error --max-time 10 --cacert "$pki/etcd-client-ca.crt" --cert "$1/leader-etcd.crt" \
        --key "$1/leader-etcd.key" https://127.0.0.1:2379/version 2>&1
}
output=$(version_with /root/old) && exit 1
contains "$output" alert
contains "$(version_with $pki)" etcdserver
wait_for 60 invariants_hold
