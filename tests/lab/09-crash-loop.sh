# A program that keeps failing shows CrashLoop with the last lines of its log
# shellcheck shell=bash
folder=$(workload bad --container 'entrypoint: ["/bin/sh", "-c"]' \
    --container 'command: ["echo all is well so far; echo but this is why it ends >&2; exit 3"]')
kat apply -f "$folder"
is_in_crash_loop() {
    status=$(field bad .status) || return 1
    jq -e '.reason == "CrashLoop" and .restarts >= 3 and .exitCode == 3 and (.message | contains("but this is why it ends"))' <<<"$status"
}
wait_for 60 is_in_crash_loop
lacks "Succeeded Stopped Pending Pulling" "$(jq -r .phase <<<"$status")"
contains "$(kat logs bad)" "but this is why it ends"
contains "$(kat describe workload bad)" "CrashLoop"
contains "$(kat get events -o json | jq -r '.items[] | select(.involvedObject.name | startswith("bad")) | .reason')" "CrashLoop"
# A caller that waits for the workload gets an exit code of its own.
code=0
kat apply -f "$folder" --wait --timeout 20s || code=$?
equal 5 "$code" "exit code of a wait that timed out"
refused kat status
# Programs that end within 3 s are never healthy, also at the first deploy without a health check.
for program in '1 exit 1' '3 sleep 1; exit 3' '1 sleep 2; exit 1'; do
    folder=$(workload brief --container 'entrypoint: ["/bin/sh", "-c"]' --container "command: [\"${program#* }\"]")
    kat apply -f "$folder"
    has_ended_twice() { (($(field brief .status.restarts) >= 2)); }
    wait_for 60 has_ended_twice
    code=0
    output=$(kat apply -f "$folder" --wait --timeout 9s 2>&1) || code=$?
    equal 5 "$code" "exit code of a wait for \`${program#* }\`"
    contains "$output" "exit code ${program%% *}"
    contains "$output" "0 of 1 healthy"
    refused kat status
    kat delete workload brief --wait
done
