# shellcheck shell=bash
# need WHAT:PACKAGE...: installs with apt the packages whose WHAT is not there, a command or an absolute path.
# What apt says goes to stderr.

# shellcheck source=contrib/lab/lib/apt.sh
. "$(dirname "${BASH_SOURCE[0]}")/lab/lib/apt.sh"

need() {
    local pair what missing=()
    for pair in "$@"; do
        what=${pair%%:*}
        if [[ $what == /* ]]; then [[ -e $what ]]; else command -v "$what" >/dev/null; fi || missing+=("${pair#*:}")
    done
    ((${#missing[@]})) || return 0
    printf 'installing with apt: %s\n' "${missing[*]}" >&2
    apt_install "${missing[@]}" >&2 || {
        printf 'apt could not install: %s\n' "${missing[*]}" >&2
        return 1
    }
}

# What building the programs takes beside cargo. protoc reads the files of libprotobuf-dev, which it does not depend on.
# shellcheck disable=SC2034
NEEDED_TO_BUILD=(cc:gcc /usr/include/stdio.h:libc6-dev protoc:protobuf-compiler
    /usr/include/google/protobuf/descriptor.proto:libprotobuf-dev)
