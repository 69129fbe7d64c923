# shellcheck shell=bash
# The machines' root file system and the registry's program: built once and cached.

ROOT_VERSION=1
ROOT_SUITE=${KAT_LAB_SUITE:-trixie}
EMULATION=()
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
        ! lab_is_vm || vm_packages
        # shellcheck disable=SC2086 # names by blanks
        printf '%s\n' ${KAT_LAB_PACKAGES:-}
    } | sort -u | sed '/^$/d'
}

root_path() {
    local key
    key=$({ echo "$ROOT_VERSION $ROOT_SUITE$(! lab_is_foreign || echo " $LAB_ARCH")"; root_packages; cat "$LAB_LIB/customize-root"; } | sha256sum)
    printf '%s/root-%s\n' "$LAB_CACHE" "${key:0:12}"
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

# build PATH COMMAND...: runs the command with a new folder of its own, and moves the folder's "root" to PATH, unless PATH
# exists. Builds of one cache run one after the other, so a folder that an interrupted build left can be removed. It is
# never used again: processes of that build may still write into it.
build() {
    local path=$1
    shift
    [[ ! -e $path ]] || return 0
    need_room "$LAB_CACHE" 2048 "building $(basename "$path")"
    mkdir -p "$LAB_CACHE"
    (
        flock 9
        [[ ! -e $path ]] || exit 0
        rm -rf --one-file-system "$LAB_CACHE"/.new.*
        work=$(mktemp -d "$LAB_CACHE/.new.XXXXXX")
        # The user of apt reads it.
        chmod 0755 "$work"
        trap 'rm -rf --one-file-system "$work"' EXIT
        "$@" "$work/root"
        mv "$work/root" "$path"
    ) 9>"$LAB_CACHE/.root.lock" >&2
}

# debootstrap LOG PACKAGES FOLDER [OPTION...]: makes a file system of Debian with these packages, separated by commas.
# EMULATION, if set, is a command that runs mmdebstrap where programs of another architecture run.
debootstrap() {
    local log=$1 packages=$2 folder=$3 mirror option options=()
    shift 3
    mirror=$(apt_mirror)
    [[ $mirror ]] || die "this host's apt has no Debian mirror with the component 'main': see 'apt-get indextargets'"
    while read -r option; do
        options+=(--aptopt="$option")
    done < <(apt_options)
    # Without the descriptors of locks and callers: mmdebstrap tells sh the number of one of its own, and dash takes no
    # number of two digits.
    if ! with_retries "$log" "$folder" "${EMULATION[@]}" mmdebstrap --mode=root --variant=minbase --format=directory \
        --aptopt='APT::Install-Recommends "false"' "${options[@]}" --include="$packages" "$@" \
        "$ROOT_SUITE" "$folder" "$mirror" 7<&- 8>&- 9>&-; then
        tail -n 30 "$log" >&2
        die "mmdebstrap failed; its whole output is in $log"
    fi
}

ensure_root() { build "$(root_path)" build_root; }

build_root() {
    local EMULATION=() options=() duration="about half a minute"
    if lab_is_foreign; then
        EMULATION=("$LAB_LIB/with-emulation" "$LAB_ARCH") options=(--architectures="$LAB_ARCH") duration="$LAB_ARCH, some minutes"
    fi
    say "building the root file system of the machines (Debian $ROOT_SUITE, $duration)"
    debootstrap "$LAB_CACHE/root.log" "$(root_packages | paste -sd,)" "$1" "${options[@]}" --customize-hook="$LAB_LIB/customize-root"
    say "built the root file system ($(du -sh "$1" | cut -f1))"
}

# ensure_tree PACKAGE...: builds a file tree with these Debian packages for an image, unless it is
# cached, and prints its path.
ensure_tree() {
    local key tree
    key=$(echo "$ROOT_VERSION $ROOT_SUITE $*" | sha256sum)
    tree=$LAB_CACHE/tree-${key:0:12}
    build "$tree" build_tree "$@"
    echo "$tree"
}

build_tree() {
    local packages=("${@:1:$#-1}") tree=${!#}
    say "building a file tree with ${packages[*]}"
    debootstrap "$LAB_CACHE/tree.log" "$(printf '%s\n' "${packages[@]}" | paste -sd,)" "$tree" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
    # No machine boots from the tree, and containers have their own devices.
    rm -rf "${tree:?}"/dev/* "$tree/var/cache/apt" "$tree/var/lib/apt/lists"
}

# Debian's registry is unpacked, not installed, so that no service starts on the host.
ensure_registry_program() { build "$LAB_CACHE/registry" build_registry; }

build_registry() {
    say "downloading Debian's docker-registry with apt"
    cd "$(dirname "$1")" || return
    apt_retried download --quiet docker-registry || die "apt could not fetch docker-registry"
    dpkg-deb --extract docker-registry_*.deb "$1"
}
