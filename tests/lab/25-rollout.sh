# A rolling update, a version that stalls, a rollback, a restart and scaling lose no request
# shellcheck shell=bash
workload_state() { kat get workload web -o json | jq -r '.status | "\(.phase) \(.ready) \(.updated)"'; }
images() { instances web | jq -rc '[.[].status.image | split("/") | last] | unique'; }
run web --port 80 --replicas 2 --env V=1
before=$(instances web | jq -c '[.[].metadata.name] | sort')
began=$SECONDS
start_load "web.default.$DOMAIN@$(kat get nodes n1 -o json | jq -r .status.overlayAddress)" 80 50
run web --port 80 --replicas 2 --env V=2
equal "Running 2 2" "$(workload_state)" "state after the update"
equal 0 "$(instances web | jq --argjson before "$before" '[.[].metadata.name | select(IN($before[]))] | length')" "instances of the first version that still exist"

# An image that does not exist and a program that ends at once each stall the rollout with a reason,
# while the old instances serve.
code=0
output=$(kat apply --wait --timeout 90s -f "$(workload web --port 80 --replicas 2 --image registry.lab:5000/test/none:1 \
    --spec 'updateStrategy: {progressDeadlineSeconds: 4}')" 2>&1) || code=$?
equal 1 "$code" "exit code of an apply that waits for a person, or has stalled"
contains "$output" ImageNotFound
condition_says() { contains "$(kat get workload web -o json | jq -r '.status.conditions[0].message')" "$1"; }
# A new leader lets nothing stall for one node-loss timeout.
wait_for 90 condition_says "no progress for 4 s: ImageNotFound: web-"
equal "Stalled 2 0" "$(workload_state)" "state with an image that does not exist"
code=0
output=$(kat apply --wait --timeout 90s -f "$(workload web --port 80 --replicas 2 --env V=3 \
    --container 'entrypoint: ["/bin/sh", "-c"]' --container 'command: ["exit 7"]' \
    --spec 'updateStrategy: {progressDeadlineSeconds: 4}')" 2>&1) || code=$?
equal 1 "$code" "exit code of an apply that stalls"
contains "$output" "has stalled"
# A program that ends at once counts as updated only for the moment that it runs.
is_stalled() { equal "Stalled 2 0" "$(workload_state)" "state with a program that ends"; }
wait_for 30 is_stalled
code=0
output=$(kat rollout status web 2>&1) || code=$?
equal 1 "$code" "exit code of rollout status while stalled"
contains "$output" "workload/web generation 4: Stalled: no progress for 4 s"
contains "$output" "katcall rollback workload default/web"

contains "$(kat rollback workload default/web --wait)" "workload/web rolled back, as generation 5"
equal "Running 2 2" "$(workload_state)" "state after the rollback"
equal '["web:1"]' "$(images)" "images after the rollback"
history=$(kat history workload web)
contains "$history" "rolled back to 2"
contains "$history" "5 (current)"
code=0
output=$(kat rollback workload web --to 9 2>&1) || code=$?
equal "3 error: no generation 9: kept are 1 to 5" "$code $output" "rollback to a generation that does not exist"

kat restart web --wait
kat scale web --replicas 1 --wait
equal "Running 1 1" "$(workload_state)" "state after scaling down"
kat scale web --replicas 3 --wait
contains "$(kat get events)" RolloutCompleted
no_request_lost $(((SECONDS - began) * 20))
wait_for 30 process_count_is 3
