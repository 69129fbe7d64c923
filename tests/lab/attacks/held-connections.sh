# Strangers that hold every connection they get keep out neither katcall, nor root on the socket, nor the machines' reports
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
leader=$(leader_at n1)
leader_address=192.168.77.$((10 + ${leader#n}))
stranger_addresses=(192.168.77.20{1,2,3,4,5})
for address in "${stranger_addresses[@]}"; do on n4 ip address add "$address/24" dev host0; done
since=$(on "$leader" date '+%F %T')
lab copy tests/lab/attacks/hold-connections.py n4:/root/hold-connections.py
on n4 timeout 40 python3 /root/hold-connections.py "$leader_address" 9115 16 "${stranger_addresses[@]}" >"$LAB_WORK/held" &
holder_pid=$!
n1 sh -c "umask 077; jq '.endpoints = [\"$leader_address:9115\"]' /etc/kat/admin.conf >/root/leader.conf"
sleep 8
# Calls with a token over the port, and as root on the socket.
n1 env KAT_CONNECTION=/root/leader.conf timeout 10 katcall get nodes >/dev/null
on "$leader" timeout 10 katcall --connection /run/kat/api.sock get nodes >/dev/null
on n4 timeout 10 curl --silent --fail --insecure --output /dev/null "https://$leader_address:9115/healthz"
wait "$holder_pid"
read -r answered most <"$LAB_WORK/held"
for address in "${stranger_addresses[@]}"; do on n4 ip address del "$address/24" dev host0; done
# The control: the API answered these callers, and they held as many connections as one pool has.
((answered >= 500 && most >= 200)) || { echo "only $answered calls of the strangers were answered, and they held only $most connections"; exit 1; }
for node in n1 n2 n3 n4; do
    lab journal "$node" -u kat-agent --since "$since" >"$LAB_WORK/journal"
    finds_nothing grep 'a report did not reach the leader' "$LAB_WORK/journal"
done
nodes_are_ready
