# Certificates by ACME from Debian's pebble, which refuses nonces and validates slowly: through each of three ingress machines, renewed while the leader is lost, and never taken away
# machines: 3
# packages: pebble
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
tree=$(lab tree pebble)
leader() { leader_at n1; }
# The machines' addresses in the lab's network: KAT asks no name at an address of its own overlay.
declare -A addresses
for node in n1 n2 n3; do addresses[$node]=$(host_address "$node"); done

# The server runs on n1, with a certificate that every machine trusts. Certificates are valid for an hour.
n1 sh -c 'mkdir -p /root/pebble && cd /root/pebble &&
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=test of ACME" -keyout ca.key -out ca.crt &&
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=pebble" -keyout tls.key -out tls.csr &&
    printf "subjectAltName=IP:%s" "$1" >tls.ext &&
    openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -set_serial 1 -days 10 -extfile tls.ext -out tls.crt' sh "${addresses[n1]}" 2>/dev/null
lab copy "$tree/usr/bin/pebble" n1:/root/pebble/
lab copy "$tree/usr/bin/pebble-challtestsrv" n1:/root/pebble/
n1 sh -c 'printf "{\"pebble\": {\"listenAddress\": \"0.0.0.0:14000\", \"managementListenAddress\": \"127.0.0.1:15000\",
    \"certificate\": \"tls.crt\", \"privateKey\": \"tls.key\", \"httpPort\": 80, \"tlsPort\": 443, \"ocspResponderURL\": \"\",
    \"externalAccountBindingRequired\": false, \"retryAfter\": {\"authz\": 1, \"order\": 1}, \"certificateValidityPeriod\": %s}}" "$1" >/root/pebble/config.json' sh 3600
n1 sh -c 'cat /root/pebble/ca.crt' >"$LAB_WORK/acme-ca.crt"
for node in n1 n2 n3; do
    lab copy "$LAB_WORK/acme-ca.crt" "$node":/usr/local/share/ca-certificates/test-acme.crt
    on "$node" update-ca-certificates >/dev/null
done
n1 systemd-run --quiet --collect --unit=test-dns --property=WorkingDirectory=/root/pebble \
    /root/pebble/pebble-challtestsrv -http01 '' -https01 '' -tlsalpn01 '' -doh '' -dns01 127.0.0.1:8053 -management 127.0.0.1:8055 -defaultIPv4 '' -defaultIPv6 ''
start_pebble() {
    n1 systemd-run --quiet --collect --unit=test-pebble --property=WorkingDirectory=/root/pebble \
        --setenv=PEBBLE_WFE_NONCEREJECT=15 --setenv=PEBBLE_VA_SLEEPTIME=4 \
        /root/pebble/pebble -config config.json -dnsserver 127.0.0.1:8053
}
start_pebble
trap 'n1 systemctl stop test-pebble test-dns' EXIT
directory=https://${addresses[n1]}:14000/dir
wait_for 20 n1 curl --silent --fail --max-time 5 --output /dev/null "$directory"
# dns HOST ADDRESS...: the records of a name, for the server and for the machines.
dns() {
    local host=$1 node
    shift
    n1 curl --silent --fail --max-time 5 --data "$(jq -cn --arg host "$host." '{host: $host, addresses: $ARGS.positional}' --args "$@")" http://127.0.0.1:8055/add-a
    for node in n1 n2 n3; do
        on "$node" sh -c 'sed -i "/ $1\$/d" /etc/hosts && shift 1 && printf "%s\n" "$@" >>/etc/hosts' sh "${host//./\\.}" "${@/%/ $host}"
    done
}
# web_folder ROUTES: a workload with these routes.
web_folder() {
    local folder
    folder=$(workload web --port 80 --replicas 2 --health 'http: {path: /healthz, port: web}, periodSeconds: 1')
    n1 sh -c 'printf "  ingress:\n%s\n" "$2" >>"$1/VirtualLoadBalancer.kat"' sh "$folder" "$1"
    echo "$folder"
}
# fetch MACHINE SCHEME HOST [CURL OPTION...]
fetch() {
    local node=$1 scheme=$2 host=$3 port=443
    shift 3
    [[ $scheme == https ]] || port=80
    n1 curl --silent --show-error --max-time 5 --resolve "$host:$port:${addresses[$node]}" "$@" "$scheme://$host/"
}
route_of() { kat get routes -o json | jq -ec --arg host "$1" '.items[] | select(.spec.host == $host)'; }
reason_is() { equal "$2" "$(route_of "$1" | jq -r .status.reason)" "reason of $1"; }
# serial MACHINE HOST: of the certificate that the machine answers with.
serial() { n1 sh -c 'openssl s_client -connect "$1:443" -servername "$2" </dev/null 2>/dev/null | openssl x509 -noout -serial' sh "${addresses[$1]}" "$2"; }
issuer_of() { n1 sh -c 'openssl s_client -connect "$1:443" -servername "$2" </dev/null 2>/dev/null | openssl x509 -noout -issuer' sh "${addresses[$1]}" "$2"; }
is_of_pebble() { issuer_of "$1" "$2" | grep -q Pebble; }

# Before the terms are agreed to nothing is ordered, and everybody says so.
folder=$(web_folder '    - {host: all.example.org, servicePortName: web, tls: true}')
planned=$(kat plan -f "$folder" || [[ $? == 10 ]])
contains "$planned" "ACME is not configured"
kat config set "acme.directory=$directory" acme.email=admin@example.org
kat apply --wait --timeout 90s -f "$folder"
reason_is all.example.org TlsNotReady

# A name that leads elsewhere costs no order: the own check says which address is wrong.
kat config set acme.agreeToTerms=true
wait_for 30 reason_is all.example.org CertificateFailed
contains "$(kat why route all.example.org)" "has no address in DNS"
contains "$(kat status || [[ $? == 1 ]])" "route all.example.org/ of workload default/web is not served: CertificateFailed: "
# Meanwhile port 443 answers with a page that says what it waits for, as soon as each machine has a certificate for it.
page_on() { equal 503 "$(fetch "$1" https all.example.org --insecure --output /dev/null --write-out '%{http_code}')" "page on $1"; }
for node in n1 n2 n3; do
    wait_for 20 page_on "$node"
    contains "$(fetch "$node" https all.example.org --insecure)" "The certificate of all.example.org is not ready yet."
    contains "$(fetch "$node" http all.example.org)" "The certificate of all.example.org is not ready yet."
done
equal '' "$(route_of all.example.org | jq -r '.status.expires // empty')" "expiry of a certificate that stands in"

# Each machine alone answers for a host, and all of them for one with three addresses.
dns all.example.org "${addresses[n1]}" "${addresses[n2]}" "${addresses[n3]}"
for node in n1 n2 n3; do dns "$node.example.org" "${addresses[$node]}"; done
folder=$(web_folder '    - {host: all.example.org, servicePortName: web, tls: true, redirectFrom: [n1.example.org]}
    - {host: n2.example.org, servicePortName: web, tls: {issuer: acme}}
    - {host: n3.example.org, servicePortName: web, tls: true}
    - {host: inside.lan, servicePortName: web, tls: true}')
planned=$(kat plan -f "$folder" || [[ $? == 10 ]])
contains "$planned" "certificate: acme (${addresses[n1]}:14000)"
contains "$planned" "all.example.org A ${addresses[n2]}"
kat apply --wait --timeout 240s -f "$folder"
for host in all n1 n2 n3; do
    for node in n1 n2 n3; do wait_for 30 is_of_pebble "$node" "$host.example.org"; done
done
contains "$(issuer_of n1 inside.lan)" "KAT ingress"
wait_for 20 reason_is all.example.org Served
n1 sh -c 'curl --silent --insecure https://127.0.0.1:15000/roots/0 >/root/pebble/root.pem && curl --silent --insecure https://127.0.0.1:15000/intermediates/0 >>/root/pebble/root.pem'
contains "$(fetch n3 https all.example.org --fail --cacert /root/pebble/root.pem)" "host="
# The store holds no key but sealed ones, and a machine's file has the keys of its hosts alone.
lacks "$(etcdctl_on n1 get --prefix /kat/ingress/)" "PRIVATE KEY"
accounts() { etcdctl_on n1 get --prefix --keys-only /kat/ingress/accounts/ | grep -c accounts; }
equal 1 "$(accounts)" "accounts"
# Another address for messages: the record has it once the server has confirmed it.
has_address() { equal "$1" "$(etcdctl_on n1 get --prefix --print-value-only /kat/ingress/accounts/ | jq -r .email)" "address of the account"; }
has_address admin@example.org
kat config set acme.email=other@example.org
wait_for 120 has_address other@example.org
account=$(etcdctl_on n1 get --prefix --print-value-only /kat/ingress/accounts/)
equal '' "$(etcdctl_on n1 get --prefix --keys-only /kat/ingress/challenges/)" "challenges after the orders"

# A new certificate is ordered while the leader is lost: the host is served all the time.
before=$(serial n2 all.example.org)
n1 rm -f /run/stop-acme
lab exec n1 -- sh -c '
    sent=0 failed=0
    while [ ! -e /run/stop-acme ]; do
        sent=$((sent + 1))
        curl --silent --show-error --fail --max-time 5 --cacert /root/pebble/root.pem --resolve "all.example.org:443:$1" --output /dev/null https://all.example.org/ >&2 || failed=$((failed + 1))
        sleep 0.1
    done
    echo "$sent $failed"' sh "${addresses[n2]}" </dev/null >"$LAB_WORK/acme-load" 2>"$LAB_WORK/acme-load.log" &
load=$!
# Another host, and the leader lost as soon as its order has begun.
dns late.example.org "${addresses[n2]}" "${addresses[n3]}"
folder=$(web_folder '    - {host: all.example.org, servicePortName: web, tls: true, redirectFrom: [n1.example.org]}
    - {host: late.example.org, servicePortName: web, tls: true}')
kat apply -f "$folder"
has_order() { etcdctl_on n1 get --print-value-only /kat/ingress/orders/late.example.org | grep -q '"is"'; }
wait_for 30 has_order
lost=$(leader)
on "$lost" systemctl kill --signal=KILL kat-agent
wait_for 180 is_of_pebble n2 late.example.org
wait_for 60 nodes_are_ready
equal 1 "$(accounts)" "accounts after the leader was lost"
equal "$account" "$(etcdctl_on n1 get --prefix --print-value-only /kat/ingress/accounts/)" "the account"
equal "$before" "$(serial n2 all.example.org)" "serial number of a certificate that is not due"
n1 touch /run/stop-acme
wait "$load"
read -r sent failed <"$LAB_WORK/acme-load"
echo "$sent requests, $failed failed"
[[ $failed == 0 ]] && ((sent > 20))

# A server that has lost its state knows neither the account nor the orders: the same key is registered again.
n1 systemctl stop test-pebble
start_pebble
wait_for 20 n1 curl --silent --fail --max-time 5 --output /dev/null "$directory"
dns new.example.org "${addresses[n1]}"
folder=$(web_folder '    - {host: all.example.org, servicePortName: web, tls: true}
    - {host: new.example.org, servicePortName: web, tls: true}')
kat apply --wait --timeout 240s -f "$folder"
wait_for 30 is_of_pebble n3 new.example.org
equal 1 "$(accounts)" "accounts after the server has lost its state"
# Terms that are agreed to no more take no certificate.
kat config set acme.agreeToTerms=false
wait_for 20 is_of_pebble n1 all.example.org
wait_for 20 reason_is all.example.org Served
kat delete workload web --wait
no_orders() { [[ -z $(etcdctl_on n1 get --prefix --keys-only /kat/ingress/orders/) ]]; }
wait_for 20 no_orders
