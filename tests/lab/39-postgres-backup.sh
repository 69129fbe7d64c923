# The example postgres-backup dumps the example postgres by its schedule onto another machine, drops old dumps only after a new one, and restores what was lost
# machines: 2
# packages: postgresql
# by name
# limit: 600
# shellcheck shell=bash
# shellcheck source=tests/lab/postgres.sh
. tests/lab/postgres.sh
wait_for 60 nodes_are_ready
postgres_image
for name in postgres postgres-backup; do
    postgres_example "$name"
    copy_to_n1 "$name"
done
password=pass$RANDOM$RANDOM
printf %s "$password" | lab exec n1 -- katcall secret set postgres --from-file PASSWORD=-
kat apply -f /root/workloads/postgres --wait --timeout 3m
sql() { kat exec postgres -- env PGPASSWORD="$password" psql -h 127.0.0.1 -U postgres -qAt -c "$1"; }
sql "create table rows (id int primary key, text text); insert into rows select n, md5(n::text) from generate_series(1, 1000) n"
sum() { sql "select count(*) || ' ' || md5(string_agg(id || text, ',' order by id)) from rows"; }
rows_at_first=$(sum)
contains "$rows_at_first" '1000 '

# As it is written nothing runs at once. With another schedule the next minute has a run.
runs() { kat get runs -o json | jq -c '[.items[] | select(.spec.workload == "postgres-backup")]'; }
kat apply -f /root/workloads/postgres-backup
contains "$(kat get jobs)" postgres-backup
equal '[]' "$(runs)" "runs after the apply"
job=$LAB_WORK/workloads/postgres-backup/job.kat
schedule_is() {
    sed -i "s|^  schedule: .*|  schedule: \"$1\"|; s|^  backoffLimit: .*|  backoffLimit: 0|" "$job"
    copy_to_n1 postgres-backup
    kat apply -f /root/workloads/postgres-backup
}
schedule_is '* * * * *'
by_schedule() { runs | jq -ec 'map(select(.spec.scheduled != "" and .status.phase == "Succeeded")) | .[0]'; }
wait_for 150 by_schedule
run=$(by_schedule)
schedule_is '30 2 * * *'
all_are_over() { equal 0 "$(runs | jq '[.[] | select(.status.phase == "Active")] | length')" "active runs"; }
wait_for 60 all_are_over

# The dump is on the machine without the database, and no other user of the machine can read it.
node=$(jq -r '.status.attempts[-1].node' <<<"$run")
differs "$(field postgres .status.node)" "$node" "machine of the dumps"
dumps=/var/lib/kat/volumes/default/postgres-backup/dumps
names() { on "$node" find "$dumps" -name "*$1" -printf '%f\n' | sort; }
first=$(names .dump | head -n 1)
contains "$first" Z.dump
equal 600 "$(on "$node" stat --format %a "$dumps/$first")" "mode of a dump"

# A run by hand with its output. It removes what an interrupted run left, and a dump that is too old.
on "$node" sh -ec 'cd "$1"; cp -p "$2" 2020-01-01T000000Z.dump; touch -d "20 days ago" 2020-01-01T000000Z.dump; cp -p "$2" x.dump.part' \
    sh "$dumps" "$first"
sql "insert into rows values (1001, 'later')"
output=$(kat job run postgres-backup --wait --timeout 2m)
contains "$output" "wrote 20"
equal '' "$(names .part)" "files of interrupted runs"
lacks "$(names .dump)" 2020-01-01
contains "$(names .dump)" "$first"
contains "$(kat job run postgres-backup --wait --timeout 2m -- list)" "$first"

# Without the database a run fails with the exit code of its program, and the dumps stay.
kat stop postgres --wait
before=$(names .dump)
on "$node" touch -d '20 days ago' "$dumps/$first"
code=0
output=$(kat job run postgres-backup --wait --timeout 3m 2>&1) || code=$?
equal 1 "$code" "exit code of a run without the database, which printed $output"
equal "$before" "$(names .dump)" "dumps after a run that failed"
kat start postgres --wait

# What is lost comes back from the first dump, and only that.
sql "drop table rows"
output=$(kat job run postgres-backup --wait --timeout 2m -- restore "$first")
contains "$output" "restored $first"
equal "$rows_at_first" "$(sum)" "rows after the restore"
kat delete workload postgres-backup --yes --wait
