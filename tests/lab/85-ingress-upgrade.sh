# An upgrade of the package under load: the other instance of kat-ingress takes over the sockets, the one of before finishes what it has, and no request is lost
# shellcheck shell=bash
wait_for 30 nodes_are_ready
# A package of the same programs with another version number.
older=$(dpkg-deb --field "$LAB_DEB" Version)
mkdir -p "$LAB_WORK/upgrade/bin"
dpkg-deb --extract "$LAB_DEB" "$LAB_WORK/upgrade/tree"
cp "$LAB_WORK"/upgrade/tree/usr/{bin/*,libexec/kat/kat-net,libexec/kat/kat-ingress} "$LAB_WORK/upgrade/bin"
package=$(contrib/package --binaries "$LAB_WORK/upgrade/bin" --version "$older.2~test" --out "$LAB_WORK/upgrade" deb)
newer=$(dpkg-deb --field "$package" Version)
lab copy "$package" n1:/root/newer.deb
lab copy "$LAB_DEB" n1:/root/older.deb

HOST=upgrade.lan
declare -A load_pids=()
address=$(overlay_address n1)
folder=$(workload web --port 80 --replicas 2 --health 'http: {path: /healthz, port: web}, periodSeconds: 1')
n1 sh -c 'printf "  ingress:\n    - {host: %s, servicePortName: web, tls: true, plainHTTP: serve}\n" "$2" >>"$1/VirtualLoadBalancer.kat"' sh "$folder" "$HOST"
kat apply --wait --timeout 90s -f "$folder"
n1 sh -c 'katcall ca trust >/root/ca.crt'
# fetch SCHEME PORT PATH [CURL OPTION...]
fetch() {
    local scheme=$1 port=$2 path=$3
    shift 3
    n1 curl --silent --show-error --fail --cacert /root/ca.crt --resolve "$HOST:$port:$address" "$@" "$scheme://$HOST$path"
}
serves() { fetch https 443 / --max-time 5 | grep -q '^host=' && fetch http 80 / --max-time 5 | grep -q '^host='; }
wait_for 60 serves
# The names of the instances that run, such as a.
instances_of_ingress() {
    n1 sh -c 'for one in a b; do
        state=$(systemctl is-active "kat-ingress@$one" || true)
        case $state in active | activating | deactivating) echo "$one" ;; esac
    done'
}
runs_alone() { equal "$1" "$(instances_of_ingress)" "instances of kat-ingress that run"; }

# load_both: ten requests a second on each port until stopped, each over a new connection, and as many over connections that
# are kept. Each writes how many it sent, and how many failed.
load_both() {
    local which scheme port kind
    n1 rm -f /run/stop-upgrade
    for which in https-443-new http-80-new https-443-kept; do
        IFS=- read -r scheme port kind <<<"$which"
        lab exec n1 -- sh -c '
            scheme=$3 port=$4 sent=0 failed=0 each=1
            [ "$5" = new ] || each=20
            urls=$(i=0; while [ $i -lt $each ]; do echo "$scheme://$1/"; i=$((i + 1)); done)
            while [ ! -e /run/stop-upgrade ]; do
                sent=$((sent + 1))
                # Several requests of one curl share a connection, a tenth of a second apart.
                curl --silent --show-error --fail --fail-early --max-time 30 --rate 10/s --cacert /root/ca.crt --resolve "$1:$port:$2" $urls >/dev/null ||
                    failed=$((failed + 1))
                [ "$each" != 1 ] || sleep 0.1
            done
            echo "$sent $failed"' sh "$HOST" "$address" "$scheme" "$port" "$kind" </dev/null >"$LAB_WORK/load-$which" 2>"$LAB_WORK/load-$which.log" &
        load_pids["$which"]=$!
    done
    trap 'kill "${load_pids[@]}" 2>/dev/null || true; tail -n 5 "$LAB_WORK"/load-* >&2' EXIT
}
none_lost() {
    local which sent failed
    n1 touch /run/stop-upgrade
    for which in "${!load_pids[@]}"; do
        wait "${load_pids[$which]}"
        unset "load_pids[$which]"
        read -r sent failed <"$LAB_WORK/load-$which"
        echo "$which: $sent runs of curl, $failed failed"
        [[ $failed == 0 ]] && ((sent > 2)) || return 1
    done
}
# upgrade FILE VERSION: installs the package while requests come, and one waits for its answer.
upgrade() {
    local before after slow_pid
    before=$(instances_of_ingress)
    [[ $before == [ab] ]]
    after=b
    [[ $before == a ]] || after=a
    load_both
    sleep 3
    fetch https 443 '/slow?20000' --max-time 60 >"$LAB_WORK/slow" &
    slow_pid=$!
    sleep 1
    n1 env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet -o Dpkg::Use-Pty=0 --allow-downgrades "/root/$1.deb"
    equal "$2" "$(n1 dpkg-query --show --showformat='${Version}' kat)" "package"
    equal active "$(n1 systemctl is-active "kat-ingress@$after")" "the other instance after the upgrade"
    wait "$slow_pid"
    wait_for 100 runs_alone "$after"
    sleep 3
    none_lost
    wait_for 60 nodes_are_ready
    serves
}
upgrade newer "$newer"
upgrade older "$older"
kat delete workload web --wait
n1 rm -f /root/ca.crt /root/newer.deb /root/older.deb /run/stop-upgrade
