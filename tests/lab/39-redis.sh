# The example redis, as Debian packages it: data survives a stop, a kill and a changed configuration, and only clients with the password get in
# packages: redis-server
# shellcheck shell=bash
wait_for 30 nodes_are_ready
tree=$LAB_WORK/redis
cp -a "$(lab tree redis-server)" "$tree"
sed -i 's/^redis:x:[0-9]*:[0-9]*:/redis:x:999:999:/' "$tree/etc/passwd"
lab image test/redis:1 "$tree" --cmd '["redis-server"]' --workdir /data
folder=$LAB_WORK/workloads/redis
mkdir -p "${folder%/*}"
cp -r contrib/examples/redis "$folder"
sed -i 's|docker.io/library/redis:.*|registry.lab:5000/test/redis:1|' "$folder/workload.kat"
apply() {
    n1 rm -rf /root/workloads/redis
    lab copy "$folder" n1:/root/workloads/
    kat apply -f /root/workloads/redis --wait --timeout 60s
}

# Without the secret the workload waits, and says so.
n1 rm -rf /root/workloads/redis
lab copy "$folder" n1:/root/workloads/
kat apply -f /root/workloads/redis >/dev/null
secret_is_missing() { contains "$(kat why workload redis)" "there is no secret redis in namespace default"; }
wait_for 20 secret_is_missing
password=pass$RANDOM$RANDOM
# The command in the example's comment makes the secret, with a known password in place of the
# random one.
secret_command=$(sed -n 's/^#   \(echo .* | katcall secret set .*\)/\1/p' contrib/examples/redis/workload.kat)
contains "$secret_command" 'echo "requirepass $(head -c 24 /dev/urandom | base64)" | katcall'
n1 bash -ec "${secret_command/'$(head -c 24 /dev/urandom | base64)'/$password}"
wait_for 60 has_ready redis 1

# send_command PASSWORD COMMAND...: Redis's answers to n1 at the service's name. The machine's rules
# follow a moment after the leader counts the instance as ready.
port_is_open() { n1 bash -c 'exec 3<>"/dev/tcp/$1/6379"' bash "redis.default.$DOMAIN"; }
send_command() {
    local password=$1
    shift
    wait_for 10 port_is_open
    n1 bash -c 'exec 3<>"/dev/tcp/$1/6379" && printf "%s\r\n" "AUTH $2" "$3" QUIT >&3 && timeout 5 cat <&3' bash "redis.default.$DOMAIN" "$password" "$*" | tr -d '\r'
}
equal $'+OK\n+OK\n+OK' "$(send_command "$password" set word kept)" "answers to a set command"
equal "kept" "$(send_command "$password" get word | sed -n 3p)" "the stored word"
contains "$(send_command wrong get word)" "WRONGPASS"
lacks "$(send_command wrong get word)" kept
contains "$(send_command wrong get word)" "NOAUTH"
# The password is in no list of processes and in no unit.
lacks "$(n1 ps -eo args)" "$password"
lacks "$(n1 sh -c 'cat /etc/containers/systemd/users/*/*.container')" "$password"

word_is_kept() { equal "kept" "$(send_command "$password" get word | sed -n 3p)" "the stored word after $1"; }
kat restart workload redis --wait
word_is_kept "a restart"
# A killed program has the words that it wrote to disk a second before.
word_is_on_disk() { inside redis sh -c 'cat /data/appendonlydir/*.aof' | grep -q kept; }
wait_for 5 word_is_on_disk
restarts=$(field redis .status.restarts)
n1 pkill -KILL -x redis-server
has_restarted() { field_is redis .status.restarts $((restarts + 1)) && has_ready redis 1; }
wait_for 60 has_restarted
word_is_kept "a kill"

# A changed configuration is a new version. The old instance stops before the new one starts, and
# the data stays.
id=$(field redis .metadata.name)
sed -i 's/^maxmemory 256mb/maxmemory 64mb/' "$folder/conf/redis.conf"
apply
differs "$id" "$(field redis .metadata.name)" "instance of another configuration"
word_is_kept "another configuration"
contains "$(send_command "$password" config get maxmemory)" 67108864
equal "999:999" "$(inside redis stat -c %u:%g /data/appendonlydir)" "owner of the data"

# After a change of the secret the program restarts with the new password.
new_password=word$RANDOM$RANDOM
n1 bash -ec "echo 'requirepass $new_password' | katcall secret set redis --from-file password.conf=- --wait"
contains "$(send_command "$password" get word)" WRONGPASS
password=$new_password
word_is_kept "another password"
kat delete workload redis --volumes --yes --wait
kat delete secret redis
