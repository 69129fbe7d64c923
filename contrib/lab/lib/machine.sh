# shellcheck shell=bash
# Machines: creation, boot, commands in them, and power off.

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

# Creates the folders of a machine. They outlive its reboots and power cuts.
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
    if [[ ${KAT_LAB_STATE_SIZE:-} ]]; then
        lab_is_vm && die "KAT_LAB_STATE_SIZE is for containers: a virtual machine has a disk of its own"
        mkdir -p "$dir/var/lib/kat"
        truncate --size="$KAT_LAB_STATE_SIZE" "$dir/state"
        mke2fs -q -F -t ext4 -m 0 "$dir/state"
    fi
    echo "$root" >"$dir/created"
    ! lab_is_vm || prepare_vm "$node"
}

# nspawn_pid NODE: the pid of systemd-nspawn. init_pid NODE: the pid of the systemd in the machine,
# seen from the host; find_init_pid sets INIT_PID to it.
nspawn_pid() { recorded_pid "$(node_dir "$1")/nspawn.pid"; }

find_init_pid() {
    local nspawn child children=() status
    if lab_is_vm; then
        INIT_PID=$(vm_pid "$1")
        return
    fi
    find_recorded_pid "$LAB_STATE/machines/$1/nspawn.pid" || return 1
    nspawn=$RECORDED_PID
    { read -ra children <"/proc/$nspawn/task/$nspawn/children"; } 2>/dev/null || true
    for child in "${children[@]}"; do
        # Read at once: line by line the file would change in between.
        status=''
        { IFS= read -r -d '' status <"/proc/$child/status"; } 2>/dev/null || true
        status=${status#*$'\n'NSpid:}
        [[ ${status%%$'\n'*} == *[[:space:]]1 ]] || continue
        INIT_PID=$child
        return 0
    done
    return 1
}
init_pid() { find_init_pid "$1" && printf '%s\n' "$INIT_PID"; }

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
    [[ -d $root ]] || die "the root file system of $node, $root, is missing: run 'kat-lab down', then 'kat-lab up'"
    printf -- '---- boots ----\n' >>"$dir/console.log"
    local run=(unshare --mount --propagation private -- "$LAB_LIB/run-machine")
    if host_has_systemd; then
        # As in systemd-nspawn@.service the unit's group is delegated, and exit code 133 means a
        # reboot.
        start_process "$node" "$dir/console.log" "$dir/supervisor.pid" \
            --property=Delegate=yes --property=KillMode=mixed --property=TasksMax=16384 \
            --property=RestartForceExitStatus=133 --property=SuccessExitStatus=133 \
            -- "${run[@]}" once "$root" "$dir" "$node" "$(bridge_of "$node")" -
    else
        cgroup_remove "$node"
        start_process "$node" "$dir/console.log" "$dir/supervisor.pid" \
            -- "${run[@]}" loop "$root" "$dir" "$node" "$(bridge_of "$node")" "$(cgroup_of "$node")"
    fi
}

machine_is_up() {
    local node=$1 state
    if ! init_pid "$node" >/dev/null; then
        # Without a systemd in it the machine has ended or has not started yet.
        return 1
    fi
    state=$(run_in "$node" systemctl is-system-running 2>/dev/null) || true
    [[ $state == running || $state == degraded ]] || waits_only_for_etcd "$node" "$state" || return 1
    [[ -e $(node_dir "$node")/cut ]] && return 0
    run_in "$node" ping -c1 -W1 "$LAB_GATEWAY" >/dev/null 2>&1 &&
        run_in "$node" getent ahostsv4 outside.test >/dev/null 2>&1
}

# Whether etcd is the only unit that is still starting: it may need other machines, which are not up
# yet.
waits_only_for_etcd() {
    [[ $2 == starting ]] &&
        [[ $(run_in "$1" systemctl list-jobs --plain --no-legend --no-pager 2>/dev/null | awk '{ print $2 }') == kat-etcd.service ]]
}

# Succeeds when the machine is up, and also when a virtual machine has ended. IS_UP is yes or no.
machine_is_up_or_ended() {
    IS_UP=yes
    machine_is_up "$1" && return
    IS_UP=no
    lab_is_vm && ! vm_pid "$1" >/dev/null
}

# Checks machine_is_up only until its first success: later a job that begins or ends may make it
# fail for a moment.
wait_until_up() {
    local dir IS_UP=no
    wait_for "$(boot_timeout)" machine_is_up_or_ended "$1" && [[ $IS_UP == yes ]] && return
    dir=$(node_dir "$1")
    say "$1 did not come up in $(boot_timeout) s; the end of its console:"
    tail -n 60 "$dir/console.log" >&2
    if init_pid "$1" >/dev/null; then
        run_in "$1" systemctl list-jobs --no-pager >&2 || true
        run_in "$1" systemctl --failed --no-pager >&2 || true
    fi
    die "$1 did not come up; its console is in $dir/console.log"
}

# exec_in NODE COMMAND...: replaces this process with the command, which runs as root in the
# machine's init.scope with a clean environment. A shell outside the machine's pid namespace waits
# for the command; if the shell is killed, the command gets SIGTERM. nsenter's own wait is not used:
# it stops together with a stopped command, systemd stops all processes at a shutdown, and a machine
# cannot end before its ended processes are waited for.
exec_in() {
    local node=$1 pid group=${EXEC_CGROUP:-}
    ! lab_is_vm || exec_in_vm "$@"
    shift
    find_init_pid "$node" || die "$node is not running"
    pid=$INIT_PID
    if [[ ! $group ]]; then
        find_machine_cgroup "$pid"
        group=$MACHINE_CGROUP/init.scope
    fi
    echo "$BASHPID" >"$group/cgroup.procs"
    # shellcheck disable=SC2016
    exec nsenter --target "$pid" --all --no-fork -- /bin/bash -c '"$@"; exit $?' bash \
        /usr/bin/env --chdir=/ --ignore-environment \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root USER=root LOGNAME=root SHELL=/bin/bash LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        ${NO_COLOR:+NO_COLOR="$NO_COLOR"} setpriv --pdeathsig TERM -- "$@" 8>&-
}

run_in() { (exec_in "$@"); }

# find_machine_cgroup PID: sets MACHINE_CGROUP to the path of the machine's root control group on the host.
find_machine_cgroup() {
    local groups=''
    { IFS= read -r -d '' groups <"/proc/$1/cgroup"; } 2>/dev/null || true
    # Without it this process would end up in a control group of the host.
    [[ $groups == *0::/* ]] || die "process $1 has ended"
    groups=${groups##*0::}
    groups=${groups%%$'\n'*}
    find_cgroup_root
    MACHINE_CGROUP=$CGROUP_ROOT${groups%/init.scope}
}

# find_user NODE USER: sets USER_ENTRY to the line of passwd(5) of this name or number.
find_user() {
    local line name uid
    if ! lab_is_vm && find_init_pid "$1"; then
        while IFS= read -r line; do
            IFS=: read -r name _ uid _ <<<"$line"
            [[ $name != "$2" && $uid != "$2" ]] || { USER_ENTRY=$line && return 0; }
        done <"/proc/$INIT_PID/root/etc/passwd"
    fi
    USER_ENTRY=$(run_in "$1" getent passwd "$2")
}

# exec_as_user NODE USER COMMAND...: the same as USER. If the user's manager runs, the command runs
# beside it, so `systemctl --user` and `podman run` work as in a login session.
exec_as_user() {
    local node=$1 user=$2 uid gid home shell groups manager
    shift 2
    if find_user "$node" "$user"; then
        IFS=: read -r user _ uid gid _ home shell <<<"$USER_ENTRY"
        groups=--init-groups
    elif [[ $user =~ ^[0-9]+$ ]]; then
        uid=$user gid=$user home=/ shell=/bin/sh groups=--clear-groups
    else
        die "$node has no user $user"
    fi
    local slice=user.slice/user-$uid.slice/user@$uid.service/init.scope enter_group=':' runtime=()
    if lab_is_vm; then
        ! run_in "$node" test -d "/sys/fs/cgroup/$slice" || enter_group="echo \$\$ >/sys/fs/cgroup/$slice/cgroup.procs"
    else
        find_init_pid "$node" || die "$node is not running"
        find_machine_cgroup "$INIT_PID"
        manager=$MACHINE_CGROUP/$slice
        [[ ! -d $manager ]] || local EXEC_CGROUP=$manager
    fi
    if [[ ${EXEC_CGROUP:-} || $enter_group != : ]]; then
        runtime=(XDG_RUNTIME_DIR="/run/user/$uid" DBUS_SESSION_BUS_ADDRESS="unix:path=/run/user/$uid/bus")
    fi
    # shellcheck disable=SC2016
    exec_in "$node" sh -c "$enter_group"'; exec "$@"' sh \
        setpriv --reuid="$uid" --regid="$gid" "$groups" --pdeathsig TERM -- \
        env HOME="$home" USER="$user" LOGNAME="$user" SHELL="$shell" "${runtime[@]}" \
        sh -c 'cd 2>/dev/null; exec "$@"' sh "$@"
}

# Ends a machine with SIGKILL, as a loss of power would.
power_off() {
    local node=$1 dir pid
    dir=$(node_dir "$node")
    pid=$(init_pid "$node") || pid=
    ! host_has_systemd || stop_unit "$node"
    kill_recorded "$dir/supervisor.pid" || true
    kill_recorded "$dir/nspawn.pid" || true
    ! lab_is_vm || { cgroup_remove "run-$node"; vm_disconnect "$node"; }
    [[ -z $pid ]] || kill -KILL "$pid" 2>/dev/null || true
    cgroup_remove "$node"
    # The link disappears with the machine's network namespace, which the kernel removes later than
    # the processes.
    ! link_exists "$node" || in_lab ip link delete dev "$(link_of "$node")" 2>/dev/null || true
}
