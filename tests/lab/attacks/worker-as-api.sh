# A worker that serves the API with its own certificate is refused by name, and gets no token; certificates of the API are on members alone, and a machine reports to known keys alone
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
pki=/var/lib/kat/pki
uid=$(n1 jq -r .clusterUid /etc/kat/admin.conf)
# names NODE LEAF: the server names of a certificate.
names() { on "$1" openssl x509 -noout -ext subjectAltName -in "$pki/$2.crt"; }
for node in n1 n2 n3; do contains "$(names "$node" api)" "DNS:api.kat.$uid"; done
lacks "$(names n4 node)" "kat.$uid"
absent n4 $pki/api.crt
equal true "$(n1 jq .apiNameRequired /etc/kat/admin.conf)" "the connection of init demands the name"

# serve NODE LEAF: takes the place of the agent's port 9115, and records what comes. The server's
# standard input stays open, since openssl ends at its end.
serve() {
    on "$1" systemctl stop kat-agent.service
    on "$1" sh -c "sleep 120 | openssl s_server -accept 9115 -cert $pki/$2.crt -key $pki/$2.key -CAfile $pki/cluster-ca.crt \
        >/run/caught 2>&1 & echo \$! >/run/server.pid"
}
received() { on "$1" cat /run/caught; }
end_server() {
    on "$1" sh -c 'kill "$(cat /run/server.pid)"; rm -f /run/caught /run/server.pid'
    on "$1" systemctl start kat-agent.service
}
# connection NODE [FILTER]: a connection to NODE alone, on n1.
connection() {
    n1 sh -c "umask 077; jq '.endpoints = [\"192.168.77.1${1#n}:9115\"] ${2:-}' /etc/kat/admin.conf >/root/through.conf"
}
# through: asks by that connection. It fails against a server that only records.
through() { n1 timeout 20 katcall --connection /root/through.conf get nodes 2>&1; }

# only_the_control_is_at_n4: the server has recorded the control's token and no other.
only_the_control_is_at_n4() {
    equal "Bearer control" "$(received n4 | grep -o 'Bearer [^ ]*' | tr -d '\r' | sort -u)" "tokens that n4 received"
}
serve n4 node
connection n4
# The control: the server does record a call of a client that verifies nothing.
call_is_recorded() {
    n1 curl --silent --insecure --max-time 2 --header "Authorization: Bearer control" "https://192.168.77.1${1#n}:9115/healthz" || true
    [[ $(received "$1") == *"Bearer control"* ]]
}
wait_for 10 call_is_recorded n4
said=$(through) && exit 1
contains "$said" "it is not for the API"
only_the_control_is_at_n4
# A connection of version 0.1.0 knows no other name than the old one, which this worker does not
# have.
connection n4 '| del(.apiNameRequired)'
said=$(through) && exit 1
contains "$said" certificate
only_the_control_is_at_n4
end_server n4

# A worker that joined in a cluster of version 0.1.0 has the old name, too. Here only members have it,
# so the certificate of a member's machine stands for that of such a worker.
contains "$(names n3 node)" "DNS:kat.$uid"
wait_for 60 nodes_are_ready
wait_for 60 members_are_healthy 3
serve n3 node
connection n3 '| del(.apiNameRequired)'
wait_for 10 call_is_recorded n3
# The control: while the connection has never seen the new name, the token goes to the server.
through && exit 1
tokens_at_n3() { received n3 | grep -c 'Bearer kat1\.' || true; }
caught=$(tokens_at_n3)
((caught > 0))
# One answer of a member is enough: from then on the connection demands the name.
connection n1 '| del(.apiNameRequired)'
contains "$(through)" n4
equal true "$(n1 jq .apiNameRequired /root/through.conf)" "what the connection has seen"
n1 sh -c "jq '.endpoints = [\"192.168.77.13:9115\"]' /root/through.conf >/root/kept.conf; mv /root/kept.conf /root/through.conf"
said=$(through) && exit 1
contains "$said" "it is not for the API"
equal "$caught" "$(tokens_at_n3)" "tokens that reached the server"
end_server n3
n1 rm -f /root/through.conf
wait_for 60 nodes_are_ready
wait_for 60 members_are_healthy 3

# Who leads says to a machine that it was heard, and so that its instances with onPartition: stop may run on. A former
# member that answers in the leader's place has a certificate of the API too: a machine reports by known keys alone.
on n4 systemctl stop kat-agent.service
on n4 sh -euc 'cd /var/lib/kat; cp -p cluster.json /root/known.json
    jq -c ".endpoints.machines[] |= (if .apiKey then .apiKey |= (explode | reverse | implode) else . end)" cluster.json >new; cat new >cluster.json; rm new'
since=$(on n4 date +%s)
on n4 systemctl start kat-agent.service
said_of_reports() { on n4 journalctl --quiet --unit kat-agent.service --since "@$since" --output cat | grep "a report did not reach the leader"; }
is_refused() { contains "$(said_of_reports)" "it is for another key than the one by which machine"; }
wait_for 30 is_refused
on n4 systemctl stop kat-agent.service
on n4 sh -euc 'cat /root/known.json >/var/lib/kat/cluster.json; rm /root/known.json'
on n4 systemctl start kat-agent.service
wait_for 60 nodes_are_ready
