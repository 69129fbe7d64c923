# The package makes a machine that becomes Ready
# shellcheck shell=bash
wait_for 30 node_is_ready
node=$(kat get nodes n1 -o json)
equal n1 "$(jq -r .metadata.name <<<"$node")" "name"
equal '["leader","etcd","worker"]' "$(jq -c '.status.roles | map(select(. != "ingress"))' <<<"$node")" "roles"
equal "$(dpkg-deb --field "$LAB_DEB" Version)" "$(jq -r .status.version <<<"$node")" "version"
kat status
for unit in kat-agent.service kat-net.service kat-net.socket kat-etcd.service; do
    is_active "$unit"
    # A socket has no such property.
    [[ $unit == *.socket ]] || equal 0 "$(n1 systemctl show --property=NRestarts --value "$unit")" "restarts of $unit"
done
for unit in kat-agent.service kat-net.service; do
    [[ -n $(n1 systemctl show --property=StatusText --value "$unit") ]]
    equal 30s "$(n1 systemctl show --property=WatchdogUSec --value "$unit")" "watchdog of $unit"
done
prints_nothing "failed units" n1 systemctl list-units --failed --plain --no-legend
equal '["default","kat-core"]' "$(kat get namespaces -o json | jq -c '[.items[].metadata.name] | sort')" "namespaces"
# A second init is refused.
output=$(n1 kat-agent init 2>&1) && exit 1
contains "$output" "kat-agent reset"
# Only root reads the files with secrets.
for file in /etc/kat/admin.conf /var/lib/kat/node.json; do
    equal "600 root" "$(n1 stat -c '%a %U' "$file")" "$file"
done
refused as nobody cat /etc/kat/admin.conf
refused as nobody curl --silent --max-time 3 --unix-socket /run/kat/api.sock http://kat/v1alpha1/nodes
