# Commands in a container: exit codes, pipes, a terminal that is resized and interrupted, and their end with their caller; copies in both directions; port forwarding; logs since a time and of the previous run
# shellcheck shell=bash
run web --port 80
id=$(field web .metadata.name)
# exits_with CODE COMMAND...: fails unless the command ends with this exit code.
exits_with() {
    local expected=$1 code=0
    shift
    "$@" || code=$?
    equal "$expected" "$code" "exit code of $*"
}
for code in 0 1 7 126 143 255; do exits_with "$code" kat exec "$id" -- sh -c "exit $code"; done
# The arguments arrive unchanged: neither systemd nor Podman replaces anything in them.
# shellcheck disable=SC2016
words='$HOME ${HOME} $$ %n \n'
equal "$words" "$(kat exec web -- printf %s "$words")" "arguments of a command"
# The end by a signal is 128 plus its number, as in a shell.
# shellcheck disable=SC2016
exits_with 143 kat exec "$id" -- sh -c 'kill -TERM $$'
exits_with 127 kat exec "$id" -- /nowhere
exits_with 3 kat exec nothing -- true
equal "here=2 there" "$(n1 sh -c "printf here | katcall exec -i web -- sh -c 'cat; echo =2 there'")" "output of a command with piped input"
equal "out" "$(n1 sh -c "katcall exec web -- sh -c 'echo out; echo err >&2' 2>/tmp/err")" "standard output"
equal "err" "$(n1 cat /tmp/err)" "standard error"
checksums_of_5_mb() { n1 sh -c "head -c 5000000 /dev/urandom >/tmp/large; sha256sum </tmp/large; katcall exec -i web -- cat </tmp/large | sha256sum"; }
equal 1 "$(checksums_of_5_mb | sort -u | wc -l)" "different checksums of 5 MB that went there and back"
# The command runs as the program's user and gains no privileges.
contains "$(kat exec web -- id)" "uid=1000"
contains "$(kat exec web -- grep NoNewPrivs /proc/self/status)" 1
# The journal has the caller, and not the command.
kat exec web -- sh -c 'true correct-horse'
audited() { n1 journalctl --no-pager --unit kat-agent.service | grep "POST .*/instances/$id/exec 200 by " >/dev/null; }
wait_for 10 audited
logged_commands=$(n1 journalctl --no-pager | grep -c correct-horse || true)
equal 0 "$logged_commands" "lines of the journal with the command"
# A command with a terminal.
mkfifo "$LAB_WORK/keys"
lab exec n1 -- env SHELL=/bin/sh TERM=xterm script -q -e \
    -c 'stty rows 33 cols 101; tty >/tmp/terminal; exec katcall exec -it web -- sh' /dev/null \
    <"$LAB_WORK/keys" >"$LAB_WORK/screen" &
terminal=$!
exec 7>"$LAB_WORK/keys"
type_in() { printf '%b' "$1" >&7; }
screen_shows() { grep -q "$1" "$LAB_WORK/screen"; }
terminal_size_is() {
    type_in 'stty size\n'
    screen_shows "$1" && return
    n1 sh -c 'echo "the size of katcall: $(stty -F "$(cat /tmp/terminal)" size)"' >&2
    tail -c 200 "$LAB_WORK/screen" >&2
    return 1
}
wait_for 20 terminal_size_is '33 101'
n1 sh -c 'stty -F "$(cat /tmp/terminal)" rows 20 cols 60'
wait_for 20 terminal_size_is '20 60'
type_in 'sleep 12345\n'
wait_for 20 n1 pgrep -f '^sleep 12345'
type_in '\003'
process_is_gone() { no_process n1 "$1"; }
wait_for 20 process_is_gone '^sleep 12345'
type_in 'echo after=$?\n'
wait_for 20 screen_shows 'after=130'
type_in 'exit 9\n'
exec 7>&-
exits_with 9 wait "$terminal"
# A SIGTERM for katcall ends the command, and the terminal's settings are restored.
exec 7<>"$LAB_WORK/keys"
lab exec n1 -- env SHELL=/bin/sh TERM=xterm script -q -e \
    -c 'katcall exec -it web -- sleep 12346; echo "code=$?"; stty -a' /dev/null \
    <"$LAB_WORK/keys" >"$LAB_WORK/screen" &
terminal=$!
wait_for 20 n1 pgrep -f '^sleep 12346'
n1 pkill -TERM -x katcall
wait "$terminal"
exec 7>&-
contains "$(<"$LAB_WORK/screen")" code=143
contains "$(<"$LAB_WORK/screen")" " icanon"
wait_for 20 process_is_gone '^sleep 12346'
# Without a terminal the command receives the signal and may handle it.
n1 katcall exec web -- sh -c 'trap "exit 41" TERM; sleep 12347 & while :; do sleep 0.1; done' &
caller=$!
wait_for 20 n1 pgrep -f '^sleep 12347'
n1 pkill -TERM -x katcall
exits_with 41 wait "$caller"
wait_for 20 process_is_gone '^sleep 12347'
# No process of the command outlives its caller, whatever ends the caller: neither one that ignores
# signals nor its children.
program=$(n1 pgrep -x web)
for end in INT KILL agent; do
    n1 katcall exec web -- sh -c 'trap "" TERM; sleep 54321 & sleep 54321; :' &
    caller=$!
    two_sleeps_run() { [[ $(n1 pgrep -c -f '^sleep 54321') == 2 ]]; }
    wait_for 20 two_sleeps_run
    if [[ $end == agent ]]; then
        n1 systemctl kill --signal=KILL kat-agent.service
    else
        n1 pkill "-$end" -x katcall
    fi
    code=0
    wait "$caller" || code=$?
    [[ $end == agent ]] || equal "$([[ $end == INT ]] && echo 130 || echo 137)" "$code" "exit code after SIG$end"
    wait_for 40 process_is_gone 'sleep 54321'
done
equal "$program" "$(n1 pgrep -x web)" "the container's own program"
wait_for 30 node_is_ready
exec_units_are_gone() {
    local units
    units=$(as "$(field web .status.user)" systemctl --user list-units --all --plain --no-legend 'kat-exec-*') && [[ ! $units ]]
}
wait_for 30 exec_units_are_gone
# An exec needs a leader, and the killed agent was the leader.
exec_works() { kat exec web -- true; }
wait_for 30 exec_works
# katcall cp copies files and folders in both directions.
n1 sh -c 'mkdir -p /tmp/from/sub && echo one >/tmp/from/a && echo two >/tmp/from/sub/b && chmod 750 /tmp/from/sub/b'
kat cp /tmp/from web:/tmp/copied
equal two "$(kat exec web -- cat /tmp/copied/sub/b)" "a file of a folder in the container"
kat cp "$id:/tmp/copied" /tmp/back
n1 diff -r /tmp/from /tmp/back
n1 test -x /tmp/back/sub/b
kat cp /tmp/from/a web:/tmp/
equal one "$(kat exec web -- cat /tmp/a)" "a file in the container"
output=$(kat cp web:/nowhere /tmp/nothing 2>&1) && exit 1
contains "$output" "tar in the container"
# A forwarded port takes many connections at once.
n1 timeout 60 katcall port-forward web 18080:80 2>"$LAB_WORK/forward.log" &
wait_for 20 answers http://127.0.0.1:18080/
answered=$(n1 sh -c 'for i in $(seq 20); do curl --silent --max-time 10 http://127.0.0.1:18080/ & done; wait' | grep -c '^host=')
equal 20 "$answered" "answers of 20 connections at once"
output=$(kat port-forward web 18080:80 2>&1) && exit 1
contains "$output" "port 18080 of 127.0.0.1 is taken"
n1 pkill -x katcall || true
# Logs since a time, and logs of the previous run. The present run has only logged that it listens.
write_to_log() { kat exec web -- sh -c "echo $1 >/proc/1/fd/1"; }
logged() { contains "$(kat logs web "${@:2}")" "$1"; }
write_to_log early-word
wait_for 10 logged early-word
since=$(n1 date --utc +%Y-%m-%dT%H:%M:%S.%NZ)
write_to_log late-word
wait_for 10 logged late-word --since "$since"
lacks "$(kat logs web --since "$since")" early-word
contains "$(kat logs web --timestamps --tail 1)" "$(n1 date --utc +%Y-)"
contains "$(kat logs web --previous 2>&1 || true)" "no instance of workload \`web\` was started again"
crash web
web_restarted() { field_is web .status.restarts 1 && field_is web .status.phase Running; }
wait_for 20 web_restarted
write_to_log third-word
wait_for 10 logged third-word
previous_log=$(kat logs web --previous)
contains "$previous_log" early-word
contains "$previous_log" late-word
lacks "$previous_log" third-word
# `katcall top` agrees with the CPU time that systemd counts: half a processor or more for a loop of
# a shell.
nanoseconds() { unit_property web CPUUsageNSec; }
n1 katcall exec web -- sh -c 'while :; do :; done' &
busy_exec=$!
wait_for 20 n1 pgrep -f '^sh -c while'
top_matches_manager() {
    local cpu before after real began=$EPOCHREALTIME tenths
    before=$(nanoseconds)
    cpu=$(kat top instances | awk -v id="$id" '$1 == id { print $3 }')
    after=$(nanoseconds)
    tenths=$(tenths_since "$began")
    # top prints thousandths with an m, and whole processors without.
    [[ $cpu == *m ]] && cpu=${cpu%m} || cpu=$((cpu * 1000))
    real=$(((after - before) / (tenths * 100000)))
    echo "top says $cpu, the manager $real" >&2
    ((cpu > 100 && cpu * 2 > real && cpu < real * 3))
}
wait_for 30 top_matches_manager
contains "$(kat top nodes)" n1
n1 pkill -x katcall
wait "$busy_exec" || true
