# A container on one machine reaches one on another by address and by name, and back
# machines: 2
# shellcheck shell=bash
run web --port 80 --replicas 2
spread=$(instances web | jq -c '[.[].status.node] | sort')
equal '["n1","n2"]' "$spread" "machines of two replicas"
replica_field() { instances web | jq -r --arg node "$1" ".[] | select(.status.node == \$node) | $2"; }
# inside_on NODE COMMAND...: runs a command in the container of the replica on NODE.
inside_on() {
    local node=$1 user unit
    shift
    user=$(replica_field "$node" .status.user) unit=$(replica_field "$node" .status.unit)
    as_on "$node" "$user" podman exec "${unit%.service}" "$@"
}
for pair in "n1 n2" "n2 n1"; do
    read -r from to <<<"$pair"
    address=$(replica_field "$to" .status.ip) id=$(replica_field "$to" .metadata.name)
    fetched=$(inside_on "$from" wget -q -T 3 -O- "http://$address/")
    contains "$fetched" "host=$id"
    for name in "$id.web.default.$DOMAIN" "$id.web"; do
        wait_for 10 inside_on "$from" wget -q -T 3 -O- "http://$name/"
        contains "$(inside_on "$from" wget -q -T 3 -O- "http://$name/")" "host=$id"
    done
    # The workload's name resolves to the service's address, and every machine balances that over
    # both instances.
    equal "$(service_address web)" "$(on "$from" getent ahostsv4 "web.default.$DOMAIN" | awk '{ print $1 }' | sort -u)" "address of web"
    both=$(instances web | jq -r '.[].status.ip' | sort)
    has_both() { [[ $(service_backends web "$from") == "$both" ]]; }
    wait_for 10 has_both
    # The machines themselves reach the instance too, and resolve each other's names.
    contains "$(on "$from" curl --silent --fail --max-time 3 "http://$address/")" "host=$id"
    contains "$(on "$from" getent ahostsv4 "$to.node.$DOMAIN")" "10.100."
done
# The traffic is encrypted: n2 receives WireGuard packets from n1, and the page is in none of them.
count_clear_packets() {
    on n2 timeout 20 python3 -c '
import socket
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("host0", 0))
wire.settimeout(15)
print("listening", flush=True)
seen = wireguard = 0
while wireguard < 20:
    packet = wire.recv(65536)
    wireguard += packet[23] == 17 and b"\xca\x6c" in packet[34:38]
    seen += b"host=" in packet
print("clear", seen, flush=True)'
}
count_clear_packets >"$LAB_WORK/wire.log" &
listening=$!
wait_for 10 grep -q listening "$LAB_WORK/wire.log"
address=$(replica_field n2 .status.ip)
for _ in {1..10}; do contains "$(inside_on n1 wget -q -T 3 -O- "http://$address/")" "host="; done
wait "$listening"
contains "$(cat "$LAB_WORK/wire.log")" "clear 0"
# A machine that reboots runs the same instance again.
before=$(replica_field n2 .metadata.name)
lab reboot n2
wait_for 60 nodes_are_ready
both_run() { [[ $(instances web | jq '[.[] | select(.status.phase == "Running")] | length') == 2 ]]; }
wait_for 60 both_run
equal "$before" "$(replica_field n2 .metadata.name)" "instance on n2 after its restart"
address=$(replica_field n2 .status.ip)
answers_again() { inside_on n1 wget -q -T 3 -O- "http://$address/" | grep -q "host=$before"; }
wait_for 30 answers_again
