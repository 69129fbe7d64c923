# A machine that keeps a Job's schedule by itself boots more than two minutes after a time that it missed: catchUp Last makes up for that time, once
# machines: 3
# by name
# limit: 2100
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
leader=$(leader_at n1)
worker=$([[ $leader == n3 ]] && echo n2 || echo n3)
kat label node "$worker" place=here
# More than two minutes, and what a time needs to count as missed: the timer of the boot has that time no more, so
# that the agent begins it by the table from before the boot.
off=150
# The machine boots and makes up for that time before the next one comes.
each=300
spec='{schedule: "*/5 * * * *", catchUp: Last, backoffLimit: 1, successfulHistory: 100, failedHistory: 100}'
folder=$(workload later --restart 'condition: Never' --container 'entrypoint: [/bin/busybox, sh, -c]' \
    --container 'command: ["echo begin >>/data/runs; sleep 3"]' --spec 'nodeSelector: {place: here}' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --spec 'volumes: [{name: data, simpleClusterStorage: {}}]')
sed -i 's/type: Service/type: Job/; /^  replicas:/d' "$LAB_WORK/workloads/later/workload.kat"
printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: %s\n' "$spec" >"$LAB_WORK/workloads/later/job.kat"
n1 rm -rf "$folder"
lab copy "$LAB_WORK/workloads/later" n1:/root/workloads/
kat apply -f "$folder"

runs_of() { kat get runs -o json | jq -c '[.items[] | select(.spec.workload == "later")]'; }
ended() { runs_of | jq "[.[] | select(.status.phase == \"$1\")] | length"; }
has_ended() { (($(ended Succeeded) >= $1)); }
begun() { on "$worker" grep -c begin /var/lib/kat/volumes/default/later/data/runs; }
# of_time SECONDS: the runs of this scheduled time.
of_time() { runs_of | jq -ec --arg at "$(date --utc --date="@$1" +%FT%T)" '[.[] | select(.spec.scheduled | startswith($at))]'; }
is_past() { ((EPOCHSECONDS >= $1)); }

# The first run is the leader's, and makes the data; the next one is the machine's.
wait_for $((each + 60)) has_ended 1
kept() { contains "$(kat get jobs)" "on $worker"; }
wait_for 40 kept
wait_for $((each + 60)) has_ended $(($(ended Succeeded) + 1))
before=$(begun)
missed=$(((EPOCHSECONDS / each + 1) * each))
next=$((missed + each))
lab kill "$worker"
wait_for $((missed + off - EPOCHSECONDS + 30)) is_past $((missed + off))
# No other machine has run it.
equal '[]' "$(of_time "$missed")" "runs of the missed time before the boot"
booted=$EPOCHSECONDS
lab start "$worker"
wait_for 90 nodes_are_ready

has_made_up() { equal '["Succeeded"]' "$(of_time "$missed" | jq -c 'map(.status.phase)')" "runs of the missed time"; }
wait_for $((next - EPOCHSECONDS - 5)) has_made_up
began=$(date --date="$(of_time "$missed" | jq -r '.[0].status.started')" +%s)
echo "the run began $((began - booted)) s after the boot began, $((began - missed)) s after its time"
((began >= booted))
equal $((before + 1)) "$(begun)" "begins, of one after the boot"
contains "$(kat get jobs)" "on $worker"

# The schedule continues, and each begin has its record.
has_next() { equal '["Succeeded"]' "$(of_time "$next" | jq -c 'map(.status.phase)')" "runs of the next time"; }
wait_for $((next - EPOCHSECONDS + 60)) has_next
kat job suspend later
has_records() { equal "$(begun)" "$(runs_of | jq '[.[].status.attempts | length] | add')" "attempts in records, of as many begins"; }
wait_for 60 has_records
equal $((before + 2)) "$(begun)" "begins"
equal 1 "$(of_time "$missed" | jq length)" "runs of the missed time"
kat delete workload later
kat label node "$worker" place-
