# Host paths are bound by descriptor, also over restarts without the agent, and no mount is left behind
# shellcheck shell=bash
n1 sh -c 'rm -rf /srv/app && mkdir -p /srv/app/data/in /srv/app/conf && chmod 777 /srv/app /srv/app/data /srv/app/data/in &&
    chown 4711 /srv/app && echo whole >/srv/app/data/name && echo inner >/srv/app/data/in/name && echo 1 >/srv/app/conf/file'
# The paths lie below a folder that is not root's. One is within another, and subPath names a folder
# within a path. The program may write to all of these folders.
run paths --port 80 \
    --spec 'volumes: [{name: data, hostMount: {hostPath: /srv/app/data, ensureType: Directory}}, {name: in, hostMount: {hostPath: /srv/app/data/in}}, {name: file, hostMount: {hostPath: /srv/app/conf/file, ensureType: File}}]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}, {name: in, mountPath: /in}, {name: data, mountPath: /sub, subPath: in}, {name: file, mountPath: /file, readOnly: true}]'
instance=$(field paths .metadata.name)
uid=$(field paths .status.uid) user=$(field paths .status.user) service=$(field paths .status.unit)
# `podman exec` works without an agent too.
within() { as "$user" podman exec "${service%.service}" "$@"; }
property() { as "$user" systemctl --user show --property="$1" --value "$service"; }
kill_program() { as "$user" podman kill --signal KILL "${service%.service}"; }
unit=kat-hostpath@$uid-$instance.service
bound=/run/kat-hostpath/$uid/$instance
mount_count() { n1 sh -c 'grep -c " /run/kat-hostpath/" /proc/self/mountinfo || true'; }
mount_count_is() { equal "$1" "$(mount_count)" "mounts of host paths"; }
program_sees_files() {
    equal whole "$(within cat /data/name)" "a file in a path of the machine" &&
        equal "inner inner" "$(within cat /in/name) $(within cat /sub/name)" "a file in folders within it" &&
        equal "$1" "$(within cat /file)" "a file of the machine"
}
program_sees_files 1
mount_count_is 4
within sh -c 'echo written >/sub/new'
equal written "$(n1 cat /srv/app/data/in/new)" "file that the program wrote"
refused within sh -c 'echo 2 >/file'
n1 sh -c "grep ' $bound/data/bound ' /proc/self/mountinfo" | grep -E ' rw,nosuid,nodev[, ]' >/dev/null
n1 sh -c "grep ' $bound/file/bound ' /proc/self/mountinfo" | grep -E ' ro,nosuid,nodev[, ]' >/dev/null
# Other users of the machine cannot list the bound paths.
refused n1 setpriv --reuid=65534 --regid=65534 --clear-groups ls "$bound"

# systemd restarts the program while no agent runs.
n1 systemctl stop kat-agent
before=$(property ExecMainStartTimestampMonotonic)
has_run_again() { (($(property ExecMainStartTimestampMonotonic) > before)) && within true; }
kill_program
wait_for 30 has_run_again
program_sees_files 1
# Without its bound paths the program does not start; it never gets an empty folder in place of the
# data.
n1 systemctl stop "$unit"
mount_count_is 0
equal whole "$(within cat /data/name)" "file in a folder that is still mounted"
absent n1 "$bound"
kill_program
unit_is_inactive() { equal inactive "$(property ActiveState)" "state"; }
wait_for 30 unit_is_inactive
n1 systemctl start kat-agent
wait_for 60 field_is paths .status.phase Running
wait_for 30 program_sees_files 1

# A replaced file is visible after systemd has restarted the program.
n1 sh -c 'echo 2 >/srv/app/conf/new && mv /srv/app/conf/new /srv/app/conf/file'
kill_program
file_is() { equal "$1" "$(within cat /file)" "a file that was replaced"; }
program_sees_new_file() { file_is 2 || { kill_program || true; sleep 2; return 1; }; }
wait_for 60 program_sees_new_file

# The state of an instance that an earlier version of KAT started: it continues to run, and the
# agent binds its paths for the next start.
before=$(property ExecMainStartTimestampMonotonic)
n1 systemctl stop "$unit"
n1 systemctl restart kat-agent
wait_for 30 mount_count_is 4
equal "$before" "$(property ExecMainStartTimestampMonotonic)" "start time of the program"
equal active "$(n1 systemctl is-active "$unit")" "unit that binds"

# After a boot the paths are bound only once the agent has checked them.
n1 systemctl mask --now kat-agent
lab reboot n1
n1 sleep 5
mount_count_is 0
n1 systemctl unmask kat-agent
n1 systemctl start kat-agent
wait_for 90 node_is_ready
wait_for 60 field_is paths .status.phase Running
wait_for 30 program_sees_files 2
mount_count_is 4

# KAT does not follow a symbolic link, whoever made it.
n1 sh -c 'mv /srv/app/data/in /srv/app/data/old && ln -s /etc /srv/app/data/in'
n1 systemctl stop "$unit"
kill_program
wait_for 60 field_is paths .status.reason HostPathIsLink
n1 sh -c 'rm /srv/app/data/in && mv /srv/app/data/old /srv/app/data/in'
wait_for 60 field_is paths .status.phase Running

kat delete workload paths --wait
wait_for 20 mount_count_is 0
absent n1 "/run/kat-hostpath/$uid"
prints_nothing "remaining plans and units" n1 sh -ec 'ls /run/kat/hostpath-plans; systemctl list-units --all --plain --no-legend "kat-hostpath@*"'
equal "whole inner" "$(n1 cat /srv/app/data/name) $(n1 cat /srv/app/data/in/name)" "the machine's files"
n1 rm -rf /srv/app
