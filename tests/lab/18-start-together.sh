# Eight instances that start together on a busy machine all run at once, with one pause process of Podman and no restart
# shellcheck shell=bash
kat apply -f "$(workload herd --replicas 8)" --wait --timeout 120s
for ((i = 0; i < 4; i++)); do n1 timeout 100 sh -c 'while :; do :; done' & done
trap 'n1 pkill -x -f "sh -c while :; do :; done" || true' EXIT
uid=$(instances herd | jq '.[0].status.uid')
manager_is_gone() { refused n1 test -e "/run/user/$uid"; }
for round in 1 2 3; do
    kat scale herd --replicas 0 --wait --timeout 60s
    # The user's manager ends, and with it the pause process; the images stay.
    wait_for 30 manager_is_gone
    since=$(n1 date +%s)
    kat scale herd --replicas 8 --wait --timeout 90s
    equal 0 "$(instances herd | jq '[.[].status.restarts] | add')" "restarts in round $round"
    journal=$(n1 journalctl --no-pager --output=cat "--since=@$since" "_UID=$uid")
    lacks "$journal" "result 'protocol'"
    # The control: the journal does contain the managers' messages about what they start.
    contains "$journal" "Started podman-pause-"
    equal 1 "$(grep -c '^Started podman-pause-' <<<"$journal")" "pause processes in round $round"
done
# If the pause process has died, the next instances that start together get a new one.
kat scale herd --replicas 4 --wait --timeout 60s
n1 pkill -KILL -u "$uid" -f '^catatonit -P'
kat scale herd --replicas 8 --wait --timeout 90s
equal 0 "$(instances herd | jq '[.[].status.restarts] | add')" "restarts after the process had died"
equal 1 "$(n1 pgrep -c -u "$uid" -f '^catatonit -P')" "pause processes after it had died"
# The pause process is outside the control groups of the instances, whose end would end it too.
group=$(n1 sh -c "cat /proc/\$(cat /run/user/$uid/libpod/tmp/pause.pid)/cgroup")
contains "$group" "user@$uid.service"
lacks "$group" kat-default-herd
