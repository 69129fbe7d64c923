# A workload that does not fit into the store stops nobody else's, and its tenant can delete it
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
kat create namespace victim
folder=$(workload big --spec 'volumes: [{name: conf, files: conf/}]' --container 'volumeMounts: [{name: conf, mountPath: /conf}]')
mkdir "$LAB_WORK/workloads/big/conf"
echo small >"$LAB_WORK/workloads/big/conf/blob"
lab copy "$LAB_WORK/workloads/big" n1:/root/workloads/
tenant apply -f "$folder" --wait

# An apply measures the stored size of one instance. This workload has two arguments that are three
# times as long in JSON as in YAML, files of random bytes, and a secret, which may grow.
printf value | lab exec n1 -- env KAT_CONNECTION=/root/tenant.conf katcall secret set large --from-file key=- >/dev/null
cp -r "$LAB_WORK/workloads/big" "$LAB_WORK/workloads/large"
bell=$(head -c 65000 /dev/zero | sed 's/\x00/\\a/g')
sed -i 's/name: big$/name: large/' "$LAB_WORK/workloads/large/workload.kat"
printf '    command: ["%s", "%s"]\n    env: [{name: KEY, valueFrom: {secret: {name: large, key: key}}}]\n' "$bell" "$bell" \
    >>"$LAB_WORK/workloads/large/workload.kat"
head -c 325000 /dev/urandom >"$LAB_WORK/workloads/large/conf/blob"
lab copy "$LAB_WORK/workloads/large" n1:/root/workloads/
output=$(tenant apply -f /root/workloads/large 2>&1) && { echo "an apply that does not fit into the store was accepted: $output" >&2; exit 1; }
contains "$output" 1310720

# The workload is written to the store directly, as if a version without this check had stored it:
# the two arguments, files of the workload's folder, and one more replica.
sed 's/name: large$/name: big/; s/replicas: 1/replicas: 2/; /valueFrom/d' "$LAB_WORK/workloads/large/workload.kat" |
    lab exec n1 -- sh -c 'cat >/root/two.kat'
cat >"$LAB_WORK/store" <<'SCRIPT'
set -eu
export ETCDCTL_ENDPOINTS=https://127.0.0.1:2379 ETCDCTL_CACERT=/var/lib/kat/pki/etcd-client-ca.crt
export ETCDCTL_CERT=/var/lib/kat/pki/leader-etcd.crt ETCDCTL_KEY=/var/lib/kat/pki/leader-etcd.key
manifest=/kat/workloads/desired/default/big/manifest
mkdir -p /root/pack/conf
head -c 524288 /dev/urandom >/root/pack/conf/blob
tar --create --gzip --directory=/root/pack --owner=0 --group=0 conf/blob | base64 --wrap=0 | etcdctl put "$manifest/files.pack"
rm -r /root/pack
etcdctl put "$manifest/workload.kat" </root/two.kat
rm /root/two.kat
SCRIPT
lab exec n1 -- sh <"$LAB_WORK/store"
is_not_writable() { [[ $(kat get workload big -o json | jq -r '.status.conditions[0].reason') == NotWritable ]]; }
wait_for 10 is_not_writable
contains "$(kat get workload big -o json | jq -r '.status.conditions[0].message')" /instances/big-
kat apply -f "$(workload other --namespace victim)" --wait --timeout 30s

# The control: the status names the workload.
status=$(kat status 2>&1) && code=0 || code=$?
equal 1 "$code" "exit code of status"
contains "$status" "default/big"

# The workload's running instance continues, and a drain says at once that it cannot move it.
equal 1 "$(kat get instances -o json | jq '[.items[] | select(.status.workload == "big" and .status.phase == "Running")] | length')" "running instances of big"
node=$(kat get instances -o json | jq -r '.items[] | select(.status.workload == "big").status.node')
started=$SECONDS
refused kat drain "$node" --timeout 60s
((SECONDS - started < 30))
kat uncordon "$node"
tenant delete workload big --wait --timeout 30s
kat delete secret large
kat delete workload other -n victim --wait
kat delete namespace victim
