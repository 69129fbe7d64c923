# A token of one namespace makes no more there than its quotas, and takes nothing from another namespace
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
kat create namespace other
kat namespace set default workloads=1 instances=2 secrets=1
tenant apply -f "$(workload first --replicas 2)" --wait
tenant secret set one key=value
# exceeds_quota QUOTA USED REQUESTED COMMAND...: the tenant's command is refused with a message that
# names the quota.
exceeds_quota() {
    local message
    message=$(refused tenant "${@:4}" 2>&1)
    contains "$message" "the quota \`$1\` of namespace \`default\` is"
    contains "$message" "$2 used now, and $3 with this"
}
exceeds_quota workloads 1 2 apply -f "$(workload second)"
exceeds_quota instances 2 3 scale first --replicas 3
exceeds_quota secrets 1 2 secret set two key=value
refused tenant namespace set default workloads=100
# A lower quota leaves existing objects, and also binds the administrator.
kat namespace set default instances=1
has_ready first 2
refused kat scale first --replicas 3
contains "$(kat describe namespace default)" "instances 2 of 1"
# The other namespace is unaffected. The control: without quotas the same calls succeed.
kat apply -f "$(workload second --namespace other)" --wait
kat namespace set default workloads=none instances=none secrets=none
tenant apply -f "$(workload second)" --wait
tenant secret set two key=value
tenant delete workload first --wait
tenant delete workload second --wait
tenant delete secret one
tenant delete secret two
kat delete namespace other --cascade
