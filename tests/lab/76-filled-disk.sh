# A tenant's container that fills the disk of the only machine is stopped, and its status says so: etcd accepts changes again at once, neighbours keep running, and no data is lost
# machines: 1
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
# /var/lib/kat is a file system of known size, because the machine's disk may be full for other
# reasons.
state=/var/lib/kat
n1 systemctl stop kat-agent kat-etcd kat-net
n1 mkdir -p /run/aside
n1 mount --bind "$state" /run/aside
n1 mount --make-private /run/aside
n1 mount -t tmpfs -o size=1g,mode=0755 none "$state"
n1 cp -a /run/aside/. "$state/"
n1 systemctl start kat-net kat-agent
leader_is_up() { n1 curl --silent --fail --unix-socket /run/kat/api.sock http://kat/healthz | jq -e '.leader and (.stale | not)' >/dev/null; }
wait_for 60 leader_is_up
wait_for 60 nodes_are_ready
free_mebibytes() { n1 df --output=avail --block-size=1M "$state" | tail -n 1 | tr -d ' '; }

become_tenant default
shell='entrypoint: ["/bin/sh", "-c"]'
# Two neighbours: one has written more than the filler's threshold allows, and requests that
# storage; the other has data in a volume.
# shellcheck disable=SC2016
tenant apply --wait -f "$(workload modest --container "$shell" --container 'user: "0:0"' \
    --container 'resources: {requests: {storage: 256Mi}}' \
    --container 'command: ["dd if=/dev/zero of=/fill bs=1M count=100 && exec sleep infinity"]')"
tenant apply --wait -f "$(workload db --container "$shell" --container 'user: "0:0"' --container 'command: ["exec sleep infinity"]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --spec 'volumes: [{name: data, simpleClusterStorage: {}}]')"
inside db sh -c 'dd if=/dev/urandom of=/data/file bs=1M count=20 && sha256sum /data/file >/data/sum && sync'
modest=$(field modest .metadata.name)
db=$(field db .metadata.name)
filler_command='command: ["while [ ! -e /go ]; do sleep 0.1; done; while :; do cat /dev/zero >>/fill; sleep 0.02; done"]'
tenant apply --wait -f "$(workload filler --container "$shell" --container 'user: "0:0"' --container "$filler_command" --container 'terminationGraceSeconds: 600')"
filler=$(field filler .metadata.name)
user=$(field filler .status.user)
before=$(free_mebibytes)
((before > 300)) || { echo "only $before MiB were free before"; exit 1; }

# start_filling: starts the writes, and prints the lowest free space of the next ten seconds, in
# MiB.
start_filling() {
    as "$user" podman exec "kat-default-$filler" touch /go
    # shellcheck disable=SC2016
    n1 sh -c 'least=999999; for i in $(seq 200); do
        now=$(df --output=avail --block-size=1M "$0" | tail -n 1 | tr -d " "); [ "$now" -ge "$least" ] || least=$now; sleep 0.05
    done; echo "$least"' "$state"
}
filler_is_evicted() { field_is filler .status.reason Evicted; }
# neighbours_are_unharmed: both instances are the same, have not restarted, and the data is
# complete.
neighbours_are_unharmed() {
    equal "$modest" "$(field modest .metadata.name)" "instance"
    equal "$db" "$(field db .metadata.name)" "instance"
    equal "0 0" "$(field modest .status.restarts) $(field db .status.restarts)" "restarts"
    field_is modest .status.phase Running
    field_is db .status.phase Running
    inside db sha256sum -c /data/sum
}
can_change() { kat create namespace "$1"; }

least=$(start_filling)
echo "$least MiB were free at the worst"
# The control: the filler did fill the disk.
((least < 52)) || { echo "$least MiB stayed free"; exit 1; }
wait_for 30 filler_is_evicted
wait_for 30 can_change after
is_active kat-etcd
contains "$(field filler .status.message)" "$state ran full"
contains "$(field filler .status.message)" "requests no storage"
after=$(free_mebibytes)
((after > before - 30)) || { echo "$after MiB are free, $before MiB were"; exit 1; }
status=$(kat status) && exit 1
contains "$status" "not well"
contains "$status" Evicted
contains "$(kat get events -n default)" Evicted
contains "$(kat why instance "$filler" -n default)" storage
neighbours_are_unharmed
# Neither systemd nor a restarted agent starts the filler again.
n1 systemctl restart kat-agent
wait_for 60 nodes_are_ready
n1 sleep 5
filler_is_evicted
prints_nothing "containers of the filler" as "$user" podman ps --quiet --filter "name=$filler"
# After a pause the filler starts again by itself.
filler_runs_again() { field_is filler .status.phase Running; }
wait_for 90 filler_runs_again
equal "$filler" "$(field filler .metadata.name)" "instance"

# The control: without the agent the disk fills completely and stays full. When the agent continues,
# the filler is evicted.
n1 systemctl kill --signal=SIGSTOP kat-agent
least=$(start_filling)
((least == 0)) || { echo "$least MiB stayed free without the agent"; exit 1; }
n1 systemctl kill --signal=SIGCONT kat-agent
wait_for 60 leader_is_up
wait_for 30 filler_is_evicted
wait_for 30 can_change later
neighbours_are_unharmed

tenant delete workload filler --wait
for name in modest db; do kat delete workload "$name" --volumes --yes --wait; done
for namespace in after later; do kat delete namespace "$namespace"; done
n1 systemctl stop kat-agent kat-etcd kat-net
n1 sh -c "rm -rf /run/aside/* && cp -a $state/. /run/aside/"
n1 umount --lazy "$state"
n1 umount /run/aside
n1 rmdir /run/aside
n1 systemctl start kat-net kat-agent
wait_for 60 nodes_are_ready
