# A GPU of a CDI spec belongs to one instance: a second workload waits, and starts when the first is deleted
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
is_blocked_by() { kat get workload "$1" -o json | jq -c .status.conditions | grep -qF "$2"; }
# The lab has no GPU: an ordinary device stands in for it, which the spec names as a vendor's tool would.
put_spec() {
    local edits='"deviceNodes": [{"path": "/dev/kat-gpu"}], "env": ["KAT_GPU=zero"]'
    local devices="{\"name\": \"0\", \"containerEdits\": {$edits}}, {\"name\": \"all\", \"containerEdits\": {$edits}}"
    local spec="{\"cdiVersion\": \"0.5.0\", \"kind\": \"kat.test/gpu\", \"devices\": [$devices]}"
    n1 sh -c "mkdir -p /etc/cdi && printf '%s' '$spec' >/etc/cdi/kat-test.json"
}
model() { workload "$1" --port 80 --container 'resources: {gpu: {driver: any}}' "${@:2}"; }

# No machine has a GPU: the workload waits, and the reason says what is missing.
kat apply -f "$(model first)"
wait_for 30 is_blocked_by first "2 without a GPU of the requested driver in its CDI specs"
contains "$(kat why workload first)" "without a GPU"

# The spec is there and its device is not, as with a driver that is not loaded.
put_spec
wait_for 60 field_is first .status.reason GpuDriverMissing
contains "$(field first .status.message)" "/dev/kat-gpu"
n1 sh -c 'mknod /dev/kat-gpu c 1 5 && chmod 666 /dev/kat-gpu'
wait_for 60 field_is first .status.phase Running
equal n1 "$(field first .status.node)" "machine of the instance with the GPU"
equal 4 "$(inside first head -c 4 /dev/kat-gpu | wc -c)" "bytes read from the device"
contains "$(inside first cat /proc/1/environ | tr '\0' '\n')" "KAT_GPU=zero"
described=$(kat describe node n1)
contains "$described" "kat.test/gpu=0, memory unknown, in use"
lacks "$described" "gpu=all"
contains "$(kat get nodes -o wide)" "0 of 1 free"

# A second workload waits with the reason, and starts when the first is deleted.
kat apply -f "$(model second)"
wait_for 30 is_blocked_by second "1 whose GPUs of the requested kind are all in use"
contains "$(kat why workload second)" "all in use"
kat delete workload first --wait
wait_for 60 field_is second .status.phase Running
contains "$(kat describe node n1)" "kat.test/gpu=0, memory unknown, in use"

# A new version starts when the old one has ended, and has the same GPU.
kat apply --wait -f "$(model second --env VERSION=2)"
equal 4 "$(inside second head -c 4 /dev/kat-gpu | wc -c)" "bytes read from the device"
# No GPU is known to have so much memory, or is one of AMD's.
kat apply -f "$(workload large --port 80 --container 'resources: {gpu: {minVRAM_MB: 4096}}')"
wait_for 30 is_blocked_by large "1 without a GPU that is known to have minVRAM_MB"
kat delete workload large --wait
kat apply -f "$(workload other --port 80 --container 'resources: {gpu: {driver: amd}}')"
wait_for 30 is_blocked_by other "2 without a GPU of the requested driver in its CDI specs"
kat delete workload other --wait

# A spec that cannot be read has a condition, and stops nothing else.
n1 sh -c "printf '{' >/etc/cdi/broken.json"
names_the_file() { kat describe node n1 | grep -qF '/etc/cdi/broken.json: '; }
wait_for 60 names_the_file
equal Running "$(field second .status.phase)" "phase of the instance with the GPU"
n1 rm /etc/cdi/broken.json

# The GPU is gone: what runs continues, and its successor waits.
n1 rm /etc/cdi/kat-test.json
has_no_gpu() { [[ $(kat get node n1 -o json | jq '.status.gpus | length') == 0 ]]; }
wait_for 60 has_no_gpu
kat apply -f "$(model second --env VERSION=3)"
wait_for 60 is_blocked_by second "2 without a GPU of the requested driver in its CDI specs"
equal Running "$(field second .status.phase)" "phase of the instance with the GPU"
put_spec
kat apply --wait -f "$(model second --env VERSION=3)"

kat delete workload second --wait
n1 sh -c 'rm -r /etc/cdi /dev/kat-gpu'
