# Settings of a container show inside it: its folder, rights, limits and memory; a port of UDP is reached by the service's address and on its machine
# machines: 2
# by name
# shellcheck shell=bash
wait_for 30 nodes_are_ready
here='nodeSelector: {kat.dws.rip/nodeName: n1}'
# box USER [OPTION...]: applies a workload of one container on n1, whose program runs as USER of the image.
box() { run box --port 80 --spec "$here" --container "user: \"$1\"" "${@:2}"; }
# of_program FIELD: a field of /proc/1/status in the container.
of_program() { inside box sed -n "s/^$1:[[:space:]]*//p" /proc/1/status; }

# What a container is without settings; the other checks are compared with it.
box 0
plain=$(of_program CapEff)
inside box touch /bin/written
lacks "$(inside box cat /proc/1/comm)" podman-init
equal / "$(inside box readlink /proc/1/cwd)" "working directory"
# CAP_CHOWN has number 0, CAP_NET_RAW 13.
has_capability() { (((16#$1 >> $2) & 1)); }
has_capability "$plain" 0
refused has_capability "$plain" 13

box 0 --container 'workingDir: /bin' --container 'readOnlyRootfs: true' --container 'tmpfs: [/scratch]' \
    --container 'shmSize: 8Mi' --container 'init: true' --container 'capAdd: [NET_RAW]' --container 'capDrop: [CHOWN]' \
    --container 'args: [one, "two words"]' --container 'quadlet: {Ulimit: "nofile=333:444"}' --container 'oomScoreAdjust: 1000'
equal /bin "$(inside box pwd)" "working directory"
refused inside box touch /bin/written
inside box touch /scratch/written
equal 8192 "$(inside box df -k /dev/shm | awk 'END { print $2 }')" "KiB of /dev/shm"
# Process 1 is the small init, which hands signals on and waits for ended processes; the program is its child.
contains "$(inside box cat /proc/1/cmdline | tr '\0' ' ')" "podman-init"
contains "$(inside box sh -c 'cat /proc/[0-9]*/cmdline' | tr '\0' '|')" "|one|two words|"
given=$(of_program CapEff)
has_capability "$given" 13
refused has_capability "$given" 0
contains "$(inside box cat /proc/1/limits | tr -s ' ')" "Max open files 333 444"
equal 1000 "$(inside box cat /proc/1/oom_score_adj)" "score of the program when memory runs out"
box 0 --container 'capDrop: [ALL]'
equal 0000000000000000 "$(of_program CapBnd)" "capabilities of a program without any"
# The program is another user of the image, by number or by name.
box 1000:1001
equal "1000 1001" "$(inside box sh -c 'id -u; id -g' | xargs)" "user and group of the program"

# Never pulls nothing: the instance waits, and the reason says what is missing.
kat apply -f "$(workload kept --image registry.lab:5000/test/web:none-here --container 'imagePullPolicy: Never')" >/dev/null
wait_for 30 field_is kept .status.reason CannotStart
contains "$(field kept .status.message)" "registry.lab:5000/test/web:none-here: image not known"
kat delete workload kept --wait

# UDP: the service's address and the machine's port lead to the program, from its machine and from the other one.
folder=$(workload echo --port 5300 --spec "$here" --env UDP=1)
n1 sed -i 's/containerPort: 5300/containerPort: 5300, protocol: UDP, hostPort: 5353/' "$folder/VirtualLoadBalancer.kat"
kat apply --wait --timeout 60s -f "$folder"
contains "$(kat get workload echo -o json | jq -c .status.hostPorts)" '"protocol":"UDP"'
heard_by() {
    local answer
    # shellcheck disable=SC2016
    answer=$(on "$1" timeout 3 bash -c 'exec 3<>"/dev/udp/$1/$2" && echo ask >&3 && head -n 1 <&3' bash "$2" "$3") || true
    equal "host=$(field echo .metadata.name)" "$answer" "what $1 hears from $2, port $3"
}
for from in n1 n2; do
    wait_for 20 heard_by "$from" "$(service_address echo)" 5300
    wait_for 20 heard_by "$from" 192.168.77.11 5353
done
# The same number for TCP is somebody else's.
refused on n2 curl --silent --max-time 2 telnet://192.168.77.11:5353

# A probe by TCP counts an instance as healthy only after as many successes as are asked.
kat apply -f "$(workload slow --port 8080 --health 'tcp: {port: web}, periodSeconds: 2, successThreshold: 3' --spec "$here")" >/dev/null
wait_for 30 field_is slow .status.phase Running
equal 0 "$(kat get workload slow -o json | jq .status.ready)" "ready instances after fewer successes"
wait_for 30 has_ready slow 1
for name in box echo slow; do kat delete workload "$name" --wait; done
