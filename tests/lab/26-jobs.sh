# Jobs: a run by hand with its exit code and output, a parallel one on two machines, a schedule over a change of the leader, a deadline, a backoff limit, a run on each machine, runs that overlap and a power cut
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3

# job NAME SPEC [OPTION...]: writes a Job with this spec of job.kat, and prints its folder on n1.
job() {
    local name=$1 spec=$2 folder
    shift 2
    folder=$(workload "$name" --restart 'condition: Never' --container 'entrypoint: [/bin/busybox, sh, -c]' "$@")
    sed -i 's/type: Service/type: Job/; /^  replicas:/d' "$LAB_WORK/workloads/$name/workload.kat"
    printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: %s\n' "$spec" >"$LAB_WORK/workloads/$name/job.kat"
    n1 rm -rf "$folder"
    lab copy "$LAB_WORK/workloads/$name" n1:/root/workloads/
    echo "$folder"
}
runs_of() { kat get runs -o json | jq -c --arg job "$1" '[.items[] | select(.spec.workload == $job)]'; }
run_is() { equal "$2" "$(runs_of "${1%-*}" | jq -r --arg name "$1" '.[] | select(.metadata.name == $name) | .status.phase')" "phase of run $1"; }

# Without a schedule it runs once, and its files again when they change.
kat apply -f "$(job once '{}' --container 'command: ["echo word of once"]')" --wait
run_is once-1 Succeeded
contains "$(kat logs run/once-1)" "word of once"
contains "$(kat get jobs)" "once-1 Succeeded"
kat apply -f "$(job once '{backoffLimit: 0}' --container 'command: ["exit 3"]')"
wait_for 60 run_is once-2 Failed
contains "$(kat why workload once)" "more instances of the run failed than backoffLimit allows"

# By hand, with its output and its exit code, and with arguments of its own.
output=$(kat job run once --wait) && code=0 || code=$?
equal 3 "$code" "exit code of a run, which printed $output"
kat apply -f "$(job echo '{}' --container 'command: ["echo it is $1", sh]' --container 'args: [nothing]')" --wait
output=$(kat job run echo --wait -- 'asked for')
contains "$output" "it is asked for"
# The image's program asks nobody for a second, and prints counts.
output=$(kat run "$WEB_IMAGE" --name line --job --wait --timeout 60s -- load 127.0.0.1 9 1 1)
contains "$output" '"sent"'

# A parallel run has each index once, on more than one machine.
kat apply -f "$(job many '{completions: 6, parallelism: 3}' --container 'command: ["echo index $KAT_JOB_COMPLETION_INDEX; sleep 2"]')"
wait_for 120 run_is many-1 Succeeded
for index in 0 1 2 3 4 5; do contains "$(kat logs run/many-1)" "index $index"; done
machines=$(runs_of many | jq '[.[0].status.attempts[].node] | unique | length')
((machines > 1))

# A deadline ends whatever its program does.
kat apply -f "$(job slow '{activeDeadlineSeconds: 10}' --container 'command: ["sleep 1000"]')"
wait_for 90 run_is slow-1 Failed
contains "$(kat get runs)" DeadlineExceeded

# A schedule each minute: one run for each time, over a change of the leader.
kat apply -f "$(job tick '{schedule: "* * * * *", successfulHistory: 100}' --container 'command: ["echo tick"]')"
has_ticked() { (($(runs_of tick | jq 'length') >= $1)); }
wait_for 90 has_ticked 1
leader=$(leader_at n1)
on "$leader" systemctl restart kat-agent
wait_for 120 has_ticked 2
times=$(runs_of tick | jq -c '[.[].spec.scheduled]')
equal "$(jq 'length' <<<"$times")" "$(jq 'unique | length' <<<"$times")" "different times among $times"
kat job suspend tick
contains "$(kat get jobs)" suspended

# One instance on each machine, with a volume of its own; the second machine fails once and has another one.
kat apply -f "$(job each '{completions: PerNode, parallelism: 3, backoffLimit: 1}' \
    --container 'command: ["if [ $KAT_JOB_COMPLETION_INDEX = 1 ] && [ ! -e /data/failed ]; then echo >/data/failed; exit 3; fi; echo done by $KAT_JOB_COMPLETION_INDEX"]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --spec 'volumes: [{name: data, simpleClusterStorage: {}}]')"
wait_for 120 run_is each-1 Succeeded
equal '["n1","n2","n2","n3"]' "$(runs_of each | jq -c '[.[0].status.attempts[].node] | sort')" "machines of the instances"
equal '[0,1,0]' "$(runs_of each | jq -c '[.[0].status.machines[].failures]')" "failures of each machine"
for index in 0 1 2; do contains "$(kat logs run/each-1)" "done by $index"; done
equal "3 machines succeeded" "$(runs_of each | jq -r '.[0].status.message')" "message of the run"

# Under Allow runs overlap.
kat apply -f "$(job over '{schedule: "@yearly", concurrencyPolicy: Allow}' --container 'command: ["sleep 1000"]')"
for _ in 1 2 3; do kat job run over >/dev/null; done
overlap() { equal 3 "$(instances over | jq '[.[] | select(.status.phase == "Running")] | length')" "runs that overlap"; }
wait_for 60 overlap
kat job cancel over
wait_for 60 run_is over-3 Cancelled

# A power cut is a failed instance, which is not started again.
kat apply -f "$(job cut '{backoffLimit: 0}' --container 'command: ["echo began >>/data/begins; sleep 1000"]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --spec 'volumes: [{name: data, simpleClusterStorage: {}}]')"
runs_on() { runs_of cut | jq -er '.[0].status.attempts[0].node' && field_is cut .status.phase Running; }
wait_for 60 runs_on
node=$(runs_of cut | jq -r '.[0].status.attempts[0].node')
if [[ $node == n1 ]]; then lab reboot n1; else lab kill "$node" && lab start "$node"; fi
wait_for 120 nodes_are_ready
wait_for 90 run_is cut-1 Failed
equal 1 "$(on "$node" sh -c 'wc -l </var/lib/kat/volumes/default/cut/data/begins')" "starts of the program"
for name in once echo line many slow tick each over cut; do kat delete workload "$name"; done
