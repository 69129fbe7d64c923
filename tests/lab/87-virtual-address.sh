# A virtual address moves within 3 s of a drain and in time after a loss of power, and stays while the agent is stopped
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
ADDRESS=192.168.77.200
holder() { kat get addresses -o json | jq -er '.items[0].status | select(.held) | .holder'; }
is_held_by() { equal "$1" "$(holder)" "holder of $ADDRESS"; }
is_held() { holder >/dev/null; }
# answers: whether the API answers at the address, to a caller outside the cluster's machines.
answers() { nsenter --net="/run/netns/$KAT_LAB_NAME" -- curl --silent --insecure --max-time 1 --output /dev/null "https://$ADDRESS:9115/v1alpha1/health"; }
# is_there: whether a machine has the address: it refuses at once what no program listens to.
is_there() {
    local code=0
    nsenter --net="/run/netns/$KAT_LAB_NAME" -- curl --silent --max-time 1 --output /dev/null "http://$ADDRESS:9/" || code=$?
    ((code == 7))
}
has_address() { [[ $(on "$1" ip -o address show) == *" $ADDRESS/32 "* ]]; }

set_address() { kat config set "virtualAddresses=[{\"address\": \"$1/24\"}]"; }
set_address "$ADDRESS"
wait_for 30 is_held
first=$(holder)
wait_for 10 answers
has_address "$first"
contains "$(kat get addresses)" Held
contains "$(kat describe node "$first")" "$ADDRESS/24 (Held)"
contains "$(kat why address "$ADDRESS")" "is held by $first"
kat status
# It is no endpoint of the mesh.
lacks "$(kat get nodes -o json)" "$ADDRESS"

# The agent stops for less than nodeLossTimeoutSeconds, as at an upgrade, and with it the API there; nothing moves.
on "$first" systemctl stop kat-agent
deadline=$((SECONDS + 6))
while ((SECONDS < deadline)); do
    if ! is_there || ! has_address "$first"; then
        echo "$ADDRESS did not stay while the agent was stopped" >&2
        exit 1
    fi
done
on "$first" systemctl start kat-agent
wait_for 60 nodes_are_ready
wait_for 30 is_held
first=$(holder)
on "$first" systemctl restart kat-net
wait_for 10 answers
is_held_by "$first"

# gap SECONDS: the longest time without an answer within this time, in milliseconds.
gap() {
    local end=$((SECONDS + $1)) last=$EPOCHREALTIME longest=0 now waited
    while ((SECONDS < end)); do
        answers || { sleep 0.05 && continue; }
        now=$EPOCHREALTIME
        waited=$(((${now/./} - ${last/./}) / 1000)) last=$now
        ((waited <= longest)) || longest=$waited
    done
    # The time without an answer at the end counts too.
    now=$EPOCHREALTIME
    waited=$(((${now/./} - ${last/./}) / 1000))
    ((waited <= longest)) || longest=$waited
    echo "$longest"
}
gap 20 >"$LAB_WORK/gap" &
watching=$!
kat drain "$first" --timeout 60s
wait "$watching"
echo "the drain took the address away for $(<"$LAB_WORK/gap") ms" | tee -a "$LAB_WORK/figures"
(($(<"$LAB_WORK/gap") < 3000))
second=$(holder)
lacks "$second" "$first"
if has_address "$first"; then exit 1; fi
contains "$(kat get events -A)" VirtualAddressMoved
kat uncordon "$first"
wait_for 20 nodes_are_ready
is_held_by "$second"

# n1 keeps its power: the test asks there.
if [[ $second == n1 ]]; then
    kat drain n1 --timeout 60s
    wait_for 10 is_held
    second=$(holder)
    kat uncordon n1
    wait_for 20 nodes_are_ready
fi
gap 40 >"$LAB_WORK/gap" &
watching=$!
lab kill "$second"
wait "$watching"
echo "a loss of power took the address away for $(<"$LAB_WORK/gap") ms" | tee -a "$LAB_WORK/figures"
(($(<"$LAB_WORK/gap") < 20000))
wait_for 20 is_held
third=$(holder)
lab start "$second"
wait_for 60 nodes_are_ready
is_held_by "$third"
if has_address "$second"; then exit 1; fi

# An address that another host has is not taken, and said.
set_address 192.168.77.1
is_said() { [[ $(kat get addresses) == *VirtualAddressTaken* ]]; }
wait_for 30 is_said
if kat status >/dev/null; then exit 1; fi
kat config unset virtualAddresses
wait_for 20 kat status
prints_nothing "addresses with KAT's mark" on "$third" sh -c "ip -o address show | grep -F '$ADDRESS/32' || true"
