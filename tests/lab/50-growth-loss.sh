# A machine that loses power while the store grows from one member to three stops nothing: it comes back, others are removed
# machines: 3
# bare
# by name
# limit: 900
# shellcheck shell=bash
join() {
    local line
    line=$(n1 katcall token create --join)
    on "$1" kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }"
}
n1 kat-agent init
join n2
run web --port 80 --replicas 3
join n3
phase_of() { kat get nodes "$1" -o json | jq -r .status.phase; }
is_not_ready() { equal NotReady "$(phase_of "$1")" "phase of $1"; }

# The members at that moment differ from run to run: the test holds for each of them.
sleep 10
etcdctl_on n1 member list
began=$EPOCHREALTIME
lab kill n2
can_write() { n1 timeout 5 katcall create namespace "growth-$RANDOM$RANDOM"; }
wait_for 60 can_write
echo "writes worked $(seconds_since "$began") s after n2 lost power"
wait_for 120 is_not_ready n2
runs_on_two() { equal '["n1","n3"]' "$(machines_running web)" "machines of web" && has_ready web 3; }
wait_for 120 runs_on_two
contains "$(kat status || true)" "n2"

# The machine comes back, and the store grows to three members without a command.
lab start n2
wait_for 90 nodes_are_ready
wait_for 240 members_are_healthy 3
contains "$(kat status)" "3 of 3 members well"

# A machine leaves, and its package is purged. Of the two that are left the leader has the store.
on n3 kat-agent reset --yes
prints_nothing "units on n3" on n3 systemctl list-units --plain --no-legend --state=active,failed 'kat*'
on n3 env DEBIAN_FRONTEND=noninteractive dpkg --purge kat
absent n3 /etc/kat /usr/bin/kat-agent
one_leads() { leader=$(leader_at n1) && [[ $leader == @(n1|n2) ]]; }
wait_for 60 one_leads
lost=n2
[[ $leader == n1 ]] || lost=n1
kat() { on "$leader" katcall "$@"; }
refused kat get nodes n3
wait_for 120 members_are_healthy 1 "$leader"
left_the_store() { lacks "$(etcdctl_on "$leader" member list)" "$lost"; }
wait_for 60 left_the_store
wait_for 60 has_ready web 3

# One that is lost for good is deleted once it is NotReady.
lab kill "$lost"
wait_for 120 is_not_ready "$lost"
kat delete node "$lost"
equal "[\"$leader\"]" "$(kat get nodes -o json | jq -c '[.items[].metadata.name]')" "machines that are left"
runs_on_one() { equal "[\"$leader\"]" "$(machines_running web)" "machines of web" && has_ready web 3; }
wait_for 120 runs_on_one
