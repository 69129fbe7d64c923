# shellcheck shell=bash
# The lab's network namespace with a bridge, the registry, and a small outside world.

in_lab() { nsenter --net="/run/netns/$LAB_NAME" -- "$@"; }

netns_exists() { [[ -e /run/netns/$LAB_NAME ]]; }

ensure_network() {
    if netns_exists; then
        [[ -e $LAB_STATE/netns ]] ||
            die "the network namespace $LAB_NAME exists and is not the lab's: set KAT_LAB_NAME to another name"
    else
        : >"$LAB_STATE/netns"
        ip netns add "$LAB_NAME"
    fi
    in_lab ip link show "$LAB_BRIDGE" >/dev/null 2>&1 && return
    in_lab ip link set lo up
    # The bridge has a fixed MAC address. Otherwise it takes the lowest one of its ports, which
    # changes when a machine starts or ends, and other machines use the old one for half a minute.
    in_lab ip link add "$LAB_BRIDGE" address 02:00:00:00:00:01 type bridge forward_delay 0
    in_lab ip address add "$LAB_GATEWAY/24" dev "$LAB_BRIDGE"
    in_lab ip link set "$LAB_BRIDGE" up
}

start_service() {
    recorded_pid "$LAB_STATE/$1.pid" >/dev/null && return
    start_process "$1" "$LAB_STATE/log/$1.log" "$LAB_STATE/$1.pid" -- "${@:2}"
}

port_answers() {
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
    wait_for 30 port_answers 5000/v2/ ||
        { tail -n 20 "$LAB_STATE/log/registry.log" >&2; die "the registry does not answer"; }
    wait_for 30 port_answers 8000/ ||
        { tail -n 20 "$LAB_STATE/log/outside.log" >&2; die "the web server of the outside world does not answer"; }
}

# The link of a machine on the bridge.
link_of() { printf 'vb-%s\n' "$1"; }
link_up() { in_lab ip -o link show dev "$(link_of "$1")" 2>/dev/null | grep -q '[<,]UP[,>]'; }
link_exists() { in_lab ip link show dev "$(link_of "$1")" >/dev/null 2>&1; }

# The bridge of a machine's link, and the machine's gateway.
bridge_of() { if [[ -e $(node_dir "$1")/nat ]]; then printf 'nat-%s\n' "$1"; else printf '%s\n' "$LAB_BRIDGE"; fi; }
gateway_of() { if [[ -e $(node_dir "$1")/nat ]]; then printf '%s.%d.1\n' "$LAB_NAT" "${1#n}"; else printf '%s\n' "$LAB_GATEWAY"; fi; }

# ensure_nat NODE: gives a machine its own network behind the lab's address. It can call other
# machines; they can only answer.
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
