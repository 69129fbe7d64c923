# A private image is pulled with its namespace's credentials, which are required, checked, sealed and used for pulls only; a changed password rolls nothing out
# machines: 2
# shellcheck shell=bash
wait_for 60 nodes_are_ready
kat label node n1 registry=here
kat label node n2 registry=there
here=(--spec 'nodeSelector: {registry: here}')
random_text() { head -c 15 /dev/urandom | base64 | tr -dc A-Za-z0-9; }
host=private.lab:5001 first=first$(random_text) second=second$(random_text)
# A second registry requires a name and a password, and fetches the images from the lab's registry.
push() { lab image "test/private:$1" "$LAB_WORK/images/web" --busybox --entrypoint '["/bin/web"]' --user 1000 --env "V=$1"; }
for version in 1 2 3; do push "$version"; done
n1 mkdir -p /srv/registry
lab copy "${KAT_LAB_CACHE:-/var/cache/kat-lab}/registry/usr/bin/docker-registry" n1:/srv/registry/docker-registry
lab exec n1 -- tee /srv/registry/config.yml >/dev/null <<'YAML'
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: /srv/registry/data}}
proxy: {remoteurl: "http://registry.lab:5000"}
auth: {htpasswd: {realm: lab, path: /srv/registry/htpasswd}}
http: {addr: ":5001"}
YAML
address=$(n1 getent hosts n1 | awk '{print $1; exit}')
for node in n1 n2; do on "$node" sh -c "cp /etc/hosts /root/hosts.before; echo '$address private.lab' >>/etc/hosts"; done
# set_registry_password PASSWORD: from now on the registry accepts this password only.
# shellcheck disable=SC2016
set_registry_password() {
    lab exec n1 -- perl -e 'chomp(my $p = <STDIN>); print "me:" . crypt($p, q($2y$05$abcdefghijklmnopqrstuu)) . "\n"' <<<"$1" |
        lab exec n1 -- tee /srv/registry/htpasswd >/dev/null
    n1 systemctl stop private-registry.service 2>/dev/null || true
    n1 systemd-run --quiet --unit=private-registry --collect /srv/registry/docker-registry serve /srv/registry/config.yml
    wait_for 20 asks_for_a_password
}
asks_for_a_password() { equal 401 "$(n1 curl --silent --output /dev/null --write-out '%{http_code}' http://$host/v2/)" "answer of the registry"; }
# login PASSWORD [OPTION...]: passes the password on standard input, not as an argument.
login() { lab exec n1 -- katcall registry login "$host" --username me --password-stdin "${@:2}" <<<"$1" 2>&1; }
set_registry_password "$first"
kat registry set "$host" --insecure
registry_is_configured() { n1 grep -q "location = \"$host\"" /etc/containers/registries.conf.d/50-kat.conf; }
wait_for 30 registry_is_configured

# Without credentials the instance waits, and its message names the command that helps.
kat apply -f "$(workload app --image $host/test/private:1 --port 80 "${here[@]}")"
wait_for 60 field_is app .status.reason ImagePullUnauthorized
contains "$(field app .status.message)" "\`katcall registry login $host -n default\` gives this namespace a name and password"
contains "$(kat get workload app -o json | jq -r '.status.conditions[] | select(.type == "ImagePinned").message')" "katcall registry login $host -n default"
contains "$(kat why instance "$(field app .metadata.name)")" "katcall registry login"

# Credentials that the registry refuses are not stored.
output=$(login "$second") && exit 1
contains "$output" "does not take this name and password"
output=$(lab exec n1 -- katcall registry login private.lab:5999 -u me --password-stdin <<<"$first" 2>&1) && exit 1
contains "$output" "could not ask the registry"
output=$(lab exec n1 -- katcall registry login https://private.lab -u me --password-stdin <<<"$first" 2>&1) && exit 1
contains "$output" "expected a host such as"
[[ $(kat registry list -o json | jq '[.items[] | select(.login)] | length') == 0 ]]
etcd_keys() { etcdctl_on n1 get --prefix --keys-only /kat/registries/ | sed '/^$/d'; }
prints_nothing "keys in etcd after refused passwords" etcd_keys

# With the right password the instance starts by itself.
contains "$(login "$first")" "logged in, namespace default"
equal "/kat/registries/default/$host" "$(etcd_keys)" "keys in etcd"
wait_for 30 field_is app .status.phase Running
contains "$(login "$first")" "unchanged"
contains "$(kat registry list)" me
uid=$(field app .status.uid)
auth=/run/kat/auth/$uid.json
equal "640 0 $uid" "$(n1 stat -c '%a %u %g' "$auth")" "mode and owner of the file of credentials"
equal "me:$first" "$(n1 jq -r '.auths[].auth' "$auth" | base64 -d)" "credentials of the pull"
units_with_auth=$(n1 grep -l AuthFile= -r /var/lib/kat/units/ || true)
[[ $units_with_auth == "/var/lib/kat/units/$uid/kat-image-"*.image && $units_with_auth != *$'\n'* ]] || { echo "units that name the file of credentials: $units_with_auth" && exit 1; }
# A version that starts now has its image pinned.
kat restart workload app --wait
contains "$(field app .status.image)" "$host/test/private@sha256:"
refused jq -e '.status.conditions[] | select(.type == "ImagePinned")' <<<"$(kat get workload app -o json)"

# Another namespace does not get these credentials.
kat create namespace other
kat apply -f "$(workload app --namespace other --image $host/test/private:1)"
pull_is_unauthorized_in_other() { equal ImagePullUnauthorized "$(field app .status.reason other)" "reason in the other namespace"; }
wait_for 60 pull_is_unauthorized_in_other
contains "$(field app .status.message other)" "katcall registry login $host -n other"
kat delete workload app -n other --wait
kat delete namespace other --wait

# Another password: running instances continue unchanged, and the next pull uses it.
instance=$(field app .metadata.name)
generation=$(kat get workload app -o json | jq .metadata.generation)
started=$(unit_property app ExecMainStartTimestampMonotonic)
set_registry_password "$second"
output=$(login "$first") && exit 1
contains "$(login "$second")" "logged in"
auth_file_has_new_password() { equal "me:$second" "$(n1 jq -r '.auths[].auth' "$auth" | base64 -d)" "credentials of the next pull"; }
wait_for 20 auth_file_has_new_password
equal "$instance $generation $started" \
    "$(field app .metadata.name) $(kat get workload app -o json | jq .metadata.generation) $(unit_property app ExecMainStartTimestampMonotonic)" "instance, generation and start time after another password"
kat set image "app=$host/test/private:2" --wait
# shellcheck disable=SC2016
of_version() { inside app sh -c 'echo "$V"'; }
equal 2 "$(of_version)" "version that was pulled with the new password"

# A rotation of the key that seals secrets also seals the credentials again.
kat secret rotate-key
contains "$(login "$second")" "unchanged"

# No password, nor its base64, is in anything that KAT shows, that a local user may read, or that
# KAT stores.
printf '%s\n' "$first" "$second" >"$LAB_WORK/values"
for value in "$first" "$second"; do
    printf %s "$value" | base64
    printf %s "me:$value" | base64
done >>"$LAB_WORK/values"
workload app --image "$host/test/private:3" --port 80 "${here[@]}" >/dev/null
shown=$(
    kat registry list -o json
    kat get workload app -o json
    kat get instances -o json
    kat get events -A -o json
    kat describe workload app
    kat describe instance "$(field app .metadata.name)"
    kat why workload app
    kat plan -f /root/workloads/app --units || test $? = 10
)
contains "$shown" RegistryLogin
[[ -s $LAB_WORK/values ]]
finds_nothing grep -qF -f "$LAB_WORK/values" <<<"$shown"
n1 id spy >/dev/null 2>&1 || n1 useradd --uid 15000 --create-home spy
cat >"$LAB_WORK/search-logins" <<'SEARCH'
#!/bin/bash
# Reads texts on standard input, and prints where this user finds one. The texts are never arguments
# or variables of a process.
umask 077
cat >~/pattern
finds() { grep -aqF -f ~/pattern; }
find / /run /tmp /dev/shm -xdev -type f -readable ! -path ~/pattern -print0 2>/dev/null |
    xargs -0 -r timeout 100 grep -laF -f ~/pattern -- 2>/dev/null | sed 's/^/file /'
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | finds && echo proc
systemctl show --all '*' 2>/dev/null | finds && echo units
busctl tree --list rip.dws.kat1 2>/dev/null | while read -r object; do
    timeout 10 busctl introspect rip.dws.kat1 "$object" --no-pager 2>/dev/null
done | finds && echo kat1
journalctl --no-pager -o export 2>/dev/null | finds && echo journal
rm ~/pattern
SEARCH
lab copy "$LAB_WORK/search-logins" n1:/srv/search-logins
n1 chmod 755 /srv/search-logins
planted=planted$(random_text)
n1 sh -c "echo $planted >/srv/planted"
equal 'file /srv/planted' "$(lab exec n1 --user spy -- /srv/search-logins <<<"$planted")" "places where a local user finds the planted text"
prints_nothing "places where a local user finds a password" lab exec n1 --user spy -- /srv/search-logins <"$LAB_WORK/values"
# As root only the file of credentials has a password: not etcd's files, desired.json, backups or
# the journal.
n1 kat-agent backup /root/search.backup
# Grep's exit code is 1 without a match, and 2 also for a file that disappears.
files_with() { lab exec "$1" -- sh -c 'grep -rlaF -f /dev/stdin "$@" || [ $? -le 2 ]' sh "${@:2}"; }
n1 sh -c "echo $planted >/var/lib/kat/planted"
equal /var/lib/kat/planted "$(files_with n1 /var/lib/kat <<<"$planted")" "the planted file"
n1 rm /var/lib/kat/planted /srv/planted
equal "$auth" "$(files_with n1 /var/lib/kat /root/search.backup /etc /run/kat /run/systemd /run/user /var/log <"$LAB_WORK/values")" "files in which root finds a password"
prints_nothing "files with a password on a machine that pulls no such image" \
    files_with n2 /var/lib/kat /etc /run/kat /run/systemd /run/user /var/log <"$LAB_WORK/values"
finds_nothing n1 grep -qF "$first" "$auth"

# Another machine has the credentials only while one of its workloads uses such an image.
run far --image "$host/test/private:1" --spec 'nodeSelector: {registry: there}'
auth_on_n2=/run/kat/auth/$(field far .status.uid).json
equal "me:$second" "$(on n2 jq -r '.auths[].auth' "$auth_on_n2" | base64 -d)" "credentials of the other machine's pull"
absent n1 "$auth_on_n2"
kat delete workload far --wait
wait_for 20 absent n2 "$auth_on_n2"

# A logout removes the file. A running instance continues, and restarts with the image that is
# stored; a new version waits.
kat registry logout "$host"
wait_for 20 absent n1 "$auth"
prints_nothing "keys in etcd after a logout" etcd_keys
finds_nothing n1 grep -r AuthFile= /var/lib/kat/units/
crash app
app_restarted() { field_is app .status.restarts 1 && field_is app .status.phase Running; }
wait_for 60 app_restarted
equal 2 "$(of_version)" "version that runs after a logout"
kat set image "app=$host/test/private:3"
pull_is_unauthorized() { instances app | jq -e 'any(.[]; .status.reason == "ImagePullUnauthorized")' >/dev/null; }
wait_for 60 pull_is_unauthorized
contains "$(login "$second")" "logged in"
runs_version_3() { equal 3 "$(of_version)" "version"; }
wait_for 60 runs_version_3
output=$(kat registry logout other.example 2>&1) && exit 1
contains "$output" "does not exist"

# The deletion of the workload removes the file.
wait_for 30 n1 test -e "$auth"
kat delete workload app --wait
wait_for 20 absent n1 "$auth"
kat registry logout "$host"
kat registry unset "$host"
n1 systemctl stop private-registry.service
for node in n1 n2; do on "$node" sh -c 'cat /root/hosts.before >/etc/hosts'; done
n1 rm -rf /srv/registry /srv/search-logins /root/search.backup
kat label node n1 registry-
kat label node n2 registry-
