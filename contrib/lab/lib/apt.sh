# shellcheck shell=bash
# Downloads with apt. Mirrors fail at times, so each download is retried: by apt, and then with new package lists.

# An option of apt: a failed download is tried this many more times.
APT_RETRIES='Acquire::Retries=5'

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get --option "$APT_RETRIES" "$@"; }

# apt_retried ARGUMENT...: runs apt-get. If it fails, downloads the package lists and runs it again, three times within
# a minute.
apt_retried() {
    local pause
    ! apt_get "$@" || return 0
    for pause in 0 15 30; do
        sleep "$pause"
        if apt_get update && apt_get "$@"; then return 0; fi
    done
    return 1
}

apt_install() { apt_retried install --yes --quiet --no-install-recommends "$@"; }

# Prints the mirror that the host's apt uses; none is hard-coded.
apt_mirror() {
    local codename
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(SITE)' 'Created-By: Packages' |
        awk -v codename="$codename" '$1 == codename && $2 == "main" { print $3; exit }'
}

# Prints the options for the apt of mmdebstrap, one a line: retries, and the host's options for proxies, certificates
# and date checks.
apt_options() {
    apt-config dump | grep -E '^Acquire::((https?|ftp)::[^ ]+|Check-(Valid-Until|Date)) "[^"]+";$' || true
    printf '%s "%s";\n' "${APT_RETRIES%=*}" "${APT_RETRIES#*=}"
}
