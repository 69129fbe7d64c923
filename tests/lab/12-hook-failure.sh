# A container whose network setup fails uses up none of its restarts, and starts once the network works
# shellcheck shell=bash
run web --port 80 --restart 'condition: MaxCount, maxRestarts: 1, resetSeconds: 600'
address=$(field web .status.ip) unit=$(field web .status.unit)
n1 systemctl stop kat-net.socket kat-net.service
n1 systemctl mask --runtime kat-net.socket kat-net.service
page "http://$address/crash?1" >/dev/null
not_running() {
    local state
    state=$(unit_property web ActiveState) && [[ $state && $state != active ]]
}
wait_for 20 not_running
# systemd starts the unit more than once, without success.
was_started_repeatedly() { (($(lab journal n1 -o cat _UID="$(field web .status.uid)" | grep -c "Starting $unit") >= 4)); }
wait_for 90 was_started_repeatedly
has_reason_and_not_failed() { field web .status | jq -e '.phase != "Failed" and .reason != ""' >/dev/null; }
wait_for 20 has_reason_and_not_failed
n1 systemctl unmask --runtime kat-net.socket kat-net.service
n1 systemctl start kat-net.socket kat-net.service
wait_for 90 field_is web .status.phase Running
wait_for 10 answers "http://$address/"
# Only the program's own crash counts.
equal 1 "$(field web .status.restarts)" "restarts"
# The next crash exceeds the budget of one restart.
page "http://$address/crash?1" >/dev/null
wait_for 30 field_is web '.status | "\(.phase) \(.restarts)"' "Failed 1"
