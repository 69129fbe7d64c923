# The example nginx, as Debian packages it: its own configuration on port 80 of its machine, its log with callers' addresses, and a rollout of a changed file
# machines: 2
# packages: nginx-light
# shellcheck shell=bash
wait_for 60 nodes_are_ready
tree=$LAB_WORK/nginx
cp -a "$(lab tree nginx-light)" "$tree"
lab image test/nginx:1 "$tree"
folder=$LAB_WORK/workloads/nginx
mkdir -p "${folder%/*}"
cp -r contrib/examples/nginx "$folder"
# The test uses its own image, and a node selector for the machine n2.
sed -i 's|docker.io/library/nginx:.*|registry.lab:5000/test/nginx:1|; s|^  replicas: 1$|&\n  nodeSelector: {web: here}|' "$folder/workload.kat"
copy_folder() {
    n1 rm -rf /root/workloads/nginx
    lab copy "$folder" n1:/root/workloads/
}
copy_folder
kat label node n2 web=here
add_agent_settings n2 'hostPortLoopback: true'
wait_for 60 nodes_are_ready
kat apply -f /root/workloads/nginx --wait --timeout 3m
page_is() { equal "$1" "$(on "$2" curl --silent --show-error --fail --max-time 3 "http://$3/")" "page that nginx serves to $2 at $3"; }
address() { on "$1" ip -4 -o address show host0 | sed -n 's/.*inet \([0-9.]*\).*/\1/p'; }
server=$(address n2) client=$(address n1)
# Each machine's rules follow a moment after the leader counts the instance as ready.
wait_for 10 page_is 'hello from nginx' n1 "$server"
wait_for 10 page_is 'hello from nginx' n2 "$server"
wait_for 10 page_is 'hello from nginx' n2 127.0.0.1
client_is_logged() { kat logs nginx | grep -F "$client - - [" >/dev/null; }
wait_for 20 client_is_logged

sed -i 's/hello from/greetings of/' "$folder/conf/nginx.conf"
copy_folder
output=$(kat plan -f /root/workloads/nginx) && exit 1
contains "$output" 'return 200 "greetings of nginx\n";'
kat apply -f /root/workloads/nginx --wait
wait_for 10 page_is 'greetings of nginx' n1 "$server"
kat delete workload nginx --wait
refused on n1 curl --silent --max-time 3 "http://$server/"
kat label node n2 web-
restore_agent_settings n2
