#!/bin/sh
# starts ROUNDS UNIT...: starts and stops the units of this user in turn, the first one first in the first round,
# the second one first in the second, and so on. A line for each: UNIT, milliseconds of the start, of the stop.
# Runs in the machine.
set -eu

rounds=$1
shift
now() { date +%s%N; }
milliseconds() { awk -v from="$1" -v to="$2" 'BEGIN { printf "%.2f", (to - from) / 1e6 }'; }

round=0
while [ "$round" -lt "$rounds" ]; do
    for unit in "$@"; do
        began=$(now)
        systemctl --user start "$unit"
        started=$(now)
        systemctl --user stop "$unit"
        stopped=$(now)
        echo "$unit $(milliseconds "$began" "$started") $(milliseconds "$started" "$stopped")"
    done
    first=$1
    shift
    set -- "$@" "$first"
    round=$((round + 1))
done
