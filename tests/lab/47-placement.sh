# Where instances run: beside others and apart from them, on tainted machines, spread over zones; volumes for each replica
# machines: 3
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
on_node() { echo "nodeSelector: {kat.dws.rip/nodeName: $1}"; }
machine_of() { field "$1" .status.node; }
# waits_because NAME TEXT: whether `why` says this of a workload that has no place.
waits_because() { contains "$(kat why workload "$1")" "$2"; }

# Apart from a workload, and beside it.
run anchor --spec "$(on_node n2)"
run beside --replicas 2 --spec 'affinity: [anchor]'
equal '["n2"]' "$(machines_running beside)" "machines of what runs beside n2's"
run apart --replicas 4 --spec 'antiAffinity: [anchor]'
equal '["n1","n3"]' "$(machines_running apart)" "machines of what runs apart from n2's"
# What contradicts itself waits, as does what wants to be beside nothing.
kat apply -f "$(workload torn --spec 'affinity: [anchor]' --spec 'antiAffinity: [beside]')" >/dev/null
wait_for 20 waits_because torn "0 of 3 machines fit: 1 with a workload of antiAffinity, 2 without a workload of affinity"
equal 0 "$(kat get workload torn -o json | jq '.status.ready // 0')" "ready instances"
kat apply -f "$(workload torn --spec 'affinity: [no-such]')" >/dev/null
wait_for 20 waits_because torn "0 of 3 machines fit: 3 without a workload of affinity"
for name in torn apart beside anchor; do kat delete workload "$name" --yes --wait; done

# A taint keeps out what does not tolerate it, by key, or by key and value.
kat taint node n3 kind=gpu:NoSchedule
kat apply -f "$(workload picky --spec "$(on_node n3)")" >/dev/null
wait_for 20 waits_because picky "1 with a taint that is not tolerated"
kat apply -f "$(workload picky --spec "$(on_node n3)" --spec 'tolerations: [{key: kind, operator: Equal, value: cpu}]')" >/dev/null
wait_for 20 waits_because picky "1 with a taint that is not tolerated"
run picky --spec "$(on_node n3)" --spec 'tolerations: [{key: kind, operator: Equal, value: gpu}]'
equal n3 "$(machine_of picky)" "machine of what tolerates the value"
run picky --spec "$(on_node n3)" --spec 'tolerations: [{key: kind}]'
equal n3 "$(machine_of picky)" "machine of what tolerates the key"
run common --replicas 4
equal '["n1","n2"]' "$(machines_running common)" "machines of what tolerates nothing"
# A taint ends nothing that runs.
kat taint node n1 kind=gpu:NoSchedule
has_ready common 4
kat taint node n1 kind-
kat taint node n3 kind-
# A machine that is only to be avoided is taken where there is no other.
kat taint node n3 kind=old:PreferNoSchedule
run common --replicas 2
kat delete workload common --yes --wait
run common --replicas 2
equal '["n1","n2"]' "$(machines_running common)" "machines beside one to be avoided"
# Another selector moves nothing that runs; a restart places it anew.
run common --replicas 1 --spec "$(on_node n3)"
differs '["n3"]' "$(machines_running common)" "machine before the restart"
kat restart workload common --wait
equal '["n3"]' "$(machines_running common)" "machine to be avoided"
kat taint node n3 kind-
for name in picky common; do kat delete workload "$name" --yes --wait; done

# Spread over zones: evenly, and with `required` on no machine without the label, however many ask.
kat label node n1 zone=a
kat label node n2 zone=b
run even --replicas 4 --spec 'spread: {topologyKey: zone, required: true}'
instances_on() { instances "$1" | jq -c '[.[].status | select(.phase == "Running") | .node] | group_by(.) | map({(.[0]): length}) | add'; }
equal '{"n1":2,"n2":2}' "$(instances_on even)" "instances on each machine"
kat delete workload even --yes --wait
for node in n1 n2; do kat label node "$node" zone-; done
kat apply -f "$(workload even --spec 'spread: {topologyKey: zone, required: true}')" >/dev/null
wait_for 20 waits_because even "3 without the label of spread"
kat label node n3 zone=c
wait_for 30 field_is even .status.phase Running
equal n3 "$(machine_of even)" "the only machine with the label"
kat label node n3 zone-
kat delete workload even --yes --wait

# Each replica has a folder of its own, also after a new version; `reclaim: Delete` removes it with the workload, and only then.
each() {
    # shellcheck disable=SC2016
    run each --replicas 2 --spec "$(on_node n1)" --spec 'volumes: [{name: own, simpleClusterStorage: {}, perReplica: true, reclaim: Delete}, {name: kept, simpleClusterStorage: {}, perReplica: true}]' \
        --container 'volumeMounts: [{name: own, mountPath: /own}, {name: kept, mountPath: /kept}]' \
        --container 'entrypoint: [/bin/busybox, sh, -c]' --container 'command: ["echo $V >>/own/starts && echo $V >>/kept/starts && exec /bin/web"]' "$@"
}
each --env V=1
each --env V=2
volumes=/var/lib/kat/volumes/default/each
equal "1 2 1 2" "$(n1 cat $volumes/own.0/starts $volumes/own.1/starts | xargs)" "starts of each replica"
kat scale workload each --replicas 1 --wait
n1 test -s $volumes/own.1/starts
kat scale workload each --replicas 2 --wait
equal "1 2 2" "$(n1 cat $volumes/own.1/starts | xargs)" "starts of the replica that came back"
kat delete workload each --yes --wait
is_removed() { absent n1 $volumes/own.0 $volumes/own.1; }
wait_for 30 is_removed
equal "1 2 1 2 2" "$(n1 cat $volumes/kept.0/starts $volumes/kept.1/starts | xargs)" "starts in the volumes that are kept"
for which in 0 1; do kat delete volume "default/each/kept.$which" --yes; done
are_deleted() { absent n1 $volumes/kept.0 $volumes/kept.1; }
wait_for 30 are_deleted
