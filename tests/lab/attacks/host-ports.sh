# A tenant takes no port of the machine's own programs, nor what they call at 127.0.0.1
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
address=$(n1 ip -4 -o address show dev host0 | awk '{ sub("/.*", "", $4); print $4; exit }')
# apply_with_host_port NAME PORT: applies a workload with this host port on n1, with the tenant's
# token alone.
apply_with_host_port() {
    local folder
    folder=$(workload "$1" --port 8080 --spec 'nodeSelector: {kat.dws.rip/nodeName: n1}')
    n1 sed -i "s/containerPort: 8080/containerPort: 8080, hostPort: $2/" "$folder/VirtualLoadBalancer.kat"
    tenant apply -f "$folder"
}
from_outside() { on n2 curl --silent --fail --max-time 2 "http://$address:$1/"; }
from_machine() { n1 curl --silent --fail --max-time 2 "http://127.0.0.1:$1/"; }
# A program of the machine, such as a database, which other programs there call at 127.0.0.1.
n1 test -x /root/web || lab copy "$LAB_WORK/images/web/bin/web" n1:/root/web
n1 systemd-run --quiet --unit=database --setenv=PORT=5432 --setenv=VERSION=database /root/web
database_listens() { contains "$(from_machine 5432)" "version=database"; }
wait_for 10 database_listens

# A port of another program, which only root could use before.
apply_with_host_port mail 25
wait_for 20 field_is mail .status.reason HostPortNotAllowed
contains "$(field mail .status.message)" "hostPortsAllow in /etc/kat/agent.yaml"
refused from_outside 25

# The database stops, as for a restart, and the tenant requests its port.
port_is_recorded() { n1 grep -q 5432 /run/kat/machine-ports.json; }
wait_for 30 port_is_recorded
n1 systemctl stop database.service
apply_with_host_port thief 5432
wait_for 20 field_is thief .status.reason HostPortInUse
contains "$(field thief .status.message)" "in the last ten minutes"
refused from_outside 5432
refused from_machine 5432

# The control: once root gives up the port, it forwards to the tenant for callers of other addresses
# than 127.0.0.1, and for callers of 127.0.0.1 too where the owner allows it.
n1 systemctl restart kat-net
tenant_has_port() { contains "$(from_outside 5432)" "host=$(field thief .metadata.name)"; }
wait_for 30 tenant_has_port
refused from_machine 5432
add_agent_settings n1 'hostPortLoopback: true'
tenant_has_loopback_port() { contains "$(from_machine 5432)" "host=$(field thief .metadata.name)"; }
wait_for 30 tenant_has_loopback_port

restore_agent_settings n1
wait_for 40 nodes_are_ready
kat delete workload mail --wait
kat delete workload thief --wait
