# Init containers and sidecars start at boot without the agent; an init container that fails is named, and retried as its file says
# shellcheck shell=bash
# With the agent masked, all containers start at boot, and killed ones restart.
run web --port 80 --spec 'initContainers: [{name: first, entrypoint: [/bin/busybox, sleep, "1"]}]' \
    --spec 'sidecars: [{name: proxy, env: [{name: PORT, value: "81"}]}]'
status=$(field web .status) id=$(field web .metadata.name)
ip=$(jq -r .ip <<<"$status") user=$(jq -r .user <<<"$status") stem=kat-default-$id
both_answer() { contains "$(page "http://$ip/")" "host=$id" && contains "$(page "http://$ip:81/")" "host=$id"; }
both_answer
n1 systemctl mask --now kat-agent.service
n1 systemctl stop kat-etcd.service
lab reboot n1
refused n1 systemctl is-active kat-agent.service
wait_for 40 both_answer
pid_of() { as "$user" podman inspect --format '{{.State.Pid}}' "$1"; }
# Another process runs in a container than the one that was there. The end of the network's holder
# ends the others a moment later: until then they still answer.
is_new() {
    local pid
    pid=$(pid_of "$1") && ((pid > 0 && pid != $2))
}
for container in "$stem" "${stem}_side-proxy" "${stem}_net"; do
    killed=$(pid_of "$container") main=$(pid_of "$stem") side=$(pid_of "${stem}_side-proxy")
    n1 kill -KILL "$killed"
    wait_for 40 is_new "$container" "$killed"
    if [[ $container == *_net ]]; then
        wait_for 40 is_new "$stem" "$main"
        wait_for 40 is_new "${stem}_side-proxy" "$side"
    fi
    wait_for 40 both_answer
done
first=$(as "$user" systemctl --user show --property=SubState --value "${stem}_init-first.service")
equal exited "$first" "the init container after a boot"
n1 systemctl unmask kat-agent.service
n1 systemctl start kat-agent.service
wait_for 60 node_is_ready
wait_for 30 field_is web .status.phase Running
both_answer

# An init container that fails is retried, and the main container waits for it.
failing='initContainers: [{name: migrate, entrypoint: [/bin/busybox, sh, -c], command: ["echo no table; exit 7"]}]'
kat apply -f "$(workload bad --port 80 --spec "$failing")"
wait_for 40 field_is bad .status.reason InitContainerFailed
equal 7 "$(field bad .status.exitCode)" "exit code of the init container"
contains "$(field bad .status.message)" "init container migrate"
logged() { contains "$(kat logs bad -c migrate)" "no table"; }
wait_for 10 logged
contains "$(kat why workload bad)" "an init container did not end well"
refused page "http://$(field bad .status.ip)/"
tried_again() { (($(field bad '.status.containers[0].restarts') >= 2)); }
wait_for 30 tried_again
# An instance that waits for its init container can be deleted.
status=$(field bad .status) id=$(field bad .metadata.name)
kat delete workload bad --wait
no_remains "$status" "$id"

# Without a restart policy that retries, the instance has failed.
kat apply -f "$(workload once --port 80 --restart 'condition: Never' --spec "$failing")"
wait_for 40 field_is once .status.phase Failed
equal InitContainerFailed "$(field once .status.reason)" "reason without another try"
kat delete workload once --wait

# An instance whose init container still runs can be deleted too.
waiting='initContainers: [{name: wait, entrypoint: [/bin/busybox, sleep, "3600"], terminationGraceSeconds: 1}]'
kat apply -f "$(workload slow --port 80 --spec "$waiting")"
wait_for 30 field_is slow .status.reason InitContainerRunning
status=$(field slow .status) id=$(field slow .metadata.name)
kat delete workload slow --wait
no_remains "$status" "$id"

# An image that only a sidecar has is pulled first; one that can't be is named.
kat apply -f "$(workload pulls --port 80 --spec 'sidecars: [{name: other, image: "registry.lab:5000/test/none:1"}]')"
wait_for 40 field_is pulls .status.reason ImagePullFailed
contains "$(field pulls .status.message)" "test/none"
kat delete workload pulls --wait

# With the host network, all containers of the instance use the machine's network.
n1 sh -c 'mkdir -p /etc/kat && echo "hostNetworkAllow: true" >/etc/kat/agent.yaml && systemctl restart kat-agent'
wait_for 60 node_is_ready
run host --container 'hostNetwork: true' --env PORT=8080 --spec 'sidecars: [{name: proxy, env: [{name: PORT, value: "8081"}]}]'
page http://127.0.0.1:8080/ >/dev/null
page http://127.0.0.1:8081/ >/dev/null
kat delete workload host --wait
n1 sh -c 'rm /etc/kat/agent.yaml && systemctl restart kat-agent'
wait_for 60 node_is_ready
