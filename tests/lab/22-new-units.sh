# A new instance's unit needs no reload, is read by its own user alone, and comes from the generator soon after, also if the agent dies in between; two workloads that start together with one new image both pull it at the first try
# shellcheck shell=bash
# Functions run by name:
# shellcheck disable=SC2317,SC2329
since=$(n1 date +%s)
kat apply -f "$(workload web --port 80 --replicas 1)" -f "$(workload other --port 80 --replicas 1)" --wait
no_copies() { [[ ! $(n1 find /run/systemd/user -type f) ]]; }
wait_for 30 no_copies
property() { on n1 systemctl --user --machine="$1@.host" show --property="$3" --value "$2"; }
user_of() { instances "$1" | jq -er '.[0].status.user'; }
uid=$(n1 id -u "$(user_of web)")

# Each user has its own storage, so each pulls the image, by a unit of its own.
for name in web other; do
    id=$(field "$name" .metadata.name)
    reasons=$(kat get events -o json | jq -r --arg id "$id" '.items[] | select(.involvedObject.name == $id) | .reason')
    contains "$reasons" Scheduled
    lacks "$reasons" ImagePullFailed
    journal=$(n1 journalctl --no-pager --output=cat "--since=@$since" "_UID=$(n1 id -u "$(user_of "$name")")")
    contains "$journal" "Pull of ${WEB_IMAGE%:*}"
    lacks "$journal" "Failed to open /run/systemd/user/kat-image-"
done

# Keeps the copy while it is there; what other users see of it is asked meanwhile.
watch_copy='
rm -rf /root/early && mkdir /root/early
timeout 60 sh -c "until cp -p /run/systemd/user/kat-default-web-*.service /root/early/ 2>/dev/null; do sleep 0.01; done"
cd /root/early
stat -c "%a %u %g" /run/systemd/user/* >stat
systemctl --user --machine='"$(user_of other)"'@.host show --property=LoadState --value kat-default-web-*.service >other
'
n1 bash -c "$watch_copy" &
watcher=$!
kat scale workload web --replicas 2 --wait
wait "$watcher"
unit=$(n1 sh -c 'cd /root/early && echo *.service')
equal "640 0 $uid" "$(n1 cat /root/early/stat)" "mode, owner and group of the copy"
equal not-found "$(n1 cat /root/early/other)" "the unit for another workload's user"

wait_for 30 no_copies
pid=$(property "$(user_of web)" "$unit" MainPID)
equal "/run/user/$uid/systemd/generator/$unit" "$(property "$(user_of web)" "$unit" FragmentPath)" "file of the unit"
equal no "$(property "$(user_of web)" "$unit" NeedDaemonReload)" "whether the unit's file is newer"
# The generator's file begins with a comment, and each run gives the options of podman in another order.
words() { n1 sed '/^#/d' "$1" | tr -s ' ' '\n' | sort; }
equal "$(words "/run/user/$uid/systemd/generator/$unit")" "$(words "/root/early/$unit")" "words of the copy"

# The agent dies while a copy is there: the next one removes it, and the program runs on.
n1 bash -c "$watch_copy systemctl kill --signal=KILL kat-agent.service" &
watcher=$!
kat scale workload web --replicas 3 --wait
wait "$watcher"
wait_for 30 no_copies
equal "$pid" "$(property "$(user_of web)" "$unit" MainPID)" "process of the second instance"
for id in $(instances web | jq -r '.[].status.unit'); do
    equal "/run/user/$uid/systemd/generator/$id" "$(property "$(user_of web)" "$id" FragmentPath)" "file of $id"
done

# A drop-in for quadlets of all users is the generator's to find.
n1 sh -c 'd=/etc/containers/systemd/users/container.d && mkdir "$d" && printf "[Container]\nEnvironment=FROM_DROP_IN=1\n" >"$d/50.conf"'
kat scale workload web --replicas 4 --wait
newest=$(instances web | jq -r 'max_by(.metadata.creationTimestamp // .status.since).status.unit')
contains "$(property "$(user_of web)" "$newest" ExecStart)" FROM_DROP_IN
n1 rm -r /etc/containers/systemd/users/container.d
kat delete workload web --yes --wait
kat delete workload other --yes --wait
equal "" "$(n1 find /run/systemd/user -type f)" "what is left"
