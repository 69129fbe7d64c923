# The leader loses power: another machine leads, writes and workloads continue; when it is back nothing runs twice
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
before=$(instances web | jq -c '[.[] | [.metadata.name, .status.node, .status.ip]] | sort')
service=$(service_address web)
lost=$(leader_at n1)
other=$([[ $lost == n1 ]] && echo n2 || echo n1)
third=$(printf '%s\n' n1 n2 n3 | grep -v -e "$lost" -e "$other")
address=$(instances web | jq -r --arg gone "$lost" '[.[] | select(.status.node != $gone) | .status.ip] | first')
# Writes use the machine's own socket, so the measured time is that of the cluster.
can_write() { on "$other" timeout 1 katcall create namespace "after-$RANDOM$RANDOM" >/dev/null 2>&1; }
can_write
lab kill "$lost"
pulled=$(date +%s%N)
wait_for 20 can_write
echo "writes worked $((($(date +%s%N) - pulled) / 1000000)) ms after $lost lost power"
another_leads() { [[ $(leader_at "$other") == @("$other"|"$third") ]]; }
wait_for 10 another_leads
# Instances on the other machines continue, and names resolve.
on "$other" curl --silent --fail --max-time 3 "http://$address/" | grep -q '^host='
on "$other" getent ahostsv4 "web.default.$DOMAIN" | grep -q "$service"
service_backends web "$other" | grep -q "$address"
status_names_lost_member() { [[ $(on "$other" katcall status || true) == *"etcd of $lost: its etcd does not answer"* ]]; }
wait_for 60 status_names_lost_member
lab start "$lost"
all_ready() { [[ $(on "$other" katcall get nodes -o json | jq '[.items[] | select(.status.phase == "Ready")] | length') == 3 ]]; }
wait_for 90 all_ready
wait_for 60 members_are_healthy 3 "$other"
all_run() { [[ $(on "$other" katcall get instances -o json | jq '[.items[] | select(.status.workload == "web" and .status.phase == "Running")] | length') == 3 ]]; }
wait_for 60 all_run
# All machines together run one program for each instance.
containers=0
for node in n1 n2 n3; do
    containers=$((containers + $(on "$node" sh -c 'pgrep -xc web || true')))
done
equal 3 "$containers" "running programs"
echo "before: $before"
for name in $(on "$other" katcall get namespaces -o json | jq -r '.items[].metadata.name | select(startswith("after-"))'); do
    on "$other" katcall delete namespace "$name"
done
