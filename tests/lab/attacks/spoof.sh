# A container sends with its own address alone, also where the kernel's own check is off
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
here='nodeSelector: {kat.dws.rip/nodeName: n1}'
tenant apply -f "$(workload forger --spec "$here")" --wait
tenant apply -f "$(workload victim --spec "$here")" --wait
before=$(n1 sysctl -n net.ipv4.conf.all.rp_filter)
# The kernel's own check is off, as if another program had set it for all links.
n1 sh -c 'for each in /proc/sys/net/ipv4/conf/all /proc/sys/net/ipv4/conf/kat*; do echo 0 >"$each/rp_filter"; done'
victim=$(field victim .status.ip)
# The attack sends packets with the victim's address from the forger's namespace, as a program with
# NET_RAW can.
pid=$(n1 pgrep -u "$(field forger .status.uid)" -xo conmon)
pid=$(n1 pgrep -P "$pid" | head -n 1)
n1 nsenter --target "$pid" --net ip address add "$victim/32" dev eth0
n1 nft "add table inet attack; add chain inet attack in { type filter hook input priority 0; };
    add rule inet attack in iifname \"kat*\" ip saddr $victim udp dport 9999 counter"
# Sends a packet as the victim, and prints the number of such packets that the machine has accepted
# so far.
packets_after_forgery() {
    n1 nsenter --target "$pid" --net python3 -c "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('$victim', 0)); s.sendto(b'x', ('$(overlay_address n1)', 9999))"
    n1 nft -j list chain inet attack in | jq '[.nftables[].rule?.expr[]?.counter?.packets // empty] | add'
}
equal 0 "$(packets_after_forgery)" "packets with the victim's address"
# The control: without KAT's rule the packets arrive. kat-net would put it back at once.
data_path=$(n1 systemctl show kat-net.service --property=MainPID --value)
n1 kill -STOP "$data_path"
n1 nft flush chain inet kat spoofed
equal 1 "$(packets_after_forgery)" "packets with the victim's address, without the rule"
n1 kill -CONT "$data_path"
n1 systemctl restart kat-net.service
spoof_rule_is_back() { n1 nft list chain inet kat spoofed | grep -q fib; }
wait_for 10 spoof_rule_is_back
equal 1 "$(packets_after_forgery)" "packets with the victim's address, with the rule again"

n1 nft delete table inet attack
n1 sysctl -qw net.ipv4.conf.all.rp_filter="$before"
for name in forger victim; do kat delete workload "$name" --wait; done
