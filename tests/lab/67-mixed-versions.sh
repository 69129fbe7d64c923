# Machines change to another version and back one by one, including the leader: no request is lost, and every mix of versions places and moves instances
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
# KAT_LAB_OTHER_DEB names a package of another version. Without it, a package of the same programs
# with another version number takes its place. Unit tests compare what versions store and send, from
# kept dumps and with unknown words.
older=$(dpkg-deb --field "$LAB_DEB" Version)
package=${KAT_LAB_OTHER_DEB:-}
if [[ ! $package ]]; then
    mkdir -p "$LAB_WORK/upgrade/bin"
    dpkg-deb --extract "$LAB_DEB" "$LAB_WORK/upgrade/tree"
    cp "$LAB_WORK"/upgrade/tree/usr/{bin/*,libexec/kat/kat-net,libexec/kat/kat-ingress} "$LAB_WORK/upgrade/bin"
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
# install NODE FILE VERSION: installs the package and waits until another agent process runs and all
# machines are Ready.
install() {
    local node=$1 before
    before=$(on "$node" systemctl show --property=MainPID --value kat-agent.service)
    on "$node" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet -o Dpkg::Use-Pty=0 --allow-downgrades "/root/$2.deb"
    equal "$3" "$(on "$node" dpkg-query --show --showformat='${Version}' kat)" "package on $node"
    runs_new_version() {
        differs "$before" "$(on "$node" systemctl show --property=MainPID --value kat-agent.service)" "pid of the agent" || return 1
        is_active_on "$node" && nodes_are_ready
    }
    wait_for 60 runs_new_version
}
is_active_on() { [[ $(on "$1" systemctl is-active kat-agent.service || true) == active ]]; }
# can_place_and_stop: the present leader starts and stops instances on every machine.
can_place_and_stop() {
    run other --replicas 3
    equal '["n1","n2","n3"]' "$(machines_running other)" "machines of another workload"
    kat delete workload other --wait
}
# First an older leader has a newer agent, then a newer leader has older agents.
install n2 newer "$newer"
can_place_and_stop
for node in n3 n1; do install "$node" newer "$newer"; done
wait_for 60 members_are_healthy 3
install n1 older "$older"
can_place_and_stop
for node in n3 n2; do install "$node" older "$older"; done
wait_for 60 members_are_healthy 3
least=$(((SECONDS - began) * 40))
for node in n2 n3; do no_request_lost "$least" "$node"; done
for node in n1 n2 n3; do equal "${pids[$node]}" "$(on "$node" pgrep -x web)" "the program on $node"; done
