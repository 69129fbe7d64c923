# A deletion continues after the agent was killed during it, and leaves nothing behind
# shellcheck shell=bash
run first --port 80
kat delete workload first --wait
stable_inventory >"$LAB_WORK/before"
# The program ignores SIGTERM, so its stop takes the whole grace period.
kat apply --wait -f "$(workload slow --container 'entrypoint: ["/bin/sh", "-c"]' \
    --container "command: [\"trap '' TERM; while :; do sleep 1; done\"]" --container 'terminationGraceSeconds: 10')"
status=$(field slow .status) id=$(field slow .metadata.name)
kill_agent() { n1 systemctl kill --signal=KILL kat-agent.service; }
agent_answers() { is_active kat-agent.service && kat get nodes >/dev/null; }
kat delete workload slow
wait_for 20 field_is slow .status.phase Stopping
kill_agent
wait_for 30 agent_answers
# The agent is killed again when the unit's files are gone and the user still exists.
unit_files_are_gone() { absent n1 "/etc/containers/systemd/users/$(jq .uid <<<"$status")/$(jq -r '.unit | rtrimstr(".service")' <<<"$status").container"; }
wait_for 40 unit_files_are_gone
kill_agent
workload_is_gone() { agent_answers && [[ $(kat get workloads -o json | jq '.items | length') == 0 ]]; }
wait_for 60 workload_is_gone
equal "[]" "$(instances slow)" "instances"
no_remains "$status" "$id"
wait_for 10 not_resolved slow
diff "$LAB_WORK/before" <(stable_inventory)
# The deleted workload's index was the last one given out: the next workload gets the following
# index.
run web --port 80
equal "$(($(jq .uid <<<"$status") + 1))" "$(field web .status.uid)" "uid"
