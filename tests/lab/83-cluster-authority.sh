# The cluster's own authority is replaced under load while the leader is killed: machines with and without the store follow, also one that joins in the middle, katcall's connections go on, and a copied certificate of the API deceives nobody any more
# machines: 4
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 120 members_are_healthy 3
pki=/var/lib/kat/pki
authority() { kat ca list -o json | jq -er ".items[] | select(.name == \"cluster-ca\") | $1"; }
is_in_phase() {
    [[ $(authority .phase) == "$1" ]] || {
        kat ca list >&2
        return 1
    }
}
# trusting FILE: what a member's API answers to a client that trusts the authorities in the file alone.
trusting() { on n2 curl --silent --show-error --max-time 10 --cacert "$1" --resolve "api.kat.$uid:9115:192.168.77.11" "https://api.kat.$uid:9115/v1alpha1/nodes" 2>&1; }
authorities_in() { n1 jq -r .ca "$1" | grep -c BEGIN; }
uid=$(n1 jq -r .clusterUid /etc/kat/admin.conf | tr A-F a-f)
# What somebody keeps who once had root on a machine with the store.
on n2 sh -euc "rm -rf /root/old; umask 077; mkdir /root/old; cp $pki/api.* $pki/admin.* $pki/cluster-ca.crt /root/old"
contains "$(trusting /root/old/cluster-ca.crt)" Unauthorized
# A connection that is used in time, and one that is not.
n1 sh -euc 'umask 077; cp /etc/kat/admin.conf /root/used.conf; cp /etc/kat/admin.conf /root/unused.conf'

# It joins again between two phases of the replacement.
on n4 kat-agent reset --yes
n4_is_gone() { local nodes; nodes=$(kat get nodes -o name) && lacks "$nodes" n4; }
wait_for 30 n4_is_gone
run web --port 80 --replicas 3
start_load "$(service_address web)" 80 50
before=$(authority .fingerprint)
refused kat ca rotate etcd-client-ca --grace 1h
kat ca rotate cluster-ca --grace 1h
wait_for 60 is_in_phase Trust
waits_for_katcall() { [[ $(authority .message) == *"each katcall that is used"* ]]; }
wait_for 60 waits_for_katcall
kat --connection /root/used.conf get nodes
equal 2 "$(authorities_in /root/used.conf)" "authorities of a connection that was used"
equal 1 "$(authorities_in /root/unused.conf)" "authorities of a connection that was not used"
refused kat ca rotate cluster-ca
# A machine that joins in the middle trusts both authorities. It is off from here on, and the leader
# is killed.
line=$(kat token create --join)
on n4 kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }"
n4_is_ready() { [[ $(kat get nodes n4 -o json | jq -r .status.phase) == Ready ]]; }
wait_for 60 n4_is_ready
trusts_both() { [[ $(on n4 sh -c "cat $pki/cluster-ca*.crt" | grep -c BEGIN) == 2 ]]; }
wait_for 60 trusts_both
lab kill n4
leader=$(leader_at n2)
on "$leader" systemctl kill --signal KILL kat-agent.service
wait_for 60 kat ca rotate cluster-ca --grace 0s
is_replaced() {
    local phase fingerprint
    phase=$(authority .phase) && fingerprint=$(authority .fingerprint) || return 1
    [[ $phase == Settled && $fingerprint != "$before" ]] || {
        kat ca list >&2
        return 1
    }
}
wait_for 240 is_replaced
kat --connection /root/used.conf get nodes
equal 1 "$(authorities_in /root/used.conf)" "authorities of the connection that was used, at the end"
output=$(kat --connection /root/unused.conf get nodes 2>&1) && exit 1
contains "$output" "certificate"
# An API of the old authority deceives nobody: every server has a certificate of the new one alone.
output=$(trusting /root/old/cluster-ca.crt) && exit 1
contains "$output" "certificate"
contains "$(trusting $pki/cluster-ca.crt)" Unauthorized
output=$(on n2 curl --silent --show-error --max-time 10 --cacert $pki/cluster-ca.crt --cert /root/old/admin.crt --key /root/old/admin.key \
    --resolve "api.kat.$uid:9115:192.168.77.11" "https://api.kat.$uid:9115/v1alpha1/nodes" 2>&1) && exit 1
contains "$output" alert
for node in n1 n2 n3; do
    equal cluster-ca.crt "$(on "$node" sh -c "cd $pki && echo cluster-ca*.crt")" "authorities on $node"
    contains "$(on "$node" openssl verify -CAfile $pki/cluster-ca.crt $pki/node.crt 2>&1)" OK
done
# The machine that was off since the first phase follows by itself.
lab start n4
wait_for 120 n4_is_ready
follows() { [[ $(on n4 sh -c "cd $pki && echo cluster-ca*.crt") == cluster-ca.crt ]]; }
wait_for 60 follows
no_request_lost 2000
wait_for 60 kat status
kat delete workload web --yes --wait
on n2 rm -rf /root/old
