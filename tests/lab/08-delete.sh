# A deleted workload leaves no trace
# shellcheck shell=bash
# The first workload also leaves what every workload shares.
run first --port 80
kat delete workload first --wait
trace >"$LAB_WORK/before"

run web --port 80 --replicas 2
status=$(instances web | jq -c '.[0].status') id=$(instances web | jq -r '.[0].metadata.name')
wait_for 10 answers "http://web.default.$DOMAIN/"
diff "$LAB_WORK/before" <(trace) >"$LAB_WORK/difference" && exit 1
contains "$(<"$LAB_WORK/difference")" "etc/containers/systemd/users/$(jq .uid <<<"$status")"
kat delete workload web --wait

equal 3 "$(kat get workloads web -o json >/dev/null 2>&1; echo $?)" "exit code for what is not there" || true
equal "[]" "$(instances web)" "instances"
no_trace "$status" "$id"
wait_for 10 not_resolved web
diff "$LAB_WORK/before" <(trace)

# The next workload gets another user: logind holds the last one's for a while longer.
run next --port 80
next=$(instances next | jq '.[0].status.uid')
[[ $next != "$(jq .uid <<<"$status")" ]] || { echo "uid $next is used again at once" >&2; exit 1; }
kat delete workload next --wait
diff "$LAB_WORK/before" <(trace)
