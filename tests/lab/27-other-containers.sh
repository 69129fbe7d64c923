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
contains "$(kat plan -f /root/workloads/shop --units || true)" "_side-proxy.container"
kat apply -f /root/workloads/shop --wait
order=/var/lib/kat/volumes/default/shop/data/order
equal "looked prepared" "$(n1 cat "$order" | tr '\n' ' ' | sed 's/ $//')" "order of the init containers"
status=$(field shop .status) id=$(field shop .metadata.name)
ip=$(jq -r .ip <<<"$status") user=$(jq -r .user <<<"$status") stem=kat-default-$id

# All containers of an instance share one network; each has its own log and accepts commands by its
# name.
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

# start_time CONTAINER: the time at which it started. main_pid CONTAINER: the pid of its main
# process. started_since CONTAINER TIME: whether it started at another time than TIME.
start_time() { as "$user" podman inspect --format '{{.State.StartedAt}}' "$1"; }
main_pid() { as "$user" podman inspect --format '{{.State.Pid}}' "$1"; }
started_since() {
    local now
    now=$(start_time "$1") && [[ $now && $now != "$2" ]]
}
sidecar_started=$(start_time "${stem}_side-proxy") network_started=$(start_time "${stem}_net") main_started=$(start_time "$stem")

# A killed main program restarts beside the same sidecar, and no init container runs again.
n1 kill -KILL "$(main_pid "$stem")"
wait_for 20 started_since "$stem" "$main_started"
wait_for 10 field_is shop .status.restarts 1
wait_for 10 page "http://$ip/"
equal "$sidecar_started $network_started" "$(start_time "${stem}_side-proxy") $(start_time "${stem}_net")" "start times of the other containers after a kill of the main program"
equal 2 "$(n1 cat "$order" | wc -l)" "lines of the init containers"
# A killed sidecar restarts beside the same main program.
main_started=$(start_time "$stem")
n1 kill -KILL "$(main_pid "${stem}_side-proxy")"
wait_for 20 started_since "${stem}_side-proxy" "$sidecar_started"
wait_for 10 page "http://$ip:81/"
proxy_restarts() { field shop '.status.containers[] | select(.name == "proxy") | .restarts'; }
proxy_restarted() { (($(proxy_restarts) >= 1)); }
wait_for 10 proxy_restarted
equal "$main_started" "$(start_time "$stem")" "start time of the main program after a kill of the sidecar"

# A sidecar that fails repeatedly is named in the status. Its instance is unhealthy and is not
# restarted.
for _ in 1 2 3; do
    wait_for 20 page "http://$ip:81/"
    crash shop 81 3
    wait_for 20 started_since "${stem}_side-proxy" "$(start_time "${stem}_side-proxy" 2>/dev/null || echo none)"
done
wait_for 20 field_is shop .status.reason SidecarNotRunning
equal unhealthy "$(field shop .status.health)" "health beside a sidecar that fails"
contains "$(field shop .status.message)" "sidecar proxy"
contains "$(kat why workload shop)" "but a sidecar does not"
wait_for 40 field_is shop .status.health not_applicable
equal 1 "$(field shop .status.restarts)" "restarts of the main program"
equal "$main_started" "$(start_time "$stem")" "start time of the main program"

# The container that holds the network belongs to no program: after its end all containers restart
# in a new network.
n1 kill -KILL "$(main_pid "${stem}_net")"
wait_for 30 started_since "${stem}_net" "$network_started"
main_and_sidecar_answer() { page "http://$ip/" >/dev/null && page "http://$ip:81/" >/dev/null; }
wait_for 30 main_and_sidecar_answer
wait_for 40 field_is shop .status.health not_applicable

# A changed sidecar is a new version of the workload. The workload writes data, so the old instance
# ends first.
shop 2
plan=$(kat plan -f /root/workloads/shop --units || true)
contains "$plan" "sidecars"
kat apply -f /root/workloads/shop --wait
differs "$id" "$(field shop .metadata.name)" "instance after the sidecar changed"
equal 4 "$(n1 cat "$order" | wc -l)" "lines of the init containers of two instances"
equal 2 "$(page "http://$(field shop .status.ip):81/env?VERSION")" "version of the sidecar"
contains "$(as "$user" podman ps --all --format '{{.Names}}')" "$(field shop '.status.unit | rtrimstr(".service")')"
lacks "$(as "$user" podman ps --all --format '{{.Names}}')" "$stem"
kat rollback workload shop --wait
equal 1 "$(page "http://$(field shop .status.ip):81/env?VERSION")" "version of the sidecar after a rollback"

status=$(field shop .status) id=$(field shop .metadata.name)
kat delete workload shop --volumes --yes --wait
no_remains "$status" "$id"
