# Limits that the machine cannot enforce are reported in the instance's conditions
# shellcheck shell=bash
run small --port 80 --container 'resources: {limits: {memory: 48Mi, cpu: "0.5"}}'
run free --port 80
limits_condition() { instances "$1" | jq -er 'if length == 1 then .[0] else error("not one instance") end | [.status.conditions[]? | select(.type == "LimitsNotEnforced" and .status) | .reason] | join(" ")'; }
expected=ControllerMissing
# On some hosts the lab's machines have the controllers.
if [[ $(n1 cat /sys/fs/cgroup/cgroup.controllers) == *cpu*memory* ]]; then expected=''; fi
equal "$expected" "$(limits_condition small)" "reason"
prints_nothing "reason of an instance without limits" limits_condition free
output=$(kat describe instance "$(field small .metadata.name)")
if [[ $expected ]]; then
    contains "$output" LimitsNotEnforced
    contains "$output" "limits do nothing"
else
    lacks "$output" LimitsNotEnforced
fi
