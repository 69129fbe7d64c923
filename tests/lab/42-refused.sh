# A token that is used up, expired, revoked, wrong or of another cluster is refused in a sentence, and nothing is stored
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
leader=192.168.77.11:9115
join() { on n2 kat-agent join --leader-api "${2:-$leader}" --token "$1" 2>&1; }
token() { kat token create --join "$@" 2>/dev/null | awk '{ print $NF }'; }
on n2 kat-agent reset --yes
refused kat get nodes n2
used=$(token)
join "$used"
wait_for 30 nodes_are_ready
on n2 kat-agent reset --yes
refused kat get nodes n2

stored_keys() {
    n1 sh -c 'etcdctl --endpoints https://127.0.0.1:2379 --cacert /var/lib/kat/pki/etcd-client-ca.crt --cert /var/lib/kat/pki/leader-etcd.crt \
        --key /var/lib/kat/pki/leader-etcd.key get --prefix --keys-only /kat/n; etcdctl --endpoints https://127.0.0.1:2379 \
        --cacert /var/lib/kat/pki/etcd-client-ca.crt --cert /var/lib/kat/pki/leader-etcd.crt --key /var/lib/kat/pki/leader-etcd.key user list'
}
files_on_n2() { on n2 sh -c 'ls -d /var/lib/kat /etc/kat /etc/sysctl.d/60-kat.conf /etc/sysusers.d/kat.conf /run/kat 2>/dev/null; grep -c kat /etc/group' || true; }
# The addresses of instances of earlier tests are held for a while.
no_address_is_held() { lacks "$(stored_keys)" /kat/network/allocations/; }
wait_for 150 no_address_is_held
stored_before=$(stored_keys) kept_before=$(files_on_n2)
lacks "$stored_before" n2
# join_is_refused TOKEN WORDS...: a join with TOKEN fails with WORDS, and changes neither the store
# nor n2.
join_is_refused() {
    local output with=$1 words
    shift
    output=$(join "$with") && echo "n2 joined with a token that should be refused" >&2 && return 1
    for words in "$@"; do contains "$output" "$words"; done
    lacks "$output" "$with"
    equal "$stored_before" "$(stored_keys)" "keys and users in etcd"
    equal "$kept_before" "$(files_on_n2)" "files and groups on n2"
}
join_is_refused "$used" "used up" "katcall token create --join"

short_lived=$(token --ttl 1s)
a_token_is_expired() { kat token list | grep -q expired; }
wait_for 10 a_token_is_expired
join_is_refused "$short_lived" "has expired" "katcall token create --join"

revoked=$(token)
kat token revoke "$(cut -d. -f2 <<<"$revoked")"
join_is_refused "$revoked" "not known" "katcall token create --join"

good=$(token)
# The token names another authority: n2 does not send the token.
token_calls() { n1 journalctl -u kat-agent -o cat | grep -c 'by token:' || true; }
before=$(token_calls)
join_is_refused "${good%????}$(tail -c 5 <<<"$good" | tr 0-9a-f 1-9a-f0)" "certificate is not from this cluster's authority"
equal "$before" "$(token_calls)" "calls with a token"
# The token has a wrong secret.
join_is_refused "$(awk -F. '{ printf "%s.%s.%s.%s", $1, $2, substr($3, 1, 42) (substr($3, 43) == "A" ? "E" : "A"), $4 }' <<<"$good")" "not known"
join_is_refused "$(n1 jq -r .token /etc/kat/admin.conf)" "not one for joining"
join_is_refused "rubbish" "not one for joining"
# Another machine has the name, or it is reserved.
output=$(on n2 kat-agent join --leader-api "$leader" --token "$good" --node-name n1 2>&1) && exit 1
contains "$output" "--node-name"
output=$(on n2 kat-agent join --leader-api "$leader" --token "$good" --node-name root 2>&1) && exit 1
contains "$output" "reserved"
equal "$stored_before" "$(stored_keys)" "keys and users in etcd"
equal "$kept_before" "$(files_on_n2)" "files and groups on n2"
# No program listens at the address.
output=$(join "$good" 192.168.77.11:9) && exit 1
contains "$output" "connection refused"

join "$good"
wait_for 30 nodes_are_ready
