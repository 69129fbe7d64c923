# A tenant has KAT make nothing in other people's folders
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
here='nodeSelector: {kat.dws.rip/nodeName: n1}'
hooks=/srv/git/x.git/hooks
n1 sh -c "rm -rf /srv/git; mkdir -p $hooks"
# apply_mount NAME PATH KIND: applies a workload that mounts PATH, with the tenant's token alone.
apply_mount() {
    tenant apply -f "$(workload "$1" --port 80 --spec "$here" --container 'volumeMounts: [{name: v, mountPath: /v}]' \
        --spec "volumes: [{name: v, hostMount: {hostPath: $2, ensureType: $3}}]")"
}
apply_mount hook "$hooks/post-receive" FileOrCreate
apply_mount folder /srv/salt/states DirectoryOrCreate
apply_mount other /var/lib/kat/host/other/data DirectoryOrCreate
for name in hook folder other; do
    wait_for 20 field_is "$name" .status.reason HostPathNotCreated
    equal inactive "$(unit_property "$name" ActiveState)" "state of $name"
done
prints_nothing "files in a folder of root" n1 ls -A "$hooks"
absent n1 /srv/salt /var/lib/kat/host/other

# The control: in the namespace's own folder KAT makes the file, which then belongs to the tenant's
# user.
apply_mount own /var/lib/kat/host/default/hooks/post-receive FileOrCreate
wait_for 20 field_is own .status.phase Running
equal "$(field own .status.uid)" "$(n1 stat --format %u /var/lib/kat/host/default/hooks/post-receive)" "owner of the file that KAT made"
for name in hook folder other own; do kat delete workload "$name"; done
for name in hook folder other own; do kat delete workload "$name" --wait --ignore-not-found; done
n1 rm -rf /srv/git /var/lib/kat/host
