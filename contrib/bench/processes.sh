#!/bin/sh
# processes kat|docker: what the processes of the orchestrator and of what stands beside it use, a line for each group:
# name, number of processes, PSS in kB, RSS in kB, ticks of processor time since they began. Runs in the machine.
set -eu

main_pid() { systemctl show --property=MainPID --value "$1.service" | grep -vx 0 || true; }

# group NAME PID...
group() {
    name=$1 count=0 pss=0 rss=0 ticks=0
    shift
    for pid in "$@"; do
        # Shared pages are shared out; a process that ends meanwhile does not count.
        memory=$(awk '$1 == "Pss:" { pss = $2 } $1 == "Rss:" { rss = $2 } END { print pss + 0, rss + 0 }' "/proc/$pid/smaps_rollup" 2>/dev/null) || continue
        time=$(sed 's/^.*) //' "/proc/$pid/stat" 2>/dev/null | awk '{ print $12 + $13 }') || continue
        [ "$time" ] || continue
        count=$((count + 1)) pss=$((pss + ${memory% *})) rss=$((rss + ${memory#* })) ticks=$((ticks + time))
    done
    echo "$name $count $pss $rss $ticks"
}

# Processes of the name $1, of users from uid $2 on.
named() { ps -e -o pid=,uid=,comm= | awk -v name="$1" -v from="$2" '$3 == name && $2 >= from { print $1 }'; }

# shellcheck disable=SC2046 # pids by blanks
case $1 in
kat)
    group kat-agent+kat-net $(main_pid kat-agent) $(main_pid kat-net)
    group kat-agent $(main_pid kat-agent)
    group kat-net $(main_pid kat-net)
    group etcd $(main_pid kat-etcd)
    group userspace-wireguard $(main_pid kat-wg)
    group user-managers $(named systemd 20000) $(named '(sd-pam)' 20000) $(named dbus-daemon 20000)
    group conmon $(named conmon 20000)
    ;;
docker)
    group dockerd+containerd $(main_pid docker) $(main_pid containerd)
    group containerd-shim $(named containerd-shim 0)
    ;;
*)
    echo "processes kat|docker" >&2
    exit 2
    ;;
esac
