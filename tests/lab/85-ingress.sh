# Three ingress machines serve a route over HTTPS under load, through a rollout, another certificate, a drain and a stopped agent
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
HOST=shop.lan
# web_folder ROUTE [OPTION...]: the folder of a version with this route.
web_folder() {
    local route=$1 folder
    shift
    folder=$(workload web --port 80 --replicas 3 --health 'http: {path: /healthz, port: web}, periodSeconds: 1' --drain 2 --env DRAIN_MS=1000 "$@")
    n1 sh -c 'printf "  ingress:\n    - %s\n" "$2" >>"$1/VirtualLoadBalancer.kat"' sh "$folder" "$route"
    echo "$folder"
}
# Asked for once: katcall on n1 may know no other server while the agent there is stopped.
declare -A addresses
for node in n1 n2 n3; do addresses[$node]=$(overlay_address "$node"); done
# fetch MACHINE SCHEME HOST [CURL OPTION...]: a request to the machine's own address.
fetch() {
    local node=$1 scheme=$2 host=$3 port=443 address
    shift 3
    [[ $scheme == https ]] || port=80
    address=${addresses[$node]}
    n1 curl --silent --show-error --max-time 5 --resolve "$host:$port:$address" "$@" "$scheme://$host/"
}
serves() { fetch "$1" https "$HOST" --fail --cacert /root/ca.crt | grep -q '^host='; }
is_route_served() { kat get routes -o json | jq -e --argjson count "$1" '.items[0].status | .served and ([.machines[] | select(.serves)] | length) == $count' >/dev/null; }

# A plan names the issuer and the records; a second workload does not get the host.
folder=$(web_folder "{host: $HOST, servicePortName: web, tls: true}" --env VERSION=1)
planned=$(kat plan -f "$folder" || [[ $? == 10 ]])
contains "$planned" "https://$HOST/ -> port 80, certificate: internal"
contains "$planned" "$HOST A "
kat apply --wait --timeout 90s -f "$folder"
wait_for 60 is_route_served 3
n1 sh -c 'katcall ca trust >/root/ca.crt'
for node in n1 n2 n3; do
    wait_for 30 serves "$node"
    equal "308 https://$HOST/" "$(fetch "$node" http "$HOST" --output /dev/null --write-out '%{http_code} %{redirect_url}')" "plain HTTP on $node"
    # Without the authority nobody trusts the certificate.
    code=0
    fetch "$node" https "$HOST" --output /dev/null 2>/dev/null || code=$?
    equal 60 "$code" "exit code of curl without the authority on $node"
done
contains "$(kat get nodes n2 -o json | jq -c .status.roles)" ingress
other=$(workload other --port 80)
n1 sh -c 'printf "  ingress:\n    - {host: %s, servicePortName: web}\n" "$2" >>"$1/VirtualLoadBalancer.kat"' sh "$other" "$HOST"
code=0
refused=$(kat apply -f "$other" 2>&1) || code=$?
equal 1 "$code" "exit code of an apply of the same host"
contains "$refused" "is a route of workload web"
code=0
refused=$(kat run "$WEB_IMAGE" --name port80 -p 80:80 2>&1) || code=$?
equal 1 "$code" "exit code of a workload with host port 80"
contains "$refused" "port 80"

# load_https: ten requests a second on each machine, each over a new connection, until stopped. Writes a line for each
# that failed, and their number.
load_https() {
    local node
    n1 rm -f /run/stop-https
    for node in n1 n2 n3; do
        lab exec n1 -- sh -c '
            sent=0 failed=0
            # Some are sent wherever the machine is busy.
            while [ ! -e /run/stop-https ] || [ "$sent" -le 20 ]; do
                sent=$((sent + 1))
                curl --silent --show-error --fail --max-time 5 --cacert /root/ca.crt --resolve "$1:443:$2" --output /dev/null "https://$1/" >&2 || failed=$((failed + 1))
                sleep 0.1
            done
            echo "$sent $failed"' sh "$HOST" "$(overlay_address "$node")" </dev/null >"$LAB_WORK/https-$node" 2>"$LAB_WORK/https-$node.log" &
        load_pids["https-$node"]=$!
    done
    trap 'kill "${load_pids[@]}" 2>/dev/null || true; tail -n 5 "$LAB_WORK"/https-* >&2' EXIT
}
no_https_lost() {
    local node sent failed
    n1 touch /run/stop-https
    for node in n1 n2 n3; do
        wait "${load_pids["https-$node"]}"
        unset "load_pids["https-$node"]"
        read -r sent failed <"$LAB_WORK/https-$node"
        echo "$node: $sent requests, $failed failed"
        [[ $failed == 0 ]] && ((sent > 20)) || return 1
    done
}
load_https
kat apply --wait --timeout 90s -f "$(web_folder "{host: $HOST, servicePortName: web, tls: true}" --env VERSION=2)"
contains "$(fetch n2 https "$HOST" --fail --cacert /root/ca.crt)" "version=2"
kat drain n3 --timeout 60s
kat uncordon n3
n1 systemctl stop kat-agent
wait_for 10 serves n1
n1 systemctl start kat-agent
wait_for 30 nodes_are_ready
no_https_lost

# KAT's own authority is replaced under load, and the leader is killed on the way: a client that trusts both loses nothing.
authority() { kat ca list -o json | jq -er ".items[] | select(.name == \"ingress-ca\") | $1"; }
in_phase() { equal "$1" "$(authority .phase)" "phase of ingress-ca"; }
is_replaced() { in_phase Settled && differs "$1" "$(authority .fingerprint)" "fingerprint of ingress-ca"; }
serves_by() { fetch "$1" https "$HOST" --fail --cacert "$2" | grep -q '^host='; }
in_phase Settled
before=$(authority .fingerprint)
kat ca rotate ingress-ca --grace 1h
wait_for 30 in_phase Trust
contains "$(authority .message)" "katcall ca trust"
n1 sh -c 'cp /root/ca.crt /root/old-ca.crt && katcall ca trust >/root/ca.crt && katcall ca trust --next >/root/next-ca.crt'
equal 2 "$(n1 grep -c 'BEGIN CERTIFICATE' /root/ca.crt)" "certificates that are printed"
# The time has not ended: the present one alone is enough.
serves_by n2 /root/old-ca.crt
refused kat ca rotate ingress-ca
load_https
kat ca rotate ingress-ca --grace 0s
on "$(leader_at n1)" systemctl kill --signal KILL kat-agent.service
wait_for 120 is_replaced "$before"
for node in n1 n2 n3; do wait_for 30 serves_by "$node" /root/next-ca.crt; done
wait_for 30 nodes_are_ready
no_https_lost
code=0
serves_by n2 /root/old-ca.crt 2>/dev/null || code=$?
differs 0 "$code" "exit code of curl with the old authority"
n1 sh -c 'katcall ca trust >/root/ca.crt'
equal 1 "$(n1 grep -c 'BEGIN CERTIFICATE' /root/ca.crt)" "certificates that are printed"
contains "$(kat get events -A -o json)" AuthorityReplaced

# A certificate of the user's own, replaced under load.
# bring NUMBER: a certificate of an authority of the test, which the request of curl trusts.
n1 sh -c 'cd /root && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=test" -keyout own-ca.key -out ca.crt' 2>/dev/null
bring() {
    n1 sh -c 'cd /root && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout tls.key -out tls.csr &&
        printf "subjectAltName=DNS:%s" "$1" >tls.ext &&
        openssl x509 -req -in tls.csr -CA ca.crt -CAkey own-ca.key -set_serial "$2" -days 10 -extfile tls.ext -out tls.crt' sh "$HOST" "$1" 2>/dev/null
    kat secret set own --from-file tls.crt=/root/tls.crt --from-file tls.key=/root/tls.key
}
# has_serial MACHINE NUMBER
has_serial() {
    local shown
    shown=$(n1 sh -c 'openssl s_client -connect "$1:443" -servername "$2" </dev/null 2>/dev/null | openssl x509 -noout -serial' sh "${addresses[$1]}" "$HOST")
    [[ $shown == "serial=$2" ]]
}
bring 17
kat apply --wait --timeout 90s -f "$(web_folder "{host: $HOST, servicePortName: web, tls: {secret: own}}" --env VERSION=2)"
for node in n1 n2 n3; do wait_for 30 has_serial "$node" 11; done
load_https
for number in 18 19 20 21 22 23; do
    bring "$number"
    for node in n1 n2 n3; do wait_for 30 has_serial "$node" "$(printf '%X' "$number")"; done
done
no_https_lost
# One for another name is refused while a route uses the secret, and the one of before stays.
code=0
refused=$(HOST=other.lan bring 24 2>&1) || code=$?
equal 1 "$code" "exit code of a secret with a certificate of another name"
contains "$refused" "is for other.lan, not for shop.lan"
has_serial n2 17

# Another workload decides about each request: 200 admits it, another answer goes to the caller.
judged() { web_folder "{host: $HOST, servicePortName: web, tls: {secret: own}, forwardAuth: {workload: judge, port: web, path: $1}}" --env VERSION=2; }
answers_with() { [[ $(fetch "$1" https "$HOST" --cacert /root/ca.crt --output /dev/null --write-out '%{http_code}') == "$2" ]]; }
kat apply --wait --timeout 90s -f "$(judged /nothing)"
for node in n1 n2 n3; do wait_for 30 answers_with "$node" 502; done
contains "$(kat why route "$HOST")" AuthNotReachable
kat apply --wait --timeout 90s -f "$(workload judge --port 80)"
for node in n1 n2 n3; do wait_for 30 answers_with "$node" 404; done
kat apply --wait --timeout 90s -f "$(judged /healthz)"
for node in n1 n2 n3; do wait_for 30 answers_with "$node" 200; done
kat delete workload judge --wait

# TLS that is passed on reaches the program, which speaks none and says so in plain HTTP.
is_passed_on() {
    local said
    said=$(n1 sh -c 'openssl s_client -connect "$1:443" -servername "$2" </dev/null 2>&1 || true' sh "${addresses[$1]}" "$HOST")
    [[ $said == *"wrong version number"* || $said == *"packet length too long"* ]]
}
kat apply --wait --timeout 90s -f "$(web_folder "{host: $HOST, servicePortName: web, passthrough: true}" --env VERSION=2)"
for node in n1 n2 n3; do wait_for 30 is_passed_on "$node"; done
kat apply --wait --timeout 90s -f "$(web_folder "{host: $HOST, servicePortName: web, tls: {secret: own}}" --env VERSION=2)"
for node in n1 n2 n3; do wait_for 30 serves "$node"; done

# KAT's own API has no route as something outside KAT.
n1 sh -c 'mkdir -p /root/nas && printf "apiVersion: kat.dws.rip/v1alpha1\nkind: Route\nspec: {host: nas.lan, to: \"http://%s:9115\", tls: true}\n" "$1" >/root/nas/route.kat' sh "$(host_address n2)"
code=0
refused=$(kat apply -f /root/nas 2>&1) || code=$?
equal 1 "$code" "exit code of a route to KAT's API"
contains "$refused" "KAT's API"

# Another program has a route although KAT knows nothing of it. While it is away, the answer is 502.
begin_nas() { n1 systemd-run --quiet --collect --unit=test-nas --setenv=PORT=8088 --setenv=VERSION=nas /root/web; }
nas_answers() { [[ $(fetch "$1" http nas.lan --output /dev/null --write-out '%{http_code}') == "$2" ]]; }
begin_nas
n1 sh -c 'printf "apiVersion: kat.dws.rip/v1alpha1\nkind: Route\nspec: {host: nas.lan, to: \"http://%s:8088\"}\n" "$1" >/root/nas/route.kat' sh "$(host_address n1)"
kat apply -f /root/nas
for node in n1 n2 n3; do wait_for 30 nas_answers "$node" 200; done
contains "$(fetch n3 http nas.lan --fail)" "version=nas"
n1 systemctl stop test-nas
for node in n1 n2 n3; do wait_for 20 nas_answers "$node" 502; done
begin_nas
for node in n1 n2 n3; do wait_for 30 nas_answers "$node" 200; done
kat delete route/nas.lan
for node in n1 n2 n3; do wait_for 20 nas_answers "$node" 404; done
n1 systemctl stop test-nas
n1 rm -rf /root/nas

# The label withdraws the keys from the other machines, and closes their ports.
kat label node n1 kat.dws.rip/role=ingress
has_no_keys() { absent "$1" /var/lib/kat/ingress/certificates.json /var/lib/kat/ingress/routes.json; }
for node in n2 n3; do
    wait_for 30 has_no_keys "$node"
    finds_nothing on "$node" sh -c 'ss -Htln "sport = :443" | grep .'
done
serves n1
kat label node n1 kat.dws.rip/role-
kat delete workload web --wait
for node in n1 n2 n3; do wait_for 30 has_no_keys "$node"; done
kat delete secret own
n1 rm -f /root/ca.crt /root/own-ca.key /root/tls.key /root/tls.crt /root/tls.csr /root/tls.ext /run/stop-https
