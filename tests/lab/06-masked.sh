# With the agent masked and the machine rebooted, a container that crashes restarts with its address, its names and its access to the outside
# shellcheck shell=bash
run web --port 80
run other --port 8080
address=$(field web .status.ip) id=$(field web .metadata.name)
web_user=$(field web .status.user)
status=$(field other .status)
user=$(jq -r .user <<<"$status") container=$(jq -r '.unit | rtrimstr(".service")' <<<"$status")
from_other() { as "$user" podman exec "$container" "$@"; }
web_works_everywhere() {
    contains "$(page "http://$address/")" "host=$id" &&
        contains "$(from_other wget -q -T 3 -O- "http://web.default.$DOMAIN/")" "host=$id" &&
        contains "$(from_other wget -q -T 3 -O- http://192.168.77.1:8000/)" 192.168.77.11
}
n1 systemctl mask --now kat-agent.service
n1 systemctl stop kat-etcd.service
lab reboot n1
refused n1 systemctl is-active kat-agent.service
wait_for 40 web_works_everywhere
page "http://$address/crash?3" >/dev/null
request_count_restarted() { page "http://$address/" | grep -q 'requests=[1-3]$'; }
wait_for 40 request_count_restarted
web_works_everywhere
# The restarted container itself reaches the outside.
user=$web_user container=kat-default-$id
wait_for 20 from_other wget -q -T 3 -O- http://outside.test:8000/
n1 systemctl unmask kat-agent.service
n1 systemctl start kat-agent.service
wait_for 60 node_is_ready
wait_for 30 field_is web .status.phase Running
equal "$id $address" "$(field web '|"\(.metadata.name) \(.status.ip)"')" "instance and address"
