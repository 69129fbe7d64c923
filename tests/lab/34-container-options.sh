# A device, a group and the machine's network are available where the machine's owner permits them, and nowhere else
# machines: 2
# shellcheck shell=bash
here='nodeSelector: {kat.dws.rip/nodeName: n1}'
# By default a workload gets no group or device of the machine.
kat apply -f "$(workload stick --port 80 --spec "$here" --container 'groups: [dialout]')"
wait_for 30 field_is stick .status.reason GroupNotAllowed
contains "$(field stick .status.message)" "groupsAllow in /etc/kat/agent.yaml"
kat delete workload stick --wait
add_agent_settings n1 'groupsAllow: [audio, dialout, gpio, i2c, plugdev, render, spi, video]' 'devicesAllow: [/dev]'
wait_for 60 nodes_are_ready
# The program reads from the device with its user's rights, and then serves.
stick_folder() {
    workload stick --port 80 --spec "$here" --container 'devices: [/dev/kat-stick]' --container 'tmpfs: [/tmp]' \
        --container 'entrypoint: [/bin/busybox, sh, -c]' \
        --container 'command: ["head -c 8 /dev/kat-stick >/tmp/read && exec /bin/web"]' "$@"
}
make_device() { n1 sh -c 'mknod /dev/kat-stick c 1 5 && chgrp dialout /dev/kat-stick && chmod 660 /dev/kat-stick'; }
groups_of_program() { n1 sh -c "grep ^Groups: /proc/$(unit_property "$1" MainPID)/status" | tr "\t" " "; }
dialout=$(n1 getent group dialout | cut -d: -f3)

# The device is missing: the instance waits, and the reason names it.
kat apply -f "$(stick_folder --container 'groups: [dialout]')"
wait_for 30 field_is stick .status.reason DeviceMissing
contains "$(kat why workload stick)" "/dev/kat-stick"
make_device
wait_for 30 field_is stick .status.phase Running
equal 8 "$(inside stick cat /tmp/read | wc -c)" "bytes read from the device"
contains " $(groups_of_program stick) " " $dialout "
equal 0 "$(field stick .status.restarts)" "restarts while it waited"
user=$(field stick .status.user)
contains "$(n1 id -nG "$user")" dialout

# Without the group the workload's user cannot open the device, and the reason names the group. The
# old instance runs on.
old=$(field stick .metadata.name)
kat apply -f "$(stick_folder)"
wait_for 30 newest_is stick .status.reason DeviceNotOpen
contains "$(newest stick .status.message)" "groups: [dialout]"
# The user does not join a group that this machine does not allow.
kat apply -f "$(stick_folder --container 'groups: [sudo]')"
wait_for 30 newest_is stick .status.reason GroupNotAllowed
lacks " $(n1 id -nG "$user") " " sudo "
kat apply -f "$(stick_folder --container 'groups: [no-such-group]')"
wait_for 30 newest_is stick .status.reason GroupNotAllowed
equal "$old" "$(field_on stick n1 .metadata.name)" "the instance that runs"
# A symbolic link to the device is the same device.
n1 sh -c 'mkdir -p /dev/kat && ln -s ../kat-stick /dev/kat/by-name'
run stick --port 80 --spec "$here" --container 'devices: ["/dev/kat/by-name:/dev/ttyUSB0:r"]' --container 'groups: [dialout]' --container 'tmpfs: [/tmp]' \
    --container 'entrypoint: [/bin/busybox, sh, -c]' --container 'command: ["head -c 8 /dev/ttyUSB0 >/tmp/read && exec /bin/web"]'
equal 8 "$(inside stick cat /tmp/read | wc -c)" "bytes read from the device under another name"

# A group that is added while the user's manager runs is available to the next version.
n1 chmod 666 /dev/kat-stick
run stick --port 80 --spec "$here"
groups=$(groups_of_program stick)
lacks " $groups " " $dialout "
kat apply --wait -f "$(stick_folder --container 'groups: [dialout, video]')"
contains " $(groups_of_program stick) " " $dialout "
n1 chmod 660 /dev/kat-stick

# The instance restarts after the device is removed and added again, and after a boot.
n1 rm /dev/kat-stick
crash stick
wait_for 60 field_is stick .status.reason DeviceMissing
make_device
wait_for 60 field_is stick .status.phase Running
lab reboot n1
wait_for 60 nodes_are_ready
wait_for 60 field_is stick .status.reason DeviceMissing
make_device
wait_for 60 field_is stick .status.phase Running
contains " $(groups_of_program stick) " " $dialout "
# A block device needs its own permission, since it holds somebody's data.
n1 mknod /dev/kat-disk b 7 200
n1 chmod 666 /dev/kat-disk
kat apply -f "$(workload stick --spec "$here" --container 'devices: [/dev/kat-disk]')"
wait_for 60 newest_is stick .status.reason DeviceNotAllowed
contains "$(newest stick .status.message)" "devicesAllow in /etc/kat/agent.yaml"

# hostNetwork needs the owner's permission.
edge_folder() { workload edge --port 8010 --container 'hostNetwork: true' "$@"; }
kat apply -f "$(edge_folder)"
is_blocked_by() { kat get workload edge -o json | jq -c .status.conditions | grep -qF "$1"; }
wait_for 30 is_blocked_by "without hostNetworkAllow in /etc/kat/agent.yaml"
add_agent_settings n1 'hostNetworkAllow: true'
n1 kat-agent check >/dev/null || true
wait_for 60 field_is edge .status.phase Running
overlay=$(overlay_address n1)
equal "$overlay" "$(field edge .status.ip)" "address of an instance on the machine's network"
for address in 127.0.0.1:8010 "$overlay:8010" "$(service_address edge):8010"; do
    wait_for 10 answers "http://$address/"
done
# Another container reaches the instance by its name. The instance reaches what listens on the
# machine's loopback.
run web --port 80 --spec "$here"
inside web wget -q -O - "http://edge.default.$DOMAIN:8010/" | grep -q '^host='
inside edge nc -w 2 127.0.0.53 53 -e /bin/busybox true
refused inside web nc -w 2 127.0.0.53 53 -e /bin/busybox true
# It does not reach the ports of etcd, the API and the agents.
for port in 2379 9115; do refused inside edge nc -w 2 127.0.0.1 "$port" -e /bin/busybox true; done
edge_reaches_web() { inside edge wget -q -O - "http://web.default.$DOMAIN/" | grep -q '^host='; }
wait_for 10 edge_reaches_web
# The other machine and its containers reach the instance too.
run far --port 80 --spec 'nodeSelector: {kat.dws.rip/nodeName: n2}'
far=$(field far .status)
on n2 curl --silent --fail --max-time 3 "http://$(service_address edge):8010/" | grep -q '^host='
as_on n2 "$(jq -r .user <<<"$far")" podman exec "$(jq -r '.unit | rtrimstr(".service")' <<<"$far")" \
    wget -q -T 3 -O - "http://edge.default.$DOMAIN:8010/" | grep -q '^host='
# One instance with hostNetwork runs on a machine, and a new version replaces it.
kat scale workload edge --replicas 2
wait_for 30 is_blocked_by "1 with another of its instances on the machine's network, 1 without hostNetworkAllow"
kat scale workload edge --replicas 1 --wait
kat apply --wait -f "$(edge_folder --env VERSION=2)"
equal 1 "$(n1 sh -c "ss -Hltn 'sport = :8010' | wc -l")" "programs that listen"
contains "$(page http://127.0.0.1:8010/)" "version=2"

# The deletion removes the users' memberships in groups.
kat delete workload stick --wait
kat delete workload edge --wait
groups=$(n1 getent group dialout video)
finds_nothing grep kat- <<<"$groups"
n1 sh -c 'rm -rf /dev/kat /dev/kat-stick /dev/kat-disk'
restore_agent_settings n1
wait_for 60 nodes_are_ready
