# A user manager that is killed or stopped runs again within seconds with its containers; one that hangs delays neither the agent's stop nor its first report; a deleted account is made again beside the running program
# shellcheck shell=bash
run web --port 80
run other --port 80
user=$(field web .status.user) uid=$(field web .status.uid)
# The container is a new one: the old one ended with its manager.
restarted_with_container() {
    local now
    now=$(n1 systemctl show "user@$uid" --property=MainPID --value)
    [[ $now != 0 && $now != "$manager" ]] &&
        as "$user" systemctl --user --quiet is-active "$(field web .status.unit)" &&
        field_is web .status.phase Running &&
        answers "http://$(field web .status.ip)/"
}
for end_command in "systemctl kill --kill-whom=main --signal=KILL user@$uid" "systemctl stop user@$uid"; do
    manager=$(n1 systemctl show "user@$uid" --property=MainPID --value)
    # shellcheck disable=SC2086 # words of a command
    n1 $end_command
    wait_for 12 restarted_with_container
done
# The manager ends while no agent runs.
manager=$(n1 systemctl show "user@$uid" --property=MainPID --value)
n1 systemctl stop kat-agent
n1 systemctl stop "user@$uid"
n1 systemctl start kat-agent
wait_for 15 restarted_with_container
# The manager hangs.
manager=$(n1 systemctl show "user@$uid" --property=MainPID --value)
n1 kill -STOP "$manager"
trap 'n1 kill -CONT "$manager" || true' EXIT
n1 systemctl restart kat-agent
# This agent waits for the hanging manager, and the next agent's start waits for this agent's stop.
wait_for 20 field_is other .status.phase Running
sleep 3
began=$EPOCHREALTIME
n1 systemctl restart kat-agent
((($(tenths_since "$began")) < 50)) || { echo "the agent's stop took $(tenths_since "$began") tenths of a second" >&2 && exit 1; }
reported() { n1 journalctl --no-pager --output=cat -u kat-agent "_PID=$(n1 systemctl show kat-agent --property=MainPID --value)" | grep 'the first report goes without instances that were not looked at' >/dev/null; }
wait_for 6 reported
n1 kill -CONT "$manager"
trap - EXIT
wait_for 60 field_is web .status.phase Running
equal "$manager" "$(n1 systemctl show "user@$uid" --property=MainPID --value)" "the manager that hung"
# Somebody deletes the account of a workload.
unit=$(field web .status.unit)
pid_of_web() { n1 systemctl --user --machine="$user@.host" show --property=MainPID --value "$unit"; }
pid=$(pid_of_web)
((pid > 0))
refused n1 sh -c 'userdel --force "$1" >&2; id -u "$1"' sh "$user"
account_is_back() { [[ $(n1 id -u "$user") == "$uid" ]]; }
wait_for 60 account_is_back
equal "$pid" "$(pid_of_web)" "main process of the workload whose account was deleted"
answers "http://$(field web .status.ip)/"
kat restart workload web --wait
answers "http://$(field web .status.ip)/"
