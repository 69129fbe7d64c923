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
change_is_refused() {
    local output
    output=$(n1 timeout 20 katcall create namespace too-few 2>&1) && return 1
    [[ $output == *"no machine leads the cluster"* ]]
}
wait_for 60 change_is_refused
# Reads are marked as old.
reads_are_marked_old() { [[ $(n1 katcall status || true) == *"what was known last"* ]]; }
wait_for 30 reads_are_marked_old
contains "$(n1 katcall get nodes 2>&1)" n3
contains "$(n1 katcall get nodes 2>&1)" "what was known last"
# Instances continue: a program that crashes restarts, and names resolve.
page "http://$address/" | grep -q '^host='
page "http://$address/crash?1" >/dev/null || true
instance_answers() { page "http://$address/" | grep -q '^host='; }
wait_for 30 instance_answers
n1 getent ahostsv4 "web.default.$DOMAIN" | grep -q "$service"
service_backends web n1 | grep -q "$address"
lab start n2
can_write() { n1 katcall create namespace enough; }
wait_for 90 can_write
kat delete namespace enough
lab start n3
wait_for 90 nodes_are_ready
wait_for 60 members_are_healthy 3
all_run() { [[ $(instances web | jq '[.[] | select(.status.phase == "Running")] | length') == 3 ]]; }
wait_for 60 all_run
