# A private image is pulled from a registry that wants a token, as Docker Hub does; a wrong password is refused at the login
# shellcheck shell=bash
host=private.lab:5001 image=private.lab:5001/test/private
lab image test/private:1 "$LAB_WORK/images/web" --busybox --entrypoint '["/bin/web"]' --user 1000
# This registry accepts tokens of the service outside the lab, and fetches the images from the lab's registry.
n1 mkdir -p /srv/registry
lab copy "${KAT_LAB_CACHE:-/var/cache/kat-lab}/registry/usr/bin/docker-registry" n1:/srv/registry/docker-registry
n1 curl --silent --show-error --fail --output /srv/registry/token.crt http://192.168.77.1:8000/token.crt
lab exec n1 -- tee /srv/registry/config.yml >/dev/null <<'YAML'
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: /srv/registry/data}}
proxy: {remoteurl: "http://registry.lab:5000"}
auth: {token: {realm: "http://192.168.77.1:8000/token", service: private.lab, issuer: lab, rootcertbundle: /srv/registry/token.crt}}
http: {addr: ":5001"}
YAML
n1 sh -c 'cp /etc/hosts /root/hosts.before; echo "192.168.77.11 private.lab" >>/etc/hosts'
n1 systemd-run --quiet --unit=private-registry --collect /srv/registry/docker-registry serve /srv/registry/config.yml
asks_for_a_token() { contains "$(n1 curl --silent --include http://$host/v2/)" 'Bearer realm="http://192.168.77.1:8000/token"'; }
wait_for 20 asks_for_a_token
kat registry set "$host" --insecure
wait_for 30 n1 grep -q "location = \"$host\"" /etc/containers/registries.conf.d/50-kat.conf
# login PASSWORD [OPTION...]
login() { lab exec n1 -- katcall registry login "$host" --username me --password-stdin "${@:2}" <<<"$1" 2>&1; }

# The service gives a token to everybody, and without a login it allows nothing.
kat apply -f "$(workload app --image "$image:1" --port 80)"
wait_for 60 field_is app .status.reason ImagePullUnauthorized
contains "$(field app .status.message)" "katcall registry login $host -n default"
output=$(login wrong) && exit 1
contains "$output" "$host does not take this name and password"
equal 0 "$(kat registry list -o json | jq '[.items[] | select(.login)] | length')" "logins after a wrong password"
# Without the check it is kept, and Podman is refused too.
contains "$(login wrong --no-check)" "logged in"
auth=/run/kat/auth/$(field app .status.uid).json
has_password() { equal "me:$1" "$(n1 jq -r '.auths[].auth' "$auth" | base64 -d)" "credentials of the pull"; }
wait_for 20 has_password wrong
is_refused_with_password() { contains "$(field app .status.message)" "replaces the name and password"; }
wait_for 60 is_refused_with_password

contains "$(login right)" "logged in"
wait_for 60 field_is app .status.phase Running
answers "http://$(field app .status.ip)/"
# A version that starts now is pinned: the leader gets a token with the login as well.
kat restart workload app --wait
contains "$(field app .status.image)" "$image@sha256:"
refused jq -e '.status.conditions[] | select(.type == "ImagePinned")' <<<"$(kat get workload app -o json)"

kat delete workload app --wait
kat registry logout "$host"
kat registry unset "$host"
n1 systemctl stop private-registry.service
n1 sh -c 'cat /root/hosts.before >/etc/hosts'
n1 rm -rf /srv/registry
