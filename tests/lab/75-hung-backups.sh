# A folder of backups on a file system that hangs fails the backups, and nothing else of its machine
# settings: backupPath: /srv/nas/backups, backupIntervalMinutes: 1
# shellcheck shell=bash
cc -O2 -static -Wall -Wextra -Werror -o "$LAB_WORK/hung" tests/lab/images/hung/hung.c
lab copy "$LAB_WORK/hung" n1:/root/hung
# A file system of its own that answers: an overlay in memory.
n1 mkdir -p /srv/nas /run/nas
n1 mount -t tmpfs nas /run/nas
n1 mkdir /run/nas/lower /run/nas/upper /run/nas/work
n1 mount -t overlay -o lowerdir=/run/nas/lower,upperdir=/run/nas/upper,workdir=/run/nas/work nas /srv/nas
backups() { n1 find /srv/nas/backups -name "kat-lab-*.backup" 2>/dev/null | wc -l; }
# The agent begins anew, so that its next round is now.
round() { n1 systemctl restart kat-agent && wait_for 30 kat get nodes >/dev/null; }
round
has_backups() { (($(backups) >= $1)); }
wait_for 100 has_backups 1
status_is() { local code=0; kat status >/dev/null 2>&1 || code=$?; ((code == $1)); }
wait_for 20 status_is 0
# Whether it is whole.
file=$(n1 find /srv/nas/backups -name "kat-lab-*.backup" | head -n 1)
n1 grep --quiet --text '"cluster":"lab"' "$file"
hung_at=$EPOCHSECONDS
n1 systemd-run --quiet --collect --unit=hung /root/hung /srv/nas
is_mounted() { n1 grep -q ' /srv/nas .* fuse ' /proc/self/mountinfo; }
wait_for 5 is_mounted
trap 'n1 systemctl stop hung.service || true; n1 umount --lazy /srv/nas || true' EXIT
round
fails_to_make_backups() { [[ $(kat status || true) == *"the leader fails to make backups (last: "* ]]; }
wait_for 40 fails_to_make_backups
status_is 1
contains "$(kat get events -A)" "machine n1: the file system at /srv/nas has not answered since 20"
# Everything else goes on, and no more than two processes of each agent wait for the disk.
node_is_ready
run web --port 80
answers "http://$(field web .status.ip)/"
round
wait_for 30 node_is_ready
kat delete workload web --wait
waiting=$(n1 pgrep --full --count '^/proc/self/exe work-on-disk' || true)
echo "after $((EPOCHSECONDS - hung_at)) s $waiting processes wait for the disk"
((waiting <= 4)) || { echo "too many processes wait for the disk" >&2 && exit 1; }
before=$(n1 sh -c 'ls /run/nas/upper/backups | wc -l')
n1 systemctl stop hung.service
n1 umount --lazy /srv/nas
trap 'n1 umount --lazy /srv/nas || true' EXIT
equal "$before" "$(backups)" "backups that are there again"
round
more() { (($(backups) > before)); }
wait_for 100 more
wait_for 30 status_is 0
