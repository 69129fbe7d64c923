# A machine's forged report hurts that machine alone: not the planning, the users or the names of the cluster
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
kat create namespace victim
apply_workload() { kat apply -f "$(workload "$1" --namespace victim --port 80)" --wait --timeout 30s; }
apply_workload before
name=before.victim.kat.cluster.local
address=$(n1 getent ahostsv4 "$name" | awk '{ print $1; exit }')
uid=$(kat get node n4 -o json | jq -r .metadata.uid)
on n4 systemctl stop kat-agent.service
# forge FILTER: sends a report of n4 with n4's certificate. The jq FILTER changes an honest report.
forge() {
    on n4 jq -nc --arg uid "$uid" '{nodeName: "n4", nodeUID: $uid, desiredRevision: 1, dataPath: 9, assignmentSchema: 9} | '"$1" >"$LAB_WORK/report.json"
    lab copy "$LAB_WORK/report.json" n4:/root/
    agent_call n4 POST /v1alpha1/nodes/n4/status /root/report.json | sed -n 1p
}
# The control: the leader accepts an honest report, so the following answers depend on the reports'
# content.
equal 204 "$(forge .)" "answer to an honest report"

equal 204 "$(forge '.madeVolumes = [range(40000) | "default/web/volume-\(.)-xxxxxxxxxxxxxxxxxxxxxxxxxxxx"]')" "answer to a forged report"
apply_workload freeze
equal 204 "$(forge '.userIndexes = [range(4094)]')" "answer to a forged report"
apply_workload indexes
kat delete workload indexes -n victim --wait --timeout 30s
equal 204 "$(forge '.dataPath = 0')" "answer to a forged report"
apply_workload names
equal "$address" "$(n1 getent ahostsv4 "$name" | awk '{ print $1; exit }')" "address of a service"
victim=$(kat get instances -n victim -o json | jq -r '[.items[] | select(.status.node != "n4")][0].metadata.name')
equal 204 "$(forge ".workloadInstances = [{instanceID: \"$victim\", phase: \"Failed\", reason: \"Forged\", message: \"forged\"}]")" "answer to a forged report"
apply_workload events
[[ $(kat get events -n victim -o json | jq '[.items[] | select(.reason == "Forged")] | length') == 0 ]]

on n4 systemctl start kat-agent.service
wait_for 40 nodes_are_ready
for workload in before freeze names events; do kat delete workload "$workload" -n victim --wait; done
kat delete namespace victim
