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

# Hosts of routes are counted, and so are new certificates by ACME.
# with_route NAME ROUTE: the folder of a workload with this route.
with_route() {
    local folder
    folder=$(workload "$1" --port 80)
    n1 sh -c 'printf "  ingress:\n    - %s\n" "$2" >>"$1/VirtualLoadBalancer.kat"' sh "$folder" "$2"
    echo "$folder"
}
route_reason() { tenant get routes -o json | jq -er --arg host "$1" '.items[] | select(.spec.host == $host) | .status.reason'; }
kat namespace set default hosts=1
tenant apply -f "$(with_route routed '{host: one.lan, servicePortName: web}')"
exceeds_quota hosts 1 2 apply -f "$(with_route more '{host: two.lan, servicePortName: web}')"
exceeds_quota hosts 1 2 apply -f "$(with_route routed '{host: one.lan, servicePortName: web, redirectFrom: [www.one.lan]}')"
refused tenant namespace set default hosts=none
kat namespace set default hosts=none certificateOrders=0
# Nothing answers at this address: a server that is asked gives no certificate.
kat config set acme.directory=https://192.0.2.1:14000/dir acme.email=admin@example.org acme.agreeToTerms=true
tenant apply -f "$(with_route more '{host: tenant.example.org, servicePortName: web, tls: {issuer: acme}}')"
is_at_limit() { [[ $(route_reason tenant.example.org) == CertificateLimitReached ]]; }
wait_for 30 is_at_limit
contains "$(tenant get routes -o json)" "another quota certificateOrders of namespace default, which is 0"
refused tenant namespace set default certificateOrders=100
prints_nothing "orders of certificates" etcdctl_on n1 get --prefix --keys-only /kat/ingress/orders/
# The control: with another quota the order begins.
kat namespace set default certificateOrders=none
is_under_way() { [[ $(route_reason tenant.example.org) == Certificate@(Pending|Failed) ]]; }
wait_for 30 is_under_way
tenant delete workload more --wait
tenant delete workload routed --wait
kat config set acme.agreeToTerms=false

tenant delete workload first --wait
tenant delete workload second --wait
tenant delete secret one
tenant delete secret two
kat delete namespace other --cascade
