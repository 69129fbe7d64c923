# A service's address sends callers to every serving instance, and refuses connections at once when none serves
# shellcheck shell=bash
run web --port 80 --replicas 3
run other --port 8080
service=$(service_address web)
contains "$service" "10.200."
contains "$(kat get workloads -o wide)" "$service"
contains "$(kat describe workload web)" "$service"
equal "$service" "$(n1 getent ahostsv4 "web.default.$DOMAIN" | awk '{ print $1 }' | sort -u)" "address of web"
equal "$service" "$(inside other nslookup "web.default.$DOMAIN" | awk '/^Address/ { found = $2 } END { print found }')" "address of web in a container"
# All instances answer callers: a container by name, and the machine itself.
all=$(instances web | jq -r '.[].metadata.name' | sort)
from_within() { inside other sh -c 'for i in $(seq 40); do wget -q -T 3 -O- "$1"; done' sh "http://web/" | grep -o 'host=[^ ]*' | cut -d= -f2 | sort -u; }
from_machine() { n1 sh -c 'for i in $(seq 40); do curl --silent --fail --max-time 3 "$1"; done' sh "http://$service/" | grep -o 'host=[^ ]*' | cut -d= -f2 | sort -u; }
equal "$all" "$(from_within)" "instances that answer a container"
equal "$all" "$(from_machine)" "instances that answer the machine"
# Aliases are further names of the workload, which no other workload of the namespace gets.
folder=$(workload web --port 80 --replicas 3)
n1 sh -c 'echo "  aliases: [www, front]" >>"$1/VirtualLoadBalancer.kat"' sh "$folder"
kat apply -f "$folder" --wait
equal "$all" "$(instances web | jq -r '.[].metadata.name' | sort)" "instances after an alias"
# answers_with NAME ADDRESSES: what the machine gets for a name of the default namespace.
answers_with() { [[ $(n1 getent ahostsv4 "$1.default.$DOMAIN" | awk '{ print $1 }' | sort -u) == "$2" ]]; }
for alias in www front; do wait_for 20 answers_with "$alias" "$service"; done
contains "$(inside other wget -q -T 3 -O- "http://www/")" "host="
contains "$(kat describe workload web)" "www, front"
contains "$(kat why workload web)" "its aliases in its namespace: www, front"
code=0
output=$(kat apply -f "$(workload front --port 8080)" 2>&1) || code=$?
differs 0 "$code" "exit code of a workload with the name of an alias"
contains "$output" "metadata.name: \`front\` is an alias of workload default/web (its spec.aliases[1])"
# A service may send an instance that calls it back to the same instance.
run web --port 80 --replicas 1
only=$(field web .metadata.name)
wait_for 20 refused n1 getent ahostsv4 "www.default.$DOMAIN"
equal "$service" "$(service_address web)" "address after a change"
contains "$(inside web wget -q -T 3 -O- "http://web/")" "host=$only"
# Without serving instances connections are refused, not dropped.
run web --port 80 --replicas 0
# curl's exit code is 7 for a refused connection and 28 for a timeout.
is_refused() { [[ $(n1 sh -c 'curl --silent --max-time 3 "$1" >&2; echo "$?"' sh "http://$service/") == 7 ]]; }
wait_for 10 is_refused
contains "$(inside other wget -T 3 -O- "http://web/" 2>&1 || true)" "refused"
# A headless service's name resolves to the addresses of the instances.
folder=$(workload web --port 80 --replicas 2)
n1 sh -c 'printf "  headless: true\n  aliases: [www]\n" >>"$1/VirtualLoadBalancer.kat"' sh "$folder"
kat apply -f "$folder" --wait
addresses=$(instances web | jq -r '.[].status.ip' | sort)
is_headless() { [[ $(n1 getent ahostsv4 "web.default.$DOMAIN" | awk '{ print $1 }' | sort -u) == "$addresses" ]]; }
wait_for 20 is_headless
wait_for 20 answers_with www "$addresses"
# Deleting the workload removes its service address.
kat delete workload web --wait
is_gone() {
    local rules
    rules=$(n1 nft list ruleset) && [[ $rules && $rules != *"$service"* ]]
}
wait_for 10 is_gone
wait_for 20 refused n1 getent ahostsv4 "www.default.$DOMAIN"
