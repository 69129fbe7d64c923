# Under load from a machine and from a container, an update, scaling, a drain, a rollback and versions that fail lose no request
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
# web_folder [OPTION...]: the folder of a version.
web_folder() {
    workload web --port 80 --health 'http: {path: /healthz, port: web}, periodSeconds: 1' --drain 2 --env DRAIN_MS=1000 "$@"
}
log_step() { echo "$(date -u +%s.%3N) $*"; }
# is_stalled WORD: whether the status is Stalled with WORD as its reason, and the old instances
# serve.
is_stalled() {
    local status
    status=$(kat get workload web -o json | jq -e .status) || return 1
    equal "Stalled 3 0" "$(jq -r '"\(.phase) \(.ready) \(.updated)"' <<<"$status")" "state of a stalled version" &&
        contains "$(jq -r '.conditions[0].message' <<<"$status")" "$1"
}
# apply_stalls WORD [OPTION...]: applies a version that does not become healthy.
apply_stalls() {
    local word=$1 code=0 output
    shift
    output=$(kat apply --wait --timeout 90s -f "$(web_folder --replicas 3 --spec 'updateStrategy: {progressDeadlineSeconds: 6}' "$@")" 2>&1) || code=$?
    equal 1 "$code" "exit code of an apply that stalls"
    contains "$output" "has stalled: ProgressDeadlineExceeded: no progress for 6 s"
    wait_for 30 is_stalled "$word"
}
kat apply --wait --timeout 60s -f "$(web_folder --replicas 3 --env VERSION=1)"
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
run caller
caller=$(field caller .status)
caller_on=$(jq -r .node <<<"$caller")
# The test later drains another machine than the caller's.
drained=n2
[[ $caller_on != n2 ]] || drained=n3
in_caller() { as_on "$caller_on" "$(jq -r .user <<<"$caller")" podman exec "$(jq -r '.unit | rtrimstr(".service")' <<<"$caller")" "$@"; }

# Four loads of 100 requests a second: two open a connection for each request, two keep ten
# connections.
declare -A loads=()
trap 'kill "${loads[@]}" 2>/dev/null || true; tail -n 12 "$LAB_WORK"/load-* >&2' EXIT
# start_load_from NAME KEPT_CONNECTIONS COMMAND...
start_load_from() {
    local which=$1 kept=$2
    shift 2
    "$@" load "$address" 80 100 150 /tmp/stop-load "$kept" >"$LAB_WORK/load-$which.json" 2>"$LAB_WORK/load-$which.log" &
    loads[$which]=$!
}
address=$(service_address web)
began=$SECONDS since=$(n1 date +@%s)
start_load_from machine 0 n1 /root/web
start_load_from machine-kept 10 n1 /root/web
start_load_from container 0 in_caller /bin/web
start_load_from container-kept 10 in_caller /bin/web

log_step "another version"
kat apply --wait --timeout 60s -f "$(web_folder --replicas 3 --env VERSION=2)"
log_step "other numbers of replicas"
kat scale web --replicas 1 --wait
kat scale web --replicas 5 --wait
kat scale web --replicas 3 --wait
log_step "a version that is never healthy"
apply_stalls "http 503" --env VERSION=3 --env ILL=1
log_step "a version that crashes"
apply_stalls "CrashLoop" --env VERSION=4 --container 'entrypoint: ["/bin/sh", "-c"]' --container 'command: ["exit 7"]'
log_step "a rollback"
contains "$(kat rollback workload web --wait)" "workload/web rolled back"
equal "Running 3 3" "$(kat get workload web -o json | jq -r '.status | "\(.phase) \(.ready) \(.updated)"')" "state after the rollback"
contains "$(n1 curl --silent --fail --max-time 3 "http://$address/")" "version=2"
log_step "a drain"
kat drain "$drained" --timeout 60s
kat uncordon "$drained"
log_step "the end"

least=$(((SECONDS - began) * 80))
n1 sh -c "echo $least >/tmp/stop-load"
in_caller sh -c "echo $least >/tmp/stop-load"
answered=0
for which in "${!loads[@]}"; do
    code=0
    wait "${loads[$which]}" || code=$?
    unset "loads[$which]"
    echo "$which: exit code $code, $(cat "$LAB_WORK/load-$which.json")"
    jq -se --argjson least "$least" 'length == 1 and (.[0] | .failed == 0 and .ok == .sent and .sent >= $least)' \
        "$LAB_WORK/load-$which.json" >/dev/null
    answered=$((answered + $(jq .ok "$LAB_WORK/load-$which.json")))
done
n1 rm /tmp/stop-load

# The servers count the same requests: those that have ended logged their number, and those that run
# are asked, which adds one request.
served=-1
while read -r count; do served=$((served + count)); done < <(
    for node in n1 n2 n3; do
        on "$node" journalctl --since "$since" --output cat --grep '^answered [0-9]+ requests$' | awk '{ print $2 }' || true
    done
    for ip in $(instances web | jq -r '.[].status.ip'); do
        n1 curl --silent --fail --max-time 3 "http://$ip/" | sed 's/.*requests=\([0-9]*\)$/\1\n-1/'
    done
)
equal "$answered" "$served" "requests that the servers have answered"
