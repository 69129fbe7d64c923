# A container reaches the ports of etcd, the API and the agents of no machine
# machines: 4
# shellcheck shell=bash
. tests/lab/attacks/lib.sh
become_tenant default
# A server on another port of the machines shows that the container reaches them.
open_port=2378
listener="import contextlib, socket
server = socket.create_server(('', $open_port))
while True:
    with contextlib.suppress(OSError), server.accept()[0] as caller:
        caller.recv(4096)
        caller.sendall(b'HTTP/1.0 200 OK\r\n\r\n')"
for node in n1 n2; do on "$node" systemd-run --quiet --unit=attack-open --collect python3 -c "$listener"; done
tenant apply -f "$(workload scanner --spec 'nodeSelector: {kat.dws.rip/nodeName: n1}')" --wait
# connects ADDRESS PORT: whether a connection from the container is accepted.
connects() { inside scanner nc -w 2 "$1" "$2" -e /bin/busybox true; }
uid=$(field scanner .status.uid)
# as_its_user ADDRESS PORT [SCHEME]: the same call as the container's user on the machine, as with
# hostNetwork.
as_its_user() { n1 setpriv --reuid="$uid" --regid="$uid" --clear-groups curl --silent --insecure --max-time 2 --output /dev/null "${3:-https}://$1:$2/"; }
for address in "$(overlay_address n1)" "$(overlay_address n2)" 192.168.77.11 192.168.77.12; do
    for port in 2379 2380 9115 9116; do
        refused connects "$address" "$port"
        refused as_its_user "$address" "$port"
    done
    # The controls: another port of the same machine answers, and the machine itself reaches the
    # API's port.
    wait_for 5 connects "$address" "$open_port"
    as_its_user "$address" "$open_port" http
    n1 curl --silent --insecure --max-time 3 --output /dev/null "https://$address:9115/healthz"
done
n1 bash -c "exec 3<>/dev/tcp/$(overlay_address n2)/2380"
for node in n1 n2; do on "$node" systemctl stop attack-open; done
kat delete workload scanner --wait
