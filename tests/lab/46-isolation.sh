# Containers do not reach those of another namespace unless it allows them, on one machine and across machines; what was refused is listed; metadata and the API are closed
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
contains "$(kat config get -o json 2>/dev/null || kat config get)" Namespaces
for namespace in orders records; do kat create namespace "$namespace"; done

# A replica of each workload on each machine; each answers at port 80.
run web --port 80 --replicas 2 --namespace orders
run db --port 80 --replicas 2 --namespace records
# replica NAMESPACE NAME MACHINE .PATH: a field of the workload's instance on the machine.
replica() { instances "$2" "$1" | jq -er --arg node "$3" ".[] | select(.status.node == \$node) | $4"; }
for pair in "orders web" "records db"; do
    read -r namespace name <<<"$pair"
    equal '["n1","n2"]' "$(instances "$name" "$namespace" | jq -c '[.[].status.node] | sort')" "machines of $name"
done
# from_web MACHINE COMMAND...: runs a command in the container of orders/web on the machine.
from_web() {
    local node=$1 user unit
    shift
    user=$(replica orders web "$node" .status.user) unit=$(replica orders web "$node" .status.unit)
    as_on "$node" "$user" podman exec "${unit%.service}" "$@"
}
# reaches MACHINE URL: whether orders/web on the machine gets a page.
reaches() { from_web "$1" wget -q -T 3 -O- "http://$2/" | grep -q '^host='; }
# closed MACHINE URL: whether it gets an error of the network instead.
closed() {
    local output
    output=$(from_web "$1" wget -q -T 3 -O- "http://$2/" 2>&1) && echo "$1 reaches $2" >&2 && return 1
    [[ $output == *refused* || $output == *"timed out"* || $output == *unreachable* || $output == *prohibited* ]] || {
        echo "$1 to $2: $output" >&2
        return 1
    }
}
db_service=$(kat get workload db -n records -o json | jq -er .status.serviceAddress)
web_service=$(kat get workload web -n orders -o json | jq -er .status.serviceAddress)
# data_is open|closed: whether orders/web on both machines reaches records/db everywhere, or nowhere.
data_is() {
    local from to check=reaches
    [[ $1 == open ]] || check=closed
    for from in n1 n2; do
        for to in n1 n2; do
            $check "$from" "$(replica records db "$to" .status.ip)" || return 1
        done
        $check "$from" "$db_service" && $check "$from" "db.records.$DOMAIN" || return 1
    done
}
own_is_open() {
    local from to
    for from in n1 n2; do
        for to in n1 n2; do
            reaches "$from" "$(replica orders web "$to" .status.ip)" || return 1
        done
        reaches "$from" "$web_service" && reaches "$from" web || return 1
    done
}
wait_for 20 own_is_open
data_is closed
# A refusal comes at once: nobody waits for a timeout.
contains "$(from_web n1 wget -T 20 -O- "http://$(replica records db n2 .status.ip)/" 2>&1 || true)" refused
# The machines themselves are not isolated, and names of other namespaces are asked for in full.
on n1 curl --silent --fail --max-time 3 "http://$(replica records db n2 .status.ip)/" >/dev/null
contains "$(from_web n1 wget -q -T 3 -O- "http://db.records.$DOMAIN/" 2>&1 || true)" refused
contains "$(from_web n1 wget -q -T 3 -O- http://db.records/ 2>&1 || true)" "bad address"

# Who was refused, by whom: katcall and one line in the journal of the machine that refused it.
lists_refusal() {
    local why
    why=$(kat why isolation)
    contains "$why" orders/web && contains "$why" records/db && contains "$why" 80/tcp
}
wait_for 60 lists_refusal
journal_lines() { on n1 journalctl -u kat-net --no-pager -o cat -g 'isolation refused a connection of orders/web .* to records/db' | grep -c .; }
has_journal_line() { [[ $(journal_lines) -ge 1 ]]; }
wait_for 20 has_journal_line
# packets: what n1 has counted between the two workloads.
packets() { n1 jq '[.refused[]? | select(.from.workload == "web" and .to.workload == "db") | .packets] | add // 0' /run/kat/isolation.json; }
before=$(packets)
for _ in 1 2 3 4 5; do closed n1 "$(replica records db n2 .status.ip)"; done
has_counted() { (($(packets) >= before + 5)); }
wait_for 15 has_counted
equal 1 "$(journal_lines)" "lines about the same two workloads"

# The namespace that serves opens itself, as a whole and by workload.
kat namespace set records allowNamespaces=orders
wait_for 30 data_is open
# A connection that is open ends when the namespace closes again.
lab exec n1 --user "$(replica orders web n1 .status.user)" -- podman exec "$(replica orders web n1 '.status.unit | rtrimstr(".service")')" \
    wget -q -T 20 -O- "http://$(replica records db n2 .status.ip)/slow?12000" </dev/null >"$LAB_WORK/slow" 2>&1 &
slow=$!
trap 'kill "$slow" 2>/dev/null || true' EXIT
# is_open: whether the connection is established inside the container of records/db on n2. /proc/net/tcp has
# addresses in the machine's byte order.
caller=$(replica orders web n1 .status.ip | awk -F. '{ printf "%02X%02X%02X%02X", $4, $3, $2, $1 }')
db_user=$(replica records db n2 .status.user) db_unit=$(replica records db n2 .status.unit)
is_open() { as_on n2 "$db_user" podman exec "${db_unit%.service}" grep -q ":0050 $caller:[0-9A-F]* 01 " /proc/net/tcp; }
wait_for 10 is_open
kat namespace set records allowNamespaces=none
wait_for 30 data_is closed
# Its answer after 12 s does not arrive.
wait "$slow" || true
lacks "$(cat "$LAB_WORK/slow")x" "host="
kat namespace set records isolation=Shared
wait_for 30 data_is open
kat namespace set records isolation=Private
wait_for 30 data_is closed
folder=$(workload db --port 80 --replicas 2 --namespace records)
on n1 sh -c 'printf "  allowNamespaces: [orders]\n" >>"$1/VirtualLoadBalancer.kat"' sh "$folder"
kat apply -f "$folder" --wait
wait_for 30 data_is open
kat apply -f "$(workload db --port 80 --replicas 2 --namespace records)" --wait
wait_for 30 data_is closed

# Nothing opens while KAT's services are away or restarted, or all rules are flushed.
on n1 systemctl stop kat-agent
on n1 systemctl restart kat-net
closed n1 "$(replica records db n2 .status.ip)"
closed n2 "$(replica records db n1 .status.ip)"
on n1 nft flush ruleset
rules_are_back() { on n1 nft list chain inet kat-isolation forward >/dev/null; }
wait_for 10 rules_are_back
on n1 systemctl start kat-agent
wait_for 60 nodes_are_ready
wait_for 20 data_is closed
wait_for 20 own_is_open

# Metadata of clouds and the API are closed to containers.
for node in n1 n2; do on "$node" ip address add 169.254.169.254/32 dev lo; done
trap 'kill "$slow" 2>/dev/null || true; for node in n1 n2; do on "$node" ip address del 169.254.169.254/32 dev lo || true; done' EXIT
contains "$(from_web n1 wget -T 20 -O- http://169.254.169.254/ 2>&1 || true)" refused
contains "$(from_web n1 wget -T 20 -O- "http://$(overlay_address n1):9115/" 2>&1 || true)" refused

# Audit refuses nothing and lists it; None has no rules.
kat config set isolation=Audit
wait_for 60 data_is open
audit_lists() { contains "$(kat why isolation)" passed; }
wait_for 60 audit_lists
kat config set isolation=None
no_table() { finds_nothing on n1 sh -c 'nft list tables | grep kat-isolation'; }
wait_for 60 no_table
data_is open
kat config set isolation=Namespaces
wait_for 60 data_is closed
own_is_open
for pair in "orders web" "records db"; do
    read -r namespace name <<<"$pair"
    kat delete workload "$name" -n "$namespace" --wait
done
for namespace in orders records; do kat delete namespace "$namespace"; done
