# kat-agent reset undoes init
# leaves no cluster
# shellcheck shell=bash
run web --port 80
n1 kat-agent reset --yes
inventory n1 | grep -v '^root/' >"$LAB_WORK/after-reset"
diff <(grep -v '^root/' "$LAB_WORK/before-init") "$LAB_WORK/after-reset"
equal "" "$(n1 systemctl list-units --plain --no-legend --state=active,failed 'kat*')" "units"
equal "$(<"$LAB_WORK/sysctls-before-init")" "$(sysctls n1)" "sysctls"
lab reboot n1
equal "$(<"$LAB_WORK/sysctls-before-init")" "$(sysctls n1)" "sysctls after a reboot"
# And a machine that was reset can begin again.
n1 kat-agent init
wait_for 30 node_is_ready
