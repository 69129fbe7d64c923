# The example node-exporter, as Debian packages it, has an instance on each machine: over a join, a drain, an update and a loss
# machines: 4
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# packages: prometheus-node-exporter
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 90 members_are_healthy 3
tree=$LAB_WORK/node-exporter
mkdir -p "$tree"
cp -a "$(lab tree prometheus-node-exporter)"/{bin,etc,lib,lib64,sbin,usr} "$tree"
mkdir -m 1777 "$tree/tmp"
lab image test/node-exporter:1 "$tree" --entrypoint '["/usr/bin/prometheus-node-exporter"]' --user nobody
folder=$LAB_WORK/workloads/node-exporter
mkdir -p "${folder%/*}"
cp -r contrib/examples/node-exporter "$folder"
sed -i 's|docker.io/prom/node-exporter:.*|registry.lab:5000/test/node-exporter:1|' "$folder/workload.kat"
copy_folder() {
    n1 rm -rf /root/workloads/node-exporter
    lab copy "$folder" n1:/root/workloads/
}
machines_are() { equal "$1" "$(machines_running node-exporter)" "machines with an instance"; }
metrics_of() { page "http://$(field_on node-exporter "$1" .status.ip):9100/metrics"; }
# The addresses of the name, as Prometheus asks for them, are those of the instances on these machines.
name_has() {
    local node wanted
    wanted=$(for node in "$@"; do field_on node-exporter "$node" .status.ip || return 1; done | sort) || return 1
    equal "$wanted" "$(n1 getent ahostsv4 "node-exporter.default.$DOMAIN" | awk '{ print $1 }' | sort -u)" "addresses of the name"
}

# n4 joins when the exporter is there already.
on n4 kat-agent reset --yes
copy_folder
kat apply -f /root/workloads/node-exporter --wait --timeout 2m
machines_are '["n1","n2","n3"]'
line=$(kat token create --join)
on n4 kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }"
wait_for 60 has_ready node-exporter 4
machines_are '["n1","n2","n3","n4"]'
wait_for 20 name_has n1 n2 n3 n4
# The figures are those of the machine, not of the container.
total=$(n1 awk '$1 == "MemTotal:" { printf "%.0f\n", $2 * 1024 }' /proc/meminfo)
for node in n1 n2 n3 n4; do
    metrics=$(metrics_of "$node")
    contains "$metrics" "node_load1 "
    lacks "$metrics" node_network_
done
equal "$total" "$(metrics_of n1 | awk '$1 == "node_memory_MemTotal_bytes" { printf "%.0f\n", $2 }')" "memory of n1"

# A drain leaves it for last, and the end of the drain brings it back.
output=$(kat drain n4 --timeout 40s 2>&1)
contains "$output" "node/n4 drained"
machines_are '["n1","n2","n3"]'
wait_for 20 name_has n1 n2 n3
kat uncordon n4 >/dev/null
wait_for 30 has_ready node-exporter 4

# n4 loses power: nothing replaces its instance, and the update reaches the others. n4 follows when it is back.
lab kill n4
is_counted_apart() { contains "$(kat why workload node-exporter)" "one more is on n4, which does not answer"; }
wait_for 60 is_counted_apart
wait_for 20 name_has n1 n2 n3
sed -i 's/^      - --collector.vmstat$/&\n      - --collector.time/' "$folder/workload.kat"
copy_folder
kat apply -f /root/workloads/node-exporter
has_new_version() {
    local metrics
    metrics=$(metrics_of "$1") && contains "$metrics" node_time_seconds
}
for node in n1 n2 n3; do wait_for 60 has_new_version "$node"; done
lab start n4
wait_for 60 nodes_are_ready
wait_for 60 has_new_version n4
wait_for 30 has_ready node-exporter 4
machines_are '["n1","n2","n3","n4"]'
wait_for 20 name_has n1 n2 n3 n4
