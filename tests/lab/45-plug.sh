# A machine loses power: its instances of a Service run elsewhere in time, and nothing runs twice when it is back
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
lost=$(field_on web n2 .metadata.name) address=$(field_on web n2 .status.ip)
# The service on n3 balances over three addresses, without the lost machine's. All of them answer,
# and so does the name.
service_is_complete() {
    local found one
    found=$(service_backends web n3)
    [[ $(wc -l <<<"$found") == 3 && $found != *"$address"* ]] || {
        echo "backends of the service: $found" >&2
        return 1
    }
    on n3 curl --silent --fail --max-time 1 "http://web.default.$DOMAIN/" || return 1
    for one in $found; do on n3 curl --silent --fail --max-time 1 "http://$one/" || return 1; done
}
began=$EPOCHREALTIME
lab kill n2
# It takes about 12 s on an idle host.
wait_for 40 service_is_complete
echo "the service was complete $(seconds_since "$began") s after the loss of power"
wait_for 10 has_ready web 3
equal '["n1","n3"]' "$(machines_running web)" "machines of the replicas after the loss"
contains "$(kat get nodes)" NoHeartbeat
contains "$(kat describe node n2)" "has not reported for 10 s"
events=$(kat get events -A)
contains "$events" NodeNotReady
contains "$events" "its machine n2 is lost; web-"
output=$(kat status) && exit 1
contains "$output" "node n2 is NotReady"
# The machine returns: it does not start the instance that was replaced, and that instance's address
# is free.
lab start n2
wait_for 60 nodes_are_ready
wait_for 60 instance_is_gone web "$lost"
wait_for 30 process_count_is 3
has_ready web 3
on n2 test -d /var/lib/kat/units
prints_nothing "unit files of $lost" on n2 find /var/lib/kat/units -name "*$lost*"
wait_for 20 kat status
