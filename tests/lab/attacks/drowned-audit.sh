# A flood of calls without credentials drops no line about the real ones
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
leader=$(leader_at n1)
leads_at=192.168.77.$((10 + ${leader#n}))
since=$(on "$leader" date '+%F %T')
lab copy tests/lab/attacks/flood-calls.py n4:/root/flood-calls.py
on n4 timeout 40 python3 /root/flood-calls.py "$leads_at" 9115 10 >"$LAB_WORK/flooded" &
flooding=$!
sleep 8
n1 sh -c 'printf value | katcall secret set drowned --from-file key=-' >/dev/null
wait "$flooding"
kat delete secret drowned
audit() { lab journal "$leader" -t kat-audit -o cat --since "$since"; }
contains "$(audit | grep ' by token\| by admin\| by uid')" "PUT /v1alpha1/n/default/secrets/drowned 201"
refused sh -c "contrib/lab/kat-lab journal $leader --since '$since' -u systemd-journald | grep 'Suppressed .* kat-agent'"
# The control: all of these calls were answered, and most of them are counted in a line and not listed.
answered=$(<"$LAB_WORK/flooded")
((answered >= 20000)) || { echo "only $answered calls of the stranger were answered"; exit 1; }
lines=$(audit | grep -c 'GET /nothing') || true
((lines > 0 && lines <= 20 * 60)) || { echo "$lines lines of the stranger's calls"; exit 1; }
audit | grep ' more calls, ' >/dev/null
