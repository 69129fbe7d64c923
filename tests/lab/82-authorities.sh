# etcd's authorities are replaced under load while the leader is killed and a member is away; certificates of before open etcd no more
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 120 members_are_healthy 3
pki=/var/lib/kat/pki
# Certificates of before, as somebody who once read a member's disk has them.
on n2 sh -euc "rm -rf /root/old; umask 077; mkdir /root/old; cp $pki/leader-etcd.* $pki/etcd-peer.* /root/old"
# version_with FOLDER: what n2's etcd answers to the certificate in the folder, or curl's error.
version_with() {
    on n2 curl --silent --show-error --max-time 10 --cacert "$pki/etcd-client-ca.crt" --cert "$1/leader-etcd.crt" \
        --key "$1/leader-etcd.key" https://127.0.0.1:2379/version 2>&1
}
contains "$(version_with /root/old)" etcdserver
# members_with FOLDER: what the peer port of n1's etcd answers to the certificate in the folder, or curl's error.
members_with() {
    on n2 curl --http1.1 --silent --show-error --max-time 10 --insecure --cert "$1/etcd-peer.crt" --key "$1/etcd-peer.key" \
        "https://$peer:2380/members" 2>&1
}
peer=$(overlay_address n1)
contains "$(members_with /root/old)" peerURLs

# authority NAME .FIELD: a field of an authority.
authority() { kat ca list -o json | jq -er --arg name "$1" ".items[] | select(.name == \$name) | $2"; }
is_replaced() {
    local phase fingerprint
    phase=$(authority "$1" .phase) && fingerprint=$(authority "$1" .fingerprint) || return 1
    [[ $phase == Settled && $fingerprint != "$2" ]] || {
        kat ca list >&2
        return 1
    }
}
is_under_way() { differs Settled "$(authority "$1" .phase)" "phase"; }
waits_for() { contains "$(authority "$1" .message)" "$2"; }

run web --port 80 --replicas 3
start_load "$(service_address web)" 80 50
before=$(authority etcd-client-ca .fingerprint) peers=$(authority etcd-peer-ca .fingerprint)
refused kat ca rotate no-such-ca

# One member does not answer: the replacement waits, and says for whom.
on n3 systemctl stop kat-agent.service
kat ca rotate etcd-client-ca
wait_for 60 waits_for etcd-client-ca n3
contains "$(kat ca list)" n3
contains "$(version_with /root/old)" etcdserver
on n3 systemctl start kat-agent.service
# The leader is killed in the middle.
wait_for 60 is_under_way etcd-client-ca
leader=$(leader_at n1)
on "$leader" systemctl kill --signal KILL kat-agent.service
wait_for 240 is_replaced etcd-client-ca "$before"
wait_for 60 members_are_healthy 3
output=$(version_with /root/old) && exit 1
contains "$output" alert
# The control: the certificate of now opens the same port.
contains "$(version_with $pki)" etcdserver
equal 3 "$(etcdctl_on n2 member list | grep -c ', started, .*, false$')" "voting members"
for node in n1 n2 n3; do
    lacks "$(on "$node" ls $pki)" etcd-client-ca.next
    lacks "$(on "$node" ls $pki)" etcd-client-ca.old
    lacks "$(on "$node" ls $pki)" etcd-client-ca.retired
    contains "$(on "$node" ls $pki)" etcd-client-ca.key.sealed
done

# So it is with the authority of etcd's members among each other.
kat ca rotate etcd-peer-ca
wait_for 60 is_under_way etcd-peer-ca
leader=$(leader_at n1)
on "$leader" systemctl kill --signal KILL kat-agent.service
wait_for 240 is_replaced etcd-peer-ca "$peers"
wait_for 60 members_are_healthy 3
output=$(members_with /root/old) && exit 1
contains "$output" alert
contains "$(members_with $pki)" peerURLs
no_request_lost 2000
# Everything is as before: writes, and a machine that is started anew.
lab kill n3
lab start n3
wait_for 90 members_are_healthy 3
wait_for 30 nodes_are_ready
kat create namespace after-rotation
kat delete namespace after-rotation
wait_for 60 kat status
kat delete workload web --yes --wait
on n2 rm -rf /root/old
