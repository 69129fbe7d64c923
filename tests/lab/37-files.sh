# Files of the workload's folder are in its containers, read-only; a changed file is a new version, and no other user reads them
# shellcheck shell=bash
folder=$(workload conf --replicas 2 --port 80 --spec 'volumes: [{name: conf, files: conf/}]' \
    --container 'volumeMounts: [{name: conf, mountPath: /conf}, {name: conf, mountPath: /etc/one.conf, subPath: one.conf}]' \
    --container 'user: "1000:1000"')
write_file() { n1 sh -c "mkdir -p $folder/conf/inner && printf '%s' '$2' >$folder/conf/$1"; }
write_file one.conf first
write_file inner/start.sh '#!/bin/busybox sh
echo started'
n1 chmod 755 "$folder/conf/inner/start.sh"
n1 dd if=/dev/urandom of="$folder/conf/blob" bs=1024 count=300 status=none
sum=$(n1 sha256sum "$folder/conf/blob" | cut -d ' ' -f 1)
kat apply -f "$folder" --wait
files_are() {
    local id
    for id in $(instances conf | jq -r '.[].metadata.name'); do
        equal "$1" "$(kat exec "$id" -- cat /conf/one.conf)" "a file in $id"
        equal "$1" "$(kat exec "$id" -- cat /etc/one.conf)" "the same file by subPath in $id"
    done
}
files_are first
id=$(instances conf | jq -r '.[0].metadata.name')
equal started "$(kat exec "$id" -- /conf/inner/start.sh)" "output of a program in the folder, run by a user that is not root"
equal "$sum" "$(kat exec "$id" -- sha256sum /conf/blob | cut -d ' ' -f 1)" "a file that is not text"
refused kat exec "$id" -- sh -c 'echo x >/conf/one.conf'

# Other users of the machine cannot read the files.
uid=$(instances conf | jq -r '.[0].status.uid')
equal "0 $uid 750" "$(n1 stat --format '%u %g %a' "/var/lib/kat/files/$uid")" "owner of the folder of files"
refused n1 setpriv --reuid=65534 --regid=65534 --clear-groups ls "/var/lib/kat/files/$uid"

# A plan of the same files shows no change. A changed file is shown, and is a new version.
kat plan -f "$folder"
write_file one.conf second
output=$(kat plan -f "$folder") && exit 1
contains "$output" "-first"
contains "$output" "+second"
contains "$output" "what it is made of changes"
kat apply -f "$folder" --wait
files_are second
old_files_are_gone() { [[ $(n1 ls "/var/lib/kat/files/$uid" | wc -l) == 1 ]]; }
wait_for 30 old_files_are_gone
kat rollback workload conf --to 1 --wait
files_are first

# After a boot without the agent both instances start.
n1 systemctl mask kat-agent
lab reboot n1
two_programs_run() { [[ $(n1 pgrep -xc web) == 2 ]]; }
wait_for 60 two_programs_run
n1 systemctl unmask kat-agent
n1 systemctl start kat-agent
wait_for 60 node_is_ready

# An error names a folder that contains no file.
n1 rm -r "$folder/conf"
output=$(kat apply -f "$folder" 2>&1) && exit 1
contains "$output" "no file lies in \`conf/\`"
kat delete workload conf --wait
no_files_left() { absent n1 "/var/lib/kat/files/$uid"; }
wait_for 30 no_files_left
