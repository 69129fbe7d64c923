# check names each problem and the command that fixes it; init applies its options, or refuses and changes nothing
# bare
# shellcheck shell=bash
write_to() { lab exec n1 -- sh -c 'cat >"$1"' sh "$1"; }
check_passes() { n1 kat-agent check "$@"; }
problems() { problems_of n1 "$@"; }
run_fixes() { run_fixes_on n1 "$1"; }
lab copy "$LAB_WORK/images/web/bin/web" n1:/usr/local/bin/web
check_passes

# The output matches the example of docs/guide/install.md line by line, without its warnings, which
# depend on the host's kernel.
n1 systemctl unmask etcd.service
n1 systemctl enable --now etcd.service
found=$(problems)
example=$(awk '/^    sudo kat-agent check$/ { on = 1; next } /^[^ ]/ { on = 0 } !on || !NF || $1 == "..." { next }
    /^    warning/ { warning = 1; next } warning && /^             / { next } { warning = 0; print substr($0, 5) }' docs/guide/install.md)
contains "$example" "sudo systemctl disable --now etcd.service"
# The example's versions are those of Debian 13.
[[ ${KAT_LAB_SUITE:-trixie} == trixie ]] ||
    example=$(sed -E 's/^(ok +(systemd|Podman|etcd)) [0-9.]+$/\1 /' <<<"$example")
while IFS= read -r -u 4 line; do contains "$found" "${line%, * warnings.}"; done 4<<<"$example"
etcd=$(n1 etcd --version | sed -n 's/^etcd Version: //p')
if [[ $etcd == 3.5.? || $etcd == 3.5.[12]? || $etcd == 3.5.3[0-2] ]]; then
    contains "$found" "etcd $etcd has known holes in its users' rights (CVE-2026-33343)"
fi

# A service and a socket unit use KAT's ports, and a firewall drops traffic.
printf '[Service]\nEnvironment=PORT=9115\nExecStart=/usr/local/bin/web\n[Install]\nWantedBy=multi-user.target\n' |
    write_to /etc/systemd/system/squatter.service
printf '[Socket]\nListenStream=9116\n[Install]\nWantedBy=sockets.target\n' | write_to /etc/systemd/system/waiting.socket
printf '[Service]\nExecStart=/usr/bin/sleep infinity\n' | write_to /etc/systemd/system/waiting.service
n1 systemctl daemon-reload
n1 systemctl enable --now squatter.service waiting.socket
n1 nft 'table inet mine {
    chain forward { type filter hook forward priority 0; policy drop; }
    chain input { type filter hook input priority 0; policy drop; ct state established,related accept; iifname lo accept; }
}'
wait_for 10 answers http://127.0.0.1:9115/
found=$(problems)
contains "$found" "the distribution's own etcd.service runs and starts at boot"
contains "$found" "         sudo systemctl disable --now etcd.service"
contains "$found" "TCP port 9115, for the API, is taken by web (squatter.service)"
contains "$found" "         sudo systemctl disable --now squatter.service"
contains "$found" "TCP port 9116, for the agent, is taken by systemd (init.scope)"
contains "$found" "chain forward of table inet mine drops forwarded traffic by default"
contains "$found" "         sudo nft insert rule inet mine forward iifname 'kat*' accept && sudo nft "
contains "$found" "chain input of table inet mine drops incoming traffic by default"
contains "$found" "tcp dport 9115 accept"
contains "$found" "not ready: 5 problems"
run_fixes "$found"
wait_for 10 check_passes
for unit in etcd.service squatter.service waiting.socket; do
    refused n1 systemctl is-enabled --quiet "$unit"
done

# A unit of a user's manager and a process without a service use KAT's ports. A transient unit uses
# the port of systemd-resolved.
n1 useradd --create-home --uid 3003 dora
n1 loginctl enable-linger dora
n1 systemctl start user@3003.service
as dora systemd-run --user --quiet --unit=hers --setenv=PORT=9115 /usr/local/bin/web
n1 sh -c 'PORT=9116 setsid /usr/local/bin/web >/dev/null 2>&1 </dev/null &'
n1 systemctl stop systemd-resolved.service
n1 systemd-run --quiet --unit=transient --setenv=PORT=53 /usr/local/bin/web
all_answer() { answers http://127.0.0.1:9115/ && answers http://127.0.0.1:9116/ && answers http://127.0.0.1:53/; }
wait_for 10 all_answer
found=$(problems)
contains "$found" "TCP port 9115, for the API, is taken by web (hers.service)"
contains "$found" "         sudo systemctl --user --machine=3003@.host stop hers.service"
contains "$found" "TCP port 9116, for the agent, is taken by web (init.scope)"
contains "$found" "         sudo kill $(n1 pgrep --oldest --euid root --exact web)"
contains "$found" "TCP port 53, for DNS, is taken by web (transient.service)"
contains "$found" "         sudo systemctl stop transient.service"
contains "$found" "warning  systemd-resolved does not run: containers know the workloads' names, this machine does not"
contains "$found" "         sudo systemctl enable --now systemd-resolved.service"
contains "$found" "not ready: 3 problems"
run_fixes "$found"
wait_for 10 check_passes
n1 systemctl enable --now systemd-resolved.service
contains "$(n1 kat-agent check)" "ok       systemd-resolved runs"
# Users other than root are told which checks were not possible.
contains "$(as dora kat-agent check)" "could not look at firewalls"
# Podman prints no version for a user without a home; check reports Podman as installed.
contains "$(as nobody kat-agent check)" "Podman is there and does not tell this user its version"

# If a route overlaps the overlay, init names it and changes nothing.
n1 ip route add 10.100.7.0/24 via 192.168.77.1
inventory n1 >"$LAB_WORK/refused-before"
sysctls n1 >"$LAB_WORK/refused-sysctls"
code=0
output=$(n1 kat-agent init 2>&1) || code=$?
equal 1 "$code" "exit code of init"
contains "$output" "10.100.0.0/16 (clusterCIDR) overlaps the route to 10.100.7.0/24 on host0"
contains "$output" "set clusterCIDR: 10.101.0.0/16 in cluster.kat"
diff "$LAB_WORK/refused-before" <(inventory n1)
diff "$LAB_WORK/refused-sysctls" <(sysctls n1)

# With other settings the route does not overlap; the firewall blocks another port.
printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: ClusterConfiguration\nmetadata:\n  name: home\nspec:\n%s\n' \
    '  clusterCIDR: 10.61.0.0/16
  serviceCIDR: 10.62.0.0/16
  clusterDomain: home.test
  apiPort: 9443' | write_to /root/cluster.kat
found=$(problems --config /root/cluster.kat)
contains "$found" "         sudo nft insert rule inet mine input tcp dport 9443 accept"
contains "$found" "not ready: 1 problem"
run_fixes "$found"
check_passes --config /root/cluster.kat
n1 ip route delete 10.100.7.0/24
check_passes

# The addresses to advertise: an interface with an IPv4 address and a link-local IPv6 address, which
# is not usable, and an address.
n1 ip link add outer type veth peer name outer-end
n1 ip address add 10.7.0.1/24 dev outer
n1 ip link set outer-end up
n1 ip link set outer up
has_link_local() { n1 ip -6 address show dev outer scope link | grep -q 'fe80:'; }
wait_for 10 has_link_local
n1 kat-agent init --config /root/cluster.kat --advertise-address outer --advertise-address 192.168.77.11 --node-name edge
edge_has() { kat get nodes edge -o json | jq -e "$@" >/dev/null; }
wait_for 30 edge_has '.status.phase == "Ready"'
node=$(kat get nodes -o json | jq -c '.items | map(.metadata.name, .status.subnet, .status.overlayAddress, .status.endpoints)')
equal '["edge","10.61.0.0/23","10.61.0.1",["10.7.0.1:51820","192.168.77.11:51820"]]' "$node" "the only machine"
equal '["10.7.0.1:9443","192.168.77.11:9443"]' "$(n1 jq -c .endpoints /etc/kat/admin.conf)" "the API's addresses"
contains "$(n1 ip -4 address show dev kat0)" "inet 10.61.0.1/"
token=$(n1 jq -r .token /etc/kat/admin.conf)
for address in 10.7.0.1 192.168.77.11; do
    contains "$(n1 curl --silent --insecure -H "Authorization: Bearer $token" "https://$address:9443/v1alpha1/nodes")" '"edge"'
done
refused n1 curl --silent --insecure --max-time 3 https://192.168.77.11:9115/
export DOMAIN=home.test
run web --port 80
wait_for 10 answers "http://web.default.$DOMAIN/"
wait_for 10 inside web wget -q -T 3 -O- "http://web.default.$DOMAIN/"
contains "$(field web .status.ip)" "10.61."
refused n1 getent ahostsv4 web.default.kat.cluster.local
# The traffic passes the firewall after the fix.
contains "$(inside web wget -q -T 5 -O- http://192.168.77.1:8000/)" "192.168.77.11"

# A second init is refused.
code=0
output=$(n1 kat-agent init --config /root/cluster.kat 2>&1) || code=$?
equal 1 "$code" "exit code of a second init"
# shellcheck disable=SC2016
contains "$output" 'this machine is already `edge` of the cluster `home`; `kat-agent reset` takes it out'
# In a cluster check uses the cluster's settings, and ignores KAT's own ports and routes.
check_passes
n1 ip route add 10.61.7.0/24 via 192.168.77.1
found=$(problems)
contains "$found" "         sudo ip route delete 10.61.7.0/24 dev host0"
contains "$found" "not ready: 1 problem"
run_fixes "$found"
check_passes
