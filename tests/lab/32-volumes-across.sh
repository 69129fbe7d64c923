# An instance that writes data stays with its data: over a drain, the loss and return of its machine and a partition, without losing a row or running twice
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
folder=/var/lib/kat/volumes/default/db/data
# The program writes numbered rows, each synced to disk, and a line with its pid at each start.
write='echo "$$ began" >>/data/starts; n=$(wc -l </data/rows 2>/dev/null || echo 0); while n=$((n + 1)); do echo "$n" >>/data/rows; sync /data/rows; sleep PAUSE; done'
db_folder() {
    local pause=$1
    shift
    workload db --container 'entrypoint: [/bin/busybox, sh, -c]' --container "command: ['${write/PAUSE/$pause}']" \
        --container 'terminationGraceSeconds: 1' --container 'volumeMounts: [{name: data, mountPath: /data}]' \
        --spec 'volumes: [{name: data, simpleClusterStorage: {}}]' "$@"
}
rows() { on n3 cat "$folder/rows" | wc -l; }
# Each row is the previous row plus one, so there was one writer and no row is lost.
rows_are_whole() { on n3 awk '$1 != NR { print "row " NR " is " $1; exit 1 }' "$folder/rows"; }
has_more_rows_than() { (($(rows) > $1)); }
runs_only_on_n3() { equal '["n3"]' "$(machines_running db)" "machines" && equal 1 "$(instances db | jq length)" "instances"; }

kat label node n3 place=here
kat apply --wait -f "$(db_folder 0.2 --spec 'nodeSelector: {place: here}')"
wait_for 20 has_more_rows_than 3
# Without a node selector the instance stays on the machine of its data.
kat apply --wait -f "$(db_folder 0.2)"
kat label node n3 place-
runs_only_on_n3
instance=$(field db .metadata.name)

code=0
output=$(kat drain n3 --timeout 5s 2>&1) || code=$?
equal 5 "$code" "exit code of an unfinished drain"
contains "$output" "the data of its volumes lies on n3"
runs_only_on_n3
contains "$(kat why workload db)" "the data of its volumes lies on n3"
equal "node/n3 uncordoned" "$(kat uncordon n3)" "uncordon"

# The machine is lost: however long that takes, no instance starts elsewhere with an empty volume.
# The instance continues on its machine when that is back.
before=$(rows)
lab kill n3
is_lost() { kat get nodes n3 -o json | jq -e '.status.phase == "NotReady"'; }
wait_for 40 is_lost
reports_waiting_for_machine() { kat get workload db -o json | jq -e '.status.conditions[] | select(.message | contains("it has data of its own, and waits for its machine"))'; }
wait_for 20 reports_waiting_for_machine
equal 1 "$(instances db | jq length)" "instances while its machine is away"
for node in n1 n2; do refused on "$node" test -e "$folder"; done
contains "$(kat why workload db)" "it has data of its own, and waits for its machine"
lab start n3
wait_for 60 nodes_are_ready
wait_for 60 has_more_rows_than "$before"
wait_for 30 has_ready db 1
equal "$instance" "$(field db .metadata.name)" "instance after the loss of its machine"
runs_only_on_n3
rows_are_whole

# On a machine that is cut off, the instance continues to write and is not replaced.
before=$(rows)
lab cut n3
wait_for 40 is_lost
wait_for 20 has_more_rows_than $((before + 10))
equal 1 "$(instances db | jq length)" "instances during a cut"
lab heal n3
wait_for 60 nodes_are_ready
wait_for 30 has_ready db 1
equal "$instance" "$(field db .metadata.name)" "instance after a cut"
rows_are_whole

# A new version waits for the end of the instance on the machine that is cut off.
lab cut n3
wait_for 40 is_lost
kat apply -f "$(db_folder 0.1)"
before=$(rows)
wait_for 20 has_more_rows_than $((before + 10))
for node in n1 n2; do refused on "$node" test -e "$folder"; done
lab heal n3
wait_for 60 nodes_are_ready
replaced() { has_ready db 1 && differs "$instance" "$(field db .metadata.name)" "instance"; }
wait_for 60 replaced
runs_only_on_n3
rows_are_whole

# Replicas with data of their own have names that stay while their instances are replaced, and that other
# replicas find before any of them is healthy.
peers_folder() {
    workload peers --replicas 2 --port 8080 --health 'http: {path: /healthz, port: web}, periodSeconds: 1' --container 'volumeMounts: [{name: data, mountPath: /data}]' \
        --spec 'volumes: [{name: data, simpleClusterStorage: {}, perReplica: true, reclaim: Delete}]' "$@"
}
ip_of_slot() { instances peers | jq -er --argjson slot "$1" '.[] | select(.status.slot == $slot) | .status.ip'; }
answers_with_slot() {
    local ip
    ip=$(ip_of_slot "$1") && [[ $(n1 getent ahostsv4 "peers-$1.peers.default.$DOMAIN" | awk '{ print $1 }' | sort -u) == "$ip" ]]
}
kat apply --wait -f "$(peers_folder)"
for slot in 0 1; do wait_for 20 answers_with_slot "$slot"; done
contains "$(kat describe workload peers)" "peers-0.peers to peers-1.peers"
before=$(ip_of_slot 0)
# The new version is never healthy, so its instance of the first slot that is replaced has its name alone.
kat apply -f "$(peers_folder --env ILL=1)" >/dev/null
is_ill() { instances peers | jq -e 'any(.[]; .status.health == "unhealthy")'; }
wait_for 60 is_ill
ill=$(instances peers | jq -r '[.[] | select(.status.health == "unhealthy")][0].status.slot')
wait_for 20 answers_with_slot "$ill"
kat apply --wait --timeout 120s -f "$(peers_folder --env VERSION=2)"
for slot in 0 1; do wait_for 20 answers_with_slot "$slot"; done
differs "$before" "$(ip_of_slot 0)" "address of peers-0 after an update"
kat apply --wait -f "$(peers_folder --env VERSION=2 --replicas 1)"
wait_for 20 refused n1 getent ahostsv4 "peers-1.peers.default.$DOMAIN"
kat delete workload peers --wait
