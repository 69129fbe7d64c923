# The example prometheus, as Debian packages it: it finds each instance of a workload by name, notices when one is gone, and keeps its data over a restart
# packages: prometheus
# shellcheck shell=bash
wait_for 30 nodes_are_ready
tree=$LAB_WORK/prometheus
mkdir -p "$tree"
cp -a "$(lab tree prometheus)"/{bin,etc,lib,lib64,sbin,usr} "$tree"
# Files that Prometheus does not need.
rm -rf "$tree"/usr/share/{javascript,nodejs} "$tree/usr/bin/promtool"
mkdir -m 1777 "$tree/tmp"
lab image test/prometheus:1 "$tree" --entrypoint '["/bin/prometheus"]' --user nobody --workdir /prometheus \
    --cmd '["--config.file=/etc/prometheus/prometheus.yml","--storage.tsdb.path=/prometheus"]'
folder=$LAB_WORK/workloads/prometheus
mkdir -p "${folder%/*}"
cp -r contrib/examples/prometheus "$folder"
# The test uses its own image and a shorter interval.
sed -i 's|docker.io/prom/prometheus:.*|registry.lab:5000/test/prometheus:1|' "$folder/workload.kat"
sed -i 's/_interval: 15s/_interval: 1s/' "$folder/conf/prometheus.yml"
apply() {
    n1 rm -rf /root/workloads/prometheus
    lab copy "$folder" n1:/root/workloads/
    kat apply -f /root/workloads/prometheus --wait --timeout 90s
}
run web --port 8080 --replicas 2
n1 sh -c 'echo "  headless: true" >>/root/workloads/web/VirtualLoadBalancer.kat'
kat apply -f /root/workloads/web --wait
apply
# query EXPRESSION [TIME]: the values of the result, from Prometheus at its name.
query() {
    n1 curl --silent --show-error --fail --max-time 5 --get --data-urlencode "query=$1" ${2:+--data-urlencode "time=$2"} \
        "http://prometheus.default.$DOMAIN:9090/api/v1/query" | jq -ec 'select(.status == "success") | [.data.result[].value[1]] | sort'
}
result_is() { equal "$2" "$(query "$1" "${3:-}")" "$1"; }
wait_for 30 result_is 'up{job="prometheus"}' '["1"]'
wait_for 30 result_is 'up{job="web"}' '["1","1"]'
addresses=$(instances web | jq -c '[.[].status.ip + ":8080"] | sort')
found=$(n1 curl --silent --fail --max-time 5 "http://prometheus.default.$DOMAIN:9090/api/v1/targets?state=active" |
    jq -c '[.data.activeTargets[] | select(.labels.job == "web") | .labels.instance] | sort')
equal "$addresses" "$found" "targets of the job web"
# The counted pages are those that the programs have served, whichever instance answered.
for _ in 1 2 3 4 5; do answers "http://web.default.$DOMAIN:8080/"; done
all_pages_are_counted() { counted_at=$(n1 date +%s.%3N) && result_is 'sum(web_answered_total)' '["5"]' "$counted_at"; }
wait_for 20 all_pages_are_counted

# With fewer instances there are fewer targets.
kat scale web --replicas 1 --wait
wait_for 30 result_is 'up{job="web"}' '["1"]'
# Prometheus keeps its data over a restart and a new version.
kat restart workload prometheus --wait
# The machine's rules follow a moment after the leader counts the instance as ready.
wait_for 10 result_is 'sum(web_answered_total)' '["5"]' "$counted_at"
sed -i 's/retention.time=30d/retention.time=40d/' "$folder/workload.kat"
apply
wait_for 10 result_is 'sum(web_answered_total)' '["5"]' "$counted_at"
result_is 'up{job="web"}' '["1","1"]' "$counted_at"
wait_for 30 result_is 'up{job="prometheus"}' '["1"]'
wait_for 30 result_is 'up{job="web"}' '["1"]'
equal "40d" "$(n1 curl --silent --fail --max-time 5 "http://prometheus.default.$DOMAIN:9090/api/v1/status/flags" | jq -r '.data["storage.tsdb.retention.time"]')" "retention time"

# With a configuration that Prometheus refuses the new version does not start, and its log says why.
# A rollback restores the previous version.
sed -i 's/^scrape_configs:/scrape_konfigs:/' "$folder/conf/prometheus.yml"
n1 rm -rf /root/workloads/prometheus
lab copy "$folder" n1:/root/workloads/
kat apply -f /root/workloads/prometheus >/dev/null
configuration_is_refused() { kat logs prometheus | grep -q 'field scrape_konfigs not found'; }
wait_for 30 configuration_is_refused
kat rollback workload prometheus --wait
wait_for 10 result_is 'sum(web_answered_total)' '["5"]' "$counted_at"
