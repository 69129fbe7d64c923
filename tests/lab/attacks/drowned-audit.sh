# A flood of calls without credentials drops no line about the real ones
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
leader=$(leader_at n1)
leader_address=192.168.77.$((10 + ${leader#n}))
since=$(on "$leader" date '+%F %T')
lab copy tests/lab/attacks/flood-calls.py n4:/root/flood-calls.py
on n4 timeout 40 python3 /root/flood-calls.py "$leader_address" 9115 10 >"$LAB_WORK/flooded" &
flood_pid=$!
sleep 8
n1 sh -c 'printf value | katcall secret set drowned --from-file key=-' >/dev/null
wait "$flood_pid"
kat delete secret drowned
audit_log() { lab journal "$leader" -t kat-audit -o cat --since "$since"; }
contains "$(audit_log | grep ' by token\| by admin\| by uid')" "PUT /v1alpha1/n/default/secrets/drowned 201"
lab journal "$leader" --since "$since" -u systemd-journald >"$LAB_WORK/journal"
finds_nothing grep 'Suppressed .* kat-agent' "$LAB_WORK/journal"
# The control: the API answered all of these calls, and counts most of them in a line instead of
# listing them.
answered=$(<"$LAB_WORK/flooded")
((answered >= 20000)) || { echo "only $answered calls of the flood were answered"; exit 1; }
lines=$(audit_log | grep -c 'GET /nothing') || true
((lines > 0 && lines <= 20 * 60)) || { echo "the audit log has $lines lines of the flood's calls, expected 1 to 1200"; exit 1; }
audit_log | grep ' more calls, ' >/dev/null
