# Under load from a machine and from a container, an update, scaling, a drain, a rollback and versions that fail lose no request
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
# files [OPTION...]: the folder of a version.
files() {
    workload web --port 80 --health 'http: {path: /healthz, port: web}, periodSeconds: 1' --drain 2 --env DRAIN_MS=1000 "$@"
}
step() { echo "$(date -u +%s.%3N) $*"; }
# stalled WORD: it says why, and those of before serve.
stalled() {
    local status
    status=$(kat get workload web -o json | jq .status)
    equal "Stalled 3 0" "$(jq -r '"\(.phase) \(.ready) \(.updated)"' <<<"$status")" "state of a version that stalls"
    contains "$(jq -r '.conditions[0].message' <<<"$status")" "$1"
}
# stalls WORD [OPTION...]: a version that does not come about.
stalls() {
    local word=$1 code=0 output
    shift
    output=$(kat apply --wait --timeout 90s -f "$(files --replicas 3 --spec 'updateStrategy: {progressDeadlineSeconds: 6}' "$@")" 2>&1) || code=$?
    equal 1 "$code" "exit code of an apply that stalls"
    contains "$output" "has stalled: ProgressDeadlineExceeded: no progress for 6 s"
    wait_for 30 stalled "$word"
}
kat apply --wait --timeout 60s -f "$(files --replicas 3 --env VERSION=1)"
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
run caller
caller=$(field caller .status)
caller_on=$(jq -r .node <<<"$caller")
# Another machine than the caller's is drained later.
drained=n2
[[ $caller_on != n2 ]] || drained=n3
in_caller() { as_on "$caller_on" "$(jq -r .user <<<"$caller")" podman exec "$(jq -r '.unit | rtrimstr(".service")' <<<"$caller")" "$@"; }

# Four loads, each 100 requests in a second: with a connection for each, and with ten connections that are kept.
declare -A loads=()
trap 'kill "${loads[@]}" 2>/dev/null || true; tail -n 12 "$LAB_WORK"/load-* >&2' EXIT
# start WHICH KEPT COMMAND...
start() {
    local which=$1 kept=$2
    shift 2
    "$@" load "$address" 80 100 150 /tmp/stop-load "$kept" >"$LAB_WORK/load-$which.json" 2>"$LAB_WORK/load-$which.log" &
    loads[$which]=$!
}
address=$(service_address web)
began=$SECONDS since=$(n1 date +@%s)
start machine 0 n1 /root/web
start machine-kept 10 n1 /root/web
start container 0 in_caller /bin/web
start container-kept 10 in_caller /bin/web

step "another version"
kat apply --wait --timeout 60s -f "$(files --replicas 3 --env VERSION=2)"
step "other numbers"
kat scale web --replicas 1 --wait
kat scale web --replicas 5 --wait
kat scale web --replicas 3 --wait
step "one that is never healthy"
stalls "http 503" --env VERSION=3 --env ILL=1
step "one that crashes"
stalls "CrashLoop" --env VERSION=4 --container 'entrypoint: ["/bin/sh", "-c"]' --container 'command: ["exit 7"]'
step "a rollback"
contains "$(kat rollback workload web --wait)" "workload/web rolled back"
equal "Running 3 3" "$(kat get workload web -o json | jq -r '.status | "\(.phase) \(.ready) \(.updated)"')" "state after the rollback"
contains "$(n1 curl --silent --fail --max-time 3 "http://$address/")" "version=2"
step "a drain"
kat drain "$drained" --timeout 60s
kat uncordon "$drained"
step "the end"

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

# The servers count the same: those that have ended said so, and those that run are asked, which is one more.
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
