# A tenant's token brings nobody to the user of its container, nor to root of the machine
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
here='nodeSelector: {kat.dws.rip/nodeName: n1}'
base=/var/lib/kat/host/default/evil
mounts() { echo "volumes: [{name: v, hostMount: {hostPath: $1, ensureType: DirectoryOrCreate}}]"; }
mounted='volumeMounts: [{name: v, mountPath: /v}]'

# A path to be made below another path that the program may write to: the apply is refused, with
# file and line.
nested=$(workload nested --spec "volumes: [{name: o, hostMount: {hostPath: $base, ensureType: DirectoryOrCreate}}, {name: i, hostMount: {hostPath: $base/d, ensureType: DirectoryOrCreate}}]" \
    --container 'volumeMounts: [{name: o, mountPath: /o}, {name: i, mountPath: /i}]')
output=$(tenant apply -f "$nested" 2>&1) && exit 1
contains "$output" "workload.kat:"
contains "$output" "could put a link in its place"

# Two workloads: the second mounts a folder whose path the first program replaces with a link to the
# bus of the second one's user.
tenant apply --wait -f "$(workload outer --port 80 --spec "$here" --spec "$(mounts "$base")" --container "$mounted" --container 'user: "0:0"')"
tenant apply --wait -f "$(workload inner --port 80 --spec "$here")"
uid=$(field inner .status.uid)
inside outer sh -c "ln -s /run/user/$uid /v/d"
# The control: the link and its target exist.
n1 test -S "$base/d/bus"
tenant apply -f "$(workload inner --port 80 --spec "$here" --spec "$(mounts "$base/d")" --container "$mounted")"
wait_for 20 newest_is inner .status.reason HostPathIsLink
# KAT makes nothing there either. It mounts an existing folder, and refuses a link in its place.
inside outer rm /v/d
wait_for 20 newest_is inner .status.reason HostPathUnprotected
inside outer mkdir /v/d
wait_for 20 newest_is inner .status.phase Running
refused inside inner test -e /v/bus
tenant apply -f "$(workload direct --port 80 --spec "$here" --spec "$(mounts "/run/user/$uid")" --container "$mounted")"
wait_for 20 field_is direct .status.reason HostPathNotAllowed
for name in outer inner direct; do kat delete workload "$name"; done

# Files: the workload's user puts a link to /etc where root is about to write the next folder.
folder=$(workload files --port 80 --spec "$here" --spec 'volumes: [{name: conf, files: conf/}]' --container 'volumeMounts: [{name: conf, mountPath: /conf}]')
n1 sh -c "mkdir -p $folder/conf/a/z && for i in \$(seq 1 250); do echo \$i >$folder/conf/a/f\$i; done
    echo 0 >$folder/conf/a/f000; echo tenant >$folder/conf/a/z/kat-attack"
tenant apply --wait -f "$folder"
uid=$(field files .status.uid)
n1 rm -rf /var/tmp/control
n1 install -d -o "$uid" -g "$uid" /var/tmp/control /var/tmp/control/.x
# shellcheck disable=SC2016
n1 systemd-run --quiet --unit=attack-links --uid="$uid" --gid="$uid" sh -c \
    'while :; do for top in /var/lib/kat/files/$0/.[0-9a-f]* /var/tmp/control/.x; do ln -s /etc $top/conf/a/z; done 2>/dev/null; done' "$uid"
for round in 1 2 3; do
    n1 sh -c "echo $round >$folder/conf/a/f000"
    tenant apply --wait -f "$folder"
    equal "$round" "$(inside files cat /conf/a/f000)" "the first file"
    equal tenant "$(inside files cat /conf/a/z/kat-attack)" "the last file"
    absent n1 /etc/kat-attack
done
# The control: in a folder that the user may write to, the link is made.
n1 install -d -o "$uid" -g "$uid" /var/tmp/control/.x/conf /var/tmp/control/.x/conf/a
wait_for 10 n1 test -L /var/tmp/control/.x/conf/a/z
n1 systemctl stop attack-links.service
n1 rm -rf /var/tmp/control
for name in files outer inner direct; do kat delete workload "$name" --wait --ignore-not-found; done
n1 rm -rf /var/lib/kat/host
