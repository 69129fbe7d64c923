# kat-agent reset undoes init
# leaves no cluster
# shellcheck shell=bash
n1 sh -c 'mkdir -p /srv/kept && chmod 777 /srv/kept && echo kept >/srv/kept/file'
run web --port 80 --spec 'volumes: [{name: v, hostMount: {hostPath: /srv/kept, ensureType: Directory}}]' \
    --container 'volumeMounts: [{name: v, mountPath: /v}]'
equal kept "$(inside web cat /v/file)" "a file of the machine"
backup=$(n1 kat-agent backup)
# What a write leaves that a power cut interrupted.
n1 sh -c 'echo half >/var/lib/kat/.desired.json.a1B2c3'
n1 kat-agent reset --yes
# The host path that was mounted for containers remains.
equal kept "$(n1 cat /srv/kept/file)" "a file of the machine"
finds_nothing n1 grep kat-hostpath /proc/self/mountinfo
n1 rm -r /srv/kept
# Backups remain, since they may be the only copy.
n1 test -s "$backup"
n1 rm -r /var/lib/kat/backups
prints_nothing "what reset left in /var/lib/kat" n1 find /var/lib/kat -mindepth 1
n1 rmdir /var/lib/kat
inventory n1 | grep -v '^root/' >"$LAB_WORK/after-reset"
diff <(grep -v '^root/' "$LAB_WORK/before-init") "$LAB_WORK/after-reset"
prints_nothing "units" n1 systemctl list-units --plain --no-legend --state=active,failed 'kat*'
equal "$(<"$LAB_WORK/sysctls-before-init")" "$(sysctls n1)" "sysctls"
lab reboot n1
equal "$(<"$LAB_WORK/sysctls-before-init")" "$(sysctls n1)" "sysctls after a reboot"
# init works again after reset, also with a separate file system for etcd, which remains mounted.
n1 sh -c 'mkdir -p /var/lib/kat/etcd && mount -t tmpfs tmpfs /var/lib/kat/etcd'
n1 kat-agent init
wait_for 30 node_is_ready
n1 test -e /var/lib/kat/etcd/member/wal
lacks "$(n1 kat-agent check || true)" "etcd shares its file system"
# A purge of the package also removes files that the owner wrote.
n1 sh -c 'echo "# mine" >/etc/kat/agent.yaml'
n1 kat-agent reset --yes
n1 test -e /etc/kat/agent.yaml
prints_nothing "etcd's folder" n1 ls -A /var/lib/kat/etcd
n1 sh -c 'umount /var/lib/kat/etcd && rmdir /var/lib/kat/etcd && rmdir --ignore-fail-on-non-empty /var/lib/kat'
n1 env DEBIAN_FRONTEND=noninteractive dpkg --purge kat
absent n1 /etc/kat /var/lib/kat
inventory n1 | grep -v '^root/' >"$LAB_WORK/after-purge"
diff <(grep -v '^root/' "$LAB_WORK/before-init") "$LAB_WORK/after-purge"
