# A store that is full of history makes room by itself, and reports that it was full
# machines: 1
# shellcheck shell=bash
run web --port 80
drop_in=/etc/systemd/system/kat-etcd.service.d
n1 mkdir -p "$drop_in"
n1 sh -c "printf '[Service]\nEnvironment=ETCD_QUOTA_BACKEND_BYTES=16777216\n' >$drop_in/small.conf"
n1 systemctl daemon-reload
n1 systemctl restart kat-etcd.service
leader_is_up() { n1 curl --silent --fail --unix-socket /run/kat/api.sock http://kat/healthz | jq -e '.leader and (.stale | not)' >/dev/null; }
wait_for 60 leader_is_up
# The test writes one key again and again, so all but the last value is history.
n1 sh -c 'head -c 1000000 /dev/urandom | base64 --wrap=0 | head -c 1000000 >/root/value'
write_until_full() {
    local output
    output=$(lab exec n1 -- sh -c 'etcdctl --endpoints https://127.0.0.1:2379 --cacert /var/lib/kat/pki/etcd-client-ca.crt \
        --cert /var/lib/kat/pki/leader-etcd.crt --key /var/lib/kat/pki/leader-etcd.key put /kat/test </root/value' </dev/null 2>&1) || true
    [[ $output == *"database space exceeded"* ]]
}
for ((i = 0; i < 60; i++)); do
    ! write_until_full || break
done
((i < 60)) || { echo "the small quota has no effect" >&2; exit 1; }
echo "full after $i writes"
# Instances continue while changes are refused.
answers "http://$(field web .status.ip)/"
can_write() { kat create namespace roomy; }
wait_for 60 can_write
kat delete namespace roomy
contains "$(kat get events -A)" StoreWasFull
wait_for 30 kat status
store_is_small() { n1 curl --silent --fail --unix-socket /run/kat/api.sock http://kat/healthz | jq -e '.store.fileBytes < 8000000 and .trouble == null'; }
wait_for 30 store_is_small
contains "$(kat status)" "in use, largest file"
etcdctl_on n1 del /kat/test >/dev/null
n1 rm -r "$drop_in" /root/value
n1 systemctl daemon-reload
n1 systemctl restart kat-etcd.service
wait_for 60 leader_is_up
