# Another user can't use the hook on a container that is not its own
# shellcheck shell=bash
run victim --port 80
run thief --port 80
victim=$(field victim .metadata.name) thief=$(field thief .metadata.name)
user=$(field thief .status.user) owner=$(field victim .status.user)
pid_of() { as "$1" podman inspect --format '{{.State.Pid}}' "kat-default-$2"; }
victim_pid=$(pid_of "$owner" "$victim") thief_pid=$(pid_of "$user" "$thief")
links() { n1 nsenter --target "$victim_pid" --net -- ip -o address; }
links_before=$(links) host_before=$(n1 ip -o link | wc -l)
# call_hook_socket USER INSTANCE PID: sends the hook's request to kat-net as USER, and prints the
# answer.
call_hook_socket() {
    as "$1" python3 -c '
import socket, sys
caller = socket.socket(socket.AF_UNIX)
caller.settimeout(20)
caller.connect("/run/kat/net.sock")
try:
    caller.sendall(b"{\"instance\":\"%s\",\"pid\":%s}\n" % (sys.argv[1].encode(), sys.argv[2].encode()))
except BrokenPipeError:
    pass  # kat-net answers a foreign user before it reads the request
print(caller.recv(4096).decode())' "$2" "$3"
}
contains "$(call_hook_socket "$user" "$victim" "$victim_pid")" '"error"'
contains "$(call_hook_socket "$user" "$thief" "$victim_pid")" '"error"'
contains "$(call_hook_socket "$user" "$victim" "$thief_pid")" '"error"'
contains "$(call_hook_socket "$user" "$thief" 1)" '"error"'
contains "$(call_hook_socket nobody "$victim" "$victim_pid")" '"error"'
contains "$(call_hook_socket root "$victim" "$victim_pid")" '"error"'
equal "$links_before" "$(links)" "the victim's links"
equal "$host_before" "$(n1 ip -o link | wc -l)" "links of the machine"
answers "http://$(field victim .status.ip)/"
# The control: the instance's own user may call.
answer=$(call_hook_socket "$owner" "$victim" "$victim_pid")
contains "$answer" "{"
lacks "$answer" '"error"'
