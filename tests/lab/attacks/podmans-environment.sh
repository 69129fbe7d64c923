# A tenant's variables never stand in Podman's own environment, whatever their names
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
# Variables that change the behaviour of Podman, Go or the C library, and that no list of forbidden
# names contained.
names=(TZDIR GCONV_PATH _CONTAINERS_ROOTLESS_UID REGISTRIES_CONFIG_PATH PATH)
variables=()
for name in "${names[@]}"; do variables+=(--env "$name=one\\ntwo of $name"); done
tenant apply -f "$(workload variables --spec 'nodeSelector: {kat.dws.rip/nodeName: n1}' "${variables[@]}")"
wait_for 30 field_is variables .status.phase Running
prints_nothing "files of variables that systemd gives to Podman" unit_property variables EnvironmentFiles
environment=$(unit_property variables Environment)
refused grep -q 'one' <<<"$environment"

# The control: the container has the variables, also after a restart.
container_has_variables() {
    local name pid
    pid=$(as "$(field variables .status.user)" podman inspect --format '{{.State.Pid}}' "kat-default-$(field variables .metadata.name)")
    for name in "${names[@]}"; do
        equal "one two of $name" "$(n1 cat "/proc/$pid/environ" | tr '\n\0' ' \n' | sed -n "s/^$name=//p")" "$name in the container"
    done
}
container_has_variables
as "$(field variables .status.user)" systemctl --user restart "$(field variables .status.unit)"
wait_for 30 field_is variables .status.phase Running
container_has_variables
kat delete workload variables --wait
