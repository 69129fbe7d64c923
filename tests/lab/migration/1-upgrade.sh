# A cluster of version 0.1.0 is upgraded machine by machine under load, and once back: no request is lost, and at the end no certificate of before opens etcd
# machines: 4
# leaves no cluster
# shellcheck shell=bash
# shellcheck source=tests/lab/migration/lib.sh
. tests/lab/migration/lib.sh
wait_for 60 nodes_are_ready
wait_for 120 members_are_well
equal '["worker"]' "$(kat get nodes n4 -o json | jq -c .status.roles)" "roles of n4"
copy_packages n1 n2 n3 n4

# A workload with a secret on each machine, and one with a volume.
lab exec n1 -- katcall secret set db --from-file PASSWORD=- <<<first
workload web --port 80 --replicas 4 --env VERSION=1 >/dev/null
sed -i 's/^    env:$/    env:\n      - {name: PASSWORD, valueFrom: {secret: {name: db, key: PASSWORD}}}/' "$LAB_WORK/workloads/web/workload.kat"
n1 rm -rf /root/workloads/web
lab copy "$LAB_WORK/workloads/web" n1:/root/workloads/
kat apply -f /root/workloads/web --wait
equal '["n1","n2","n3","n4"]' "$(machines_running web)" "machines of four replicas"
run data --port 80 --spec 'volumes: [{name: data, simpleClusterStorage: {}}]' --container 'volumeMounts: [{name: data, mountPath: /data}]' \
    --container 'entrypoint: [/bin/busybox, sh, -c]' --container 'command: ["echo started >>/data/starts && exec /bin/web"]'
holder=$(field data .status.node)
starts() { on "$holder" cat /var/lib/kat/volumes/default/data/data/starts; }
equal started "$(starts)" "starts"
programs() { on "$1" sh -c 'ps -C web -o pid=,lstart= | sort'; }
declare -A before
for node in n1 n2 n3 n4; do before[$node]=$(programs "$node"); done
secret_is() {
    local address
    for address in $(instances web | jq -r '.[].status.ip'); do
        equal "$1" "$(page "http://$address/env?PASSWORD")" "the secret at $address" || return 1
    done
}
secret_is first

# Certificates of etcd's clients, as somebody has them who once read the disk of a worker and of a member.
keep_certificate n4 node-etcd
keep_certificate n3 leader-etcd
for node in n3 n4; do kept_opens "$node"; done
contains "$(etcdctl_on n2 user list)" node:n4
authority_before=$(fingerprint_on n2 etcd-client-ca)

for node in n2 n3 n4; do start_load "$(field_on web "$node" .status.ip)" 80 50 "$node"; done
start_load "$(service_address web)" 80 50 service
began=$SECONDS
# can_place_and_stop: the present leader starts and stops instances on every machine.
can_place_and_stop() {
    run other --replicas 4
    equal '["n1","n2","n3","n4"]' "$(machines_running other)" "machines of another workload"
    kat delete workload other --wait
}
# A worker before every member: its leader is of version 0.1.0.
put_package n4 new
can_place_and_stop
# The upgrade fails there, and is taken back.
put_package n4 old
can_place_and_stop
put_package n1 new
put_package n2 new
wait_for 60 members_are_well
leads_anew() { [[ $(leader_at n1) == n[12] ]]; }
# The commands on n1 ask the leader: let it be one of this version.
[[ $(leader_at n1) != n3 ]] || on n3 systemctl restart kat-agent.service
wait_for 60 leads_anew
wait_for 30 waits_for n3
can_place_and_stop
# A member goes back too, and comes again.
put_package n2 old
wait_for 60 members_are_well
can_place_and_stop
put_package n2 new
# The worker, which reads the stream now, and back: the migration must not go on without it.
put_package n4 new
put_package n4 old
can_place_and_stop
put_package n3 new
wait_for 60 members_are_well
wait_for 60 waits_for n4
refused kat ca rotate etcd-client-ca
can_place_and_stop
for node in n3 n4; do kept_opens "$node"; done
equal "$authority_before" "$(fingerprint_on n2 etcd-client-ca)" "authority before the last machine"

put_package n4 new
migrated() { is_migrated "$authority_before"; }
wait_for 180 migrated
echo "migrated after $((SECONDS - began)) s"
wait_for 60 members_are_well
for node in n3 n4; do kept_is_refused "$node"; done
present_opens
wait_for 60 users_are leader:n1 leader:n2 leader:n3
wait_for 90 kat status
can_place_and_stop
least=$(((SECONDS - began) * 40))
for node in n2 n3 n4 service; do no_request_lost "$least" "$node"; done
for node in n1 n2 n3 n4; do equal "${before[$node]}" "$(programs "$node")" "programs on $node"; done
equal started "$(starts)" "starts"
secret_is first
lab exec n1 -- katcall secret set db --from-file PASSWORD=- <<<second
wait_for 90 secret_is second
# A machine that starts anew, and one that leaves.
lab reboot n4
wait_for 90 nodes_are_ready
wait_for 60 kat status
kat delete workload data --volumes --yes --wait
wait_for 60 invariants_hold
