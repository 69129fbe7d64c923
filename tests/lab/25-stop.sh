# A stopped workload keeps its data, address and secret, is well as Stopped, is none to roll back to, and starts with its replicas
# shellcheck shell=bash
state() { kat get workload "$1" -o json | jq -r '.status | "\(.phase) \(.replicas) \(.ready)"'; }
lab exec n1 -- katcall secret set db --from-file PASSWORD=- <<<first
run db --port 80 --spec 'volumes: [{name: data, simpleClusterStorage: {}}]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --container 'entrypoint: [/bin/busybox, sh, -c]' \
    --container 'command: ["echo started >>/data/starts && exec /bin/web"]'
run web --port 80 --replicas 2 --env V=1
run web --port 80 --replicas 2 --env V=2
folder=/var/lib/kat/volumes/default/db/data
address=$(service_address web)
wait_for 30 kat status

contains "$(kat stop web db --wait)" "workload/web stopping, as generation 3"
equal "Stopped 0 0" "$(state web)" "state of a stopped workload"
equal "[]" "$(instances web)" "instances of a stopped workload"
wait_for 30 process_count_is 0
# The cluster is well, and each command says who stopped it.
output=$(kat status)
contains "$output" "workload default/web is Stopped"
contains "$output" "stopped by"
contains "$(kat get workloads)" Stopped
contains "$(kat why workload web)" "katcall start default/web"
# Data, address and secret stay.
equal started "$(n1 cat "$folder/starts")" "data of a stopped workload"
equal "$address" "$(service_address web)" "service address of a stopped workload"
contains "$(kat get secrets)" db
# Twice does nothing, and nothing is restarted.
contains "$(kat stop web)" "unchanged: it has 0 replicas already"
refused kat restart web
# It stays stopped over a restart of the agent and a boot.
lab reboot n1
wait_for 60 node_is_ready
wait_for 30 kat status
equal "Stopped 0 0" "$(state web)" "state after a boot"

contains "$(kat start web --wait)" "workload/web starting, as generation 4"
equal "Running 2 2" "$(state web)" "state after the start"
contains "$(kat start web)" "unchanged: it is not stopped"
kat start db --wait
equal 2 "$(n1 cat "$folder/starts" | wc -l)" "starts of the program with data"
# A rollback without a number passes over the stop, to the version before.
kat rollback web --wait
equal "Running 2 2" "$(state web)" "state after the rollback"
history=$(kat history web)
contains "$history" stopped
contains "$history" "started with 2"
contains "$history" "rolled back to 1"
# An apply of the folder overrides a stop, and so does a number.
kat stop web --wait
run web --port 80 --replicas 1 --env V=1
equal "Running 1 1" "$(state web)" "state after an apply"
kat stop web --wait
kat scale web --replicas 2 --wait
equal "Running 2 2" "$(state web)" "state after a scale"
contains "$(kat get events)" WorkloadStopped
