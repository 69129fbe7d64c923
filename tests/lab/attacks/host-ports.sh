# A tenant takes no port of the machine's own programs, nor what they call at 127.0.0.1
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
address=$(n1 ip -4 -o address show dev host0 | awk '{ sub("/.*", "", $4); print $4; exit }')
# taker NAME PORT: applied with the tenant's token alone, on n1.
taker() {
    local folder
    folder=$(workload "$1" --port 8080 --spec 'nodeSelector: {kat.dws.rip/nodeName: n1}')
    n1 sed -i "s/containerPort: 8080/containerPort: 8080, hostPort: $2/" "$folder/VirtualLoadBalancer.kat"
    tenant apply -f "$folder"
}
from_outside() { on n2 curl --silent --fail --max-time 2 "http://$address:$1/"; }
from_machine() { n1 curl --silent --fail --max-time 2 "http://127.0.0.1:$1/"; }
# A program of the machine, such as a database, which its neighbours on it call at 127.0.0.1.
n1 test -x /root/web || lab copy "$LAB_WORK/images/web/bin/web" n1:/root/web
n1 systemd-run --quiet --unit=database --setenv=PORT=5432 --setenv=VERSION=database /root/web
listens() { contains "$(from_machine 5432)" "version=database"; }
wait_for 10 listens

# The port of another program that only root could take before.
taker mail 25
wait_for 20 field_is mail .status.reason HostPortNotAllowed
contains "$(field mail .status.message)" "hostPortsAllow in /etc/kat/agent.yaml"
refused from_outside 25

# The database starts anew, and the tenant is there first.
seen() { n1 grep -q 5432 /run/kat/machine-ports.json; }
wait_for 30 seen
n1 systemctl stop database.service
taker thief 5432
wait_for 20 field_is thief .status.reason HostPortInUse
contains "$(field thief .status.message)" "in the last ten minutes"
refused from_outside 5432
refused from_machine 5432

# The control: once root gives the port up it leads to the tenant, for all but what calls 127.0.0.1; and for that too where the owner
# says so.
n1 systemctl restart kat-net
stolen() { contains "$(from_outside 5432)" "host=$(field thief .metadata.name)"; }
wait_for 30 stolen
refused from_machine 5432
add_agent_settings n1 'hostPortLoopback: true'
heard() { contains "$(from_machine 5432)" "host=$(field thief .metadata.name)"; }
wait_for 30 heard

restore_agent_settings n1
wait_for 40 nodes_are_ready
kat delete workload mail --wait
kat delete workload thief --wait
