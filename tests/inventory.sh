# shellcheck shell=bash
# Records the state of a machine outside /usr that a package or KAT could change.

# inventory NODE: prints the machine's files, units, users, links, routes and firewall rules,
# without files that change by themselves and those of apt and dpkg.
inventory() {
    # shellcheck disable=SC2016
    contrib/lab/kat-lab exec "$1" -- bash -c '
        cd /
        find etc var home root run opt srv boot usr/local mnt media -xdev \
            \( -path var/lib/dpkg -o -path var/lib/apt -o -path var/cache -o -path var/log -o -path var/tmp \
               -o -path run/log -o -path run/lock -o -path run/udev -o -path run/agetty.reload -o -path etc/ld.so.cache \
               -o -path run/systemd/journal -o -path run/systemd/units -o -path run/systemd/propagate \
               -o -path run/systemd/transient -o -path run/systemd/netif -o -path run/systemd/resolve \
               -o -path run/systemd/users -o -path run/systemd/ask-password-block -o -path run/systemd/nspawn \
               -o -path run/systemd/generator -o -path run/systemd/inhibit \) -prune \
            -o \( -type d -printf "%p %y %m %U:%G %l\n" \) \
            -o \( ! -path "var/lib/systemd/*" ! -path "etc/*-" -printf "%p %y %m %U:%G %s %l\n" \) | sort
        find etc -type f ! -name ld.so.cache ! -name "*-" -exec sha256sum {} + | sort -k2
        systemctl list-unit-files --no-pager --no-legend --state=enabled,enabled-runtime,linked,masked | sort
        systemctl list-units --no-pager --plain --no-legend --type=service,socket,timer,mount --state=active,activating,failed |
            awk "\$4 != \"exited\" { print \$1, \$3, \$4 }" | grep -vE "^(systemd-(tmpfiles-clean|hostnamed|timedated|localed|journal-flush)|netavark-)" | sort
        getent passwd; getent group; cat /etc/subuid /etc/subgid
        ip -o link | sed "s/^[0-9]*: //; s/ state .*//; s/@if[0-9]*:/:/"; ip -4 route; ip -4 rule; nft list ruleset
        ls /etc/systemd/system /usr/lib/systemd/system/*.wants
    ' </dev/null
}

# sysctls NODE: the sysctls that init sets. In the lab a machine has only those of a network
# namespace to itself.
sysctls() { contrib/lab/kat-lab exec "$1" -- cat /proc/sys/net/ipv4/ip_forward </dev/null; }
