# A file system that hangs under a running instance is said of its machine, and a program that it keeps from ending too
# shellcheck shell=bash
cc -O2 -static -Wall -Wextra -Werror -o "$LAB_WORK/hung" tests/lab/images/hung/hung.c
lab copy "$LAB_WORK/hung" n1:/root/hung
n1 mkdir -p /srv/nas
n1 systemd-run --quiet --collect --unit=hung /root/hung /srv/nas reads
answer_again() {
    n1 systemctl stop hung.service || true
    ! n1 grep -q ' /srv/nas ' /proc/self/mountinfo || n1 umount --lazy /srv/nas
}
trap answer_again EXIT
is_mounted() { n1 grep -q ' /srv/nas .* fuse ' /proc/self/mountinfo; }
wait_for 5 is_mounted
signal() { n1 kill -"$1" "$(n1 systemctl show --property MainPID --value hung.service)"; }
# says TEXT: whether status exits with 1 and says this.
says() {
    local code=0 said
    said=$(kat status) || code=$?
    [[ $code == 1 && $said == *"$1"* ]]
}
kat apply -f "$(workload nas --port 80 --spec 'volumes: [{name: data, hostMount: {hostPath: /srv/nas/data}}]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}]' --container 'terminationGraceSeconds: 1')" --wait
instance=$(field nas .metadata.name) uid=$(n1 id --user "$(field nas .status.user)") address=$(field nas .status.ip)
n1 curl --silent --max-time 600 "http://$address/read?/data/file" >/dev/null 2>&1 &
reads_hang() { n1 journalctl --quiet --unit hung.service --output cat | grep -qx read; }
# After it was killed: a process in such a read does not end.
cannot_be_killed() { n1 ps -eLo stat=,comm= | grep -q '^D.* web$'; }
wait_for 10 reads_hang
# The file system as a whole hangs: the program runs, and says nothing of it.
signal STOP
wait_for 40 says "node n1: DisksAnswer: DiskNotAnswering: the file system at /srv/nas has not answered since 20"
says "it is used by default/nas"
signal CONT
is_well() { kat status >/dev/null; }
wait_for 40 is_well
# Reads hang still, so that nothing can kill the program: the instance has not stopped.
kat delete workload nas
wait_for 200 field_is nas .status.reason StopNotEnding
contains "$(field nas .status.message)" "systemd-cgls /user.slice/user-$uid.slice/"
says StopNotEnding
has_not_ended() { [[ $(field nas .status.message) == *"processes of it have not"* ]]; }
wait_for 200 has_not_ended
cannot_be_killed
answer_again
wait_for 60 instance_is_gone nas "$instance"
# Nothing is left for the tests that follow.
n1 rm -r /srv/nas
