# All machines lose power at once: the cluster comes back by itself with its workloads
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
before=$(instances web | jq -c '[.[] | [.metadata.name, .status.node, .status.ip]] | sort')
for node in n1 n2 n3; do lab kill "$node"; done
for node in n1 n2 n3; do
    lab start "$node" &
done
wait
# Until a machine leads, reads show the last known state.
wait_for 150 kat status
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
all_run() { [[ $(instances web | jq '[.[] | select(.status.phase == "Running")] | length') == 3 ]]; }
wait_for 60 all_run
equal "$before" "$(instances web | jq -c '[.[] | [.metadata.name, .status.node, .status.ip]] | sort')" "instances, machines and addresses"
wait_for 10 answers "http://web.default.$DOMAIN/"
