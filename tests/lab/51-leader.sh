# The leader loses power: another machine leads, writes and workloads continue; when it is back nothing runs twice
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
before=$(instances web | jq -c '[.[] | [.metadata.name, .status.node, .status.ip]] | sort')
service=$(service_address web)
gone=$(leader_at n1)
other=$([[ $gone == n1 ]] && echo n2 || echo n1)
third=$(printf '%s\n' n1 n2 n3 | grep -v -e "$gone" -e "$other")
kept=$(instances web | jq -r --arg gone "$gone" '[.[] | select(.status.node != $gone) | .status.ip] | first')
# Asked at its own socket, so that the time is the cluster's.
writes() { on "$other" timeout 1 katcall create namespace "after-$RANDOM$RANDOM" >/dev/null 2>&1; }
writes
lab kill "$gone"
pulled=$(date +%s%N)
wait_for 20 writes
echo "writing again $((($(date +%s%N) - pulled) / 1000000)) ms after the plug of $gone was pulled"
leads() { [[ $(leader_at "$other") == @("$other"|"$third") ]]; }
wait_for 10 leads
# What ran elsewhere runs on, and names are answered.
on "$other" curl --silent --fail --max-time 3 "http://$kept/" | grep -q '^host='
on "$other" getent ahostsv4 "web.default.$DOMAIN" | grep -q "$service"
service_backends web "$other" | grep -q "$kept"
sees_it() { [[ $(on "$other" katcall status || true) == *"etcd of $gone: its etcd does not answer"* ]]; }
wait_for 60 sees_it
lab start "$gone"
all_ready() { [[ $(on "$other" katcall get nodes -o json | jq '[.items[] | select(.status.phase == "Ready")] | length') == 3 ]]; }
wait_for 90 all_ready
wait_for 60 members_are_healthy 3 "$other"
all_run() { [[ $(on "$other" katcall get instances -o json | jq '[.items[] | select(.status.workload == "web" and .status.phase == "Running")] | length') == 3 ]]; }
wait_for 60 all_run
# One container for each instance, over all machines.
containers=0
for node in n1 n2 n3; do
    containers=$((containers + $(on "$node" sh -c 'pgrep -xc web || true')))
done
equal 3 "$containers" "running programs"
echo "before: $before"
for name in $(on "$other" katcall get namespaces -o json | jq -r '.items[].metadata.name | select(startswith("after-"))'); do
    on "$other" katcall delete namespace "$name"
done
