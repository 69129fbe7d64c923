# A token of one namespace makes no more there than its quotas, and takes nothing from another namespace
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
kat create namespace other
kat namespace set default workloads=1 instances=2 secrets=1
tenant apply -f "$(workload first --replicas 2)" --wait
tenant secret set one key=value
# over WORD USED ASKED COMMAND...: the tenant is refused, and told which quota it is.
over() {
    local message
    message=$(refused tenant "${@:4}" 2>&1)
    contains "$message" "the quota \`$1\` of namespace \`default\` is"
    contains "$message" "$2 used now, and $3 with this"
}
over workloads 1 2 apply -f "$(workload second)"
over instances 2 3 scale first --replicas 3
over secrets 1 2 secret set two key=value
refused tenant namespace set default workloads=100
# What is there stays where the quota is lowered, and the administrator is refused too.
kat namespace set default instances=1
has_ready first 2
refused kat scale first --replicas 3
contains "$(kat describe namespace default)" "instances 2 of 1"
# The other namespace is unharmed, and the control: without the quotas the same calls do what they say.
kat apply -f "$(workload second --namespace other)" --wait
kat namespace set default workloads=none instances=none secrets=none
tenant apply -f "$(workload second)" --wait
tenant secret set two key=value
tenant delete workload first --wait
tenant delete workload second --wait
tenant delete secret one
tenant delete secret two
kat delete namespace other --cascade
