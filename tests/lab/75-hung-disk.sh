# A file system that hangs delays the workload on it, and nothing else of its machine
# shellcheck shell=bash
cc -O2 -static -Wall -Wextra -Werror -o "$LAB_WORK/hung" tests/lab/images/hung/hung.c
lab copy "$LAB_WORK/hung" n1:/root/hung
# The control: how long a restart of the agent takes.
began=$EPOCHREALTIME
n1 systemctl restart kat-agent
usual=$(tenths_since "$began")
n1 mkdir -p /srv/nas
n1 systemd-run --quiet --collect --unit=hung /root/hung /srv/nas
answer_again() {
    n1 systemctl stop hung.service || true
    ! n1 grep -q ' /srv/nas ' /proc/self/mountinfo || n1 umount --lazy /srv/nas
}
trap answer_again EXIT
is_mounted() { n1 grep -q ' /srv/nas .* fuse ' /proc/self/mountinfo; }
wait_for 5 is_mounted
# The control: a look at it hangs.
code=0
n1 timeout --signal=KILL 1 stat /srv/nas || code=$?
equal 137 "$code" "exit code of a look that was killed"
folder=$(workload nas --port 80 --spec 'volumes: [{name: data, hostMount: {hostPath: /srv/nas/data}}]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]')
kat apply -f "$folder"
wait_for 20 field_is nas .status.reason DiskNotAnswering
contains "$(field nas .status.message)" "the file system at /srv/nas has not answered since 20"
# One process hangs for the volume, and one for the machine's condition; no other one is started beside them.
looks() { n1 pgrep --full --count '^/proc/self/exe work-on-disk' || true; }
two_look() { [[ $(looks) == 2 ]]; }
wait_for 30 two_look
# Others start, serve and are removed, and the machine reports.
run other --port 80
answers "http://$(field other .status.ip)/"
other=$(field other .metadata.name)
kat delete workload other
wait_for 10 instance_is_gone other "$other"
node_is_ready
equal 2 "$(looks)" "processes that look at it"
# A restart of the agent does not wait for those processes.
began=$EPOCHREALTIME
n1 systemctl restart kat-agent
took=$(tenths_since "$began")
echo "the agent's restart took $took tenths of a second, and $usual before"
((took < usual + 50)) || { echo "the agent's restart waits for the disk" >&2 && exit 1; }
wait_for 30 field_is nas .status.reason DiskNotAnswering
node_is_ready
# The workload that waits for the disk can be deleted and applied once more.
kat delete workload nas --wait --timeout 20s
answer_again
n1 mkdir -p /srv/nas/data
kat apply -f "$folder" --wait
has_ready nas 1
kat delete workload nas --wait
# Nothing is left for the tests that follow.
n1 rm -r /srv/nas
