# Settings of cluster.kat and agent.yaml take effect on machines: ports, MTU, addresses, names, host paths, volumes, backups
# machines: 2
# bare
# by name
# shellcheck shell=bash
# write_cluster FILE LINE...: writes a cluster.kat with these settings to n1.
write_cluster() {
    local file=$1
    shift
    {
        printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: ClusterConfiguration\nmetadata: {name: lab}\nspec:\n'
        printf '  %s\n' 'clusterCIDR: 10.100.0.0/16' 'serviceCIDR: 10.200.0.0/16' "$@"
    } | lab exec n1 -- sh -c 'cat >"$1"' sh "$file"
}
# write_agent NODE LINE...: replaces the machine's agent.yaml.
write_agent() {
    local node=$1
    shift
    printf '%s\n' "$@" | lab exec "$node" -- sh -c 'mkdir -p /etc/kat && cat >/etc/kat/agent.yaml'
}
# inside_on NODE NAME COMMAND...: runs a command in the container of the workload's only instance, which is on this machine.
inside_on() {
    local node=$1 status
    status=$(field "$2" .status)
    shift 2
    as_on "$node" "$(jq -r .user <<<"$status")" podman exec "$(jq -r '.unit | rtrimstr(".service")' <<<"$status")" "$@"
}
# listening NODE --tcp|--udp PORT: the local addresses of the machine's sockets that listen on the port.
listening() { on "$1" ss -Hln "$2" "sport = :$3" | awk '{ print $4 }' | sort | paste -sd ' '; }
# status_of_nodes .FIELD: this field of the status of n1 and n2, as a JSON list.
status_of_nodes() { kat get nodes -o json | jq -ec "[.items[].status$1]"; }
machine_pid() { lab status | awk -v node="$1" '$1 == node { print $3 }'; }
# share FOLDER: mounts the folder of n1 at the same path of n2, as a network file system would. A mount can't be bound
# across mount namespaces, so open_tree(2) clones it in that of n1, and move_mount(2) attaches the clone in that of n2.
share() {
    python3 - "$(machine_pid n1)" "$(machine_pid n2)" "$1" <<'PYTHON'
import ctypes, os, sys
CLONE_NEWNS, OPEN_TREE, OPEN_TREE_CLONE, MOVE_MOUNT, FROM_DESCRIPTOR, AT_FDCWD = 0x20000, 428, 1, 429, 4, -100
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
source, target = [os.open("/proc/%s/ns/mnt" % pid, os.O_RDONLY) for pid in sys.argv[1:3]]
folder = sys.argv[3].encode()
checked(libc.setns(source, CLONE_NEWNS))
tree = checked(libc.syscall(OPEN_TREE, AT_FDCWD, folder, OPEN_TREE_CLONE))
checked(libc.setns(target, CLONE_NEWNS))
checked(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, folder, FROM_DESCRIPTOR))
PYTHON
}

# n1 and n2 share a folder.
n1 mkdir /srv/shared
on n2 mkdir /srv/shared
share /srv/shared
n1 sh -c 'echo n1 >/srv/shared/written'
equal n1 "$(on n2 cat /srv/shared/written)" "a file of n1 on n2"
on n2 sh -c 'echo n2 >/srv/shared/written'
equal n2 "$(n1 cat /srv/shared/written)" "a file of n2 on n1"
# n1 has an address that n2 knows from the setting `endpoints` alone, and counts WireGuard's packets to it.
n1 ip address add 10.7.0.1/32 dev lo
on n2 ip route add 10.7.0.1/32 via 192.168.77.11
n1 nft 'table inet counted { counter seen { }
    chain in { type filter hook input priority -300; ip daddr 10.7.0.1 udp dport 51821 counter name seen; }; }'
packets_to_endpoint() { n1 nft list counter inet counted seen | sed -n 's/.*packets \([0-9]*\) .*/\1/p'; }
equal 0 "$(packets_to_endpoint)" "packets to the endpoint before n2 joins"
# n2 is a DNS server with a name that no other one knows.
on n2 sh -c 'echo "192.168.77.1 upstream.test" >>/etc/hosts && mkdir -p /run/systemd/resolved.conf.d &&
    printf "[Resolve]\nDNSStubListenerExtra=192.168.77.12\nReadEtcHosts=yes\n" >/run/systemd/resolved.conf.d/upstream.conf &&
    systemctl restart systemd-resolved'
refused n1 getent ahostsv4 upstream.test
# Folders for host paths: the two machines allow different ones.
for node in n1 n2; do
    on "$node" sh -ec 'for path in /srv/web /opt/own; do mkdir "$path"; echo "$1 $path" >"$path/name"; done' sh "$node"
done
lab copy "$LAB_WORK/images/web/bin/web" n2:/root/web

# Mistakes are refused, all of them at once, and nothing is changed.
refused_init() {
    local output code=0
    output=$(n1 kat-agent init --config "$1" 2>&1) || code=$?
    equal 1 "$code" "exit code of init, which printed $output" || return 1
    absent n1 /var/lib/kat /etc/kat/admin.conf || return 1
    printf '%s\n' "$output"
}
write_cluster /root/wrong.kat 'nodeSubnetBits: 14' 'agentPort: 9215' 'apiPort: 9215' 'mtu: 1000' 'backupRetention: 0'
output=$(refused_init /root/wrong.kat)
contains "$output" "the prefix /16 of clusterCIDR and 14 nodeSubnetBits give each node a /30, expected at most /29"
contains "$output" "apiPort and agentPort are both 9215"
contains "$output" "expected a whole number from 1280 to 9000"
contains "$output" "expected a whole number from 1 to 1000"
# The lab's links have an MTU of 1500.
equal 1500 "$(n1 cat /sys/class/net/host0/mtu)" "MTU of host0"
write_cluster /root/wrong.kat 'mtu: 1460'
output=$(refused_init /root/wrong.kat)
contains "$output" "host0 has an MTU of 1500, too small for the overlay's 1460 and WireGuard's 80"
contains "$output" "set mtu: 1420 in cluster.kat"
write_agent n1 'wireguardPort: 0' 'endpoints: ["192.168.77.11"]' 'upstreamDNS: [dns.example]'
output=$(n1 kat-agent check 2>&1) && exit 1
contains "$output" "expected a whole number from 1 to 65535"
contains "$output" "an endpoint such as"
contains "$output" "expected an address such as"

# The cluster is made. n1 has the cluster's port of WireGuard, and n2 a port of its own.
write_cluster /root/cluster.kat 'nodeSubnetBits: 12' 'agentPort: 9216' 'apiPort: 9215' 'etcdPeerPort: 12380' \
    'etcdClientPort: 12379' 'wireguardPort: 51821' 'mtu: 1380' 'volumeBasePath: /srv/shared/volumes' \
    'backupPath: /srv/kat/backups' 'backupRetention: 2' 'backupIntervalMinutes: 1' \
    'agentTickSeconds: 5' 'nodeLossTimeoutSeconds: 15'
of_n1=('upstreamDNS: [192.168.77.12]' 'hostMountAllow: [/opt/own, /srv/made]' 'hostMountCreate: [/srv/made]' 'volumeShared: true')
of_n2=('volumeShared: true')
write_agent n1 "${of_n1[@]}" 'endpoints: ["10.7.0.1:51821"]'
write_agent n2 "${of_n2[@]}" 'wireguardPort: 51900'
n1 kat-agent init --config /root/cluster.kat
# Three old backups of this cluster: backups that the leader makes meanwhile replace them.
backup=$(n1 kat-agent backup)
contains "$backup" /srv/kat/backups/kat-lab-
n1 sh -ec 'cd /srv/kat/backups; touch notes
    for day in 1 2 3; do cp "$1" "kat-lab-2020010${day}T000000Z.backup"; done; rm "$1"' sh "$backup"
line=$(kat token create --join)
contains "$line" "sudo kat-agent join --leader-api 192.168.77.11:9215 "
on n2 bash -c "${line#sudo }"
wait_for 60 nodes_are_ready

# Each machine listens on these ports, and on none of the defaults.
equal "10.100.0.1:12379 127.0.0.1:12379" "$(listening n1 --tcp 12379)" "addresses of etcd for clients"
equal 10.100.0.1:12380 "$(listening n1 --tcp 12380)" "address of etcd for peers"
equal 10.100.0.1:9216 "$(listening n1 --tcp 9216)" "address of the agent on n1"
equal 10.100.0.17:9216 "$(listening n2 --tcp 9216)" "address of the agent on n2"
contains "$(listening n1 --udp 51821)" :51821
contains "$(listening n2 --udp 51900)" :51900
for node in n1 n2; do
    contains "$(listening "$node" --tcp 9215)" :9215
    prints_nothing "listeners on default ports of $node" on "$node" ss -Hln --tcp \
        'sport = :2379 or sport = :2380 or sport = :9115 or sport = :9116'
    prints_nothing "listeners on WireGuard's default port of $node" on "$node" ss -Hln --udp 'sport = :51820'
    n1 curl --silent --show-error --insecure --fail --max-time 5 --output /dev/null "https://$node:9215/version"
done
contains "$(n1 jq -c .endpoints /etc/kat/admin.conf)" '"192.168.77.11:9215"'

# With 12 bits a machine has a /28.
equal '["10.100.0.0/28","10.100.0.16/28"]' "$(status_of_nodes .subnet)" "subnets"
equal '["10.100.0.1","10.100.0.17"]' "$(status_of_nodes .overlayAddress)" "addresses of the machines"
contains "$(n1 ip -4 route)" "unreachable 10.100.0.0/28 "
contains "$(on n2 ip -4 route)" "unreachable 10.100.0.16/28 "
contains "$(on n2 ip -4 -oneline address show dev kat0)" " 10.100.0.17/"

# n2 has sent WireGuard's packets to the endpoint of n1, and n1 sends its own to the port of n2.
equal '[["10.7.0.1:51821"],["192.168.77.12:51900"]]' "$(status_of_nodes .endpoints)" "endpoints"
equal '["10.7.0.1:51821"]' "$(on n2 jq -c .peers.n1.endpoints /var/lib/kat/network/peers.json)" "endpoints of n1 on n2"
(($(packets_to_endpoint) > 0))
sends_to() { equal "$1" "$(n1 jq -r .peers.n2.endpoint /run/kat/overlay.json)" "address to which n1 sends to n2"; }
wait_for 30 sends_to 192.168.77.12:51900

# Packets of 1380 bytes pass the overlay, and larger ones are not sent: 28 bytes are the headers of IPv4 and ICMP.
for node in n1 n2; do contains "$(on "$node" ip -oneline link show dev kat0)" " mtu 1380 "; done
wait_for 20 n1 ping -M 'do' -c 1 -W 2 -s 1352 10.100.0.17
refused n1 ping -M 'do' -c 1 -W 2 -s 1353 10.100.0.17

# Callers on both machines and in containers reach an instance by its address, its service address and its name.
kat label node n2 place=here
run near --port 80 --spec 'nodeSelector: {kat.dws.rip/nodeName: n1}'
run kept --port 80 --spec 'onNodeLoss: keep' --spec 'nodeSelector: {place: here}'
equal n2 "$(field kept .status.node)" "machine of kept"
[[ $(field near .status.ip) =~ ^10\.100\.0\.([2-9]|1[0-4])$ ]]
[[ $(field kept .status.ip) =~ ^10\.100\.0\.(1[89]|2[0-9]|30)$ ]]
contains "$(inside_on n1 near ip link show dev eth0)" " mtu 1380 "
contains "$(inside_on n2 kept ip link show dev eth0)" " mtu 1380 "
near=$(field near .metadata.name) kept=$(field kept .metadata.name)
near_answers_n2() { contains "$(on n2 curl --silent --fail --max-time 3 "http://$1/")" "host=$near"; }
near_answers_container_on_n2() { contains "$(inside_on n2 kept wget -q -T 3 -O- "http://$1/")" "host=$near"; }
for address in "$(field near .status.ip)" "$(service_address near)" "near.default.$DOMAIN"; do
    wait_for 20 near_answers_n2 "$address"
    wait_for 20 near_answers_container_on_n2 "$address"
done
kept_answers_n1() { contains "$(page "http://$(field kept .status.ip)/")" "host=$kept"; }
wait_for 20 kept_answers_n1
# The leader asks the agent of n2 on its port.
contains "$(kat logs kept)" "listening on port 80"

# Containers reach none of these ports of a machine. They reach a program on a port that is KAT's by default.
on n2 systemd-run --quiet --collect --unit=open --setenv=PORT=9115 /root/web
connects() { inside_on n1 near nc -w 2 "$1" "$2" -e /bin/busybox true; }
wait_for 10 connects 10.100.0.17 9115
for place in "10.100.0.1 9215" "10.100.0.1 9216" "10.100.0.1 12379" "10.100.0.1 12380" "10.100.0.17 9215" "10.100.0.17 9216"; do
    read -r address port <<<"$place"
    n1 timeout 5 bash -c "exec 3<>/dev/tcp/$address/$port"
    refused connects "$address" "$port"
done
on n2 systemctl stop open.service
folder=$(workload edge --port 8080)
n1 sed -i 's/containerPort: 8080/containerPort: 8080, hostPort: 9215/' "$folder/VirtualLoadBalancer.kat"
output=$(kat apply -f "$folder" 2>&1) && exit 1
contains "$output" "hostPort 9215: each machine needs its port 9215/TCP for KAT's API"

# Containers on n1 resolve names with the DNS server of n1's agent.yaml, which alone knows this one.
page_of_upstream() { inside_on "$1" "$2" wget -q -T 5 -O- http://upstream.test:8000/; }
wait_for 20 page_of_upstream n1 near
contains "$(page_of_upstream n1 near)" "outside sees 192.168.77.11"
refused n1 getent ahostsv4 upstream.test
wait_for 20 inside_on n2 kept wget -q -T 5 -O- http://outside.test:8000/

# Settings that were fixed at init stay as they are.
n1 sh -c 'mkdir /root/settings && cp /root/cluster.kat /root/settings/'
output=$(kat apply -f /root/settings 2>&1) && exit 1
contains "$output" "a ClusterConfiguration is only for"
output=$(kat config set apiPort=9000 2>&1) && exit 1
contains "$output" "the machines find each other by it"
contains "$(kat config get)" "mtu: 1380"
# Those of a machine change with its file: without them the defaults and the cluster's port count again.
write_agent n1 "${of_n1[@]}"
write_agent n2 "${of_n2[@]}"
for node in n1 n2; do on "$node" systemctl restart kat-agent; done
has_defaults() {
    equal '[["192.168.77.11:51821"],["192.168.77.12:51821"]]' "$(status_of_nodes .endpoints)" "endpoints" &&
        contains "$(listening n2 --udp 51821)" :51821 &&
        prints_nothing "the earlier port" on n2 ss -Hln --udp 'sport = :51900' &&
        sends_to 192.168.77.12:51821
}
wait_for 60 has_defaults
wait_for 60 nodes_are_ready
wait_for 20 kept_answers_n1
wait_for 20 near_answers_n2 "$(service_address near)"

# n1 allows the folders of hostMountAllow, and makes folders below that of hostMountCreate. n2 allows /srv, as by default.
paths() {
    workload paths --port 80 --env "MACHINE=$1" --spec "nodeSelector: {kat.dws.rip/nodeName: $1}" \
        --spec "volumes: [{name: one, hostMount: {$2}}]" --container 'volumeMounts: [{name: one, mountPath: /one}]'
}
kat apply -f "$(paths n1 'hostPath: /srv/web, ensureType: Directory')"
wait_for 30 field_is paths .status.reason HostPathNotAllowed
contains "$(field paths .status.message)" "this machine allows host paths below /opt/own, /srv/made only"
contains "$(kat why workload paths)" "hostMountAllow"
kat apply --wait -f "$(paths n2 'hostPath: /srv/web, ensureType: Directory')"
equal "n2 /srv/web" "$(inside_on n2 paths cat /one/name)" "a file of n2"
kat apply --wait -f "$(paths n1 'hostPath: /opt/own, ensureType: Directory')"
equal "n1 /opt/own" "$(inside_on n1 paths cat /one/name)" "a file of n1"
absent n1 /srv/made
kat apply --wait -f "$(paths n1 'hostPath: /srv/made/here, ensureType: DirectoryOrCreate')"
equal "$(field paths .status.uid)" "$(n1 stat --format %u /srv/made/here)" "owner of a folder that was made"
kat delete workload paths --wait

# A volume lies below the base path. As the machines share that, a workload moves with its data, and finds the data when it is
# applied after a deletion.
folder=/srv/shared/volumes/default/db/data
db() {
    run db --port 80 --env "V=$1" --spec "nodeSelector: {$2}" --spec 'onPartition: stop' \
        --spec 'volumes: [{name: data, simpleClusterStorage: {}}]' --container 'volumeMounts: [{name: data, mountPath: /data}]' \
        --container 'terminationGraceSeconds: 1' --container 'entrypoint: [/bin/busybox, sh, -c]' \
        --container 'command: ["echo $V >>/data/starts && exec /bin/web"]'
}
starts() { n1 cat "$folder/starts"; }
db 1 'kat.dws.rip/nodeName: n1'
equal n1 "$(field db .status.node)" "machine of db"
equal 1 "$(starts)" "starts of db"
absent n1 /var/lib/kat/volumes/default
db 2 'place: here'
equal n2 "$(field db .status.node)" "machine of db"
equal "1 2" "$(starts | xargs)" "starts of db after the move"
kat delete workload db --wait
equal "1 2" "$(starts | xargs)" "data of a deleted workload"
db 3 'place: here'
equal "1 2 3" "$(inside_on n2 db cat /data/starts | xargs)" "data of a workload that was applied again"

# n2 loses power, and n1 has the label by then. The instance with `onNodeLoss: keep` waits for n2, and the other ones are
# replaced on n1. The instance of db writes data, and is replaced because `onPartition: stop` ends it on a lost machine.
run moved --port 80 --spec 'nodeSelector: {place: here}'
equal n2 "$(field moved .status.node)" "machine of moved"
before=$(starts)
kat label node n1 place=here
lab kill n2
is_on_n1() { equal '["n1"]' "$(machines_running "$1")" "machines of $1" && has_ready "$1" 1; }
wait_for 60 is_on_n1 moved
wait_for 60 is_on_n1 db
equal "$before"$'\n3' "$(starts)" "starts of db after the loss of its machine"
waits_for_n2() {
    local condition
    condition=$(kat get workload kept -o json | jq -ec '.status.conditions[] | select(.type == "Available")') &&
        contains "$condition" '"NodeNotReady"' && contains "$condition" "$kept: its machine n2 does not answer"
}
wait_for 20 waits_for_n2
equal "$kept n2" "$(field kept '| .metadata.name + " " + .status.node')" "the only instance of kept"
lab start n2
wait_for 60 nodes_are_ready
wait_for 60 kept_answers_n1
only_kept_runs_on_n2() { equal 1 "$(on n2 sh -c 'pgrep -xc web || [ $? = 1 ]')" "programs on n2"; }
wait_for 60 only_kept_runs_on_n2
equal "$kept n2" "$(field kept '| .metadata.name + " " + .status.node')" "the only instance of kept"
wait_for 60 is_on_n1 moved
wait_for 60 is_on_n1 db

# Two backups are kept, and both are of the leader's schedule. Files that are no backups stay.
two_are_kept() {
    local files
    files=$(n1 ls /srv/kat/backups) || return 1
    equal 2 "$(grep -c '^kat-lab-.*\.backup$' <<<"$files")" "backups, of $files" && lacks "$files" kat-lab-2020
}
wait_for 130 two_are_kept
n1 test -e /srv/kat/backups/notes
absent n1 /var/lib/kat/backups
wait_for 60 kat status
