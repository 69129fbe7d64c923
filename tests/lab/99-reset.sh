# kat-agent reset undoes init
# leaves no cluster
# shellcheck shell=bash
run web --port 80
backup=$(n1 kat-agent backup)
n1 kat-agent reset --yes
# Backups are for when all else is gone: they stay.
n1 test -s "$backup"
n1 rm -r /var/lib/kat/backups
n1 rmdir /var/lib/kat
inventory n1 | grep -v '^root/' >"$LAB_WORK/after-reset"
diff <(grep -v '^root/' "$LAB_WORK/before-init") "$LAB_WORK/after-reset"
equal "" "$(n1 systemctl list-units --plain --no-legend --state=active,failed 'kat*')" "units"
equal "$(<"$LAB_WORK/sysctls-before-init")" "$(sysctls n1)" "sysctls"
lab reboot n1
equal "$(<"$LAB_WORK/sysctls-before-init")" "$(sysctls n1)" "sysctls after a reboot"
# And a machine that was reset can begin again.
n1 kat-agent init
wait_for 30 node_is_ready
# With the package goes what one wrote oneself, and nothing is left.
n1 sh -c 'echo "# mine" >/etc/kat/agent.yaml'
n1 kat-agent reset --yes
n1 test -e /etc/kat/agent.yaml
n1 env DEBIAN_FRONTEND=noninteractive dpkg --purge kat
refused n1 test -e /etc/kat
refused n1 test -e /var/lib/kat
inventory n1 | grep -v '^root/' >"$LAB_WORK/after-purge"
diff <(grep -v '^root/' "$LAB_WORK/before-init") "$LAB_WORK/after-purge"
