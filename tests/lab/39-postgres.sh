# Debian's PostgreSQL keeps every committed row: over a restart, a new version, a changed password, a move, a drain refused and forced, a partition during writes, and the loss of its machine
# machines: 3
# settings: agentTickSeconds: 3, nodeLossTimeoutSeconds: 10
# packages: postgresql
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
tree=$LAB_WORK/postgres
cp -a "$(lab tree postgresql)" "$tree"
version=$(basename "$(echo "$tree"/usr/lib/postgresql/*)")
# As the image of the example does it: an empty folder becomes a database, with the password of a file. Its user has the same number.
rm -rf "$tree"/usr/lib/*/libLLVM*
sed -i 's/^postgres:x:[0-9]*:[0-9]*:/postgres:x:999:999:/' "$tree/etc/passwd"
cat >"$tree/start" <<SH
#!/bin/sh
set -eu
if ! [ -s "\$PGDATA/PG_VERSION" ]; then
    initdb --pgdata="\$PGDATA" --username=postgres --pwfile="\$POSTGRES_PASSWORD_FILE" --auth-host=scram-sha-256 --auth-local=trust >&2
    echo 'host all all all scram-sha-256' >>"\$PGDATA/pg_hba.conf"
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp
SH
chmod 755 "$tree/start"
lab image test/postgres:1 "$tree" --entrypoint '["/start"]' --env "PATH=/usr/lib/postgresql/$version/bin:/usr/bin:/bin" --env LC_ALL=C
here=$LAB_WORK/workloads/postgres
mkdir -p "${here%/*}"
cp -r contrib/examples/postgres "$here"
sed -i 's|docker.io/library/postgres:.*|registry.lab:5000/test/postgres:1|' "$here/workload.kat"
apply() {
    sed -i "/{name: VERSION, /d; s|^    env:\$|&\n      - {name: VERSION, value: \"$1\"}|" "$here/workload.kat"
    n1 rm -rf /root/workloads/postgres
    lab copy "$here" n1:/root/workloads/
    kat apply -f /root/workloads/postgres --wait --timeout 3m
}
password=pass$RANDOM$RANDOM
printf %s "$password" | lab exec n1 -- katcall secret set postgres --from-file PASSWORD=-
apply 1
sql() { kat exec postgres -- env PGPASSWORD="$password" psql -h 127.0.0.1 -U postgres -qAt -c "$1"; }
sql "create table rows (id int primary key, text text); insert into rows select n, md5(n::text) from generate_series(1, 1000) n"
sum() { sql "select count(*) || ' ' || md5(string_agg(id || text, ',' order by id)) from rows where id <= 1000"; }
first=$(sum)
contains "$first" '1000 '
same() { equal "$first" "$(sum)" "rows after $1"; }
settled() { has_ready postgres 1 && sum >/dev/null; }

kat restart workload postgres --wait
same "a restart"
apply 2
same "another version"

# Another password: the program has it at once, the database when its administrator says so.
other=word$RANDOM$RANDOM
sql "alter role postgres password '$other'"
password=$other
printf %s "$other" | lab exec n1 -- katcall secret set postgres --from-file PASSWORD=- --wait
same "another password"

# Another machine connects by the service's name, over the overlay.
node=$(field postgres .status.node)
others=(n1 n2 n3)
others=("${others[@]/$node/}")
to=$(printf '%s\n' "${others[@]}" | sed '/^$/d' | head -n 1)
kat volume move postgres/data --to "$to" --timeout 3m
wait_for 60 settled
equal "$to" "$(field postgres .status.node)" "machine after the move"
same "a move"

# A drain cannot move the instance, and says why; after `uncordon` the machine is as before.
code=0
output=$(kat drain "$to" --timeout 5s 2>&1) || code=$?
equal 5 "$code" "exit code of a drain that is not done"
contains "$output" "the data of its volumes lies on $to"
kat uncordon "$to"
same "a drain"
# By force it is stopped, for the machine is to be empty, and nobody begins without its data.
output=$(kat drain "$to" --force --timeout 60s 2>&1)
contains "$output" "node/$to drained"
contains "$output" "default/postgres lacks an instance: "
for node in n1 n2 n3; do refused on "$node" pgrep -x postgres; done
contains "$(kat why workload postgres)" "the data of its volumes lies on $to"
contains "$(kat describe node "$to")" "yes, by force"
kat uncordon "$to"
wait_for 60 settled
equal "$to" "$(field postgres .status.node)" "machine after the forced drain"
same "a forced drain"

# Cut off in the middle of writes it writes on, for nobody else does. It says which rows it has committed.
witness=$(printf '%s\n' n1 n2 n3 | grep -vx "$to" | head -n 1)
kat_of() { on "$witness" katcall "$@"; }
user=$(field postgres .status.user) unit=$(field postgres '.status.unit | rtrimstr(".service")')
# shellcheck disable=SC2016
as_on "$to" "$user" podman exec --env PGPASSWORD="$password" "$unit" sh -c 'for n in $(seq 2001 2100); do psql -h 127.0.0.1 -U postgres -qAt -c "insert into rows values ($n, md5($n::text)) returning id" || exit 1; sleep 0.1; done' \
    >"$LAB_WORK/committed" &
writer=$!
begun() { [[ $(wc -l <"$LAB_WORK/committed") -ge 10 ]]; }
wait_for 30 begun
lab cut "$to"
is_lost() { kat_of get nodes "$to" -o json | jq -e '.status.phase == "NotReady"' >/dev/null; }
wait_for 40 is_lost
equal 1 "$(kat_of get instances -o json | jq '[.items[] | select(.status.workload == "postgres")] | length')" "instances while it is cut off"
wait "$writer"
lab heal "$to"
wait_for 60 nodes_are_ready
wait_for 60 settled
same "a cut"
equal "100 100" "$(wc -l <"$LAB_WORK/committed") $(sql 'select count(*) from rows where id between 2001 and 2100')" "rows that were committed, and that are there"

# The machine loses power, and returns.
lab kill "$to"
wait_for 40 is_lost
for node in n1 n2 n3; do [[ $node == "$to" ]] || refused on "$node" pgrep -x postgres; done
lab start "$to"
wait_for 60 nodes_are_ready
wait_for 90 settled
same "the loss and return of its machine"
equal 100 "$(sql 'select count(*) from rows where id between 2001 and 2100')" "later rows"
