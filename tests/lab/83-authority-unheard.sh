# A machine that was off while the cluster's own authority was replaced takes the new one from a majority of those that it knew, or is told by hand; a token for joining from before is refused
# machines: 4
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 120 members_are_healthy 3
pki=/var/lib/kat/pki
authority() { kat ca list -o json | jq -er ".items[] | select(.name == \"cluster-ca\") | $1"; }
before=$(authority .fingerprint)
line_of_before=$(kat token create --join)
run web --port 80 --replicas 4
pid=$(on n4 pgrep -x web)
is_back() { [[ $(kat get nodes n4 -o json | jq -r .status.phase) == Ready ]]; }
follows() { [[ $(on n4 sh -c "cd $pki && echo cluster-ca*.crt") == cluster-ca.crt ]]; }

# It trusts nobody any more. While it knows two machines with the store alone it asks for a person.
on n4 systemctl stop kat-agent.service
known=/var/lib/kat/cluster.json
on n4 sh -euc "cp $known /root/known; jq 'del(.endpoints.machines.n3)' /root/known >$known"
is_away() { [[ $(kat get nodes n4 -o json | jq -r .status.phase) == NotReady ]]; }
wait_for 90 is_away
kat ca rotate cluster-ca --grace 0s --wait --timeout 240s
on n4 systemctl start kat-agent.service
is_told_why() { on n4 journalctl -u kat-agent -b -o cat | grep -q 'only three or more can vouch'; }
wait_for 60 is_told_why
equal "$pid" "$(on n4 pgrep -x web)" "the program on n4 while it trusts nobody"
hash=$(authority .fingerprint)
contains "$(on n4 kat-agent trust "$before" 2>&1)" "trusts that authority already"
refused on n4 kat-agent trust "$(printf 'ab%.0s' {1..32})"
refused on n4 kat-agent trust nonsense
has_the_new_one() { [[ $(on n4 sh -c "openssl x509 -in $pki/cluster-ca.crt -outform DER | sha256sum") == "$hash "* ]]; }
refused has_the_new_one
on n4 systemctl stop kat-agent.service
on n4 cp -a $pki /root/pki-of-before
contains "$(on n4 kat-agent trust "$hash" 2>&1)" "gave this machine a certificate of it"
has_the_new_one
wait_for 120 is_back
wait_for 60 follows
# The same once more, and it knows all three: they have signed for the new authority.
on n4 systemctl stop kat-agent.service
on n4 sh -euc "rm -rf $pki; mv /root/pki-of-before $pki; cat /root/known >$known; rm /root/known"
refused has_the_new_one
on n4 systemctl start kat-agent.service
a_majority_has_signed() { on n4 journalctl -u kat-agent -b -o cat | grep -q "a majority of the machines with the store have signed"; }
wait_for 120 a_majority_has_signed
has_the_new_one
wait_for 60 follows
wait_for 60 is_back
contains "$(on n4 kat-agent trust "$hash" 2>&1)" "trusts that authority already"
wait_for 60 kat status

# A token for joining names the authority of its time.
on n4 kat-agent reset --yes
join_with() { on n4 kat-agent join --leader-api 192.168.77.11:9115 --token "${1##* }" 2>&1; }
output=$(join_with "$line_of_before") && exit 1
contains "$output" "authority"
lacks "$(kat get nodes -o name)" node/n4
line=$(kat token create --join)
join_with "$line"
wait_for 60 nodes_are_ready
kat delete workload web --yes --wait
