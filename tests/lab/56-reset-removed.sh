# A machine that the others removed and that is restored from an older backup is not found by them, until each is deleted there, reset and joined
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 20
# leaves no cluster
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 90 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
n1 kat-agent backup /root/backup
n1 sh -c 'kat-agent recovery-key >/root/key'
restore() { n1 kat-agent restore /root/backup --recovery-key-file /root/key 2>&1; }

# n2 and n3 remove n1, and one of them goes on with the store alone.
output=$(n1 kat-agent reset --yes --no-drain 2>&1)
lacks "$output" "does not know that this machine left"
forgot_n1() { on "$1" jq -e '.endpoints.machines | keys == ["n2", "n3"]' /var/lib/kat/cluster.json; }
for node in n2 n3; do wait_for 60 forgot_n1 "$node"; done
holders() {
    on n2 katcall get nodes -o json |
        jq -r '.items[] | select(any(.status.conditions[]; .type == "EtcdMember" and .status)) | .metadata.name'
}
one_holds() { holder=$(holders) && [[ $holder == n[23] ]]; }
wait_for 90 one_holds
worker=n3
[[ $holder != n3 ]] || worker=n2
output=$(refused restore)
contains "$output" "other machines lead this cluster"

# Now the store is lost, and the backup is all that is left of it.
lab kill "$holder"
nobody_leads() { refused on "$worker" timeout 10 katcall create namespace later; }
wait_for 60 nobody_leads
is_restored() { contains "$(restore)" "machine n1 is Ready"; }
wait_for 60 is_restored

# The limit: the worker has no address to look for n1 at, and reports to nobody.
phase_is() { equal "$2" "$(kat get nodes "$1" -o json | jq -r .status.phase)" "phase of $1"; }
for node in n2 n3; do wait_for 60 phase_is "$node" NotReady; done
forgot_n1 "$worker"
refused on "$worker" katcall status

# The way back. The holder has a store of its own, in which it leads again: it is reset as well.
lab start "$holder"
for node in n2 n3; do on "$node" kat-agent reset --yes --no-drain; done
for node in n2 n3; do
    kat delete node "$node"
    line=$(kat token create --join --name "$node")
    on "$node" bash -c "${line#sudo }"
done
wait_for 90 nodes_are_ready
wait_for 60 has_ready web 3
wait_for 60 process_count_is 3
wait_for 120 members_are_healthy 3
wait_for 30 invariants_hold
