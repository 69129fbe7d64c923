# A private image is pulled with its namespace's credentials, which are required, checked, sealed and used for pulls only; a changed password rolls nothing out
# machines: 2
# shellcheck shell=bash
wait_for 60 nodes_are_ready
kat label node n1 registry=here
kat label node n2 registry=there
here=(--spec 'nodeSelector: {registry: here}')
random() { head -c 15 /dev/urandom | base64 | tr -dc A-Za-z0-9; }
host=private.lab:5001 first=first$(random) second=second$(random)
# The lab's own images behind a name and a password, on a second registry that fetches them from the first.
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
# The registry takes this password from now on.
# shellcheck disable=SC2016
keeper() {
    lab exec n1 -- perl -e 'chomp(my $p = <STDIN>); print "me:" . crypt($p, q($2y$05$abcdefghijklmnopqrstuu)) . "\n"' <<<"$1" |
        lab exec n1 -- tee /srv/registry/htpasswd >/dev/null
    n1 systemctl stop private-registry.service 2>/dev/null || true
    n1 systemd-run --quiet --unit=private-registry --collect /srv/registry/docker-registry serve /srv/registry/config.yml
    wait_for 20 asks_for_a_password
}
asks_for_a_password() { equal 401 "$(n1 curl --silent --output /dev/null --write-out '%{http_code}' http://$host/v2/)" "what the registry answers"; }
# login PASSWORD [OPTION...]: the password is no argument.
login() { lab exec n1 -- katcall registry login "$host" --username me --password-stdin "${@:2}" <<<"$1" 2>&1; }
keeper "$first"
kat registry set "$host" --insecure
told() { n1 grep -q "location = \"$host\"" /etc/containers/registries.conf.d/50-kat.conf; }
wait_for 30 told

# Without credentials the instance waits, and the message names the command that helps.
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
etcd_keys() { etcdctl_on n1 get --prefix --keys-only /kat/registries/ | grep . || true; }
equal '' "$(etcd_keys)" "what is stored after refused passwords"

# With the right credentials the instance starts by itself soon.
contains "$(login "$first")" "logged in, namespace default"
equal "/kat/registries/default/$host" "$(etcd_keys)" "what is stored"
wait_for 30 field_is app .status.phase Running
contains "$(login "$first")" "unchanged"
contains "$(kat registry list)" me
uid=$(field app .status.uid)
auth=/run/kat/auth/$uid.json
equal "640 0 $uid" "$(n1 stat -c '%a %u %g' "$auth")" "the pull's file"
equal "me:$first" "$(n1 jq -r '.auths[].auth' "$auth" | base64 -d)" "what the pull is given"
naming=$(n1 grep -l AuthFile= -r /var/lib/kat/units/ || true)
[[ $naming == "/var/lib/kat/units/$uid/kat-image-"*.image && $naming != *$'\n'* ]] || { echo "units that name it: $naming" && exit 1; }
# A version that begins now is pinned.
kat restart workload app --wait
contains "$(field app .status.image)" "$host/test/private@sha256:"
refused jq -e '.status.conditions[] | select(.type == "ImagePinned")' <<<"$(kat get workload app -o json)"

# Another namespace cannot use the credentials.
kat create namespace other
kat apply -f "$(workload app --namespace other --image $host/test/private:1)"
refused_there() { equal ImagePullUnauthorized "$(field app .status.reason other)" "reason in the other namespace"; }
wait_for 60 refused_there
contains "$(field app .status.message other)" "katcall registry login $host -n other"
kat delete workload app -n other --wait
kat delete namespace other --wait

# After a change of the password, running instances continue, and the next pull uses the new one.
instance=$(field app .metadata.name)
generation=$(kat get workload app -o json | jq .metadata.generation)
started=$(unit_property app ExecMainStartTimestampMonotonic)
keeper "$second"
output=$(login "$first") && exit 1
contains "$(login "$second")" "logged in"
follows() { equal "me:$second" "$(n1 jq -r '.auths[].auth' "$auth" | base64 -d)" "what the next pull is given"; }
wait_for 20 follows
equal "$instance $generation $started" \
    "$(field app .metadata.name) $(kat get workload app -o json | jq .metadata.generation) $(unit_property app ExecMainStartTimestampMonotonic)" "what runs after another password"
kat set image "app=$host/test/private:2" --wait
# shellcheck disable=SC2016
of_version() { inside app sh -c 'echo "$V"'; }
equal 2 "$(of_version)" "the version that was pulled with it"

# A new sealing key also seals the credentials.
kat secret rotate-key
contains "$(login "$second")" "unchanged"

# Nobody finds a password or its base64: not in what is shown, nor in what a local user may read, nor in what KAT keeps.
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
    kat plan -f /root/workloads/app || test $? = 10
)
contains "$shown" RegistryLogin
! grep -qF -f "$LAB_WORK/values" <<<"$shown" || { echo "a password is shown" && exit 1; }
n1 id spy >/dev/null 2>&1 || n1 useradd --uid 15000 --create-home spy
cat >"$LAB_WORK/search-logins" <<'SEARCH'
#!/bin/bash
# Reads texts, and says where this user finds one. They are no arguments and no variables of a process.
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
planted=planted$(random)
n1 sh -c "echo $planted >/srv/planted"
equal 'file /srv/planted' "$(lab exec n1 --user spy -- /srv/search-logins <<<"$planted")" "where a local user finds what lies open"
equal '' "$(lab exec n1 --user spy -- /srv/search-logins <"$LAB_WORK/values")" "where a local user finds a password"
# As root: the pull's file alone, also in etcd's files, the list on the disk, backups and the journal.
n1 kat-agent backup /root/search.backup
holders() { lab exec "$1" -- grep -rlaF -f /dev/stdin "${@:2}" || true; }
n1 sh -c "echo $planted >/var/lib/kat/planted"
equal /var/lib/kat/planted "$(holders n1 /var/lib/kat <<<"$planted")" "the planted file"
n1 rm /var/lib/kat/planted /srv/planted
equal "$auth" "$(holders n1 /var/lib/kat /root/search.backup /etc /run/kat /run/systemd /run/user /var/log <"$LAB_WORK/values")" "where root finds a password"
equal '' "$(holders n2 /var/lib/kat /etc /run/kat /run/systemd /run/user /var/log <"$LAB_WORK/values")" "on a machine that pulls nothing of it"
refused n1 grep -qF "$first" "$auth"

# Another machine has the credentials only while it pulls such an image.
run far --image "$host/test/private:1" --spec 'nodeSelector: {registry: there}'
far=/run/kat/auth/$(field far .status.uid).json
equal "me:$second" "$(on n2 jq -r '.auths[].auth' "$far" | base64 -d)" "what the other machine's pull is given"
refused n1 test -e "$far"
kat delete workload far --wait
far_is_gone() { refused on n2 test -e "$far"; }
wait_for 20 far_is_gone

# A logout removes the file. Running instances continue and restart with the present image; new ones
# wait.
kat registry logout "$host"
gone() { refused n1 test -e "$auth"; }
wait_for 20 gone
equal '' "$(etcd_keys)" "what is stored after a logout"
refused n1 grep -rq AuthFile= /var/lib/kat/units/
crash app
again() { field_is app .status.restarts 1 && field_is app .status.phase Running; }
wait_for 60 again
equal 2 "$(of_version)" "what runs after a logout"
kat set image "app=$host/test/private:3"
waits() { instances app | jq -e 'any(.[]; .status.reason == "ImagePullUnauthorized")' >/dev/null; }
wait_for 60 waits
contains "$(login "$second")" "logged in"
is_new() { equal 3 "$(of_version)" "version"; }
wait_for 60 is_new
output=$(kat registry logout other.example 2>&1) && exit 1
contains "$output" "does not exist"

# The file is removed together with the workload.
wait_for 30 n1 test -e "$auth"
kat delete workload app --wait
wait_for 20 gone
kat registry logout "$host"
kat registry unset "$host"
n1 systemctl stop private-registry.service
for node in n1 n2; do on "$node" sh -c 'cat /root/hosts.before >/etc/hosts'; done
n1 rm -rf /srv/registry /srv/search-logins /root/search.backup
kat label node n1 registry-
kat label node n2 registry-
