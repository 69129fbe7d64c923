# Debian's Prometheus scrapes the cluster and each machine by the files of the guide with a token that reads, and an alert fires for a program that crashes
# machines: 2
# packages: prometheus
# shellcheck shell=bash
wait_for 30 nodes_are_ready
tree=$(lab tree prometheus)
n1 mkdir -p /root/prometheus/bin
lab copy "$tree/usr/bin/prometheus" n1:/root/prometheus/bin/
lab copy "$tree/usr/bin/promtool" n1:/root/prometheus/bin/
for file in contrib/prometheus/*; do lab copy "$file" n1:/root/prometheus/; done
# As the guide says, with shorter intervals.
n1 sh -c 'cd /root/prometheus && umask 077 && mkdir -p kat &&
    katcall token create --scope read --name prometheus --ttl 1d -o connection >kat/connection &&
    jq -r .token kat/connection >kat/token && jq -r .ca kat/connection >kat/ca.crt &&
    sed -i "s/CLUSTER-UID/$(jq -r .clusterUid kat/connection)/; s/: 15s/: 1s/; s/: 30s/: 2s/" prometheus.yml'
contains "$(n1 sh -c 'cd /root/prometheus && bin/promtool check config prometheus.yml 2>&1')" "SUCCESS"
n1 systemd-run --quiet --collect --unit=test-prometheus --property=WorkingDirectory=/root/prometheus \
    /root/prometheus/bin/prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=127.0.0.1:9090
trap 'n1 systemctl stop test-prometheus' EXIT
# query EXPRESSION: the values of the result, sorted, with the label that LABEL names.
query() {
    n1 curl --silent --show-error --fail --max-time 5 --get --data-urlencode "query=$1" "http://127.0.0.1:9090/api/v1/query" |
        jq -ec --arg by "${LABEL:-instance}" 'select(.status == "success") | [.data.result[] | [.metric[$by], .value[1]]] | sort'
}
result_is() { equal "$2" "$(query "$1")" "$1"; }
wait_for 30 result_is 'up{job="kat-node"}' '[["n1","1"],["n2","1"]]'
# The two jobs are scraped apart, and only the leader answers for the cluster.
wait_for 30 result_is 'sum(up{job="kat-cluster"})' '[[null,"1"]]'
run web --port 8080 --replicas 2 --health 'http: {path: /healthz, port: web}, periodSeconds: 1'
wait_for 15 result_is 'sum by (workload) (kat_workload_replicas_serving{workload="web"})' '[[null,"2"]]'
LABEL=workload wait_for 15 result_is 'sum by (workload) (kat_node_instance_probes_total{workload="web",result="success"} > 0) > bool 1' '[["web","1"]]'
# Both machines measure themselves: one holds the store, and the leader asks the other one.
for metric in kat_node_memory_available_bytes kat_node_load1 kat_node_disk_free_bytes kat_node_agent_resident_bytes kat_node_agent_cpu_seconds_total; do
    LABEL=node wait_for 20 result_is "$metric >= bool 0" '[["n1","1"],["n2","1"]]'
done
LABEL=node wait_for 20 result_is 'kat_node_data_path_up' '[["n1","1"],["n2","1"]]'
LABEL=peer wait_for 20 result_is 'kat_node_peer_unanswered_seconds' '[["n1","0"],["n2","0"]]'
LABEL=node wait_for 20 result_is 'kat_etcd_member_healthy' '[["n1","1"]]'
wait_for 15 result_is 'kat_scheduler_placements_total > bool 0' "$(query 'kat_leader')"
# A workload that no machine fits, and a program that ends again and again.
kat apply -f "$(workload huge --container 'resources: {requests: {cpu: "900"}}')" >/dev/null
kat apply -f "$(workload bad --restart 'condition: MaxCount, maxRestarts: 1, resetSeconds: 600' --container 'entrypoint: ["/bin/false"]')" >/dev/null
LABEL=workload wait_for 20 result_is 'kat_scheduler_waiting{reason="without enough processor left"}' '[["huge","1"]]'
fires() { n1 curl --silent --fail --max-time 5 http://127.0.0.1:9090/api/v1/alerts | jq -e --arg name "$1" '.data.alerts[] | select(.labels.alertname == $name and .labels.workload == "bad" and .state == "firing")'; }
wait_for 30 fires KatInstanceCrashes
# The texts are what promtool takes for metrics, on the machine's own socket too.
for path in /metrics /v1alpha1/nodes/n1/metrics; do
    n1 sh -c "curl --silent --fail --unix-socket /run/kat/api.sock -H 'Accept: text/plain' http://kat$path | /root/prometheus/bin/promtool check metrics"
done
contains "$(on n2 curl --silent --fail --unix-socket /run/kat/api.sock 'http://kat/v1alpha1/nodes/n2/metrics?format=prometheus')" 'kat_node_memory_bytes{node="n2"}'
refused on n2 curl --silent --fail --unix-socket /run/kat/api.sock http://kat/v1alpha1/nodes/n1/metrics
# A token of a namespace reads neither. What is printed ends with the namespace, which is not sent.
kat create namespace crew
token=$(kat token create --scope deploy:crew --name crew)
for path in /metrics /v1alpha1/nodes/n1/metrics /v1alpha1/metrics/targets; do
    code=$(n1 curl --silent --cacert /root/prometheus/kat/ca.crt --connect-to "::127.0.0.1:9115" --output /dev/null --write-out '%{http_code}' \
        -H "Authorization: Bearer ${token%.crew}" "https://api.kat.$(n1 jq -r .clusterUid /root/prometheus/kat/connection):9115$path")
    equal 403 "$code" "$path with a token of a namespace"
done
kat delete namespace crew
kat delete workload huge --wait
kat delete workload bad --wait
# Scrapes fill no journal; refused ones are there.
lacks "$(n1 journalctl --output=cat SYSLOG_IDENTIFIER=kat-audit)" '/metrics 200 '
contains "$(n1 journalctl --output=cat SYSLOG_IDENTIFIER=kat-audit)" 'GET /metrics 403 '
