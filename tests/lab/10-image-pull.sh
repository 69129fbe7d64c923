# An image that its registry does not have shows ImageNotFound with Podman's own words, and runs once it is there
# shellcheck shell=bash
kat apply -f "$(workload late --image registry.lab:5000/test/late:1 --port 80)"
wait_for 60 field_is late .status.reason ImageNotFound
contains "$(field late .status.message)" "manifest unknown"
equal 0 "$(field late .status.restarts)" "restarts"
lab image test/late:1 "$LAB_WORK/images/web" --busybox --entrypoint '["/bin/web"]' --user 1000
wait_for 120 field_is late .status.phase Running
answers "http://$(field late .status.ip)/"
