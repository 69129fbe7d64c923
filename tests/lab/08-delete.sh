# A deleted workload leaves no trace
# shellcheck shell=bash
# Deleting a first workload leaves what all workloads share, so the comparison starts after it.
run first --port 80
kat delete workload first --wait
stable_inventory >"$LAB_WORK/before"
# Keys in the store, without events, tokens and the index that was given out last.
stored() {
    n1 sh -c 'etcdctl --endpoints https://127.0.0.1:2379 --cacert /var/lib/kat/pki/etcd-client-ca.crt --cert /var/lib/kat/pki/leader-etcd.crt \
        --key /var/lib/kat/pki/leader-etcd.key get /kat/ --prefix --keys-only' | grep -vE '^$|^/kat/(events/|indexes/last$|tokens/)'
}
# An address is kept for its namespace until every machine has confirmed that the instance is gone.
addresses_are_free() { ! stored | grep -q '^/kat/network/allocations/'; }
wait_for 60 addresses_are_free
stored >"$LAB_WORK/stored"

run web --port 80 --replicas 2
status=$(instances web | jq -c '.[0].status') id=$(instances web | jq -r '.[0].metadata.name')
wait_for 10 answers "http://web.default.$DOMAIN/"
diff "$LAB_WORK/before" <(stable_inventory) >"$LAB_WORK/difference" && exit 1
contains "$(stored)" "/kat/network/allocations/$id/ip"
contains "$(<"$LAB_WORK/difference")" "etc/containers/systemd/users/$(jq .uid <<<"$status")"
kat delete workload web --wait

code=0
kat get workloads web -o json >/dev/null 2>&1 || code=$?
equal 3 "$code" "exit code of get for a deleted workload"
equal "[]" "$(instances web)" "instances"
no_remains "$status" "$id"
wait_for 10 not_resolved web
diff "$LAB_WORK/before" <(stable_inventory)
wait_for 60 addresses_are_free
diff "$LAB_WORK/stored" <(stored)

# The next workload gets another user, because logind keeps the last workload's user for a while.
run next --port 80
next=$(instances next | jq '.[0].status.uid')
[[ $next != "$(jq .uid <<<"$status")" ]] || { echo "uid $next is used again at once" >&2; exit 1; }
kat delete workload next --wait
diff "$LAB_WORK/before" <(stable_inventory)
