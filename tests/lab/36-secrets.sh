# Secrets reach only the programs that use them, as variables and files; a change rolls out, and after a boot without the agent the programs start with them
# machines: 2
# shellcheck shell=bash
wait_for 60 nodes_are_ready
random_text() { head -c 15 /dev/urandom | base64 | tr -dc A-Za-z0-9; }
password=first$(random_text) certificate=cert$(random_text) plain=plain$(random_text) planted=planted$(random_text)
# set_secret KEY [OPTION...] <VALUE: passes the value on standard input, not as an argument.
set_secret() { lab exec n1 -- katcall secret set db --from-file "$1=-" "${@:2}"; }
files=(--container 'volumeMounts: [{name: keys, mountPath: /keys}, {name: keys, mountPath: /one.crt, subPath: tls.crt}]'
    --spec 'volumes: [{name: keys, secret: {name: db}}]' --spec 'nodeSelector: {secrets: here}')
write_app() {
    workload app --port 80 "${files[@]}" --env "PLAIN=$plain" --env VERSION="${1:-1}" >/dev/null
    # `workload` writes no variable from a secret, so sed adds one.
    sed -i 's/^    env:$/    env:\n      - {name: PASSWORD, valueFrom: {secret: {name: db, key: PASSWORD}}}/' "$LAB_WORK/workloads/app/workload.kat"
    n1 rm -rf /root/workloads/app
    lab copy "$LAB_WORK/workloads/app" n1:/root/workloads/
}
kat label node n1 secrets=here
write_app

# The workload waits for missing secrets and keys, the reason names them, and it starts by itself.
kat apply -f /root/workloads/app
waits_for() { equal "$1" "$(kat get workload app -o json | jq -r '.status.conditions[0] | "\(.reason) \(.message)"')" "reason and message of the workload"; }
wait_for 20 waits_for 'SecretMissing there is no secret db in namespace default (of which it uses PASSWORD, tls.crt)'
contains "$(kat why workload app)" "there is no secret db"
printf %s "$password" | set_secret PASSWORD
wait_for 20 waits_for 'SecretMissing secret db has no key tls.crt'
printf '%s\377' "$certificate" | set_secret tls.crt
wait_for 60 field_is app .status.phase Running
variable_is() { equal "$1" "$(page "http://$(field app .status.ip)/env?PASSWORD")" "the variable"; }
variable_is "$password"
equal "$password" "$(inside app cat /keys/PASSWORD)" "the file"
contains "$(inside app cat /one.crt)" "$certificate"
contains "$(inside app stat -c '%a %u' /keys/PASSWORD)" '444 0'
refused inside app sh -c 'echo x >/keys/PASSWORD'
refused inside app sh -c 'echo x >/keys/other'

# KAT shows the secret's keys and sizes, and no value.
shown=$(
    kat get secrets -A -o wide
    kat get secrets -o json
    kat describe secret db
    kat describe workload app
    kat get workload app -o json
    kat get instances -o json
    kat get events -A -o json
    kat why workload app
    write_app 2
    kat plan -f /root/workloads/app --units || test $? = 10
)
contains "$shown" tls.crt
for value in "$password" "$certificate" "$plain"; do
    [[ $shown != *"$value"* ]] || { echo "a value is shown" && exit 1; }
done

# Setting the same value again changes nothing; another value starts a rollout in place.
instance=$(field app .metadata.name)
contains "$(printf %s "$password" | set_secret PASSWORD)" "unchanged, version 2"
equal "$instance" "$(field app .metadata.name)" "instance after the same value"
password=second$(random_text)
printf %s "$password" | set_secret PASSWORD --wait
wait_for 30 variable_is "$password"
differs "$instance" "$(field app .metadata.name)" "instance after another value"
contains "$(kat get events -o json)" 'secret db has changed'
contains "$(kat history app)" 'secret changed'

# A secret or key that a workload uses cannot be deleted.
output=$(kat delete secret db 2>&1) && exit 1
contains "$output" "is used by app"
output=$(kat secret unset db PASSWORD 2>&1) && exit 1
contains "$output" "is used by app"
set_secret EXTRA --wait <<<more
kat secret unset db EXTRA --wait

# A rotation of the key that seals secrets changes no instance.
instance=$(field app .metadata.name)
keys_of() { etcdctl_on n1 get --prefix --keys-only "$1" | grep . || true; }
before=$(keys_of /kat/sealing/)
next=$((${before#/kat/sealing/} + 1))
contains "$(kat secret rotate-key)" "sealed with key $next; earlier keys are gone"
equal "/kat/sealing/$next" "$(keys_of /kat/sealing/)" "sealing keys in etcd"
equal "$instance" "$(field app .metadata.name)" "instance after a rotation"

# A local user of the machine finds texts that are open to everybody, and none of the values.
n1 id spy >/dev/null 2>&1 || n1 useradd --uid 15000 --create-home spy
cat >"$LAB_WORK/search" <<'SEARCH'
#!/bin/bash
# Reads a text on standard input, and prints where this user finds it. The text is never an argument
# or variable of a process.
umask 077
cat >~/pattern
finds() { grep -aqF -f ~/pattern; }
find / /run /tmp /dev/shm -xdev -type f -readable ! -path ~/pattern -print0 2>/dev/null |
    xargs -0 -r timeout 100 grep -laF -f ~/pattern -- 2>/dev/null | sed 's/^/file /'
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | finds && echo proc
ps auxewww | finds && echo ps
systemctl show --all '*' 2>/dev/null | finds && echo units
for bus in /run/user/*/bus; do
    DBUS_SESSION_BUS_ADDRESS=unix:path=$bus timeout 10 systemctl --user show --all '*' 2>/dev/null | finds && echo "bus $bus"
done
busctl tree --list rip.dws.kat1 2>/dev/null | while read -r object; do
    timeout 10 busctl introspect rip.dws.kat1 "$object" --no-pager 2>/dev/null
done | finds && echo kat1
journalctl --no-pager -o export 2>/dev/null | finds && echo journal
podman ps --all --quiet 2>/dev/null | xargs -r podman inspect 2>/dev/null | finds && echo podman
rm ~/pattern
SEARCH
lab copy "$LAB_WORK/search" n1:/srv/search
n1 chmod 755 /srv/search
places_with() { lab exec n1 --user spy -- /srv/search <<<"$1"; }
# The control: the search finds the text in a file, in a variable of its user's process, in a unit's
# properties, and in the journal.
n1 sh -c "echo $planted >/srv/planted; systemd-run --quiet --unit=planted --setenv=PLANTED=$planted sleep 600"
lab exec n1 --user spy -- sh -c "PLANTED=$planted sleep 600 & logger $planted"
found=$(places_with "$planted")
for place in 'file /srv/planted' proc ps units journal; do contains "$found" "$place"; done
n1 systemctl stop planted
for value in "$password" "$certificate" "$plain"; do
    prints_nothing "places where a local user finds a value" places_with "$value"
done
rendered=$(n1 sh -c 'cat /var/lib/kat/units/*/*.container /etc/containers/systemd/users/*/*.container')
contains "$rendered" /var/lib/kat/secrets/
# files_with NODE VALUE PATH...: files, read as root, that contain the value or its base64. Grep's exit code is 1 without
# a match, and 2 also for a file that disappears.
files_with() {
    local node=$1 value=$2
    shift 2
    printf '%s\n%s\n' "$value" "$(printf %s "${value:0:12}" | base64)" | lab exec "$node" -- sh -c 'grep -rlaF -f /dev/stdin "$@" || [ $? -le 2 ]' sh "$@"
}
n1 kat-agent backup /root/search.backup
n1 sh -c "echo $planted >/var/lib/kat/planted"
equal /var/lib/kat/planted "$(files_with n1 "$planted" /var/lib/kat)" "the planted file"
n1 rm /var/lib/kat/planted
uid=$(field app .status.uid)
for value in "$password" "$certificate"; do
    # Only the files of the program itself have the value in clear: not the store, its log,
    # desired.json, backups, or other files of KAT.
    found=$(files_with n1 "$value" /var/lib/kat /root/search.backup /etc /run/kat /run/systemd)
    # The control: the program's own files have it.
    contains "$found" "/$uid/"
    elsewhere=$(sed -E "\\#^/var/lib/kat/(units/$uid/kat-[^/]*\.env|secrets/$uid/.*|users/.*)\$#d" <<<"$found")
    equal '' "$elsewhere" "other files of KAT in which root finds a value"
    prints_nothing "files with a value on a machine that runs no program that uses it" \
        files_with n2 "$value" /var/lib/kat /etc /run/kat /run/systemd /var/log
    [[ $rendered != *"$value"* ]]
    n1 sh -c 'journalctl --no-pager -o export >/root/export'
    finds_nothing n1 grep -aqF "${value:0:12}" /root/export
done
n1 rm /root/export
absent n2 /var/lib/kat/secrets
equal "750 0 $uid" "$(n1 stat -c '%a %u %g' "/var/lib/kat/secrets/$uid")" "mode and owner of the folder of secret files"

# After a boot without the agent the program starts with its secrets.
address=$(field app .status.ip)
n1 systemctl mask --now kat-agent.service
n1 systemctl stop kat-etcd.service
lab reboot n1
refused n1 systemctl is-active kat-agent.service
variable_survives_boot() { equal "$password" "$(page "http://$address/env?PASSWORD")" "the variable after a boot"; }
wait_for 60 variable_survives_boot
n1 systemctl unmask kat-agent.service
n1 systemctl start kat-agent.service
wait_for 60 nodes_are_ready
wait_for 60 field_is app .status.phase Running
equal "$password" "$(inside app cat /keys/PASSWORD)" "the file after a boot"

# The machine keeps no secret file after the workload's deletion. Then the secret can be deleted.
kat delete workload app --wait
absent n1 "/var/lib/kat/secrets/$uid"
kat delete secret db
refused kat get secret db
kat label node n1 secrets-
