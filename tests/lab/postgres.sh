# shellcheck shell=bash
# Functions of the tests of the example postgres. They need `# packages: postgresql`.

# postgres_image: makes the image registry.lab:5000/test/postgres:1 of Debian's PostgreSQL.
postgres_image() {
    local tree=$LAB_WORK/postgres version
    cp -a "$(lab tree postgresql)" "$tree"
    version=$(basename "$(echo "$tree"/usr/lib/postgresql/*)")
    # The image initialises an empty folder with the password from a file, as the example's image does.
    # Its user has the same uid.
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
}
# postgres_example NAME: copies the example into $LAB_WORK/workloads, with that image.
postgres_example() {
    mkdir -p "$LAB_WORK/workloads"
    cp -r "contrib/examples/$1" "$LAB_WORK/workloads/$1"
    sed -i 's|docker.io/library/postgres:[^ ]*|registry.lab:5000/test/postgres:1|' "$LAB_WORK/workloads/$1/workload.kat"
}
# copy_to_n1 NAME: copies the example from there to n1.
copy_to_n1() {
    n1 rm -rf "/root/workloads/$1"
    lab copy "$LAB_WORK/workloads/$1" n1:/root/workloads/
}
