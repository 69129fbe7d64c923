# Two workloads have two users, who can't read each other's files or environment; a person's user takes no workload's place
# shellcheck shell=bash
run one --port 80 --env SECRET=of-the-first
run two --port 80 --env SECRET=of-the-second
one=$(field one .status) two=$(field two .status)
uid_one=$(jq .uid <<<"$one") uid_two=$(jq .uid <<<"$two") user_one=$(jq -r .user <<<"$one") user_two=$(jq -r .user <<<"$two")
[[ $uid_one != "$uid_two" && $user_one != "$user_two" ]]
pid_two=$(as "$user_two" podman inspect --format '{{.State.Pid}}' "$(jq -r '.unit | rtrimstr(".service")' <<<"$two")")
equal of-the-second "$(inside two sh -c 'echo $SECRET')" "environment of the program"
# The control: root can read all of these, so the paths are right.
contains "$(n1 cat "/proc/$pid_two/environ" | tr '\0' '\n')" "SECRET=of-the-second"
n1 grep -rqs of-the-second "/var/lib/kat/units/$uid_two" "/var/lib/kat/users/$user_two"
as "$user_two" ls "/var/lib/kat/users/$user_two" >/dev/null
contains "$(as "$user_two" journalctl --no-pager -q "_UID=$uid_two")" "listening"
files=$(n1 find "/var/lib/kat/units/$uid_two/" "/etc/containers/systemd/users/$uid_two/" "/run/user/$uid_two/systemd/generator/" -type f)
[[ $files ]]
for user in "$user_one" nobody; do
    refused as "$user" cat "/proc/$pid_two/environ"
    refused as "$user" ls "/var/lib/kat/users/$user_two"
    refused as "$user" ls "/var/lib/kat/units/$uid_two"
    # Each file is read by its name, which root knows.
    for file in $files; do refused as "$user" cat "$file"; done
    refused as "$user" ls "/run/user/$uid_two"
    prints_nothing "lines of the other user that $user reads" as "$user" sh -c 'journalctl --no-pager --quiet "$1" 2>/dev/null || [ $? = 1 ]' sh "_UID=$uid_two"
    lacks "$(as "$user" ps -eo args --no-headers)" of-the-second
done
contains "$(as "$user_one" podman ps --all --format '{{.Names}}')" "$(jq -r '.unit | rtrimstr(".service")' <<<"$one")"
lacks "$(as "$user_one" podman ps --all --format '{{.Names}}')" "$(jq -r '.unit | rtrimstr(".service")' <<<"$two")"
# KAT shows the variable to nobody.
lacks "$(kat get workloads two -o json; kat get instances -o json; kat describe workload two; kat get events)" of-the-second
lacks "$(n1 cat /var/lib/kat/network/instances.json)" of-the-second
lacks "$(lab journal n1 -o json)" of-the-second
# A person's user gets the number that the next workload would have had: that workload gets another one.
n1 useradd bob
bob=$(n1 id -u bob)
((bob > uid_one && bob > uid_two)) || { echo "the number of bob, $bob, is none that a workload would get" >&2 && exit 1; }
reports_account() {
    etcdctl_on n1 get --print-value-only /kat/nodes/status/n1 |
        jq -e --argjson index $((bob - 20000)) '.foreignIndexes // [] | index($index)' >/dev/null
}
wait_for 90 reports_account
run three --port 80
differs "$bob" "$(field three .status.uid)" "number of the third workload's user"
answers "http://$(field three .status.ip)/"
equal bob "$(n1 id -un "$bob")" "user with the number $bob"
kat delete workload three --yes --wait
n1 userdel bob
