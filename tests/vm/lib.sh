# shellcheck shell=bash
# Shared by the tests on virtual machines, which are run with [--keep]; LAB_MACHINES is their number, LAB_CC the compiler
# for them (cc). A failure leaves the journals of all machines in target/lab-journals/ (KAT_LAB_JOURNALS).

export KAT_LAB_NAME=${KAT_LAB_NAME:-katvm} LAB_MACHINES
LAB_WORK=$(mktemp -d)
export LAB_WORK
# shellcheck source=tests/lab/lib.sh
. tests/lab/lib.sh
trap - ERR
journals=${KAT_LAB_JOURNALS:-${CARGO_TARGET_DIR:-$PWD/target}/lab-journals}

finish() {
    local code=$? i
    if ((failed)); then
        mkdir -p "$journals"
        for ((i = 1; i <= LAB_MACHINES; i++)); do
            lab journal "n$i" -o short-precise </dev/null >"$journals/${0##*/}-vm.n$i.log" 2>&1 || true
            echo "    journal of n$i: $journals/${0##*/}-vm.n$i.log"
        done
    fi
    [[ $keep ]] || lab down 2>/dev/null || true
    rm -rf "$LAB_WORK"
    exit "$code"
}
trap finish EXIT
keep=''
[[ ${1:-} != --keep ]] || keep=yes

bring_up() {
    lab up --vm --nodes "$LAB_MACHINES"
    make_web_image
}

make_web_image() {
    mkdir -p "$LAB_WORK/image/bin"
    "${LAB_CC:-cc}" -O2 -static -pthread -Wall -Wextra -Werror -o "$LAB_WORK/image/bin/web" tests/lab/images/web/web.c
    lab image test/web:1 "$LAB_WORK/image" --busybox --entrypoint '["/bin/web"]' --user 1000
}

# the_kernel_has_wireguard MACHINE...: kat0 of these machines is a link of the kernel's WireGuard, and no program has one.
the_kernel_has_wireguard() {
    local node
    for node; do
        contains "$(on "$node" ip -details link show kat0)" wireguard
        on "$node" test -d /sys/module/wireguard
        equal inactive "$(on "$node" systemctl is-active kat-wg.service || true)" "WireGuard in a program on $node"
        no_process "$node" '^/usr/libexec/kat/kat-net wireguard'
        lacks "$(on "$node" kat-agent check || true)" "has no WireGuard"
    done
}
