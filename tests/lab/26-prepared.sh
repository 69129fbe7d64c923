# A database whose next version has a mistyped tag answers under load, shows the reason, and is replaced once the tag is right
# shellcheck shell=bash
db() {
    workload db --port 80 --spec 'volumes: [{name: data, simpleClusterStorage: {}}]' \
        --container 'volumeMounts: [{name: data, mountPath: /data}]' --container 'entrypoint: [/bin/busybox, sh, -c]' \
        --container 'command: ["echo start $V >>/data/starts && exec /bin/web"]' "$@"
}
starts_are() { equal "$1" "$(n1 cat /var/lib/kat/volumes/default/db/data/starts)" "starts"; }
kat apply -f "$(db --env V=1)" --wait
old=$(field db .metadata.name)

began=$SECONDS
start_load "$(service_address db)" 80 50
kat apply -f "$(db --env V=2 --image registry.lab:5000/test/none:1)"
condition_says() {
    contains "$(kat get workload db -o json | jq -r '.status.conditions[0] | "\(.reason): \(.message)"')" "$1"
}
wait_for 20 condition_says "ImageNotFound: db-"
equal '["Pulling","Running"]' "$(instances db | jq -c '[.[].status.phase] | sort')" "phases with a missing image"
equal "$old" "$(instances db | jq -r '.[] | select(.status.phase == "Running") | .metadata.name')" "the instance that runs"
contains "$(kat why workload db)" "the registry of its image registry.lab:5000/test/none:1 does not have it"
contains "$(kat get events)" ImageNotFound
no_request_lost $(((SECONDS - began) * 20))
starts_are "start 1"

kat apply -f "$(db --env V=2)" --wait
starts_are $'start 1\nstart 2'
wait_for 10 instance_is_gone db "$old"
wait_for 10 process_count_is 1
contains "$(kat get events)" "a newer version takes its place"
