# An instance whose network files are missing does not start, says so, and starts once they are back
# shellcheck shell=bash
run web --port 80
run fine --port 80
n1 rm /var/lib/kat/hooks.d/kat.json /var/lib/kat/resolv/default.conf
page "http://$(field web .status.ip)/crash?1" >/dev/null
# The phase is Restarting for moments while the agent retries, so phase, reason and message come
# from one answer.
reports_missing_files() {
    local status
    status=$(field web .status)
    [[ $(jq -r '"\(.phase) \(.reason)"' <<<"$status") == "Starting NetworkFilesMissing" ]] &&
        [[ $(jq -r .message <<<"$status") == *"a file of KAT's that the container's network needs is missing"* ]]
}
wait_for 40 reports_missing_files
describe_shows_reason() { [[ $(kat describe workload web) == *NetworkFilesMissing* ]]; }
wait_for 10 describe_shows_reason
refused n1 curl --silent --max-time 1 "http://$(field web .status.ip)/"
# An instance that already runs continues to run.
answers "http://$(field fine .status.ip)/"
n1 systemctl restart kat-agent.service
n1 test -e /var/lib/kat/hooks.d/kat.json
wait_for 60 field_is web .status.phase Running
wait_for 10 answers "http://$(field web .status.ip)/"
wait_for 10 inside web wget -q -T 3 -O- "http://fine.default.$DOMAIN/"
