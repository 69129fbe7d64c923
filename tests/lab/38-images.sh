# A version runs one image wherever and whenever it is pulled: what its tag meant at the apply; another one only on request
# shellcheck shell=bash
kat registry set registry.lab:5000 --insecure
contains "$(kat registry list)" "registry.lab:5000"
registry_is_configured() { n1 grep -q 'location = "registry.lab:5000"' /etc/containers/registries.conf.d/50-kat.conf; }
wait_for 30 registry_is_configured
push_image() { lab image test/moving:1 "$LAB_WORK/images/web" --busybox --entrypoint '["/bin/web"]' --user 1000 --env "V=$1"; }
# shellcheck disable=SC2016
of_version() { inside moving sh -c 'echo "$V"'; }
push_image one
run moving --image registry.lab:5000/test/moving:1 --port 80
equal one "$(of_version)" "version of the tag at the apply"
pinned=$(field moving .status.image)
contains "$pinned" "registry.lab:5000/test/moving@sha256:"
contains "$(kat get workload moving -o json | jq -c '[.status.conditions[].type]')" Available
refused jq -e '.status.conditions[] | select(.type == "ImagePinned")' <<<"$(kat get workload moving -o json)"

# After the tag has moved, the workload keeps its image, even if that is pulled again.
push_image two
user=$(field moving .status.user)
kat scale workload moving --replicas 0 --wait
# The images stay for a while after the workload has left. Once they are removed, its user is
# removed too.
n1 rm -rf "/var/lib/kat/users/$user/.local/share/containers"
user_is_gone() { refused n1 id "$user" 2>/dev/null; }
wait_for 60 user_is_gone
kat scale workload moving --replicas 1 --wait
equal one "$(of_version)" "version that runs after the tag has moved"
equal "$pinned" "$(field moving .status.image)" "image after the tag has moved"

# A restart resolves the tag again; a rollback uses the image of that version.
kat restart workload moving --wait
equal two "$(of_version)" "version that runs after a restart"
kat rollback workload moving --to 1 --wait
equal one "$(of_version)" "version that runs after a rollback"

# For CI: `set image` changes the image alone.
lab image test/moving:2 "$LAB_WORK/images/web" --busybox --entrypoint '["/bin/web"]' --user 1000 --env V=three
kat set image moving=registry.lab:5000/test/moving:2 --wait
equal three "$(of_version)" "version that runs after set image"
contains "$(kat history workload moving)" "image set"

# An image that the registry does not have is refused at the line that names it, by a plan as well,
# and the workload continues; so is a name without a registry.
folder=$(workload typo --image registry.lab:5000/test/moving:nope --port 80 \
    --spec 'sidecars: [{name: other, image: "nginx:1"}]')
for command in plan apply; do
    output=$(kat "$command" -f "$folder" 2>&1) && { echo "$command takes an image that does not exist" && exit 1; }
    contains "$output" "registry.lab:5000 has no test/moving:nope"
    contains "$output" "workload.kat:"
    contains "$output" "spec.source.image"
    contains "$output" "check the name and the tag, or push the image first"
    contains "$output" "\`nginx:1\` names no registry"
    contains "$output" "write the full name, such as \`docker.io/library/nginx:1\`"
done
refused kat get workload typo
output=$(kat set image moving=registry.lab:5000/test/moving:nope 2>&1) && exit 1
contains "$output" "registry.lab:5000 has no test/moving:nope"
output=$(kat set image moving=registry.lab:5000/test/nowhere:1 2>&1) && exit 1
contains "$output" "registry.lab:5000 has no test/nowhere:1"
equal three "$(of_version)" "version after refused images"

# An image for another architecture stays pending, and the reason says so.
arm=$LAB_WORK/arm.json
digest=$(n1 curl --silent --fail --head -H 'Accept: application/vnd.oci.image.manifest.v1+json' \
    http://registry.lab:5000/v2/test/moving/manifests/2 | tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: //p')
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"%s","size":%s,"platform":{"architecture":"arm64","os":"linux"}}]}' \
    "$digest" "$(n1 curl --silent --fail -H 'Accept: application/vnd.oci.image.manifest.v1+json' http://registry.lab:5000/v2/test/moving/manifests/2 | wc -c)" >"$arm"
lab copy "$arm" n1:/root/
n1 curl --silent --show-error --fail -X PUT -H 'Content-Type: application/vnd.oci.image.index.v1+json' --data-binary @/root/arm.json \
    http://registry.lab:5000/v2/test/moving/manifests/arm
kat set image moving=registry.lab:5000/test/moving:arm
waits_for_architecture() { kat get workload moving -o json | jq -e '.status.conditions[] | select(.message | contains("architecture that the image is not made for"))' >/dev/null; }
wait_for 30 waits_for_architecture
equal three "$(of_version)" "version that continues to run"
kat rollback workload moving --wait

# If the registry does not answer, the restart succeeds, and a condition reports it.
kat registry unset registry.lab:5000
output=$(kat restart workload moving --wait 2>&1)
contains "$output" "warning: image registry.lab:5000/test/moving:2: registry.lab:5000 does not answer"
contains "$(kat get workload moving -o json | jq -r '.status.conditions[] | select(.type == "ImagePinned").message')" "registry.lab:5000 does not answer"
wait_for 30 absent n1 /etc/containers/registries.conf.d/50-kat.conf
kat delete workload moving --wait
