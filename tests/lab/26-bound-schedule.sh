# A machine that is cut off runs the Job whose data it has by a timer of its own; afterwards each time has one run, and a run by hand has waited
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
kat label node n2 place=here
spec='{schedule: "* * * * *", catchUp: None, backoffLimit: 0, successfulHistory: 100, failedHistory: 100}'
folder=$(workload keep --restart 'condition: Never' --container 'entrypoint: [/bin/busybox, sh, -c]' \
    --container 'command: ["echo begin >>/data/runs; sleep 3"]' --spec 'nodeSelector: {place: here}' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --spec 'volumes: [{name: data, simpleClusterStorage: {}}]')
sed -i 's/type: Service/type: Job/; /^  replicas:/d' "$LAB_WORK/workloads/keep/workload.kat"
printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: %s\n' "$spec" >"$LAB_WORK/workloads/keep/job.kat"
n1 rm -rf "$folder"
lab copy "$LAB_WORK/workloads/keep" n1:/root/workloads/
kat apply -f "$folder"

runs_of() { kat get runs -o json | jq -c '[.items[] | select(.spec.workload == "keep")]'; }
ended() { runs_of | jq "[.[] | select(.status.phase == \"$1\")] | length"; }
has_ended() { (($(ended Succeeded) >= $1)); }
begun_on_n2() { on n2 sh -c 'grep -c begin /var/lib/kat/volumes/default/keep/data/runs'; }
has_begun() { (($(begun_on_n2) >= $1)); }

# The first run is the leader's, and makes the data; then the machine keeps the schedule.
wait_for 90 has_ended 1
kept() { contains "$(kat get jobs)" 'on n2'; }
wait_for 40 kept
wait_for 30 field_is keep .status.phase Scheduled
user=$(field keep .status.user)
timers() { as_on n2 "$user" systemctl --user --no-legend --no-pager list-timers; }
has_timer() { contains "$(timers)" kat-default-keep-; }
wait_for 20 has_timer
contains "$(on n2 find /run/systemd/user -name 'kat-default-keep-*.timer' -printf '%m %u %g')" "640 root $user"

# Cut off, it runs at the next time, also without its agent. A run by hand waits for the machine. None is active at the cut,
# since Forbid refuses one by hand then.
before=$(begun_on_n2)
wait_for 75 has_begun $((before + 1))
all_are_over() { equal 0 "$(ended Active)" "active runs"; }
has_records() { equal "$(begun_on_n2)" "$(runs_of | jq 'length')" "runs, of as many begins"; }
wait_for 30 has_records
wait_for 30 all_are_over
before=$(begun_on_n2)
lab cut n2
on n2 systemctl stop kat-agent
# Where n2 led, another machine has to lead first.
by_hand() { runs_of | jq -e 'any(.[]; .spec.cause == "Manual")' >/dev/null; }
asked() { by_hand || { kat job run keep >/dev/null && by_hand; }; }
wait_for 60 asked
wait_for 75 has_begun $((before + 1))
contains "$(timers)" kat-default-keep-
equal 0 "$(runs_of | jq '[.[] | select(.spec.cause == "Manual" and .status.started != "")] | length')" "runs by hand that have begun"
sleep 5
on n2 systemctl start kat-agent
lab heal n2

# The leader learns of the runs, and then begins the one by hand. No time has two runs, and each begin has its record,
# also where nothing began at a time before it: the machine decides that one when it gives the schedule back.
by_hand_is_over() { runs_of | jq -e '[.[] | select(.spec.cause == "Manual" and .status.phase == "Succeeded")] | length == 1' >/dev/null; }
wait_for 90 by_hand_is_over
kat job suspend keep
contains "$(kat get jobs)" suspended
wait_for 40 all_are_over
times=$(runs_of | jq -c '[.[].spec.scheduled | select(. != "")]')
equal "$(jq 'length' <<<"$times")" "$(jq 'unique | length' <<<"$times")" "different times among $times"
wait_for 60 has_records
recorded=$(runs_of | jq '[.[] | select(.spec.scheduled != "")] | length')
((recorded > before)) || equal "more than $before" "$recorded" "recorded runs by the schedule after the cut"
no_timer() { [[ ! $(on n2 find /run/systemd/user -name 'kat-default-keep-*.timer') ]]; }
wait_for 40 no_timer
kat delete workload keep
kat label node n2 place-
