# Containers keep their links while systemd-resolved hangs and kat-net restarts, and get back links that were removed
# shellcheck shell=bash
run web --port 80
link_of() { n1 ip -o link show type veth | sed -n "s/^[0-9]*: \(kat[^@]*\)@.*alias kat:$(field web .metadata.name)\$/\1/p"; }
resolved=$(n1 systemctl show --property=MainPID --value systemd-resolved.service)
[[ $resolved != 0 ]]
trap 'n1 kill -CONT "$resolved" || true' EXIT
n1 kill -STOP "$resolved"
n1 systemctl restart kat-net.service
for _ in 1 2 3; do
    kat restart web --wait
    # Seven seconds: longer than a call to a hanging systemd-resolved and one further round of
    # kat-net.
    for _ in {1..14}; do
        answers "http://$(field web .status.ip)/"
        sleep 0.5
    done
    contains "$(inside web ip link show dev eth0)" eth0
done
n1 kill -CONT "$resolved"

# The control: a container without its link does not answer.
address=$(field web .status.ip)
n1 ip link delete "$(link_of)"
refused n1 curl --silent --max-time 1 "http://$address/"
wait_for 35 answers "http://$address/"
equal 0 "$(field web .status.restarts)" "restarts of its program"
contains "$(inside web ip link show dev eth0)" eth0
