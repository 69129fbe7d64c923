# shellcheck shell=bash
# Virtual machines: the same root file system with Debian's cloud kernel, run by QEMU. kat-lab uses
# ssh to run commands in them. All machines of a lab are of one kind.

VM_MEMORY=1536

lab_is_vm() { [[ -e $LAB_STATE/vm ]]; }

# find_architecture: sets LAB_ARCH to Debian's name of the machines' architecture, and HOST_ARCH to that of this host.
LAB_ARCH='' HOST_ARCH=''
find_architecture() {
    HOST_ARCH=$(dpkg --print-architecture)
    LAB_ARCH=$HOST_ARCH
    [[ ! -s $LAB_STATE/vm ]] || LAB_ARCH=$(<"$LAB_STATE/vm")
}
lab_is_foreign() { [[ $LAB_ARCH != "$HOST_ARCH" ]]; }

vm_packages() { printf '%s\n' "linux-image-cloud-$LAB_ARCH" openssh-server; }

install_vm_dependencies() {
    need_commands mke2fs:e2fsprogs ssh:openssh-client ssh-keygen:openssh-client
    case $LAB_ARCH in
    amd64) need_commands qemu-system-x86_64:qemu-system-x86 ;;
    arm64) need_commands qemu-system-aarch64:qemu-system-arm ;;
    *) die "kat-lab has no virtual machines of the architecture $LAB_ARCH" ;;
    esac
    # mmdebstrap asks arch-test whether the programs of its root run.
    ! lab_is_foreign || need_commands arch-test:arch-test "$(user_emulator):qemu-user-static"
}

# The program that runs a program of the machines' architecture on this host.
user_emulator() {
    case $LAB_ARCH in
    amd64) echo qemu-x86_64-static ;;
    arm64) echo qemu-aarch64-static ;;
    esac
}

# prepare_vm NODE: adds what only virtual machines need: an ssh key, the name of the network card,
# and a disk. It removes the setting pids_limit, since these machines have a pids controller.
prepare_vm() {
    local node=$1 dir
    dir=$(node_dir "$node")
    [[ -e $LAB_STATE/ssh ]] || ssh-keygen -q -t ed25519 -N '' -C lab -f "$LAB_STATE/ssh"
    mkdir -p "$dir"/upper/{root/.ssh,etc/containers/containers.conf.d}
    chmod 0700 "$dir"/upper/root{,/.ssh}
    cp "$LAB_STATE/ssh.pub" "$dir/upper/root/.ssh/authorized_keys"
    printf '[Match]\nMACAddress=%s\n\n[Link]\nName=host0\n' "$(vm_mac "$node")" >"$dir/upper/etc/systemd/network/10-host0.link"
    : >"$dir/upper/etc/containers/containers.conf.d/lab.conf"
    unshare --mount --propagation private -- "$LAB_LIB/run-machine" disk "$(<"$dir/created")" "$dir" "$node" - - ||
        die "the disk of $node could not be made"
}

vm_mac() { printf '52:54:00:77:00:%02x\n' $((10 + ${1#n})); }

vm_pid() { recorded_pid "$(node_dir "$1")/supervisor.pid"; }

# vm_clock CLOCK: prints the time with CLOCK, such as +90d, added. The machine's hardware clock
# starts with it and keeps the difference over reboots; the next start without CLOCK uses the real
# time.
vm_clock() {
    local -A units=([d]=days [h]=hours [m]=minutes)
    date --utc --date="${1%?} ${units[${1: -1}]}" +%Y-%m-%dT%H:%M:%S
}

boot_vm() {
    local node=$1 dir root kernel machine speed console clock=()
    dir=$(node_dir "$node")
    root=$(<"$dir/created")
    find_architecture
    vm_pid "$node" >/dev/null && return
    # Debian's kernel panics with cx16 under emulation. The Cortex-A72 lacks pointer authentication, which is slow to emulate.
    case $LAB_ARCH in
    amd64) machine=(qemu-system-x86_64) speed=(-accel 'tcg,thread=multi' -cpu 'max,-cx16') console=ttyS0 ;;
    arm64) machine=(qemu-system-aarch64 -M virt) speed=(-accel 'tcg,thread=multi' -cpu cortex-a72) console=ttyAMA0 ;;
    *) die "kat-lab has no virtual machines of the architecture $LAB_ARCH" ;;
    esac
    # KVM is used only on request: in a virtual machine it may exist and not work.
    if [[ ${KAT_LAB_KVM:-} ]]; then
        ! lab_is_foreign || die "KAT_LAB_KVM is for machines of the host's architecture, $HOST_ARCH; these are $LAB_ARCH"
        speed=(-accel kvm -cpu host)
    fi
    [[ ! ${2:-} ]] || clock=(-rtc "base=$(vm_clock "$2")")
    kernel=$(find "$root/boot" -name 'vmlinuz-*' | sort -V | tail -n 1)
    link_exists "$node" || in_lab ip tuntap add dev "$(link_of "$node")" mode tap
    in_lab ip link set dev "$(link_of "$node")" master "$LAB_BRIDGE"
    [[ -e $dir/cut ]] || heal_link "$node"
    printf -- '---- boots ----\n' >>"$dir/console.log"
    start_process "$node" "$dir/console.log" "$dir/supervisor.pid" -- \
        "${machine[@]}" "${speed[@]}" "${clock[@]}" -smp 2 -m "$VM_MEMORY" -nodefaults -no-user-config -display none -serial stdio \
        -kernel "$kernel" -initrd "${kernel/vmlinuz-/initrd.img-}" \
        -append "root=/dev/vda rw console=$console panic=5 systemd.show_status=yes ${KAT_LAB_KERNEL_ARGUMENTS:-}" \
        -drive "file=$dir/disk,format=raw,if=virtio,cache=unsafe" -device virtio-rng-pci \
        -netdev "tap,id=cable,ifname=$(link_of "$node"),script=no,downscript=no" \
        -device "virtio-net-pci,netdev=cable,mac=$(vm_mac "$node"),romfile="
}

# The kernel's boot id, which changes with each boot.
vm_boot_id() { vm_ssh "$1" cat /proc/sys/kernel/random/boot_id 2>/dev/null; }

# readdress_vm NODE ADDRESS: ssh ends with the old address, so the machine changes it by itself a second after the
# command has returned, and has it when ssh reaches the new one.
readdress_vm() {
    local node=$1 address=$2 dir before
    dir=$(node_dir "$node")
    before=$(node_address "$node")
    echo "$address" >"$dir/address"
    # shellcheck disable=SC2016
    network_file "$node" | (VM_ADDRESS=$before vm_ssh "$node" sh -euc '
        cat >"$1"
        systemd-run --quiet --collect --on-active=1 --timer-property=AccuracySec=100ms \
            sh -c "networkctl reload && networkctl reconfigure host0"' sh "/$NETWORK_FILE") ||
        { echo "$before" >"$dir/address"; die "$node could not be given the address $address"; }
    wait_for "$(boot_timeout)" vm_answers "$node" || die "$node did not get the address $address"
}

vm_answers() { (vm_ssh "$1" true) </dev/null 2>/dev/null; }

# vm_ssh NODE COMMAND...: replaces this process with ssh, which runs the command as root. Commands of the same minute use
# one connection: opening one takes an emulated processor some seconds.
vm_ssh() {
    local node=$1 address command
    shift
    address=${VM_ADDRESS:-$(node_address "$node")}
    printf -v command '%q ' "$@"
    # Key exchange with curve25519 only: other algorithms take an emulated processor a second.
    in_lab ssh -F none -i "$LAB_STATE/ssh" -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        -o LogLevel=ERROR -o ConnectTimeout=10 -o ServerAliveInterval=10 -o ServerAliveCountMax=6 \
        -o ControlMaster=auto -o ControlPersist=60 -o ControlPath="$(vm_connection "$node" "$address")" \
        -o KexAlgorithms=curve25519-sha256 "root@$address" "exec $command"
}

# The socket of the connection to a machine at an address; "none" where the path would be too long for one.
vm_connection() {
    local path
    path=$(node_dir "$1")/ssh-$2
    ((${#path} < 80)) || path=none
    printf '%s\n' "$path"
}

# Ends the connections to a machine, which would else last for a minute after its end.
vm_disconnect() {
    local path
    for path in "$(node_dir "$1")"/ssh-*; do
        [[ ! -S $path ]] || ssh -F none -o ControlPath="$path" -O exit "$1" 2>/dev/null || true
    done
}

# The form of exec_in for virtual machines.
exec_in_vm() {
    local node=$1
    shift
    vm_pid "$node" >/dev/null || die "$node is not running"
    vm_ssh "$node" /usr/bin/env --chdir=/ --ignore-environment \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root USER=root LOGNAME=root SHELL=/bin/bash LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        ${NO_COLOR:+NO_COLOR="$NO_COLOR"} "$@" 8>&-
    exit
}
