# Machines join without a token only while the cluster trusts the network, and only as many as permitted
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
on n2 kat-agent reset --yes
wait_for 10 refused kat get nodes n2
join() { on n2 kat-agent join --leader-api 192.168.77.11:9115 --insecure-trust-network 2>&1; }
output=$(join) && exit 1
contains "$output" "no machine without a token"
absent n2 /var/lib/kat/pki
join_line=$(kat token create --join --insecure-trust-network --ttl 10m)
equal "sudo kat-agent join --leader-api 192.168.77.11:9115 --insecure-trust-network" "$join_line" "the line to paste"
output=$(join)
contains "$output" "whoever answers at 192.168.77.11:9115 is taken for the cluster"
wait_for 30 nodes_are_ready
contains "$(kat token list)" "join without a token, used up"
# After the join the machine has the cluster's authority, as any other machine.
equal "$(n1 cat /var/lib/kat/pki/cluster-ca.crt)" "$(on n2 cat /var/lib/kat/pki/cluster-ca.crt)" "the authority"
