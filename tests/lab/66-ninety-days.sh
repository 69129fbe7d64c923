# After ninety days without power, with every certificate long expired, the cluster comes back by itself; so does a single machine that was away
# machines: 4
# by name
# shellcheck shell=bash
# The machines share the host's clock, which cannot be set for one machine. Instead, every
# certificate is signed again by its authority, for the same key, valid from 90 to 60 days ago. So
# this test covers everything that depends on certificates, on several machines. tests/vm/run sets
# the clock of one machine ninety days ahead.
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
equal '["worker"]' "$(kat get nodes n4 -o json | jq -c .status.roles)" "roles of n4"
run web --port 80 --replicas 4
equal '["n1","n2","n3","n4"]' "$(machines_running web)" "machines of four replicas"

# The format of authority keys on a member's disk is private, so n2 asks the API for them, as a new
# member does.
on n2 sh -euc 'umask 077; mkdir /run/aging; cd /run/aging
    curl --silent --show-error --fail --insecure --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key \
        https://127.0.0.1:9115/v1alpha1/nodes/n2/membership >answer
    for name in cluster-ca etcd-client-ca etcd-peer-ca; do
        jq -er ".authorities[\"$name\"].key" answer >$name.key
        jq -er ".authorities[\"$name\"].certificate" answer >$name.crt
    done; rm answer'
# age AUTHORITY: reads a certificate, and prints it signed by AUTHORITY as it would be after ninety
# days.
from=$(date --utc --date='-90 days' +%Y%m%d%H%M%SZ) until=$(date --utc --date='-60 days' +%Y%m%d%H%M%SZ)
age() {
    lab exec n2 -- sh -euc 'cd /run/aging; cat >leaf.crt; openssl x509 -in leaf.crt -CA "$1.crt" -CAkey "$1.key" \
        -not_before "$2" -not_after "$3" 2>openssl.log || { cat openssl.log >&2; exit 1; }' sh "$1" "$from" "$until"
}
declare -A signed_by=([node]=cluster-ca [api]=cluster-ca [admin]=cluster-ca [leader]=cluster-ca [leader-etcd]=etcd-client-ca
    [etcd-server]=etcd-client-ca [etcd-peer]=etcd-peer-ca)
# age_leaves NODE: ages all certificates of NODE, whose agent is stopped. The agent copies them to
# etcd at its next start.
age_leaves() {
    local node=$1 leaf pem
    for leaf in "${!signed_by[@]}"; do
        on "$node" test -e "/var/lib/kat/pki/$leaf.crt" || continue
        pem=$(on "$node" cat "/var/lib/kat/pki/$leaf.crt" | age "${signed_by[$leaf]}")
        lab exec "$node" -- sh -c 'cat >"$1"' sh "/var/lib/kat/pki/$leaf.crt" <<<"$pem"
        refused on "$node" openssl x509 -noout -checkend 0 -in "/var/lib/kat/pki/$leaf.crt"
    done
}
public_keys() { on "$1" sh -c 'for file in /var/lib/kat/pki/*.crt; do openssl x509 -noout -pubkey -in "$file"; done'; }
# certificates_are_valid NODE: whether all certificates are valid for another twenty days, and that
# of the API, which lives for two, for one.
certificates_are_valid() {
    on "$1" sh -c 'for file in /var/lib/kat/pki/*.crt; do
        case $file in */api.crt) left=86400 ;; *) left=1728000 ;; esac
        openssl x509 -noout -checkend "$left" -in "$file" >/dev/null || { echo "$file"; exit 1; }
    done'
}
declare -A keys
for node in n1 n2 n3 n4; do keys[$node]=$(public_keys "$node"); done

# One machine was away. Without a valid certificate the API refuses it, and its program continues.
pid=$(on n4 pgrep -x web)
on n4 systemctl stop kat-agent.service
age_leaves n4
as_n4() {
    on n4 curl --silent --show-error --fail --max-time 10 --insecure --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key \
        "https://$(overlay_address n1):9115/v1alpha1/nodes/n4"
}
refused as_n4
on n4 systemctl start kat-agent.service
wait_for 60 certificates_are_valid n4
contains "$(as_n4)" '"name":"n4"'
wait_for 60 nodes_are_ready
equal "${keys[n4]}" "$(public_keys n4)" "keys of n4"
equal "$pid" "$(on n4 pgrep -x web)" "the process on n4"

# All machines were away.
before=$(instances web | jq -c '[.[] | [.metadata.name, .status.node, .status.ip]] | sort')
for node in n1 n2 n3 n4; do on "$node" systemctl stop kat-agent.service; done
for node in n2 n3 n4 n1; do age_leaves "$node"; done
for node in n1 n2 n3 n4; do lab kill "$node"; done
began=$SECONDS
for node in n1 n2 n3 n4; do
    lab start "$node" &
done
wait
for node in n1 n2 n3 n4; do wait_for 120 certificates_are_valid "$node"; done
wait_for 120 kat status
wait_for 120 nodes_are_ready
wait_for 90 members_are_healthy 3
echo "all machines were Ready $((SECONDS - began)) s after the power returned"
all_run() { [[ $(instances web | jq '[.[] | select(.status.phase == "Running")] | length') == 4 ]]; }
wait_for 60 all_run
equal "$before" "$(instances web | jq -c '[.[] | [.metadata.name, .status.node, .status.ip]] | sort')" "instances, machines and addresses"
for node in n1 n2 n3 n4; do equal "${keys[$node]}" "$(public_keys "$node")" "keys of $node"; done
# The ports use valid certificates, and changes are accepted.
member=$(overlay_address n1)
for port in 127.0.0.1:9115 127.0.0.1:2379 "$member:2380"; do
    left=1728000
    [[ $port != *:9115 ]] || left=86400
    n1 sh -c 'openssl s_client -connect "$1" </dev/null 2>/dev/null | openssl x509 -noout -checkend "$2"' sh "$port" "$left"
done
kat create namespace after-ninety-days
kat delete namespace after-ninety-days
wait_for 30 process_count_is 4
