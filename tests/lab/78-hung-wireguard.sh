# A user-space WireGuard that hangs is restarted, and the overlay of its machine works again
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
restarts=$(instances web | jq '[.[].status.restarts] | add')
n3_address=$(field_on web n3 .status.ip)
property() { on n3 systemctl show --property="$1" --value kat-wg.service; }
stopped=$(property MainPID)
# On a kernel with WireGuard there is no such service.
if [[ $stopped == 0 ]]; then
    on n3 ip -d link show kat0 | grep -q wireguard
    exit 0
fi
trap 'on n3 kill -CONT "$stopped" 2>/dev/null || true' EXIT
equal 10s "$(property WatchdogUSec)" "the limit of the watchdog"
wait_for 10 answers "http://$n3_address/"
on n3 kill -STOP "$stopped"
# The control: the overlay of n3 is dead.
refused n1 curl --silent --max-time 2 "http://$n3_address/"
is_restarted() {
    local now
    now=$(property MainPID) && differs "$stopped" "$now" && differs 0 "$now"
}
wait_for 15 is_restarted
wait_for 10 answers "http://$n3_address/"
contains "$(on n3 journalctl --unit kat-wg.service --since=-1min --output cat)" "Watchdog timeout"
equal "$restarts" "$(instances web | jq '[.[].status.restarts] | add')" "restarts of programs"
wait_for 30 members_are_healthy 3
