# A Job of twenty indexes goes on without a machine that loses power while it runs: each index succeeds once, and so does the run
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
# The programs wait for the gate, so that each machine has one that runs when the power goes.
run gate --port 80 --spec 'nodeSelector: {kat.dws.rip/nodeName: n1}'
gate=http://$(field gate .status.ip)
page "$gate/ill" >/dev/null
folder=$(workload many --restart 'condition: Never' --spec 'onNodeLoss: move' --spec 'onPartition: stop' \
    --container 'terminationGraceSeconds: 1' --container 'entrypoint: [/bin/busybox, sh, -c]' \
    --container 'command: ["until wget -q -T 2 -O /dev/null http://gate/healthz; do sleep 0.2; done; echo past the gate: $KAT_JOB_COMPLETION_INDEX"]')
sed -i 's/type: Service/type: Job/; /^  replicas:/d' "$LAB_WORK/workloads/many/workload.kat"
printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: {completions: 20, parallelism: 3, backoffLimit: 6}\n' \
    >"$LAB_WORK/workloads/many/job.kat"
n1 rm -rf "$folder"
lab copy "$LAB_WORK/workloads/many" n1:/root/workloads/
kat apply -f "$folder"
each_machine_runs_one() { equal '["n1","n2","n3"]' "$(machines_running many)" "machines that run an index"; }
wait_for 60 each_machine_runs_one

leader=$(leader_at n1)
lost=$([[ $leader == n3 ]] && echo n2 || echo n3)
index=$(instances many | jq --arg node "$lost" '.[] | select(.status.node == $node) | .status.slot')
began=$EPOCHREALTIME
lab kill "$lost"
page "$gate/well" >/dev/null
record() { kat get runs -o json | jq -ec '.items[] | select(.metadata.name == "many-1") | .status'; }
has_succeeded() { equal Succeeded "$(record | jq -r .phase)" "phase of the run"; }
# The machine is lost after 10 s, and the pause after a failed instance is 10 s.
wait_for 120 has_succeeded
echo "the run succeeded $(seconds_since "$began") s after the loss of power"
status=$(record)
equal 20 "$(jq .succeeded <<<"$status")" "indexes that succeeded"
equal "$(jq -nc '[range(20)]')" "$(jq -c '[.attempts[] | select(.end.succeeded) | .index] | sort' <<<"$status")" \
    "indexes of the instances that succeeded"
on_lost() { jq -c --arg node "$lost" --argjson index "$index" "[.attempts[] | select(.node == \$node)] | $1" <<<"$status"; }
equal '[[false,"Interrupted"]]' "$(on_lost 'map([.end.succeeded, .end.reason]) | unique')" "ends of the instances on the lost machine"
equal true "$(on_lost 'any(.index == $index)')" "whether the index that ran on the lost machine failed there"

# The machine is back: it starts nothing of the run, and the record stays.
lab start "$lost"
wait_for 60 nodes_are_ready
no_instance_is_left() { equal '[]' "$(instances many)" "instances of the run"; }
wait_for 60 no_instance_is_left
equal "$(jq -c .attempts <<<"$status")" "$(record | jq -c .attempts)" "instances in the record"
# By the journals of the other machines each program that was let through has ended once.
ended=$(for node in n1 n2 n3; do
    [[ $node == "$lost" ]] || on "$node" journalctl --boot --quiet --output=cat | sed -n 's/^past the gate: //p'
done | sort -n)
equal "$(seq 0 19)" "$ended" "indexes whose programs ended"
kat delete workload many --wait
