# A worker that reports the leader's address as its own gets no call of others, and so no administrator's token
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
leader=$(leader_at n1)
address=192.168.77.1${leader#n}
uid=$(kat get nodes n4 -o json | jq -r .metadata.uid)
stored_endpoints() { value_of config/endpoints | jq -Sc .machines.n4.api; }
value_of() { etcdctl_on n1 get --print-value-only "/kat/$1"; }
equal "$leader" "$(value_of config/leader_name)" "the leader's name beside its endpoint"
own=$(stored_endpoints)
contains "$own" 192.168.77.14
on n4 systemctl stop kat-agent.service
send_report() {
    lab exec n4 -- sh -c "cat >/run/report.json" <<<"{\"nodeName\":\"n4\",\"nodeUID\":\"$uid\",\"advertise\":[\"$1\"],\"endpoints\":[\"$1:51820\"],\"assignmentSchema\":99,\"dataPath\":99}"
    equal 204 "$(agent_call n4 POST /v1alpha1/nodes/n4/status /run/report.json | head -n 1)" "a report with $1"
}
has_own_address() { kat get nodes n4 -o json | jq -e 'all(.status.conditions[]?; .reason != "AddressTaken")' >/dev/null; }
address_is_refused() { kat get nodes n4 -o json | jq -e '.status.conditions[]? | select(.reason == "AddressTaken")' >/dev/null; }
# The control: a free address is stored and distributed to the other machines.
send_report 192.168.77.99
new_address_is_stored() { [[ $(stored_endpoints) == *192.168.77.99* ]]; }
wait_for 10 new_address_is_stored
send_report "$address"
wait_for 10 address_is_refused
lacks "$(stored_endpoints)" "$address"
contains "$(kat get events)" AddressTaken
# Machines that pass connections on still find the leader, and a server on n4's port receives none
# of them. The server's standard input stays open, since openssl ends at its end.
on n4 sh -c 'sleep 120 | openssl s_server -accept 9115 -cert /var/lib/kat/pki/node.crt -key /var/lib/kat/pki/node.key -CAfile /var/lib/kat/pki/cluster-ca.crt \
    >/run/caught 2>&1 & echo $! >/run/server.pid'
received_by_n4() { on n4 cat /run/caught; }
call_reaches_n4() {
    n1 curl --silent --insecure --max-time 2 --header "Authorization: Bearer $1" https://192.168.77.14:9115/healthz || true
    [[ $(received_by_n4) == *"Bearer $1"* ]]
}
# The control: the server does record the calls to n4's port.
wait_for 10 call_reaches_n4 control-before
for node in n1 n2 n3; do
    n1 sh -c "jq '.endpoints = [\"192.168.77.1${node#n}:9115\"]' /etc/kat/admin.conf >/root/through.conf; chmod 600 /root/through.conf"
    contains "$(n1 katcall --connection /root/through.conf get nodes)" n4
done
wait_for 10 call_reaches_n4 control-after
equal "Bearer control-after Bearer control-before" "$(received_by_n4 | grep -o 'Bearer [^ ]*' | tr -d '\r' | sort -u | paste -sd' ')" "tokens that n4 received"
equal "GET /healthz" "$(received_by_n4 | grep -oE '^(PRI|GET|POST|PUT|DELETE) [^ ]*' | sort -u)" "calls that reached n4"
on n4 sh -c 'kill "$(cat /run/server.pid)"; rm -f /run/caught /run/server.pid /run/report.json'
n1 rm -f /root/through.conf
on n4 systemctl start kat-agent.service
back() { has_own_address && [[ $(stored_endpoints) == "$own" ]]; }
wait_for 30 back
wait_for 30 nodes_are_ready
