# A machine without the store shows all machines and whether the cluster is well, passes a token on unopened, and says who was asked where nobody answers
# machines: 4
# shellcheck shell=bash
# shellcheck source=tests/lab/guide.sh
. tests/lab/guide.sh
wait_for 30 nodes_are_ready
wait_for 120 members_are_healthy 3
run web --port 80 --replicas 4
equal '["n1","n2","n3","n4"]' "$(machines_running web)" "machines of four replicas"
# shown_on MACHINE: name, phase and roles of each machine, as the API on MACHINE shows them.
shown_on() { on "$1" katcall get nodes -o json | jq -c '[.items[] | [.metadata.name, .status.phase, .status.roles, .status.version, .status.overlayAddress]] | sort'; }
shows_the_same() { [[ $(shown_on n4) == "$(shown_on n1)" ]]; }
wait_for 30 shows_the_same
equal "$(leader_at n1)" "$(leader_at n4)" "leader according to n4"
status_is_well() { on n4 katcall status >"$LAB_WORK/status"; }
wait_for 30 status_is_well
status=$(cat "$LAB_WORK/status")
contains "$status" "is well"
contains "$status" "4 of 4 ready"
contains "$status" "3 of 3 members well"
contains "$status" "1 of 1 running on n4"
# Members of the group kat see it like root.
on n4 useradd --groups kat visitor
contains "$(on n4 runuser -u visitor -- katcall get nodes -o name)" node/n3
on n4 userdel visitor
# A change of another machine is seen.
kat drain n3 --timeout 60s
shows_drained() { [[ $(on n4 katcall get node n3 -o json | jq -r .status.phase) == Drained ]]; }
wait_for 30 shows_drained
kat uncordon n3
wait_for 30 shows_the_same
# The agent asks while somebody asks it, and otherwise not.
overview_calls() {
    local node count=0 here
    for node in n1 n2 n3; do
        here=$(lab journal "$node" -o cat SYSLOG_IDENTIFIER=kat-audit | grep -c 'GET /v1alpha1/overview .* by node:n4 ' || true)
        count=$((count + here))
    done
    echo "$count"
}
sleep 6
before=$(overview_calls)
((before > 0))
sleep 12
equal "$before" "$(overview_calls)" "calls of n4 while nobody asks it"
# Everything else says what this machine is and where to ask.
for words in 'get workloads' 'get secrets' 'get instances' 'token list' 'create namespace elsewhere'; do
    code=0
    # shellcheck disable=SC2086 # words by blanks
    output=$(on n4 katcall $words 2>&1) || code=$?
    equal 1 "$code" "exit code of $words on n4"
    contains "$output" "this machine (n4) does not hold the cluster's store"
    contains "$output" "(192.168.77.11)"
    contains "$output" KAT_SERVER
done
shows access-and-pipelines "Any other command says which machine this is and where to ask:" "$output"
equal '["n4"]' "$(on n4 katcall get instances -A -o json | jq -c '[.items[].status.node] | unique')" "machines of the instances that n4 shows"
# The machine's certificate reads the overview and nothing else, and the socket passes no path on.
with_certificate() {
    on n4 curl --silent --insecure --max-time 5 --output /run/answer --write-out '%{http_code}' \
        --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key "https://192.168.77.11:9115$1"
}
equal 200 "$(with_certificate /v1alpha1/overview)" "status of the overview"
contains "$(on n4 cat /run/answer)" '"name":"n1"'
lacks "$(on n4 cat /run/answer)" web-
for path in /v1alpha1/nodes /v1alpha1/instances /v1alpha1/events /v1alpha1/n/default/secrets; do
    equal 403 "$(with_certificate "$path")" "status of $path with the certificate"
done
through_socket() { on n4 curl --silent --max-time 10 --output /run/answer --write-out '%{http_code}' --unix-socket /run/kat/api.sock "http://localhost$1"; }
equal 200 "$(through_socket /v1alpha1/overview)" "status of the overview through the socket"
for path in /v1alpha1/workloads /v1alpha1/n/default/workloads/web/files/workload.kat /v1alpha1/nodes/n1/state; do
    equal 403 "$(through_socket "$path")" "status of $path through the socket"
done
on n4 rm -f /run/answer
# With a token any machine's port is enough: it is passed on unopened.
connection=$(kat token create --scope read --name door --ttl 1h -o connection)
value() { jq -r "$1" <<<"$connection"; }
token=$(value .token) authority=$(value .ca)
with_token() { on n4 env KAT_SERVER=https://127.0.0.1:9115 KAT_TOKEN="$token" KAT_CA="$authority" katcall "$@"; }
contains "$(with_token get workloads -o name)" workload/web
equal "$(kat get instances -A -o name | sort)" "$(with_token get instances -A -o name | sort)" "instances that a token sees through n4"
contains "$(with_token status)" "is well"
by_the_token() { lab journal "$1" -o cat SYSLOG_IDENTIFIER=kat-audit | grep -c "token:$(cut -d . -f 2 <<<"$token")" || true; }
(($(by_the_token "$(leader_at n1)") > 0))
equal 0 "$(by_the_token n4)" "calls of the token that n4 opened"
# Without an authority, or without a server, the token is not used.
for variables in "KAT_SERVER=127.0.0.1 KAT_TOKEN=$token" "KAT_TOKEN=$token"; do
    code=0
    # shellcheck disable=SC2086 # words by blanks
    output=$(on n4 env $variables katcall get nodes 2>&1) || code=$?
    equal 2 "$code" "exit code without an authority"
    contains "$output" KAT_CA
    lacks "$output" "$token"
done
kat token revoke "$(cut -d . -f 2 <<<"$token")"
# Nobody answers: what was known last is marked as such, and who was asked is named.
on n4 katcall get nodes >/dev/null
for node in n1 n2 n3; do on "$node" systemctl stop kat-agent; done
status_names_who_was_asked() {
    local code=0
    on n4 katcall status >"$LAB_WORK/status" 2>&1 || code=$?
    ((code == 1)) || return 1
    contains "$(head -n 1 "$LAB_WORK/status")" "is not well" && contains "$(cat "$LAB_WORK/status")" "no machine that holds the store answers since 20"
}
wait_for 30 status_names_who_was_asked
status=$(cat "$LAB_WORK/status")
for part in "n1 (192.168.77.11:9115)" "n2 (192.168.77.12:9115)" "n3 (192.168.77.13:9115)" "4 of 4 were ready as of 20"; do
    contains "$status" "$part"
done
says_who_was_asked() {
    local line
    line=$(on n4 systemctl show --property StatusText --value kat-agent)
    contains "$line" "no leader answers since 20" && contains "$line" 192.168.77.11
}
wait_for 60 says_who_was_asked
output=$(on n4 katcall get nodes 2>&1)
contains "$output" "other machines are shown as of 20"
contains "$output" "n1 (192.168.77.11:9115)"
equal '["n4"]' "$(on n4 katcall get nodes -o json 2>/dev/null | jq -c '[.items[] | select(.status.phase == "Ready") | .metadata.name]')" "machines that are Ready without an answer"
equal 4 "$(on n4 katcall get nodes -o json 2>/dev/null | jq '.items | length')" "machines that are shown"
output=$(on n4 katcall get workloads 2>&1) && exit 1
contains "$output" "asked n"
equal '["n4"]' "$(on n4 katcall get instances -A -o json | jq -c '[.items[].status.node] | unique')" "machines of the instances that n4 shows alone"
# An agent that starts meanwhile knows no other machine, and says so.
on n4 systemctl restart kat-agent
knows_no_other() { [[ $(on n4 katcall status 2>&1 || true) == *"nothing is known of other machines since kat-agent started"* ]]; }
wait_for 30 knows_no_other
contains "$(on n4 katcall get nodes 2>&1)" "no other machine is known since kat-agent started"
for node in n1 n2 n3; do on "$node" systemctl start kat-agent; done
wait_for 60 nodes_are_ready
wait_for 30 status_is_well
wait_for 30 shows_the_same
kat delete workload web --yes --wait
