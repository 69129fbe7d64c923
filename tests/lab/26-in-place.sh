# Versions replace each other in place, one by one and all at once, wait while paused, and are rolled back when they stall
# shellcheck shell=bash
generations() { instances web | jq -rc '[.[].status.generation] | unique'; }
paused() { equal "Paused" "$(kat get workload web -o json | jq -r .status.phase)" phase; }
in_place='updateStrategy: {rolling: {maxSurge: 0}}'
run web --port 80 --replicas 2 --env V=1 --spec "$in_place"
equal "workload/web paused; \`katcall rollout resume\` continues it" "$(kat rollout pause web)" "pause"
kat apply -f "$(workload web --port 80 --replicas 2 --env V=2 --spec "$in_place")"
wait_for 30 paused
equal '[1]' "$(generations)" "generations while the rollout is paused"
contains "$(kat rollout status web 2>&1)" "Paused: the rollout is paused: 0 of 2"
kat rollout resume web --wait
equal '[2]' "$(generations)" "generations after the rollout is resumed"
wait_for 30 process_count_is 2

run web --port 80 --replicas 2 --env V=3 --spec 'updateStrategy: {type: Simultaneous}'
equal '[3]' "$(generations)" "generations after a simultaneous update"
# An instance without a health check counts as good after running for 3 s.
last_good_is() { equal "$1" "$(kat get workload web -o json | jq .status.lastGoodGeneration)" "the last good generation"; }
wait_for 30 last_good_is 3
code=0
output=$(kat apply --wait --timeout 90s -f "$(workload web --port 80 --replicas 2 --env V=4 \
    --container 'entrypoint: ["/bin/sh", "-c"]' --container 'command: ["exit 7"]' \
    --spec 'updateStrategy: {progressDeadlineSeconds: 4, autoRollback: true}')" 2>&1) || code=$?
equal 1 "$code" "exit code of an apply that is rolled back"
contains "$output" "generation 4 made no progress"
wait_for 60 has_ready web 2
contains "$(kat history web)" "went back to 3"
contains "$(kat get events)" RolledBack
# The rollback keeps the instances that still run.
equal '[3]' "$(generations)" "generations after the automatic rollback"
