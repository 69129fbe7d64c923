# Machines change to another version and back one by one, including the leader: no request is lost, and every mix of versions places and moves instances
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
# A package of another release, with another number, can be named by KAT_LAB_OTHER_DEB. The stand-in for one has the same
# programs: what versions store and say to each other is compared in unit tests, from kept dumps and with words that nobody knows.
older=$(dpkg-deb --field "$LAB_DEB" Version)
package=${KAT_LAB_OTHER_DEB:-}
if [[ ! $package ]]; then
    mkdir -p "$LAB_WORK/upgrade/bin"
    dpkg-deb --extract "$LAB_DEB" "$LAB_WORK/upgrade/tree"
    cp "$LAB_WORK"/upgrade/tree/usr/{bin/*,libexec/kat/kat-net} "$LAB_WORK/upgrade/bin"
    package=$(contrib/package --binaries "$LAB_WORK/upgrade/bin" --version "$older.2~test" --out "$LAB_WORK/upgrade" deb)
fi
newer=$(dpkg-deb --field "$package" Version)
for node in n1 n2 n3; do
    lab copy "$package" "$node:/root/newer.deb"
    lab copy "$LAB_DEB" "$node:/root/older.deb"
done

run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
declare -A pids
for node in n1 n2 n3; do pids[$node]=$(on "$node" pgrep -x web); done
for node in n2 n3; do
    start_load "$(field_on web "$node" .status.ip)" 80 50 "$node"
done
began=$SECONDS
# install NODE FILE VERSION: and its agent is another process, is Ready, and says the version.
install() {
    local node=$1 before
    before=$(on "$node" systemctl show --property=MainPID --value kat-agent.service)
    on "$node" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet -o Dpkg::Use-Pty=0 --allow-downgrades "/root/$2.deb"
    equal "$3" "$(on "$node" dpkg-query --show --showformat='${Version}' kat)" "package on $node"
    runs_it() {
        [[ $(on "$node" systemctl show --property=MainPID --value kat-agent.service) != "$before" ]] || return 1
        is_active_on "$node" && nodes_are_ready
    }
    wait_for 60 runs_it
}
is_active_on() { [[ $(on "$1" systemctl is-active kat-agent.service || true) == active ]]; }
# works: the leader of now places and stops on every machine.
works() {
    run other --replicas 3
    equal '["n1","n2","n3"]' "$(machines_running other)" "machines of another workload"
    kat delete workload other --wait
}
# The leader first has a newer agent, and then, newer itself, an older one.
install n2 newer "$newer"
works
for node in n3 n1; do install "$node" newer "$newer"; done
wait_for 60 members_are_healthy 3
install n1 older "$older"
works
for node in n3 n2; do install "$node" older "$older"; done
wait_for 60 members_are_healthy 3
least=$(((SECONDS - began) * 40))
for node in n2 n3; do no_request_lost "$least" "$node"; done
for node in n1 n2 n3; do equal "${pids[$node]}" "$(on "$node" pgrep -x web)" "the program on $node"; done
