# The transcripts of the guide are what its commands print, and its first workload runs as written
# shellcheck shell=bash
# The pages were written on one machine, and so are these.

# shellcheck source=tests/lab/guide.sh
. tests/lab/guide.sh

# prints PAGE COMMAND [NUMBER] [CODE]: the command ends with this exit code (0) and prints what the page shows.
prints() {
    local output code=0
    output=$(here "${2#sudo }" 2>&1) || code=$?
    equal "${4:-0}" "$code" "exit code of $2, which printed
$output"
    shows "$1" "$2" "$output" "${3:-1}"
}
# here COMMAND: runs it in the folder of the example.
here() { n1 bash -c "cd /root/guide && $1"; }
put() { lab exec n1 -- sh -c 'cat >"$1"' sh "/root/guide/web/$1"; }
n1 mkdir -p /root/guide/web
lab_image() { sed "s|registry.example/web:1|$WEB_IMAGE|"; }

# First workload: of one line, whose saved folder changes nothing.
page=first-workload
line="sudo katcall run registry.example/web:1 -p 8080 --save run/ --wait"
output=$(here "$(lab_image <<<"${line#sudo }")" 2>&1)
shows $page "$line" "$output"
contains "$(here "$(sed -n 's/^    \(curl http:.*\)/\1/p' docs/guide/$page.md)")" host=web-
contains "$(here "katcall apply run/")" "workload/web unchanged"
here "katcall diff run/"
contains "$(here "katcall export web | katcall apply -f -")" "workload/web unchanged"
here "EDITOR=\"sed -i 's/replicas: 1/replicas: 2/'\" katcall edit web"
equal 2 "$(kat get workloads web -o json | jq .spec.replicas)" "replicas after an edit"
refused here "katcall diff run/"
refused here "katcall run $WEB_IMAGE"
kat delete workload web --yes --wait
# The same with files.
file_of $page 1 | lab_image >"$LAB_WORK/workload.kat"
put workload.kat <"$LAB_WORK/workload.kat"
prints $page "sudo katcall apply -f web/ --wait"
prints $page "sudo katcall get instances -o wide"
contains "$(here "$(sed -n 's/^    \(curl http:.*\)/\1/p' docs/guide/$page.md)")" host=web-
output=$(here "timeout 3 katcall logs web -f" 2>&1 || true)
shows with-systemds-tools "sudo katcall logs web -f" "$output"
no_copies() { [[ ! $(n1 find /run/systemd/user -type f) ]]; }
wait_for 30 no_copies
output=$(n1 env SYSTEMD_COLORS=0 LC_ALL=C.UTF-8 systemctl status --no-pager --full kat-agent)
shows with-systemds-tools "systemctl status kat-agent" "$output"
unit=$(instances web | jq -er '.[0].status.unit')
command=$(kat describe instance "${unit:12:9}" | grep -o "systemctl --user --machine=kat-default-web@.host status .*")
output=$(n1 env SYSTEMD_COLORS=0 LC_ALL=C.UTF-8 bash -c "$command --no-pager --full")
shows with-systemds-tools "$(grep -o '^    sudo systemctl --user .*status .*' docs/guide/with-systemds-tools.md | sed 's/^    //')" "$output"
wait_for 30 kat status
shows plan-and-troubleshoot '`katcall status` is one screen, and exits with 1 if the cluster is not well:' "$(kat status)"

# All mistakes at once.
sed 's/replicas: 2/replicas: many/' "$LAB_WORK/workload.kat" | put workload.kat
output=$(here "katcall apply -f web/ --wait" 2>&1) && exit 1
shows $page "All mistakes in the files are reported at once, each with its place:" "$output"
put workload.kat <"$LAB_WORK/workload.kat"
prints $page "sudo katcall delete workload web --wait"

# A plan that changes a variable, a time and the number of replicas.
with_variable() { sed "s/^    name: web$/&\n    env: [{name: PORT, value: \"8080\"}, {name: PASSWORD, value: $1}]/"; }
with_variable first <"$LAB_WORK/workload.kat" | put workload.kat
here "katcall apply -f web/ --wait"
sed 's/replicas: 2/replicas: 3/; s/^    name: web$/&\n    terminationGraceSeconds: 30/' "$LAB_WORK/workload.kat" | with_variable second | put workload.kat
prints plan-and-troubleshoot "sudo katcall plan -f web/" 1 10
kat delete workload web --yes --wait

# A version that fails, and the way back.
page=updates
sed 's/replicas: 2/replicas: 3/' "$LAB_WORK/workload.kat" >"$LAB_WORK/three.kat"
put workload.kat <"$LAB_WORK/three.kat"
put VirtualLoadBalancer.kat <<'END'
apiVersion: kat.dws.rip/v1alpha1
kind: VirtualLoadBalancer
spec:
  healthCheck:
    http: {path: /healthz, port: web}
    periodSeconds: 1
END
here "katcall apply -f web/ --wait"
with_variable any <"$LAB_WORK/three.kat" | put workload.kat
prints $page "sudo katcall apply -f web/ --wait"
# Only this version has the short deadline of the page: the others may take longer on a busy machine.
with_variable any <"$LAB_WORK/three.kat" |
    sed "s|$WEB_IMAGE|registry.lab:5000/test/web:9|; s/^spec:\$/&\n  updateStrategy: {type: Rolling, progressDeadlineSeconds: 10}/" |
    put workload.kat
prints $page "sudo katcall apply -f web/ --wait" 2 1
is_stalled() { equal Stalled "$(kat get workload web -o json | jq -r .status.phase)" "phase of a version without an image"; }
wait_for 30 is_stalled
prints $page "sudo katcall why workload web"
prints $page "sudo katcall rollback workload web --wait"
prints $page "sudo katcall history workload web"
kat delete workload web --yes --wait
n1 rm -r /root/guide
