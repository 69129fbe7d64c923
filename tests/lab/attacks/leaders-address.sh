# A worker that reports the leader's address as its own gets no call of others, and so no administrator's token
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
leader=$(leader_at n1)
address=192.168.77.1${leader#n}
uid=$(kat get nodes n4 -o json | jq -r .metadata.uid)
endpoints() { etcd_value config/endpoints | jq -Sc .machines.n4.api; }
etcd_value() { etcdctl_on n1 get --print-value-only "/kat/$1"; }
equal "$leader" "$(etcd_value config/leader_name)" "the leader's name beside its endpoint"
own=$(endpoints)
contains "$own" 192.168.77.14
on n4 systemctl stop kat-agent.service
report() {
    lab exec n4 -- sh -c "cat >/run/report.json" <<<"{\"nodeName\":\"n4\",\"nodeUID\":\"$uid\",\"advertise\":[\"$1\"],\"endpoints\":[\"$1:51820\"],\"assignmentSchema\":99,\"dataPath\":99}"
    equal 204 "$(agent_call n4 POST /v1alpha1/nodes/n4/status /run/report.json | head -n 1)" "a report with $1"
}
taken() { kat get nodes n4 -o json | jq -e '.status.conditions[]? | select(.reason == "AddressTaken")' >/dev/null; }
# The control: an address of nobody is taken over, and told to the others.
report 192.168.77.99
told() { [[ $(endpoints) == *192.168.77.99* ]]; }
wait_for 10 told
report "$address"
wait_for 10 taken
lacks "$(endpoints)" "$address"
contains "$(kat get events)" AddressTaken
# Whoever passes callers on finds the leader, and what answers on n4's port sees none of them.
# Its standard input stays open: at its end it would answer nobody.
on n4 sh -c 'sleep 120 | openssl s_server -accept 9115 -cert /var/lib/kat/pki/node.crt -key /var/lib/kat/pki/node.key -CAfile /var/lib/kat/pki/cluster-ca.crt \
    >/run/caught 2>&1 & echo $! >/run/server.pid'
caught() { on n4 cat /run/caught; }
call_directly() {
    n1 curl --silent --insecure --max-time 2 --header "Authorization: Bearer $1" https://192.168.77.14:9115/healthz || true
    [[ $(caught) == *"Bearer $1"* ]]
}
# The control: what comes to n4's port is seen there.
wait_for 10 call_directly control-before
for node in n1 n2 n3; do
    n1 sh -c "jq '.endpoints = [\"192.168.77.1${node#n}:9115\"]' /etc/kat/admin.conf >/root/through.conf; chmod 600 /root/through.conf"
    contains "$(n1 katcall --connection /root/through.conf get nodes)" n4
done
wait_for 10 call_directly control-after
lacks "$(caught | grep Bearer | grep -v 'Bearer control-')" Bearer
equal "" "$(caught | grep -E '^(PRI|GET|POST|PUT|DELETE) ' | grep -v ' /healthz ' || true)" "calls of others"
on n4 sh -c 'kill "$(cat /run/server.pid)"; rm -f /run/caught /run/server.pid /run/report.json'
n1 rm -f /root/through.conf
on n4 systemctl start kat-agent.service
back() { ! taken && [[ $(endpoints) == "$own" ]]; }
wait_for 30 back
wait_for 30 nodes_are_ready
