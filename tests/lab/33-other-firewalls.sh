# Beside Docker, ufw and firewalld as Debian has them: check names each with the commands that open the overlay and host ports, callers' addresses are kept, and all of it works after a reboot
# machines: 2
# root: docker.io docker-cli iptables ufw firewalld
# bare
# shellcheck shell=bash
lab copy "$LAB_WORK/images/web/bin/web" n2:/root/web
address() { on "$1" ip -4 -o address show dev host0 | awk '{ sub("/.*", "", $4); print $4; exit }'; }
outside=$(address n1) at=$(address n2)
docker_off() {
    on "$1" systemctl disable --quiet --now docker.service docker.socket containerd.service
    on "$1" sh -c 'nft delete table ip filter; nft delete table ip nat' 2>/dev/null || true
}

# n1 stands for all other machines, and has none of them. Debian starts firewalld and Docker when they are installed; on n2 Docker was
# there before KAT, and has turned forwarding on itself: then it drops what it does not know.
on n1 systemctl disable --quiet --now firewalld.service
docker_off n1
n1 kat-agent init
on n2 systemctl disable --quiet --now firewalld.service
on n2 systemctl start docker.service
contains "$(on n2 iptables -S)" "-P FORWARD DROP"
line=$(n1 katcall token create --join)
[[ $line == "sudo "* ]]
code=0
output=$(on n2 bash -c "${line#sudo }" 2>&1) || code=$?
equal 1 "$code" "exit code of a join beside Docker"
contains "$output" "Docker set the policy of the FORWARD chain to drop"
run_fixes_on n2 "$output"
on n2 bash -c "${line#sudo }"
both_ready() { LAB_MACHINES=2 nodes_are_ready; }
wait_for 60 both_ready

add_agent_settings n2 'hostPortLoopback: true'
wait_for 60 both_ready
kat label node n2 place=here
folder=$(workload web --port 8080 --health 'http: {path: /healthz, port: web}, periodSeconds: 1' --spec 'nodeSelector: {place: here}')
n1 sed -i 's/containerPort: 8080/containerPort: 8080, hostPort: 80/' "$folder/VirtualLoadBalancer.kat"
kat apply -f "$folder" --wait --timeout 90s
overlay=$(overlay_address n2)
# What has to be so: who calls port 80 of n2 is who the program sees; and the API, names, the way out with DNS.
caller() { on "$1" curl --silent --show-error --fail --max-time "${3:-2}" "http://$2/caller"; }
by_host_port() { equal "$outside" "$(caller n1 "$at")" "who calls from outside, as the program sees it"; }
by_itself() { equal "$at" "$(caller n2 "$at")" "who calls from the machine itself" && equal "$overlay" "$(caller n2 127.0.0.1)" "who calls by the loopback"; }
by_name() { n1 curl --silent --fail --max-time 2 "http://web.default.$DOMAIN:8080/caller"; }
by_api() { n1 curl --silent --insecure --fail --max-time 2 "https://$at:9115/version"; }
way_out() { contains "$(as_on n2 kat-default-web podman exec "kat-default-$id" wget -q -T 2 -O- http://outside.test:8000/)" "outside sees $at"; }
id=$(field web .metadata.name)
open() { by_host_port && by_itself && by_name && by_api && way_out && on n2 kat-agent check >/dev/null; }
wait_for 20 open

# Without the commands' rules again, the port is closed from outside; with them it is open, and after a start of Docker and of the
# machine. Booting, KAT has turned forwarding on before Docker begins, so the policy is set as it was here.
on n2 sh -c 'while iptables -D DOCKER-USER -i kat+ -j ACCEPT; do :; done; while iptables -D DOCKER-USER -o kat+ -j ACCEPT; do :; done' 2>/dev/null
refused by_host_port
refused by_name
refused way_out
by_itself
found=$(problems_of n2)
contains "$found" "Docker set the policy of the FORWARD chain to drop"
contains "$found" "problems: 1,"
run_fixes_on n2 "$found"
wait_for 20 open
on n2 systemctl restart docker.service
wait_for 20 open
lab reboot n2
on n2 systemctl is-active --quiet docker.service
on n2 iptables -P FORWARD DROP
wait_for 60 open
docker_off n2

# ufw, which denies what comes in and what is routed.
on n2 ufw --force enable
contains "$(on n2 ufw status verbose)" "Default: deny (incoming), allow (outgoing), deny (routed)"
refused by_host_port
refused by_name
refused by_api
refused way_out
by_itself
found=$(problems_of n2)
contains "$found" "ufw is enabled and drops WireGuard, the API or forwarded traffic"
contains "$found" "problems: 1,"
run_fixes_on n2 "$found"
wait_for 20 open
# What ufw says of the port itself has no say in what is led elsewhere.
on n2 ufw deny 80/tcp
by_host_port
lab reboot n2
contains "$(on n2 ufw status)" "Status: active"
wait_for 60 open
on n2 ufw --force disable

# firewalld lets pass what others led elsewhere, unless it is told to be strict; not the rest.
on n2 systemctl enable --quiet --now firewalld.service
refused by_name
refused by_api
refused way_out
by_host_port
by_itself
found=$(problems_of n2)
contains "$found" "firewalld is running and drops WireGuard, the API or forwarded traffic"
contains "$found" "problems: 1,"
run_fixes_on n2 "$found"
wait_for 20 open
lab reboot n2
equal running "$(on n2 firewall-cmd --state)" "firewalld after a reboot"
wait_for 60 open
on n2 sed -i 's/^StrictForwardPorts=no$/StrictForwardPorts=yes/' /etc/firewalld/firewalld.conf
on n2 firewall-cmd --reload
refused by_host_port
refused by_itself
by_name
way_out
# A warning, for all else works.
found=$(on n2 kat-agent check)
contains "$found" "StrictForwardPorts of firewalld keeps ports of the machine that lead to workloads (hostPort) closed"
run_fixes_on n2 "$(grep -A 1 StrictForwardPorts <<<"$found")" warning
wait_for 20 open
lacks "$(on n2 kat-agent check)" StrictForwardPorts
