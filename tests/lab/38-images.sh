# A version runs one image wherever and whenever it is pulled: what its tag meant at the apply; another one only on request
# shellcheck shell=bash
kat registry set registry.lab:5000 --insecure
contains "$(kat registry list)" "registry.lab:5000"
told() { n1 grep -q 'location = "registry.lab:5000"' /etc/containers/registries.conf.d/50-kat.conf; }
wait_for 30 told
push() { lab image test/moving:1 "$LAB_WORK/images/web" --busybox --entrypoint '["/bin/web"]' --user 1000 --env "V=$1"; }
# shellcheck disable=SC2016
of_version() { inside moving sh -c 'echo "$V"'; }
push one
run moving --image registry.lab:5000/test/moving:1 --port 80
equal one "$(of_version)" "what the tag meant"
pinned=$(field moving .status.image)
contains "$pinned" "registry.lab:5000/test/moving@sha256:"
contains "$(kat get workload moving -o json | jq -c '[.status.conditions[].type]')" Available
refused jq -e '.status.conditions[] | select(.type == "ImagePinned")' <<<"$(kat get workload moving -o json)"

# The tag now names another image: no instance follows it by itself, even if the image has to be
# pulled again.
push two
user=$(field moving .status.user)
kat scale workload moving --replicas 0 --wait
# A workload's images are kept for a while after its instances have left; without images, its user
# is removed.
n1 rm -rf "/var/lib/kat/users/$user/.local/share/containers"
user_is_gone() { ! n1 id "$user" 2>/dev/null; }
wait_for 60 user_is_gone
kat scale workload moving --replicas 1 --wait
equal one "$(of_version)" "what runs after the tag moved"
equal "$pinned" "$(field moving .status.image)" "image after the tag moved"

# A restart uses the image that the tag names now, a rollback the image that it named then.
kat restart workload moving --wait
equal two "$(of_version)" "what runs after a restart"
kat rollback workload moving --to 1 --wait
equal one "$(of_version)" "what runs after a rollback"

# `set image` changes only the image, for use in CI.
lab image test/moving:2 "$LAB_WORK/images/web" --busybox --entrypoint '["/bin/web"]' --user 1000 --env V=three
kat set image moving=registry.lab:5000/test/moving:2 --wait
equal three "$(of_version)" "what runs after set image"
contains "$(kat history workload moving)" "image set"

# An image for another architecture fits none of these machines: the workload waits with a reason.
arm=$LAB_WORK/arm.json
digest=$(n1 curl --silent --fail --head -H 'Accept: application/vnd.oci.image.manifest.v1+json' \
    http://registry.lab:5000/v2/test/moving/manifests/2 | tr -d '\r' | sed -n 's/^[Dd]ocker-[Cc]ontent-[Dd]igest: //p')
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"%s","size":%s,"platform":{"architecture":"arm64","os":"linux"}}]}' \
    "$digest" "$(n1 curl --silent --fail -H 'Accept: application/vnd.oci.image.manifest.v1+json' http://registry.lab:5000/v2/test/moving/manifests/2 | wc -c)" >"$arm"
lab copy "$arm" n1:/root/
n1 curl --silent --show-error --fail -X PUT -H 'Content-Type: application/vnd.oci.image.index.v1+json' --data-binary @/root/arm.json \
    http://registry.lab:5000/v2/test/moving/manifests/arm
kat set image moving=registry.lab:5000/test/moving:arm
waits() { kat get workload moving -o json | jq -e '.status.conditions[] | select(.message | contains("architecture that the image is not made for"))' >/dev/null; }
wait_for 30 waits
equal three "$(of_version)" "what runs on meanwhile"
kat rollback workload moving --wait

# A registry that does not answer does not refuse an apply; a condition reports it.
kat registry unset registry.lab:5000
kat restart workload moving --wait
contains "$(kat get workload moving -o json | jq -r '.status.conditions[] | select(.type == "ImagePinned").message')" "registry.lab:5000 does not answer"
forgotten() { ! n1 test -e /etc/containers/registries.conf.d/50-kat.conf; }
wait_for 30 forgotten
kat delete workload moving --wait
