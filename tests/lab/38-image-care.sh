# Unused images are removed by age; those of the current and of the last good version stay, so that neither a rollback nor a return pulls anything; a machine short of disk space gets no new instances
# machines: 2
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
kat label node n1 place=one
# set_agent_settings LINE...: replaces the agent.yaml of n1.
set_agent_settings() {
    printf '%s\n' "$@" | lab exec n1 -- sh -c 'mkdir -p /etc/kat && cat >/etc/kat/agent.yaml'
    n1 systemctl restart kat-agent
    wait_for 60 nodes_are_ready
}
kat registry set registry.lab:5000 --insecure
tree=$LAB_WORK/cared
cp -a "$LAB_WORK/images/web" "$tree"
for version in 1 2 3; do
    head -c 5242880 /dev/urandom >"$tree/weight"
    lab image "test/cared:$version" "$tree" --busybox --entrypoint '["/bin/web"]' --user 1000 --env "V=$version"
done
# The disk of the lab's machine may be full for other reasons, so the check of its free space is
# off. The test mounts a file system of known size below.
set_agent_settings 'diskFree: 0' 'reserved: {cpu: 100m, memory: 256Mi}'
run cared --image registry.lab:5000/test/cared:1 --port 80 --spec 'nodeSelector: {place: one}'
user=$(field cared .status.user)
storage=/var/lib/kat/users/$user/.local/share/containers/storage
digest() {
    n1 curl --silent --fail --head -H 'Accept: application/vnd.oci.image.manifest.v1+json' \
        "http://registry.lab:5000/v2/test/cared/manifests/$1" | tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: //p'
}
declare -A digests
for version in 1 2 3; do digests[$version]=$(digest "$version"); done
# is_stored VERSION: whether the user's storage contains this version's image.
is_stored() { n1 grep -q "${digests[$1]}" "$storage/overlay-images/images.json"; }
is_removed() { finds_nothing is_stored "$1"; }
has_event() { contains "$(kat get events -A)" "$1"; }
for version in 2 3; do kat set image "cared=registry.lab:5000/test/cared:$version" --wait; done
for version in 1 2 3; do is_stored "$version"; done

# Reserved memory is not allocatable for workloads.
contains "$(kat describe node n1)" allocatable
node=$(kat get node n1 -o json)
bytes_of() { jq -er "$1" <<<"$node" | numfmt --from=auto; }
equal 268435456 $(($(bytes_of .status.capacity.memory) - $(bytes_of .status.allocatable.memory))) "bytes of reserved memory"

# With oldHours: 0 the first version's image is removed: it belongs neither to the current nor to
# the last good version.
id=$(field cared .metadata.name)
set_agent_settings 'diskFree: 0' 'images: {oldHours: 0, keepDays: 1}'
wait_for 150 is_removed 1
is_stored 2
is_stored 3
wait_for 20 has_event ImagesRemoved
n1 journalctl -u kat-agent --grep "$user: removed an image that nothing used, [5-9] MiB: " --quiet --output cat | grep -F "${digests[1]}"
equal "$id" "$(field cared .metadata.name)" "instance"
equal 0 "$(field cared .status.restarts)" "restarts"

# Without the registry the workload rolls back to the last good version, and returns after a scale
# to 0.
for node in n1 n2; do
    on "$node" nft add table inet noregistry
    on "$node" nft add chain inet noregistry out '{ type filter hook output priority 0 ; }'
    on "$node" nft add rule inet noregistry out tcp dport 5000 reject
done
refused n1 curl --silent --max-time 3 http://registry.lab:5000/v2/
kat rollback workload cared --wait
# shellcheck disable=SC2016
equal 2 "$(inside cared sh -c 'echo "$V"')" "version that runs after a rollback"
kat scale workload cared --replicas 0 --wait
user_is_idle() { refused n1 loginctl show-user "$user" 2>/dev/null && absent n1 "/var/lib/systemd/linger/$user"; }
wait_for 60 user_is_idle
n1 id "$user"
is_stored 2
kat scale workload cared --replicas 1 --wait --timeout 60s
# shellcheck disable=SC2016
equal 2 "$(inside cared sh -c 'echo "$V"')" "version that runs after the return"
for node in n1 n2; do on "$node" nft delete table inet noregistry; done

# On a machine with a full disk running instances continue, and no new instance is placed there.
n1 mkdir -p /var/lib/kat/volumes
n1 mount -t tmpfs -o size=64m,mode=0755 none /var/lib/kat/volumes
set_agent_settings 'images: {oldHours: 0, keepDays: 0}'
has_disk_pressure() { kat get node n1 -o json | jq -e '.status.conditions[] | select(.type == "DiskPressure" and (.message | contains("/var/lib/kat/volumes")))' >/dev/null; }
has_no_disk_pressure() { kat get node n1 -o json | jq -e 'all(.status.conditions[]; .type != "DiskPressure" or (.status | not))' >/dev/null; }
has_no_disk_pressure
n1 dd if=/dev/zero of=/var/lib/kat/volumes/fill bs=1M count=60 status=none
wait_for 40 has_disk_pressure
contains "$(kat get nodes)" DiskPressure
contains "$(kat describe node n1)" "/var/lib/kat/volumes: "
contains "$(kat why node n1)" "short of disk space"
run other --replicas 3
equal '["n2"]' "$(machines_running other)" "machines of new instances"
kat apply -f "$(workload here --spec 'nodeSelector: {place: one}')"
waits_for_disk_space() { kat get workload here -o json | jq -e '.status.conditions[] | select(.message | contains("short of disk space (DiskPressure)"))' >/dev/null; }
wait_for 30 waits_for_disk_space
answers "http://$(field cared .status.ip)/"
n1 rm /var/lib/kat/volumes/fill
wait_for 40 has_no_disk_pressure
wait_for 60 field_is here .status.phase Running
has_event DiskPressureEnded
kat delete workload here --yes --wait
n1 umount /var/lib/kat/volumes

# With keepDays: 0 the images of a workload that has left are removed.
kat scale workload cared --replicas 0 --wait
user_is_gone() { refused n1 id "$user" 2>/dev/null; }
wait_for 90 user_is_gone
n1 rm /etc/kat/agent.yaml
n1 systemctl restart kat-agent
wait_for 60 nodes_are_ready
kat label node n1 place-
kat registry unset registry.lab:5000
