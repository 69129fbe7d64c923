# A deleted workload leaves no trace
# shellcheck shell=bash
# The first workload also leaves what every workload shares.
run first --port 80
kat delete workload first --wait
trace() { inventory n1 | grep -vE '^var/lib/kat/(etcd|desired\.json|network/)'; }
trace >"$LAB_WORK/before"

run web --port 80 --replicas 2
id=$(instances web | jq -r '.[0].metadata.name') address=$(instances web | jq -r '.[0].status.ip')
uid=$(instances web | jq -r '.[0].status.uid') user=$(instances web | jq -r '.[0].status.user')
wait_for 10 answers "http://web.default.$DOMAIN/"
diff "$LAB_WORK/before" <(trace) >"$LAB_WORK/difference" && exit 1
contains "$(<"$LAB_WORK/difference")" "etc/containers/systemd/users/$uid"
kat delete workload web --wait

equal 3 "$(kat get workloads web -o json >/dev/null 2>&1; echo $?)" "exit code for what is not there" || true
equal "[]" "$(instances web)" "instances"
refused n1 getent passwd "$user"
refused n1 grep -q "^$user:" /etc/subuid /etc/subgid
equal "" "$(n1 ps -u "$uid" -o pid= || true)" "processes of uid $uid"
equal "" "$(n1 ls -d "/run/user/$uid" "/var/lib/systemd/linger/$user" "/var/lib/kat/users/$user" "/var/lib/kat/units/$uid" \
    "/etc/containers/systemd/users/$uid" "/etc/systemd/system/user@$uid.service.d" 2>/dev/null || true)" "folders"
lacks "$(n1 ip -4 route)" "$address"
lacks "$(n1 nft list ruleset)" "$address"
lacks "$(n1 sh -c 'cat /var/lib/kat/network/*.json')" "$id"
refused n1 curl --silent --max-time 1 "http://$address/"
not_resolved() { ! n1 getent ahostsv4 "web.default.$DOMAIN"; }
wait_for 10 not_resolved
diff "$LAB_WORK/before" <(trace)
