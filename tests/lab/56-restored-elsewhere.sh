# The only machine with the store is lost and restored on another one; when it boots again, the workers tell it, and it stays out of the cluster
# machines: 4
# bare
# by name
# limit: 900
# shellcheck shell=bash
n1 sh -c 'printf "%s\n" "apiVersion: kat.dws.rip/v1alpha1" "kind: ClusterConfiguration" "metadata: {name: lab}" \
    "spec: {clusterCIDR: 10.100.0.0/16, serviceCIDR: 10.200.0.0/16, agentTickSeconds: 3, nodeLossTimeoutSeconds: 20}" >/root/cluster.kat'
n1 kat-agent init --config /root/cluster.kat
# This one writes data, on the machine that is lost.
run db --port 80 --spec 'volumes: [{name: data, simpleClusterStorage: {}}]' --container 'volumeMounts: [{name: data, mountPath: /data}]'
for node in n2 n3; do
    line=$(n1 katcall token create --join)
    on "$node" kat-agent join --no-etcd --leader-api 192.168.77.11:9115 --token "${line##* }"
done
LAB_MACHINES=3 wait_for 60 nodes_are_ready
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
equal n1 "$(field db .status.node)" "machine of db"
n1 kat-agent backup /root/backup
n1 sh -c 'kat-agent recovery-key >/root/key'
for file in backup key; do
    n1 cat "/root/$file" >"$LAB_WORK/$file"
    lab copy "$LAB_WORK/$file" "n4:/root/$file"
done
# Something that the backup has not.
kat create namespace after-the-backup

# While the machine of the backup runs, a restore elsewhere would have it stop everything; nothing is changed.
n4() { on n4 "$@"; }
output=$(n4 kat-agent restore /root/backup --recovery-key-file /root/key 2>&1) && false
contains "$output" "machine n1 still runs: its kat-agent answers at"
refused n4 test -e /var/lib/kat

lab kill n1
output=$(n4 kat-agent restore /root/backup --recovery-key-file /root/key 2>&1) || { echo "$output" >&2; false; }
contains "$output" "machine n1 is Ready"
phases_there() { n4 katcall get nodes -o json | jq -c '[.items[] | [.metadata.name, .status.phase]] | sort'; }
are_ready() { equal '[["n1","Ready"],["n2","Ready"],["n3","Ready"]]' "$(phases_there)" "machines of the restored cluster"; }
wait_for 90 are_ready
identity_there() { n4 katcall get nodes -o json | jq -c '[.items[] | [.metadata.name, .metadata.uid, .status.subnet]] | sort'; }
identity=$(identity_there)
epoch=$(etcdctl_on n4 get --print-value-only /kat/config/store_epoch)
equal n1 "$(jq -r .restored.machine <<<"$epoch")" "the restored machine in the record of the epoch"
ips=$(n4 katcall get instances -A -o json | jq -c '[.items[].status | select(.workload == "web") | {key: .node, value: .ip}] | from_entries')
# serves MACHINE OTHER: whether the instance of web on the other machine answers the machine.
serves() { contains "$(on "$1" curl --silent --fail --max-time 3 "http://$(jq -r ".$2" <<<"$ips")/")" host=; }
across() { serves n4 n2 && serves n4 n3 && serves n2 n1 && serves n3 n1 && serves n2 n3; }
wait_for 90 across
programs_on() { on "$1" pgrep -x web | sort; }
before_n2=$(programs_on n2) before_n3=$(programs_on n3)
# The state of the restored cluster after the boot of the lost machine.
stands_fast() {
    are_ready && across &&
        equal "$(jq .epoch <<<"$epoch")" "$(on n2 jq .epoch /var/lib/kat/position.json)" "the epoch on n2" &&
        equal "$before_n2" "$(programs_on n2)" "the programs on n2" &&
        equal "$before_n3" "$(programs_on n3)" "the programs on n3"
}

# is_out: the lost machine has no etcd, no instance and no peer, and says why.
said="another machine has taken the place of n1"
status_text() { n1 systemctl show --property StatusText --value kat-agent.service; }
is_out() {
    contains "$(status_text)" "$said" &&
        contains "$(n1 katcall status 2>&1)" "$said" &&
        refused n1 systemctl is-active kat-etcd.service &&
        finds_nothing n1 pgrep -x web &&
        equal 0 "$(n1 sh -c "ss -Hltn 'sport = :9115' | wc -l")" "programs that serve the API's port" &&
        equal 0 "$(n1 jq '.peers | length' /var/lib/kat/network/peers.json)" "peers of the lost machine"
}
lab start n1
booted=$EPOCHREALTIME
wait_for 120 is_out
echo "the lost machine was out $(seconds_since "$booted") s after its boot"
contains "$(n1 journalctl --quiet --boot --unit kat-agent.service --output cat)" "$said"
code=0
n1 katcall status >/dev/null 2>&1 || code=$?
equal 1 "$code" "exit code of katcall status on the lost machine"
# The store's old data stays: it may have what the backup has not.
n1 test -d /var/lib/kat/etcd/member/wal
wait_for 60 stands_fast
n4 katcall create namespace beside

# So it is after another boot, also if it reaches nobody.
lab kill n1
lab start n1
wait_for 60 is_out
lab cut n1
n1 systemctl restart kat-agent.service
wait_for 60 is_out
lab heal n1
wait_for 60 stands_fast

# Nor may it make a cluster of its own of its old data, beside the restored one.
code=0
output=$(n1 kat-agent recover --yes 2>&1) || code=$?
equal 1 "$code" "exit code of recover on the lost machine"
contains "$output" "$said"
wait_for 60 stands_fast

# Where the mark is missing, the reset itself asks, and takes no machine out of the restored cluster. It drains none either.
n1 systemctl stop kat-agent.service
n1 rm /var/lib/kat/replaced.json
output=$(n1 kat-agent reset --yes 2>&1) || { echo "$output" >&2; false; }
contains "$output" "another machine has taken this one's place"
lacks "$output" "telling the cluster"
lacks "$output" draining
absent n1 /var/lib/kat/node.json /var/lib/kat/etcd /var/lib/kat/replaced.json
equal "$identity" "$(identity_there)" "machines after the reset of the lost one"
stands_fast

# It can join as another machine.
line=$(n4 katcall token create --join)
n1 bash -c "${line#sudo } --node-name n5"
has_four() { equal '["n1","n2","n3","n5"]' "$(n4 katcall get nodes -o json | jq -c '[.items[] | select(.status.phase == "Ready") | .metadata.name] | sort')" machines; }
wait_for 90 has_four
