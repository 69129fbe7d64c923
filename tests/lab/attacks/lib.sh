# shellcheck shell=bash
# Functions of the attacks. An attack is a file in this folder that acts as a hostile tenant,
# container, worker or network in a lab of four machines: n1 to n3 hold the store, n4 does not. Each
# attack has a control, which shows that the test would detect a successful attack. The first line
# is the sentence that holds when the attack fails. The next lines are "# machines: 4" and the command
# that sources this file.

# become_tenant NAMESPACE: makes a token `deploy:NAMESPACE` and a connection file with this token
# alone, on n1.
become_tenant() {
    local namespace=$1 token
    token=$(kat token create --scope "deploy:$namespace" --name "tenant-$namespace" | grep -o 'kat1\.[^ ]*' | head -n 1)
    [[ $token ]]
    n1 sh -c "umask 077; jq --arg token '$token' '.token = \$token' /etc/kat/admin.conf >/root/tenant.conf"
    # The control: the token has the rights of a tenant and no others.
    refused tenant get nodes
}
# tenant ARGUMENT...: runs katcall with the tenant's token alone.
tenant() { n1 env KAT_CONNECTION=/root/tenant.conf katcall "$@"; }
# node_of WORKLOAD: the machine of the workload's only instance.
node_of() { field "$1" .status.node; }
# agent_call NODE METHOD PATH [BODY_FILE]: calls the API port of n1 from NODE, with NODE's own
# certificate. Prints the status code on the first line, then the answer. BODY_FILE is on NODE.
agent_call() {
    local body=()
    (($# < 4)) || body=(--header 'Content-Type: application/json' --data-binary "@$4")
    on "$1" curl --silent --show-error --max-time 10 --insecure --cert /var/lib/kat/pki/node.crt --key /var/lib/kat/pki/node.key \
        --write-out '\n%{http_code}\n' --request "$2" "${body[@]}" "https://192.168.77.11:9115$3" | tac
}
# An attack begins with three members, also the first one in a new lab. Tests with fewer machines use these functions, too.
wait_for 30 nodes_are_ready
((LAB_MACHINES < 4)) || wait_for 120 members_are_healthy 3
