# The .rpm is installed, upgraded, removed and installed again by rpm, and after a reset its removal leaves nothing
# bare
# root: rpm
# by name
# shellcheck shell=bash
version=$(dpkg-deb --field "$LAB_DEB" Version)
rpm=$(dirname "$LAB_DEB")/kat-$version-1.$(uname -m).rpm
[[ -f $rpm ]] || { echo "no $rpm: run contrib/package first" >&2; exit 1; }
lab copy "$rpm" n1:/root/kat.rpm

# prints EXPECTED COMMAND...: the command succeeds and prints exactly this on a terminal.
on_terminal() { n1 script --quiet --return --command "$*" /dev/null 2>&1 | tr -d '\r'; }
prints() {
    local expected=$1 output
    shift
    output=$(on_terminal "$@") || { echo "failed: $*, which printed $output" >&2 && return 1; }
    equal "$expected" "$output" "output of $*"
}
pid_of() { n1 systemctl show --property=MainPID --value "$1"; }
# The inventory of n1, without the files of tests and rpm's database.
inventory_without_database() { inventory n1 | grep -vE '^(root/|var/lib/rpm[ /])'; }
files_in_usr() { n1 find /usr -xdev ! -type d ! -name '*.pyc' | sort; }

# A bare machine has the .deb, which goes first.
n1 env DEBIAN_FRONTEND=noninteractive dpkg --purge kat
refused n1 which kat-agent
inventory_without_database >"$LAB_WORK/rpm-before"
files_in_usr >"$LAB_WORK/rpm-usr-before"
sysctls=$(sysctls n1)

# rpm's database knows no package of Debian, so nothing that the package requires is in it: hence
# --nodeps. Fedora has packages with the names below, and its glibc, libgcc and bash provide the rest.
refused n1 rpm --install /root/kat.rpm
requires=$(n1 rpm --query --requires --package /root/kat.rpm | LC_ALL=C sort -u |
    grep -vE '^(/bin/sh|rpmlib\([A-Za-z]+\) <= .*|rtld\(GNU_HASH\)|(ld-linux-[a-z0-9-]+|libc|libm|libgcc_s)\.so\.[0-9]\([A-Z0-9_.]*\)(\(64bit\))?)$')
equal "(crun or runc)
coreutils
dbus
diffutils
findutils
nftables
podman >= 5.2
shadow-utils
systemd >= 254" "$requires" "packages that the .rpm requires"
# The test runs each of these: the first at an installation and an upgrade, the others at an upgrade and
# a removal.
equal "postinstall scriptlet (using /bin/sh):
preuninstall scriptlet (using /bin/sh):
postuninstall scriptlet (using /bin/sh):" "$(n1 rpm --query --scripts --package /root/kat.rpm | grep '^[a-z]* scriptlet (')" "scriptlets"

prints "KAT is installed and nothing of it runs yet: 'kat-agent check', then 'kat-agent init' or 'join'." \
    rpm --install --nodeps /root/kat.rpm
# --nodeps again: --verify looks at dependencies too.
is_whole() { prints_nothing "differences from the .rpm" n1 rpm --verify --nodeps kat; }
is_whole
# The .deb has what packaging/files lists.
dpkg-deb --fsys-tarfile "$LAB_DEB" | tar -tv | awk '$1 !~ /^d/ { print $1, $2, substr($6, 2) }' | as_in_rpm | sort >"$LAB_WORK/deb-files"
n1 sh -c 'rpm --query --list kat | xargs stat --format="%A %U/%G %n"' | grep -v '^d' | sort >"$LAB_WORK/rpm-files"
diff "$LAB_WORK/deb-files" "$LAB_WORK/rpm-files"
dpkg-deb --ctrl-tarfile "$LAB_DEB" | tar -xO ./md5sums | as_in_rpm | lab exec n1 -- sh -c 'cd / && md5sum --quiet --check -'
n1 sh -c 'rpm --query --list kat >/root/kat.list'
prints_nothing "files with capabilities" n1 python3 -c 'import os
for line in open("/root/kat.list"):
    if "security.capability" in os.listxattr(line.rstrip("\n")):
        print(line, end="")'
# Only files outside /usr are in the inventory, and none is new.
diff "$LAB_WORK/rpm-before" <(inventory_without_database)
for unit in kat-agent.service kat-net.service kat-net.socket kat-wg.service; do
    equal "loaded inactive no" "$(n1 systemctl show --property=LoadState --property=ActiveState --property=NeedDaemonReload --value "$unit" | paste -sd ' ')" "$unit"
done
equal "disabled disabled disabled static" \
    "$( (n1 systemctl is-enabled kat-agent.service kat-net.service kat-net.socket kat-wg.service || true) | paste -sd ' ')" "enabled"

n1 kat-agent check
n1 kat-agent init
wait_for 60 node_is_ready
run web --port 80
address=$(field web .status.ip) id=$(field web .metadata.name) user=$(field web .status.user) unit=$(field web .status.unit)
wait_for 20 answers "http://$address/"

# An upgrade, to the same package: its %post runs with 2, and then %preun and %postun with 1.
pid=$(unit_property web MainPID) agent=$(pid_of kat-agent.service) net=$(pid_of kat-net.service) etcd=$(pid_of kat-etcd.service)
container() { as "$user" podman inspect --format '{{.State.Pid}}' "${unit%.service}"; }
process=$(container)
agent_restarted() {
    is_active kat-agent.service && differs "$agent" "$(pid_of kat-agent.service)" "pid of the agent" &&
        node_is_ready && field_is web .status.phase Running
}
start_load "$address" 80 50
prints "" rpm --upgrade --force --nodeps /root/kat.rpm
wait_for 30 agent_restarted
no_request_lost 100
equal "kat-$version-1.$(uname -m)" "$(n1 rpm --query kat)" "installed packages"
is_whole
equal "$pid $process" "$(unit_property web MainPID) $(container)" "the container's processes"
equal "$id 0" "$(field web '|"\(.metadata.name) \(.status.restarts)"')" "instance and its restarts"
equal "$net $etcd" "$(pid_of kat-net.service) $(pid_of kat-etcd.service)" "kat-net and etcd, which an upgrade does not restart"

# A removal says what stops working and asks nothing, also at a terminal. As with the .deb, KAT's
# services stop, and stay enabled for another installation; containers continue.
start_load "$address" 80 50
output=$(on_terminal rpm --erase --nodeps kat) || { echo "$output" >&2 && exit 1; }
contains "$output" "none is restarted, since none starts without its network"
contains "$output" "'kat-agent reset' removes them"
lacks "$output" "Remove it all the same?"
finds_nothing grep -iE 'warning|error|fail' <<<"$output"
refused n1 rpm --query kat
for service in kat-agent.service kat-net.service kat-net.socket; do
    equal inactive "$(n1 systemctl is-active "$service" || true)" "$service"
done
for link in multi-user.target.wants/kat-agent.service multi-user.target.wants/kat-net.service sockets.target.wants/kat-net.socket; do
    n1 test -L "/etc/systemd/system/$link"
done
diff "$LAB_WORK/rpm-usr-before" <(files_in_usr)
no_request_lost 100
equal web "$(n1 cat "/proc/$process/comm")" "the container's process"
equal "$etcd" "$(pid_of kat-etcd.service)" "etcd's process"
n1 test -s /var/lib/kat/node.json
n1 getent passwd "$user"
page "http://$address/crash?1" >/dev/null
unit_is_not_active() { [[ $(as "$user" systemctl --user is-active "$unit") == @(inactive|failed|activating) ]]; }
wait_for 30 unit_is_not_active
refused n1 curl --silent --max-time 1 "http://$address/"

# After a new installation the agent and the container run again.
prints "" rpm --install --nodeps /root/kat.rpm
is_whole
wait_for 60 node_is_ready
wait_for 60 field_is web .status.phase Running
wait_for 20 answers "http://$address/"

# After a reset the removal prints nothing, and nothing stays but backups.
n1 kat-agent reset --yes
prints "" rpm --erase --nodeps kat
n1 sh -c 'rm -rf /var/lib/kat/backups && if [ -e /var/lib/kat ]; then rmdir /var/lib/kat; fi'
absent n1 /etc/kat /var/lib/kat /run/kat
diff "$LAB_WORK/rpm-before" <(inventory_without_database)
diff "$LAB_WORK/rpm-usr-before" <(files_in_usr)
prints_nothing "units" n1 systemctl list-units --plain --no-legend --state=active,failed 'kat*'
equal "$sysctls" "$(sysctls n1)" "sysctls"
