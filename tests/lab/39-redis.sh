# The example redis, as Debian packages it: data survives a stop, a kill and a changed configuration, and only clients with the password get in
# packages: redis-server
# shellcheck shell=bash
wait_for 30 nodes_are_ready
tree=$LAB_WORK/redis
cp -a "$(lab tree redis-server)" "$tree"
sed -i 's/^redis:x:[0-9]*:[0-9]*:/redis:x:999:999:/' "$tree/etc/passwd"
lab image test/redis:1 "$tree" --cmd '["redis-server"]' --workdir /data
here=$LAB_WORK/workloads/redis
mkdir -p "${here%/*}"
cp -r contrib/examples/redis "$here"
sed -i 's|docker.io/library/redis:.*|registry.lab:5000/test/redis:1|' "$here/workload.kat"
apply() {
    n1 rm -rf /root/workloads/redis
    lab copy "$here" n1:/root/workloads/
    kat apply -f /root/workloads/redis --wait --timeout 60s
}

# Without the secret the workload waits, and `why` names the secret.
n1 rm -rf /root/workloads/redis
lab copy "$here" n1:/root/workloads/
kat apply -f /root/workloads/redis >/dev/null
lacks_secret() { contains "$(kat why workload redis)" "there is no secret redis in namespace default"; }
wait_for 20 lacks_secret
password=pass$RANDOM$RANDOM
# The command in the example's comment makes the secret; only its random password is replaced.
made=$(sed -n 's/^#   \(echo .* | katcall secret set .*\)/\1/p' contrib/examples/redis/workload.kat)
contains "$made" 'echo "requirepass $(head -c 24 /dev/urandom | base64)" | katcall'
n1 bash -ec "${made/'$(head -c 24 /dev/urandom | base64)'/$password}"
wait_for 60 has_ready redis 1

# ask PASSWORD COMMAND...: what another machine's program, or one of this machine, gets at the service's name.
ask() {
    local password=$1
    shift
    n1 bash -c 'exec 3<>"/dev/tcp/$1/6379" && printf "%s\r\n" "AUTH $2" "$3" QUIT >&3 && timeout 5 cat <&3' bash "redis.default.$DOMAIN" "$password" "$*" | tr -d '\r'
}
equal $'+OK\n+OK\n+OK' "$(ask "$password" set word kept)" "answers to a write"
equal "kept" "$(ask "$password" get word | sed -n 3p)" "what was written"
contains "$(ask wrong get word)" "WRONGPASS"
lacks "$(ask wrong get word)" kept
contains "$(ask wrong get word)" "NOAUTH"
# The password is in no process's arguments and in no unit.
lacks "$(n1 ps -eo args)" "$password"
lacks "$(n1 sh -c 'cat /etc/containers/systemd/users/*/*.container')" "$password"

kept() { equal "kept" "$(ask "$password" get word | sed -n 3p)" "what was written, after $1"; }
kat restart workload redis --wait
kept "a restart"
# After a kill, redis has what it had written to the disk a second before.
written() { inside redis sh -c 'cat /data/appendonlydir/*.aof' | grep -q kept; }
wait_for 5 written
restarts=$(field redis .status.restarts)
n1 pkill -KILL -x redis-server
came_back() { field_is redis .status.restarts $((restarts + 1)) && has_ready redis 1; }
wait_for 60 came_back
kept "a kill"

# A changed configuration is a new version: the old instance stops before it starts, and the data
# stays.
id=$(field redis .metadata.name)
sed -i 's/^maxmemory 256mb/maxmemory 64mb/' "$here/conf/redis.conf"
apply
[[ $(field redis .metadata.name) != "$id" ]]
kept "another configuration"
contains "$(ask "$password" config get maxmemory)" 67108864
equal "999:999" "$(inside redis stat -c %u:%g /data/appendonlydir)" "owner of the data"

# The program has a changed password once it has restarted.
other=word$RANDOM$RANDOM
n1 bash -ec "echo 'requirepass $other' | katcall secret set redis --from-file password.conf=- --wait"
contains "$(ask "$password" get word)" WRONGPASS
password=$other
kept "another password"
kat delete workload redis --volumes --yes --wait
kat delete secret redis
