# Init containers run before the main container and sidecars beside it in one network; each restarts by itself after a crash, and a deletion leaves nothing
# shellcheck shell=bash
run db --port 80
kat secret set keys TOKEN=first-token
shop() {
    workload shop --port 80 --spec 'volumes: [{name: data, simpleClusterStorage: {}}, {name: conf, files: conf/}]' \
        --container 'volumeMounts: [{name: data, mountPath: /data}]' \
        --spec 'initContainers:' \
        --spec '  - name: look' \
        --spec '    entrypoint: [/bin/busybox, sh, -c]' \
        --spec "    command: ['wget -q -T 3 -O- http://db.default.$DOMAIN/ && ip -4 -o address show eth0 && echo looked >>/data/order']" \
        --spec '    volumeMounts: [{name: data, mountPath: /data}]' \
        --spec '  - name: prepare' \
        --spec '    entrypoint: [/bin/busybox, sh, -c]' \
        --spec "    command: ['test \"\$TOKEN\" = first-token && tail -n 1 /data/order | grep -qx looked && echo prepared >>/data/order']" \
        --spec '    env: [{name: TOKEN, valueFrom: {secret: {name: keys, key: TOKEN}}}]' \
        --spec '    volumeMounts: [{name: data, mountPath: /data}]' \
        --spec 'sidecars:' \
        --spec '  - name: proxy' \
        --spec "    env: [{name: PORT, value: \"81\"}, {name: VERSION, value: \"$1\"}]" \
        --spec '    volumeMounts: [{name: conf, mountPath: /conf}]' >/dev/null
    n1 mkdir -p /root/workloads/shop/conf
    n1 sh -c 'echo for-the-sidecar >/root/workloads/shop/conf/proxy.conf'
}
shop 1
contains "$(kat plan -f /root/workloads/shop || true)" "_side-proxy.container"
kat apply -f /root/workloads/shop --wait
order=/var/lib/kat/volumes/default/shop/data/order
equal "looked prepared" "$(n1 cat "$order" | tr '\n' ' ' | sed 's/ $//')" "order of the init containers"
status=$(field shop .status) id=$(field shop .metadata.name)
ip=$(jq -r .ip <<<"$status") user=$(jq -r .user <<<"$status") stem=kat-default-$id

# All containers of an instance share one network, and each has its own log and its own commands.
contains "$(page "http://$ip/")" "host=$id"
contains "$(inside shop wget -q -T 3 -O- http://127.0.0.1:81/)" "host=$id"
equal 1 "$(page "http://$ip:81/env?VERSION")" "version of the sidecar"
contains "$(kat logs shop -c look)" "$ip/32"
contains "$(kat logs shop -c proxy)" "listening on port 81"
lacks "$(kat logs shop)" "port 81"
contains "$(kat logs shop -c nobody 2>&1 || true)" "its containers are app, look, prepare, proxy"
equal for-the-sidecar "$(kat exec shop -c proxy -- cat /conf/proxy.conf)" "a file of the folder in the sidecar"
refused kat exec shop -- cat /conf/proxy.conf
states() { field shop '.status.containers | map("\(.name)=\(.state)") | join(" ")'; }
equal "look=Ended prepare=Ended proxy=Running" "$(states)" "states of the containers"
contains "$(kat describe instance "$id")" "_side-proxy.service"

# container NAME: when it began; program NAME: its process.
began() { as "$user" podman inspect --format '{{.State.StartedAt}}' "$1"; }
program() { as "$user" podman inspect --format '{{.State.Pid}}' "$1"; }
began_anew() { [[ $(began "$1") != "$2" ]]; }
sidecar=$(began "${stem}_side-proxy") network=$(began "${stem}_net") main=$(began "$stem")

# After a kill, the main program restarts beside the same sidecar, and the init containers do not
# run again.
n1 kill -KILL "$(program "$stem")"
wait_for 20 began_anew "$stem" "$main"
wait_for 10 field_is shop .status.restarts 1
wait_for 10 page "http://$ip/"
equal "$sidecar $network" "$(began "${stem}_side-proxy") $(began "${stem}_net")" "begin of the others after a kill of the main program"
equal 2 "$(n1 cat "$order" | wc -l)" "lines of the init containers"
# After a kill, the sidecar restarts beside the same main program.
main=$(began "$stem")
n1 kill -KILL "$(program "${stem}_side-proxy")"
wait_for 20 began_anew "${stem}_side-proxy" "$sidecar"
wait_for 10 page "http://$ip:81/"
proxy_restarts() { field shop '.status.containers[] | select(.name == "proxy") | .restarts'; }
proxy_restarted() { (($(proxy_restarts) >= 1)); }
wait_for 10 proxy_restarted
equal "$main" "$(began "$stem")" "begin of the main program after a kill of the sidecar"

# A sidecar that fails repeatedly is named in the status; its instance is not ready, and is not
# restarted.
for _ in 1 2 3; do
    wait_for 20 page "http://$ip:81/"
    crash shop 81 3
    wait_for 20 began_anew "${stem}_side-proxy" "$(began "${stem}_side-proxy" 2>/dev/null || echo none)"
done
wait_for 20 field_is shop .status.reason SidecarNotRunning
equal unhealthy "$(field shop .status.health)" "health beside a sidecar that fails"
contains "$(field shop .status.message)" "sidecar proxy"
contains "$(kat why workload shop)" "but a sidecar does not"
wait_for 40 field_is shop .status.health not_applicable
equal 1 "$(field shop .status.restarts)" "restarts of the main program"
equal "$main" "$(began "$stem")" "begin of the main program"

# Without the network's holder, all containers of the instance restart in a new network.
n1 kill -KILL "$(program "${stem}_net")"
wait_for 30 began_anew "${stem}_net" "$network"
both_answer() { page "http://$ip/" >/dev/null && page "http://$ip:81/" >/dev/null; }
wait_for 30 both_answer
wait_for 40 field_is shop .status.health not_applicable

# A new version of the sidecar is a new version of the workload, which writes data: the old instance
# ends first.
shop 2
plan=$(kat plan -f /root/workloads/shop || true)
contains "$plan" "sidecars"
kat apply -f /root/workloads/shop --wait
[[ $(field shop .metadata.name) != "$id" ]] || { echo "the sidecar changed, and the instance stayed" >&2; exit 1; }
equal 4 "$(n1 cat "$order" | wc -l)" "lines of the init containers of two instances"
equal 2 "$(page "http://$(field shop .status.ip):81/env?VERSION")" "version of the sidecar"
lacks "$(as "$user" podman ps --all --format '{{.Names}}')" "$stem"
kat rollback workload shop --wait
equal 1 "$(page "http://$(field shop .status.ip):81/env?VERSION")" "version of the sidecar after a rollback"

status=$(field shop .status) id=$(field shop .metadata.name)
kat delete workload shop --volumes --yes --wait
no_remains "$status" "$id"
