# Unused images are removed by age; those of the current and of the last good version stay, so that neither a rollback nor a return pulls anything; a machine short of disk space gets no new instances
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
kat label node n1 place=one
# settings LINE...: the agent.yaml of n1.
settings() {
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
# A disk of the lab's machine may be full for other reasons; so this has a size of its own, below.
settings 'diskFree: 0' 'reserved: {cpu: 100m, memory: 256Mi}'
run cared --image registry.lab:5000/test/cared:1 --port 80 --spec 'nodeSelector: {place: one}'
user=$(field cared .status.user)
storage=/var/lib/kat/users/$user/.local/share/containers/storage
digest() {
    n1 curl --silent --fail --head -H 'Accept: application/vnd.oci.image.manifest.v1+json' \
        "http://registry.lab:5000/v2/test/cared/manifests/$1" | tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: //p'
}
declare -A digests
for version in 1 2 3; do digests[$version]=$(digest "$version"); done
# stored VERSION: its image is in the user's storage.
stored() { n1 grep -q "${digests[$1]}" "$storage/overlay-images/images.json"; }
is_gone() { ! stored "$1"; }
contains_event() { contains "$(kat get events -A)" "$1"; }
for version in 2 3; do kat set image "cared=registry.lab:5000/test/cared:$version" --wait; done
for version in 1 2 3; do stored "$version"; done

# What the machine keeps back is not for workloads.
contains "$(kat describe node n1)" allocatable
node=$(kat get node n1 -o json)
amount() { jq -er "$1" <<<"$node" | numfmt --from=auto; }
equal 268435456 $(($(amount .status.capacity.memory) - $(amount .status.allocatable.memory))) "bytes kept back"

# Its time is over: the first version is neither wanted nor gone back to.
id=$(field cared .metadata.name)
settings 'diskFree: 0' 'images: {oldHours: 0, keepDays: 1}'
wait_for 150 is_gone 1
stored 2
stored 3
wait_for 20 contains_event ImagesRemoved
n1 journalctl -u kat-agent --grep "$user: removed an image that nothing used, [5-9] MiB: " --quiet --output cat | grep -F "${digests[1]}"
equal "$id" "$(field cared .metadata.name)" "instance"
equal 0 "$(field cared .status.restarts)" "restarts"

# Without the registry: back to the last good version, and away and back again.
for node in n1 n2; do
    on "$node" nft add table inet noregistry
    on "$node" nft add chain inet noregistry out '{ type filter hook output priority 0 ; }'
    on "$node" nft add rule inet noregistry out tcp dport 5000 reject
done
refused n1 curl --silent --max-time 3 http://registry.lab:5000/v2/
kat rollback workload cared --wait
# shellcheck disable=SC2016
equal 2 "$(inside cared sh -c 'echo "$V"')" "what runs after a rollback"
kat scale workload cared --replicas 0 --wait
rests() { refused n1 loginctl show-user "$user" 2>/dev/null && ! n1 test -e "/var/lib/systemd/linger/$user"; }
wait_for 60 rests
n1 id "$user"
stored 2
kat scale workload cared --replicas 1 --wait --timeout 60s
# shellcheck disable=SC2016
equal 2 "$(inside cared sh -c 'echo "$V"')" "what runs after its return"
for node in n1 n2; do on "$node" nft delete table inet noregistry; done

# A disk that is full: what runs there goes on, and nothing new comes.
n1 mkdir -p /var/lib/kat/volumes
n1 mount -t tmpfs -o size=64m,mode=0755 none /var/lib/kat/volumes
settings 'images: {oldHours: 0, keepDays: 0}'
pressure() { kat get node n1 -o json | jq -e '.status.conditions[] | select(.type == "DiskPressure" and (.message | contains("/var/lib/kat/volumes")))' >/dev/null; }
has_room() { ! pressure; }
has_room
n1 dd if=/dev/zero of=/var/lib/kat/volumes/fill bs=1M count=60 status=none
wait_for 40 pressure
contains "$(kat get nodes)" DiskPressure
contains "$(kat describe node n1)" "/var/lib/kat/volumes: "
contains "$(kat why node n1)" "short of disk space"
run other --replicas 3
equal '["n2"]' "$(machines_running other)" "machines of what is new"
kat apply -f "$(workload here --spec 'nodeSelector: {place: one}')"
waits() { kat get workload here -o json | jq -e '.status.conditions[] | select(.message | contains("short of disk space (DiskPressure)"))' >/dev/null; }
wait_for 30 waits
answers "http://$(field cared .status.ip)/"
n1 rm /var/lib/kat/volumes/fill
wait_for 40 has_room
wait_for 60 field_is here .status.phase Running
contains_event DiskPressureEnded
kat delete workload here --yes --wait
n1 umount /var/lib/kat/volumes

# With keepDays: 0 nothing stays of what has left.
kat scale workload cared --replicas 0 --wait
user_is_gone() { ! n1 id "$user" 2>/dev/null; }
wait_for 90 user_is_gone
n1 rm /etc/kat/agent.yaml
n1 systemctl restart kat-agent
wait_for 60 nodes_are_ready
kat label node n1 place-
kat registry unset registry.lab:5000
