# The example alloy gets its machine's journal only where the machine's owner allows the path and the group, as its file says
# shellcheck shell=bash
wait_for 30 node_is_ready
# Another program in its place prints what it reads.
folder=$LAB_WORK/workloads/alloy
mkdir -p "${folder%/*}"
cp -r contrib/examples/alloy "$folder"
sed -i -e "s|docker.io/grafana/alloy:.*|$WEB_IMAGE|" \
    -e 's|^    command: .*|    entrypoint: [/bin/busybox, sh, -c]\n    command: ["echo the journal begins with $(head -c 8 /var/log/journal/*/system.journal 2>\&1); exec /bin/web"]\n    env: [{name: PORT, value: "12345"}]|' \
    "$folder/workload.kat"
sed -i 's|path: /-/ready|path: /healthz|' "$folder/VirtualLoadBalancer.kat"
apply() {
    n1 rm -rf /root/workloads/alloy
    lab copy "$folder" n1:/root/workloads/
    kat apply -f /root/workloads/alloy "$@"
}
# journald has made the folder since the boot, and init gave it to its group.
equal systemd-journal "$(n1 stat -c %G /var/log/journal)" "group of the journal's folder"
n1 sh -c 'test -s /var/log/journal/*/system.journal'
apply
is_refused() { contains "$(field alloy .status.reason)" NotAllowed; }
wait_for 30 is_refused

# The lines for agent.yaml are those of the example.
mapfile -t lines < <(sed -n 's/^#   \([a-zA-Z]*Allow: .*\)/\1/p' "$folder/workload.kat")
equal 2 "${#lines[@]}" "lines for agent.yaml"
add_agent_settings n1 "${lines[@]}"
wait_for 60 node_is_ready
wait_for 60 has_ready alloy 1
reads() { contains "$(kat logs alloy)" "the journal begins with $1"; }
wait_for 20 reads LPKSHHRH

# Without the group the path alone opens no file.
sed -i '/^    groups: /d' "$folder/workload.kat"
apply --wait
wait_for 20 reads "head: "
kat delete workload alloy --volumes --yes --wait
restore_agent_settings n1
wait_for 60 node_is_ready
