# A machine that does not report becomes NotReady with its reason, and Ready again when it is back
# machines: 2
# shellcheck shell=bash
wait_for 30 nodes_are_ready
lab kill n2
phase() { kat get nodes n2 -o json | jq -r .status.phase; }
is_lost() { [[ $(phase) == NotReady ]]; }
wait_for 90 is_lost
contains "$(kat get nodes)" NoHeartbeat
contains "$(kat describe node n2)" "has not reported for 60 s"
contains "$(kat get events -A)" NodeNotReady
lab start n2
wait_for 60 nodes_are_ready
