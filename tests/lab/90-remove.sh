# Removing the package says what stops working, stops no container, and starts none without its network
# shellcheck shell=bash
run web --port 80
address=$(field web .status.ip) status=$(field web .status)
user=$(jq -r .user <<<"$status") unit=$(jq -r .unit <<<"$status")
lab copy "$LAB_DEB" n1:/root/kat.deb
start_load "$address" 80 50
# At a terminal the removal asks for confirmation, and the answer no keeps the package.
output=$(n1 script --quiet --return --command 'printf "n\n" | cat - >/dev/null; echo n | script -qec "dpkg --remove kat" /dev/null' /dev/null 2>&1) || true
contains "$output" "Remove it all the same?"
equal installed "$(n1 dpkg-query --show --showformat='${db:Status-Status}' kat)" "after a no"
wait_for 10 is_active kat-agent.service
output=$(n1 env DEBIAN_FRONTEND=noninteractive dpkg --remove kat 2>&1)
contains "$output" "none is restarted, since none starts without its network"
contains "$output" "kat-agent reset"
refused n1 which kat-agent
no_request_lost 100
page "http://$address/crash?1" >/dev/null
# Systemd forgets a unit whose files are gone.
unit_is_not_active() { [[ $(as "$user" systemctl --user is-active "$unit") == @(inactive|failed|activating) ]]; }
wait_for 30 unit_is_not_active
refused n1 curl --silent --max-time 1 "http://$address/"
# A purge keeps /var/lib/kat, which may be the only copy of the data.
output=$(n1 env DEBIAN_FRONTEND=noninteractive dpkg --purge kat 2>&1)
contains "$output" "/var/lib/kat"
n1 test -e /var/lib/kat/node.json
# After a new installation the agent and the container run again.
n1 env DEBIAN_FRONTEND=noninteractive dpkg --install /root/kat.deb
wait_for 60 node_is_ready
wait_for 60 field_is web .status.phase Running
wait_for 20 answers "http://$address/"
