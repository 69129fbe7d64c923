# shellcheck shell=bash
# What the attacks share. An attack is a file beside this one that plays a hostile tenant, container, worker or network on
# a lab of four machines: n1 to n3 hold the store, n4 does not. Each has a control, which shows that the attack would be
# seen if it worked. First line: the sentence that holds when the attack fails. Then "# machines: 4", and
# ". tests/lab/attacks/lib.sh".

# become_tenant NAMESPACE: makes a token `deploy:NAMESPACE` and a connection that has nothing but it, on n1.
become_tenant() {
    local namespace=$1 token
    token=$(kat token create --scope "deploy:$namespace" --name "tenant-$namespace" | grep -o 'kat1\.[^ ]*' | head -n 1)
    [[ $token ]]
    n1 sh -c "umask 077; jq --arg token '$token' '.token = \$token' /etc/kat/admin.conf >/root/tenant.conf"
    # The control: it is a tenant, and no more.
    refused tenant get nodes
}
# tenant ARGUMENT...: katcall with the tenant's token alone.
tenant() { n1 env KAT_CONNECTION=/root/tenant.conf katcall "$@"; }
# node_of WORKLOAD: the machine of its only instance.
node_of() { field "$1" .status.node; }
# agent_call NODE METHOD PATH [BODY_FILE]: status code on the first line, then the answer, asked with NODE's own certificate
# from NODE at the API port of n1; BODY_FILE is on NODE.
agent_call() {
    local body=()
    (($# < 4)) || body=(--header 'Content-Type: application/json' --data-binary "@$4")
    on "$1" curl --silent --show-error --max-time 10 --insecure --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key \
        --write-out '\n%{http_code}\n' --request "$2" "${body[@]}" "https://192.168.77.11:9115$3" | tac
}
