# A machine that is reset while no other one can remove it, and restored from an older backup, is found by the others, also by one that was off
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 20
# leaves no cluster
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 90 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
kept=$(field_on web n2 .status)
address=$(jq -r .ip <<<"$kept")
# Process and start of the program of that instance.
program() {
    as_on n2 "$(jq -r .user <<<"$kept")" podman inspect --format '{{.State.Pid}} {{.State.StartedAt}}' \
        "$(jq -r '.unit | rtrimstr(".service")' <<<"$kept")"
}
before=$(program)
[[ $before ]]
n1 kat-agent backup /root/backup
n1 sh -c 'kat-agent recovery-key >/root/key'

# The backup has neither this workload nor this number of replicas.
run newer --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running newer)" "machines of the newer workload"
uid=$(field_on newer n2 .status.uid) user=$(field_on newer n2 .status.user)
nothing_of_newer() {
    absent "$1" "/var/lib/kat/units/$uid" "/run/user/$uid" "/etc/containers/systemd/users/$uid" &&
        prints_nothing "processes of $user on $1" on "$1" sh -c 'ps -u "$1" -o pid=,args= || [ $? = 1 ]' sh "$uid" &&
        refused on "$1" getent passwd "$user"
}
for node in n2 n3; do refused nothing_of_newer "$node" 2>/dev/null; done
kat scale workload web --replicas 6 --wait
process_count_is 9

# n3 is off and n2 is cut off: nobody removes n1 from the cluster. Machines that have removed it do not find it
# (56-reset-removed).
lab kill n3
lab cut n2
output=$(n1 kat-agent reset --yes --no-drain 2>&1)
contains "$output" "does not know that this machine left"
lab heal n2
on n2 jq -e '.endpoints.machines | has("n1")' /var/lib/kat/cluster.json
absent n1 /var/lib/kat/node.json /var/lib/kat/etcd
output=$(n1 kat-agent restore /root/backup --recovery-key-file /root/key 2>&1) || { echo "$output" >&2; false; }
contains "$output" "machine n1 is Ready"
restored=$EPOCHREALTIME
# left SECONDS: the rest of this time after the restore.
left() { echo $(($1 - $(tenths_since "$restored") / 10)); }
phase_is() { equal "$2" "$(kat get nodes "$1" -o json | jq -r .status.phase)" "phase of $1"; }
message_is() { contains "$(kat get nodes "$1" -o json | jq -r .status.message)" "$2"; }
# n3 was Ready in the backup, and is not called so before it has reported to this store.
wait_for 10 message_is n3 "machine n3 has not reported since the store was begun anew"
phase_is n3 NotReady

wait_for 90 nothing_of_newer n2
echo "n2 followed $(seconds_since "$restored") s after the restore"
wait_for "$(left 90)" phase_is n2 Ready
wait_for "$(left 90)" message_is n3 "machine n3 has not reported for"
phase_is n3 NotReady
# One of the three takes the place of the instance on n3.
wait_for "$(left 90)" has_ready web 3
LAB_MACHINES=2 wait_for "$(left 90)" process_count_is 3
equal 3 "$(kat get workload web -o json | jq .spec.replicas)" "replicas of web"
equal "$(jq -r .unit <<<"$kept")" "$(instances web | jq -r --arg ip "$address" '.[].status | select(.ip == $ip and .node == "n2") | .unit')" "the instance on n2"
equal "$before" "$(program)" "the program of the instance on n2"
answers "http://$address/"
refused kat get workload newer

# n3 ran newer when it lost power, and starts with what it knew.
lab start n3
started=$EPOCHREALTIME
wait_for 90 nothing_of_newer n3
wait_for 90 nodes_are_ready
echo "n3 followed $(seconds_since "$started") s after its start"
wait_for 30 has_ready web 3
wait_for 30 process_count_is 3
wait_for 30 invariants_hold
wait_for 90 members_are_healthy 3
equal "$before" "$(program)" "the program of the instance on n2 at the end"
