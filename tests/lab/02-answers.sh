# A workload answers over the overlay, by address and by name, from the host and from a container
# shellcheck shell=bash
run web --port 80 --env VERSION=one
run other --port 8080
address=$(field web .status.ip) id=$(field web .metadata.name)
contains "$(page "http://$address/")" "host=$id uid=1000 version=one"
contains "$(inside other wget -q -T 3 -O- "http://$address/")" "host=$id"
# A container resolves the whole name, the short name, and the name of the instance.
for name in "web.default.$DOMAIN" web "$id.web.default.$DOMAIN"; do
    wait_for 10 inside other wget -q -T 3 -O- "http://$name/"
done
# Names with a namespace are asked for in full: they could be names of the world.
contains "$(inside other wget -q -T 3 -O- http://web.default/ 2>&1 || true)" "bad address"
# The machine resolves whole names through systemd-resolved.
wait_for 10 answers "http://web.default.$DOMAIN/"
wait_for 10 answers "http://$id.web.default.$DOMAIN/"
contains "$(n1 getent ahostsv4 "web.default.$DOMAIN")" "$(service_address web)"
contains "$(n1 getent ahostsv4 "$id.web.default.$DOMAIN")" "$address"
equal "$address" "$(service_backends web n1)" "instances behind the service"
equal "$id" "$(inside web hostname)" "host name in the container"
refused inside other wget -q -T 3 -O- "http://nothing.default.$DOMAIN/"
# Applying the same files again changes nothing.
before=$(kat get workloads web -o json | jq -c '.metadata | [.generation, .resourceVersion]')
kat apply -f /root/workloads/web --wait
equal "$before" "$(kat get workloads web -o json | jq -c '.metadata | [.generation, .resourceVersion]')" "generation"
equal "$id" "$(field web .metadata.name)" "instance"
