# Two of three machines are lost: the third keeps running and says why nothing can be changed; with one more, writes work again
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
address=$(instances web | jq -r '[.[] | select(.status.node == "n1") | .status.ip] | first')
service=$(service_address web)
lab kill n2
lab kill n3
page "http://$address/" | grep -q '^host='
says_why() {
    local output
    output=$(n1 timeout 20 katcall create namespace too-few 2>&1) && return 1
    [[ $output == *"no machine leads the cluster"* ]]
}
wait_for 60 says_why
# Reads without a quorum say that they show old data.
old() { [[ $(n1 katcall status || true) == *"what was known last"* ]]; }
wait_for 30 old
contains "$(n1 katcall get nodes 2>&1)" n3
contains "$(n1 katcall get nodes 2>&1)" "what was known last"
# The instance keeps running without a quorum: its program restarts after a crash, and its names
# resolve.
page "http://$address/" | grep -q '^host='
page "http://$address/crash?1" >/dev/null || true
back() { page "http://$address/" | grep -q '^host='; }
wait_for 30 back
n1 getent ahostsv4 "web.default.$DOMAIN" | grep -q "$service"
service_backends web n1 | grep -q "$address"
lab start n2
writes() { n1 katcall create namespace enough; }
wait_for 90 writes
kat delete namespace enough
lab start n3
wait_for 90 nodes_are_ready
wait_for 60 members_are_healthy 3
all_run() { [[ $(instances web | jq '[.[] | select(.status.phase == "Running")] | length') == 3 ]]; }
wait_for 60 all_run
