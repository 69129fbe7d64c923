# Two machines behind NAT are full members of a cluster, and reach each other through a third
# machines: 3
# bare
# shellcheck shell=bash
lab nat n2
lab nat n3
reaches_n1() { on "$1" ping -c1 -W1 192.168.77.11; }
for node in n2 n3; do wait_for 30 reaches_n1 "$node"; done
refused on n1 ping -c1 -W1 172.30.2.2
refused on n2 ping -c1 -W1 172.30.3.2
n1 kat-agent init --relay
for node in n2 n3; do
    line=$(kat token create --join)
    on "$node" bash -c "${line#sudo } --behind-nat"
done
wait_for 60 nodes_are_ready
wait_for 90 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
# can_fetch_from NODE TO: whether machine NODE reaches the instance on TO.
can_fetch_from() { on "$1" curl --silent --fail --max-time 3 "http://$(field_on web "$2" .status.ip)/" | grep -q '^host='; }
for node in n1 n2 n3; do
    for other in n1 n2 n3; do wait_for 20 can_fetch_from "$node" "$other"; done
done
# n2 and n3 reach each other through the relay, and their status says so.
equal n1 "$(on n2 jq -r .peers.n3.via /run/kat/overlay.json)" "relay between n2 and n3"
contains "$(kat describe node n2)" "through n1"
contains "$(n1 nft list chain inet kat forward)" 'iifname "kat0" oifname "kat0" accept'
contains "$(on n2 nft list chain inet kat forward)" 'iifname "kat0" oifname "kat0" drop'
equal 25 "$(on n2 jq -r .peers.n1.keepalive /var/lib/kat/network/peers.json)" "seconds between keepalives"
# A machine behind NAT becomes the leader, and the others still reach it.
lab kill n1
lab start n1
wait_for 90 nodes_are_ready
wait_for 60 members_are_healthy 3
# New machines join at the machine that is reachable from outside, whichever machine leads.
join_line_names_n1() { kat token create --join | grep -q -- "--leader-api 192.168.77.11:9115 "; }
wait_for 30 join_line_names_n1
can_write() { kat create namespace later || kat get namespace later; }
wait_for 30 can_write
wait_for 60 invariants_hold
