# Each machine keeps the schedule of a Job with one instance on each. One that is cut off runs on, and nothing waits for it; its parts join the records of the others
# machines: 3
# by name
# limit: 900
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
spec='{schedule: "* * * * *", completions: PerNode, parallelism: 3, catchUp: None, backoffLimit: 0, successfulHistory: 100, failedHistory: 100}'
folder=$(workload each --restart 'condition: Never' --container 'entrypoint: [/bin/busybox, sh, -c]' \
    --container 'command: ["echo begin >>/data/runs; sleep 2"]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --spec 'volumes: [{name: data, simpleClusterStorage: {}}]')
sed -i 's/type: Service/type: Job/; /^  replicas:/d' "$LAB_WORK/workloads/each/workload.kat"
printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: %s\n' "$spec" >"$LAB_WORK/workloads/each/job.kat"
n1 rm -rf "$folder"
lab copy "$LAB_WORK/workloads/each" n1:/root/workloads/
kat apply -f "$folder"

runs_of() { kat get runs -o json | jq -c '[.items[] | select(.spec.workload == "each")]'; }
begun_on() { on "$1" sh -c 'cat /var/lib/kat/volumes/default/each/data.*/runs 2>/dev/null | grep -c begin || :'; }
has_begun() { (($(begun_on "$1") >= $2)); }

# Each machine has the schedule before the first run, as a timer of the workload's user.
kept() { equal '["n1","n2","n3"]' "$(kat get jobs -o json | jq -c '.items[0].status.job.machines')" "machines that keep the schedule"; }
wait_for 40 kept
user=$(instances each | jq -er 'map(.status.user) | unique | .[0]')
has_timer() { contains "$(as_on "$1" "$user" systemctl --user --no-legend --no-pager list-timers)" kat-default-each-; }
for node in n1 n2 n3; do wait_for 60 has_timer "$node"; done

# Cut off, the third machine runs at the next time; a run by hand on the others does not wait for it.
before=$(begun_on n3)
lab cut n3
wait_for 75 has_begun n3 $((before + 1))
by_hand() { runs_of | jq -e 'any(.[]; .spec.cause == "Manual" and .status.phase == "Succeeded")' >/dev/null; }
is_asked() { runs_of | jq -e 'any(.[]; .spec.cause == "Manual")' >/dev/null; }
asked() { is_asked || { kat job run each >/dev/null && is_asked; }; }
wait_for 60 asked
wait_for 60 by_hand
equal '["n1","n2"]' "$(runs_of | jq -c '[.[] | select(.spec.cause == "Manual")][0].status.machines | [.[].node] | sort')" "machines of the run by hand"
lab heal n3

# Each begin is a part of a record, no time has two records of machines, and no machine has two parts of one.
all_begun() { echo $(($(begun_on n1) + $(begun_on n2) + $(begun_on n3))); }
parts() { runs_of | jq '[.[].status.machines | length] | add // 0'; }
has_parts() { equal "$(all_begun)" "$(parts)" "parts, of as many begins"; }
wait_for 120 has_parts
runs=$(runs_of)
times=$(jq -c '[.[] | select(any(.status.machines[]; has("phase"))) | .spec.scheduled]' <<<"$runs")
equal "$(jq 'length' <<<"$times")" "$(jq 'unique | length' <<<"$times")" "different times among $times"
equal 0 "$(jq '[.[] | [.status.machines[].node] | select(length != (unique | length))] | length' <<<"$runs")" "runs with two parts of a machine"

# A suspension takes the timers away.
kat job suspend each
no_timer() { [[ ! $(on "$1" find /run/systemd/user -name 'kat-default-each-*.timer') ]]; }
for node in n1 n2 n3; do wait_for 60 no_timer "$node"; done
kat delete workload each
