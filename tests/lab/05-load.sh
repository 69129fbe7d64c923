# No request is lost, by address or by name, while the agent is killed, stopped, masked and upgraded
# shellcheck shell=bash
mkdir -p "$LAB_WORK/upgrade/bin"
dpkg-deb --extract "$LAB_DEB" "$LAB_WORK/upgrade/tree"
cp "$LAB_WORK"/upgrade/tree/usr/{bin/*,libexec/kat/kat-net,libexec/kat/kat-ingress} "$LAB_WORK/upgrade/bin"
version=$(dpkg-deb --field "$LAB_DEB" Version).1~test
newer=$(contrib/package --binaries "$LAB_WORK/upgrade/bin" --version "$version" --out "$LAB_WORK/upgrade" deb)
lab copy "$newer" n1:/root/newer.deb
lab copy "$LAB_DEB" n1:/root/older.deb

# Containers of versions before kat-net existed have kat-agent as their hook. The hook fails without
# input and logs an error.
hook_errors() { n1 journalctl --no-pager --output=cat KAT_HOOK_ERROR=1 | grep -c . || true; }
n1 sh -c '/usr/libexec/kat/kat-net hook </dev/null' && false
wait_for 10 eval '(($(hook_errors) == 1))'
n1 sh -c 'kat-agent hook </dev/null' && false
wait_for 10 eval '(($(hook_errors) == 2))'

run web --port 80
address=$(field web .status.ip) id=$(field web .metadata.name)
pid=$(unit_property web MainPID) net=$(n1 systemctl show --property=MainPID --value kat-net.service)
agent_pid() { n1 systemctl show --property=MainPID --value kat-agent.service; }
agent_restarted() {
    local before=$1
    is_active kat-agent.service && differs "$before" "$(agent_pid)" "pid of the agent" && node_is_ready && field_is web .status.phase Running
}

began=$SECONDS
start_load "$address" 80 100
# Each request of this load first resolves the name with KAT's DNS.
start_load "web.default.$DOMAIN@$(kat get nodes n1 -o json | jq -r .status.overlayAddress)" 80 50 by-name
# The unit file of etcd looks as if an earlier version had written it.
etcd=$(n1 systemctl show --property=MainPID --value kat-etcd.service)
n1 sh -c 'echo "# of an earlier version" >>/etc/systemd/system/kat-etcd.service'
before=$(agent_pid)
n1 systemctl kill --signal=KILL kat-agent.service
wait_for 30 agent_restarted "$before"
n1 systemctl stop kat-agent.service
equal inactive "$(n1 systemctl is-active kat-agent.service || true)" "stopped agent"
n1 systemctl start kat-agent.service
wait_for 30 agent_restarted 0
n1 systemctl mask --now kat-agent.service
answers "http://$address/"
n1 systemctl unmask kat-agent.service
n1 systemctl start kat-agent.service
wait_for 30 agent_restarted 0
before=$(agent_pid)
n1 env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet -o Dpkg::Use-Pty=0 /root/newer.deb
wait_for 30 agent_restarted "$before"
equal "$version" "$(n1 dpkg-query --show --showformat='${Version}' kat)" "version"
equal "$net" "$(n1 systemctl show --property=MainPID --value kat-net.service)" "kat-net, whose data path did not change"
# The upgrade rewrites etcd's unit file; etcd itself is not restarted.
finds_nothing n1 grep "of an earlier version" /etc/systemd/system/kat-etcd.service
equal no "$(n1 systemctl show --property=NeedDaemonReload --value kat-etcd.service)" "a unit that systemd has not read"
equal "$etcd" "$(n1 systemctl show --property=MainPID --value kat-etcd.service)" "etcd's process"
no_request_lost $(((SECONDS - began) * 40)) by-name
# The load by address loses no request even while kat-net, and with it DNS, restarts.
n1 systemctl restart kat-net.service
before=$(agent_pid)
n1 env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet -o Dpkg::Use-Pty=0 --allow-downgrades /root/older.deb
wait_for 30 agent_restarted "$before"
no_request_lost $(((SECONDS - began) * 80))

equal "$pid" "$(unit_property web MainPID)" "the container's process"
equal "$id 0" "$(field web '|"\(.metadata.name) \(.status.restarts)"')" "instance and its restarts"
