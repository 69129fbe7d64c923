# An instance being stopped answers the requests that it already has, while its name is gone; then it stops
# shellcheck shell=bash
# SIGKILL ends the program at once, so it can only answer this late because of its drain time.
run web --port 80 --drain 5 --container 'stopSignal: SIGKILL'
address=$(field web .status.ip)
has_dns_name() { n1 grep -q "\"web\.default\"" /var/lib/kat/network/dns.json; }
wait_for 10 has_dns_name
lab exec n1 -- curl --silent --show-error --fail --max-time 10 "http://$address/slow?3000" </dev/null >"$LAB_WORK/slow" 2>&1 &
asked=$!
is_open() { n1 ss --no-header --tcp --numeric state established dst "$address" | grep -q .; }
wait_for 2 is_open
kat delete workload web
wait_for 4 field_is web '.status | "\(.phase) \(.reason)"' "Stopping ConnectionDraining"
contains "$(field web .status.message)" "it is stopped 5 s after that"
refused has_dns_name
wait "$asked"
equal "at last" "$(cat "$LAB_WORK/slow")" "the answer"
instance_is_gone() { [[ $(instances web) == '[]' ]]; }
wait_for 30 instance_is_gone
