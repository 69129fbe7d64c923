# Limits that the machine cannot enforce are reported in the instance's conditions
# shellcheck shell=bash
run small --port 80 --container 'resources: {limits: {memory: 48Mi, cpu: "0.5"}}'
run free --port 80
said() { instances "$1" | jq -r '.[0].status.conditions[]? | select(.type == "LimitsNotEnforced" and .status) | .reason'; }
expected=ControllerMissing
# Not on every host do the machines of the lab lack them.
if [[ $(n1 cat /sys/fs/cgroup/cgroup.controllers) == *cpu*memory* ]]; then expected=''; fi
equal "$expected" "$(said small)" "reason"
equal "" "$(said free)" "reason of what has no limits"
output=$(kat describe instance "$(field small .metadata.name)")
if [[ $expected ]]; then
    contains "$output" LimitsNotEnforced
    contains "$output" "limits do nothing"
else
    lacks "$output" LimitsNotEnforced
fi
