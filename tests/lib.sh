# shellcheck shell=bash
# What shell tests share: each test is a function or a file, shown as a sentence, counted, timed.

passed=0 failed=0

# holds SENTENCE COMMAND...: runs it with its output kept, and shows that only when it fails. The command runs in
# a shell of its own under 'set -e', so a function ends at its first failing line.
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

# The last line of every program of tests; its exit code says whether all passed.
verdict() {
    printf '%d passed, %d failed\n' "$passed" "$failed"
    ((failed == 0))
}

# wait_for SECONDS COMMAND...: until it succeeds; else shows what it says and fails.
wait_for() {
    local limit=$1 deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= deadline)); then
            echo "not within $limit s: $*" >&2
            "$@" >&2 || true
            return 1
        fi
        sleep 0.1
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

lacks() {
    [[ $1 != *"$2"* ]] || {
        printf 'expected not to find %s in\n%s\n' "$2" "$1" >&2
        return 1
    }
}

# refused COMMAND...: it must fail, with an exit code that is not a shell's "not found".
refused() {
    local code=0
    "$@" || code=$?
    ((code != 0 && code < 126)) || {
        echo "exit code $code, expected a refusal: $*" >&2
        return 1
    }
}
