# A worker reads its own list and the shared keys in a stream of any machine's port, and no other key of the store
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
kat create namespace crew
kat namespace set crew isolation=Shared
kat label node n4 stream=shown
kat label node n2 stream=hidden
run shown --port 80 --spec 'nodeSelector: {stream: shown}'
run elsewhere --port 80 --spec 'nodeSelector: {stream: hidden}'
run kept --port 80 --spec 'nodeSelector: {stream: hidden}' --spec 'volumes: [{name: data, simpleClusterStorage: {}}]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]'
lab exec n1 -- katcall secret set hidden --from-file password=- <<<long-enough
token=$(kat token create --scope read --name hidden --ttl 1h -o connection | jq -r .token | cut -d . -f 2)
uid=$(etcdctl_on n1 get --print-value-only /kat/config/cluster_uid)
# stream_of NODE ADDRESS [SECONDS]: what the port of ADDRESS sends NODE's certificate as the stream of n4.
stream_of() {
    on "$1" sh -c "timeout ${3:-3} curl --silent --insecure --no-buffer --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key \
        --resolve 'state.kat.$uid:9115:$2' 'https://state.kat.$uid:9115/v1alpha1/nodes/n4/state' --output /run/stream || true"
    lab exec "$1" -- cat /run/stream </dev/null | tr -d '\0'
}
# stream_has FILE KEY: whether a message of the stream has this key, which its length precedes there, and not only a text
# such as the folder of backups.
stream_has() { LC_ALL=C grep -azqP "\\x$(printf %02x "${#2}")\\Q$2\\E" "$1"; }
is_shown_to_n4() {
    case $1 in
    /kat/nodes/desired/n4/*) ;;
    /kat/config/cluster_uid | /kat/config/leader_endpoint | /kat/config/leader_name | /kat/config/cluster | /kat/config/endpoints) ;;
    /kat/config/members | /kat/config/registries | /kat/config/store_epoch | /kat/config/cluster_authority | /kat/config/wanted) ;;
    /kat/network/nodes/*/subnet | /kat/network/nodes/*/wg_pubkey | /kat/network/nodes/*/wg_endpoints | /kat/network/nodes/*/reach) ;;
    /kat/network/services/*/ip | /kat/network/services/*/balance | /kat/network/services/*/access) ;;
    /kat/network/allocations/*/ip | /kat/network/namespaces/*) ;;
    /kat/dns/*) ;;
    *) return 1 ;;
    esac
}
# The control: each member answers with the stream, whoever leads, and so does a machine that forwards it.
for address in 192.168.77.11 192.168.77.12 192.168.77.13 192.168.77.14; do
    stream_of n4 "$address" >"$LAB_WORK/stream-$address"
    contains "$(cat "$LAB_WORK/stream-$address")" "/kat/nodes/desired/n4/meta"
done
etcdctl_on n1 get --prefix --keys-only / | grep . >"$LAB_WORK/keys"
for kind in secrets sealing volumes tokens authorities indexes events workloads/desired workloads/archive network/allocations network/namespaces; do
    grep -q "^/kat/$kind/" "$LAB_WORK/keys" || { echo "the store has no key of /kat/$kind/" >&2 && exit 1; }
done
# stream_has looks for the lower byte of a key's length alone.
! grep '.\{256\}' "$LAB_WORK/keys" || exit 1
shown=0 hidden=0
while IFS= read -r -u 6 key; do
    for address in 192.168.77.11 192.168.77.14; do
        if is_shown_to_n4 "$key"; then
            stream_has "$LAB_WORK/stream-$address" "$key" || { echo "$key is not in the stream from $address" >&2 && exit 1; }
            shown=$((shown + 1))
        else
            ! stream_has "$LAB_WORK/stream-$address" "$key" || { echo "$key is in the stream from $address" >&2 && exit 1; }
            hidden=$((hidden + 1))
        fi
    done
done 6<"$LAB_WORK/keys"
((shown > 40 && hidden > 40)) || { echo "$shown keys are shown and $hidden hidden" >&2 && exit 1; }
# Another machine, and a machine without a certificate, get nothing of n4's.
on n2 rm -f /run/stream
answer=$(stream_of n2 192.168.77.11)
lacks "$answer" /kat/
on n4 curl --silent --insecure --max-time 5 --output /run/answer --write-out '%{http_code}' "https://192.168.77.11:9115/v1alpha1/nodes/n4/state" >"$LAB_WORK/code" || true
equal 401 "$(cat "$LAB_WORK/code")" "status of a stream without a certificate"
# n4 follows the store where no port of etcd answers.
lab exec n4 -- nft -f - <<<"table inet test-etcd { chain output { type filter hook output priority -10; tcp dport { 2379, 2380 } drop; }; }"
kat scale shown --replicas 2 --wait --timeout 60s
equal '["n4"]' "$(machines_running shown)" "machines of the workload"
wait_for 60 nodes_are_ready
on n4 nft delete table inet test-etcd
kat delete workload shown --yes --wait
kat delete workload elsewhere --yes --wait
kat delete workload kept --yes --wait
kat delete volume kept/data --yes
kat delete secret hidden
kat delete namespace crew
kat token revoke "$token"
kat label node n4 stream-
kat label node n2 stream-
on n4 rm -f /run/stream /run/answer
on n2 rm -f /run/stream
