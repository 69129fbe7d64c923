# A plan predicts the apply in its text and its exit code, and why names the image that cannot be pulled
# shellcheck shell=bash
# plan DIR: writes the plan's text and exit code into files, which `text` and `code` print.
plan() {
    local code=0
    kat plan -f "$1" --units >"$LAB_WORK/plan" || code=$?
    echo "$code" >"$LAB_WORK/plan.code"
}
code() { cat "$LAB_WORK/plan.code"; }
text() { cat "$LAB_WORK/plan"; }

folder=$(workload planned --port 80 --env SECRET=correct-horse)
plan "$folder"
equal 10 "$(code)" "exit code of a plan with changes"
contains "$(text)" "workload default/planned would be created"
contains "$(text)" "+Image=$WEB_IMAGE"
equal "[]" "$(instances planned)" "instances after a plan"
kat apply -f "$folder" --wait
plan "$folder"
equal 0 "$(code)" "exit code of a plan without changes"
contains "$(text)" "nothing would change"

folder=$(workload planned --replicas 2 --port 80 --env SECRET=battery-staple)
plan "$folder"
equal 10 "$(code)" "exit code of a plan with changes"
contains "$(text)" "+SECRET=*** (changed)"
for secret in correct-horse battery-staple; do
    lacks "$(text)" "$secret"
done
old=$(field planned .metadata.name)
successor=$(sed -n "s/^ *restart $old on n1 as \([a-z0-9-]*\): .*/\1/p" "$LAB_WORK/plan")
created=$(sed -n 's/^ *create *\([a-z0-9-]*\) on n1.*/\1/p' "$LAB_WORK/plan")
kat apply -f "$folder" --wait
# The old instance is listed until its machine has confirmed that it is gone.
instances_are() {
    equal "$(jq -nc '$ARGS.positional | sort' --args "$@")" "$(instances planned | jq -c '[.[].metadata.name] | sort')" "the planned instances"
}
wait_for 60 instances_are "$successor" "$created"
plan "$folder"
equal 0 "$(code)" "exit code of a plan without changes"

kat apply -f "$(workload unpulled --image registry.lab:5000/test/nowhere:7)"
wait_for 60 field_is unpulled .status.reason ImageNotFound
why=$(kat why workload unpulled)
contains "$why" "the registry of its image registry.lab:5000/test/nowhere:7 does not have it"
contains "$why" "manifest unknown"
contains "$why" "katcall set image unpulled=IMAGE -n default"
