# The example mosquitto, as Debian packages it: clients outside reach it at port 1883 of its machine, it logs their addresses, and retained messages stay
# machines: 2
# packages: mosquitto mosquitto-clients
# shellcheck shell=bash
wait_for 60 nodes_are_ready
tree=$LAB_WORK/mosquitto
cp -a "$(lab tree mosquitto mosquitto-clients)" "$tree"
sed -i 's/^mosquitto:x:[0-9]*:[0-9]*:/mosquitto:x:1883:1883:/' "$tree/etc/passwd"
lab image test/mosquitto:1 "$tree" --cmd '["/usr/sbin/mosquitto","-c","/mosquitto/config/mosquitto.conf"]'
folder=$LAB_WORK/workloads/mosquitto
mkdir -p "${folder%/*}"
cp -r contrib/examples/mosquitto "$folder"
sed -i 's|docker.io/library/eclipse-mosquitto:.*|registry.lab:5000/test/mosquitto:1|' "$folder/workload.kat"
apply() {
    n1 rm -rf /root/workloads/mosquitto
    lab copy "$folder" n1:/root/workloads/
    kat apply -f /root/workloads/mosquitto --wait --timeout 90s
}
address() { on "$1" ip -4 -o address show host0 | sed -n 's/.*inet \([0-9.]*\).*/\1/p'; }
server=$(address n2) client=$(address n1)

# A node selector places the workload; it waits until a machine has the label.
n1 rm -rf /root/workloads/mosquitto
lab copy "$folder" n1:/root/workloads/
kat apply -f /root/workloads/mosquitto >/dev/null
has_no_matching_machine() { contains "$(kat why workload mosquitto)" "2 without the labels of nodeSelector"; }
wait_for 20 has_no_matching_machine
kat label node n2 mqtt=here
wait_for 90 has_ready mosquitto 1
equal n2 "$(field mosquitto .status.node)" "its machine"

# The clients are from the image and run as programs of the machine n1, outside the overlay.
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
retained_message_is() { equal "${2:-21.5}" "$(mqtt sub -i display -t home/kitchen -C 1 -W 5)" "retained message after $1"; }
retained_message_is "its publication"
client_is_logged() { kat logs mosquitto | grep -F "New client connected from $client:" | grep -F 'as thermometer' >/dev/null; }
wait_for 20 client_is_logged

# A subscriber in the overlay, which uses the workload's name, receives a message at once.
kat exec mosquitto -- timeout 20 mosquitto_sub -h "mosquitto.default.$DOMAIN" -i inside -t home/kitchen -C 2 >"$LAB_WORK/heard" &
listener=$!
trap 'kill "$listener" 2>/dev/null || true' EXIT
first_message_arrived() { grep -qx 21.5 "$LAB_WORK/heard"; }
wait_for 20 first_message_arrived
mqtt pub -i thermometer -t home/kitchen -q 1 -r -m 22.0
wait "$listener"
trap - EXIT
equal "22.0" "$(tail -n 1 "$LAB_WORK/heard")" "last message that the subscriber in the overlay received"

kat restart workload mosquitto --wait
# The port forwards to the instance a moment after that is healthy again.
wait_for 20 retained_message_is "a restart" 22.0
id=$(field mosquitto .metadata.name)
sed -i 's/^autosave_interval .*/autosave_interval 1/' "$folder/conf/mosquitto.conf"
apply
differs "$id" "$(field mosquitto .metadata.name)" "instance of another configuration"
wait_for 20 retained_message_is "another configuration" 22.0
equal 1883:1883 "$(kat exec mosquitto -- stat -c %u:%g /mosquitto/data/mosquitto.db)" "owner of the data"
# A killed program has the messages that it wrote to disk at most a second ago.
mqtt pub -i thermometer -t home/kitchen -q 1 -r -m 23.5
message_is_on_disk() { kat exec mosquitto -- grep -q 23.5 /mosquitto/data/mosquitto.db; }
wait_for 20 message_is_on_disk
restarts=$(field mosquitto .status.restarts)
on n2 pkill -KILL -x mosquitto
has_restarted() { field_is mosquitto .status.restarts $((restarts + 1)) && has_ready mosquitto 1; }
wait_for 60 has_restarted
wait_for 20 retained_message_is "a kill" 23.5
kat delete workload mosquitto --volumes --yes --wait
refused mqtt pub -t home/kitchen -m 24
kat label node n2 mqtt-
