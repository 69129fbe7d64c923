# After a reboot the machine becomes Ready by itself, and its workloads run as before
# shellcheck shell=bash
run web --port 80
before=$(field web '|"\(.metadata.name) \(.status.ip) \(.status.uid)"')
generation=$(kat get workloads web -o json | jq .metadata.generation)
lab reboot n1
wait_for 60 node_is_ready
wait_for 30 field_is web .status.phase Running
wait_for 10 answers "http://web.default.$DOMAIN/"
equal "$before" "$(field web '|"\(.metadata.name) \(.status.ip) \(.status.uid)"')" "instance, address and uid"
equal "$generation" "$(kat get workloads web -o json | jq .metadata.generation)" "generation"
prints_nothing "failed units" n1 systemctl list-units --failed --plain --no-legend
