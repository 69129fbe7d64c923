# apply, delete and reset leave alone what is not KAT's
# leaves no cluster
# shellcheck shell=bash
quadlet() { printf '[Container]\nImage=%s\nContainerName=mine\nNetwork=none\n[Quadlet]\nDefaultDependencies=false\n' "$WEB_IMAGE"; }
write_to() { lab exec n1 -- sh -c 'mkdir -p "${1%/*}" && cat >"$1"' sh "$1"; }
# The uids that the workload will get first and second.
run first
uid=$(($(field first .status.uid) + 1)) next=$(($(field first .status.uid) + 2))
kat delete workload first --wait
# Foreign files and a unit with names like KAT's, in folders that KAT writes to.
for each in "$uid" "$next"; do
    quadlet | write_to "/etc/containers/systemd/users/$each/kat-default-web-mine.container"
    printf '[Unit]\nDocumentation=man:mine\n' | write_to "/etc/systemd/system/user@$each.service.d/60-mine.conf"
done
quadlet | write_to /etc/containers/systemd/users/others.container
printf '[Service]\nExecStart=/usr/bin/sleep infinity\n' | write_to /etc/systemd/system/kat-mine.service
echo '# mine' | write_to /etc/sysctl.d/61-mine.conf
echo '# mine' | write_to /etc/kat/mine.conf
n1 systemctl daemon-reload
n1 systemctl start kat-mine.service
# Foreign containers: one of root, and one of a lingering user with a quadlet.
n1 podman run --quiet --detach --network none --name kat-default-web-mine "$WEB_IMAGE"
n1 useradd --create-home --uid 3003 dora
n1 loginctl enable-linger dora
n1 systemctl start user@3003.service
quadlet | write_to /home/dora/.config/containers/systemd/mine.container
n1 chown -R dora:dora /home/dora
as dora systemctl --user daemon-reload
as dora systemctl --user start mine.service
# A foreign nftables table, link and route.
n1 nft 'add table inet mine; add chain inet mine keep { type filter hook forward priority 0; }; add rule inet mine keep accept comment "mine"'
n1 ip link add katmine type veth peer name katmine-end
n1 ip route add unreachable 10.99.0.0/16
foreign_state() {
    n1 sh -c 'for each in '"$uid $next"'; do
            sha256sum "/etc/containers/systemd/users/$each/kat-default-web-mine.container" "/etc/systemd/system/user@$each.service.d/60-mine.conf"
        done
        sha256sum /etc/containers/systemd/users/others.container /etc/systemd/system/kat-mine.service /etc/sysctl.d/61-mine.conf \
        /etc/kat/mine.conf; systemctl show --property=MainPID,ActiveState kat-mine.service
        podman ps --all --format "{{.ID}} {{.Names}} {{.State}}"; nft list table inet mine
        ip -o link show dev katmine | sed "s/@.*//"; ip -4 route show 10.99.0.0/16; getent passwd dora; grep dora /etc/subuid'
    as dora sh -c 'systemctl --user show --property=MainPID,ActiveState,NRestarts mine.service; podman ps --format "{{.ID}} {{.Names}} {{.State}}"
        sha256sum ~/.config/containers/systemd/mine.container'
}
foreign_state >"$LAB_WORK/strangers"
cat "$LAB_WORK/strangers"
equal 2 "$(grep -c ' mine running$\| kat-default-web-mine running$' "$LAB_WORK/strangers")" "foreign containers that run"

run web --port 80
equal "$uid" "$(field web .status.uid)" "the workload's uid"
diff "$LAB_WORK/strangers" <(foreign_state)
kat delete workload web --wait
diff "$LAB_WORK/strangers" <(foreign_state)
run web --port 80
equal "$next" "$(field web .status.uid)" "the workload's uid"
n1 kat-agent reset --yes
diff "$LAB_WORK/strangers" <(foreign_state)
# The control: KAT's own objects are gone.
absent n1 /var/lib/kat/node.json
refused n1 nft list table inet kat
refused n1 nft list table inet kat-services
refused n1 getent passwd "$uid"
refused n1 getent passwd "$next"
