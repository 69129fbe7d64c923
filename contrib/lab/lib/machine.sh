# shellcheck shell=bash
# Machines: created once, booted, entered, killed.

NETWORK_FILE=etc/systemd/network/10-host0.network

network_file() {
    cat <<EOF
[Match]
Name=host0

[Network]
Address=$(node_address "$1")/24
Gateway=$(gateway_of "$1")
DNS=$LAB_GATEWAY
LinkLocalAddressing=ipv6
IPv6AcceptRA=no
EOF
}

# The folders of a machine, filled once; they survive its reboots and its death.
create_machine() {
    local node=$1 dir root
    dir=$(node_dir "$node")
    root=$(root_path)
    [[ -e $dir/created ]] && return
    rm -rf --one-file-system "$dir"
    mkdir -p "$dir"/{upper/etc/systemd/network,work,root,home}
    cp -a "$root/var" "$dir/var"
    chmod 0755 "$dir"/{upper,upper/etc,home}
    echo "$node" >"$dir/upper/etc/hostname"
    systemd-id128 new >"$dir/upper/etc/machine-id"
    chmod 0444 "$dir/upper/etc/machine-id"
    network_file "$node" >"$dir/upper/$NETWORK_FILE"
    echo "$root" >"$dir/created"
    ! lab_is_vm || prepare_vm "$node"
}

# The pid of the systemd-nspawn of a machine, and of the systemd in it.
nspawn_pid() { recorded_pid "$(node_dir "$1")/nspawn.pid"; }

leader_pid() {
    local nspawn child children
    if lab_is_vm; then
        vm_pid "$1"
        return
    fi
    nspawn=$(nspawn_pid "$1") || return 1
    { read -ra children <"/proc/$nspawn/task/$nspawn/children"; } 2>/dev/null || true
    for child in "${children[@]}"; do
        grep -q '^NSpid:.*[[:space:]]1$' "/proc/$child/status" 2>/dev/null || continue
        printf '%s\n' "$child"
        return 0
    done
    return 1
}

# boot_machine NODE [CLOCK]: starts a machine and returns; wait_machine waits until it is up.
boot_machine() {
    local node=$1 dir root
    dir=$(node_dir "$node")
    if lab_is_vm; then
        boot_vm "$@"
        return
    fi
    nspawn_pid "$node" >/dev/null && return
    root=$(<"$dir/created")
    [[ -d $root ]] || die "$root, which $node was made from, is gone: 'kat-lab down', then 'up'"
    printf -- '---- boots ----\n' >>"$dir/console.log"
    local run=(unshare --mount --propagation private -- "$LAB_LIB/run-machine")
    if host_has_systemd; then
        # As systemd-nspawn@.service does: the unit's group is delegated, and 133 says that it reboots.
        launch "$node" "$dir/console.log" "$dir/supervisor.pid" \
            --property=Delegate=yes --property=KillMode=mixed --property=TasksMax=16384 \
            --property=RestartForceExitStatus=133 --property=SuccessExitStatus=133 \
            -- "${run[@]}" once "$root" "$dir" "$node" "$(bridge_of "$node")" -
    else
        cgroup_remove "$node"
        launch "$node" "$dir/console.log" "$dir/supervisor.pid" \
            -- "${run[@]}" loop "$root" "$dir" "$node" "$(bridge_of "$node")" "$(cgroup_of "$node")"
    fi
}

machine_is_up() {
    local node=$1 state
    if ! leader_pid "$node" >/dev/null; then
        # Gone for good, or not there yet: a machine that ended won't be waited for.
        return 1
    fi
    state=$(enter "$node" systemctl is-system-running 2>/dev/null) || true
    [[ $state == running || $state == degraded ]] || waits_for_others "$node" "$state" || return 1
    [[ -e $(node_dir "$node")/cut ]] && return 0
    enter "$node" ping -c1 -W1 "$LAB_GATEWAY" >/dev/null 2>&1 &&
        enter "$node" getent ahostsv4 outside.test >/dev/null 2>&1
}

# Only the cluster's store is still on its way: it may need the other machines, which are not up yet.
waits_for_others() {
    [[ $2 == starting ]] &&
        [[ $(enter "$1" systemctl list-jobs --plain --no-legend --no-pager 2>/dev/null | awk '{ print $2 }') == kat-etcd.service ]]
}

# 0 once the machine is up, also where it ended instead: CAME says which.
machine_came_or_ended() {
    CAME=yes
    machine_is_up "$1" && return
    CAME=no
    lab_is_vm && ! vm_pid "$1" >/dev/null
}

# A machine that came up once has: asked again, it may just be busy with a job that begins or ends in that moment.
wait_machine() {
    local dir CAME=no
    wait_for "$(patience)" machine_came_or_ended "$1" && [[ $CAME == yes ]] && return
    dir=$(node_dir "$1")
    say "$1 did not come up in $(patience) s; its console said:"
    tail -n 60 "$dir/console.log" >&2
    if leader_pid "$1" >/dev/null; then
        enter "$1" systemctl list-jobs --no-pager >&2 || true
        enter "$1" systemctl --failed --no-pager >&2 || true
    fi
    die "$1 did not come up; all of its console is in $dir/console.log"
}

# become NODE COMMAND...: this process becomes the command, as root, in the machine's init.scope, with a
# clean environment. A shell waits outside of the machine's pid namespace for the command: where that is killed, the
# command is told to end. nsenter's own wait won't do: it stops with a command that is stopped, which systemd does to
# all at a shutdown, and a machine can't end while an ended process of it is not waited for.
become() {
    local node=$1 pid group
    ! lab_is_vm || become_in_vm "$@"
    shift
    pid=$(leader_pid "$node") || die "$node is not running"
    group=${BECOME_CGROUP:-$(machine_cgroup "$pid")/init.scope}
    echo "$BASHPID" >"$group/cgroup.procs"
    # shellcheck disable=SC2016
    exec nsenter --target "$pid" --all --no-fork -- /bin/bash -c '"$@"; exit $?' bash \
        /usr/bin/env --chdir=/ --ignore-environment \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root USER=root LOGNAME=root SHELL=/bin/bash LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        ${NO_COLOR:+NO_COLOR="$NO_COLOR"} setpriv --pdeathsig TERM -- "$@" 8>&-
}

enter() { (become "$@"); }

# The machine's root control group, as this host sees it.
machine_cgroup() {
    local path
    path=$(sed -n 's/^0:://p' "/proc/$1/cgroup")
    printf '%s%s\n' "$(cgroup_root)" "${path%/init.scope}"
}

# become_user NODE USER COMMAND...: the same as that user, and beside the user's own manager where it
# runs, so that 'systemctl --user' and 'podman run' work as they do for a user who logged in.
become_user() {
    local node=$1 user=$2 entry uid gid home shell groups pid manager
    shift 2
    if entry=$(enter "$node" getent passwd "$user"); then
        IFS=: read -r user _ uid gid _ home shell <<<"$entry"
        groups=--init-groups
    elif [[ $user =~ ^[0-9]+$ ]]; then
        uid=$user gid=$user home=/ shell=/bin/sh groups=--clear-groups
    else
        die "$node has no user $user"
    fi
    local slice=user.slice/user-$uid.slice/user@$uid.service/init.scope enter_group=':' runtime=()
    if lab_is_vm; then
        ! enter "$node" test -d "/sys/fs/cgroup/$slice" || enter_group="echo \$\$ >/sys/fs/cgroup/$slice/cgroup.procs"
    else
        pid=$(leader_pid "$node") || die "$node is not running"
        manager=$(machine_cgroup "$pid")/$slice
        [[ ! -d $manager ]] || local BECOME_CGROUP=$manager
    fi
    if [[ ${BECOME_CGROUP:-} || $enter_group != : ]]; then
        runtime=(XDG_RUNTIME_DIR="/run/user/$uid" DBUS_SESSION_BUS_ADDRESS="unix:path=/run/user/$uid/bus")
    fi
    # shellcheck disable=SC2016
    become "$node" sh -c "$enter_group"'; exec "$@"' sh \
        setpriv --reuid="$uid" --regid="$gid" "$groups" --pdeathsig TERM -- \
        env HOME="$home" USER="$user" LOGNAME="$user" SHELL="$shell" "${runtime[@]}" \
        sh -c 'cd 2>/dev/null; exec "$@"' sh "$@"
}

# Power off by the plug.
kill_machine() {
    local node=$1 dir leader
    dir=$(node_dir "$node")
    leader=$(leader_pid "$node") || leader=
    ! host_has_systemd || stop_unit "$node"
    kill_recorded "$dir/supervisor.pid" || true
    kill_recorded "$dir/nspawn.pid" || true
    ! lab_is_vm || cgroup_remove "run-$node"
    [[ -z $leader ]] || kill -KILL "$leader" 2>/dev/null || true
    cgroup_remove "$node"
    # It goes with the machine's network, which the kernel takes down later than its processes.
    ! link_exists "$node" || in_lab ip link delete dev "$(link_of "$node")" 2>/dev/null || true
}
