# Debian's PostgreSQL keeps every committed row: over a restart, a new version, a changed password, a move, a drain refused and forced, a partition during writes, and the loss of its machine
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# packages: postgresql
# by name
# shellcheck shell=bash
# shellcheck source=tests/lab/postgres.sh
. tests/lab/postgres.sh
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
postgres_image
postgres_example postgres
folder=$LAB_WORK/workloads/postgres
apply() {
    sed -i "/{name: VERSION, /d; s|^    env:\$|&\n      - {name: VERSION, value: \"$1\"}|" "$folder/workload.kat"
    copy_to_n1 postgres
    kat apply -f /root/workloads/postgres --wait --timeout 3m
}
password=pass$RANDOM$RANDOM
printf %s "$password" | lab exec n1 -- katcall secret set postgres --from-file PASSWORD=-
apply 1
sql() { kat exec postgres -- env PGPASSWORD="$password" psql -h 127.0.0.1 -U postgres -qAt -c "$1"; }
sql "create table rows (id int primary key, text text); insert into rows select n, md5(n::text) from generate_series(1, 1000) n"
sum() { sql "select count(*) || ' ' || md5(string_agg(id || text, ',' order by id)) from rows where id <= 1000"; }
rows_at_first=$(sum)
contains "$rows_at_first" '1000 '
rows_are_unchanged() { equal "$rows_at_first" "$(sum)" "rows after $1"; }
database_answers() { has_ready postgres 1 && sum >/dev/null; }

kat restart workload postgres --wait
rows_are_unchanged "a restart"
apply 2
rows_are_unchanged "another version"

# The program gets another password at once; the database changes it when its administrator does.
new_password=word$RANDOM$RANDOM
sql "alter role postgres password '$new_password'"
password=$new_password
printf %s "$new_password" | lab exec n1 -- katcall secret set postgres --from-file PASSWORD=- --wait
rows_are_unchanged "another password"

# The data moves to another machine.
node=$(field postgres .status.node)
others=(n1 n2 n3)
others=("${others[@]/$node/}")
target=$(printf '%s\n' "${others[@]}" | sed '/^$/d' | head -n 1)
kat volume move postgres/data --to "$target" --timeout 3m
wait_for 60 database_answers
equal "$target" "$(field postgres .status.node)" "machine after the move"
rows_are_unchanged "a move"

# A drain cannot move the instance, and says why. After uncordon the instance is unchanged.
code=0
output=$(kat drain "$target" --timeout 5s 2>&1) || code=$?
equal 5 "$code" "exit code of an unfinished drain"
contains "$output" "the data of its volumes lies on $target"
kat uncordon "$target"
rows_are_unchanged "a drain"
# A forced drain stops the instance, and none starts elsewhere without the data.
output=$(kat drain "$target" --force --timeout 60s 2>&1)
contains "$output" "node/$target drained"
contains "$output" "default/postgres lacks an instance: "
for node in n1 n2 n3; do finds_nothing on "$node" pgrep -x postgres; done
contains "$(kat why workload postgres)" "the data of its volumes lies on $target"
contains "$(kat describe node "$target")" "yes, by force"
kat uncordon "$target"
wait_for 60 database_answers
equal "$target" "$(field postgres .status.node)" "machine after the forced drain"
rows_are_unchanged "a forced drain"

# The machine is cut off during writes: the instance continues to write, as no other instance runs.
# It prints the rows that it has committed.
witness=$(printf '%s\n' n1 n2 n3 | grep -vx "$target" | head -n 1)
katcall_on_witness() { on "$witness" katcall "$@"; }
user=$(field postgres .status.user) unit=$(field postgres '.status.unit | rtrimstr(".service")')
# shellcheck disable=SC2016
as_on "$target" "$user" podman exec --env PGPASSWORD="$password" "$unit" sh -c 'for n in $(seq 2001 2100); do psql -h 127.0.0.1 -U postgres -qAt -c "insert into rows values ($n, md5($n::text)) returning id" || exit 1; sleep 0.1; done' \
    >"$LAB_WORK/committed" &
writer=$!
has_committed_rows() { [[ $(wc -l <"$LAB_WORK/committed") -ge 10 ]]; }
wait_for 30 has_committed_rows
lab cut "$target"
is_lost() { katcall_on_witness get nodes "$target" -o json | jq -e '.status.phase == "NotReady"' >/dev/null; }
wait_for 40 is_lost
equal 1 "$(katcall_on_witness get instances -o json | jq '[.items[] | select(.status.workload == "postgres")] | length')" "instances while it is cut off"
wait "$writer"
lab heal "$target"
wait_for 60 nodes_are_ready
wait_for 60 database_answers
rows_are_unchanged "a cut"
equal "100 100" "$(wc -l <"$LAB_WORK/committed") $(sql 'select count(*) from rows where id between 2001 and 2100')" "numbers of committed rows and of rows in the table"

# The machine loses power and returns.
lab kill "$target"
wait_for 40 is_lost
for node in n1 n2 n3; do [[ $node == "$target" ]] || finds_nothing on "$node" pgrep -x postgres; done
lab start "$target"
wait_for 60 nodes_are_ready
wait_for 90 database_answers
rows_are_unchanged "the loss and return of its machine"
equal 100 "$(sql 'select count(*) from rows where id between 2001 and 2100')" "rows that were written during the cut"
