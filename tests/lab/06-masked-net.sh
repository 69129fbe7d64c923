# A machine whose kat-net is masked or hangs says so: status ends with 1 and names it, the running program goes on, and all is well when it runs again
# shellcheck shell=bash
run web --port 80
wait_for 30 kat status
pid_of_web() { n1 pgrep -x web; }
pid=$(pid_of_web)
n1 systemctl mask --now kat-net.socket kat-net.service
tells_of_the_data_path() {
    local output
    output=$(kat status) && return 1
    contains "$output" "kat-net.service does not run"
}
wait_for 60 tells_of_the_data_path
contains "$(kat why node n1)" "its kat-net does not run"
equal "$pid" "$(pid_of_web)" "the program while kat-net is masked"
# As the remedy says.
n1 sh -c "$(kat why node n1 | grep -o 'systemctl unmask .*')"
wait_for 60 kat status
wait_for 30 answers "http://$(field web .status.ip)/"
equal "$pid" "$(pid_of_web)" "the program once kat-net runs again"
# A kat-net that hangs is noticed before its watchdog ends it after 30 s.
n1 systemctl kill --signal=SIGSTOP kat-net
tells_of_the_hang() {
    local output
    output=$(kat status) && return 1
    contains "$output" "kat-net.service runs and has not answered since"
}
wait_for 20 tells_of_the_hang
contains "$(n1 systemctl show --property=StatusText --value kat-agent)" "kat-net.service runs and has not answered since"
n1 systemctl kill --signal=SIGCONT kat-net
wait_for 60 kat status
equal "$pid" "$(pid_of_web)" "the program once kat-net answers again"
