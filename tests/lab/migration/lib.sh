# shellcheck shell=bash
# Functions of the tests of the migration from version 0.1.0. The machines are installed from a
# package of that version (tests/lab/run --from), and LAB_DEB is the package of this version.
# Functions run by name:
# shellcheck disable=SC2317,SC2329

OLD_DEB=$KAT_LAB_DEB

# members_are_well: whether three members of etcd answer.
members_are_well() { equal 3 "$(etcdctl_on n2 endpoint health --cluster 2>&1 | grep -c 'is healthy')" "healthy members"; }

# copy_packages MACHINE...: puts both packages on the machines.
copy_packages() {
    local node
    for node in "$@"; do
        lab copy "$OLD_DEB" "$node:/root/old.deb"
        lab copy "$LAB_DEB" "$node:/root/new.deb"
    done
}

# put_package MACHINE old|new: installs the package, and waits until another agent process runs. The
# packages may have one version number.
put_package() {
    local node=$1 before
    before=$(on "$node" systemctl show --property=MainPID --value kat-agent.service)
    on "$node" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet -o Dpkg::Use-Pty=0 \
        --reinstall --allow-downgrades "/root/$2.deb"
    runs_again() {
        differs "$before" "$(on "$node" systemctl show --property=MainPID --value kat-agent.service)" "pid of the agent" || return 1
        [[ $(on "$node" systemctl is-active kat-agent.service || true) == active ]]
    }
    wait_for 60 runs_again
    # The leader writes what it hears anew in the first seconds.
    sleep 2
    wait_for 90 nodes_are_ready
}

# authority NAME .FIELD: a field of an authority.
authority() { kat ca list -o json | jq -er --arg name "$1" ".items[] | select(.name == \$name) | $2"; }
phase_is() {
    local phase
    phase=$(authority "$1" .phase)
    [[ $phase == "$2" ]] || {
        kat ca list >&2
        return 1
    }
}
# waits_for MACHINE: whether the migration waits for the machine, according to both commands; the cluster is not well.
waits_for() {
    local output
    phase_is etcd-client-ca Migration || return 1
    contains "$(authority etcd-client-ca .message)" "$1" || return 1
    output=$(kat status) && return 1
    contains "$output" etcd-client-ca && contains "$output" "$1"
}
# is_migrated FINGERPRINT: whether the authority of etcd's clients is another one, and alone.
is_migrated() {
    local fingerprint
    phase_is etcd-client-ca Settled || return 1
    fingerprint=$(authority etcd-client-ca .fingerprint)
    [[ $fingerprint != "$1" ]]
}
# fingerprint_on MACHINE AUTHORITY: SHA-256 of the authority's certificate on the machine's disk.
fingerprint_on() {
    on "$1" openssl x509 -noout -fingerprint -sha256 -in "/var/lib/kat/pki/$2.crt" | sed 's/.*=//; s/://g' | tr 'A-F' 'a-f'
}

# keep_certificate MACHINE NAME: copies a certificate of the machine with its key to n2's /root/kept/MACHINE.
keep_certificate() {
    local ending
    on n2 sh -euc 'umask 077; mkdir -p "$1"' sh "/root/kept/$1"
    for ending in crt key; do
        on "$1" cat "/var/lib/kat/pki/$2.$ending" | lab exec n2 -- sh -euc 'umask 077; cat >"$1"' sh "/root/kept/$1/etcd.$ending"
    done
}
# version_with CERTIFICATE KEY: what n2's etcd answers to a caller with this certificate, or curl's error.
version_with() {
    on n2 curl --silent --show-error --max-time 10 --cacert /var/lib/kat/pki/etcd-client-ca.crt --cert "$1" --key "$2" \
        https://127.0.0.1:2379/version 2>&1
}
kept_opens() { contains "$(version_with "/root/kept/$1/etcd.crt" "/root/kept/$1/etcd.key")" etcdserver; }
kept_is_refused() {
    local output
    ! output=$(version_with "/root/kept/$1/etcd.crt" "/root/kept/$1/etcd.key") && contains "$output" alert
}
# The control: a certificate of now opens the same port.
present_opens() { contains "$(version_with /var/lib/kat/pki/leader-etcd.crt /var/lib/kat/pki/leader-etcd.key)" etcdserver; }

# users_are USER...: whether etcd has these users, root and no others, and no role but root's.
users_are() {
    equal "$(printf '%s\n' "$@" root | sort)" "$(etcdctl_on n2 user list | sort)" "users of etcd" || return 1
    equal root "$(etcdctl_on n2 role list)" "roles of etcd"
}
