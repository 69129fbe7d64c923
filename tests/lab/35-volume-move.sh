# Data moves to another machine completely, over a partition and a restart of agents, or stays where it was, and is never in use twice
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
base=/var/lib/kat/volumes
folder=$base/default/store/data
# The program writes a line at each start, and data of all kinds at the first.
# shellcheck disable=SC2016
fill='for n in $(seq 1000); do echo "file $n" >/data/f$n; done; ln /data/f1 /data/hard; ln -s /etc/passwd /data/link; mkfifo /data/pipe; mkdir -p /data/sub/empty; chmod 1777 /data/sub; dd if=/dev/zero of=/data/hole bs=1 count=1 seek=100M 2>/dev/null; dd if=/dev/urandom of=/data/large bs=1M count=MIB 2>/dev/null; sync'
# shellcheck disable=SC2016
command='echo "start $(date +%s)" >>/data/starts; test -e /data/large || { FILL; }; echo ready >>/data/starts; exec sleep 100000'
command=${command/FILL/${fill/MIB/120}}
store_folder() {
    workload store --container 'entrypoint: [/bin/busybox, sh, -c]' --container "command: ['$command']" \
        --container 'terminationGraceSeconds: 1' --container 'volumeMounts: [{name: data, mountPath: /data}]' \
        --spec 'volumes: [{name: data, simpleClusterStorage: {}}]' "$@"
}
volume() { kat get volume store/data -o json | jq -er "$1"; }
data_machine() { volume .status.node; }
# listing MACHINE: checksums of names, modes, owners, times and contents of all files but `starts`.
listing() {
    on "$1" sh -c "cd $folder && find . ! -name starts ! -path . -printf '%P %y %m %U %G %T@ %l %n\n' | sort | sha256sum &&
        find . -type f ! -name starts -print0 | sort -z | xargs -0 sha256sum | sha256sum"
}
# The number of starts that came to their end: each writes one line `ready`.
finished_starts() { on "$(data_machine)" grep -c '^ready' "$folder/starts"; }
finished_starts_are() { equal "$1" "$(finished_starts)" "finished starts"; }
no_copies_left() { for node in n1 n2 n3; do prints_nothing "copies left on $node" on "$node" sh -c "[ ! -e $base/.kat-moves ] || ls -A $base/.kat-moves" || return 1; done; }
is_copying() { [[ $(volume '.status.move | select(.phase == "Copying") | .bytes') -gt $((5 << 20)) ]]; }

kat label node n1 place=here
kat apply --wait -f "$(store_folder --spec 'nodeSelector: {place: here}')"
wait_for 120 finished_starts_are 1
kat apply --wait -f "$(store_folder)"
kat label node n1 place-
before=$(listing n1)

# A move that is not possible is refused with a reason, and moves nothing.
output=$(kat volume move store/data --to n9 2>&1) && exit 1
contains "$output" "n9"
equal "volume/store/data unchanged" "$(kat volume move store/data --to n1)" "a move to the machine that has the data"
kat drain n3
output=$(kat volume move store/data --to n3 2>&1) && exit 1
contains "$output" "n3 is being drained"
kat uncordon n3
wait_for 20 nodes_are_ready
finished_starts_are 1

# The data moves completely, and the old copy is kept.
began=$EPOCHREALTIME
output=$(kat volume move store/data --to n2 2>&1)
echo "the move took $began to $EPOCHREALTIME: $output"
contains "$output" "volume/store/data moved to n2"
contains "$output" "the copy on n1 is kept until"
equal n2 "$(data_machine)" "machine of the data"
wait_for 30 has_ready store 1
equal '["n2"]' "$(machines_running store)" "machines"
wait_for 30 finished_starts_are 2
equal "$before" "$(listing n2)" "data after the move"
equal "$before" "$(listing n1)" "the old copy"
equal n1 "$(volume '.status.kept | map(.node) | join(" ")')" "machine that keeps a copy"
contains "$(kat describe workload store)" "of store/data a copy is kept on n1 until"
events=$(kat get events)
contains "$events" VolumeMoveStarted
moved=$(grep VolumeMoved <<<"$events")
contains "$moved" "files"
echo "$moved"
n1 journalctl -u kat-agent --no-pager -g 'a volume (was sent|has come)' -o short-precise | tail -n 2
on n2 journalctl -u kat-agent --no-pager -g 'a volume (was sent|has come)' -o short-precise | tail -n 2
wait_for 20 no_copies_left

# The data moves back over the kept copy, with the network cut during the copy.
before=$(listing n2)
kat volume move store/data --to n1 --no-wait
wait_for 60 is_copying
contains "$(kat get volumes)" "Moving to n1"
contains "$(kat why workload store)" "on its way from n2 to n1"
equal VolumeMoving "$(kat get workload store -o json | jq -r ".status.conditions[0].reason")" "reason of the workload"
output=$(kat volume move store/data --to n3 2>&1) && exit 1
contains "$output" "is on its way to n1"
lab cut n2
is_lost() { kat get nodes n2 -o json | jq -e '.status.phase == "NotReady"'; }
wait_for 40 is_lost
equal '[]' "$(machines_running store)" "machines during the move"
lab heal n2
wait_for 60 nodes_are_ready
runs_on_n1() { [[ $(data_machine) == n1 && $(volume .status.phase) == Bound ]] && has_ready store 1; }
wait_for 180 runs_on_n1
wait_for 30 finished_starts_are 3
equal "$before" "$(listing n1)" "data after a cut"
equal '["n1"]' "$(machines_running store)" "machines after a cut"

# Both agents restart during the copy.
before=$(listing n1)
kat volume move store/data --to n3 --no-wait
wait_for 60 is_copying
n1 systemctl restart kat-agent
on n3 systemctl restart kat-agent
runs_on_n3() { [[ $(data_machine) == n3 && $(volume .status.phase) == Bound ]] && has_ready store 1; }
wait_for 180 runs_on_n3
wait_for 30 finished_starts_are 4
equal "$before" "$(listing n3)" "data after restarts of agents"
wait_for 20 no_copies_left

# The target's disk is too small: the reason says so, and the move can be cancelled.
before=$(listing n3)
on n2 sh -c "mv $base $base.aside && mkdir $base && mount -t tmpfs -o size=64m,mode=755 none $base"
kat volume move store/data --to n2 --no-wait
reports_missing_space() { kat get workload store -o json | jq -e '.status.conditions[] | select(.reason == "VolumeMoveFailing" and (.message | contains("MiB are free")))'; }
wait_for 60 reports_missing_space
contains "$(kat why workload store)" "MiB are free"
contains "$(kat get events)" VolumeMoveFailed
equal "volume/store/data cancelled" "$(kat volume move store/data --cancel)" "cancellation of a move"
wait_for 60 has_ready store 1
wait_for 30 finished_starts_are 5
equal '["n3"]' "$(machines_running store)" "machines after a cancelled move"
equal "$before" "$(listing n3)" "data after a cancelled move"
wait_for 20 no_copies_left
on n2 sh -c "umount $base && rmdir $base && mv $base.aside $base"

# A move makes it possible to drain a machine with data. The deletion of the workload deletes all
# copies.
code=0
output=$(kat drain n3 --timeout 5s 2>&1) || code=$?
equal 5 "$code" "exit code of an unfinished drain"
contains "$output" "katcall volume move default/store/data --to NODE"
kat volume move store/data --to n2
wait_for 60 has_ready store 1
kat drain n3 --timeout 60s
kat uncordon n3
kat delete workload store --volumes --yes --wait
for node in n1 n2 n3; do refused on "$node" test -e "$base/default/store"; done
