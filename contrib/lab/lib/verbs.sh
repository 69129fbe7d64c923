# shellcheck shell=bash
# What kat-lab can do, one function for each verb.

lab_is_up() { [[ -e $LAB_STATE/netns ]] && netns_exists; }

need_up() {
    lab_is_up || die "no lab named $LAB_NAME is up"
}

need_node() {
    check_node "$1"
    need_up
    [[ -e $(node_dir "$1")/created ]] || die "this lab has no machine $1"
}

need_running() {
    need_node "$1"
    leader_pid "$1" >/dev/null || die "$1 is not running: 'kat-lab start $1'"
}

verb_tree() {
    (($# > 0)) || usage_error "tree PACKAGE..."
    install_what_is_missing
    ensure_tree "$@"
}

verb_root() {
    (($# == 0)) || usage_error "root takes no arguments"
    install_what_is_missing
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
        *) usage_error "up does not know $1" ;;
        esac
    done
    [[ $count =~ ^[1-9][0-9]?$ && $count -le $LAB_MAX_NODES ]] ||
        usage_error "--nodes takes a number from 1 to $LAB_MAX_NODES"
    [[ $bare ]] || deb=$(find_deb "$deb")
    install_what_is_missing
    lock_lab
    choose_kind "$vm"
    [[ ! $vm ]] || install_what_vms_need
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
        wait_machine "$node"
        say "$node is up at $(node_address "$node")"
    done
    [[ $bare ]] || form_cluster "$deb"
}

# A lab stays of the kind that its first machines were.
choose_kind() {
    if [[ -e $LAB_STATE/root ]]; then
        [[ ! $1 ]] || lab_is_vm || die "$LAB_NAME is up without --vm: 'kat-lab down' first, or set KAT_LAB_NAME"
        return 0
    fi
    mkdir -p "$LAB_STATE"
    if [[ $1 ]]; then : >"$LAB_STATE/vm"; fi
}

# The package: as said, or the newest that was built in this checkout.
find_deb() {
    local deb=$1 checkout
    checkout=$(cd "$LAB_LIB/../../.." && pwd)
    if [[ ! $deb ]]; then
        deb=$(find "${CARGO_TARGET_DIR:-$checkout/target}" -maxdepth 3 -name 'kat*.deb' -printf '%T@ %p\n' 2>/dev/null |
            sort -rn | sed -n '1s/^[^ ]* //p')
        [[ $deb ]] || die "there is no package yet in ${CARGO_TARGET_DIR:-$checkout/target}: build it, name it with --deb, or use --bare"
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
        enter "$node" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet -o Dpkg::Use-Pty=0 \
            --no-install-recommends --allow-downgrades --reinstall /root/kat.deb >&2
        enter "$node" rm -f /root/kat.deb
        echo "$sum" >"$(node_dir "$node")/deb"
    done
    if [[ ! -e $LAB_STATE/formed ]]; then
        say "forming the cluster on n1"
        if [[ ${KAT_LAB_CLUSTER:-} ]]; then
            copy_in "$KAT_LAB_CLUSTER" n1 /root/cluster.kat
            enter n1 kat-agent init --config /root/cluster.kat >&2
        else
            enter n1 kat-agent init >&2
        fi
        : >"$LAB_STATE/formed"
    fi
    # One after the other, as a person would.
    for node in $(nodes); do
        if [[ $node != n1 && ! -e $(node_dir "$node")/joined ]]; then
            say "$node joins the cluster"
            join_cluster "$node"
            : >"$(node_dir "$node")/joined"
        fi
    done
}

# The line that is printed is what is run, but for its sudo.
join_cluster() {
    local line
    line=$(enter n1 katcall token create --join --name "$1")
    [[ $line == "sudo kat-agent join "* ]] || die "katcall token create --join printed: $line"
    enter "$1" bash -c "${line#sudo } ${KAT_LAB_JOIN:-}" >&2
}

# parse_user ARGUMENT...: sets in_user, and rest to what follows.
parse_user() {
    in_user='' rest=()
    while (($#)); do
        case $1 in
        --user) [[ ${2:-} ]] || usage_error "--user takes a user"; in_user=$2 && shift 2 ;;
        --user=?*) in_user=${1#--user=} && shift ;;
        --) shift; rest=("$@"); return ;;
        -*) usage_error "exec does not know $1" ;;
        *) rest=("$@"); return ;;
        esac
    done
}

verb_exec() {
    local node=${1:-} in_user rest
    [[ $node ]] || usage_error "exec NODE [--user USER] -- COMMAND..."
    shift
    parse_user "$@"
    ((${#rest[@]})) || usage_error "exec needs a command"
    need_running "$node"
    if [[ $in_user ]]; then
        become_user "$node" "$in_user" "${rest[@]}"
    else
        become "$node" "${rest[@]}"
    fi
}

# script gives the shell a terminal of the machine's own.
verb_shell() {
    local node=${1:-} in_user rest
    [[ $node ]] || usage_error "shell NODE [--user USER]"
    shift
    parse_user "$@"
    ((${#rest[@]} == 0)) || usage_error "shell takes no command: use exec"
    need_running "$node"
    if [[ $in_user ]]; then
        become_user "$node" "$in_user" script --quiet --return --command "exec \"\$SHELL\" -l" /dev/null
    else
        become "$node" script --quiet --return --command 'exec bash -l' /dev/null
    fi
}

# The last part of SRC lands in DST if that is a folder or ends in a slash, else at DST.
copy_in() {
    local source=$1 node=$2 target=$3 name
    name=$(basename "$(realpath -s "$source")")
    # shellcheck disable=SC2016
    tar -C "$(dirname "$(realpath -s "$source")")" --owner=root:0 --group=root:0 -cf - "./$name" |
        enter "$node" sh -euc '
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
    need_running "$node"
    [[ -e $source ]] || die "no such file: $source"
    copy_in "$source" "$node" "$target"
}

verb_image() {
    (($# >= 2)) || usage_error "image NAME:TAG DIR [--entrypoint JSON] [--cmd JSON] [--user UID] [--env K=V]..."
    need_up
    in_lab /usr/bin/python3 "$LAB_LIB/image.py" "$LAB_GATEWAY:5000" "$@" \
        --busybox-program "$(<"$LAB_STATE/root")/usr/bin/busybox"
}

verb_kill() {
    (($# == 1)) || usage_error "kill NODE"
    lock_lab
    need_node "$1"
    kill_machine "$1"
}

verb_start() {
    local node=${1:-} clock=''
    if (($# == 3)) && [[ $2 == --clock ]]; then
        [[ $3 =~ ^[+-][1-9][0-9]{0,4}[dhm]$ ]] ||
            usage_error "--clock takes what to add to the time, in days, hours or minutes: +90d, -3h, +15m"
        clock=$3
    elif (($# != 1)); then
        usage_error "start NODE [--clock +90d]"
    fi
    lock_lab
    need_node "$node"
    if [[ $clock ]]; then
        lab_is_vm || die "the clock of $node is this machine's own: --clock is for virtual machines ('up --vm')"
        ! leader_pid "$node" >/dev/null || die "$node is running, and has its clock from its start: 'kat-lab kill $node' first"
    fi
    boot_machine "$node" "$clock"
    wait_machine "$node"
}

boot_changed() {
    local now
    if lab_is_vm; then
        now=$(vm_boot_id "$1") && [[ $now != "$2" ]]
        return
    fi
    now=$(leader_pid "$1") && [[ $now != "$2" ]] && return
    # Its supervisor may have died in a crash of the lab: nothing else boots it then.
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
    need_running "$1"
    if lab_is_vm; then before=$(vm_boot_id "$1"); else before=$(leader_pid "$1"); fi
    enter "$1" systemctl reboot
    wait_for "$(patience)" boot_changed "$1" "$before" || {
        tail -n 40 "$(node_dir "$1")/console.log" >&2
        die "$1 did not reboot within $(patience) s"
    }
    wait_machine "$1"
}

verb_cut() {
    (($# == 1)) || usage_error "cut NODE"
    lock_lab
    need_node "$1"
    : >"$(node_dir "$1")/cut"
    ! link_exists "$1" || cut_link "$1"
}

verb_heal() {
    (($# == 1)) || usage_error "heal NODE"
    lock_lab
    need_node "$1"
    rm -f "$(node_dir "$1")/cut"
    ! link_exists "$1" || heal_link "$1"
}

verb_readdress() {
    (($# == 2)) || usage_error "readdress NODE ADDRESS"
    local node=$1 address=$2 other
    [[ $address =~ ^${LAB_NET//./\\.}\.([1-9][0-9]{0,2})$ && ${BASH_REMATCH[1]} -ge 2 && ${BASH_REMATCH[1]} -le 254 ]] ||
        usage_error "readdress takes an address from $LAB_NET.2 to $LAB_NET.254"
    lock_lab
    need_node "$node"
    for other in $(nodes); do
        [[ $other == "$node" || $(node_address "$other") != "$address" ]] || die "$other has $address"
    done
    need_no_disk "$node"
    echo "$address" >"$(node_dir "$node")/address"
    set_network "$node"
}

verb_nat() {
    (($# == 1)) || usage_error "nat NODE"
    lock_lab
    need_node "$1"
    lab_is_vm && die "a virtual machine can't be put behind NAT"
    : >"$(node_dir "$1")/nat"
    printf '%s.%d.2\n' "$LAB_NAT" "${1#n}" >"$(node_dir "$1")/address"
    ensure_nat "$1"
    ! link_exists "$1" || in_lab ip link set dev "$(link_of "$1")" master "$(bridge_of "$1")"
    set_network "$1"
}

# Settings of a machine that is off can be changed where they do not lie on a disk of its own.
need_no_disk() {
    leader_pid "$1" >/dev/null || ! lab_is_vm || die "$1 is off, and its settings lie on its disk"
}

set_network() {
    if leader_pid "$1" >/dev/null; then
        # shellcheck disable=SC2016
        network_file "$1" | enter "$1" sh -euc '
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
        state=off network=- pid=$(leader_pid "$node") || pid=-
        if [[ $pid != - ]]; then
            state=$(enter "$node" systemctl is-system-running 2>/dev/null) || state=${state:-booting}
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
    need_node "$node"
    if leader_pid "$node" >/dev/null; then
        become "$node" journalctl --no-pager "$@"
    fi
    ! lab_is_vm || die "$node is off, and its journal lies on its disk"
    dir=$(node_dir "$node")/var/log/journal
    [[ -d $dir ]] || die "$node is off and kept no journal (a persistent one needs /var/log/journal in it)"
    journalctl --no-pager --directory="$dir" "$@"
}

verb_down() {
    (($# == 0)) || usage_error "down takes no arguments"
    local name group mount groups
    lock_lab
    groups=$(cgroup_root)/kat-lab/$LAB_NAME
    if [[ ! -d $LAB_STATE && ! -d $groups ]]; then
        unlock_for_good
        say "no lab named $LAB_NAME is up"
        return
    fi
    for name in $(nodes); do
        kill_machine "$name"
    done
    kill_recorded "$LAB_STATE/registry.pid" || true
    kill_recorded "$LAB_STATE/outside.pid" || true
    # What a crash left without a record is still in the lab's units or control groups.
    if host_has_systemd; then
        for name in $(unit_names); do
            stop_unit "$name"
        done
    fi
    for group in "$groups"/*/; do
        [[ ! -d $group ]] || cgroup_remove "$(basename "$group")"
    done
    ! netns_exists || ip netns delete "$LAB_NAME"
    # None is expected here: a machine's mounts are in a namespace of its own.
    while read -r mount; do
        umount --lazy "$mount"
    done < <(awk -v state="$LAB_STATE/" 'index($5, state) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
    rm -rf --one-file-system "$LAB_STATE"
    unlock_for_good
    say "$LAB_NAME is down"
}
