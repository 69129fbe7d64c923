# An image that is removed under a container that restarts is pulled again without counting as a restart; a wrong entrypoint is reported with Podman's own message
# shellcheck shell=bash
# The workload has no health check, so only the program's end ends the container.
run web --port 80
user=$(field web .status.user) unit=$(field web .status.unit)
images() { as "$user" podman image ls --quiet --no-trunc; }
[[ $(images) ]]
# The image is removed while no container uses it: between two runs of a program that ends.
waits_to_restart() { [[ $(as "$user" systemctl --user show --property=SubState --value "$unit") == auto-restart ]]; }
# On a busy machine the first pause may be over too soon; the pauses grow with each crash.
crashed_and_waits() { waits_to_restart || { crash web || true; waits_to_restart; }; }
wait_for 60 crashed_and_waits
as "$user" podman image rm --all --force
prints_nothing "images after they were removed" images
runs_again() { field_is web .status.phase Running && answers "http://$(field web .status.ip)/"; }
wait_for 60 runs_again
[[ $(images) ]]
# On a busy machine the removal may end a container that has started again, which counts as a
# restart.
only_ends_of_containers_count() {
    local journal ends
    journal=$(n1 journalctl --no-pager --output=cat "_UID=$(field web .status.uid)" --since=-2min)
    # The control: Podman did report the missing image.
    contains "$journal" "image not known"
    ends=$(grep -c " container died .*web-" <<<"$journal")
    equal "$ends" "$(field web .status.restarts)" "restarts, which are the ends of containers alone"
}
only_ends_of_containers_count
lacks "$(kat get events -o json | jq -r '.items[] | select(.involvedObject.name | startswith("web")) | .message')" "exit code 125"
# The same where journald reads Podman's error only after Podman has ended, and so no longer knows its unit.
crash web || true
wait_for 60 waits_to_restart
as "$user" podman image rm --all --force
prints_nothing "images after they were removed again" images
n1 systemctl kill --signal=STOP systemd-journald
n1 timeout 90 bash -c "until [[ \$(systemctl --user --machine='$user@.host' show --property=ExecMainStatus --value '$unit') == 125 ]]
    do sleep 0.02; done"
n1 systemctl kill --signal=CONT systemd-journald
wait_for 60 runs_again
only_ends_of_containers_count
# An entrypoint that does not exist is reported with Podman's message.
kat apply -f "$(workload nope --container 'entrypoint: [/bin/nope]')"
cannot_start_is_reported() {
    local status
    status=$(field nope .status) || return 1
    jq -e '.reason == "CannotStart" and .exitCode == null and (.message | contains("/bin/nope") and (contains("Failed with result") | not))' <<<"$status" || {
        echo "$status" >&2
        return 1
    }
}
wait_for 30 cannot_start_is_reported
contains "$(kat why workload nope)" "/bin/nope"
