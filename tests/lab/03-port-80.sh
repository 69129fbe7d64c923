# An image whose user is not root serves port 80
# shellcheck shell=bash
run web --port 80
contains "$(page "http://$(field web .status.ip)/")" "uid=1000"
contains "$(kat logs web)" "listening on port 80 as uid 1000"
