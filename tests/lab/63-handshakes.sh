# describe shows a machine's WireGuard status, and its traffic writes nothing to the store
# machines: 3
# shellcheck shell=bash
wait_for 30 nodes_are_ready
peers() { kat get nodes "$1" -o json | jq -c .status.peers; }
has_both_handshakes() {
    [[ $(peers n2 | jq -c '[.[] | select(.connected and .lastHandshake != null and .sent > 0 and .received > 0) | .name]') == '["n1","n3"]' ]]
}
# All three machines exchange etcd traffic.
wait_for 60 has_both_handshakes
received() { peers n2 | jq '.[] | select(.name == "n1") | .received'; }
before=$(received)
received_has_grown() {
    local now
    now=$(received) && [[ $now ]] && ((now > before))
}
wait_for 60 received_has_grown
text=$(kat describe node n2)
contains "$text" HANDSHAKE
contains "$text" "$(kat get nodes n1 -o json | jq -r '.status.endpoints[0]')"
# Lists of nodes and the store contain no peers.
equal 0 "$(kat get nodes -o json | jq '[.items[].status | select(has("peers"))] | length')" "machines of a list with peers"
lacks "$(etcdctl_on n1 get --prefix /kat/nodes/status/)" lastHandshake
