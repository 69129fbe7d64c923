# A machine joins with one pasted line, becomes Ready and holds no etcd
# machines: 2
# shellcheck shell=bash
# shellcheck source=tests/lab/guide.sh
. tests/lab/guide.sh
wait_for 30 nodes_are_ready
node=$(kat get nodes n2 -o json)
equal '["worker"]' "$(jq -c .status.roles <<<"$node")" "roles"
equal 10.100.2.0/23 "$(jq -r .status.subnet <<<"$node")" "subnet"
equal 10.100.2.1 "$(jq -r .status.overlayAddress <<<"$node")" "address"
equal "$(dpkg-deb --field "$LAB_DEB" Version)" "$(jq -r .status.version <<<"$node")" "version"
for unit in kat-agent.service kat-net.service kat-net.socket; do
    equal active "$(on n2 systemctl is-active "$unit")" "$unit"
done
refused on n2 systemctl cat kat-etcd.service
finds_nothing on n2 pgrep -x etcd
prints_nothing "failed units" on n2 systemctl list-units --failed --plain --no-legend
# The machine holds only its own keys, and only root can read them.
for file in pki/node.key network/wireguard.key node.json cluster.json; do
    equal "600 root" "$(on n2 stat -c '%a %U' "/var/lib/kat/$file")" "$file"
done
equal "node.key" "$(on n2 sh -c 'cd /var/lib/kat/pki && echo *.key')" "keys"
absent n2 /etc/kat/admin.conf
# etcd contains neither private keys nor the token's secret.
line=$(kat token create --join 2>"$LAB_WORK/said")
shows cluster "sudo katcall token create --join" "$line"$'\n'"$(<"$LAB_WORK/said")"
contains "$line" "sudo kat-agent join --leader-api 192.168.77.11:9115 <<< kat1."
IFS=. read -r id secret _ <<<"${line#*<<< kat1.}"
[[ $id && $secret ]]
dump=$(n1 sh -c 'etcdctl --endpoints https://127.0.0.1:2379 --cacert /var/lib/kat/pki/etcd-client-ca.crt \
    --cert /var/lib/kat/pki/leader-etcd.crt --key /var/lib/kat/pki/leader-etcd.key get --prefix /kat/')
contains "$dump" "/kat/tokens/$id"
lacks "$dump" "$secret"
key=$(on n2 cat /var/lib/kat/network/wireguard.key)
lacks "$dump" "$key"
contains "$(kat token list)" "join, 1 left"
contains "$(kat token list)" "join, used up"
kat token revoke "$id"
# A second join is refused.
output=$(on n2 kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }" 2>&1) && exit 1
contains "$output" "kat-agent reset"
# The API port of n2 passes connections to the leader without decrypting them: the leader's token
# works there, and n2's journal has no such call.
token=$(n1 jq -r .token /etc/kat/admin.conf)
n1 sh -c 'jq ".endpoints = [\"192.168.77.12:9115\"]" /etc/kat/admin.conf >/root/through-n2.conf; chmod 600 /root/through-n2.conf'
contains "$(kat --connection /root/through-n2.conf get nodes)" "n2"
lacks "$(on n2 journalctl -u kat-agent -o json)" "GET /v1alpha1/nodes "
contains "$(n1 sh -c "curl --silent --insecure -H 'Authorization: Bearer $token' https://192.168.77.12:9115/v1alpha1/nodes")" '"n1"'
# Local users of n2 see the machines of the cluster there and nothing else of it, and cannot change anything.
equal '["n1","n2"]' "$(on n2 katcall get nodes -o json | jq -c '[.items[].metadata.name]')" "nodes that katcall on n2 lists"
refused on n2 katcall get workloads
refused on n2 katcall create namespace other
# n2 has neither a user nor a certificate of etcd: it reads the state stream.
users=$(etcdctl_on n1 user list)
contains "$users" leader:n1
lacks "$users" node:n2
output=$(on n2 timeout 10 etcdctl --endpoints https://10.100.0.1:2379 --cacert /var/lib/kat/pki/etcd-client-ca.crt \
    --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key get --prefix /kat/nodes/desired/n2/ 2>&1) && exit 1
lacks "$output" /kat/nodes/desired/n2/meta
contains "$(on n2 journalctl -u kat-agent -o cat)" "the cluster's state is read"
