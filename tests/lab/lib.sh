# shellcheck shell=bash
# Functions of the tests on machines. Each test is a file NN-name.sh whose first line is its name.
# It runs in its own shell, in the folder of the checkout, with a machine n1 that is Ready and has
# no workloads.

# shellcheck source=tests/lib.sh
. tests/lib.sh
# shellcheck source=tests/inventory.sh
. tests/inventory.sh
set -Eeuo pipefail
trap 'echo "failed at ${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND" >&2' ERR

export WEB_IMAGE=registry.lab:5000/test/web:1
export DOMAIN=kat.cluster.local

lab() { contrib/lab/kat-lab "$@"; }
# The machines' jq, if the tests' own machine can run it: it starts three times as fast as that of Debian 12, and the tests
# start it thousands of times.
jq() {
    local loader=${LAB_ROOT:-}/lib64/ld-linux-x86-64.so.2
    if [[ ${LAB_ROOT:-} && -x $loader ]]; then
        "$loader" --library-path "$LAB_ROOT/usr/lib/x86_64-linux-gnu" "$LAB_ROOT/usr/bin/jq" "$@"
    else
        command jq "$@"
    fi
}
# Commands on machines get no standard input unless a test passes one: otherwise they would read the
# input of a loop around them.
n1() { lab exec n1 -- "$@" </dev/null; }
on() {
    local node=$1
    shift
    lab exec "$node" -- "$@" </dev/null
}
as() {
    local user=$1
    shift
    as_on n1 "$user" "$@"
}
as_on() {
    local node=$1 user=$2
    shift 2
    lab exec "$node" --user "$user" -- "$@" </dev/null
}
kat() { n1 katcall "$@"; }

# absent MACHINE PATH...: whether none of these exists on the machine; fails also if the machine cannot be asked.
absent() {
    local node=$1
    shift
    on "$node" sh -c 'for path; do if [ -e "$path" ] || [ -L "$path" ]; then echo "$path exists" >&2; exit 1; fi; done' sh "$@"
}
# no_process MACHINE PATTERN: whether no process on the machine has a command line that matches.
no_process() { finds_nothing on "$1" pgrep -f -- "$2"; }

# workload NAME [OPTION...]: writes a workload's files into a folder on n1 and prints the folder's
# path.
#   --image I  --replicas N  --port N  --env K=V  --restart 'condition: ...'  --namespace NS
#   --container 'yaml line'  --spec 'yaml line'  (both may be repeated)
#   --health 'probe, ...' (with --port)  --drain SECONDS (default 0)
workload() {
    local name=$1 image=$WEB_IMAGE replicas=1 port='' health='' drain=0 restart='condition: Always' namespace='' env=() container=() spec=() folder entry
    shift
    while (($#)); do
        case $1 in
        --image) image=$2 ;;
        --replicas) replicas=$2 ;;
        --port) port=$2 ;;
        --env) env+=("$2") ;;
        --restart) restart=$2 ;;
        --namespace) namespace=$2 ;;
        --container) container+=("$2") ;;
        --health) health=$2 ;;
        --drain) drain=$2 ;;
        --spec) spec+=("$2") ;;
        *) echo "workload has no option $1" >&2 && return 2 ;;
        esac
        shift 2
    done
    folder=$LAB_WORK/workloads/$name
    rm -rf "$folder"
    mkdir -p "$folder"
    {
        printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata:\n  name: %s\n' "$name"
        [[ ! $namespace ]] || printf '  namespace: %s\n' "$namespace"
        printf 'spec:\n  type: Service\n  source:\n    image: %s\n  replicas: %s\n' "$image" "$replicas"
        ((${#spec[@]} == 0)) || printf '  %s\n' "${spec[@]}"
        printf '  restartPolicy: {%s}\n  container:\n    name: app\n    drainSeconds: %s\n' "$restart" "$drain"
        ((${#container[@]} == 0)) || printf '    %s\n' "${container[@]}"
        [[ ! $port ]] || env+=("PORT=$port")
        if ((${#env[@]})); then
            printf '    env:\n'
            for entry in "${env[@]}"; do
                printf '      - {name: %s, value: "%s"}\n' "${entry%%=*}" "${entry#*=}"
            done
        fi
    } >"$folder/workload.kat"
    if [[ $port ]]; then
        printf 'apiVersion: kat.dws.rip/v1alpha1\nkind: VirtualLoadBalancer\nspec:\n  ports:\n    - {name: web, containerPort: %s}\n' \
            "$port" >"$folder/VirtualLoadBalancer.kat"
        [[ ! $health ]] || printf '  healthCheck: {%s}\n' "$health" >>"$folder/VirtualLoadBalancer.kat"
    fi
    n1 rm -rf "/root/workloads/$name"
    lab copy "$folder" n1:/root/workloads/
    echo "/root/workloads/$name"
}

# run NAME [OPTION...]: applies the workload (see above) and waits until it runs as written.
run() { kat apply -f "$(workload "$@")" --wait; }

# instances NAME [NAMESPACE]: the workload's instances as a JSON list.
instances() {
    kat get instances -n "${2:-default}" -o json | jq -c --arg name "$1" '[.items[] | select(.status.workload == $name)]'
}
# instance_is_gone NAME ID: whether the API answers with the workload's instances, and this one is
# not among them; for wait_for.
instance_is_gone() {
    local listed
    listed=$(instances "$1") && [[ $listed && $listed != *"$2"* ]]
}
# field NAME .PATH [NAMESPACE]: a field of the workload's only instance.
field() { instances "$1" "${3:-default}" | jq -er "if length == 1 then .[0]$2 else \"there are \(length) instances\" | halt_error end"; }
# field_is NAME .PATH VALUE: whether a field of the workload's only instance has this value; for
# wait_for.
field_is() {
    local found
    found=$(field "$1" "$2")
    [[ $found == "$3" ]] || {
        echo "$2 of $1 is $found, not $3" >&2
        instances "$1" | jq -c '.[] | .status | {phase, reason, message, restarts, exitCode}' >&2
        return 1
    }
}

# newest NAME .PATH: a field of the workload's instance of the newest generation.
newest() { instances "$1" | jq -er "max_by(.status.generation)$2"; }
# newest_is NAME .PATH VALUE: whether that field has this value; for wait_for.
newest_is() { equal "$3" "$(newest "$1" "$2")" "$2 of the newest instance of $1"; }

# field_on NAME NODE .PATH: a field of the workload's only Running instance on the machine.
field_on() {
    instances "$1" | jq -er --arg node "$2" "[.[] | select(.status.node == \$node and .status.phase == \"Running\")] |
        if length == 1 then .[0]$3 else \"there are \(length) instances on \(\$node)\" | halt_error end"
}
# service_address NAME: the workload's service address.
service_address() { kat get workload "$1" -o json | jq -er .status.serviceAddress; }
# service_backends NAME MACHINE [PORT]: the instance addresses that the machine's nftables rules
# balance over.
service_backends() {
    on "$2" nft list chain inet kat-services "to-default/$1-tcp-${3:-80}" | grep -oE '10\.100\.[0-9]+\.[0-9]+' | sort -u
}
# machines_running NAME: the machines with a Running instance, as a JSON list.
machines_running() { instances "$1" | jq -c '[.[].status | select(.phase == "Running") | .node] | unique'; }
# has_ready NAME COUNT: whether the workload is Running with COUNT ready instances; for wait_for.
has_ready() {
    local status
    status=$(kat get workload "$1" -o json | jq -ec .status) || return 1
    jq -e --argjson count "$2" '.phase == "Running" and .ready == $count' <<<"$status" >/dev/null || {
        echo "$status" >&2
        return 1
    }
}
# process_count_is COUNT: whether COUNT processes of the test's image run on all machines together.
# It does not ask the API.
process_count_is() {
    local node count=0 here
    for ((node = 1; node <= ${LAB_MACHINES:-1}; node++)); do
        here=$(on "n$node" sh -c 'pgrep -xc web || [ $? = 1 ]') || return 1
        count=$((count + here))
    done
    [[ $count == "$1" ]] || {
        echo "$count processes run, not $1" >&2
        return 1
    }
}

# invariants_hold [MACHINE]: the invariants at the end of a test, whatever was shut down, cut off or
# drained in it. According to the API on MACHINE (default n1), each workload has exactly one
# instance for each slot, a DaemonService at most one on each machine, and no address is used twice. Each machine runs the containers of its
# instances and no others; containers with an underscore in their name are init containers and
# sidecars, and not counted.
invariants_hold() {
    local workloads instances nodes faults='' node listed running
    workloads=$(on "${1:-n1}" katcall get workloads -A -o json) || return 1
    instances=$(on "${1:-n1}" katcall get instances -A -o json) || return 1
    nodes=$(on "${1:-n1}" katcall get nodes -o json | jq -ec '[.items[].metadata.name] | select(. != [])') || return 1
    faults=$(jq -nr --argjson workloads "$workloads" --argjson instances "$instances" '
        ($workloads.items[] | . as $workload
            | [$instances.items[] | select(.metadata.namespace == $workload.metadata.namespace and .status.workload == $workload.metadata.name)]
            | select(if $workload.spec.type == "DaemonService" then (map(.status.node) | sort | . != unique) else ([.[].status.slot] | sort) != [range($workload.spec.replicas // 1)] end)
            | "\($workload.metadata.name) has \([.[] | [.metadata.name, .status.slot, .status.phase]])"),
        ([$instances.items[].status | .ip // empty] | sort | select(. != unique) | "two instances have the address \(.)")') || return 1
    for ((node = 1; node <= ${LAB_MACHINES:-1}; node++)); do
        listed=''
        ! jq -e --arg node "n$node" 'index($node)' <<<"$nodes" >/dev/null ||
            listed=$(jq -r --arg node "n$node" '.items[].status | select(.node == $node and .phase == "Running") | .unit | rtrimstr(".service")' <<<"$instances" | sort)
        # ps fails without such a process.
        running=$(on "n$node" sh -c 'ps -C conmon -o args= || [ $? = 1 ]' | sed -n 's/.* -n \([^ _]*\) .*/\1/p' | sort) || return 1
        [[ $listed == "$running" ]] || faults+=$'\n'"n$node runs the containers ${running//$'\n'/ }; according to the API it runs ${listed//$'\n'/ }"
    done
    [[ ! $faults ]] || {
        echo "$faults" >&2
        return 1
    }
}

# page URL: the page at a URL, fetched from n1.
page() { n1 curl --silent --show-error --fail --max-time 3 "$1"; }
answers() { page "$1" | grep -q '^host='; }
# inside NAME COMMAND...: runs a command in the container of the workload's only instance.
inside() {
    local status
    status=$(field "$1" .status)
    shift
    as "$(jq -r .user <<<"$status")" podman exec "$(jq -r '.unit | rtrimstr(".service")' <<<"$status")" "$@"
}
crash() { page "http://$(field "$1" .status.ip):${2:-80}/crash?${3:-1}" >/dev/null; }

# unit_property NAME PROPERTY: a systemd property of the unit of the workload's only instance.
unit_property() {
    local status
    status=$(field "$1" .status)
    as "$(jq -r .user <<<"$status")" systemctl --user show --property="$2" --value "$(jq -r .unit <<<"$status")"
}

node_is_ready() {
    local node
    node=$(kat get nodes n1 -o json)
    [[ $(jq -r .status.phase <<<"$node") == Ready ]] || {
        jq -c .status <<<"$node" >&2
        return 1
    }
}
# Whether all machines that the test requested are Ready, and there are no others.
nodes_are_ready() {
    local nodes
    nodes=$(kat get nodes -o json | jq -ec .) || return 1
    jq -e --argjson count "${LAB_MACHINES:-1}" \
        '([.items[] | select(.status.phase == "Ready")] | length) == $count and (.items | length) == $count' <<<"$nodes" >/dev/null || {
        jq -c '.items[] | [.metadata.name, .status.phase, .status.message]' <<<"$nodes" >&2
        return 1
    }
}
# members_are_healthy COUNT [MACHINE]: whether exactly COUNT machines are members of etcd, all of
# them healthy, according to the API on MACHINE (default n1).
members_are_healthy() {
    local members
    members=$(on "${2:-n1}" katcall get nodes -o json |
        jq -ec '[.items[] | {name: .metadata.name, etcd: (.status.conditions[] | select(.type == "EtcdMember"))}]') || return 1
    jq -e --argjson count "$1" 'length == $count and all(.etcd.status)' <<<"$members" >/dev/null || {
        echo "$members" >&2
        return 1
    }
}
# leader_at MACHINE: the leader according to the API on that machine.
leader_at() { on "$1" katcall get nodes -o json | jq -r '.items[] | select(.status.roles | index("leader")) | .metadata.name'; }
overlay_address() { kat get nodes "$1" -o json | jq -r .status.overlayAddress; }
# host_address NODE: the machine's address in the lab's network, which an earlier test may have changed.
host_address() { kat get nodes "$1" -o json | jq -er '.status as $status | [$status.addresses[] | select(. != $status.overlayAddress and (contains(":") | not))][0]'; }
# etcdctl_on MACHINE ARGUMENT...: runs etcdctl with the machine's leader certificate.
etcdctl_on() {
    local node=$1
    shift
    on "$node" etcdctl --endpoints https://127.0.0.1:2379 --cacert /var/lib/kat/pki/etcd-client-ca.crt \
        --cert /var/lib/kat/pki/leader-etcd.crt --key /var/lib/kat/pki/leader-etcd.key "$@"
}
is_active() { [[ $(n1 systemctl is-active "$1" || true) == active ]]; }

# start_load ADDRESS PORT RATE [WHICH]: sends RATE requests a second from n1, in the background,
# until no_request_lost or the end of the test. An ADDRESS such as NAME@SERVER is resolved for each
# request.
declare -A load_pids=()
start_load() {
    local which=${4:-load}
    n1 rm -f "/run/stop-$which"
    lab exec n1 -- /root/web load "$1" "$2" "$3" 200 "/run/stop-$which" </dev/null \
        >"$LAB_WORK/$which.json" 2>"$LAB_WORK/$which.log" &
    load_pids[$which]=$!
    trap 'kill "${load_pids[@]}" 2>/dev/null || true' EXIT
}
# no_request_lost LEAST [WHICH]: ends the load once it has sent LEAST requests; fails if one was
# lost.
no_request_lost() {
    local code=0 which=${2:-load}
    n1 sh -c 'echo "$1" >"$2.new" && mv "$2.new" "$2"' sh "$1" "/run/stop-$which"
    wait "${load_pids[$which]}" || code=$?
    unset "load_pids[$which]"
    n1 rm -f "/run/stop-$which"
    cat "$LAB_WORK/$which.log" >&2
    echo "$which: exit code $code, $(cat "$LAB_WORK/$which.json")"
    # jq -e succeeds on an empty file.
    if ((code != 0)) || [[ ! -s $LAB_WORK/$which.json ]] ||
        ! jq -e --argjson least "$1" '.failed == 0 and .ok == .sent and .sent >= $least' "$LAB_WORK/$which.json" >/dev/null; then
        echo "expected at least $1 requests and none lost" >&2
        return 1
    fi
}

# start_calls MACHINE ADDRESS SECONDS: opens ten connections a second to port 80 of the address, in the
# background, for SECONDS or until stop_calls. Each has a minute's patience and waits for no other.
# Writes when each began, how long it waited and why it failed.
declare -A call_pids=()
start_calls() {
    on "$1" rm -f /run/stop-calls
    lab exec "$1" -- python3 - "$2" "$3" >"$LAB_WORK/calls-$1.json" <<'PYTHON' &
import json, os, socket, sys, threading, time
calls = []
def call():
    at, began, error = time.time(), time.monotonic(), None
    try:
        socket.create_connection((sys.argv[1], 80), timeout=60).close()
    except OSError as found:
        error = str(found)
    calls.append({"at": at, "wait": round(time.monotonic() - began, 2), "error": error})
threads, end = [], time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and not os.path.exists("/run/stop-calls"):
    threads.append(threading.Thread(target=call))
    threads[-1].start()
    time.sleep(0.1)
for thread in threads:
    thread.join()
print(json.dumps(calls))
PYTHON
    call_pids[$1]=$!
}
stop_calls() { on "$1" touch /run/stop-calls; }
# no_long_wait MACHINE LEAST LONGEST [SINCE]: waits for the end of the calls; of those that began at
# SINCE or later (seconds of the epoch, default all) there are LEAST, all were accepted, each within
# LONGEST seconds and 95 % within 5 s.
no_long_wait() {
    local summary
    wait "${call_pids[$1]}" || return 1
    unset "call_pids[$1]"
    summary=$(jq -ec --argjson since "${4:-0}" '[.[] | select(.at >= $since)] | ([.[].wait] | sort) as $waits |
        {calls: length, failures: [.[] | select(.error)], longest: $waits[-1],
            of95percent: $waits[(length * 0.95 | ceil) - 1], over1s: [$waits[] | select(. > 1)]}' "$LAB_WORK/calls-$1.json")
    echo "from $1: $summary"
    # jq -e succeeds on an empty text.
    [[ $summary ]] || return 1
    jq -e --argjson least "$2" --argjson longest "$3" \
        '.failures == [] and .calls >= $least and .longest <= $longest and .of95percent <= 5' <<<"$summary" >/dev/null
}
# backends_are COUNT MACHINE: whether the machine balances web over so many instances; for wait_for.
backends_are() { equal "$1" "$(service_backends web "$2" | wc -l)" "backends of web on $2"; }

# problems_of MACHINE [OPTION...]: the output of kat-agent check, which must find problems.
problems_of() {
    local node=$1 output code=0
    shift
    output=$(on "$node" kat-agent check "$@") || code=$?
    equal 1 "$code" "exit code of check, which printed $output" || return 1
    printf '%s\n' "$output"
}
# run_fixes_on MACHINE TEXT [LEVEL]: runs the command below each problem (or other LEVEL) in the
# output of check, without sudo, which these machines do not have.
run_fixes_on() {
    local command
    while IFS= read -r -u 4 command; do
        [[ $command == 'sudo '* ]] || { echo "expected a command that begins with sudo, found: $command" >&2 && return 1; }
        on "$1" bash -ec "${command//sudo /}"
    done 4< <(awk -v level="^${3:-problem} " 'below { print substr($0, 10) } { below = $0 ~ level }' <<<"$2")
}

# The inventory of n1, without the files of tests and files that change by themselves.
stable_inventory() { inventory n1 | grep -vE '^(root/|var/lib/kat/(etcd|desired\.json|position\.json|images\.json|instance-history\.json|network/|backups|volumes))'; }
# no_remains STATUS ID: n1 has no remains of a workload whose instance had this status and id.
no_remains() {
    local status=$1 id=$2 user uid address
    user=$(jq -r .user <<<"$status") uid=$(jq -r .uid <<<"$status") address=$(jq -r .ip <<<"$status")
    refused n1 getent passwd "$user"
    finds_nothing n1 grep "^$user:" /etc/subuid /etc/subgid
    [[ $user && $uid && $address ]] || { echo "the status has no user, uid or address: $status" >&2 && return 1; }
    prints_nothing "processes of uid $uid" n1 sh -c 'ps -u "$1" -o pid=,args= || [ $? = 1 ]' sh "$uid"
    absent n1 "/run/user/$uid" "/var/lib/systemd/linger/$user" "/var/lib/kat/users/$user" "/var/lib/kat/units/$uid" \
        "/etc/containers/systemd/users/$uid" "/etc/systemd/system/user@$uid.service.d"
    lacks "$(n1 ip -4 route)" "$address"
    lacks "$(n1 nft list ruleset)" "$address"
    lacks "$(n1 sh -c 'cat /var/lib/kat/network/*.json')" "$id"
    refused n1 curl --silent --max-time 1 "http://$address/"
}
not_resolved() { refused n1 getent ahostsv4 "$1.default.$DOMAIN"; }

# Deletes every workload in every namespace.
delete_all() {
    local namespace name
    while read -r -u 5 namespace name; do
        kat delete workload "$name" -n "$namespace" --ignore-not-found --volumes --yes --wait
    done 5< <(kat get workloads -A -o json | jq -r '.items[] | "\(.metadata.namespace) \(.metadata.name)"')
}

# add_agent_settings NODE LINE...: adds lines to NODE's agent.yaml, until restore_agent_settings NODE restores it.
add_agent_settings() {
    local node=$1
    shift
    printf '%s\n' "$@" | lab exec "$node" -- sh -c 'mkdir -p /etc/kat && touch /etc/kat/agent.yaml && { [ -e /root/agent.yaml ] || cp /etc/kat/agent.yaml /root/; } &&
        cat >>/etc/kat/agent.yaml && systemctl restart kat-agent'
}
restore_agent_settings() {
    on "$1" sh -c 'mv /root/agent.yaml /etc/kat/ && { [ -s /etc/kat/agent.yaml ] || rm /etc/kat/agent.yaml; } && systemctl restart kat-agent'
}
