# A service on three machines: each instance answers callers everywhere, and a connection that is open survives a change of scale
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
contains "$(service_address web)" "10.200."
caller=$(instances web | jq -c '[.[].status | select(.node == "n1")] | first')
# in_caller COMMAND...: runs a command in the container of the instance on n1.
in_caller() { as "$(jq -r .user <<<"$caller")" podman exec "$(jq -r '.unit | rtrimstr(".service")' <<<"$caller")" "$@"; }
all=$(instances web | jq -r '.[].metadata.name' | sort)
hosts_of() { grep -o 'host=[^ ]*' | cut -d= -f2 | sort -u; }
hosts_that_answer_caller() { in_caller sh -c 'for i in $(seq 40); do wget -q -T 3 -O- http://web/; done' | hosts_of; }
equal "$all" "$(hosts_that_answer_caller)" "instances that answer a container on n1"
for node in n1 n2 n3; do
    found=$(on "$node" sh -c 'for i in $(seq 40); do curl --silent --fail --max-time 3 "$1"; done' sh "http://web.default.$DOMAIN/" | hosts_of)
    equal "$all" "$found" "instances that answer $node"
done
# A connection is open while instances start and stop: the client sends one byte of its request ten
# times a second.
run kept --port 81
first=$(field kept .metadata.name)
n1 rm -f /run/finish-kept
lab exec n1 -- timeout 150 python3 -c '
import os, socket, sys, time
kept = socket.create_connection((sys.argv[1], 81), timeout=10)
kept.sendall(b"GET / HTTP/1.0\r\nTime: ")
print("begun", flush=True)
while not os.path.exists("/run/finish-kept"):
    kept.sendall(b".")
    time.sleep(0.1)
kept.sendall(b"\r\n\r\n")
print(kept.makefile().read(), flush=True)' "$(service_address kept)" </dev/null >"$LAB_WORK/kept.log" 2>&1 &
client=$!
trap 'kill "$client" 2>/dev/null || true; cat "$LAB_WORK/kept.log" >&2' EXIT
wait_for 20 grep -q begun "$LAB_WORK/kept.log"
backend_count_is() { [[ $(service_backends kept n1 81 | wc -l) == "$1" ]]; }
for count in 3 1; do
    run kept --port 81 --replicas "$count"
    wait_for 20 backend_count_is "$count"
done
equal "$first" "$(field kept .metadata.name)" "the remaining instance"
n1 touch /run/finish-kept
wait "$client"
contains "$(cat "$LAB_WORK/kept.log")" "host=$first"
