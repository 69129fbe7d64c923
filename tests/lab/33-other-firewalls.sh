# Beside Docker, ufw and firewalld as Debian has them: check names each with the commands that open the overlay and host ports, callers' addresses are kept, and all of it works after a reboot
# machines: 2
# root: docker.io docker-cli iptables ufw firewalld
# bare
# by name
# shellcheck shell=bash
lab copy "$LAB_WORK/images/web/bin/web" n2:/root/web
address() { on "$1" ip -4 -o address show dev host0 | awk '{ sub("/.*", "", $4); print $4; exit }'; }
outside=$(address n1) at=$(address n2)
docker_off() {
    on "$1" systemctl disable --quiet --now docker.service docker.socket containerd.service
    on "$1" sh -c 'nft delete table ip filter; nft delete table ip nat' 2>/dev/null || true
}

# n1 is the other machine and has no such firewall. Debian starts firewalld and Docker at their
# installation. On n2 Docker was there before KAT and turned on forwarding itself: then it drops
# what it does not know.
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
both_machines_are_ready() { LAB_MACHINES=2 nodes_are_ready; }
wait_for 60 both_machines_are_ready

add_agent_settings n2 'hostPortLoopback: true'
wait_for 60 both_machines_are_ready
kat label node n2 place=here
folder=$(workload web --port 8080 --health 'http: {path: /healthz, port: web}, periodSeconds: 1' --spec 'nodeSelector: {place: here}')
n1 sed -i 's/containerPort: 8080/containerPort: 8080, hostPort: 80/' "$folder/VirtualLoadBalancer.kat"
kat apply -f "$folder" --wait --timeout 90s
overlay=$(overlay_address n2)
# The expected state: the program sees the address of its caller on port 80 of n2, and the API,
# names, and the outside with DNS are reachable.
caller() { on "$1" curl --silent --show-error --fail --max-time "${3:-2}" "http://$2/caller"; }
host_port_keeps_address() { equal "$outside" "$(caller n1 "$at")" "address of the caller n1 that the program sees"; }
machine_reaches_host_port() { equal "$at" "$(caller n2 "$at")" "address of the caller n2 that the program sees" && equal "$overlay" "$(caller n2 127.0.0.1)" "address of a caller on the loopback that the program sees"; }
name_answers() { n1 curl --silent --fail --max-time 2 "http://web.default.$DOMAIN:8080/caller"; }
api_answers() { n1 curl --silent --insecure --fail --max-time 2 "https://$at:9115/version"; }
container_reaches_outside() { contains "$(as_on n2 kat-default-web podman exec "kat-default-$id" wget -q -T 2 -O- http://outside.test:8000/)" "outside sees $at"; }
id=$(field web .metadata.name)
everything_works() { host_port_keeps_address && machine_reaches_host_port && name_answers && api_answers && container_reaches_outside && on n2 kat-agent check >/dev/null; }
wait_for 20 everything_works

# Without the rules of the commands the port is closed from outside. With them it is open, also
# after a restart of Docker and of the machine. At a boot KAT turns on forwarding before Docker
# starts, so the test sets Docker's policy to drop again.
on n2 sh -c 'while iptables -D DOCKER-USER -i kat+ -j ACCEPT; do :; done; while iptables -D DOCKER-USER -o kat+ -j ACCEPT; do :; done' 2>/dev/null
refused host_port_keeps_address
refused name_answers
refused container_reaches_outside
machine_reaches_host_port
found=$(problems_of n2)
contains "$found" "Docker set the policy of the FORWARD chain to drop"
contains "$found" "not ready: 1 problem"
run_fixes_on n2 "$found"
wait_for 20 everything_works
on n2 systemctl restart docker.service
wait_for 20 everything_works
lab reboot n2
on n2 systemctl is-active --quiet docker.service
on n2 iptables -P FORWARD DROP
wait_for 60 everything_works
docker_off n2

# ufw denies incoming and routed traffic.
on n2 ufw --force enable
contains "$(on n2 ufw status verbose)" "Default: deny (incoming), allow (outgoing), deny (routed)"
refused host_port_keeps_address
refused name_answers
refused api_answers
refused container_reaches_outside
machine_reaches_host_port
found=$(problems_of n2)
contains "$found" "ufw is enabled and drops WireGuard, the API or forwarded traffic"
contains "$found" "not ready: 1 problem"
run_fixes_on n2 "$found"
wait_for 20 everything_works
# ufw's rules for the host port itself do not apply to forwarded traffic.
on n2 ufw deny 80/tcp
host_port_keeps_address
lab reboot n2
contains "$(on n2 ufw status)" "Status: active"
wait_for 60 everything_works
on n2 ufw --force disable

# firewalld accepts traffic that other programs forward, unless StrictForwardPorts is set; it drops
# the rest.
on n2 systemctl enable --quiet --now firewalld.service
refused name_answers
refused api_answers
refused container_reaches_outside
host_port_keeps_address
machine_reaches_host_port
found=$(problems_of n2)
contains "$found" "firewalld is running and drops WireGuard, the API or forwarded traffic"
contains "$found" "not ready: 1 problem"
run_fixes_on n2 "$found"
wait_for 20 everything_works
lab reboot n2
equal running "$(on n2 firewall-cmd --state)" "firewalld after a reboot"
wait_for 60 everything_works
on n2 sed -i 's/^StrictForwardPorts=no$/StrictForwardPorts=yes/' /etc/firewalld/firewalld.conf
on n2 firewall-cmd --reload
refused host_port_keeps_address
refused machine_reaches_host_port
name_answers
container_reaches_outside
# check prints a warning, as everything else works.
found=$(on n2 kat-agent check)
contains "$found" "StrictForwardPorts of firewalld keeps ports of the machine that are forwarded to workloads (hostPort) closed"
run_fixes_on n2 "$(grep -A 1 StrictForwardPorts <<<"$found")" warning
wait_for 20 everything_works
lacks "$(on n2 kat-agent check)" StrictForwardPorts
