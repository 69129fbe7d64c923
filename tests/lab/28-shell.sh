# Commands in a container: exit codes, pipes, a terminal that is resized and interrupted, and their end with their caller; copies in both directions; port forwarding; logs since a time and of the previous run
# shellcheck shell=bash
run web --port 80
id=$(field web .metadata.name)
# exits CODE COMMAND...: for what fails as it should.
exits() {
    local expected=$1 code=0
    shift
    "$@" || code=$?
    equal "$expected" "$code" "exit code of $*"
}
for code in 0 1 7 126 143 255; do exits "$code" kat exec "$id" -- sh -c "exit $code"; done
# Words come through as they are; neither systemd nor Podman replaces anything in them.
# shellcheck disable=SC2016
words='$HOME ${HOME} $$ %n \n'
equal "$words" "$(kat exec web -- printf %s "$words")" "words of a command"
# The exit code of a command that a signal ended is 128 and the signal's number, as in a shell.
# shellcheck disable=SC2016
exits 143 kat exec "$id" -- sh -c 'kill -TERM $$'
exits 127 kat exec "$id" -- /nowhere
exits 3 kat exec nothing -- true
equal "here=2 there" "$(n1 sh -c "printf here | katcall exec -i web -- sh -c 'cat; echo =2 there'")" "what was piped in"
equal "out" "$(n1 sh -c "katcall exec web -- sh -c 'echo out; echo err >&2' 2>/tmp/err")" "standard output"
equal "err" "$(n1 cat /tmp/err)" "standard error"
large() { n1 sh -c "head -c 5000000 /dev/urandom >/tmp/large; sha256sum </tmp/large; katcall exec -i web -- cat </tmp/large | sha256sum"; }
equal 1 "$(large | sort -u | wc -l)" "different sums of 5 MB there and back"
# The command runs as the container's user, with no more privileges than the program.
contains "$(kat exec web -- id)" "uid=1000"
contains "$(kat exec web -- grep NoNewPrivs /proc/self/status)" 1
# The journal names the caller, and not the command.
kat exec web -- sh -c 'true correct-horse'
audited() { n1 journalctl --no-pager --unit kat-agent.service | grep "POST .*/instances/$id/exec 200 by " >/dev/null; }
wait_for 10 audited
said=$(n1 journalctl --no-pager | grep -c correct-horse || true)
equal 0 "$said" "lines of the journal with the command"
# `exec -it` gives the command a terminal.
mkfifo "$LAB_WORK/keys"
lab exec n1 -- env SHELL=/bin/sh TERM=xterm script -q -e \
    -c 'stty rows 33 cols 101; tty >/tmp/terminal; exec katcall exec -it web -- sh' /dev/null \
    <"$LAB_WORK/keys" >"$LAB_WORK/screen" &
terminal=$!
exec 7>"$LAB_WORK/keys"
type_in() { printf '%b' "$1" >&7; }
shows() { grep -q "$1" "$LAB_WORK/screen"; }
sized() {
    type_in 'stty size\n'
    shows "$1"
}
wait_for 20 sized '33 101'
n1 sh -c 'stty -F "$(cat /tmp/terminal)" rows 20 cols 60'
wait_for 20 sized '20 60'
type_in 'sleep 12345\n'
wait_for 20 n1 pgrep -f '^sleep 12345'
type_in '\003'
gone() { ! n1 pgrep -f "$1"; }
wait_for 20 gone '^sleep 12345'
type_in 'echo after=$?\n'
wait_for 20 shows 'after=130'
type_in 'exit 9\n'
exec 7>&-
exits 9 wait "$terminal"
# What katcall is told to end by ends the command, and the terminal is as before.
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
wait_for 20 gone '^sleep 12346'
# Without a terminal the command receives the signal, and may handle it.
n1 katcall exec web -- sh -c 'trap "exit 41" TERM; sleep 12347 & while :; do sleep 0.1; done' &
caller=$!
wait_for 20 n1 pgrep -f '^sleep 12347'
n1 pkill -TERM -x katcall
exits 41 wait "$caller"
wait_for 20 gone '^sleep 12347'
# Nothing of it goes on without its caller, whatever ends that: neither what ignores a signal, nor what it has started.
program=$(n1 pgrep -x web)
for ends in INT KILL agent; do
    n1 katcall exec web -- sh -c 'trap "" TERM; sleep 54321 & sleep 54321; :' &
    caller=$!
    two() { [[ $(n1 pgrep -c -f '^sleep 54321') == 2 ]]; }
    wait_for 20 two
    if [[ $ends == agent ]]; then
        n1 systemctl kill --signal=KILL kat-agent.service
    else
        n1 pkill "-$ends" -x katcall
    fi
    code=0
    wait "$caller" || code=$?
    [[ $ends == agent ]] || equal "$([[ $ends == INT ]] && echo 130 || echo 137)" "$code" "exit code after SIG$ends"
    wait_for 40 gone 'sleep 54321'
done
equal "$program" "$(n1 pgrep -x web)" "the container's own program"
wait_for 30 node_is_ready
left() { [[ ! $(as "$(field web .status.user)" systemctl --user list-units --all --plain --no-legend 'kat-exec-*') ]]; }
wait_for 30 left
# A session needs a leader, and the agent that was killed led.
leads() { kat exec web -- true; }
wait_for 30 leads
# `cp` copies files and folders in both directions.
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
# `port-forward` carries many connections at once.
n1 timeout 60 katcall port-forward web 18080:80 2>"$LAB_WORK/forward.log" &
wait_for 20 answers http://127.0.0.1:18080/
answered=$(n1 sh -c 'for i in $(seq 20); do curl --silent --max-time 10 http://127.0.0.1:18080/ & done; wait' | grep -c '^host=')
equal 20 "$answered" "answers of 20 connections at once"
output=$(kat port-forward web 18080:80 2>&1) && exit 1
contains "$output" "port 18080 of 127.0.0.1 is taken"
n1 pkill -x katcall || true
# What was said since a time, and in the run before the present one, which has not said anything but that it listens.
says() { kat exec web -- sh -c "echo $1 >/proc/1/fd/1"; }
logged() { contains "$(kat logs web "${@:2}")" "$1"; }
says early-word
wait_for 10 logged early-word
since=$(n1 date --utc +%Y-%m-%dT%H:%M:%S.%NZ)
says late-word
wait_for 10 logged late-word --since "$since"
lacks "$(kat logs web --since "$since")" early-word
contains "$(kat logs web --timestamps --tail 1)" "$(n1 date --utc +%Y-)"
[[ ! $(kat logs web --previous) ]]
crash web
again() { field_is web .status.restarts 1 && field_is web .status.phase Running; }
wait_for 20 again
says third-word
wait_for 10 logged third-word
before=$(kat logs web --previous)
contains "$before" early-word
contains "$before" late-word
lacks "$before" third-word
# What it takes is what its manager counts in the same time: half a processor or more by a loop of a shell.
nanoseconds() { unit_property web CPUUsageNSec; }
n1 katcall exec web -- sh -c 'while :; do :; done' &
burning=$!
wait_for 20 n1 pgrep -f '^sh -c while'
counted() {
    local cpu before after real began=$EPOCHREALTIME tenths
    before=$(nanoseconds)
    cpu=$(kat top instances | awk -v id="$id" '$1 == id { print $3 }')
    after=$(nanoseconds)
    tenths=$(tenths_since "$began")
    # A number with `m` is thousandths of a processor; a number without it is whole processors.
    [[ $cpu == *m ]] && cpu=${cpu%m} || cpu=$((cpu * 1000))
    real=$(((after - before) / (tenths * 100000)))
    echo "top says $cpu, the manager $real" >&2
    ((cpu > 100 && cpu * 2 > real && cpu < real * 3))
}
wait_for 30 counted
contains "$(kat top nodes)" n1
n1 pkill -x katcall
wait "$burning" || true
