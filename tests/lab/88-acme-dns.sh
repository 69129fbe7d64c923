# Certificates for a wildcard and its domain by DNS-01, from Debian's pebble and with updates of Debian's BIND: a wrong key is named, records stand side by side, CNAME records are followed, a hook changes records without rights on its machine, and no record or key is left behind
# machines: 3
# packages: pebble bind9 bind9-dnsutils
# limit: 600
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
tree=$(lab tree pebble bind9 bind9-dnsutils)
declare -A addresses
for node in n1 n2 n3; do addresses[$node]=$(host_address "$node"); done

# BIND has its own tree of files on n1. The leader asks it at n1's address, and pebble, for which it
# follows CNAME records, at port 8053.
n1 rm -rf /root/bind
lab copy "$tree" n1:/root/bind
n1 mkdir -p /root/bind/var/cache/bind /root/bind/run/named /root/bind/dev /root/bind/tmp
# libuv only opens it.
n1 sh -c ': >/root/bind/dev/null'
n1 sh -c 'chroot /root/bind /usr/sbin/tsig-keygen -a hmac-sha512 kat >/root/bind/etc/bind/kat.key &&
    chroot /root/bind /usr/sbin/tsig-keygen -a hmac-sha512 kat >/root/other.key'
n1 sh -c 'cat >/root/bind/etc/bind/kat.conf <<END
include "/etc/bind/kat.key";
controls { };
options {
    directory "/var/cache/bind"; pid-file none; session-keyfile none; dnssec-validation no;
    recursion yes; allow-recursion { 127.0.0.1; };
    listen-on port 53 { $1; }; listen-on port 8053 { 127.0.0.1; }; listen-on-v6 { none; };
};
zone "example.org" {
    type primary; file "/var/cache/bind/example.org";
    update-policy { grant kat name _acme-challenge.example.org. TXT; };
};
zone "proofs.example.net" {
    type primary; file "/var/cache/bind/proofs.example.net";
    update-policy { grant kat zonesub TXT; };
};
zone "hooks.example.net" {
    type primary; file "/var/cache/bind/hooks.example.net";
    update-policy { grant kat zonesub TXT; };
};
END
for zone in example.org proofs.example.net hooks.example.net; do
    printf "\$TTL 60\n@ SOA ns1.example.org. admin.example.org. 1 60 60 600 60\n@ NS ns1.example.org.\n" >/root/bind/var/cache/bind/$zone
done
printf "ns1 A %s\n_acme-challenge.sub CNAME sub.proofs.example.net.\n" "$1" >>/root/bind/var/cache/bind/example.org' sh "${addresses[n1]}"
n1 systemd-run --quiet --collect --unit=test-bind chroot /root/bind /usr/sbin/named -f -c /etc/bind/kat.conf
# texts NAME: the texts of a name, as BIND has them.
texts() { n1 chroot /root/bind /usr/bin/dig +short +time=2 +tries=1 -p 8053 @127.0.0.1 "$1" TXT; }
soa() { n1 chroot /root/bind /usr/bin/dig +short +time=2 +tries=1 @"${addresses[n1]}" example.org SOA | grep ns1 >/dev/null; }
wait_for 20 soa
# The name server has an address on every machine.
for node in n1 n2 n3; do
    on "$node" sh -c 'sed -i "/ ns1.example.org\$/d" /etc/hosts && printf "%s ns1.example.org\n" "$1" >>/etc/hosts' sh "${addresses[n1]}"
done

# The server runs on n1, with a certificate that every machine trusts. Its certificates are valid for two minutes and a half.
n1 sh -c 'mkdir -p /root/pebble && cd /root/pebble &&
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=test of ACME" -keyout ca.key -out ca.crt &&
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=pebble" -keyout tls.key -out tls.csr &&
    printf "subjectAltName=IP:%s" "$1" >tls.ext &&
    openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -set_serial 1 -days 10 -extfile tls.ext -out tls.crt' sh "${addresses[n1]}" 2>/dev/null
lab copy "$tree/usr/bin/pebble" n1:/root/pebble/
n1 sh -c 'printf "{\"pebble\": {\"listenAddress\": \"0.0.0.0:14000\", \"managementListenAddress\": \"127.0.0.1:15000\",
    \"certificate\": \"tls.crt\", \"privateKey\": \"tls.key\", \"httpPort\": 80, \"tlsPort\": 443, \"ocspResponderURL\": \"\",
    \"externalAccountBindingRequired\": false, \"retryAfter\": {\"authz\": 1, \"order\": 1}, \"certificateValidityPeriod\": 150}}" >/root/pebble/config.json'
n1 sh -c 'cat /root/pebble/ca.crt' >"$LAB_WORK/acme-ca.crt"
for node in n1 n2 n3; do
    lab copy "$LAB_WORK/acme-ca.crt" "$node":/usr/local/share/ca-certificates/test-acme.crt
    on "$node" update-ca-certificates >/dev/null
done
n1 systemd-run --quiet --collect --unit=test-pebble --property=WorkingDirectory=/root/pebble \
    --setenv=PEBBLE_WFE_NONCEREJECT=15 --setenv=PEBBLE_VA_SLEEPTIME=4 \
    /root/pebble/pebble -config config.json -dnsserver 127.0.0.1:8053
trap 'n1 systemctl stop test-pebble test-bind' EXIT
directory=https://${addresses[n1]}:14000/dir
wait_for 20 n1 curl --silent --fail --max-time 5 --output /dev/null "$directory"
fetch() {
    local node=$1 host=$2
    n1 curl --silent --show-error --max-time 5 --fail --cacert /root/pebble/root.pem --resolve "$host:443:${addresses[$node]}" "https://$host/"
}
route_of() { kat get routes -o json | jq -ec --arg host "$1" '.items[] | select(.spec.host == $host)'; }
reason_is() { equal "$2" "$(route_of "$1" | jq -r .status.reason)" "reason of $1"; }
serial() { n1 sh -c 'openssl s_client -connect "$1:443" -servername "$2" </dev/null 2>/dev/null | openssl x509 -noout -serial' sh "${addresses[$1]}" "$2"; }
names() { n1 sh -c 'openssl s_client -connect "$1:443" -servername "$2" </dev/null 2>/dev/null | openssl x509 -noout -issuer -ext subjectAltName' sh "${addresses[$1]}" "$2"; }
# is_for MACHINE HOST NAME: whether the machine answers for the host with pebble's certificate for the name.
is_for() {
    local found
    found=$(names "$1" "$2")
    [[ $found == *Pebble* && $found == *"DNS:$3"* ]]
}
# set_key SECRET FILE
set_key() { n1 sh -c 'katcall secret set "$1" -n kat-core --from-file tsig.key="$2"' sh "$1" "$2"; }

# Before the terms are agreed to nothing is ordered.
folder=$(workload web --port 80 --replicas 2 --health 'http: {path: /healthz, port: web}, periodSeconds: 1')
n1 sh -c 'printf "  ingress:\n%s\n" "$2" >>"$1/VirtualLoadBalancer.kat"' sh "$folder" '    - {host: "*.example.org", servicePortName: web, tls: true}
    - {host: example.org, servicePortName: web, tls: {issuer: acme}}
    - {host: "*.sub.example.org", servicePortName: web, tls: {issuer: acme}}'
kat apply --wait --timeout 90s -f "$folder"
reason_is '*.example.org' TlsNotReady
contains "$(kat why route '*.example.org')" "ACME is not configured (acme.agreeToTerms)"

# A program of the machines changes the records of a zone. It has no rights there: it sees no key of the cluster, and writes no file.
cat >"$LAB_WORK/cloud" <<'END'
#!/bin/sh
set -eu
for seen in /var/lib/kat/node.json /run/kat/api.sock /root/bind; do [ ! -e "$seen" ] || exit 9; done
if [ "$(id -u)" = 0 ] || touch /etc/kat/dns-hooks/other; then exit 9; fi
echo "asked to $1 a record" >&2
case $1 in
present) change=add record='60 TXT' ;;
cleanup) change=delete record=TXT ;;
esac
printf 'server ns1.example.org\nzone hooks.example.net\nupdate %s %s %s "%s"\nsend\n' "$change" "$2" "$record" "$3" |
    LD_LIBRARY_PATH=$(echo /opt/bind/usr/lib/*-linux-gnu) /opt/bind/usr/bin/nsupdate -k "$CREDENTIALS_DIRECTORY/credential"
END
n1 cat /root/bind/etc/bind/kat.key >"$LAB_WORK/cloud.credential"
chmod 755 "$LAB_WORK/cloud"
chmod 600 "$LAB_WORK/cloud.credential"
for node in n1 n2 n3; do
    lab copy "$tree" "$node":/opt/bind
    on "$node" chmod 755 /opt/bind
    lab copy "$LAB_WORK/cloud" "$node":/etc/kat/dns-hooks/
    lab copy "$LAB_WORK/cloud.credential" "$node":/etc/kat/dns-hooks/
done

# A key with another secret is found out before anything is ordered, and delays no other zone.
set_key dns-key /root/bind/etc/bind/kat.key
set_key proofs-key /root/other.key
update() { printf '"rfc2136": {"server": "ns1.example.org", "tsig": {"secret": "%s"}}' "$1"; }
kat config set "acme.directory=$directory" acme.email=admin@example.org acme.agreeToTerms=true \
    "acme.dns=[{\"zone\": \"example.org\", $(update dns-key)}, {\"zone\": \"proofs.example.net\", $(update proofs-key)}, {\"zone\": \"hooks.example.net\", \"hook\": \"cloud\"}]"
wait_for 30 reason_is '*.sub.example.org' CertificateFailed
contains "$(kat why route '*.sub.example.org')" "ns1.example.org (${addresses[n1]}) has another secret for the key kat (BADSIG)"
equal '' "$(texts sub.proofs.example.net)" "records before an order"
set_key proofs-key /root/bind/etc/bind/kat.key

# The machines' name servers do not know the zone of the hook, so that its record is given a minute. An order that failed
# waits for as long.
folder=$(workload hooked --port 80)
n1 sh -c 'printf "  ingress:\n%s\n" "$2" >>"$1/VirtualLoadBalancer.kat"' sh "$folder" '    - {host: "*.hooks.example.net", servicePortName: web, tls: {issuer: acme}}'
kat apply --wait -f "$folder"

# Every machine serves the wildcard, its domain, and names whose challenge is a CNAME record.
for node in n1 n2 n3; do
    wait_for 180 is_for "$node" a.example.org '*.example.org'
    wait_for 60 is_for "$node" example.org example.org
    wait_for 60 is_for "$node" b.sub.example.org '*.sub.example.org'
done
n1 sh -c 'curl --silent --insecure https://127.0.0.1:15000/roots/0 >/root/pebble/root.pem && curl --silent --insecure https://127.0.0.1:15000/intermediates/0 >>/root/pebble/root.pem'
contains "$(fetch n2 a.example.org)" "host="
contains "$(fetch n3 example.org)" "host="
for host in '*.example.org' example.org '*.sub.example.org'; do wait_for 20 reason_is "$host" Served; done
no_records() {
    equal '' "$(texts _acme-challenge.example.org)" "records of the zone" &&
        equal '' "$(texts _acme-challenge.hooks.example.net)" "records of the hook" &&
        equal '' "$(texts sub.proofs.example.net)" "records of the other zone" &&
        equal '' "$(etcdctl_on n1 get --prefix --keys-only /kat/ingress/dns/)" "records in the store"
}

# It is renewed, while the leader is lost. With the routes the last records go.
before=$(serial n2 a.example.org)
on "$(leader_at n1)" systemctl kill --signal=KILL kat-agent
is_renewed() {
    is_for n2 a.example.org '*.example.org' && [[ $(serial n2 a.example.org) != "$before" ]]
}
wait_for 240 is_renewed
wait_for 60 nodes_are_ready
wait_for 60 is_for n1 c.hooks.example.net '*.hooks.example.net'
hooks_wrote() { for node in n1 n2 n3; do on "$node" journalctl --no-pager --unit 'kat-dns-hook-*'; done; }
contains "$(hooks_wrote)" "asked to present a record"
kat delete workload web --wait
kat delete workload hooked --wait
wait_for 90 no_records
for node in n1 n2 n3; do on "$node" rm -r /opt/bind /etc/kat/dns-hooks; done

# The key is in the store sealed, and in no journal.
secret=$(n1 sed -n 's/.*secret "\(.*\)";/\1/p' /root/bind/etc/bind/kat.key)
[[ ${#secret} -gt 40 ]]
lacks "$(etcdctl_on n1 get --prefix /kat/)" "$secret"
for node in n1 n2 n3; do lacks "$(on "$node" journalctl --no-pager --unit kat-agent)" "$secret"; done
lacks "$(hooks_wrote)" "$secret"
