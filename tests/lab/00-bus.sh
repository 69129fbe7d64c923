# Right after init, root and the group kat can read rip.dws.kat1 and receive its signals, and nobody else can
# shellcheck shell=bash
bus() { as "$1" busctl --system --json=short "${@:2}"; }
manager() { bus "$1" call rip.dws.kat1 /rip/dws/kat1 rip.dws.kat1.Manager "${@:2}"; }
property() { bus "$1" get-property rip.dws.kat1 "$2" "$3" "$4" | jq -r .data; }
# A user whose program runs can't be removed, and the end of a listener's shell here does not end the listener there.
is_removed() { n1 sh -c '! id "$1" || { pkill --uid "$1"; userdel "$1"; }' sh "$1" >/dev/null 2>&1; }
remove_users() { for user in member outsider; do wait_for 20 is_removed "$user"; done; }
trap remove_users EXIT
n1 useradd --no-create-home --uid 3001 --groups kat member
n1 useradd --no-create-home --uid 3002 outsider
for user in root member; do
    equal "n1 kat true Ready" "$(for name in Node ClusterName Leader Status; do
        property "$user" /rip/dws/kat1 rip.dws.kat1.Manager "$name"
    done | paste -sd' ')" "the node as $user sees it"
    equal '[]' "$(manager "$user" ListInstances | jq -c '.data[0]')" "instances before there are any"
done

run web --port 80 --env SECRET=of-the-program
status=$(field web .status) id=$(field web .metadata.name)
expected=$(jq -c --arg id "$id" '[$id, "default", "web", "Running", .health, .unit, .uid]' <<<"$status")
is_listed() { equal "[$expected]" "$(manager "$1" ListInstances | jq -c '[.data[0][] | .[:7]]')" "instances as $1 sees them"; }
for user in root member; do
    wait_for 10 is_listed "$user"
    path=$(manager "$user" GetInstance s "$id" | jq -r '.data[0]')
    equal "$(jq -r '"\(.user) \(.ip) \(.image)"' <<<"$status")" "$(for name in User Address Image; do
        property "$user" "$path" rip.dws.kat1.Instance "$name"
    done | paste -sd' ')" "the instance as $user sees it"
done
all_properties() { bus root call rip.dws.kat1 "$1" org.freedesktop.DBus.Properties GetAll s "rip.dws.kat1.$2"; }
published=$(all_properties /rip/dws/kat1 Manager && all_properties "$path" Instance && manager root ListInstances)
contains "$published" "$id"
lacks "$published" of-the-program

refused manager outsider ListInstances
refused property outsider /rip/dws/kat1 rip.dws.kat1.Manager Node
refused property outsider "$path" rip.dws.kat1.Instance Phase

# Each change sends a signal. Nothing reports that a listener is ready, so the program crashes until
# a listener receives a signal.
listen() { as "$1" timeout 60 busctl --system --json=short wait /rip/dws/kat1 rip.dws.kat1.Manager InstanceChanged >"$LAB_WORK/signal-$1" & }
listen outsider
outsider_listener=$!
for user in root member; do
    listen "$user"
    signal_arrived() {
        crash web || true
        [[ -s $LAB_WORK/signal-$user ]]
    }
    wait_for 40 signal_arrived
    equal "[\"$id\",\"$path\"]" "$(jq -c '.data[:2]' "$LAB_WORK/signal-$user")" "signal that $user received"
done
kill -0 "$outsider_listener"
equal "" "$(<"$LAB_WORK/signal-outsider")" "signals that the outsider received"
kill "$outsider_listener"
