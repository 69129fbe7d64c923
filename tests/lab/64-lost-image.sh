# An image that is removed under a container that restarts is pulled again without counting as a restart; a wrong entrypoint is reported with Podman's own message
# shellcheck shell=bash
# Nobody counts its containers in the meantime: the program alone ends it.
run web --port 80
user=$(field web .status.user) unit=$(field web .status.unit)
images() { as "$user" podman image ls --quiet --no-trunc; }
[[ $(images) ]]
# The image is removed while no container uses it, between two runs of a program that ends.
between_runs() { [[ $(as "$user" systemctl --user show --property=SubState --value "$unit") == auto-restart ]]; }
# On a busy machine one pause is over before anybody looks; they grow with each crash.
crashed() { between_runs || { crash web || true; between_runs; }; }
wait_for 60 crashed
as "$user" podman image rm --all --force
equal "" "$(images)" "images after they were removed"
again() { field_is web .status.phase Running && answers "http://$(field web .status.ip)/"; }
wait_for 60 again
[[ $(images) ]]
# The control: Podman reported the missing image.
said=$(n1 journalctl --no-pager --output=cat "_UID=$(field web .status.uid)" --since=-2min)
contains "$said" "image not known"
# On a busy machine the removal ends a container that has started again, which counts.
ends=$(grep -c " container died .*web-" <<<"$said")
equal "$ends" "$(field web .status.restarts)" "restarts: the ends of its containers alone"
lacks "$(kat get events -o json | jq -r '.items[] | select(.involvedObject.name | startswith("web")) | .message')" "exit code 125"
# The entrypoint is wrong.
kat apply -f "$(workload nope --container 'entrypoint: [/bin/nope]')"
told() {
    local status
    status=$(field nope .status)
    jq -e '.reason == "CannotStart" and .exitCode == null and (.message | contains("/bin/nope") and (contains("Failed with result") | not))' <<<"$status" || {
        echo "$status" >&2
        return 1
    }
}
wait_for 30 told
contains "$(kat why workload nope)" "/bin/nope"
