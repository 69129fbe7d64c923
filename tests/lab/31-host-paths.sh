# Host paths are bound by descriptor, also over restarts without the agent, and no mount is left behind
# shellcheck shell=bash
n1 sh -c 'rm -rf /srv/app && mkdir -p /srv/app/data/in /srv/app/conf && chmod 777 /srv/app /srv/app/data /srv/app/data/in &&
    chown 4711 /srv/app && echo whole >/srv/app/data/name && echo inner >/srv/app/data/in/name && echo 1 >/srv/app/conf/file'
# Below a folder that is not root's, one within another, and a folder within it, all of which the program may write to.
run paths --port 80 \
    --spec 'volumes: [{name: data, hostMount: {hostPath: /srv/app/data, ensureType: Directory}}, {name: in, hostMount: {hostPath: /srv/app/data/in}}, {name: file, hostMount: {hostPath: /srv/app/conf/file, ensureType: File}}]' \
    --container 'volumeMounts: [{name: data, mountPath: /data}, {name: in, mountPath: /in}, {name: data, mountPath: /sub, subPath: in}, {name: file, mountPath: /file, readOnly: true}]'
instance=$(field paths .metadata.name)
uid=$(field paths .status.uid) user=$(field paths .status.user) service=$(field paths .status.unit)
# Also where no agent answers.
within() { as "$user" podman exec "${service%.service}" "$@"; }
property() { as "$user" systemctl --user show --property="$1" --value "$service"; }
ends() { as "$user" podman kill --signal KILL "${service%.service}"; }
unit=kat-hostpath@$uid-$instance.service
bound=/run/kat-hostpath/$uid/$instance
mounts() { n1 sh -c 'grep -c " /run/kat-hostpath/" /proc/self/mountinfo || true'; }
has_mounts() { equal "$1" "$(mounts)" "mounts of host paths"; }
sees_all() {
    equal whole "$(within cat /data/name)" "a file in a path of the machine"
    equal "inner inner" "$(within cat /in/name) $(within cat /sub/name)" "a file in folders within it"
    equal "$1" "$(within cat /file)" "a file of the machine"
}
sees_all 1
has_mounts 4
within sh -c 'echo written >/sub/new'
equal written "$(n1 cat /srv/app/data/in/new)" "what the program wrote"
refused within sh -c 'echo 2 >/file'
n1 sh -c "grep ' $bound/data/bound ' /proc/self/mountinfo" | grep -E ' rw,nosuid,nodev[, ]' >/dev/null
n1 sh -c "grep ' $bound/file/bound ' /proc/self/mountinfo" | grep -E ' ro,nosuid,nodev[, ]' >/dev/null
# Other users of the machine see none of it.
refused n1 setpriv --reuid=65534 --regid=65534 --clear-groups ls "$bound"

# systemd starts it again, and nobody else is there.
n1 systemctl stop kat-agent
before=$(property ExecMainStartTimestampMonotonic)
has_run_again() { (($(property ExecMainStartTimestampMonotonic) > before)) && within true; }
ends
wait_for 30 has_run_again
sees_all 1
# Where nothing is bound it does not start, and has nothing empty in place of the data.
n1 systemctl stop "$unit"
has_mounts 0
equal whole "$(within cat /data/name)" "what it had mounted"
refused n1 test -e "$bound"
ends
is_over() { equal inactive "$(property ActiveState)" "state"; }
wait_for 30 is_over
n1 systemctl start kat-agent
wait_for 60 field_is paths .status.phase Running
wait_for 30 sees_all 1

# What took the place of a file is there when systemd starts the program again.
n1 sh -c 'echo 2 >/srv/app/conf/new && mv /srv/app/conf/new /srv/app/conf/file'
ends
shows() { equal "$1" "$(within cat /file)" "a file that was replaced"; }
sees_new() { shows 2 || { ends || true; sleep 2; return 1; }; }
wait_for 60 sees_new

# As an instance is that an earlier version started: it runs on, and is bound for its next start.
before=$(property ExecMainStartTimestampMonotonic)
n1 systemctl stop "$unit"
n1 systemctl restart kat-agent
wait_for 30 has_mounts 4
equal "$before" "$(property ExecMainStartTimestampMonotonic)" "begin of the program"
equal active "$(n1 systemctl is-active "$unit")" "unit that binds"

# After a boot it waits for the agent, which looks first.
n1 systemctl mask --now kat-agent
lab reboot n1
n1 sleep 5
has_mounts 0
n1 systemctl unmask kat-agent
n1 systemctl start kat-agent
wait_for 90 node_is_ready
wait_for 60 field_is paths .status.phase Running
wait_for 30 sees_all 2
has_mounts 4

# A link is not followed, whoever put it there.
n1 sh -c 'mv /srv/app/data/in /srv/app/data/old && ln -s /etc /srv/app/data/in'
n1 systemctl stop "$unit"
ends
wait_for 60 field_is paths .status.reason HostPathIsLink
n1 sh -c 'rm /srv/app/data/in && mv /srv/app/data/old /srv/app/data/in'
wait_for 60 field_is paths .status.phase Running

kat delete workload paths --wait
wait_for 20 has_mounts 0
refused n1 test -e "/run/kat-hostpath/$uid"
equal '' "$(n1 sh -c 'ls /run/kat/hostpath-plans; systemctl list-units --all --plain --no-legend "kat-hostpath@*"')" "what is left"
equal "whole inner" "$(n1 cat /srv/app/data/name) $(n1 cat /srv/app/data/in/name)" "the machine's files"
n1 rm -rf /srv/app
