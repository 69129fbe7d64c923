# MaxCount restarts as often as it was told, and then gives up
# shellcheck shell=bash
kat apply -f "$(workload few --restart 'condition: MaxCount, maxRestarts: 2, resetSeconds: 600' \
    --container 'entrypoint: ["/bin/sh", "-c"]' --container 'command: ["echo one more run; exit 4"]')"
wait_for 60 is few .status.phase Failed
status=$(field few .status)
equal "2 4" "$(jq -r '"\(.restarts) \(.exitCode)"' <<<"$status")" "restarts and exit code"
equal 3 "$(kat logs few | grep -c '^one more run$')" "runs"
# It stays so.
n1 systemctl restart kat-agent.service
wait_for 30 node_is_ready
wait_for 30 is few .status.phase Failed
equal 3 "$(kat logs few | grep -c '^one more run$')" "runs after a restart of the agent"
# Ending well is no failure.
run fine --port 80 --restart 'condition: MaxCount, maxRestarts: 1'
equal 0 "$(field fine .status.restarts)" "restarts of what runs"
