# Data on a disk that is missing is given up only on request, and is not used for another volume when the disk returns
# shellcheck shell=bash
volumes='volumes: [{name: data, simpleClusterStorage: {}}]'
mounts='volumeMounts: [{name: data, mountPath: /data}]'
db() {
    workload db --container "$mounts" --container 'entrypoint: [/bin/busybox, sh, -c]' \
        --container 'command: ["echo start $V >>/data/starts && exec /bin/web"]' --spec "$volumes" "$@"
}
base=/var/lib/kat/volumes
folder=$base/default/db/data
# The disk of the volumes: it is put in and taken out by a mount.
n1 mkdir -p /srv/disk "$base"
put_in() { n1 mount --bind /srv/disk "$base"; }
take_out() { n1 umount "$base"; }
put_in
kat apply --wait -f "$(db --env V=old)"
equal "start old" "$(n1 cat "$folder/starts")" "the row of the old volume"
kat delete workload db --wait

# The disk is missing, so the removal waits, and says so.
take_out
kat delete volume db/data --yes
volumes_say() { contains "$(kat get volumes)" "$1"; }
wait_for 60 volumes_say "Removing (not found on n1)"
output=$(kat status 2>&1) && exit 1
contains "$output" VolumeNotRemoved
contains "$(kat get volume db/data -o jsonpath='{.status.removals[0].message}')" "katcall volume forget default/db/data --on n1"

# It is removed in the ordinary way when the disk is back, and then cannot be given up.
put_in
no_volumes() { equal '[]' "$(kat get volumes -o json | jq -c .items)" "volumes"; }
wait_for 90 no_volumes
absent n1 /srv/disk/default/db
refused kat volume forget db/data --on n1 --yes

# The disk is missing for good: the data is given up, and a new volume begins.
kat apply --wait -f "$(db --env V=old)"
output=$(kat volume forget db/data --on n1 --yes 2>&1) && exit 1
contains "$output" "katcall delete volume default/db/data"
kat delete workload db --wait
take_out
kat delete volume db/data --yes
wait_for 60 volumes_say "not found on n1"
equal "volume/db/data forgetting" "$(kat volume forget db/data --on n1 --yes 2>/dev/null)" "output of forget"
wait_for 60 no_volumes
contains "$(kat get events)" VolumeForgotten
kat apply --wait -f "$(db --env V=new)"
equal "start new" "$(n1 cat "$folder/starts")" "the row of the new volume"

# The disk returns with the old folder: it is neither used nor changed, whether the new workload got the same user or another one.
is_refused() { [[ $(field db .status.reason) == @(VolumeForgotten|VolumeForeign) ]]; }
kat scale workload db --replicas 0 --wait
put_in
kat scale workload db --replicas 1
wait_for 30 is_refused
contains "$(kat why workload db)" "$folder"
equal "start old" "$(n1 cat "$folder/starts")" "the row of the old volume after its disk returned"
n1 systemctl restart kat-agent
wait_for 60 node_is_ready
wait_for 60 is_refused
equal "start old" "$(n1 cat "$folder/starts")" "the row of the old volume after a restart of the agent"

# Without that disk the new volume is there again.
take_out
wait_for 60 field_is db .status.phase Running
equal "start new" "$(n1 head -n 1 "$folder/starts")" "the first row of the new volume"
kat delete workload db --volumes --yes --wait
n1 rm -rf /srv/disk
