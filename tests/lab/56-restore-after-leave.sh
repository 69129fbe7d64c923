# A machine that left the cluster and is restored from its older backup is found by the machines that remained, though the cluster did not know it any more
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 20
# leaves no cluster
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 90 members_are_healthy 3
n1 kat-agent backup /root/backup
n1 sh -c 'kat-agent recovery-key >/root/key'
run newer --port 80 --replicas 3
process_count_is 3

# Of the two that remain, one holds the store, and it is lost.
n1 kat-agent reset --yes --no-drain
holders() {
    on n2 katcall get nodes -o json |
        jq -r '.items[] | select(any(.status.conditions[]; .type == "EtcdMember" and .status)) | .metadata.name'
}
one_holds() { holder=$(holders) && [[ $holder == n[23] ]]; }
wait_for 90 one_holds
case $holder in n2) worker=n3 ;; *) worker=n2 ;; esac
forgot_n1() { on "$1" jq -e '.endpoints.machines | keys == ["n2", "n3"]' /var/lib/kat/cluster.json; }
for node in n2 n3; do wait_for 30 forgot_n1 "$node"; done
output=$(n1 kat-agent restore /root/backup --recovery-key-file /root/key 2>&1) && exit 1
contains "$output" "other machines lead this cluster"
lab kill "$holder"
nobody_leads() { refused on "$worker" timeout 10 katcall create namespace later; }
wait_for 60 nobody_leads
restores() { contains "$(n1 kat-agent restore /root/backup --recovery-key-file /root/key 2>&1)" "machine n1 is Ready"; }
wait_for 60 restores
restored=$EPOCHREALTIME

phase_is() { equal "$2" "$(kat get nodes "$1" -o json | jq -r .status.phase)" "phase of $1"; }
runs_nothing() { no_process "$1" '^/bin/web'; }
wait_for 90 runs_nothing "$worker"
wait_for 60 phase_is "$worker" Ready
echo "$worker followed $(seconds_since "$restored") s after the restore"
# The holder has a store in which it is the only member, and gives it up.
lab start "$holder"
wait_for 90 nodes_are_ready
wait_for 60 process_count_is 0
wait_for 90 members_are_healthy 3
wait_for 30 invariants_hold
