# A machine loses power under load: new connections meet the others long before the machine is NotReady, also where the agent is stopped
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 3
equal '["n1","n2","n3"]' "$(machines_running web)" "machines of three replicas"
address=$(service_address web) gone=$(field_on web n2 .status.ip)

# start_calls MACHINE: opens ten connections a second to the service for 30 s, in the background,
# each with a minute's patience and without waiting for others; writes how many failed and how long
# the longest took.
declare -A calls=()
start_calls() {
    lab exec "$1" -- python3 - "$address" >"$LAB_WORK/calls-$1.json" <<'PYTHON' &
import json, socket, sys, threading, time
waits, failures = [], []
def call():
    began = time.monotonic()
    try:
        socket.create_connection((sys.argv[1], 80), timeout=60).close()
    except OSError as error:
        failures.append(str(error))
    waits.append(time.monotonic() - began)
threads, began = [], time.monotonic()
while time.monotonic() - began < 30:
    threads.append(threading.Thread(target=call))
    threads[-1].start()
    time.sleep(0.1)
for thread in threads:
    thread.join()
print(json.dumps({"calls": len(waits), "failures": failures[:5], "longest": round(max(waits), 2)}))
PYTHON
    calls[$1]=$!
}
# no_long_wait MACHINE: whether all calls from the machine were accepted, each within 25 s.
no_long_wait() {
    wait "${calls[$1]}"
    echo "from $1: $(cat "$LAB_WORK/calls-$1.json")"
    jq -e '.failures == [] and .calls >= 150 and .longest <= 25' "$LAB_WORK/calls-$1.json" >/dev/null
}
# backends_are COUNT MACHINE: whether the machine balances over so many instances.
backends_are() { [[ $(service_backends web "$2" | wc -l) == "$1" ]]; }

# What kat-net does needs no agent.
on n3 systemctl stop kat-agent.service
start_calls n1
start_calls n3
began=$EPOCHREALTIME
lab kill n2
for node in n1 n3; do
    wait_for 25 backends_are 2 "$node"
    lacks "$(service_backends web "$node")" "$gone"
    echo "$node left the machine out $(seconds_since "$began") s after the loss of power"
done
equal Ready "$(kat get nodes n2 -o json | jq -r .status.phase)" "phase of the lost machine"
no_long_wait n1
no_long_wait n3
contains "$(on n1 journalctl --unit kat-net --since "@${began%.*}" --output cat)" "does not answer over the overlay"
on n3 systemctl start kat-agent.service
lab start n2
wait_for 60 nodes_are_ready
for node in n1 n3; do wait_for 60 backends_are 3 "$node"; done
wait_for 60 has_ready web 3
