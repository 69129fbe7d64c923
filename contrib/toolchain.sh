# shellcheck shell=bash
# Roots of Debian with its own compilers, in which packages are built without network: for contrib/source-package and
# contrib/cross. Needs contrib/lab/lib/root.sh.

# The Debian release that packages are built on; Rust comes from its backports. Read by the lab's functions.
# shellcheck disable=SC2034
ROOT_SUITE=trixie
TOOLCHAIN_ROOT='' TOOLCHAIN_SOURCES=''
# Only Rust is taken from backports, for all architectures.
preferences="Package: rustc cargo libstd-rust-*:any
Pin: release n=$ROOT_SUITE-backports
Pin-Priority: 500
"
# As contrib/lab/lib/customize-root: no mirror stays in the root. dpkg-buildpackage runs as the user build.
customize='
set -e
rm -f "$1/etc/apt/sources.list" "$1"/etc/apt/sources.list.d/* "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*
chroot "$1" useradd --uid 1000 --user-group --home-dir /build --shell /bin/sh build
mkdir "$1/build"
'

# toolchain_root NAME ARCHITECTURES PACKAGE...: makes a root with these packages for the architectures, unless it is cached:
# both separated by commas. Sets TOOLCHAIN_ROOT to its path.
toolchain_root() {
    local name=$1 key
    key=$(printf '%s\n' "$ROOT_SUITE $preferences $customize" "${@:2}" | sha256sum)
    TOOLCHAIN_ROOT=$LAB_CACHE/$name-${key:0:12}
    build "$TOOLCHAIN_ROOT" build_toolchain_root "$@"
}

build_toolchain_root() {
    local name=$1 architectures=$2 packages=$3
    say "making a root of Debian $ROOT_SUITE with the toolchain of its backports (some minutes)"
    PREFERENCES=$preferences BACKPORTS="deb $(apt_mirror) $ROOT_SUITE-backports main" \
        debootstrap "$LAB_CACHE/$name.log" "$packages" "$4" --architectures="$architectures" \
        --setup-hook='echo "$BACKPORTS" >"$1/etc/apt/sources.list.d/backports.list"' \
        --setup-hook='printf %s "$PREFERENCES" >"$1/etc/apt/preferences.d/backports"' \
        --customize-hook="$customize"
}

# in_root USER BUILD COMMAND...: runs the command as the user with this number in TOOLCHAIN_ROOT, which it cannot change, with
# the folder BUILD as /build, and with no network. TOOLCHAIN_SOURCES,
# unless empty, is a folder that is /build/kat to the command and cannot be changed.
in_root() {
    unshare --mount --net --pid --ipc --uts --fork --kill-child -- bash -c '
        set -e
        root=$1 sources=$2 user=$3 build=$4
        shift 4
        mount --make-rprivate /
        mount --bind "$root" "$root"
        mount -o remount,bind,ro "$root"
        mount --rbind /dev "$root/dev"
        mount -t proc proc "$root/proc"
        for folder in run tmp var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root/$folder"; done
        mount --bind "$build" "$root/build"
        if [[ $sources ]]; then
            mount --bind "$sources" "$root/build/kat"
            mount -o remount,bind,ro "$root/build/kat"
        fi
        exec chroot --userspec="$user:$user" --groups="$user" "$root" env --ignore-environment --chdir=/build HOME=/build TMPDIR=/build/tmp \
            PATH=/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 "$@"
    ' bash "$TOOLCHAIN_ROOT" "$TOOLCHAIN_SOURCES" "$@" </dev/null
}
