# shellcheck shell=bash
# Shared by all verbs: settings, messages, locks, processes and control groups.

LAB_NAME=${KAT_LAB_NAME:-kat-lab}
LAB_BASE=${KAT_LAB_DIR:-/var/tmp/kat-lab}
LAB_CACHE=${KAT_LAB_CACHE:-/var/cache/kat-lab}
LAB_STATE=$LAB_BASE/$LAB_NAME
LAB_TIMEOUT=${KAT_LAB_TIMEOUT:-90}

# Addresses and links are inside the lab's network namespace, so labs with different names use the
# same ones.
# shellcheck disable=SC2034 # used by the files beside this one
{
    LAB_BRIDGE=lab0
    LAB_NET=192.168.77
    LAB_GATEWAY=$LAB_NET.1
    LAB_NAT=172.30
    LAB_MAX_NODES=20
}

# boot_timeout: the time limit for a machine's boot in seconds. Emulation is slow, so virtual
# machines have longer.
boot_timeout() { if lab_is_vm; then echo $((LAB_TIMEOUT * 4)); else echo "$LAB_TIMEOUT"; fi; }

say() { printf 'kat-lab: %s\n' "$*" >&2; }
# LAB_FAILURE is the exit code for failures of the lab; exec and shell have 126, since 1 may be that of their command.
die() { say "$@"; exit "${LAB_FAILURE:-1}"; }
usage_error() { say "$@"; say "try 'kat-lab help'"; exit 2; }

check_settings() {
    [[ $LAB_NAME =~ ^[a-z][a-z0-9-]{0,30}$ ]] ||
        usage_error "KAT_LAB_NAME must be lower-case letters, digits and dashes, at most 31: $LAB_NAME"
    [[ $LAB_BASE == /?* && $LAB_CACHE == /?* ]] ||
        usage_error "KAT_LAB_DIR and KAT_LAB_CACHE must be absolute paths"
    [[ $LAB_TIMEOUT =~ ^[1-9][0-9]*$ ]] || usage_error "KAT_LAB_TIMEOUT must be seconds: $LAB_TIMEOUT"
    [[ ${KAT_LAB_STATE_SIZE:-1G} =~ ^[1-9][0-9]*[MG]$ ]] ||
        usage_error "KAT_LAB_STATE_SIZE must be a size such as 600M or 2G: $KAT_LAB_STATE_SIZE"
    [[ ${KAT_LAB_SUITE:-trixie} =~ ^[a-z]+$ ]] ||
        usage_error "KAT_LAB_SUITE must be the name of a release of Debian, such as trixie or testing: $KAT_LAB_SUITE"
    [[ ${KAT_LAB_ARCH:-amd64} == @(amd64|arm64) ]] || usage_error "KAT_LAB_ARCH must be amd64 or arm64: $KAT_LAB_ARCH"
    ((EUID == 0)) || die "machines need root: run it with sudo"
}

check_node() {
    [[ $1 =~ ^n([1-9][0-9]?)$ && ${BASH_REMATCH[1]} -le $LAB_MAX_NODES ]] ||
        usage_error "no such machine: $1 (machines are n1 to n$LAB_MAX_NODES)"
}

node_dir() { printf '%s/machines/%s\n' "$LAB_STATE" "$1"; }
# The address that `readdress` set, else the machine's first address.
node_address() {
    cat "$(node_dir "$1")/address" 2>/dev/null || printf '%s.%d\n' "$LAB_NET" $((10 + ${1#n}))
}

# Prints the machines of this lab, by their numbers.
nodes() {
    local dir
    for dir in "$LAB_STATE"/machines/n*/; do
        [[ -d $dir ]] && basename "$dir"
    done | sort -V
}

# Only one verb at a time changes a lab. File descriptor 8 holds the lock for the life of the
# process; processes that stay are started with 8>&-. `down` removes the file.
lock_lab() {
    local file=$LAB_BASE/.$LAB_NAME.lock
    local failures=0
    while true; do
        # A `down` of another lab may remove the empty folder between the two.
        if ! { mkdir -p "$LAB_BASE" && { exec 8>"$file"; } 2>/dev/null; }; then
            ((++failures < 20)) || die "cannot write $file"
            continue
        fi
        if ! flock --nonblock 8; then
            say "another kat-lab changes $LAB_NAME: waiting for its end"
            flock --timeout 1200 8 || die "another kat-lab still holds $file"
        fi
        # A `down` that held the lock may have removed the file.
        [[ $file -ef /proc/self/fd/8 ]] && return
    done
}

remove_lock() {
    rm -f "$LAB_BASE/.$LAB_NAME.lock"
    rmdir "$LAB_BASE" 2>/dev/null || true
}

# wait_for SECONDS COMMAND...: repeats the command until it succeeds; fails at the time limit.
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.2
    done
}

# need_commands COMMAND:PACKAGE...: installs the packages of missing commands with apt.
need_commands() {
    local missing=() pair
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    ((${#missing[@]})) || return 0
    mkdir -p "$LAB_CACHE"
    (
        flock 9
        say "installing with apt: ${missing[*]}"
        apt_install "${missing[@]}"
    ) 9>"$LAB_CACHE/.apt.lock" >&2 || die "apt could not install: ${missing[*]}"
}

# room_of FOLDER: prints the free and the whole size in MiB of the file system that has the folder or will have it.
room_of() {
    local folder=$1 room
    # Another lab that ends may remove the folder at any moment.
    until room=$(df --output=avail,size --block-size=1M "$folder" 2>/dev/null); do folder=$(dirname "$folder"); done
    tail -n 1 <<<"$room"
}

# need_room FOLDER MIB WHAT: fails if the file system of the folder has less free space than WHAT needs.
need_room() {
    local free
    read -r free _ < <(room_of "$1")
    ((free >= $2)) || die "the file system of $1 has $free MiB free, and $3 needs $2 MiB: make room, or set KAT_LAB_DIR and KAT_LAB_CACHE"
}

# need_room_for_machines COUNT: half a GiB for each machine, most of it etcd's log and KAT's ballast for etcd, and at
# least 2 GiB. Says when the machines will be short of disk space although they fit: KAT's DiskPressure begins below a
# tenth of the file system or 10 GiB.
need_room_for_machines() {
    local least=$((1024 + $1 * 512)) free size pressure
    ((least > 2048)) || least=2048
    need_room "$LAB_BASE" "$least" "a lab of $1"
    read -r free size < <(room_of "$LAB_BASE")
    pressure=$((size / 10 < 10240 ? size / 10 : 10240))
    ((free >= pressure + least)) ||
        say "the file system of $LAB_BASE has $free MiB free; below $pressure MiB the machines have DiskPressure, and KAT starts nothing on them"
}

install_dependencies() {
    need_commands mmdebstrap:mmdebstrap systemd-nspawn:systemd-container ip:iproute2 \
        /usr/bin/python3:python3 nsenter:util-linux
}

host_has_systemd() { [[ -d /run/systemd/system ]]; }

# ---- processes, recorded as "pid starttime" ----

# find_start_time PID: sets START_TIME to field 22 of /proc/PID/stat, for processes that are no zombies. The name in field 2
# may contain blanks, newlines and brackets.
find_start_time() {
    local stat=''
    { IFS= read -r -d '' stat <"/proc/$1/stat"; } 2>/dev/null || [[ $stat ]] || return 1
    stat=${stat##*) }
    # shellcheck disable=SC2086
    set -- $stat
    [[ $1 != Z ]] || return 1
    START_TIME=${20}
}
start_time() { find_start_time "$1" && printf '%s\n' "$START_TIME"; }

record_pid() { printf '%s %s\n' "$1" "$(start_time "$1")" >"$2.new" && mv "$2.new" "$2"; }

# find_recorded_pid FILE: sets RECORDED_PID to the pid in FILE if the same process still runs; recorded_pid prints it.
find_recorded_pid() {
    local pid recorded_start
    [[ -r $1 ]] && read -r pid recorded_start <"$1" || return 1
    [[ $pid && $recorded_start ]] && find_start_time "$pid" && [[ $START_TIME == "$recorded_start" ]] || return 1
    RECORDED_PID=$pid
}
recorded_pid() { find_recorded_pid "$1" && printf '%s\n' "$RECORDED_PID"; }

kill_recorded() {
    local pid
    pid=$(recorded_pid "$1") && kill -KILL "$pid" 2>/dev/null
    rm -f "$1"
}

# ---- control groups: each process of the lab is in a control group of the lab ----

# find_cgroup_root: sets CGROUP_ROOT to the cgroup v2 hierarchy; on hosts with v1 controllers it is mounted at unified/.
# cgroup_root prints it.
find_cgroup_root() {
    if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
        CGROUP_ROOT=/sys/fs/cgroup
    elif [[ -e /sys/fs/cgroup/unified/cgroup.procs ]]; then
        CGROUP_ROOT=/sys/fs/cgroup/unified
    else
        die "systemd-nspawn needs a cgroup v2 hierarchy, and this host has none"
    fi
}
cgroup_root() { find_cgroup_root && printf '%s\n' "$CGROUP_ROOT"; }

cgroup_of() { printf '%s/kat-lab/%s/%s\n' "$(cgroup_root)" "$LAB_NAME" "$1"; }

cgroup_is_empty() { [[ ! -d $1 ]] || grep -qx 'populated 0' "$1/cgroup.events" 2>/dev/null || [[ ! -d $1 ]]; }

# Kills every process in a group, and removes the group in every hierarchy.
cgroup_remove() {
    local group path
    group=$(cgroup_of "$1")
    if [[ -d $group ]]; then
        if [[ -e $group/cgroup.kill ]]; then
            echo 1 >"$group/cgroup.kill"
        else
            # shellcheck disable=SC2038 # what is piped are pids
            find "$group" -name cgroup.procs -exec cat {} + | xargs --no-run-if-empty kill -KILL || true
        fi
        wait_for 20 cgroup_is_empty "$group" || die "processes in $group do not end"
    fi
    # systemd-nspawn makes the same path under the v1 hierarchy named systemd.
    for path in "$group" /sys/fs/cgroup/systemd/"${group#"$(cgroup_root)"/}"; do
        [[ -d $path ]] || continue
        find "$path" -depth -type d -exec rmdir {} + 2>/dev/null || true
        rmdir "$(dirname "$path")" "$(dirname "$(dirname "$path")")" 2>/dev/null || true
    done
}

# ---- processes that outlive kat-lab ----

unit_of() { printf 'kat-lab-%s-%s.service\n' "$LAB_NAME" "$1"; }

# start_process NAME LOG PIDFILE [SYSTEMD-RUN OPTION...] -- COMMAND...: starts a process in the
# lab's network that outlives this one. On a host with systemd it is a unit, else a process in a
# control group of the lab. It first ends a process of that name that a crash left without a record.
start_process() {
    local name=$1 log=$2 pidfile=$3 group options=()
    shift 3
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    set -- nsenter --net="/run/netns/$LAB_NAME" -- "$@"
    if host_has_systemd; then
        stop_unit "$name"
        systemd-run --quiet --collect --unit="$(unit_of "$name")" --property=StandardOutput="append:$log" \
            --property=StandardError="append:$log" "${options[@]}" -- "$@"
        record_pid "$(systemctl show --property=MainPID --value "$(unit_of "$name")")" "$pidfile"
        return
    fi
    cgroup_remove "run-$name"
    group=$(cgroup_of "run-$name")
    mkdir -p "$group"
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        exec setsid "$@"
    ) </dev/null >>"$log" 2>&1 8>&- &
    record_pid $! "$pidfile"
}

unit_is_stopped() { ! systemctl is-active --quiet "$1" && ! systemctl is-failed --quiet "$1"; }

# Ends all processes of a unit with SIGKILL, as a loss of power would.
stop_unit() {
    local unit
    unit=$(unit_of "$1")
    unit_is_stopped "$unit" && return
    systemctl kill --signal=KILL "$unit" 2>/dev/null || true
    systemctl stop "$unit" 2>/dev/null || true
    systemctl reset-failed "$unit" 2>/dev/null || true
    wait_for 20 unit_is_stopped "$unit" || die "$unit does not end"
}

# Prints the names of this lab's units, including units without a record.
unit_names() {
    local unit
    systemctl list-units --all --plain --no-legend "kat-lab-$LAB_NAME-*.service" | while read -r unit _; do
        [[ $unit =~ ^kat-lab-$LAB_NAME-(n[0-9]+|registry|outside)\.service$ ]] || continue
        printf '%s\n' "${BASH_REMATCH[1]}"
    done
}
