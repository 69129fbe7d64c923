# The cluster's own authority is replaced under load while the leader is killed: machines with and without the store follow, katcall's connections go on, a copied certificate of the API deceives nobody any more, and a machine that was off is told by hand
# machines: 4
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 120 members_are_healthy 3
pki=/var/lib/kat/pki
authority() { kat ca list -o json | jq -er ".items[] | select(.name == \"cluster-ca\") | $1"; }
is_in_phase() { [[ $(authority .phase) == "$1" ]] || { kat ca list >&2; return 1; }; }
# What somebody keeps who once had root on a machine with the store.
on n2 sh -euc "rm -rf /root/old; umask 077; mkdir /root/old; cp $pki/api.* $pki/admin.* $pki/cluster-ca.crt /root/old"
# ca_of FILE: hashes of the authorities in a connection file on n1.
ca_of() { n1 jq -r .ca "$1" | openssl_hashes; }
openssl_hashes() { awk '/BEGIN/{c=""} {c=c $0 "\n"} /END/{printf "%s", c | "openssl x509 -noout -fingerprint -sha256"; close("openssl x509 -noout -fingerprint -sha256")}' | sed 's/.*=//; s/://g' | tr A-F a-f | sort | paste -sd' '; }
# A connection that is used in time, and one that is not.
n1 sh -euc 'umask 077; cp /etc/kat/admin.conf /root/used.conf; cp /etc/kat/admin.conf /root/unused.conf'

run web --port 80 --replicas 4
start_load "$(service_address web)" 80 50
before=$(authority .fingerprint)
refused kat ca rotate etcd-client-ca --grace 1h
kat ca rotate cluster-ca --grace 1h
wait_for 30 is_in_phase Trust
trusts_both() { [[ $(kat --connection /root/used.conf get nodes -o name | wc -l) -eq 4 && $(ca_of /root/used.conf | wc -w) -eq 2 ]]; }
wait_for 30 trusts_both
equal 1 "$(ca_of /root/unused.conf | wc -w)" "authorities of the connection that was not used"
refused kat ca rotate cluster-ca
waits_for_katcall() { [[ $(authority .message) == *"each katcall that is used"* ]]; }
wait_for 60 waits_for_katcall
# The machine without the store is off from here on, and the leader is killed.
lab kill n4
leader=$(leader_at n2)
on "$leader" systemctl kill --signal KILL kat-agent.service
