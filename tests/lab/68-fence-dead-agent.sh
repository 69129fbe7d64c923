# A workload with onPartition stop has ended on a machine whose agent is dead before it starts elsewhere, and its user can't prevent that
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
add_agent_settings n3 'hostNetworkAllow: true'
agent=
trap '[[ ! $agent ]] || on n3 kill -CONT "$agent" || true; restore_agent_settings n3' EXIT
begin() { kat apply -f "$(workload "$@" --container 'terminationGraceSeconds: 2')" --wait; }
on_n3='nodeSelector: {kat.dws.rip/nodeName: n3}'
begin web --port 80 --replicas 3 --spec 'onPartition: stop'
begin edge --port 8010 --container 'hostNetwork: true' --spec 'onPartition: stop' --spec "$on_n3"
begin plain --port 80 --spec "$on_n3"
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
status=$(field_on web n3 .status)
unit=$(jq -r .unit <<<"$status") user=$(jq -r .user <<<"$status") lost=$(field_on web n3 .metadata.name)
pid_of() {
    local one
    one=$(field_on "$1" n3 .status)
    as_on n3 "$(jq -r .user <<<"$one")" podman inspect --format '{{.State.Pid}}' "$(jq -r '.unit | rtrimstr(".service")' <<<"$one")"
}
web=$(pid_of web) edge=$(pid_of edge) plain=$(pid_of plain)

# The attack: the workload's user moves its deadline.
deadline=$(on n3 cat /run/kat/deadlines.json | jq -r --arg id "$lost" '.deadlines[$id]')
((deadline > 0))
for attempt in "echo '{}' >/run/kat/deadlines.json" "rm -f /run/kat/deadlines.json" "cat /run/kat/deadlines.json" \
    "ln -s /dev/null /run/kat/.deadlines.json.x" "mv /run/kat /run/other" "kill -STOP \$(pgrep -x kat-net)"; do
    refused as_on n3 "$user" sh -c "$attempt" 2>/dev/null
done

# The agent neither stops anything nor reports. kat-net is restarted meanwhile.
agent=$(on n3 systemctl show --property=MainPID --value kat-agent.service)
on n3 kill -STOP "$agent"
on n3 systemctl restart kat-net.service
equal "$web" "$(pid_of web)" "the program after a restart of kat-net"
wait_for 15 absent n3 "/proc/$web" "/proc/$edge"
on n3 test -e "/proc/$plain"
# The program does not start again, also where its user asks for that.
as_on n3 "$user" systemctl --user --no-block restart "$unit"
replaced() { [[ $(machines_running web) == '["n1","n2"]' ]] && has_ready web 3; }
wait_for 30 replaced
equal "$plain" "$(on n3 pgrep -x web)" "programs on the machine with the dead agent"
# The machines share one clock, so the times are comparable.
killed_at=$(on n3 journalctl -q -o json --output-fields=__REALTIME_TIMESTAMP KAT_HOOK_ERROR=fenced "USER_UNIT=$unit" |
    jq -s 'map(.__REALTIME_TIMESTAMP | tonumber) | min')
moved_at=$(kat get events -o json | jq -r --arg lost "$lost" '.items[] | select(.reason == "Lost" and .involvedObject.name == $lost) | .firstTimestamp' |
    head -n 1)
moved_at=$(date --date="$moved_at" +%s%6N)
echo "the program was killed $(((moved_at - killed_at) / 1000)) ms before its replacement"
((killed_at < moved_at))
contains "$(on n3 journalctl -q -u kat-net -o cat)" "killed an instance with onPartition: stop"

# The agent wakes: what was replaced stays away, and what was not comes back.
on n3 kill -CONT "$agent"
agent=
wait_for 30 nodes_are_ready
wait_for 30 field_is edge .status.phase Running
wait_for 30 instance_is_gone web "$lost"
equal 0 "$(field edge .status.restarts)" "restarts of the program that kat-net killed"
equal "$plain" "$(pid_of plain)" "the program without onPartition stop"
on n3 systemctl mask --runtime --now kat-agent.service
contains "$(on n3 kat-agent check || true)" "kat-net ends the instances with onPartition: stop"
on n3 systemctl unmask --runtime kat-agent.service
on n3 systemctl start kat-agent.service
