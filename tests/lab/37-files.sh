# Files of the workload's folder are in its containers, read-only; a changed file is a new version, and no other user reads them
# shellcheck shell=bash
folder=$(workload conf --replicas 2 --port 80 --spec 'volumes: [{name: conf, files: conf/}]' \
    --container 'volumeMounts: [{name: conf, mountPath: /conf}, {name: conf, mountPath: /etc/one.conf, subPath: one.conf}]' \
    --container 'user: "1000:1000"')
put() { n1 sh -c "mkdir -p $folder/conf/inner && printf '%s' '$2' >$folder/conf/$1"; }
put one.conf first
put inner/start.sh '#!/bin/busybox sh
echo started'
n1 chmod 755 "$folder/conf/inner/start.sh"
n1 dd if=/dev/urandom of="$folder/conf/blob" bs=1024 count=300 status=none
sum=$(n1 sha256sum "$folder/conf/blob" | cut -d ' ' -f 1)
kat apply -f "$folder" --wait
all_say() {
    local id
    for id in $(instances conf | jq -r '.[].metadata.name'); do
        equal "$1" "$(kat exec "$id" -- cat /conf/one.conf)" "a file in $id"
        equal "$1" "$(kat exec "$id" -- cat /etc/one.conf)" "the same file by subPath in $id"
    done
}
all_say first
id=$(instances conf | jq -r '.[0].metadata.name')
equal started "$(kat exec "$id" -- /conf/inner/start.sh)" "what a program of the folder says to a user that is not root"
equal "$sum" "$(kat exec "$id" -- sha256sum /conf/blob | cut -d ' ' -f 1)" "a file that is not text"
refused kat exec "$id" -- sh -c 'echo x >/conf/one.conf'

# No other user on the machine can read the files.
uid=$(instances conf | jq -r '.[0].status.uid')
equal "0 $uid 750" "$(n1 stat --format '%u %g %a' "/var/lib/kat/files/$uid")" "owner of the folder of files"
refused n1 setpriv --reuid=65534 --regid=65534 --clear-groups ls "/var/lib/kat/files/$uid"

# The same again changes nothing; a changed file is shown, and is a new version.
kat plan -f "$folder"
put one.conf second
output=$(kat plan -f "$folder") && exit 1
contains "$output" "-first"
contains "$output" "+second"
contains "$output" "what it is made of changes"
kat apply -f "$folder" --wait
all_say second
gone() { [[ $(n1 ls "/var/lib/kat/files/$uid" | wc -l) == 1 ]]; }
wait_for 30 gone
kat rollback workload conf --to 1 --wait
all_say first

# The files are present after a boot without the agent.
n1 systemctl mask kat-agent
lab reboot n1
serves() { [[ $(n1 pgrep -xc web) == 2 ]]; }
wait_for 60 serves
n1 systemctl unmask kat-agent
n1 systemctl start kat-agent
wait_for 60 node_is_ready

# A folder that nothing lies in, and a file that is not mounted, are told with their place.
n1 rm -r "$folder/conf"
output=$(kat apply -f "$folder" 2>&1) && exit 1
contains "$output" "no file lies in \`conf/\`"
kat delete workload conf --wait
nothing_left() { ! n1 test -e "/var/lib/kat/files/$uid"; }
wait_for 30 nothing_left
