# A tenant gets no container with less confinement than the machine's owner allows
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
here='nodeSelector: {kat.dws.rip/nodeName: n1}'
all='BPF, CHECKPOINT_RESTORE, DAC_READ_SEARCH, MKNOD, PERFMON, SYS_ADMIN, SYS_MODULE, SYS_RAWIO, SYS_TIME'
# apply_loose NAME OPTION...: applies a workload with the tenant's token alone.
apply_loose() { tenant apply -f "$(workload "$@" --spec "$here")"; }
apply_loose loose-seccomp --container 'quadlet: {SeccompProfile: unconfined}'
apply_loose loose-unmask --container 'quadlet: {Unmask: ALL}'
apply_loose loose-selinux --container 'quadlet: {SecurityLabelDisable: "true"}'
apply_loose loose-privileges --container 'quadlet: {NoNewPrivileges: "false"}'
apply_loose loose-capabilities --container "capAdd: [$all]"
names=(loose-seccomp loose-unmask loose-selinux loose-privileges loose-capabilities)
for name in "${names[@]}"; do
    wait_for 20 field_is "$name" .status.reason SecurityNotAllowed
    contains "$(field "$name" .status.message)" "securityAllow in /etc/kat/agent.yaml"
    equal inactive "$(unit_property "$name" ActiveState)" "state of $name"
done
# A file of the machine, which a user other than root may have written, is refused as a profile.
refused apply_loose loose-profile --container 'quadlet: {SeccompProfile: /var/tmp/own.json}'

# The control: with the owner's permission the same containers start, and the kernel shows the
# difference.
add_agent_settings n1 'securityAllow: [seccomp, unmask, selinux, newPrivileges, capabilities]'
for name in "${names[@]}"; do wait_for 40 field_is "$name" .status.phase Running; done
equal 0 "$(inside loose-seccomp sed -n 's/^Seccomp:.//p' /proc/self/status)" "filter of system calls of loose-seccomp"
equal 2 "$(inside loose-unmask sed -n 's/^Seccomp:.//p' /proc/self/status)" "filter of system calls of a container with the default profile"

for name in "${names[@]}"; do kat delete workload "$name"; done
restore_agent_settings n1
wait_for 40 nodes_are_ready
for name in "${names[@]}"; do kat delete workload "$name" --wait --ignore-not-found; done
