# A pipeline deploys with a token as a file and as variables, reaches its namespace alone, and sends no token to an unknown authority
# shellcheck shell=bash
kat create namespace webshop
n1 sh -c 'umask 077; katcall token create --scope deploy:webshop --name ci --ttl 30d -o connection >/root/ci.conf'
workload web --port 80 --namespace webshop >/dev/null
value() { n1 jq -r "$1" /root/ci.conf; }
server=$(value '.endpoints | join(",")') token=$(value .token) authority=$(value .ca)
equal webshop "$(value .namespace)" "namespace of the connection"
# As a file: the token's namespace needs no option.
file() { n1 env KAT_CONNECTION=/root/ci.conf katcall "$@"; }
file apply -f /root/workloads/web --wait --timeout 60s
contains "$(file get workloads -o name)" web
refused file get nodes
# As variables: the authority as PEM, as a file and as a hash. The addresses may lack their ports.
# The token contains its namespace.
variables() { n1 env KAT_SERVER="${servers:-$server}" KAT_TOKEN="${secret:-$token}" KAT_CA="$1" katcall "${@:2}"; }
n1 sh -c 'jq -r .ca /root/ci.conf >/root/ca.pem'
hash=$(n1 sh -c 'openssl x509 -in /root/ca.pem -outform der | sha256sum | cut -d " " -f 1')
for form in "$authority" /root/ca.pem "sha256:$hash"; do
    contains "$(variables "$form" get workloads -o name)" web
done
contains "$(servers=192.168.77.11 variables /root/ca.pem get workloads -o name)" web
refused variables /root/ca.pem get nodes
# The namespace in the token is a default and gives no right: another one, or none, changes nothing.
contains "$token" .webshop
contains "$(secret=${token%.webshop} variables "$authority" get workloads -n webshop -o name)" web
for changed in "${token%.webshop}" "${token%.webshop}.default"; do
    output=$(secret=$changed variables "$authority" get workloads 2>&1) && exit 1
    contains "$output" 'this token is for the namespace `webshop` alone: `-n webshop` names it'
done
# Without an authority, or with another, the token is not sent.
code=0
output=$(n1 env KAT_SERVER="$server" KAT_TOKEN="$token" katcall get workloads -n webshop 2>&1) || code=$?
equal 2 "$code" "exit code without an authority"
contains "$output" KAT_CA
contains "$output" "token create"
calls_of_the_token() { lab journal n1 -o cat SYSLOG_IDENTIFIER=kat-audit | grep -c "token:$(cut -d . -f 2 <<<"$token")" || true; }
before=$(calls_of_the_token)
((before > 0))
output=$(variables "sha256:$(printf 'ab%.0s' {1..32})" get workloads 2>&1) && exit 1
lacks "$output" "${token%.webshop}"
equal "$before" "$(calls_of_the_token)" "calls of the token after one to an authority that is not trusted"
# A revoked token opens nothing.
kat token revoke "$(cut -d . -f 2 <<<"$token")"
refused variables /root/ca.pem get workloads
kat delete workload web -n webshop --yes --wait
kat delete namespace webshop
n1 rm -f /root/ci.conf /root/ca.pem
