# No caller is sent to an unhealthy instance until it is healthy again, also over a restart of the agent, or until it is restarted as its file says
# shellcheck shell=bash
run web --port 80 --health 'http: {path: /healthz, port: web}, periodSeconds: 1, failureThreshold: 2'
address=$(field web .status.ip)
equal healthy "$(field web .status.health)" "health"
service=$(service_address web)
service_answers() { page "http://$service/" >/dev/null; }
# curl's exit code is 7 for a refused connection and 28 for a timeout.
is_refused() { [[ $(n1 sh -c 'curl --silent --max-time 3 "$1" >&2; echo "$?"' sh "http://$service/") == 7 ]]; }
wait_for 10 service_answers

# A restart of the agent takes no instance out of the service.
start_load "web.default.$DOMAIN@$(overlay_address n1)" 80 50 by-name
began=$SECONDS
agent_pid() { n1 systemctl show --property=MainPID --value kat-agent.service; }
before=$(agent_pid)
n1 systemctl restart kat-agent.service
agent_restarted() { differs "$before" "$(agent_pid)" "pid of the agent" && node_is_ready; }
wait_for 30 agent_restarted
no_request_lost $(((SECONDS - began) * 40)) by-name
equal healthy "$(field web .status.health)" "health after a restart of the agent"

page "http://$address/ill" >/dev/null
wait_for 15 is_refused
wait_for 5 field_is web '.status | "\(.phase) \(.health) \(.reason)"' "Running unhealthy Unhealthy"
contains "$(field web .status.message)" "http 503"
status=$(kat get workload web -o json | jq -c .status)
equal Degraded "$(jq -r .phase <<<"$status")" "phase of the workload"
contains "$(jq -r '.conditions[0].message' <<<"$status")" "$(field web .metadata.name): its health check fails: GET :80/healthz: http 503"
n1 systemctl restart kat-agent.service
wait_for 30 node_is_ready
equal unhealthy "$(field web .status.health)" "health after a restart of the agent"
page "http://$address/well" >/dev/null
wait_for 15 service_answers
equal 0 "$(field web .status.restarts)" "restarts"

# The same holds for a health check that runs a command in the container.
run exec --port 80 --health 'exec: {command: [/bin/busybox, wget, -q, -O, /dev/null, "http://127.0.0.1/healthz"]},
    periodSeconds: 1, failureThreshold: 2, restartOnUnhealthy: true'
equal healthy "$(field exec .status.health)" "health"
page "http://$(field exec .status.ip)/ill" >/dev/null
wait_for 45 field_is exec '.status | "\(.phase) \(.health) \(.restarts)"' "Running healthy 1"
contains "$(kat get events -n default -o json)" "it was started again because its health check failed: exit code 1"

# A health command that times out leaves no process behind, even if it ignores signals or has
# started other processes.
run hang --port 80 --health 'exec: {command: [sh, -c, "if [ -e /tmp/hang ]; then trap \"\" TERM; sleep 77777 & sleep 77777; fi"]},
    periodSeconds: 1, failureThreshold: 2'
kat exec hang -- touch /tmp/hang
wait_for 30 field_is hang .status.health unhealthy
contains "$(field hang .status.message)" "timeout after 1 s"
kat exec hang -- rm /tmp/hang
wait_for 30 field_is hang .status.health healthy
wait_for 10 no_process n1 '^sleep 77777'
group_count=$(n1 sh -c "find /sys/fs/cgroup/user.slice -name 'health-kat-default-hang-*' | wc -l")
((group_count <= 2))
