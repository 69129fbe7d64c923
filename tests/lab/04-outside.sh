# Containers reach the outside with the machine's address, and resolve its names through KAT
# shellcheck shell=bash
run web --port 80
contains "$(inside web wget -q -T 5 -O- http://192.168.77.1:8000/)" "192.168.77.11"
wait_for 10 inside web wget -q -T 5 -O- http://outside.test:8000/
contains "$(inside web wget -q -T 5 -O- http://outside.test:8000/)" "192.168.77.11"
overlay=$(kat get nodes n1 -o json | jq -r .status.overlayAddress)
contains "$(inside web cat /etc/resolv.conf)" "nameserver $overlay"
