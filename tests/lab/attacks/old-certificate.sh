# Certificates copied from a machine open nothing once it has left, also when its name is another machine's
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
pki=/var/lib/kat/pki
# code_of FOLDER NAME METHOD PATH: the status code of n1's API for a call of n4 with the certificate
# NAME of a folder on n4.
code_of() {
    on n4 curl --silent --max-time 10 --insecure --cert "$1/$2.crt" --key "$1/$2.key" --output /run/answer --write-out '%{http_code}' \
        --request "$3" "https://192.168.77.11:9115$4"
}
# hash_of NODE: the hash of the machine's public key.
hash_of() { on "$1" sh -c "openssl pkey -in $pki/node.key -pubout -outform DER | sha256sum"; }
rejoin() {
    local line
    line=$(kat token create --join)
    on n4 kat-agent join --leader-api 192.168.77.11:9115 --token "${line##* }" >/dev/null
}
on n4 sh -euc "rm -rf /root/copied; umask 077; mkdir /root/copied; cp $pki/node.crt $pki/node.key /root/copied"
before=$(hash_of n4)
# The control: the certificate works while its machine is in the cluster.
equal 200 "$(code_of /root/copied node GET /v1alpha1/nodes/n4)" "a machine about itself"
on n4 kat-agent reset --yes >/dev/null 2>&1
equal 401 "$(code_of /root/copied node GET /v1alpha1/nodes/n4)" "a machine that has left"
rejoin
wait_for 30 nodes_are_ready
differs "$before" "$(hash_of n4)" "hash of the key"
for call in "GET /v1alpha1/nodes/n4" "GET /v1alpha1/nodes/n4/membership" "POST /v1alpha1/nodes/n4/status" "DELETE /v1alpha1/nodes/n4"; do
    # shellcheck disable=SC2086 # method and path
    equal 401 "$(code_of /root/copied node $call)" "$call with the key of an earlier n4"
    lacks "$(on n4 cat /run/answer)" "PRIVATE KEY"
done
equal 200 "$(code_of $pki node GET /v1alpha1/nodes/n4)" "the new n4 about itself"
contains "$(kat get nodes)" n4
on n4 rm -rf /root/copied /run/answer
