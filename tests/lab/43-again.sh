# A machine that joins again with its known key keeps its identity, name, subnet and instances
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
run web --port 80 --replicas 2
of_n2() { instances web | jq -c '[.[] | select(.status.node == "n2") | [.metadata.name, .status.ip]]'; }
before=$(of_n2)
equal 1 "$(jq length <<<"$before")" "instances on n2"
identity() { kat get nodes n2 -o json | jq -c '[.metadata.uid, .status.subnet]'; }
known=$(identity)
line=$(kat token create --join)
# As after a join that lost its answer: the key is there, who the machine is was never written.
on n2 systemctl stop kat-agent.service
on n2 rm /var/lib/kat/node.json /var/lib/kat/cluster.json
on n2 kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }"
wait_for 30 nodes_are_ready
equal "$known" "$(identity)" "identity and subnet"
equal "$before" "$(of_n2)" "instances on n2"
# The token was not used up by it.
contains "$(kat token list)" "join, 1 left"
