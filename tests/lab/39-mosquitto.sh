# The example mosquitto, as Debian packages it: clients outside reach it at port 1883 of its machine, it logs their addresses, and retained messages stay
# machines: 2
# packages: mosquitto mosquitto-clients
# shellcheck shell=bash
wait_for 60 nodes_are_ready
tree=$LAB_WORK/mosquitto
cp -a "$(lab tree mosquitto mosquitto-clients)" "$tree"
sed -i 's/^mosquitto:x:[0-9]*:[0-9]*:/mosquitto:x:1883:1883:/' "$tree/etc/passwd"
lab image test/mosquitto:1 "$tree" --cmd '["/usr/sbin/mosquitto","-c","/mosquitto/config/mosquitto.conf"]'
here=$LAB_WORK/workloads/mosquitto
mkdir -p "${here%/*}"
cp -r contrib/examples/mosquitto "$here"
sed -i 's|docker.io/library/eclipse-mosquitto:.*|registry.lab:5000/test/mosquitto:1|' "$here/workload.kat"
apply() {
    n1 rm -rf /root/workloads/mosquitto
    lab copy "$here" n1:/root/workloads/
    kat apply -f /root/workloads/mosquitto --wait --timeout 90s
}
address() { on "$1" ip -4 -o address show host0 | sed -n 's/.*inet \([0-9.]*\).*/\1/p'; }
server=$(address n2) client=$(address n1)

# The workload selects its machine by a label, and waits until a machine has it.
n1 rm -rf /root/workloads/mosquitto
lab copy "$here" n1:/root/workloads/
kat apply -f /root/workloads/mosquitto >/dev/null
lacks_machine() { contains "$(kat why workload mosquitto)" "2 without the labels of nodeSelector"; }
wait_for 20 lacks_machine
kat label node n2 mqtt=here
wait_for 90 has_ready mosquitto 1
equal n2 "$(field mosquitto .status.node)" "its machine"

# The clients are those of the image, run as programs of the machine n1, which is outside of the overlay for that.
n1 mkdir -p /root/mqtt
lab copy "$tree/usr/bin/mosquitto_pub" n1:/root/mqtt/
lab copy "$tree/usr/bin/mosquitto_sub" n1:/root/mqtt/
for library in "$tree"/usr/lib/*/lib{mosquitto,cjson,cares}.so.*; do
    [[ ! -e $library ]] || lab copy "$library" n1:/root/mqtt/
done
mqtt() {
    local program=$1
    shift
    n1 env LD_LIBRARY_PATH=/root/mqtt timeout 10 "/root/mqtt/mosquitto_$program" -V mqttv5 -h "$server" "$@"
}
mqtt pub -i thermometer -t home/kitchen -q 1 -r -m 21.5
heard() { equal "${2:-21.5}" "$(mqtt sub -i display -t home/kitchen -C 1 -W 5)" "what is retained, after $1"; }
heard "it was said"
logged() { kat logs mosquitto | grep -F "New client connected from $client:" | grep -F 'as thermometer' >/dev/null; }
wait_for 20 logged

# Whoever subscribes hears at once what is said: a workload by its name, too.
kat exec mosquitto -- timeout 20 mosquitto_sub -h "mosquitto.default.$DOMAIN" -i inside -t home/kitchen -C 2 >"$LAB_WORK/heard" &
listener=$!
trap 'kill "$listener" 2>/dev/null || true' EXIT
first() { grep -qx 21.5 "$LAB_WORK/heard"; }
wait_for 20 first
mqtt pub -i thermometer -t home/kitchen -q 1 -r -m 22.0
wait "$listener"
trap - EXIT
equal "22.0" "$(tail -n 1 "$LAB_WORK/heard")" "what was heard in the overlay"

kat restart workload mosquitto --wait
# An instance that is healthy again is reachable at the port a moment later.
wait_for 20 heard "a restart" 22.0
id=$(field mosquitto .metadata.name)
sed -i 's/^autosave_interval .*/autosave_interval 1/' "$here/conf/mosquitto.conf"
apply
[[ $(field mosquitto .metadata.name) != "$id" ]]
wait_for 20 heard "another configuration" 22.0
equal 1883:1883 "$(kat exec mosquitto -- stat -c %u:%g /mosquitto/data/mosquitto.db)" "owner of the data"
# After a kill, mosquitto has what it had written to the disk at the latest a second before.
mqtt pub -i thermometer -t home/kitchen -q 1 -r -m 23.5
written() { kat exec mosquitto -- grep -q 23.5 /mosquitto/data/mosquitto.db; }
wait_for 20 written
restarts=$(field mosquitto .status.restarts)
on n2 pkill -KILL -x mosquitto
came_back() { field_is mosquitto .status.restarts $((restarts + 1)) && has_ready mosquitto 1; }
wait_for 60 came_back
wait_for 20 heard "a kill" 23.5
kat delete workload mosquitto --volumes --yes --wait
refused mqtt pub -t home/kitchen -m 24
kat label node n2 mqtt-
