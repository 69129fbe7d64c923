# shellcheck shell=bash
# need WHAT:PACKAGE...: installs with apt the packages whose WHAT is not there, a command or an absolute path.
# What apt says goes to stderr.

need() {
    local pair what missing=()
    for pair in "$@"; do
        what=${pair%%:*}
        if [[ $what == /* ]]; then [[ -e $what ]]; else command -v "$what" >/dev/null; fi || missing+=("${pair#*:}")
    done
    ((${#missing[@]})) || return 0
    printf 'installing with apt: %s\n' "${missing[*]}" >&2
    apt_install "${missing[@]}" || { apt-get update --quiet >&2 && apt_install "${missing[@]}"; } || {
        printf 'apt could not install: %s\n' "${missing[*]}" >&2
        return 1
    }
}

apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends "$@" >&2; }

# What building the programs takes beside cargo. protoc reads the files of libprotobuf-dev, which it does not depend on.
# shellcheck disable=SC2034
NEEDED_TO_BUILD=(cc:gcc /usr/include/stdio.h:libc6-dev protoc:protobuf-compiler
    /usr/include/google/protobuf/descriptor.proto:libprotobuf-dev)
