//! Objects as the API returns them.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// The time this many seconds ago.
pub(crate) fn ago(seconds: i64) -> String {
    let then = Timestamp::now() - SignedDuration::from_secs(seconds);
    then.to_string()
}

pub(crate) const WORKLOADS: &str = "/v1alpha1/n/default/workloads";
pub(crate) const INSTANCES: &str = "/v1alpha1/n/default/instances";
pub(crate) const WEB: &str = "/v1alpha1/n/default/workloads/web";
pub(crate) const VOLUMES: &str = "/v1alpha1/n/default/volumes";
pub(crate) const WEB_INSTANCES: &str = "/v1alpha1/n/default/workloads/web/instances";

/// A workload; `counts` are its replicas, ready and updated instances.
pub(crate) fn workload(name: &str, phase: &str, counts: [u32; 3]) -> Value {
    json!({
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "labels": {"team": "shop"}, "generation": 2, "resourceVersion": "7",
            "creationTimestamp": ago(310)},
        "spec": {"type": "Service", "source": {"image": format!("registry.lab:5000/{name}:1")},
            "replicas": counts[0], "restartPolicy": {"condition": "Always"},
            "container": {"env": [{"name": "SECRET", "value": "***"}]},
            "loadBalancer": {"ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}},
        "status": {"phase": phase, "replicas": counts[0], "ready": counts[1],
            "updated": counts[2], "observedGeneration": 2,
            "serviceAddress": "10.200.0.7", "conditions": []}
    })
}

/// Adds an `Available` condition with status false.
pub(crate) fn because(mut workload: Value, reason: &str, message: &str) -> Value {
    workload["status"]["conditions"] = json!([{"type": "Available", "status": false,
        "reason": reason, "message": message, "since": ago(65)}]);
    workload
}

/// An instance of `web` on node `a`.
pub(crate) fn instance(id: &str, phase: &str) -> Value {
    json!({
        "kind": "Instance",
        "metadata": {"name": id, "namespace": "default", "uid": format!("uid-{id}"),
            "generation": 1, "resourceVersion": "8", "creationTimestamp": ago(130)},
        "spec": {"image": "registry.lab:5000/web:1"},
        "status": {"workload": "web", "slot": 0, "node": "a", "ip": "10.100.2.7",
            "ips": ["10.100.2.7"], "phase": phase, "health": "not_applicable", "restarts": 0,
            "image": "registry.lab:5000/web:1", "imageDigest": "sha256:0123", "generation": 2,
            "user": "kat-u7", "uid": 20007, "unit": format!("kat-default-{id}.service"),
            "since": ago(125), "memory": 12_582_912, "cpu": 1_234_567_890}
    })
}

/// Sets the reason and message of the status.
pub(crate) fn troubled(mut instance: Value, reason: &str, message: &str) -> Value {
    instance["status"]["reason"] = reason.into();
    instance["status"]["message"] = message.into();
    instance
}

pub(crate) fn node(name: &str, phase: &str, roles: &[&str]) -> Value {
    json!({
        "kind": "Node",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1,
            "resourceVersion": "9", "creationTimestamp": ago(3 * 86_400 + 60)},
        "spec": {"taints": [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]},
        "status": {"phase": phase, "roles": roles, "addresses": ["192.0.2.11"],
            "endpoints": ["192.0.2.11:51820"], "overlayAddress": "10.100.2.1",
            "subnet": "10.100.2.0/23", "version": "0.1.0", "architecture": "amd64",
            "capacity": {"cpu": "2", "memory": "4Gi"},
            "allocatable": {"cpu": "1800m", "memory": "3Gi"},
            "lastHeartbeat": ago(5), "instances": 1,
            "conditions": [{"type": "MemoryControllerMissing", "status": true,
                "reason": "NoController", "message": "limits of memory are not enforced",
                "since": ago(3600)}]}
    })
}

/// Adds the condition of the machine's etcd member.
pub(crate) fn with_member(mut node: Value, well: bool, reason: &str, message: &str) -> Value {
    let member = json!({"type": "EtcdMember", "status": well, "reason": reason,
        "message": message, "since": ago(60)});
    node["status"]["conditions"] = json!([node["status"]["conditions"][0], member]);
    node
}

/// Adds the WireGuard status of two peers.
pub(crate) fn with_peers(mut node: Value) -> Value {
    node["status"]["peers"] = json!([
        {"name": "b", "endpoint": "192.0.2.12:51820", "lastHandshake": ago(75),
            "connected": true, "sent": 1_300_000, "received": 900},
        {"name": "c", "connected": false, "sent": 148, "received": 0},
        {"name": "d", "connected": false, "sent": 0, "received": 0, "via": "b"},
    ]);
    node
}

pub(crate) fn namespace(name: &str, workloads: u32) -> Value {
    json!({
        "kind": "Namespace",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1,
            "resourceVersion": "3", "creationTimestamp": ago(7300)},
        "spec": {}, "status": {"phase": "Active", "workloads": workloads}
    })
}

pub(crate) fn event(
    id: &str,
    kind: &str,
    reason: &str,
    about: (&str, &str),
    message: &str,
) -> Value {
    let namespace = if about.0 == "Node" { "" } else { "default" };
    json!({"id": id, "timestamp": ago(61), "type": kind, "reason": reason,
        "involvedObject": {"kind": about.0, "name": about.1, "namespace": namespace, "uid": "u"},
        "message": message, "count": 3, "firstTimestamp": ago(600)})
}

/// A volume on node `a`.
pub(crate) fn volume(workload: &str, name: &str, phase: &str) -> Value {
    let file = name.split(['.', '@']).next().unwrap();
    json!({
        "kind": "Volume",
        "metadata": {"name": name, "namespace": "default",
            "uid": format!("uid-{workload}-{name}"), "generation": 1, "resourceVersion": "12",
            "creationTimestamp": ago(130)},
        "spec": {"workload": workload, "volume": file, "reclaim": "Retain"},
        "status": {"phase": phase, "node": "a", "shared": false,
            "path": format!("/var/lib/kat/volumes/default/{workload}/{name}"), "usedBy": []}
    })
}

/// Makes the volume that of a slot, as with `perReplica`.
pub(crate) fn of_slot(mut volume: Value, slot: u32, node: &str) -> Value {
    volume["spec"]["slot"] = slot.into();
    volume["status"]["node"] = node.into();
    volume
}

/// Makes the volume a host path.
pub(crate) fn at_path(mut volume: Value, path: &str) -> Value {
    volume["spec"]["hostPath"] = path.into();
    volume["status"]["path"] = path.into();
    volume
}

/// The answer to an apply.
pub(crate) fn applied(outcome: &str, name: &str) -> Value {
    json!({"outcome": outcome, "kind": "Workload",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "generation": 2, "resourceVersion": "7"}})
}

/// The text of `workload.kat`.
pub(crate) fn workload_file(name: &str) -> String {
    format!(
        "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata:\n  name: {name}\nspec:\n  type: Service\n  source:\n    image: registry.lab:5000/{name}:1\n  replicas: 1\n  restartPolicy:\n    condition: Always\n  container:\n    name: app\n"
    )
}
