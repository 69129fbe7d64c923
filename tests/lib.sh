# shellcheck shell=bash
# Functions of the shell tests. Each test is a function or a file; it has a sentence as its name,
# and is counted and timed.

passed=0 failed=0

# holds SENTENCE COMMAND...: runs a test and shows its output only if it fails. The command runs in
# a subshell with 'set -e', so a function ends at its first failing line.
holds() {
    local sentence=$1 output code=0 began=$EPOCHREALTIME
    shift
    output=$(mktemp)
    set +e
    (
        set -Eeuo pipefail
        trap 'echo "  failed at ${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND" >&2' ERR
        "$@"
    ) >"$output" 2>&1
    code=$?
    set -e
    if ((code == 0)); then
        passed=$((passed + 1))
        printf 'ok - %s (%s s)\n' "$sentence" "$(seconds_since "$began")"
    else
        failed=$((failed + 1))
        printf 'FAILED - %s (%s s)\n' "$sentence" "$(seconds_since "$began")"
        tail -n 60 "$output" | sed 's/^/    /'
    fi
    rm -f "$output"
    return 0
}

seconds_since() {
    local tenths
    tenths=$(tenths_since "$1")
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}
tenths_since() {
    local now=$EPOCHREALTIME
    echo $(((${now/./} - ${1/./}) / 100000))
}

# Prints the last line of every test program; fails if a test failed.
verdict() {
    printf '%d passed, %d failed\n' "$passed" "$failed"
    ((failed == 0))
}

# wait_for SECONDS COMMAND...: repeats the command until it succeeds, ten times a second at first. At the time limit it runs
# once more with its output shown, and wait_for fails.
wait_for() {
    local limit=$1 deadline=$((SECONDS + $1)) tries=0 pause=0.1
    shift
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= deadline)); then
            echo "did not succeed within $limit s: $*" >&2
            "$@" >&2 || true
            return 1
        fi
        # Several labs wait beside each other: their questions must not take the processors.
        ((++tries < 10)) || pause=0.25
        sleep "$pause"
    done
}

# equal EXPECTED FOUND WHAT
equal() {
    [[ $1 == "$2" ]] || {
        printf '%s: expected\n%s\nfound\n%s\n' "${3:-value}" "$1" "$2" >&2
        return 1
    }
}

# contains TEXT PART
contains() {
    [[ $1 == *"$2"* ]] || {
        printf 'expected to find %s in\n%s\n' "$2" "$1" >&2
        return 1
    }
}

# lacks TEXT PART: the text is not empty, since the output of a failed command would lack everything.
lacks() {
    [[ $1 && $2 ]] || {
        printf 'expected a text that lacks a part; the text is "%s", the part "%s"\n' "$1" "$2" >&2
        return 1
    }
    [[ $1 != *"$2"* ]] || {
        printf 'expected not to find %s in\n%s\n' "$2" "$1" >&2
        return 1
    }
}

# differs UNEXPECTED FOUND WHAT: what was found is another one than UNEXPECTED, and not nothing.
differs() {
    [[ $2 && $1 != "$2" ]] || {
        printf '%s: expected another one than "%s", found "%s"\n' "${3:-value}" "$1" "$2" >&2
        return 1
    }
}

# prints_nothing WHAT COMMAND...: the command succeeds and prints nothing. An empty output of a failed command shows
# nothing.
prints_nothing() {
    local what=$1 output code=0
    shift
    output=$("$@") || code=$?
    [[ $code == 0 && ! $output ]] || {
        printf '%s: expected none; exit code %d of %s, which printed\n%s\n' "$what" "$code" "$*" "$output" >&2
        return 1
    }
}

# finds_nothing COMMAND...: a search such as grep must end with 1, which means no match: more is an error.
finds_nothing() {
    local code=0
    "$@" || code=$?
    ((code == 1)) || {
        echo "exit code $code, expected 1, no match: $*" >&2
        return 1
    }
}

# refused COMMAND...: the command must fail, but not because the shell cannot find or run it.
refused() {
    local code=0
    "$@" || code=$?
    ((code != 0 && code < 126)) || {
        echo "exit code $code, expected a refusal: $*" >&2
        return 1
    }
}

# as_in_rpm: changes the paths of the .deb in the input to those of the .rpm, which has zsh's completions where Fedora's zsh
# looks. as_in_deb does the reverse.
as_in_rpm() { sed 's#usr/share/zsh/vendor-completions/#usr/share/zsh/site-functions/#'; }
as_in_deb() { sed 's#usr/share/zsh/site-functions/#usr/share/zsh/vendor-completions/#'; }
