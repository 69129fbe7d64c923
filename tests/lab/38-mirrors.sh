# An image whose registry nobody reaches comes from its mirrors in their order, below a mirror's path too, with the digest that the mirror states
# shellcheck shell=bash
refused n1 getent ahosts nowhere.lab
digest=$(n1 curl --silent --fail --head -H 'Accept: application/vnd.oci.image.manifest.v1+json' \
    http://registry.lab:5000/v2/test/web/manifests/1 | tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: //p')
# set_mirrors HOST[/PATH]...: the mirrors of nowhere.lab, once Podman's configuration has the last one.
set_mirrors() {
    local mirror options=()
    for mirror; do options+=(--mirror "$mirror"); done
    kat registry set nowhere.lab "${options[@]}"
    wait_for 30 n1 grep -qF "location = \"$mirror\"" /etc/containers/registries.conf.d/50-kat.conf
}
# runs_pinned NAME IMAGE: the workload answers with this image, pinned and without a warning.
runs_pinned() {
    lacks "$(run "$1" --image "$2:1" --port 80 2>&1)" warning
    equal "$2@$digest" "$(field "$1" .status.image)" "image of $1"
    answers "http://$(field "$1" .status.ip)/"
    refused jq -e '.status.conditions[] | select(.type == "ImagePinned")' <<<"$(kat get workload "$1" -o json)"
    equal "$digest" "$(as "$(field "$1" .status.user)" podman image inspect --format '{{.Digest}}' "$2@$digest")" "digest of what Podman pulled"
}

# Without a mirror the instance waits.
output=$(kat apply -f "$(workload alone --image nowhere.lab/test/web:1)" 2>&1)
contains "$output" "warning: image nowhere.lab/test/web:1: nowhere.lab does not answer"
wait_for 60 field_is alone .status.reason ImagePullFailed

# A mirror without TLS is insecure by its own setting.
kat registry set registry.lab:5000 --insecure
set_mirrors registry.lab:5000
contains "$(kat registry list)" nowhere.lab
runs_pinned mirrored nowhere.lab/test/web
wait_for 120 field_is alone .status.phase Running
# The first mirror does not answer, and the second one has the image below a path.
set_mirrors registry.lab:5999 registry.lab:5000/test
runs_pinned below nowhere.lab/web

for name in alone mirrored below; do kat delete workload "$name" --wait; done
kat registry unset nowhere.lab
kat registry unset registry.lab:5000
wait_for 30 absent n1 /etc/containers/registries.conf.d/50-kat.conf
