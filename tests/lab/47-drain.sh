# A machine is drained under load without a lost request, stays empty, and takes work again when it is uncordoned
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
# With a drain time of 2 s callers may learn late of an instance's end, on a busy host.
run web --port 80 --replicas 3 --drain 2
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
began=$SECONDS
start_load "web.default.$DOMAIN@$(kat get nodes n1 -o json | jq -r .status.overlayAddress)" 80 50
equal "node/n2 drained" "$(kat drain n2 --timeout 60s)" "drain"
equal '["n1","n3"]' "$(machines_running web)" "machines of three replicas after the drain"
wait_for 10 has_ready web 3
no_request_lost $(((SECONDS - began) * 30))
finds_nothing on n2 pgrep -x web
contains "$(kat get nodes)" Drained
events=$(kat get events -A)
contains "$events" DrainAsked
contains "$events" NodeDrained
# A second drain is done at once, and no new instance is placed on the machine.
equal "node/n2 drained" "$(kat drain n2 --timeout 10s)" "drain, again"
run web --port 80 --replicas 6 --drain 2
equal '["n1","n3"]' "$(machines_running web)" "machines of six replicas"

# An instance that no other machine accepts stays and serves. The drain says so, and at its timeout
# names the command that ends it.
kat taint node n3 full=yes:NoSchedule
code=0
output=$(kat drain n1 --timeout 5s 2>&1) || code=$?
equal 5 "$code" "exit code of an unfinished drain"
contains "$output" "can't move"
contains "$output" "taint"
contains "$output" "uncordon n1"
has_ready web 6
contains "$(kat describe node n3)" "full=yes:NoSchedule"
equal "node/n1 uncordoned" "$(kat uncordon n1)" "uncordon"
equal "node/n3 updated" "$(kat taint node n3 full-)" "taint"
wait_for 20 has_ready web 6

kat label node n2 disk=ssd
contains "$(kat describe node n2)" "disk=ssd"
equal "node/n2 unchanged" "$(kat label node n2 disk=ssd)" "the same label"
kat label node n2 disk-
lacks "$(kat describe node n2)" "disk=ssd"

equal "node/n2 uncordoned" "$(kat uncordon n2)" "uncordon"
wait_for 20 nodes_are_ready
run web --port 80 --replicas 9 --drain 2
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of nine replicas"
wait_for 20 process_count_is 9
