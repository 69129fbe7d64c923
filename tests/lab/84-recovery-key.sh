# The recovery key is replaced under load while a member is away and the leader is killed: secrets stay readable, a machine with a disk of before converges, no machine without the store gets a key, and each backup opens with its own key only
# machines: 4
# leaves no cluster
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 120 members_are_healthy 3
pki=/var/lib/kat/pki
recovery() { kat ca list -o json | jq -er ".items[] | select(.name == \"recovery-key\") | $1"; }
waits_for() { contains "$(recovery .message)" "$1"; }
data_keys() { etcdctl_on n1 get --prefix --keys-only /kat/sealing/ | grep -v '^$'; }
key_of() { on "$1" kat-agent recovery-key; }
set_secret() { printf %s "$1" | lab exec n1 -- katcall secret set db --from-file PASSWORD=-; }
# values: the value of the secret in each instance, once.
values() {
    local address
    for address in $(instances app | jq -er '.[].status.ip'); do page "http://$address/env?PASSWORD"; echo; done | grep . | sort -u
}

# n3 is away in the replacement, which another machine begins: one that has a report of n3.
n3_does_not_lead() { local leader; leader=$(leader_at n1) && [[ $leader && $leader != n3 ]]; }
n3_does_not_lead || on n3 systemctl restart kat-agent.service
wait_for 60 n3_does_not_lead
wait_for 60 nodes_are_ready

# A secret in use, and what somebody keeps who once had root on a machine with the store.
set_secret first
# An instance has to be on n1, which n4 becomes in the end.
kat drain n4
workload app --port 80 --replicas 3 --env VERSION=1 >/dev/null
sed -i 's/^    env:$/    env:\n      - {name: PASSWORD, valueFrom: {secret: {name: db, key: PASSWORD}}}/' "$LAB_WORK/workloads/app/workload.kat"
n1 rm -rf /root/workloads/app
lab copy "$LAB_WORK/workloads/app" n1:/root/workloads/
kat apply -f /root/workloads/app --wait
equal first "$(values)" "the secret in the instances"
key_of n1 >"$LAB_WORK/old-key"
n1 kat-agent backup /root/old.backup
on n3 sh -euc "rm -rf /root/old-pki; cp -a $pki /root/old-pki"
equal /kat/sealing/1 "$(data_keys)" "data keys before"
contains "$(kat ca exposed 2>&1)" "never replaced"
prints_nothing "exposed values before" kat ca exposed -o name
refused kat ca rotate recovery-key --grace 1h
fingerprint=$(recovery .fingerprint)

start_load "$(service_address app)" 80 50
# A member that does not answer holds the replacement up, and nothing is lost meanwhile.
on n3 systemctl stop kat-agent.service
kat ca rotate recovery-key
wait_for 60 waits_for n3
refused kat ca rotate recovery-key
absent n3 "$pki/recovery-next.key"
equal /kat/sealing/1 "$(data_keys)" "data keys while a member is away"
# The leader is killed in the middle.
leader=$(leader_at n1)
on "$leader" test -e "$pki/recovery-next.key"
on n3 systemctl start --no-block kat-agent.service
on "$leader" systemctl kill --signal KILL kat-agent.service
is_replaced() {
    local phase found
    phase=$(recovery .phase) && found=$(recovery .fingerprint) || return 1
    [[ $phase == Settled && $found != "$fingerprint" ]] || {
        kat ca list >&2
        return 1
    }
}
wait_for 240 is_replaced
wait_for 60 members_are_healthy 3
key_of n1 >"$LAB_WORK/new-key"
differs "$(<"$LAB_WORK/old-key")" "$(<"$LAB_WORK/new-key")" "recovery key"
# holds_new_key NODE: whether the machine holds the new key and no other.
holds_new_key() {
    [[ $(key_of "$1") == "$(<"$LAB_WORK/new-key")" && $(on "$1" sh -c "cd $pki && echo recovery*") == recovery.key ]] || {
        on "$1" ls -l "$pki" >&2
        return 1
    }
}
for node in n1 n2 n3; do wait_for 30 holds_new_key "$node"; done
equal 1 "$(data_keys | grep -c .)" "number of data keys"
differs /kat/sealing/1 "$(data_keys)" "data key"
contains "$(kat get events -A -o json)" RecoveryKeyReplaced
# A machine without the store never gets a key, by its files or on request.
equal "recovery*" "$(on n4 sh -c "cd $pki && echo recovery*")" "recovery keys of n4"
equal 409 "$(on n4 curl --silent --max-time 10 --insecure --cert $pki/node.crt --key $pki/node.key --output /dev/null \
    --write-out '%{http_code}' "https://$(overlay_address "$(leader_at n1)"):9115/v1alpha1/nodes/n4/membership")" "the answer to n4's request for the keys"

# No sealed file opens with the old key; with the new one the same command works.
on n3 systemctl stop kat-agent.service
on n3 sh -euc "umask 077; cp $pki/recovery.key /root/new-recovery.key; cp /root/old-pki/recovery.key $pki/recovery.key"
output=$(on n3 kat-agent backup /root/none.backup 2>&1) && exit 1
contains "$output" "does not open"
on n3 cp /root/new-recovery.key $pki/recovery.key
on n3 kat-agent backup /root/some.backup
# The disk of before: the machine takes the new key from the leader.
on n3 sh -euc "rm -rf $pki; cp -a /root/old-pki $pki"
equal "$(<"$LAB_WORK/old-key")" "$(key_of n3)" "key of the machine with the disk of before"
on n3 systemctl start kat-agent.service
wait_for 90 holds_new_key n3
wait_for 60 members_are_healthy 3
on n3 rm -rf /root/old-pki /root/new-recovery.key /root/some.backup

# What could be read is listed until it is changed; the running programs get the new value.
exposed() { kat ca exposed -o name | grep -v ^token/ || [[ $? == 1 ]]; }
equal secret/default/db "$(exposed)" "exposed values"
# The token in the first machine's connection file is from before too, and answers until it is revoked.
used=$(kat token create --scope read --ttl 1h -o json | jq -er '.token | split(".")[1]')
tokens=$(kat ca exposed -o name | grep ^token/)
lacks "$tokens" "$used"
contains "$tokens" "token/$(n1 jq -er '.token | split(".")[1]' /etc/kat/admin.conf)"
contains "$(kat ca exposed 2>&1)" "katcall secret set db -n default"
equal first "$(values)" "the secret in the instances after the replacement"
no_request_lost 2000
set_secret second
has_second() { [[ $(values) == second ]]; }
wait_for 120 has_second
prints_nothing "exposed values after the change" exposed
contains "$(kat ca exposed 2>&1)" "katcall token revoke"
kat token revoke "$used"
kat uncordon n4
wait_for 60 kat status

# Each backup opens with its own key. n4 is bare and becomes n1, which is lost with all others.
n1 kat-agent backup /root/new.backup
for file in old new; do
    n1 cat "/root/$file.backup" >"$LAB_WORK/$file.backup"
    lab copy "$LAB_WORK/$file.backup" "n4:/root/$file.backup"
    lab copy "$LAB_WORK/$file-key" "n4:/root/$file.key"
done
on n4 kat-agent reset --yes
for node in n1 n2 n3; do lab kill "$node"; done
restore() { on n4 kat-agent restore "/root/$1.backup" --recovery-key-file "/root/$2.key" 2>&1; }
for pair in "old new" "new old"; do
    # shellcheck disable=SC2086
    output=$(restore $pair) && exit 1
    contains "$output" "sealed with another recovery key"
done
absent n4 "$pki"
output=$(restore new new)
contains "$output" "machine n1 is Ready"
equal "$(<"$LAB_WORK/new-key")" "$(key_of n4)" "recovery key of the restored machine"
requested='.items[] | select(.name == "cluster-ca" or .name == "recovery-key") | .phase'
equal $'Settled\nSettled' "$(on n4 katcall ca list -o json | jq -r "$requested")" "what is replaced by request alone, after a restore"
# The secret opens with the restored keys: the program starts with it.
restored_value() {
    local address
    address=$(on n4 katcall get instances -o json | jq -er '[.items[].status | select(.node == "n1" and .phase == "Running")][0].ip') || return 1
    [[ $(on n4 curl --silent --fail --max-time 3 "http://$address/env?PASSWORD") == second ]]
}
wait_for 120 restored_value
