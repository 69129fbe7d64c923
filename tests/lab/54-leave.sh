# A member of etcd is removed from the cluster without a lost request: another machine takes its place, and then the leader is removed
# machines: 4
# leaves no cluster
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 90 members_are_healthy 3
# Through a machine with the store: another one shows the overview alone.
asked=n3
members() { on "$asked" katcall get nodes -o json | jq -c '[.items[] | select(any(.status.conditions[]; .type == "EtcdMember" and .status)) | .metadata.name]'; }
equal '["n1","n2","n3"]' "$(members)" "members, the oldest"
run web --port 80 --replicas 4
members_are() { [[ $(members) == "$1" ]] || { members >&2; return 1; }; }

# Copies of n2's certificates from before it left: those of the machine and of its administrator.
for file in node admin; do
    for ending in crt key; do
        on n2 cat "/var/lib/kat/pki/$file.$ending" | lab exec n4 -- sh -c "umask 077; cat >/root/copied-$file.$ending"
    done
done
code_of() {
    on n4 curl --silent --max-time 10 --insecure --cert "/root/copied-$1.crt" --key "/root/copied-$1.key" --output /dev/null \
        --write-out '%{http_code}' "https://192.168.77.11:9115$2"
}
# And those that open etcd and the agents' ports, on n3.
for file in leader-etcd leader; do
    for ending in crt key; do
        on n2 cat "/var/lib/kat/pki/$file.$ending" | lab exec n3 -- sh -c "umask 077; cat >/root/copied-$file.$ending"
    done
done
# etcd_with and agent_with PATH: what n3's etcd says, and the status code of n3's agent, for the certificate of this path.
etcd_with() {
    on n3 curl --silent --show-error --max-time 10 --cacert /var/lib/kat/pki/etcd-client-ca.crt --cert "$1.crt" --key "$1.key" \
        https://127.0.0.1:2379/version 2>&1
}
agent_with() {
    on n3 curl --silent --max-time 10 --insecure --cert "$1.crt" --key "$1.key" --output /dev/null --write-out '%{http_code}' \
        "https://$agent/v1alpha1/nodes/n3/usage"
}
agent=$(overlay_address n3):9116
contains "$(etcd_with /root/copied-leader-etcd)" etcdserver
equal 200 "$(agent_with /root/copied-leader)" "n2's certificate at the port of n3's agent while n2 is a member"
# A place in the queue of the election that outlives n2 by an hour, without anything that renews it.
lease=$(etcdctl_on n2 lease grant 3600 | awk '{ print $2 }')
etcdctl_on n2 put --lease "$lease" "/kat/leader_election/$lease" n2
candidates() { etcdctl_on n3 get --prefix --keys-only /kat/leader_election/; }
contains "$(candidates)" "$lease"
equal "200 200" "$(code_of node /v1alpha1/nodes/n2) $(code_of admin /v1alpha1/tokens)" "n2's certificates while it is a member"
# Its instance moves before it leaves: no caller notices.
start_load "$(service_address web)" 80 50
output=$(on n2 kat-agent reset --yes 2>&1)
contains "$output" "instances that have to move: 1"
equal "401 401" "$(code_of node /v1alpha1/nodes/n2) $(code_of admin /v1alpha1/tokens)" "n2's certificates once it has left"
wait_for 60 members_are '["n1","n3","n4"]'
no_request_lost 500
lacks "$(kat get nodes -o name)" node/n2
equal 403 "$(agent_with /root/copied-leader)" "n2's certificate at the port of n3's agent once it has left"
equal 200 "$(agent_with /var/lib/kat/pki/leader)" "n3's certificate at that port"
# etcd on n3 restarts now for an authority that replaces the one that n2 had.
etcd_refuses_n2() {
    local output
    output=$(etcd_with /root/copied-leader-etcd) && return 1
    contains "$output" alert
}
wait_for 120 etcd_refuses_n2
contains "$(etcd_with /var/lib/kat/pki/leader-etcd)" etcdserver
left_no_candidate() { local all; all=$(candidates) && lacks "$all" "$lease"; }
wait_for 60 left_no_candidate
four_are_ready() { on "$asked" katcall get workload web -o json | jq -e '.status | .phase == "Running" and .ready == 4' >/dev/null; }
wait_for 60 four_are_ready
prints_nothing "files of the store and keys" on n2 sh -c 'for folder in etcd pki; do [ ! -e "/var/lib/kat/$folder" ] || find "/var/lib/kat/$folder"; done'

# Two members could not tolerate a failure, so the leader becomes the only member: n3 or n4, and not n2, whose turn it would be.
output=$(on n1 kat-agent reset --yes 2>&1)
echo "$output" >&2
lacks "$output" "nobody drains this machine"
# The conditions alone would not do: a member whose etcd restarts to replace an authority, since n2 has left, has none for a
# moment.
one_member_remains() {
    asked=$(leader_at n3) || return 1
    [[ $(members) == "[\"$asked\"]" && $(etcdctl_on "$asked" member list | wc -l) == 1 ]] || {
        on n3 katcall get nodes >&2
        return 1
    }
}
wait_for 60 one_member_remains
wait_for 60 four_are_ready
on "$asked" katcall create namespace later
wait_for 60 invariants_hold "$asked"
