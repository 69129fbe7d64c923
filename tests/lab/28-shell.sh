# A command in a container: exit code, pipes, a terminal that is resized and interrupted, and its end with its caller; files both ways; a port led here
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
exits 7 kat exec "$id" -- sh -c 'exit 7'
exits 127 kat exec "$id" -- /nowhere
exits 3 kat exec nothing -- true
equal "here=2 there" "$(n1 sh -c "printf here | katcall exec -i web -- sh -c 'cat; echo =2 there'")" "what was piped in"
equal "out" "$(n1 sh -c "katcall exec web -- sh -c 'echo out; echo err >&2' 2>/tmp/err")" "standard output"
equal "err" "$(n1 cat /tmp/err)" "standard error"
large() { n1 sh -c "head -c 5000000 /dev/urandom >/tmp/large; sha256sum </tmp/large; katcall exec -i web -- cat </tmp/large | sha256sum"; }
equal 1 "$(large | sort -u | wc -l)" "different sums of 5 MB there and back"
# As the program itself: its user, and no more privileges than that.
contains "$(kat exec web -- id)" "uid=1000"
contains "$(kat exec web -- grep NoNewPrivs /proc/self/status)" 1
# Who it was is in the journal, what it said is not.
kat exec web -- sh -c 'true correct-horse'
audited() { n1 journalctl --no-pager --unit kat-agent.service | grep -q "POST .*/instances/$id/exec 200 by "; }
wait_for 10 audited
said=$(n1 journalctl --no-pager | grep -c correct-horse || true)
equal 0 "$said" "lines of the journal with the command"
# A terminal.
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
# Nothing of it goes on without its caller.
n1 timeout 5 katcall exec web -- sleep 54321 &
caller=$!
wait_for 20 n1 pgrep -f '^sleep 54321'
wait "$caller" || true
wait_for 30 gone 'sleep 54321'
left() { [[ ! $(as "$(field web .status.user)" systemctl --user list-units --all --plain --no-legend 'kat-exec-*') ]]; }
wait_for 30 left
# Files and folders, both ways.
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
# A port, many connections at once.
n1 timeout 60 katcall port-forward web 18080:80 2>"$LAB_WORK/forward.log" &
wait_for 20 answers http://127.0.0.1:18080/
answered=$(n1 sh -c 'for i in $(seq 20); do curl --silent --max-time 10 http://127.0.0.1:18080/ & done; wait' | grep -c '^host=')
equal 20 "$answered" "answers of 20 connections at once"
output=$(kat port-forward web 18080:80 2>&1) && exit 1
contains "$output" "port 18080 of 127.0.0.1 is taken"
n1 pkill -x katcall || true
