# With MaxCount a program is restarted as often as configured, and then no more
# shellcheck shell=bash
kat apply -f "$(workload few --restart 'condition: MaxCount, maxRestarts: 2, resetSeconds: 600' \
    --container 'entrypoint: ["/bin/sh", "-c"]' --container 'command: ["echo one more run; exit 4"]')"
wait_for 60 field_is few .status.phase Failed
status=$(field few .status)
unit=$(jq -r .unit <<<"$status")
runs() { n1 journalctl --output=cat _UID="$(jq -r .uid <<<"$status")" _SYSTEMD_USER_UNIT="$unit" | grep -c '^one more run$'; }
equal "2 4" "$(jq -r '"\(.restarts) \(.exitCode)"' <<<"$status")" "restarts and exit code"
equal 3 "$(runs)" "runs"
# A restart of the agent starts the program no further time.
n1 systemctl restart kat-agent.service
wait_for 30 node_is_ready
equal 3 "$(runs)" "runs after a restart of the agent"
kat delete workload few --wait
equal 3 "$(runs)" "runs in all"
# A program that keeps running uses up no restart.
run fine --port 80 --restart 'condition: MaxCount, maxRestarts: 1'
equal 0 "$(field fine .status.restarts)" "restarts of a program that keeps running"
