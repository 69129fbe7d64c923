# shellcheck shell=bash
# The machines' root file system and the registry's program: built once and cached.

ROOT_VERSION=1
ROOT_SUITE=${KAT_LAB_SUITE:-trixie}
ROOT_PACKAGES=(
    systemd systemd-sysv systemd-resolved libnss-resolve libpam-systemd libnss-systemd udev dbus dbus-user-session
    podman crun passt uidmap passwd catatonit fuse-overlayfs
    nftables iproute2 iputils-ping kmod netbase
    etcd-server etcd-client
    busybox-static ca-certificates curl jq python3-minimal bsdextrautils procps less
)

root_packages() {
    {
        printf '%s\n' "${ROOT_PACKAGES[@]}"
        ! lab_is_vm || printf '%s\n' "${VM_PACKAGES[@]}"
        # shellcheck disable=SC2086 # names by blanks
        printf '%s\n' ${KAT_LAB_PACKAGES:-}
    } | sort -u | sed '/^$/d'
}

root_path() {
    local key
    key=$({ echo "$ROOT_VERSION $ROOT_SUITE"; root_packages; cat "$LAB_LIB/customize-root"; } | sha256sum)
    printf '%s/root-%s\n' "$LAB_CACHE" "${key:0:12}"
}

# Prints the mirror that the host's apt uses; none is hard-coded.
apt_mirror() {
    local codename
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(SITE)' 'Created-By: Packages' |
        awk -v codename="$codename" '$1 == codename && $2 == "main" { print $3; exit }'
}

# Prints the host's apt options for proxies, certificates and date checks, one a line.
apt_options() {
    apt-config dump | grep -E '^Acquire::((https?|ftp)::[^ ]+|Check-(Valid-Until|Date)|Retries) "[^"]+";$' || true
}

# with_retries LOG FOLDER COMMAND...: runs the command up to six times within about six minutes, as
# mirrors fail at times. Removes FOLDER after each failure.
with_retries() {
    local log=$1 folder=$2 pause
    shift 2
    : >"$log"
    for pause in 5 20 60 120 180 ''; do
        ! "$@" >>"$log" 2>&1 9>&- || return 0
        rm -rf --one-file-system "$folder"
        [[ $pause ]] || return 1
        echo "kat-lab: the command failed; next try in $pause s" >>"$log"
        sleep "$pause"
    done
}

ensure_root() {
    local root
    root=$(root_path)
    [[ -d $root ]] && return
    mkdir -p "$LAB_CACHE"
    (
        flock 9
        [[ -d $root ]] || build_root "$root"
    ) 9>"$LAB_CACHE/.root.lock"
}

build_root() {
    local root=$1 new=$1.new mirror option options=() log=$LAB_CACHE/root.log
    mirror=$(apt_mirror)
    [[ $mirror ]] || die "this host's apt has no Debian mirror with the component 'main': see 'apt-get indextargets'"
    while read -r option; do
        [[ $option ]] && options+=(--aptopt="$option")
    done < <(apt_options)
    say "building the root file system of the machines (Debian $ROOT_SUITE, about half a minute)"
    rm -rf --one-file-system "$new"
    if ! with_retries "$log" "$new" mmdebstrap --mode=root --variant=minbase --format=directory \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' "${options[@]}" \
        --include="$(root_packages | paste -sd,)" \
        --customize-hook="$LAB_LIB/customize-root" \
        "$ROOT_SUITE" "$new" "$mirror"; then
        tail -n 30 "$log" >&2
        rm -rf --one-file-system "$new"
        die "the root file system could not be built; the whole output is in $log"
    fi
    mv "$new" "$root"
    say "built $root ($(du -sh "$root" | cut -f1))"
}

# ensure_tree PACKAGE...: builds a file tree with these Debian packages for an image, unless it is
# cached, and prints its path.
ensure_tree() {
    local key tree option options=() mirror log=$LAB_CACHE/tree.log
    key=$(echo "$ROOT_VERSION $ROOT_SUITE $*" | sha256sum)
    tree=$LAB_CACHE/tree-${key:0:12}
    if [[ ! -d $tree ]]; then
        mkdir -p "$LAB_CACHE"
        mirror=$(apt_mirror)
        [[ $mirror ]] || die "this host's apt has no Debian mirror with the component 'main': see 'apt-get indextargets'"
        while read -r option; do
            [[ $option ]] && options+=(--aptopt="$option")
        done < <(apt_options)
        (
            flock 9
            [[ ! -d $tree ]] || exit 0
            say "building a file tree with $*"
            rm -rf --one-file-system "$tree.new"
            if ! with_retries "$log" "$tree.new" mmdebstrap --mode=root --variant=minbase --format=directory \
                --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' --dpkgopt='path-exclude=/usr/share/doc/*' \
                --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' "${options[@]}" \
                --include="$(printf '%s\n' "$@" | paste -sd,)" "$ROOT_SUITE" "$tree.new" "$mirror"; then
                tail -n 30 "$log" >&2
                rm -rf --one-file-system "$tree.new"
                die "the file tree could not be built; the whole output is in $log"
            fi
            # No machine boots from the tree, and containers have their own devices.
            rm -rf "$tree.new"/dev/* "$tree.new/var/cache/apt" "$tree.new/var/lib/apt/lists"
            mv "$tree.new" "$tree"
        ) 9>"$LAB_CACHE/.root.lock" >&2
    fi
    echo "$tree"
}

# Debian's registry is unpacked, not installed, so that no service starts on the host.
ensure_registry_program() {
    local program=$LAB_CACHE/registry/usr/bin/docker-registry
    [[ -x $program ]] && return
    mkdir -p "$LAB_CACHE"
    (
        flock 9
        [[ -x $program ]] && exit 0
        say "downloading Debian's docker-registry with apt"
        work=$(mktemp -d "$LAB_CACHE/.registry.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        cd "$work"
        apt-get download --quiet docker-registry || { apt-get update && apt-get download --quiet docker-registry; }
        dpkg-deb --extract docker-registry_*.deb registry
        rm -rf "$LAB_CACHE/registry"
        mv registry "$LAB_CACHE/registry"
    ) 9>"$LAB_CACHE/.root.lock" >&2 || die "apt could not fetch docker-registry"
}
