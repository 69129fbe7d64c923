# A tenant gets no container with less confinement than the machine's owner allows
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
here='nodeSelector: {kat.dws.rip/nodeName: n1}'
all='BPF, CHECKPOINT_RESTORE, DAC_READ_SEARCH, MKNOD, PERFMON, SYS_ADMIN, SYS_MODULE, SYS_RAWIO, SYS_TIME'
# loose NAME OPTION...: applied with the tenant's token alone.
loose() { tenant apply -f "$(workload "$@" --spec "$here")"; }
loose loose-seccomp --container 'quadlet: {SeccompProfile: unconfined}'
loose loose-unmask --container 'quadlet: {Unmask: ALL}'
loose loose-selinux --container 'quadlet: {SecurityLabelDisable: "true"}'
loose loose-privileges --container 'quadlet: {NoNewPrivileges: "false"}'
loose loose-capabilities --container "capAdd: [$all]"
names=(loose-seccomp loose-unmask loose-selinux loose-privileges loose-capabilities)
for name in "${names[@]}"; do
    wait_for 20 field_is "$name" .status.reason SecurityNotAllowed
    contains "$(field "$name" .status.message)" "securityAllow in /etc/kat/agent.yaml"
    equal inactive "$(unit_property "$name" ActiveState)" "state of $name"
done
# No file of the machine, which somebody else than its root may have written, is a profile.
refused loose loose-profile --container 'quadlet: {SeccompProfile: /var/tmp/own.json}'

# The control: where the owner allows it the same containers start, and the kernel shows it.
add_agent_settings n1 'securityAllow: [seccomp, unmask, selinux, newPrivileges, capabilities]'
for name in "${names[@]}"; do wait_for 40 field_is "$name" .status.phase Running; done
equal 0 "$(inside loose-seccomp sed -n 's/^Seccomp:.//p' /proc/self/status)" "filter of system calls"
equal 2 "$(inside loose-unmask sed -n 's/^Seccomp:.//p' /proc/self/status)" "filter of system calls of another"

for name in "${names[@]}"; do kat delete workload "$name"; done
restore_agent_settings n1
wait_for 40 nodes_are_ready
for name in "${names[@]}"; do kat delete workload "$name" --wait --ignore-not-found; done
