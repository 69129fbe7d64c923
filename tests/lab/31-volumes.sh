# A volume's data survives crashes, versions, a reboot and a deletion, is never replaced by an empty volume, and only its owner sees it
# shellcheck shell=bash
# The program writes a line at each start and then serves. Its image's user is not root.
volumes='volumes: [{name: data, simpleClusterStorage: {}}]'
mounts='volumeMounts: [{name: data, mountPath: /data}]'
db() {
    run db --port 80 --spec "$volumes" --container "$mounts" --container 'entrypoint: [/bin/busybox, sh, -c]' \
        --container 'command: ["echo start $V >>/data/starts && exec /bin/web"]' "$@"
}
folder=/var/lib/kat/volumes/default/db/data
start_count() { n1 cat "$folder/starts" | wc -l; }
starts_are() { equal "$1" "$(start_count)" "starts"; }
db --env V=1
starts_are 1
instance=$(field db .metadata.name)
crash db
wait_for 30 starts_are 2
wait_for 30 field_is db .status.phase Running
equal "$instance" "$(field db .metadata.name)" "instance after a crash"

# A new version starts when the old one has ended.
db --env V=2
starts_are 3
equal "start 2" "$(n1 tail -n 1 "$folder/starts")" "the last start"
wait_for 30 process_count_is 1
contains "$(kat get events)" "a newer version takes its place"

# Other users of the machine cannot read the data.
uid=$(field db .status.uid)
equal "$uid" "$(n1 stat --format %g /var/lib/kat/volumes/default/db)" "group of the workload's folder"
refused n1 setpriv --reuid=65534 --regid=65534 --clear-groups ls /var/lib/kat/volumes/default/db
refused n1 setpriv --reuid=65534 --regid=65534 --clear-groups cat "$folder/starts"

# After a boot the instance waits until its place is confirmed, and then has its data.
lab reboot n1
wait_for 60 node_is_ready
# The leader's record from before the boot may still say Running, so the test counts starts first.
wait_for 60 starts_are 4
wait_for 60 field_is db .status.phase Running
service_answers() { page "http://$(service_address db)/" >/dev/null; }
wait_for 10 service_answers

# The folder is missing, as if its disk were not mounted: no empty folder replaces it, and the
# instance starts when the folder is back.
kat scale workload db --replicas 0 --wait
n1 mv "$folder" /var/lib/kat/volumes/default/elsewhere
kat scale workload db --replicas 1
wait_for 30 field_is db .status.reason VolumeMissing
contains "$(field db .status.message)" "$folder"
contains "$(kat why workload db)" "VolumeMissing"
absent n1 "$folder"
n1 mv /var/lib/kat/volumes/default/elsewhere "$folder"
wait_for 30 field_is db .status.phase Running
starts_are 5

# The data outlives its workload, and the next workload of that name gets it.
kat delete workload db --wait
starts_are 5
db --env V=3
starts_are 6
equal "$uid" "$(field db .status.uid)" "uid of the workload that came back"
contains "$(kat get volumes)" "Bound"
equal n1 "$(kat get volume db/data -o jsonpath='{.status.node}')" "machine of a volume"

# The data is deleted only on request, and not while an instance uses it.
output=$(kat delete volume db/data --yes 2>&1) && exit 1
contains "$output" "is in use by db-"
output=$(kat delete workload db --wait 2>&1)
contains "$output" "katcall delete volume"
kat delete volume db/data --yes
wait_for 10 absent n1 /var/lib/kat/volumes/default/db
no_volumes_of_db() { equal '[]' "$(kat get volumes -o json | jq -c '[.items[] | select(.spec.workload == "db")]')" "volumes after the removal"; }
wait_for 10 no_volumes_of_db
db --env V=4
starts_are 1
kat delete workload db --volumes --yes --wait
wait_for 10 absent n1 /var/lib/kat/volumes/default/db

# subPath mounts a folder within the volume; a readOnly mount refuses writes.
run reader --port 80 --spec 'volumes: [{name: data, simpleClusterStorage: {}}]' \
    --container 'volumeMounts: [{name: data, mountPath: /a, subPath: one/two}, {name: data, mountPath: /b, subPath: three, readOnly: true}]'
inside reader sh -c 'echo here >/a/row'
refused inside reader sh -c 'echo here >/b/row'
equal here "$(n1 cat /var/lib/kat/volumes/default/reader/data/one/two/row)" "a row below subPath"

# hostMount takes paths that the machine's owner allows, without symbolic links.
n1 sh -c 'mkdir -p /srv/web && ln -sfn /etc /srv/web/link && echo hello >/srv/web/hello'
host() {
    workload host --port 80 --spec "volumes: [{name: conf, hostMount: {$1}}]" --container "volumeMounts: [{name: conf, mountPath: /conf}]"
}
kat apply -f "$(host 'hostPath: /etc/kat')"
wait_for 30 field_is host .status.reason HostPathNotAllowed
kat apply -f "$(host 'hostPath: /srv/web/link, ensureType: Directory')"
wait_for 30 newest_is host .status.reason HostPathIsLink
kat apply -f "$(host 'hostPath: /srv/web/none')"
wait_for 30 newest_is host .status.reason HostPathMissing
contains "$(kat why workload host)" "/srv/web/none"
kat apply --wait -f "$(host 'hostPath: /srv/web, ensureType: Directory')"
equal hello "$(inside host cat /conf/hello)" "a file of the machine"
kat apply -f "$(host 'hostPath: /srv/web/made/here, ensureType: DirectoryOrCreate')"
wait_for 30 newest_is host .status.reason HostPathNotCreated
contains "$(kat why workload host)" "hostMountCreate"
absent n1 /srv/web/made
kat apply --wait -f "$(host 'hostPath: /var/lib/kat/host/default/made/here, ensureType: DirectoryOrCreate')"
equal "$(field host .status.uid)" "$(n1 stat --format %u /var/lib/kat/host/default/made/here)" "owner of a folder that was made"
equal "711 0" "$(n1 stat --format '%a %u' /var/lib/kat/host/default/made)" "mode and owner of the folder above it"
# Its agent makes a missing folder again while the workload is there.
kat delete workload host --wait
n1 rm -rf /srv/web /var/lib/kat/host
