# Renewed certificates are used on every port, with the same keys and without restarting anything
# shellcheck shell=bash
run web --port 80
pid=$(unit_property web MainPID)
overlay=$(kat get nodes n1 -o json | jq -r .status.overlayAddress)
# certificate_part ADDRESS OPTION: prints what `openssl x509 OPTION` says about the certificate of a
# port.
certificate_part() {
    local address=$1
    shift
    n1 sh -c 'openssl s_client -connect "$1" </dev/null 2>/dev/null | openssl x509 -noout "$2"' sh "$address" "$1"
}
ports=(127.0.0.1:9115 127.0.0.1:2379 "$overlay:2380")
declare -A serials keys
for port in "${ports[@]}"; do
    serials[$port]=$(certificate_part "$port" -serial) keys[$port]=$(certificate_part "$port" -pubkey)
    contains "${keys[$port]}" "PUBLIC KEY"
done
n1 sh -c 'cd /var/lib/kat/pki && rm node.crt api.crt leader.crt leader-etcd.crt etcd-server.crt etcd-peer.crt'
n1 systemctl restart kat-agent.service
wait_for 30 node_is_ready
for port in "${ports[@]}"; do
    serial=$(certificate_part "$port" -serial)
    [[ $serial == serial=* && $serial != "${serials[$port]}" ]] || { echo "$port still shows $serial" >&2; exit 1; }
    equal "${keys[$port]}" "$(certificate_part "$port" -pubkey)" "public key of $port"
done
wait_for 30 kat status
run web --port 80 --replicas 2
contains "$(instances web | jq -r '.[].status.phase')" Running
n1 test -d "/proc/$pid"
