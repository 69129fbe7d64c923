# An agent that exits with an error is restarted until it works again, and its containers keep running
# shellcheck shell=bash
run web --port 80
pid=$(unit_property web MainPID)
n1 sh -c 'cp -p /var/lib/kat/node.json /root/node.json && echo no-identity >/var/lib/kat/node.json'
n1 systemctl kill --signal=KILL kat-agent.service
was_restarted_three_times() { (($(n1 systemctl show --property=NRestarts --value kat-agent.service) >= 3)); }
wait_for 40 was_restarted_three_times
answers "http://$(n1 jq -r '.instances[].address' /var/lib/kat/network/instances.json)/"
n1 mv /root/node.json /var/lib/kat/node.json
agent_and_web_run() { is_active kat-agent.service && node_is_ready && field_is web .status.phase Running; }
wait_for 60 agent_and_web_run
equal "$pid" "$(unit_property web MainPID)" "the container's process"
