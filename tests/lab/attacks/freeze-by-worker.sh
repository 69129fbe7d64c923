# A machine's forged report hurts that machine alone: not the planning, the users or the names of the cluster
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
kat create namespace victim
serve() { kat apply -f "$(workload "$1" --namespace victim --port 80)" --wait --timeout 30s; }
serve before
name=before.victim.kat.cluster.local
address=$(n1 getent ahostsv4 "$name" | awk '{ print $1; exit }')
uid=$(kat get node n4 -o json | jq -r .metadata.uid)
on n4 systemctl stop kat-agent.service
# forge FILTER: a report of n4, made from an honest one by jq, sent with the certificate of n4.
forge() {
    on n4 jq -nc --arg uid "$uid" '{nodeName: "n4", nodeUID: $uid, desiredRevision: 1, dataPath: 9, assignmentSchema: 9} | '"$1" >"$LAB_WORK/report.json"
    lab copy "$LAB_WORK/report.json" n4:/root/
    agent_call n4 POST /v1alpha1/nodes/n4/status /root/report.json | sed -n 1p
}
# The control: an honest report is taken, so that what follows is decided by what it says.
equal 204 "$(forge .)" "answer to an honest report"

equal 204 "$(forge '.madeVolumes = [range(40000) | "default/web/volume-\(.)-xxxxxxxxxxxxxxxxxxxxxxxxxxxx"]')" "answer to a forged report"
serve freeze
equal 204 "$(forge '.userIndexes = [range(4094)]')" "answer to a forged report"
serve indexes
kat delete workload indexes -n victim --wait --timeout 30s
equal 204 "$(forge '.dataPath = 0')" "answer to a forged report"
serve names
equal "$address" "$(n1 getent ahostsv4 "$name" | awk '{ print $1; exit }')" "address of a service"
victim=$(kat get instances -n victim -o json | jq -r '[.items[] | select(.status.node != "n4")][0].metadata.name')
equal 204 "$(forge ".workloadInstances = [{instanceID: \"$victim\", phase: \"Failed\", reason: \"Forged\", message: \"forged\"}]")" "answer to a forged report"
serve events
[[ $(kat get events -n victim -o json | jq '[.items[] | select(.reason == "Forged")] | length') == 0 ]]

on n4 systemctl start kat-agent.service
wait_for 40 nodes_are_ready
for workload in before freeze names events; do kat delete workload "$workload" -n victim --wait; done
kat delete namespace victim
