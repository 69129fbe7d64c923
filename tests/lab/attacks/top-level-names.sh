# A namespace takes no name of the world from containers
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
for name in dev test com lan xn--p1ai; do
    contains "$(kat create namespace "$name" 2>&1 || true)" "is a top-level domain"
done
# A namespace from before such names were refused, with a tenant's workload `outside` in it.
record=$(etcdctl_on n1 get --print-value-only /kat/namespaces/default | jq -c '.labels = {}')
etcdctl_on n1 put /kat/namespaces/test "$record" >/dev/null
become_tenant test
here='nodeSelector: {kat.dws.rip/nodeName: n1}'
tenant apply -f "$(workload outside --namespace test --port 80 --spec "$here")" --wait
run asks --spec "$here"
# n2 is the DNS server for outside names.
n2() { on n2 "$@"; }
n2 sh -c 'mkdir -p /run/systemd/resolved.conf.d; cp /etc/hosts /root/hosts; echo "192.168.77.13 outside.test" >>/etc/hosts
    printf "[Resolve]\nDNSStubListenerExtra=192.168.77.12\nReadEtcHosts=yes\n" >/run/systemd/resolved.conf.d/attack.conf; systemctl restart systemd-resolved'
n1 resolvectl dns host0 192.168.77.12
address_from_container() { inside asks nslookup "$1" 2>&1 | sed -n 's/^Address[ 0-9]*: *\([0-9.]*\).*/\1/p' | tail -n 1; }
is_found() { [[ $(address_from_container "$1") == "$2" ]]; }
wait_for 10 is_found outside.test 192.168.77.13
# The control: the workload's whole name resolves to the workload.
service=$(kat get workload outside -n test -o json | jq -er .status.serviceAddress)
wait_for 10 is_found outside.test.kat.cluster.local "$service"

n1 resolvectl revert host0
n2 sh -c 'rm /run/systemd/resolved.conf.d/attack.conf; mv /root/hosts /etc/hosts; systemctl restart systemd-resolved'
kat delete workload outside -n test --wait
kat delete workload asks --wait
kat delete namespace test
