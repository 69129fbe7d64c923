# shellcheck shell=sh
# Dumps the database, lists the dumps, or restores one: backup.sh [list | restore NAME]
set -eu
umask 077
cd /dumps

case ${1:-dump} in
dump)
    # A run that was interrupted leaves such a file.
    rm -f ./*.part
    name=$(date -u +%Y-%m-%dT%H%M%SZ).dump
    pg_dump --format=custom --file="$name.part"
    # Fails if the dump cannot be read.
    pg_restore --list "$name.part" >/dev/null
    mv "$name.part" "$name"
    echo "wrote $name, $(wc -c <"$name") bytes"
    # Only after a new dump: while dumps fail, the old ones stay.
    find . -name '*.dump' -mtime "+$KEEP_DAYS" -delete
    ;;
list)
    ls -l
    ;;
restore)
    pg_restore --clean --if-exists --single-transaction --dbname="$PGDATABASE" "${2:?name of a dump}"
    echo "restored $2"
    ;;
*)
    echo "backup.sh [list | restore NAME]" >&2
    exit 2
    ;;
esac
