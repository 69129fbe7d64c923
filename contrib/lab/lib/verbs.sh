# shellcheck shell=bash
# The verbs of kat-lab, one function each.

lab_is_up() { [[ -e $LAB_STATE/netns ]] && netns_exists; }

require_lab() {
    lab_is_up || die "no lab named $LAB_NAME is up"
}

require_node() {
    check_node "$1"
    require_lab
    [[ -e $LAB_STATE/machines/$1/created ]] || die "this lab has no machine $1"
}

require_running() {
    require_node "$1"
    find_init_pid "$1" || die "$1 is not running: run 'kat-lab start $1'"
}

verb_tree() {
    (($# > 0)) || usage_error "tree PACKAGE..."
    install_dependencies
    ensure_tree "$@"
}

verb_root() {
    (($# == 0)) || usage_error "root takes no arguments"
    install_dependencies
    find_architecture
    ensure_root
    root_path
}

verb_up() {
    local count=1 bare='' vm='' deb=${KAT_LAB_DEB:-} node
    while (($#)); do
        case $1 in
        --nodes) count=${2:-}; shift 2 || usage_error "--nodes takes a number" ;;
        --bare) bare=yes && shift ;;
        --deb) deb=${2:-}; shift 2 || usage_error "--deb takes a file" ;;
        --vm) vm=yes && shift ;;
        *) usage_error "up has no option $1" ;;
        esac
    done
    [[ $count =~ ^[1-9][0-9]?$ && $count -le $LAB_MAX_NODES ]] ||
        usage_error "--nodes takes a number from 1 to $LAB_MAX_NODES"
    [[ $vm || ${KAT_LAB_ARCH:-$(dpkg --print-architecture)} == "$(dpkg --print-architecture)" ]] ||
        usage_error "KAT_LAB_ARCH of another processor is for virtual machines: use --vm"
    [[ $bare ]] || deb=$(find_deb "$deb")
    need_room_for_machines "$count"
    install_dependencies
    [[ ! ${KAT_LAB_STATE_SIZE:-} ]] || need_commands mke2fs:e2fsprogs
    lock_lab
    choose_machine_kind "$vm"
    find_architecture
    [[ ! $vm ]] || install_vm_dependencies
    ensure_root
    ensure_registry_program
    mkdir -p "$LAB_STATE"/{log,machines,registry}
    [[ -e $LAB_STATE/root ]] || root_path >"$LAB_STATE/root"
    ensure_network
    ensure_services
    for ((i = 1; i <= count; i++)); do
        create_machine "n$i"
        boot_machine "n$i"
    done
    for ((i = 1; i <= count; i++)); do
        node=n$i
        wait_until_up "$node"
        say "$node is up at $(node_address "$node")"
    done
    [[ $bare ]] || form_cluster "$deb"
}

# Fails if the lab has machines of the other kind; a new lab with --vm is marked.
choose_machine_kind() {
    if [[ -e $LAB_STATE/root ]]; then
        [[ ! $1 ]] || lab_is_vm || die "$LAB_NAME is up without --vm: run 'kat-lab down' first, or set KAT_LAB_NAME"
        find_architecture
        [[ ${KAT_LAB_ARCH:-$LAB_ARCH} == "$LAB_ARCH" ]] ||
            die "the machines of $LAB_NAME are $LAB_ARCH, not $KAT_LAB_ARCH: run 'kat-lab down' first, or set KAT_LAB_NAME"
        return 0
    fi
    mkdir -p "$LAB_STATE"
    if [[ $1 ]]; then echo "${KAT_LAB_ARCH:-$(dpkg --print-architecture)}" >"$LAB_STATE/vm"; fi
}

# find_deb FILE: prints FILE, or the newest package that was built in this checkout for the machines' architecture.
find_deb() {
    local deb=$1 checkout folder
    checkout=$(cd "$LAB_LIB/../../.." && pwd)
    folder=${CARGO_TARGET_DIR:-$checkout/target}
    # contrib/package --arch puts it there.
    [[ ${KAT_LAB_ARCH:-$(dpkg --print-architecture)} == "$(dpkg --print-architecture)" ]] || folder+=/cross/$KAT_LAB_ARCH
    if [[ ! $deb ]]; then
        deb=$(find "$folder" -maxdepth 3 -name 'kat*.deb' -printf '%T@ %p\n' 2>/dev/null |
            sort -rn | sed -n '1s/^[^ ]* //p')
        [[ $deb ]] || die "no package was found in $folder: build one, name one with --deb, or use --bare"
    fi
    [[ -f $deb ]] || die "no such package: $deb"
    printf '%s\n' "$deb"
}

form_cluster() {
    local deb=$1 node sum
    sum=$(sha256sum <"$deb")
    for node in $(nodes); do
        [[ $(cat "$(node_dir "$node")/deb" 2>/dev/null) != "$sum" ]] || continue
        say "installing $(basename "$deb") on $node"
        copy_in "$deb" "$node" /root/kat.deb
        run_in "$node" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet -o Dpkg::Use-Pty=0 \
            --no-install-recommends --allow-downgrades --reinstall /root/kat.deb >&2
        run_in "$node" rm -f /root/kat.deb
        echo "$sum" >"$(node_dir "$node")/deb"
    done
    if [[ ! -e $LAB_STATE/formed ]]; then
        say "forming the cluster on n1"
        if [[ ${KAT_LAB_CLUSTER:-} ]]; then
            copy_in "$KAT_LAB_CLUSTER" n1 /root/cluster.kat
            run_in n1 kat-agent init --config /root/cluster.kat >&2
        else
            run_in n1 kat-agent init >&2
        fi
        : >"$LAB_STATE/formed"
    fi
    # Machines join one after the other, as when a person adds them.
    for node in $(nodes); do
        if [[ $node != n1 && ! -e $(node_dir "$node")/joined ]]; then
            say "$node joins the cluster"
            join_cluster "$node"
            : >"$(node_dir "$node")/joined"
        fi
    done
}

# Runs the printed line without its sudo.
join_cluster() {
    local line
    line=$(run_in n1 katcall token create --join --name "$1")
    [[ $line == "sudo kat-agent join "* ]] || die "katcall token create --join printed: $line"
    run_in "$1" bash -c "${line#sudo } ${KAT_LAB_JOIN:-}" >&2
}

# parse_user ARGUMENT...: sets in_user to the value of --user, and rest to the command.
parse_user() {
    in_user='' rest=()
    while (($#)); do
        case $1 in
        --user) [[ ${2:-} ]] || usage_error "--user takes a user"; in_user=$2 && shift 2 ;;
        --user=?*) in_user=${1#--user=} && shift ;;
        --) shift; rest=("$@"); return ;;
        -*) usage_error "exec has no option $1" ;;
        *) rest=("$@"); return ;;
        esac
    done
}

verb_exec() {
    # shellcheck disable=SC2034 # die reads LAB_FAILURE
    local node=${1:-} in_user rest LAB_FAILURE=126
    [[ $node ]] || usage_error "exec NODE [--user USER] -- COMMAND..."
    shift
    parse_user "$@"
    ((${#rest[@]})) || usage_error "exec needs a command"
    require_running "$node"
    if [[ $in_user ]]; then
        exec_as_user "$node" "$in_user" "${rest[@]}"
    else
        exec_in "$node" "${rest[@]}"
    fi
}

# script(1) gives the shell a terminal of the machine.
verb_shell() {
    # shellcheck disable=SC2034 # die reads LAB_FAILURE
    local node=${1:-} in_user rest LAB_FAILURE=126
    [[ $node ]] || usage_error "shell NODE [--user USER]"
    shift
    parse_user "$@"
    ((${#rest[@]} == 0)) || usage_error "shell takes no command: use exec"
    require_running "$node"
    if [[ $in_user ]]; then
        exec_as_user "$node" "$in_user" script --quiet --return --command "exec \"\$SHELL\" -l" /dev/null
    else
        exec_in "$node" script --quiet --return --command 'exec bash -l' /dev/null
    fi
}

# copy_in SRC NODE DST: copies SRC into DST if that is a folder or ends in a slash, else to DST.
copy_in() {
    local source=$1 node=$2 target=$3 name
    name=$(basename "$(realpath -s "$source")")
    # shellcheck disable=SC2016
    tar -C "$(dirname "$(realpath -s "$source")")" --owner=root:0 --group=root:0 -cf - "./$name" |
        run_in "$node" sh -euc '
            work=$(mktemp -d /var/tmp/copy.XXXXXX)
            trap "rm -rf $work" EXIT
            tar -C "$work" -xf - --same-permissions
            case $2 in */) mkdir -p "$2" ;; esac
            if [ -d "$2" ]; then target=${2%/}/$1; else target=$2; fi
            if [ -d "$work/$1" ]; then cp -aT "$work/$1" "$target"; else mv -fT "$work/$1" "$target"; fi
        ' sh "$name" "$target"
}

verb_copy() {
    (($# == 2)) || usage_error "copy SRC NODE:DST"
    local source=$1 node=${2%%:*} target=${2#*:}
    [[ $2 == *:/* ]] || usage_error "copy SRC NODE:DST, with an absolute DST"
    require_running "$node"
    [[ -e $source ]] || die "no such file: $source"
    copy_in "$source" "$node" "$target"
}

verb_image() {
    (($# >= 2)) || usage_error "image NAME:TAG DIR [--entrypoint JSON] [--cmd JSON] [--user UID] [--env K=V]..."
    local emulator=()
    require_lab
    find_architecture
    ! lab_is_foreign || emulator=(--emulator "$(user_emulator)")
    in_lab /usr/bin/python3 "$LAB_LIB/image.py" "$LAB_GATEWAY:5000" "$@" \
        --busybox-program "$(<"$LAB_STATE/root")/usr/bin/busybox" --architecture "$LAB_ARCH" "${emulator[@]}"
}

verb_kill() {
    (($# == 1)) || usage_error "kill NODE"
    lock_lab
    require_node "$1"
    power_off "$1"
}

verb_start() {
    local node=${1:-} clock=''
    if (($# == 3)) && [[ $2 == --clock ]]; then
        [[ $3 =~ ^[+-][1-9][0-9]{0,4}[dhm]$ ]] ||
            usage_error "--clock takes a difference to the time in days, hours or minutes: +90d, -3h, +15m"
        clock=$3
    elif (($# != 1)); then
        usage_error "start NODE [--clock +90d]"
    fi
    lock_lab
    require_node "$node"
    if [[ $clock ]]; then
        lab_is_vm || die "$node uses the host's clock: --clock is for virtual machines ('up --vm')"
        ! init_pid "$node" >/dev/null || die "$node is running, and --clock sets the clock at a start: run 'kat-lab kill $node' first"
    fi
    boot_machine "$node" "$clock"
    wait_until_up "$node"
}

has_rebooted() {
    local now
    if lab_is_vm; then
        now=$(vm_boot_id "$1") && [[ $now != "$2" ]]
        return
    fi
    now=$(init_pid "$1") && [[ $now != "$2" ]] && return
    # A crash of the lab may have ended the machine's supervisor, which would boot it again.
    if ! host_has_systemd && ! recorded_pid "$(node_dir "$1")/supervisor.pid" >/dev/null &&
        ! nspawn_pid "$1" >/dev/null; then
        boot_machine "$1"
    fi
    return 1
}

verb_reboot() {
    (($# == 1)) || usage_error "reboot NODE"
    local before
    lock_lab
    require_running "$1"
    if lab_is_vm; then before=$(vm_boot_id "$1"); else before=$(init_pid "$1"); fi
    run_in "$1" systemctl reboot
    wait_for "$(boot_timeout)" has_rebooted "$1" "$before" || {
        tail -n 40 "$(node_dir "$1")/console.log" >&2
        die "$1 did not reboot within $(boot_timeout) s"
    }
    wait_until_up "$1"
}

verb_cut() {
    (($# == 1)) || usage_error "cut NODE"
    lock_lab
    require_node "$1"
    : >"$(node_dir "$1")/cut"
    ! link_exists "$1" || cut_link "$1"
}

verb_heal() {
    (($# == 1)) || usage_error "heal NODE"
    lock_lab
    require_node "$1"
    rm -f "$(node_dir "$1")/cut"
    ! link_exists "$1" || heal_link "$1"
}

verb_readdress() {
    (($# == 2)) || usage_error "readdress NODE ADDRESS"
    local node=$1 address=$2 other
    [[ $address =~ ^${LAB_NET//./\\.}\.([1-9][0-9]{0,2})$ && ${BASH_REMATCH[1]} -ge 2 && ${BASH_REMATCH[1]} -le 254 ]] ||
        usage_error "readdress takes an address from $LAB_NET.2 to $LAB_NET.254"
    lock_lab
    require_node "$node"
    for other in $(nodes); do
        [[ $other == "$node" || $(node_address "$other") != "$address" ]] || die "$other already has the address $address"
    done
    require_writable_settings "$node"
    if lab_is_vm; then
        readdress_vm "$node" "$address"
        return
    fi
    echo "$address" >"$(node_dir "$node")/address"
    set_network "$node"
}

verb_nat() {
    (($# == 1)) || usage_error "nat NODE"
    lock_lab
    require_node "$1"
    lab_is_vm && die "kat-lab cannot put a virtual machine behind NAT"
    : >"$(node_dir "$1")/nat"
    printf '%s.%d.2\n' "$LAB_NAT" "${1#n}" >"$(node_dir "$1")/address"
    ensure_nat "$1"
    ! link_exists "$1" || in_lab ip link set dev "$(link_of "$1")" master "$(bridge_of "$1")"
    set_network "$1"
}

# The settings of a virtual machine that is off are on its disk and cannot be changed.
require_writable_settings() {
    init_pid "$1" >/dev/null || ! lab_is_vm || die "$1 is off, and its settings are on its disk: run 'kat-lab start $1' first"
}

set_network() {
    if init_pid "$1" >/dev/null; then
        # shellcheck disable=SC2016
        network_file "$1" | run_in "$1" sh -euc '
            cat >"$1"
            networkctl reload
            networkctl reconfigure host0' sh "/$NETWORK_FILE"
    else
        network_file "$1" >"$(node_dir "$1")/upper/$NETWORK_FILE"
    fi
}

verb_status() {
    (($# == 0)) || usage_error "status takes no arguments"
    local node state network service pid
    lab_is_up || { say "no lab named $LAB_NAME is up"; return 1; }
    printf '%-10s %-10s %-8s %-16s %s\n' NAME STATE PID ADDRESS NETWORK
    for node in $(nodes); do
        state=off network=- pid=$(init_pid "$node") || pid=-
        if [[ $pid != - ]]; then
            state=$(run_in "$node" systemctl is-system-running 2>/dev/null) || state=${state:-booting}
            if link_up "$node"; then network=up; else network=down; fi
        fi
        [[ ! -e $(node_dir "$node")/cut ]] || network='cut'
        printf '%-10s %-10s %-8s %-16s %s\n' "$node" "$state" "$pid" "$(node_address "$node")" "$network"
    done
    for service in registry outside; do
        state=running pid=$(recorded_pid "$LAB_STATE/$service.pid") || state=off pid=${pid:--}
        printf '%-10s %-10s %-8s %-16s %s\n' "$service" "$state" "$pid" "$LAB_GATEWAY" "$LAB_BRIDGE"
    done
}

verb_journal() {
    local node=${1:-} dir
    [[ $node ]] || usage_error "journal NODE [JOURNALCTL ARGUMENT...]"
    shift
    require_node "$node"
    if init_pid "$node" >/dev/null; then
        exec_in "$node" journalctl --no-pager "$@"
    fi
    ! lab_is_vm || die "$node is off, and its journal is on its disk: run 'kat-lab start $node' first"
    dir=$(node_dir "$node")/var/log/journal
    [[ -d $dir ]] || die "$node is off and has no persistent journal, which needs the folder /var/log/journal in the machine"
    journalctl --no-pager --directory="$dir" "$@"
}

verb_down() {
    (($# == 0)) || usage_error "down takes no arguments"
    local name group mount groups
    lock_lab
    groups=$(cgroup_root)/kat-lab/$LAB_NAME
    if [[ ! -d $LAB_STATE && ! -d $groups ]]; then
        remove_lock
        say "no lab named $LAB_NAME is up"
        return
    fi
    for name in $(nodes); do
        power_off "$name"
    done
    kill_recorded "$LAB_STATE/registry.pid" || true
    kill_recorded "$LAB_STATE/outside.pid" || true
    # Units and control groups that a crash left without a record.
    if host_has_systemd; then
        for name in $(unit_names); do
            stop_unit "$name"
        done
    fi
    for group in "$groups"/*/; do
        [[ ! -d $group ]] || cgroup_remove "$(basename "$group")"
    done
    ! netns_exists || ip netns delete "$LAB_NAME"
    # No mount is expected here: a machine's mounts are in its own namespace.
    while read -r mount; do
        umount --lazy "$mount"
    done < <(awk -v state="$LAB_STATE/" 'index($5, state) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
    rm -rf --one-file-system "$LAB_STATE"
    remove_lock
    say "$LAB_NAME is down"
}
