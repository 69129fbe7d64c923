# A DaemonService has one instance on each machine that matches, is updated machine by machine, and leaves a drained machine last
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# shellcheck shell=bash
wait_for 30 nodes_are_ready
# daemon VERSION: writes the files of a DaemonService and prints their folder.
daemon() {
    local folder
    folder=$(workload agent --port 81 --env "VERSION=$1" --spec 'nodeSelector: {agent: "yes"}' \
        --health 'http: {path: /healthz, port: web}, periodSeconds: 1')
    n1 sed -i -e 's/type: Service/type: DaemonService/' -e '/^  replicas:/d' "$folder/workload.kat"
    echo "$folder"
}
machines_are() { equal "$1" "$(machines_running agent)" "machines with an instance"; }
for node in n1 n2; do kat label node "$node" agent=yes >/dev/null; done
kat apply -f "$(daemon 1)" --wait
machines_are '["n1","n2"]'
equal '2/2' "$(kat get workload agent -o json | jq -r '.status | "\(.ready)/\(.replicas)"')" "ready instances"
# A machine that matches from now on gets an instance at once, and one that does not match any more loses it.
kat label node n3 agent=yes >/dev/null
wait_for 20 machines_are '["n1","n2","n3"]'
kat label node n3 agent- >/dev/null
wait_for 20 machines_are '["n1","n2"]'
kat taint node n3 other=yes:NoSchedule >/dev/null
kat label node n3 agent=yes >/dev/null
kat taint node n2 other=yes:NoSchedule >/dev/null
contains "$(kat plan -f "$(daemon 1)" || true)" "nothing would change"
machines_are '["n1","n2"]'
kat taint node n2 other- >/dev/null
kat taint node n3 other- >/dev/null
wait_for 20 has_ready agent 3

# An update takes one machine after the other: the instance of before ends only while those of the other machines
# are healthy.
contains "$(kat plan -f "$(daemon 2)" || true)" "one machine at a time"
least=3
kat apply -f "$(daemon 2)" >/dev/null
is_updated() {
    local ready
    ready=$(instances agent | jq '[.[] | select(.status.phase == "Running" and .status.health == "healthy")] | length')
    ((ready >= least)) || least=$ready
    [[ $(kat get workload agent -o json | jq -c '.status | [.phase, .updated]') == '["Running",3]' ]]
}
wait_for 40 is_updated
((least >= 2)) || {
    echo "only $least instances were healthy at once during the update" >&2
    exit 1
}
for node in n1 n2 n3; do
    equal 2 "$(page "http://$(field_on agent "$node" .status.ip):81/env?VERSION")" "version on $node"
done
contains "$(kat scale agent --replicas 2 2>&1 || true)" "is a DaemonService"
contains "$(kat why workload agent)" "3 of 3"

# A drain moves the Service first, says that it leaves the DaemonService for last, and ends.
run web --port 80 --replicas 3 --drain 2
output=$(kat drain n2 --timeout 40s 2>&1)
contains "$output" "node/n2 drained"
contains "$output" "leaves last"
machines_are '["n1","n3"]'
equal '["n1","n3"]' "$(machines_running web)" "machines of the Service"
kat uncordon n2 >/dev/null
wait_for 20 has_ready agent 3
machines_are '["n1","n2","n3"]'
