# The lines of a version that failed are read after its rollback, those of instances of an earlier workload of the same name are not, and a program that ignores SIGTERM is named
# shellcheck shell=bash
failing=(--container 'entrypoint: ["/bin/sh", "-c"]' --container 'command: ["echo no such table; exit 3"]')
kat apply -f "$(workload web --port 80)" --wait
kat apply -f "$(workload web --port 80 "${failing[@]}" --spec 'updateStrategy: {progressDeadlineSeconds: 4, autoRollback: true}')"
went_back() { contains "$(kat history web)" "went back to 1" && field_is web .status.phase Running; }
wait_for 60 went_back
only_one() { equal 1 "$(instances web | jq length)" "instances after the rollback"; }
wait_for 60 only_one
lacks "$(kat logs web)" "no such table"
failed_is_read() { contains "$(kat logs web --gone)" "| no such table"; }
wait_for 20 failed_is_read
failed=$(kat logs web --gone | sed -n 's/ | no such table$//p' | head -n 1)
equal "no such table" "$(kat logs "$failed" | head -n 1)" "log of an instance that is gone, by its name"
kat apply -f "$(workload web --port 80)" --wait

# The attack: a workload that is created again under this name, with an uid of its own, asks for the lines of
# the earlier one. The control is above: the same call shows them for the workload that they are of.
uid=$(kat get workload web -o json | jq -r .metadata.uid)
kat delete workload web --yes --wait
kat apply -f "$(workload web --port 80)" --wait
differs "$uid" "$(kat get workload web -o json | jq -r .metadata.uid)" "uid of a workload that was created again"
lacks "$(kat logs web --gone)" "no such table"
refused kat logs "$failed"
path=/v1alpha1/n/default/workloads/web/instances/$failed/logs
for query in "node=n1" "node=n1&goneOf=$uid"; do
    status=$(n1 curl --silent --unix-socket /run/kat/api.sock --output /dev/null --write-out '%{http_code}' "http://kat$path?$query")
    equal 404 "$status" "status of $query"
done
# What the machine remembers is root's alone.
equal "600 root" "$(n1 stat -c '%a %U' /var/lib/kat/instance-history.json)" "mode and owner of the history"

kat apply -f "$(workload deaf --container 'entrypoint: ["/bin/sh", "-c"]' \
    --container "command: [\"trap '' TERM; while :; do sleep 1; done\"]" --container 'terminationGraceSeconds: 3')" --wait
kat scale deaf --replicas 0
is_named() { contains "$(kat get events)" "killed after 3 s: it ignored SIGTERM"; }
wait_for 30 is_named
kat delete workload web --yes --wait
kat delete workload deaf --yes --wait
