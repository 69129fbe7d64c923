# Init containers and sidecars start at boot without the agent; an init container that fails is named, and retried as its file says
# by name
# shellcheck shell=bash
# With the agent masked, all containers start at boot, and killed ones restart.
run web --port 80 --spec 'initContainers: [{name: first, entrypoint: [/bin/busybox, sleep, "1"]}]' \
    --spec 'sidecars: [{name: proxy, env: [{name: PORT, value: "81"}]}]'
status=$(field web .status) id=$(field web .metadata.name)
ip=$(jq -r .ip <<<"$status") user=$(jq -r .user <<<"$status") stem=kat-default-$id
main_and_sidecar_answer() { contains "$(page "http://$ip/")" "host=$id" && contains "$(page "http://$ip:81/")" "host=$id"; }
main_and_sidecar_answer
n1 systemctl mask --now kat-agent.service
n1 systemctl stop kat-etcd.service
lab reboot n1
refused n1 systemctl is-active kat-agent.service
wait_for 40 main_and_sidecar_answer
pid_of() { as "$user" podman inspect --format '{{.State.Pid}}' "$1"; }
# has_new_process CONTAINER PID: whether another process than PID runs in the container. The end of
# the container that holds the network ends the others a moment later: until then they still answer.
has_new_process() {
    local pid
    pid=$(pid_of "$1") && ((pid > 0 && pid != $2))
}
for container in "$stem" "${stem}_side-proxy" "${stem}_net"; do
    killed=$(pid_of "$container") main=$(pid_of "$stem") sidecar=$(pid_of "${stem}_side-proxy")
    n1 kill -KILL "$killed"
    wait_for 40 has_new_process "$container" "$killed"
    if [[ $container == *_net ]]; then
        wait_for 40 has_new_process "$stem" "$main"
        wait_for 40 has_new_process "${stem}_side-proxy" "$sidecar"
    fi
    wait_for 40 main_and_sidecar_answer
done
first=$(as "$user" systemctl --user show --property=SubState --value "${stem}_init-first.service")
equal exited "$first" "the init container after a boot"
n1 systemctl unmask kat-agent.service
n1 systemctl start kat-agent.service
wait_for 60 node_is_ready
wait_for 30 field_is web .status.phase Running
main_and_sidecar_answer

# A failing init container is retried, and the main container waits for it.
failing='initContainers: [{name: migrate, entrypoint: [/bin/busybox, sh, -c], command: ["echo no table; exit 7"]}]'
kat apply -f "$(workload bad --port 80 --spec "$failing")"
wait_for 40 field_is bad .status.reason InitContainerFailed
equal 7 "$(field bad .status.exitCode)" "exit code of the init container"
contains "$(field bad .status.message)" "init container migrate"
failure_is_logged() { contains "$(kat logs bad -c migrate)" "no table"; }
wait_for 10 failure_is_logged
contains "$(kat why workload bad)" "an init container failed"
refused page "http://$(field bad .status.ip)/"
was_retried() { (($(field bad '.status.containers[0].restarts') >= 2)); }
wait_for 30 was_retried
# A workload whose init container fails can be deleted.
status=$(field bad .status) id=$(field bad .metadata.name)
kat delete workload bad --wait
no_remains "$status" "$id"

# With `condition: Never` a failing init container is not retried, and the instance has failed.
kat apply -f "$(workload once --port 80 --restart 'condition: Never' --spec "$failing")"
wait_for 40 field_is once .status.phase Failed
equal InitContainerFailed "$(field once .status.reason)" "reason without a retry"
kat delete workload once --wait

# A workload whose init container still runs can be deleted.
waiting='initContainers: [{name: wait, entrypoint: [/bin/busybox, sleep, "3600"], terminationGraceSeconds: 1}]'
kat apply -f "$(workload slow --port 80 --spec "$waiting")"
wait_for 30 field_is slow .status.reason InitContainerRunning
status=$(field slow .status) id=$(field slow .metadata.name)
kat delete workload slow --wait
no_remains "$status" "$id"

# The image of a sidecar is pulled first, and the message names the image that cannot be pulled.
kat apply -f "$(workload pulls --port 80 --spec 'sidecars: [{name: other, image: "registry.lab:5000/test/none:1"}]')"
wait_for 40 field_is pulls .status.reason ImageNotFound
contains "$(field pulls .status.message)" "test/none"
first_cause() { sed -n 's/^because  //p' <<<"$(kat why workload "$1")"; }
contains "$(first_cause pulls)" "image registry.lab:5000/test/none:1 does not have it"
kat delete workload pulls --wait

# With hostNetwork the sidecar also uses the machine's network.
n1 sh -c 'mkdir -p /etc/kat && echo "hostNetworkAllow: true" >/etc/kat/agent.yaml && systemctl restart kat-agent'
wait_for 60 node_is_ready
run host --container 'hostNetwork: true' --env PORT=8080 --spec 'sidecars: [{name: proxy, env: [{name: PORT, value: "8081"}]}]'
page http://127.0.0.1:8080/ >/dev/null
page http://127.0.0.1:8081/ >/dev/null
kat delete workload host --wait
n1 sh -c 'rm /etc/kat/agent.yaml && systemctl restart kat-agent'
wait_for 60 node_is_ready
