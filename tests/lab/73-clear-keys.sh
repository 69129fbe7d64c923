# Authority keys that an earlier version left in clear text are sealed by an upgrade, with one recovery key on all members
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
# The state of a member of a version that did not seal: keys in clear text, and no recovery key.
# Members hand out the keys, so the test asks all of them before it removes the first one's.
for node in n1 n2 n3; do
    lab copy "$LAB_DEB" "$node:/root/kat.deb"
    on "$node" sh -euc 'umask 077; cd /var/lib/kat/pki
        curl --silent --show-error --fail --insecure --cert node.crt --key node.key \
            "https://127.0.0.1:9115/v1alpha1/nodes/$1/membership" >/run/keys
        for name in cluster-ca etcd-client-ca etcd-peer-ca; do jq -er ".authorities[\"$name\"].key" /run/keys >/run/$name.key; done' sh "$node"
done
# The leader of such a version has recorded no recovery key either.
for node in n1 n2 n3; do on "$node" systemctl stop kat-agent.service; done
equal 1 "$(etcdctl_on n1 del /kat/authorities/recovery-key)" "records of the recovery key that were deleted"
for node in n1 n2 n3; do
    on "$node" sh -euc 'cd /var/lib/kat/pki; rm *.key.sealed recovery.key /run/keys; mv /run/*-ca.key .'
    equal 3 "$(on "$node" sh -c 'grep -l "PRIVATE KEY" /var/lib/kat/pki/*-ca.key | wc -l')" "keys in clear on $node"
done
output=$(n1 kat-agent recovery-key 2>&1) && false
contains "$output" "has no readable recovery key"
# A certificate is missing: the agent can sign it only if the sealed key is the right one.
on n2 rm /var/lib/kat/pki/leader-etcd.crt

is_sealed() { [[ $(on "$1" sh -c 'cd /var/lib/kat/pki && ls *-ca.key *.key.sealed recovery.key 2>/dev/null' | xargs) == "cluster-ca.key.sealed etcd-client-ca.key.sealed etcd-peer-ca.key.sealed recovery.key" ]]; }
sealing_is_logged() { [[ $(on "$1" journalctl --unit kat-agent.service --since "@$since" -o cat) == *"the authorities' keys are sealed now; \`kat-agent recovery-key\` shows the key"* ]]; }
for node in n1 n2 n3; do
    since=$(on "$node" date +%s)
    on "$node" dpkg --install /root/kat.deb
    on "$node" systemctl start kat-agent.service
    wait_for 60 is_sealed "$node"
    wait_for 30 sealing_is_logged "$node"
    equal "600 root" "$(on "$node" sh -c 'stat -c "%a %U" /var/lib/kat/pki/*.sealed /var/lib/kat/pki/recovery.key | sort -u')" "sealed keys on $node"
done
wait_for 60 nodes_are_ready
wait_for 60 members_are_healthy 3
key=$(n1 kat-agent recovery-key)
contains "$key" kat-recovery-
for node in n2 n3; do equal "$key" "$(on "$node" kat-agent recovery-key)" "recovery key of $node"; done
# The agent of n2 first asks the others, whose agents start one after the other, whether the store is another one.
is_signed_anew() { on n2 openssl x509 -noout -checkend 1728000 -in /var/lib/kat/pki/leader-etcd.crt; }
wait_for 30 is_signed_anew

for node in n1 n2 n3; do
    on "$node" kat-agent backup /root/after-upgrade
    on "$node" rm /root/after-upgrade /root/kat.deb
done
kat create namespace after-upgrade
kat delete namespace after-upgrade
