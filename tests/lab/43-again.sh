# A machine that joins again with its known key keeps its identity, name, subnet and instances
# machines: 2
# shellcheck shell=bash
# shellcheck source=tests/lab/guide.sh
. tests/lab/guide.sh
wait_for 30 nodes_are_ready
run web --port 80 --replicas 2
instances_of_n2() { instances web | jq -c '[.[] | select(.status.node == "n2") | [.metadata.name, .status.ip]]'; }
before=$(instances_of_n2)
equal 1 "$(jq length <<<"$before")" "instances on n2"
identity() { kat get nodes n2 -o json | jq -c '[.metadata.uid, .status.subnet]'; }
identity_before=$(identity)
line=$(kat token create --join)
# The state after a join whose answer was lost: the key exists, and the files with the machine's
# identity were not written.
on n2 systemctl stop kat-agent.service
on n2 rm /var/lib/kat/node.json /var/lib/kat/cluster.json
output=$(on n2 kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }" 2>&1)
shows cluster 'The join checks the machine first, as `kat-agent check` does, and ends when the machine is Ready:' "$output"
wait_for 30 nodes_are_ready
equal "$identity_before" "$(identity)" "identity and subnet"
equal "$before" "$(instances_of_n2)" "instances on n2"
# The second join did not use up the token.
contains "$(kat token list)" "join, 1 left"
