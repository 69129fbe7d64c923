# shellcheck shell=bash
# The lab's network namespace: a bridge, the registry, and a small outside world.

in_lab() { nsenter --net="/run/netns/$LAB_NAME" -- "$@"; }

netns_exists() { [[ -e /run/netns/$LAB_NAME ]]; }

ensure_network() {
    if netns_exists; then
        [[ -e $LAB_STATE/netns ]] ||
            die "a network namespace named $LAB_NAME exists that this lab did not make: set KAT_LAB_NAME"
    else
        : >"$LAB_STATE/netns"
        ip netns add "$LAB_NAME"
    fi
    in_lab ip link show "$LAB_BRIDGE" >/dev/null 2>&1 && return
    in_lab ip link set lo up
    # An address of its own: else it is the lowest of the machines', changes when one comes or goes, and the others go on
    # sending to the old one for half a minute.
    in_lab ip link add "$LAB_BRIDGE" address 02:00:00:00:00:01 type bridge forward_delay 0
    in_lab ip address add "$LAB_GATEWAY/24" dev "$LAB_BRIDGE"
    in_lab ip link set "$LAB_BRIDGE" up
}

start_service() {
    recorded_pid "$LAB_STATE/$1.pid" >/dev/null && return
    launch "$1" "$LAB_STATE/log/$1.log" "$LAB_STATE/$1.pid" -- "${@:2}"
}

answers() {
    in_lab /usr/bin/python3 -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=2)' \
        "http://$LAB_GATEWAY:$1" 2>/dev/null
}

ensure_services() {
    cat >"$LAB_STATE/registry.yml" <<EOF
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage:
  filesystem: {rootdirectory: $LAB_STATE/registry}
  delete: {enabled: true}
http: {addr: "$LAB_GATEWAY:5000"}
EOF
    start_service registry "$LAB_CACHE/registry/usr/bin/docker-registry" serve "$LAB_STATE/registry.yml"
    start_service outside /usr/bin/python3 "$LAB_LIB/outside.py" "$LAB_GATEWAY"
    wait_for 30 answers 5000/v2/ ||
        { tail -n 20 "$LAB_STATE/log/registry.log" >&2; die "the registry does not answer"; }
    wait_for 30 answers 8000/ ||
        { tail -n 20 "$LAB_STATE/log/outside.log" >&2; die "the outside world does not answer"; }
}

# The machine's end of the cable on the bridge.
link_of() { printf 'vb-%s\n' "$1"; }
link_up() { in_lab ip -o link show dev "$(link_of "$1")" 2>/dev/null | grep -q '[<,]UP[,>]'; }
link_exists() { in_lab ip link show dev "$(link_of "$1")" >/dev/null 2>&1; }

# Where a machine's cable is plugged in, and the way out from there.
bridge_of() { if [[ -e $(node_dir "$1")/nat ]]; then printf 'nat-%s\n' "$1"; else printf '%s\n' "$LAB_BRIDGE"; fi; }
gateway_of() { if [[ -e $(node_dir "$1")/nat ]]; then printf '%s.%d.1\n' "$LAB_NAT" "${1#n}"; else printf '%s\n' "$LAB_GATEWAY"; fi; }

# A network of a machine's own, behind the lab's address: it reaches the others, and they it where it called first.
ensure_nat() {
    local bridge
    bridge=$(bridge_of "$1")
    in_lab ip link show "$bridge" >/dev/null 2>&1 && return
    in_lab ip link add "$bridge" type bridge forward_delay 0
    in_lab ip address add "$(gateway_of "$1")/24" dev "$bridge"
    in_lab ip link set "$bridge" up
    in_lab sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
    in_lab nft -f - <<NFT
table ip lab-nat
delete table ip lab-nat
table ip lab-nat {
    chain out {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr $LAB_NAT.0.0/16 oifname "$LAB_BRIDGE" masquerade
    }
    chain in {
        type filter hook forward priority filter; policy accept;
        ct state established,related accept
        oifname "nat-*" drop
    }
}
NFT
}

cut_link() { in_lab ip link set dev "$(link_of "$1")" down; }
heal_link() { in_lab ip link set dev "$(link_of "$1")" up; }
