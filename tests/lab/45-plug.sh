# A machine loses power: its instances of a Service run elsewhere in time, and nothing runs twice when it is back
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
lost=$(field_on web n2 .metadata.name) address=$(field_on web n2 .status.ip)
# Who is behind the service on n3: three addresses, not that of the lost machine, and all of them answer; as its name does.
whole_by_name() {
    local found one
    found=$(service_backends web n3)
    [[ $(wc -l <<<"$found") == 3 && $found != *"$address"* ]] || {
        echo "behind the service is: $found" >&2
        return 1
    }
    on n3 curl --silent --fail --max-time 1 "http://web.default.$DOMAIN/" || return 1
    for one in $found; do on n3 curl --silent --fail --max-time 1 "http://$one/" || return 1; done
}
began=$EPOCHREALTIME
lab kill n2
# This takes some 12 s on an idle host.
wait_for 40 whole_by_name
echo "whole elsewhere $(seconds_since "$began") s after the plug"
wait_for 10 has_ready web 3
equal '["n1","n3"]' "$(machines_running web)" "machines that run it now"
contains "$(kat get nodes)" NoHeartbeat
contains "$(kat describe node n2)" "has not reported for 10 s"
events=$(kat get events -A)
contains "$events" NodeNotReady
contains "$events" "its machine n2 is lost; web-"
output=$(kat status) && exit 1
contains "$output" "node n2 is NotReady"
# The lost machine is back: it starts nothing that runs elsewhere, and its address is free.
lab start n2
wait_for 60 nodes_are_ready
gone() { [[ $(instances web) != *"$lost"* ]]; }
wait_for 60 gone
wait_for 30 process_count_is 3
has_ready web 3
equal "" "$(on n2 sh -c "ls /var/lib/kat/units/*/*$lost* 2>/dev/null" || true)" "unit files of $lost"
wait_for 20 kat status
