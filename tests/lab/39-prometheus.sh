# The example prometheus, as Debian packages it: it finds each instance of a workload by name, notices when one is gone, and keeps its data over a restart
# packages: prometheus
# shellcheck shell=bash
wait_for 30 nodes_are_ready
tree=$LAB_WORK/prometheus
mkdir -p "$tree"
cp -a "$(lab tree prometheus)"/{bin,etc,lib,lib64,sbin,usr} "$tree"
# The image omits files that prometheus does not need.
rm -rf "$tree"/usr/share/{javascript,nodejs} "$tree/usr/bin/promtool"
mkdir -m 1777 "$tree/tmp"
lab image test/prometheus:1 "$tree" --entrypoint '["/bin/prometheus"]' --user nobody --workdir /prometheus \
    --cmd '["--config.file=/etc/prometheus/prometheus.yml","--storage.tsdb.path=/prometheus"]'
here=$LAB_WORK/workloads/prometheus
mkdir -p "${here%/*}"
cp -r contrib/examples/prometheus "$here"
# The example runs with the test's image and with shorter intervals.
sed -i 's|docker.io/prom/prometheus:.*|registry.lab:5000/test/prometheus:1|' "$here/workload.kat"
sed -i 's/_interval: 15s/_interval: 1s/' "$here/conf/prometheus.yml"
apply() {
    n1 rm -rf /root/workloads/prometheus
    lab copy "$here" n1:/root/workloads/
    kat apply -f /root/workloads/prometheus --wait --timeout 90s
}
run web --port 8080 --replicas 2
n1 sh -c 'echo "  headless: true" >>/root/workloads/web/VirtualLoadBalancer.kat'
kat apply -f /root/workloads/web --wait
apply
# query EXPRESSION [TIME]: the values that it answers with, by its name.
query() {
    n1 curl --silent --show-error --fail --max-time 5 --get --data-urlencode "query=$1" ${2:+--data-urlencode "time=$2"} \
        "http://prometheus.default.$DOMAIN:9090/api/v1/query" | jq -ec 'select(.status == "success") | [.data.result[].value[1]] | sort'
}
says() { equal "$2" "$(query "$1" "${3:-}")" "$1"; }
wait_for 30 says 'up{job="prometheus"}' '["1"]'
wait_for 30 says 'up{job="web"}' '["1","1"]'
addresses=$(instances web | jq -c '[.[].status.ip + ":8080"] | sort')
found=$(n1 curl --silent --fail --max-time 5 "http://prometheus.default.$DOMAIN:9090/api/v1/targets?state=active" |
    jq -c '[.data.activeTargets[] | select(.labels.job == "web") | .labels.instance] | sort')
equal "$addresses" "$found" "what it looks at"
# prometheus reads the programs' own counters: five pages in total, whichever instances answered.
for _ in 1 2 3 4 5; do answers "http://web.default.$DOMAIN:8080/"; done
seen() { then=$(n1 date +%s.%3N) && says 'sum(web_answered_total)' '["5"]' "$then"; }
wait_for 20 seen

# prometheus finds fewer instances after the scaling.
kat scale web --replicas 1 --wait
wait_for 30 says 'up{job="web"}' '["1"]'
# After a restart and after a new version, prometheus still has its earlier samples.
kat restart workload prometheus --wait
says 'sum(web_answered_total)' '["5"]' "$then"
sed -i 's/retention.time=30d/retention.time=40d/' "$here/workload.kat"
apply
says 'sum(web_answered_total)' '["5"]' "$then"
says 'up{job="web"}' '["1","1"]' "$then"
wait_for 30 says 'up{job="prometheus"}' '["1"]'
wait_for 30 says 'up{job="web"}' '["1"]'
equal "40d" "$(n1 curl --silent --fail --max-time 5 "http://prometheus.default.$DOMAIN:9090/api/v1/status/flags" | jq -r '.data["storage.tsdb.retention.time"]')" "how long it keeps"

# A version with an invalid configuration never becomes ready and says why, and the earlier version
# is restored.
sed -i 's/^scrape_configs:/scrape_konfigs:/' "$here/conf/prometheus.yml"
n1 rm -rf /root/workloads/prometheus
lab copy "$here" n1:/root/workloads/
kat apply -f /root/workloads/prometheus >/dev/null
refuses() { kat logs prometheus | grep -q 'field scrape_konfigs not found'; }
wait_for 30 refuses
kat rollback workload prometheus --wait
says 'sum(web_answered_total)' '["5"]' "$then"
