# A machine's certificates and keys open only what is its own, and every other port and route refuses them
# machines: 4
# shellcheck shell=bash
wait_for 30 nodes_are_ready
wait_for 60 members_are_healthy 3
run web --port 80 --replicas 4
equal '["worker"]' "$(kat get nodes n4 -o json | jq -c .status.roles)" "roles of n4"
member=$(overlay_address n1)

# --- etcd: a machine that does not hold it has neither a user nor a certificate of etcd.
users=$(etcdctl_on n1 user list)
for node in n1 n2 n3; do contains "$users" "leader:$node"; done
lacks "$users" node:n4
equal "node.key" "$(on n4 sh -c 'cd /var/lib/kat/pki && echo *.key')" "keys of n4"
equal 3 "$(etcdctl_on n1 member list | wc -l)" "members"

# --- etcd's ports: the peer port accepts certificates of peers alone, and neither port accepts a
# certificate of the API.
# fetch_with NODE CERTIFICATE URL: curl's output on NODE with this certificate.
fetch_with() { on "$1" curl --http1.1 --silent --show-error --max-time 5 --insecure --cert "/var/lib/kat/pki/$2.crt" --key "/var/lib/kat/pki/$2.key" "$3" 2>&1; }
contains "$(fetch_with n2 etcd-peer "https://$member:2380/members")" peerURLs
contains "$(fetch_with n2 leader-etcd "https://$member:2379/version")" etcdserver
for pair in "node 2380" "node 2379"; do
    read -r leaf port <<<"$pair"
    output=$(fetch_with n4 "$leaf" "https://$member:$port/version") && { echo "$leaf opens $port: $output" >&2; exit 1; }
    [[ $output == *alert*"unknown ca"* || $output == *alert*"bad certificate"* ]] || { echo "$leaf at $port: $output" >&2; exit 1; }
done

# --- The API: a machine sends its own report and reads its own registration, through the port of
# every machine.
# call NODE METHOD PATH [BODY]: the status, then the body, of n4's call at the port of NODE.
call() {
    local body=()
    (($# < 4)) || body=(--header 'Content-Type: application/json' --data "$4")
    on n4 curl --silent --show-error --max-time 5 --insecure --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key \
        --write-out '\n%{http_code}\n' --request "$2" "${body[@]}" "https://192.168.77.1${1#n}:9115$3" | tac
}
# response_is STATUS WORDS NODE METHOD PATH [BODY]
response_is() {
    local status=$1 words=$2 output
    shift 2
    output=$(call "$@")
    [[ $output == "$status"$'\n'*"$words"* ]] || {
        echo "expected $status and '$words' of $*, found: $output" >&2
        return 1
    }
}
uid_of() { on "$1" jq -r .nodeUid /var/lib/kat/node.json; }
own=$(uid_of n4) other=$(uid_of n1)
[[ $own && $other && $own != null && $own != "$other" ]]
report() { printf '{"nodeName": "%s", "nodeUID": "%s"}' "$1" "$2"; }
leader=$(leader_at n1)
other_member=$([[ $leader == n2 ]] && echo n3 || echo n2)
for through in "$leader" "$other_member"; do
    response_is 200 '"name":"n4"' "$through" GET /v1alpha1/nodes/n4
    response_is 403 "certificate of this very machine" "$through" POST /v1alpha1/nodes/n1/status "$(report n1 "$other")"
    response_is 403 "not about" "$through" POST /v1alpha1/nodes/n4/status "$(report n1 "$other")"
    response_is 403 "another identity" "$through" POST /v1alpha1/nodes/n4/status "$(report n4 "$other")"
    for path in nodes nodes/n1 workloads n/default/workloads/web n/default/workloads/web/files/workload.kat instances events namespaces \
        tokens config/cluster; do
        response_is 403 "it needs the scope" "$through" GET "/v1alpha1/$path"
    done
    response_is 403 "it needs the scope" "$through" GET /metrics
done
response_is 403 "certificate of this very machine" "$leader" GET /v1alpha1/nodes/n1/membership
response_is 409 "not one of those that hold the cluster's store" "$leader" GET /v1alpha1/nodes/n4/membership
# A machine may have itself emptied, as its reset does, and neither another one nor itself filled again.
response_is 403 "certificate of this very machine" "$leader" PUT /v1alpha1/nodes/n1/drain
response_is 403 "cannot drain by force" "$leader" PUT "/v1alpha1/nodes/n4/drain?force=true"
response_is 403 "it needs the scope \`admin\`" "$leader" DELETE /v1alpha1/nodes/n4/drain
response_is 403 "it needs the scope \`admin\`" "$leader" PUT /v1alpha1/nodes/n4/labels '{"labels": {}}'
response_is 403 "it needs the scope \`admin\`" "$leader" POST /v1alpha1/tokens '{"scope": {"kind": "admin"}}'
response_is 403 "certificate of this very machine" "$leader" DELETE /v1alpha1/nodes/n1
response_is 403 "a token for joining" "$leader" POST /v1alpha1/join '{}'
# The permitted calls still work: the calls above were not refused because of a broken client, and
# changed nothing.
wait_for 30 nodes_are_ready

# --- Certificates: the leader signs for the machine's own name and key alone, and ignores other
# requested properties.
# request NAME KEY: a request for the common name NAME that also asks for an authority and for the
# name n1.
request() {
    on n4 openssl req -new -key "$2" -subj "/CN=$1" -addext basicConstraints=critical,CA:TRUE -addext subjectAltName=DNS:n1,DNS:root |
        jq -Rsc '{certificateRequest: .}'
}
key=/var/lib/kat/pki/node.key
on n4 openssl ecparam -genkey -name prime256v1 -noout -out /run/other.key
renewal=/v1alpha1/nodes/n4/certificates
for name in root leader:n1 leader:n4 admin:n4 admin:root etcd:n4 node:n1 n4; do
    response_is 400 "expected \`node:n4\`" "$leader" POST "$renewal" "$(request "$name" "$key")"
done
response_is 401 "the key is not the one" "$leader" POST "$renewal" "$(request node:n4 /run/other.key)"
response_is 401 "the key is not the one" "$leader" POST /v1alpha1/nodes/n1/certificates "$(request node:n1 "$key")"
signed=$(call "$leader" POST "$renewal" "$(request node:n4 "$key")" | sed 1d)
text=$(jq -r .node <<<"$signed" | lab exec n4 -- openssl x509 -noout -text)
contains "$text" "Subject: CN=node:n4"
contains "$text" "CA:FALSE"
lacks "$text" DNS:n1
lacks "$text" DNS:root
# The request is that of version 0.1.0, whose machines got a certificate of etcd.
equal null "$(jq -c .etcd <<<"$signed")" "the certificate of etcd in a renewal"
on n4 rm /run/other.key
