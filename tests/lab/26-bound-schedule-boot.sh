# A machine that keeps a Job's schedule by itself is off at two times: with catchUp Last it makes up for the later one, once
# machines: 3
# by name
# limit: 1500
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
leader=$(leader_at n1)
worker=$([[ $leader == n3 ]] && echo n2 || echo n3)
kat label node "$worker" place=here
# A time is missed after 130 s: the next one must not have come by then.
each=180
spec='{schedule: "*/3 * * * *", catchUp: Last, backoffLimit: 1, successfulHistory: 100, failedHistory: 100}'
folder=$(workload late --restart 'condition: Never' --container 'entrypoint: [/bin/busybox, sh, -c]' \
    --container 'command: ["echo begin >>/data/runs; sleep 3"]' --spec 'nodeSelector: {place: here}' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --spec 'volumes: [{name: data, simpleClusterStorage: {}}]')
sed -i 's/type: Service/type: Job/; /^  replicas:/d' "$LAB_WORK/workloads/late/workload.kat"
printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: %s\n' "$spec" >"$LAB_WORK/workloads/late/job.kat"
n1 rm -rf "$folder"
lab copy "$LAB_WORK/workloads/late" n1:/root/workloads/
kat apply -f "$folder"

runs_of() { kat get runs -o json | jq -c '[.items[] | select(.spec.workload == "late")]'; }
ended() { runs_of | jq "[.[] | select(.status.phase == \"$1\")] | length"; }
has_ended() { (($(ended Succeeded) >= $1)); }
begun() { on "$worker" grep -c begin /var/lib/kat/volumes/default/late/data/runs; }
# of_time SECONDS: the runs of this scheduled time.
of_time() { runs_of | jq -ec --arg at "$(date --utc --date="@$1" +%FT%T)" '[.[] | select(.spec.scheduled | startswith($at))]'; }
is_past() { ((EPOCHSECONDS >= $1)); }

# The first run is the leader's, and makes the data; the next one is the machine's.
wait_for $((each + 60)) has_ended 1
kept() { contains "$(kat get jobs)" "on $worker"; }
wait_for 40 kept
wait_for $((each + 60)) has_ended $(($(ended Succeeded) + 1))
before=$(begun)
first=$(((EPOCHSECONDS / each + 1) * each))
second=$((first + each))
third=$((second + each))
lab kill "$worker"
wait_for $((second - EPOCHSECONDS + 30)) is_past $((second + 5))
booted=$EPOCHSECONDS
lab start "$worker"
wait_for 90 nodes_are_ready

# It waits until a time counts as missed.
has_made_up() { equal '["Succeeded"]' "$(of_time "$second" | jq -c 'map(.status.phase)')" "runs of the later time"; }
wait_for $((third - EPOCHSECONDS - 5)) has_made_up
began=$(date --date="$(of_time "$second" | jq -r '.[0].status.started')" +%s)
echo "the run began $((began - booted)) s after the boot began"
equal $((before + 1)) "$(begun)" "begins, of one after the boot"
equal '[]' "$(of_time "$first")" "runs of the earlier time"
contains "$(kat get jobs)" "on $worker"

# The schedule continues, and each begin has its record.
has_third() { equal '["Succeeded"]' "$(of_time "$third" | jq -c 'map(.status.phase)')" "runs of the next time"; }
wait_for $((third - EPOCHSECONDS + 60)) has_third
kat job suspend late
has_records() { equal "$(begun)" "$(runs_of | jq '[.[].status.attempts | length] | add')" "attempts in records, of as many begins"; }
wait_for 60 has_records
equal $((before + 2)) "$(begun)" "begins"
equal 1 "$(of_time "$second" | jq length)" "runs of the time that was made up for"
kat delete workload late
kat label node "$worker" place-
