# shellcheck shell=bash
# Functions for the transcripts of docs/guide: what a page shows is compared with what the command prints.
# Functions run by name:
# shellcheck disable=SC2317,SC2329

# file_of PAGE NUMBER: the page's example file with this number.
file_of() {
    awk -v wanted="$2" '
        /^    apiVersion: / { number++ }
        !/^    / { inside = 0; next }
        /^    apiVersion: / { inside = 1 }
        inside && number == wanted { print substr($0, 5) }
    ' "docs/guide/$1.md"
}
# transcript PAGE LINE [NUMBER]: what the page shows after this command or sentence, or after its NUMBERth occurrence, up to the
# next text or command.
transcript() {
    awk -v line="$2" -v wanted="${3:-1}" '
        !found { if (($0 == line || $0 == "    " line) && ++number == wanted) found = 1; next }
        /^    sudo katcall / { exit }
        /^    / { print substr($0, 5); next }
        !/^$/ { exit }
    ' "docs/guide/$1.md"
}
# normalised: the text without what differs between two runs, and without lines of progress.
normalised() {
    sed -E '
        /^web: waiting for the leader$/d
        /^web: (deleting|[0-9]+ instances? left)$/d
        /^web: [0-9]+ of [0-9]+ healthy, [0-9]+ (pulling|starting|old)/d
        s/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+Z/TIME/g
        s/since [A-Z][a-z]{2} .* ago$/since/
        s/token:[a-z0-9]+/token:ID/g
        s/\bweb-[a-z0-9]{5}\b/web-ID/g
        s/10\.100\.[0-9]+\.[0-9]+/IP/g
        s/registry\.(example|lab:5000\/test)\//REGISTRY\//g
        s/\b[0-9]+(\.[0-9]+)? ?(ms|s|min|m|h|d)\b/TIME/g
        s/\b[0-9]+(\.[0-9]+)?[KMG]i\b/SIZE/g
        s/^ *@@ .* @@$/@@/
        s/\bn[123] \(192\.168\.77\.1[123]\)/MACHINE (ADDRESS)/g
        s/\/20[0-9]{3}\//\/UID\//g
        s/^cluster `[a-z]+`/cluster/
        s/the cluster (home|lab|kat)\b/the cluster NAME/
        s/kat1\.[a-z0-9]+\.[^ ]+/TOKEN/
        s/token revoke [a-z0-9]+/token revoke ID/
        s/^backup .*/backup/
        s/^(is|because|lately|try)  +/ /
        s/  +/ /g
        s/ $//
    '
}
# shows PAGE LINE OUTPUT [NUMBER]: every line that the page shows there is in the output.
shows() {
    local expected output line
    expected=$(transcript "$1" "$2" "${4:-1}" | normalised | grep -v '^ *\.\.\.$' | grep .) || {
        echo "docs/guide/$1.md shows nothing after: $2" >&2
        return 1
    }
    output=$(normalised <<<"$3")
    while IFS= read -r -u 4 line; do
        grep -qxF -- "$line" <<<"$output" || {
            printf 'docs/guide/%s.md, after %s, shows\n%s\nwhich is not in\n%s\n' "$1" "$2" "$line" "$output" >&2
            return 1
        }
    done 4<<<"$expected"
}
