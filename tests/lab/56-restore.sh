# A backup and the recovery key turn a bare machine into the lost one; the remaining machine finds it, and does not go back
# machines: 3
# bare
# shellcheck shell=bash
join() {
    local line
    line=$(n1 katcall token create --join)
    on "$1" kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }"
}
n1 sh -c 'printf "%s\n" "apiVersion: kat.dws.rip/v1alpha1" "kind: ClusterConfiguration" "metadata: {name: lab}" \
    "spec: {clusterCIDR: 10.100.0.0/16, serviceCIDR: 10.200.0.0/16, backupPath: /srv/kat/backups}" >/root/cluster.kat'
init_output=$(n1 kat-agent init --config /root/cluster.kat 2>&1)
contains "$init_output" "The recovery key of this cluster"
join n2
run web --port 80 --replicas 2
programs_on_n2() { on n2 pgrep -x web | sort; }
before=$(programs_on_n2)
[[ $before ]]
identity() { n1 katcall get nodes -o json | jq -c '[.items[] | [.metadata.name, .metadata.uid, .status.subnet]] | sort'; }
identity_before=$(identity)

# backup with each mistake that a person can make.
file=$(n1 kat-agent backup)
contains "$file" /srv/kat/backups/kat-lab-
equal "600 root" "$(n1 stat -c '%a %U' "$file")" "the backup"
refused n1 kat-agent backup "$file"
refused on n2 kat-agent backup
refused as nobody kat-agent backup
n1 kat-agent recovery-key >"$LAB_WORK/key"
contains "$init_output" "$(<"$LAB_WORK/key")"
n1 cat "$file" >"$LAB_WORK/backup"
for secret in "PRIVATE KEY" "$(<"$LAB_WORK/key")"; do finds_nothing grep -qaF "$secret" "$LAB_WORK/backup"; done

# The backup opens without KAT's programs, and has what etcd gave: it appends the digest of its snapshot.
open_backup() { contrib/open-backup "$1" "$2" "$LAB_WORK/facts" "$LAB_WORK/snapshot" 2>&1; }
contains "$(open_backup "$LAB_WORK/backup" "$LAB_WORK/key")" '"cluster":"lab"'
contains "$(<"$LAB_WORK/facts")" "PRIVATE KEY"
equal "600 600" "$(stat -c %a "$LAB_WORK/facts" "$LAB_WORK/snapshot" | paste -sd ' ')" "modes of what was opened"
equal "$(tail -c 32 "$LAB_WORK/snapshot" | od -An -vtx1 | tr -d ' \n')" \
    "$(head -c -32 "$LAB_WORK/snapshot" | sha256sum | cut -d ' ' -f 1)" "digest of the snapshot"
lab copy "$LAB_WORK/snapshot" n2:/root/snapshot
on n2 etcdutl snapshot restore /root/snapshot --data-dir /root/opened
on n2 rm -r /root/opened /root/snapshot
output=$(open_backup "$LAB_WORK/backup" "$LAB_WORK/key") && false
contains "$output" "File exists"
rm "$LAB_WORK/facts" "$LAB_WORK/snapshot"
head -c 5000 "$LAB_WORK/backup" >"$LAB_WORK/half"
output=$(open_backup "$LAB_WORK/half" "$LAB_WORK/key") && false
contains "$output" "its end is missing"
tr 2-9 3-92 <"$LAB_WORK/key" >"$LAB_WORK/other"
output=$(open_backup "$LAB_WORK/backup" "$LAB_WORK/other") && false
contains "$output" "its checksum does not fit"
refused test -e "$LAB_WORK/facts"
refused test -e "$LAB_WORK/snapshot"

# n1 is lost. n3 is bare and has another name and another address.
lab kill n1
# n2 knows another key of n1's API than the one in the backup, as if n1 had been given one since.
known_key() { on n2 jq -er .endpoints.machines.n1.apiKey /var/lib/kat/cluster.json; }
key_in_backup=$(known_key)
on n2 systemctl stop kat-agent.service
on n2 sh -euc 'cd /var/lib/kat; jq -c ".endpoints.machines.n1.apiKey |= (explode | reverse | implode)" cluster.json >new; cat new >cluster.json; rm new'
on n2 systemctl start kat-agent.service
differs "$key_in_backup" "$(known_key)" "key of n1's API on n2"
lab copy "$LAB_WORK/backup" n3:/root/backup
lab copy "$LAB_WORK/key" n3:/root/key
n3() { on n3 "$@"; }
restore() { n3 kat-agent restore "$@" 2>&1; }
output=$(restore /root/backup) && false
contains "$output" "--recovery-key-file"
n3 sh -c 'echo kat-recovery-0000 >/root/short; head -c 5000 /root/backup >/root/half; echo hello >/root/foreign'
output=$(restore /root/backup --recovery-key-file /root/short) && false
contains "$output" "not a recovery key"
output=$(restore /root/half --recovery-key-file /root/key) && false
contains "$output" "not whole"
output=$(restore /root/foreign --recovery-key-file /root/key) && false
contains "$output" "no sealed file of KAT"
refused n3 test -e /var/lib/kat

# at_terminal KEYS: runs restore at a terminal of n3, types KEYS at the question for the recovery
# key, and prints everything that the terminal showed.
# A word that is read before proves that the terminal shows what is typed.
screen=$LAB_WORK/screen
screen_shows() { grep -qF "$1" "$screen"; }
at_terminal() {
    : >"$screen"
    {
        printf 'echoed\n'
        wait_for 30 screen_shows "recovery key (it is not shown)"
        printf '%b' "$1"
        wait_for 150 screen_shows "exit code"
    } | lab exec n3 -- script --quiet --echo always --command 'read -r word; before=$(stty -g)
        kat-agent restore /root/backup; code=$?
        if [ "$(stty -g)" = "$before" ]; then after="as it was"; else after=changed; fi
        echo "exit code $code, the terminal is $after"' /dev/null >"$screen" 2>&1
    contains "$(<"$screen")" echoed || return
    cat "$screen"
}
key=$(<"$LAB_WORK/key")
output=$(at_terminal "${key:0:30}\003")
contains "$output" "interrupted; nothing was changed"
contains "$output" "exit code 1, the terminal is as it was"
lacks "$output" "${key:18:9}"
output=$(at_terminal '\004')
contains "$output" "no recovery key was given"
contains "$output" "exit code 1, the terminal is as it was"
# The recovery key's last character is wrong.
output=$(at_terminal "${key%?}$(tail -c 2 <<<"$key" | tr '0-9A-Z' 10)\r")
contains "$output" "mistyped"
contains "$output" "exit code 1, the terminal is as it was"
lacks "$output" "${key:18:9}"
refused n3 test -e /var/lib/kat

output=$(at_terminal "${key,,}\r")
contains "$output" "machine n1 is Ready"
contains "$output" "exit code 0, the terminal is as it was"
lacks "${output^^}" "${key:18:9}"
identity_there() { n3 katcall get nodes -o json | jq -c '[.items[] | [.metadata.name, .metadata.uid, .status.subnet]] | sort'; }
equal "$identity_before" "$(identity_there)" "machines"
equal "$(<"$LAB_WORK/key")" "$(n3 kat-agent recovery-key)" "recovery key"
# n2 got no command: it finds the new address, its program was never stopped, and it accepts the key of the backup
# because the machine proves that it has the store of a later epoch.
status_is_healthy() { n3 katcall status; }
wait_for 90 status_is_healthy
equal "$key_in_backup" "$(known_key)" "key of the restored machine's API on n2"
contains "$(on n2 journalctl --quiet --unit kat-agent.service --output cat)" "a machine whose key was not known here proves"
equal "$before" "$(programs_on_n2)" "the program on n2"
two_are_ready() { n3 katcall get workload web -o json | jq -e '.status | .phase == "Running" and .ready == 2' >/dev/null; }
wait_for 90 two_are_ready
n3 curl --silent --fail --max-time 3 "http://web.default.$DOMAIN/" | grep -q '^host='
n3 katcall create namespace later
contains "$(n3 katcall get events -A)" "kat-agent restore"

# n2 has followed to the new store because the recovery key signed its epoch, and keeps by which key the next one is checked.
# etcd restarts while its authorities are replaced, since the keys of the lost machine may be in other hands.
authorities_are_settled() { n3 katcall ca list -o json | jq -e 'all(.items[]; .phase == "Settled")' >/dev/null; }
wait_for 120 authorities_are_settled
epoch_key=/kat/config/store_epoch
record=$(etcdctl_on n3 get --print-value-only "$epoch_key")
kept() { on n2 jq -c "$1" /var/lib/kat/position.json; }
equal "$(jq -c '[.epoch, .verifiers]' <<<"$record")" "$(kept '[.epoch, .verifiers]')" "epoch and verifiers on n2"
equal 1 "$(jq '.verifiers | length' <<<"$record")" "number of verifiers"
# A later epoch that nobody has signed, as whoever can write the store could claim it.
write_epoch() {
    printf %s "$1" | lab exec n3 -- etcdctl --endpoints https://127.0.0.1:2379 --cacert /var/lib/kat/pki/etcd-client-ca.crt \
        --cert /var/lib/kat/pki/leader-etcd.crt --key /var/lib/kat/pki/leader-etcd.key put "$epoch_key"
}
epoch=$(jq .epoch <<<"$record")
wait_for 30 write_epoch "$(jq -c '.epoch += 1' <<<"$record")"
status_text() { on n2 systemctl show --property StatusText --value kat-agent.service; }
is_refused() { contains "$(status_text)" "a store of epoch $((epoch + 1)) is refused"; }
wait_for 60 is_refused
equal "$epoch" "$(kept .epoch)" "the epoch on n2"
equal "$before" "$(programs_on_n2)" "the program on n2 while it refuses a store"
wait_for 30 write_epoch "$record"
is_accepted() { lacks "$(status_text)" refused; }
wait_for 60 is_accepted
wait_for 60 status_is_healthy

# docs/guide/backup-and-recovery.md says that the lost machine must not come back before a reset; here it boots all the same.
ip_there() {
    n3 katcall get instances -A -o json |
        jq -er --arg node "$1" '.items[].status | select(.workload == "web" and .node == $node) | .ip'
}
own_n1=$(ip_there n1) own_n2=$(ip_there n2)
# serves MACHINE ADDRESS: whether the instance at the address answers a caller on the machine.
serves() { contains "$(on "$1" curl --silent --fail --max-time 3 "http://$2/")" host=; }
phases_there() { n3 katcall get nodes -o json | jq -c '[.items[] | [.metadata.name, .status.phase]] | sort'; }
# The lost machine says what it is: n2 has told it which machine has its place (56-restored-elsewhere has more).
is_out() { contains "$(n1 systemctl show --property StatusText --value kat-agent.service)" "another machine has taken the place of n1"; }
# stands_fast: the restored cluster and its instances are as before the lost machine's boot.
stands_fast() {
    equal "$epoch" "$(kept .epoch)" "the epoch on n2 beside the lost machine"
    equal '[["n1","Ready"],["n2","Ready"]]' "$(phases_there)" "machines of the restored cluster"
    serves n3 "$own_n1"
    serves n2 "$own_n2"
}
lab start n1
booted=$EPOCHREALTIME
until is_out 2>/dev/null; do
    (($(tenths_since "$booted") < 1200)) || { is_out; false; }
    stands_fast
    sleep 1
done
echo "the lost machine said so $(seconds_since "$booted") s after its boot"
stands_fast
equal "$before" "$(programs_on_n2)" "the program on n2 beside the lost machine"
# A change is stored in the restored cluster.
n3 katcall create namespace beside
contains "$(n3 katcall get namespaces)" beside

# Its reset takes no machine out of the restored cluster.
n1 kat-agent reset --yes --no-drain
absent n1 /var/lib/kat/node.json /var/lib/kat/etcd
equal "$identity_before" "$(identity_there)" "machines after the reset of the lost one"
across() { serves n3 "$own_n2" && serves n2 "$own_n1"; }
wait_for 60 across
wait_for 90 status_is_healthy
stands_fast
equal "$before" "$(programs_on_n2)" "the program on n2 after the reset of the lost machine"
