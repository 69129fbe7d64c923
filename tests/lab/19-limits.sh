# Limits that the machine cannot enforce are reported in the instance's conditions
# shellcheck shell=bash
run small --port 80 --container 'resources: {limits: {memory: 48Mi, cpu: "0.5"}}'
run free --port 80
limits_condition() { instances "$1" | jq -r '.[0].status.conditions[]? | select(.type == "LimitsNotEnforced" and .status) | .reason'; }
expected=ControllerMissing
# On some hosts the lab's machines have the controllers.
if [[ $(n1 cat /sys/fs/cgroup/cgroup.controllers) == *cpu*memory* ]]; then expected=''; fi
equal "$expected" "$(limits_condition small)" "reason"
equal "" "$(limits_condition free)" "reason of an instance without limits"
output=$(kat describe instance "$(field small .metadata.name)")
if [[ $expected ]]; then
    contains "$output" LimitsNotEnforced
    contains "$output" "limits do nothing"
else
    lacks "$output" LimitsNotEnforced
fi
