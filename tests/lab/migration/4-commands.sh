# Commands of this version with a leader of version 0.1.0 say what they need, and an older leader runs nothing of a workload that a newer one stopped
# machines: 4
# leaves no cluster
# shellcheck shell=bash
# shellcheck source=tests/lab/migration/lib.sh
. tests/lab/migration/lib.sh
wait_for 60 nodes_are_ready
wait_for 120 members_are_well
copy_packages n1 n2 n3 n4
run web --port 80 --replicas 2
# The worker is first: its katcall is of this version, and the leader is not.
put_package n4 new
lab copy "$LAB_WORK/workloads/web" n4:/root/
n1 cat /etc/kat/admin.conf | lab exec n4 -- sh -euc 'umask 077; cat >/root/admin.conf'
newer() { on n4 katcall --connection /root/admin.conf "$@"; }
newer get workloads >/dev/null
# needs COMMAND...: whether the command fails with a sentence about versions, and not as for a missing object.
needs() {
    local output code=0
    output=$(newer "$@" 2>&1) || code=$?
    equal 1 "$code" "exit code of $*: $output" || return 1
    contains "$output" "version" || return 1
    lacks "$output" "there is no workload"
}
needs stop web
needs start web
needs export web
needs config set nodeLossTimeoutSeconds=90
contains "$(newer logs web --gone 2>&1 || true)" "does not know of instances that are gone"
on n4 sed -i '/^  type: Service$/d' /root/web/workload.kat
needs apply -f /root/web
equal 2 "$(instances web | jq length)" "instances afterwards"

# A leader of this version stops it. Then one of version 0.1.0 leads.
for node in n1 n2 n3; do put_package "$node" new; done
wait_for 60 members_are_well
kat stop web --wait
equal "Stopped 0" "$(kat get workload web -o json | jq -r '.status | "\(.phase) \(.replicas)"')" "state of the stopped workload"
put_package n1 old
wait_for 60 members_are_well
old_leads() {
    [[ $(leader_at n2) != n1 ]] || return 0
    on "$(leader_at n2)" systemctl restart kat-agent.service
    return 1
}
wait_for 120 old_leads
equal "[]" "$(instances web)" "instances while version 0.1.0 leads"
no_process n2 '^/bin/web'
put_package n1 new
wait_for 60 members_are_well
kat start web --wait
equal 2 "$(instances web | jq length)" "instances after the start"
