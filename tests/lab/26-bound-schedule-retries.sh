# A machine that keeps a Job's schedule by itself tries a run again that failed: the record has both attempts
# shellcheck shell=bash
# The first attempt of each run leaves a file and fails, the second one removes it.
program='echo begin >>/data/runs; if [ -e /data/failed ]; then rm /data/failed; else : >/data/failed; exit 3; fi'
spec='{schedule: "* * * * *", catchUp: None, backoffLimit: 1, successfulHistory: 100, failedHistory: 100}'
folder=$(workload again --restart 'condition: Never' --container 'entrypoint: [/bin/busybox, sh, -c]' \
    --container "command: [\"$program\"]" \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --spec 'volumes: [{name: data, simpleClusterStorage: {}}]')
sed -i 's/type: Service/type: Job/; /^  replicas:/d' "$LAB_WORK/workloads/again/workload.kat"
printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: %s\n' "$spec" >"$LAB_WORK/workloads/again/job.kat"
n1 rm -rf "$folder"
lab copy "$LAB_WORK/workloads/again" n1:/root/workloads/
kat apply -f "$folder"

runs_of() { kat get runs -o json | jq -c '[.items[] | select(.spec.workload == "again")]'; }
ended() { runs_of | jq "[.[] | select(.status.phase == \"$1\")] | length"; }
has_ended() { (($(ended Succeeded) >= $1)); }
begun() { n1 grep -c begin /var/lib/kat/volumes/default/again/data/runs; }

# The first run is the leader's, and makes the data.
wait_for 110 has_ended 1
kept() { contains "$(kat get jobs)" 'on n1'; }
wait_for 40 kept

# What the gate wrote is the machine's alone.
gate() { n1 find /var/lib/kat/job-runs -type f -name 'again-*' -exec grep -hs "^$1 " {} +; }
tried_again() { gate again; }
wait_for 110 tried_again
scheduled=$(date --utc --date="@$(gate again | cut --delimiter=' ' --fields=2 | sed -n 1p)" +%FT%T)
of_time() { runs_of | jq -ec --arg at "$scheduled" '.[] | select(.spec.scheduled | startswith($at)) | .status'; }
has_succeeded() { equal Succeeded "$(of_time | jq -r .phase)" "phase of the run"; }
wait_for 30 has_succeeded
equal '[[false,3],[true,0]]' "$(of_time | jq -c '[.attempts[].end | [.succeeded, .exitCode]]')" "ends of its attempts"
equal '[1,1,["n1"]]' "$(of_time | jq -c '[.failed, .succeeded, ([.attempts[].node] | unique)]')" "failures, successes and machines"
times() { gate begin | cut --delimiter=' ' --fields=2; }
equal "$(times | sort -u)" "$(times | sort)" "times that began"

# Each begin is an attempt of a record.
kat job suspend again
all_are_over() { equal 0 "$(ended Active)" "active runs"; }
wait_for 60 all_are_over
has_records() { equal "$(begun)" "$(runs_of | jq '[.[].status.attempts | length] | add')" "attempts in records, of as many begins"; }
wait_for 60 has_records
kat delete workload again
