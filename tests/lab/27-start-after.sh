# A service starts after its migration, and that after a healthy database; what runs waits for nothing: a restart, a failed migration, a reboot
# shellcheck shell=bash
wait_for 30 node_is_ready

# What the workloads begin is written down in the order of time: each says when its program began.
health='http: {path: /healthz, port: web}, periodSeconds: 1'
migrate() {
    local folder
    folder=$(workload migrate --restart 'condition: Never' --container 'entrypoint: [/bin/busybox, sh, -c]' \
        --container "command: [\"$1\"]" --spec 'startAfter: [{workload: db}]')
    sed -i 's/type: Service/type: Job/; /^  replicas:/d' "$LAB_WORK/workloads/migrate/workload.kat"
    printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: {backoffLimit: 0}\n' >"$LAB_WORK/workloads/migrate/job.kat"
    n1 rm -rf "$folder"
    lab copy "$LAB_WORK/workloads/migrate" n1:/root/workloads/
    echo "$folder"
}
app() { workload app --port 80 --env "VERSION=$1" --spec 'startAfter: [{workload: migrate, condition: Completed}, {workload: db}]'; }
reason_is() { equal "$2" "$(kat get workload "$1" -o json | jq -r '.status.conditions[0].reason')" "reason of $1"; }
has_no_instance() { equal '[]' "$(instances "$1")" "instances of $1"; }

# Without the database neither begins, and both say so.
# The migration gives up after five seconds, so that it would fail if it began now.
migrate_folder=$(migrate 'for try in 1 2 3 4 5; do wget -q -O /dev/null http://db/ && exit 0; sleep 1; done; exit 1')
app_folder=$(app 1)
output=$(kat apply -f "$app_folder" -f "$migrate_folder" 2>&1)
contains "$output" "there is no workload \`db\` in namespace \`default\` yet"
# The migration is applied before the service that starts after it.
equal "workload/migrate workload/app" "$(grep -o '^workload/[a-z]*' <<<"$output" | paste -sd ' ')" "order of the apply"
wait_for 10 reason_is app WaitsForDependency
wait_for 10 reason_is migrate WaitsForDependency
contains "$(kat why workload app)" "it starts when \`migrate\` has completed"
has_no_instance app
has_no_instance migrate

# With it they start one after the other: the migration succeeds only when the database answers.
kat apply -f "$(workload db --port 80 --health "$health")" --wait
kat apply -f "$migrate_folder" --wait
kat apply -f "$app_folder" --wait
run=$(kat get runs -o json | jq -c '[.items[] | select(.spec.workload == "migrate")]')
equal 1 "$(jq length <<<"$run")" "runs of migrate"
equal 0 "$(jq '.[0].status.failed' <<<"$run")" "failed instances of migrate"

# A new database and a crash of it restart nothing else.
which_app() { field app '|"\(.metadata.name) \(.status.restarts) \(.status.since)"'; }
before=$(which_app)
kat restart db --wait
crash db
wait_for 30 field_is db .status.restarts 1
wait_for 30 field_is db .status.health healthy
equal "$before" "$(which_app)" "app after the restarts of db"

# The next version waits for its migration while the old one serves.
output=$(kat apply -f "$(app 2)" -f "$(migrate 'exit 3')")
contains "$output" "workload/app updated"
wait_for 60 reason_is app DependencyFailed
contains "$(kat why workload app)" "its run 2 did not succeed"
refused kat status
equal "$before" "$(which_app)" "app after a migration that failed"
wait_for 10 answers "http://app.default.$DOMAIN/"
kat apply -f "$(migrate 'exit 0')" --wait
updated() { differs "${before%% *}" "$(field app .metadata.name)" "app" && field_is app .status.phase Running; }
wait_for 60 updated

# A circle is refused with its path.
output=$(kat apply -f "$(workload db --port 80 --health "$health" --spec 'startAfter: [{workload: app}]')" 2>&1) && exit 1
contains "$output" "db -> app -> db"

# After a reboot everything starts without waiting.
before=$(field app .metadata.name)
lab reboot n1
wait_for 60 node_is_ready
wait_for 60 field_is app .status.phase Running
wait_for 60 field_is db .status.health healthy
equal "$before" "$(field app .metadata.name)" "app after a reboot"

# A stopped service waits again, and starts without the other one after its timeout if it may.
kat stop app --wait
kat stop db --wait
kat start app
wait_for 10 reason_is app WaitsForDependency
contains "$(kat why workload app)" "it has 0 replicas"
kat start db --wait
wait_for 60 field_is app .status.phase Running
kat delete workload db --yes --wait
kat apply -f "$(workload alone --spec 'startAfter: [{workload: db, timeoutSeconds: 3, onTimeout: start}]')" --wait
contains "$(kat events alone)" DependencyTimedOut
for name in app migrate alone; do kat delete workload "$name" --yes --wait; done
