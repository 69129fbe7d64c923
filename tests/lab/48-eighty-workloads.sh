# Eighty workloads run at once on one machine; their deletion leaves no account and no process, and kat-agent stays small
# by name
# limit: 1200
# shellcheck shell=bash
count=80
# KiB that kat-agent may have after all have gone. Most of what it frees stays in its heap, between small objects that stay:
# it had 65 MiB at 02c802fe. A leak would be seen here.
most=$((72 * 1024))

figure() { printf '%s\n' "$1" | tee -a "$LAB_WORK/figures"; }
# memory SERVICE: the memory (PSS, in KiB) of the service's process, which contrib/bench/memory measures too.
memory() {
    n1 sh -euc 'grep "^Pss:" "/proc/$(systemctl show --property=MainPID --value "$1")/smaps_rollup"' sh "$1.service" | tr -dc 0-9
}
# agent_rests: whether the memory of kat-agent has changed by less than a MiB for 15 s; for wait_for.
agent_rests() {
    agent=$(memory kat-agent) || return 1
    if ((agent - around >= 1024 || around - agent >= 1024)); then
        around=$agent since=$SECONDS
    fi
    ((SECONDS - since >= 15)) || {
        echo "kat-agent has $agent KiB, and had $around KiB $((SECONDS - since)) s ago" >&2
        return 1
    }
}
# measure WHEN: sets agent and net to the memory of both services at rest, and adds them to the figures.
measure() {
    around=0 since=$SECONDS
    wait_for 90 agent_rests
    net=$(memory kat-net)
    figure "$(awk -v when="$1" -v agent="$agent" -v net="$net" \
        'BEGIN { printf "memory %s: kat-agent %.1f MiB, kat-net %.1f MiB", when, agent / 1024, net / 1024 }')"
}
# remains KIND: what n1 has of users of workloads, a line each: accounts, ranges of subordinate ids, or processes.
# Uids of workloads' users are 20000 to 24093, and their subordinate ids start at 1879048192.
remains() {
    lab exec n1 -- sh -eu -s "$1" <<'SCRIPT'
case $1 in
accounts) getent passwd | awk -F: '$5 ~ /^KAT workload / { print $1 }' ;;
# Either file may be missing before the first workload.
ranges) cat /etc/subuid /etc/subgid 2>/dev/null | awk -F: '$1 ~ /^kat-/ || $2 >= 1879048192' ;;
processes) ps -e -o uid= -o pid= -o args= | awk '($1 >= 20000 && $1 <= 24093) || $1 >= 1879048192' ;;
esac
SCRIPT
}
# nothing_remains: whether n1 has nothing of users of workloads; for wait_for.
nothing_remains() {
    local kind
    for kind in accounts ranges processes; do prints_nothing "$kind" remains "$kind" || return 1; done
}
workload_count_is() { equal "$1" "$(kat get workloads -A -o json | jq '.items | length')" workloads; }
# all_are_ready: whether each workload is Ready at this moment; for wait_for.
all_are_ready() {
    local ready
    ready=$(kat get workloads -o json | jq '[.items[].status | select(.phase == "Running" and .ready == 1)] | length')
    equal "$count" "$ready" "workloads that are Ready"
}

# An agent that other tests have used may hold more memory.
n1 systemctl restart kat-agent
wait_for 60 nodes_are_ready
wait_for 60 nothing_remains
measure before

folders=$LAB_WORK/eighty
mkdir "$folders"
workload many >/dev/null
for ((number = 1; number <= count; number++)); do
    mkdir "$folders/many$number"
    sed "s/^  name: many\$/  name: many$number/" "$LAB_WORK/workloads/many/workload.kat" >"$folders/many$number/workload.kat"
done
lab copy "$folders" n1:/root/workloads/
began=$EPOCHREALTIME
# One call applies all folders, and then waits for all workloads.
kat apply -f /root/workloads/eighty --wait --timeout 420s
figure "$count workloads were Ready after $(seconds_since "$began") s"
workload_count_is "$count"
wait_for 30 all_are_ready
process_count_is "$count"
statuses=$(kat get instances -o json | jq -c '[.items[].status]')
users=$(jq '[.[] | select(.phase == "Running") | .uid] | unique | length' <<<"$statuses")
equal "$count" "$users" "users with a running instance"
mapfile -t addresses < <(jq -r '.[].ip' <<<"$statuses")
equal "$count" "${#addresses[@]}" addresses
answers=$(n1 sh -c 'for address; do curl --silent --show-error --max-time 10 "http://$address:8080/"; done' \
    sh "${addresses[@]}")
equal "$count" "$(grep -o '^host=[^ ]*' <<<"$answers" | sort -u | wc -l)" "instances that answered"
# The controls of what must be gone later: each user has an account, two ranges, a manager and a container.
equal "$count" "$(remains accounts | wc -l)" accounts
equal $((2 * count)) "$(remains ranges | wc -l)" "ranges of subordinate ids"
processes=$(remains processes | wc -l)
((processes >= 2 * count)) || { echo "$count workloads have $processes processes" >&2 && exit 1; }
measure "with $count workloads"

began=$EPOCHREALTIME
kat delete -f /root/workloads/eighty
wait_for 240 workload_count_is 0
wait_for 60 nothing_remains
figure "$count workloads and their users were gone after $(seconds_since "$began") s"
process_count_is 0
measure "after them"
((agent < most)) || { echo "kat-agent has $agent KiB; expected less than $most KiB" >&2 && exit 1; }
