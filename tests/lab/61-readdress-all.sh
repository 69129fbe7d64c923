# All machines lose power and come back with other addresses: they find each other again
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
before=$(instances web | jq -c '[.[] | [.metadata.name, .status.node, .status.ip]] | sort')
for node in n1 n2 n3; do lab kill "$node"; done
for node in 1 2 3; do lab readdress "n$node" "192.168.77.$((130 + node))"; done
for node in n1 n2 n3; do
    lab start "$node" &
done
wait
wait_for 150 kat status
wait_for 60 nodes_are_ready
wait_for 60 members_are_healthy 3
all_run() { [[ $(instances web | jq '[.[] | select(.status.phase == "Running")] | length') == 3 ]]; }
wait_for 60 all_run
equal "$before" "$(instances web | jq -c '[.[] | [.metadata.name, .status.node, .status.ip]] | sort')" "instances, machines and addresses"
# The API and the administrator's connection file have the new addresses.
new_addresses_are_known() {
    kat get nodes -o json | jq -e '[.items[].status.endpoints[0]] ==
        ["192.168.77.131:51820", "192.168.77.132:51820", "192.168.77.133:51820"]' >/dev/null || return 1
    n1 jq -e '[.endpoints[] | select(startswith("192.168.77.13"))] | length == 3' /etc/kat/admin.conf >/dev/null
}
wait_for 60 new_addresses_are_known
wait_for 10 answers "http://web.default.$DOMAIN/"
