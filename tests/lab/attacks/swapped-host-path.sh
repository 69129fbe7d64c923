# A program that swaps a host path for a link while it is mounted has nothing else mounted
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
here='nodeSelector: {kat.dws.rip/nodeName: n1}'
mounted='volumeMounts: [{name: v, mountPath: /v}]'
exit_with() { return "$1"; }
mounts() { echo "volumes: [{name: v, hostMount: {hostPath: $1, ensureType: Directory}}]"; }
n1 sh -c 'rm -rf /srv/swap && mkdir -p /srv/swap/d && chmod 777 /srv/swap && echo mine >/srv/swap/d/mine'

# Two workloads of a tenant: one may write to the folder that contains the other's path.
tenant apply --wait -f "$(workload swapper --port 80 --spec "$here" --spec "$(mounts /srv/swap)" --container "$mounted")"
tenant apply --wait -f "$(workload inner --port 80 --spec "$here" --spec "$(mounts /srv/swap/d)" --container "$mounted")"
uid=$(field inner .status.uid)
instance=$(field inner .metadata.name)
bound=/run/kat-hostpath/$uid/$instance/v/bound
outside=/run/user/$uid
n1 test -S "$outside/bus"
status=$(field swapper .status)
as "$(jq -r .user <<<"$status")" podman exec --detach "$(jq -r '.unit | rtrimstr(".service")' <<<"$status")" \
    sh -c "cd /v && while :; do mv d e; ln -s $outside d; ln -s $outside d2; rm d d2; mv e d; done"
# The control: a mount by name sometimes gets the link's target, and sometimes the folder itself.
control=$(n1 sh -c "mkdir -p /run/attack; out=0 in=0; for i in \$(seq 1 400); do
    mount --bind /srv/swap/d /run/attack 2>/dev/null || continue
    if test -S /run/attack/bus; then out=\$((out + 1)); elif test -e /run/attack/mine; then in=\$((in + 1)); fi
    umount /run/attack; done; rmdir /run/attack; echo \$out \$in")
read -r out in <<<"$control"
((out > 0 && in > 0)) || { echo "mounts by name got the target $out times and the folder $in times: the loop is too slow" >&2; exit 1; }

# The unit binds the path repeatedly, according to the plan of an instance that was checked: it
# binds the checked folder or nothing.
result=$(n1 sh -c "out=0 in=0 none=0; for i in \$(seq 1 100); do
    systemctl restart kat-hostpath@$uid-$instance.service 2>/dev/null || true
    if test -e $bound/mine; then in=\$((in + 1)); elif test -e $bound; then out=\$((out + 1)); else none=\$((none + 1)); fi
    done; echo \$out \$in \$none")
read -r out in none <<<"$result"
echo "the unit bound the checked folder $in times, nothing $none times, and something else $out times"
((out == 0 && in > 0 && none > 0))

# The same holds when systemd or the agent restarts the program. Most starts are refused while the
# swaps continue.
ran_count=0
for ((round = 0; round < 15; round++)); do
    # Podman exits with 255 where the container is between its creation and its start.
    code=0
    inside inner test -e /v/bus || code=$?
    ((code == 255)) || refused exit_with "$code"
    if inside inner test -e /v/mine; then
        ((ran_count++ % 2)) || n1 systemctl stop "kat-hostpath@$uid-$instance.service"
        crash inner || true
    fi
    sleep 1
done
((ran_count > 0)) || { echo "the program never ran" >&2; exit 1; }

# After the end of the attack the path is mounted again. The test requests a restart, since the
# pause after so many failed starts is long.
kat delete workload swapper --wait
n1 sh -c 'cd /srv/swap && rm -f d2 && if test -L d; then rm d; fi && if test -d e; then mv e d; fi'
kat restart inner --wait
equal mine "$(inside inner cat /v/mine)" "file that the program sees"
refused inside inner test -e /v/bus
kat delete workload inner --wait
equal mine "$(n1 sh -c 'cat /srv/swap/d/mine')" "the machine's file"
n1 rm -rf /srv/swap
