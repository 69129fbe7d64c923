//! `katcall status` over faults, the machine that is asked, and the caller: exit code and first line.

use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

/// Where `katcall status` runs, and as whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Any member's socket, or a token with the scope `admin` or `read`: all see the same. The
    /// leader answers, and without a leader a member.
    Reader,
    /// A deploy token of the namespace `default`.
    DeployToken,
    /// A token that the cluster does not know.
    UnknownToken,
    /// The socket of n4, a machine without the store.
    Worker,
}

const COLUMNS: [Asked; 3] = [Asked::Reader, Asked::DeployToken, Asked::Worker];

/// What `status` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Well,
    /// Exit code 0, and the first line says that a part is not visible.
    Visible,
    NotWell,
    /// Exit code 4 without a verdict: nothing answers.
    Unreachable,
}

use Verdict::{NotWell, Unreachable, Visible, Well};

/// A cluster of the members n1 to n3 and the machine n4 without the store, as its API shows it.
struct Scene {
    health: Value,
    nodes: Vec<Value>,
    workloads: Vec<Value>,
    instances: Vec<Value>,
    authorities: Vec<Value>,
    addresses: Vec<Value>,
    routes: Vec<Value>,
    /// The overview on n4.
    overview: Value,
    /// No machine answers.
    down: bool,
    /// The leader cannot list workloads.
    broken: bool,
}

impl Scene {
    fn well() -> Self {
        let member = |name, roles: &[&str]| {
            with_member(
                node(name, "Ready", roles),
                true,
                "Votes",
                "its etcd answers and has a vote",
            )
        };
        let mut n4 = node("n4", "Ready", &["worker"]);
        n4["status"]["conditions"] = json!([]);
        let nodes = vec![
            member("n1", &["leader", "etcd", "worker"]),
            member("n2", &["etcd", "worker"]),
            member("n3", &["etcd", "worker"]),
            n4,
        ];
        let of_overview =
            |name: &str| json!({"name": name, "phase": "Ready", "reason": "", "roles": ["worker"]});
        let servers = ["n1", "n2", "n3"];
        let machines = ["n1", "n2", "n3", "n4"].map(of_overview);
        let asked = servers.map(|name| json!({"name": name, "endpoints": ["192.0.2.1:9115"]}));
        Self {
            health: json!({"status": "ok", "leader": true}),
            nodes,
            workloads: vec![workload("web", "Running", [2, 2, 2])],
            instances: vec![
                instance("web-aaaaa", "Running"),
                on_n4(instance("web-bbbbb", "Running")),
            ],
            authorities: vec![authority("Settled", "", "2036-11-01T00:00:00Z")],
            addresses: vec![address(json!({"holder": "n2", "held": true}))],
            routes: vec![route(json!({"served": true, "reason": "Served",
                "machines": [{"node": "n1", "serves": true}]}))],
            overview: json!({
                "cluster": "home", "clusterUid": "u", "leader": "n1", "stale": false,
                "nodes": machines,
                "store": {"members": 3, "voting": 3, "healthy": 3, "quorum": true, "reasons": []},
                "relay": {"node": "n4", "asOf": ago(2), "asked": asked},
            }),
            down: false,
            broken: false,
        }
    }

    fn node(&mut self, name: &str) -> &mut Value {
        let mut nodes = self.nodes.iter_mut();
        nodes.find(|node| node["metadata"]["name"] == name).unwrap()
    }

    /// A condition of a machine; the overview of other machines has none.
    fn condition(&mut self, name: &str, kind: &str, status: bool, reason: &str) {
        let condition = json!({"type": kind, "status": status, "reason": reason,
            "message": "the words of it", "since": ago(300)});
        let conditions = &mut self.node(name)["status"]["conditions"];
        conditions.as_array_mut().unwrap().push(condition);
    }

    /// The member of etcd on this machine has no vote, or does not answer.
    fn member(&mut self, name: &str, reason: &str, since: String) {
        let conditions = self.node(name)["status"]["conditions"].as_array_mut();
        let mut conditions = conditions.unwrap().iter_mut();
        let member = conditions.find(|one| one["type"] == "EtcdMember").unwrap();
        member["status"] = false.into();
        member["reason"] = reason.into();
        member["message"] = "the words of it".into();
        member["since"] = since.into();
    }

    /// The machine has asked another one over the overlay for this long, and got no answer.
    fn unanswered(&mut self, name: &str, other: &str, seconds: u32) {
        let peer = json!({"name": other, "endpoint": "192.0.2.7:51820", "connected": false,
            "sent": 9000, "received": 0, "unansweredSeconds": seconds});
        let peers = &mut self.node(name)["status"]["peers"];
        match peers.as_array_mut() {
            Some(peers) => peers.push(peer),
            None => *peers = json!([peer]),
        }
    }

    fn phase(&mut self, name: &str, phase: &str, reason: &str) {
        let status = &mut self.node(name)["status"];
        status["phase"] = phase.into();
        status["reason"] = reason.into();
        let nodes = self.overview["nodes"].as_array_mut().unwrap();
        for node in nodes.iter_mut().filter(|node| node["name"] == name) {
            node["phase"] = phase.into();
            node["reason"] = reason.into();
        }
    }

    /// Another workload, in this phase for this many seconds.
    fn workload(&mut self, phase: &str, reason: &str, seconds: i64) {
        let mut item = workload("db", phase, [1, 0, 0]);
        item["status"]["conditions"] = json!([{"type": "Available", "status": false,
            "reason": reason, "message": "the words of it", "since": ago(seconds)}]);
        self.workloads.push(item);
    }

    /// A condition of the running workload.
    fn workload_condition(&mut self, kind: &str, status: bool, reason: &str, seconds: i64) {
        let condition = json!({"type": kind, "status": status, "reason": reason,
            "message": "the words of it", "since": ago(seconds)});
        let conditions = &mut self.workloads[0]["status"]["conditions"];
        conditions.as_array_mut().unwrap().push(condition);
    }

    fn instance(&mut self, phase: &str, reason: &str, seconds: i64) {
        let mut item = on_n4(troubled(instance("db-ccccc", phase), reason, "the words"));
        item["status"]["since"] = ago(seconds).into();
        self.instances.push(item);
    }

    /// No machine that holds the store answers n4.
    fn silent(&mut self, why: &str) {
        self.overview["relay"]["silentSince"] = ago(90).into();
        for server in self.overview["relay"]["asked"].as_array_mut().unwrap() {
            server["error"] = why.into();
        }
    }

    /// The API as this caller sees it.
    fn fake(&self, asked: Asked) -> Fake {
        let fake = Fake::start();
        fake.instead("GET /healthz", 200, self.health.clone());
        fake.reply("GET /version", 200, json!({"version": "0.1.0"}));
        let refuse = |paths: &[&str], status, word| {
            for path in paths {
                let body = error(word, "the caller may not do this");
                fake.reply(&format!("GET /v1alpha1/{path}"), status, body);
            }
        };
        let configuration = || {
            let body = json!({"metadata": {"name": "home"}, "spec": {}});
            fake.reply("GET /v1alpha1/config/cluster", 200, body);
        };
        let whole = [
            "nodes",
            "workloads",
            "instances",
            "authorities",
            "virtual-addresses",
            "routes",
            "events",
        ];
        match asked {
            Asked::Reader => {
                configuration();
                fake.list("/v1alpha1/nodes", &self.nodes);
                match self.broken {
                    true => refuse(&["workloads"], 500, "Internal"),
                    false => fake.list("/v1alpha1/workloads", &self.workloads),
                }
                fake.list("/v1alpha1/instances", &self.instances);
                fake.list("/v1alpha1/authorities", &self.authorities);
                fake.list("/v1alpha1/virtual-addresses", &self.addresses);
                fake.list("/v1alpha1/routes", &self.routes);
                fake.list("/v1alpha1/events", &[]);
            }
            Asked::DeployToken => {
                refuse(&whole, 403, "Forbidden");
                refuse(&["config/cluster", "overview"], 403, "Forbidden");
                match self.broken {
                    true => refuse(&["n/default/workloads"], 500, "Internal"),
                    false => fake.list(WORKLOADS, &self.workloads),
                }
                fake.list(INSTANCES, &self.instances);
                fake.list("/v1alpha1/n/default/routes", &self.routes);
            }
            Asked::UnknownToken => {
                refuse(&whole, 401, "Unauthorized");
                refuse(&["config/cluster", "overview"], 401, "Unauthorized");
            }
            Asked::Worker => {
                let silent = !self.overview["relay"]["silentSince"].is_null();
                let nodes: Vec<Value> = self.nodes.iter().map(|node| shown(node, silent)).collect();
                fake.list("/v1alpha1/nodes", &nodes);
                let here = |item: &&Value| item["status"]["node"] == "n4";
                let here: Vec<Value> = self.instances.iter().filter(here).cloned().collect();
                fake.list("/v1alpha1/instances", &here);
                let body = self.overview.clone();
                fake.reply("GET /v1alpha1/overview", 200, body);
                let refused = [
                    "workloads",
                    "events",
                    "config/cluster",
                    "authorities",
                    "virtual-addresses",
                    "routes",
                ];
                refuse(&refused, 403, "Forbidden");
                fake.instead(
                    "GET /healthz",
                    200,
                    json!({"status": "ok", "leader": false}),
                );
            }
        }
        fake
    }
}

/// A virtual address with this status.
fn address(status: Value) -> Value {
    json!({"kind": "VirtualAddress", "metadata": {"name": "192.168.1.9"},
        "spec": {"address": "192.168.1.9/24", "interface": "auto", "onLeaderLoss": "keep"},
        "status": status})
}

/// A route of the running workload with this status.
fn route(status: Value) -> Value {
    json!({"kind": "Route", "metadata": {"name": "shop.example/", "namespace": "default"},
        "spec": {"workload": "web", "host": "shop.example", "path": "/", "to": "port 8080",
            "issuer": "internal"},
        "status": status})
}

/// A route that no machine serves for this reason, though n1 has to serve routes.
fn unserved(reason: &str) -> Value {
    route(
        json!({"served": false, "reason": reason, "message": "the words of it",
        "machines": [{"node": "n1", "serves": false}]}),
    )
}

/// A machine as n4 shows it: of others, what the overview has.
fn shown(node: &Value, silent: bool) -> Value {
    let mut node = node.clone();
    if node["metadata"]["name"] == "n4" {
        return node;
    }
    let mut conditions = vec![json!({"type": "OverviewOnly", "status": true, "reason": "",
        "message": "n4 does not hold the cluster's store", "since": ""})];
    if silent {
        node["status"]["phase"] = "NotReady".into();
        node["status"]["roles"] = json!(["etcd", "worker"]);
        conditions.push(
            json!({"type": "StoreSilent", "status": true, "reason": "Unconfirmed",
            "message": "no machine that holds the store answers", "since": ago(90)}),
        );
    }
    node["status"]["conditions"] = Value::Array(conditions);
    node["status"]["peers"] = json!([]);
    node["status"]["lastHeartbeat"] = Value::Null;
    node["metadata"]["creationTimestamp"] = "".into();
    node
}

fn on_n4(mut instance: Value) -> Value {
    instance["status"]["node"] = "n4".into();
    instance
}

fn authority(phase: &str, since: &str, expires: &str) -> Value {
    json!({"name": "cluster-ca", "phase": phase, "message": "the words of it",
        "replacementSince": since, "notAfter": expires, "certificates": []})
}

/// A fault, and what is said of it in each of [`COLUMNS`].
type Row = (&'static str, fn(&mut Scene), [Verdict; 3]);

/// A problem that everybody who may read workloads sees.
const OF_WORKLOAD: [Verdict; 3] = [NotWell, NotWell, Visible];
/// A problem of an instance on n4.
const OF_INSTANCE: [Verdict; 3] = [NotWell; 3];
/// A problem that only the whole cluster's readers see.
const OF_CLUSTER: [Verdict; 3] = [NotWell, Visible, Visible];
/// A problem of the whole cluster that a machine without the store sees too.
const OF_MACHINE: [Verdict; 3] = [NotWell, Visible, NotWell];
/// A problem that `/healthz` shows to every caller of a member.
const OF_HEALTH: [Verdict; 3] = [NotWell, NotWell, Visible];
const WELL: [Verdict; 3] = [Well, Visible, Visible];

const TABLE: &[Row] = &[
    ("all is well", |_| {}, WELL),
    // Workloads.
    (
        "a workload waits for a volume on a deleted machine",
        |scene| scene.workload("Pending", "Unschedulable", 120),
        OF_WORKLOAD,
    ),
    (
        "a workload waits for a place since a moment ago",
        |scene| scene.workload("Pending", "Unschedulable", 10),
        WELL,
    ),
    (
        "a secret of a workload is missing",
        |scene| scene.workload("Pending", "SecretMissing", 1),
        OF_WORKLOAD,
    ),
    (
        "the data of a workload moves to another machine",
        |scene| scene.workload("Pending", "VolumeMoving", 7200),
        WELL,
    ),
    (
        "the disk to which the data of a workload moves is full",
        |scene| scene.workload("Pending", "VolumeMoveFailing", 1),
        OF_WORKLOAD,
    ),
    (
        "a workload's rollout is Stalled",
        |scene| scene.workload("Stalled", "ProgressDeadlineExceeded", 1),
        OF_WORKLOAD,
    ),
    (
        "a workload is Degraded",
        |scene| scene.workload("Degraded", "CrashLoop", 1),
        OF_WORKLOAD,
    ),
    (
        "a workload is Degraded for a reason of a newer version",
        |scene| scene.workload("Degraded", "OfANewerVersion", 1),
        OF_WORKLOAD,
    ),
    (
        "a person has paused a workload's rollout",
        |scene| scene.workload("Paused", "Paused", 86_400),
        WELL,
    ),
    (
        "a person has stopped a workload",
        |scene| scene.workload("Stopped", "Stopped", 86_400),
        WELL,
    ),
    (
        "the instances of a stopped workload still stop",
        |scene| {
            scene.workload("Progressing", "Stopped", 100);
            scene.instance("Stopping", "ConnectionDraining", 20);
        },
        WELL,
    ),
    (
        "a workload progresses normally",
        |scene| {
            scene.workload("Progressing", "Progressing", 100);
            scene.instance("Scheduled", "WaitingForAgent", 1);
            scene.instance("Starting", "", 20);
        },
        WELL,
    ),
    (
        "a workload's first instance runs its init container",
        |scene| {
            scene.workload("Degraded", "InitContainerRunning", 100);
            scene.instance("Starting", "InitContainerRunning", 100);
        },
        WELL,
    ),
    (
        "a workload is deleted, and its machines stop it",
        |scene| scene.workload("Deleting", "Deleting", 30),
        WELL,
    ),
    (
        "a deletion does not end",
        |scene| scene.workload("Deleting", "Deleting", 700),
        OF_WORKLOAD,
    ),
    (
        "a drain cannot move a workload",
        |scene| scene.workload_condition("DrainBlocked", true, "Unschedulable", 120),
        OF_WORKLOAD,
    ),
    (
        "no service address is free",
        |scene| scene.workload_condition("ServiceAddress", false, "NoneFree", 1),
        OF_WORKLOAD,
    ),
    (
        "an image is not pinned, and a rollout went back by itself",
        |scene| {
            scene.workload_condition("ImagePinned", false, "ImageNotPinned", 900);
            scene.workload_condition("RolledBack", true, "AutoRollback", 900);
        },
        WELL,
    ),
    // Jobs and start order.
    (
        "a Job waits for its next time",
        |scene| scene.workload("Scheduled", "AwaitsSchedule", 86_400),
        WELL,
    ),
    (
        "a run of a Job is active",
        |scene| scene.workload("Active", "RunActive", 86_400),
        WELL,
    ),
    (
        "the last run of a Job failed",
        |scene| scene.workload("Failed", "BackoffLimitExceeded", 86_400),
        OF_WORKLOAD,
    ),
    (
        "a person has suspended a Job",
        |scene| scene.workload("Stopped", "JobSuspended", 86_400),
        WELL,
    ),
    (
        "a machine cannot read the schedule that it keeps",
        |scene| scene.instance("Scheduled", "ScheduleUnreadable", 1),
        OF_INSTANCE,
    ),
    (
        "a workload waits for one that it starts after",
        |scene| scene.workload("Pending", "WaitsForDependency", 900),
        WELL,
    ),
    (
        "the Job after which a workload starts has failed",
        |scene| scene.workload("Pending", "DependencyFailed", 1),
        OF_WORKLOAD,
    ),
    (
        "no machine matches a Job that runs on each machine",
        |scene| scene.workload("Failed", "NoMatchingMachine", 1),
        OF_WORKLOAD,
    ),
    // Routes.
    (
        "the host of a route belongs to another workload",
        |scene| scene.routes = vec![unserved("HostTaken")],
        OF_WORKLOAD,
    ),
    (
        "the certificate of a route's host is being ordered",
        |scene| scene.routes = vec![unserved("CertificatePending")],
        WELL,
    ),
    (
        "the certificate of a route's host cannot be ordered",
        |scene| scene.routes = vec![unserved("CertificateFailed")],
        OF_WORKLOAD,
    ),
    (
        "the setting ingress.enabled is false",
        |scene| scene.routes = vec![unserved("IngressDisabled")],
        WELL,
    ),
    (
        "machines are given a new route",
        |scene| scene.routes = vec![unserved("NoIngressMachine")],
        WELL,
    ),
    (
        "no machine may serve routes",
        |scene| {
            scene.routes = vec![unserved("NoIngressMachine")];
            scene.routes[0]["status"]["machines"] = json!([]);
        },
        OF_WORKLOAD,
    ),
    (
        "one of the machines that serve routes refuses one",
        |scene| {
            scene.routes = vec![route(
                json!({"served": true, "reason": "Served", "machines": [
                    {"node": "n1", "serves": true},
                    {"node": "n2", "serves": false, "reason": "RouteRefused", "message": "the words"},
                ]}),
            )];
        },
        OF_WORKLOAD,
    ),
    (
        "a certificate that is still valid could not be renewed",
        |scene| {
            scene.routes = vec![route(json!({"served": true, "reason": "Served",
                "message": "the present certificate is served: the words of it"}))];
        },
        WELL,
    ),
    // Instances.
    (
        "a program crashes",
        |scene| scene.instance("Restarting", "CrashLoop", 1),
        OF_INSTANCE,
    ),
    (
        "an instance is not healthy",
        |scene| {
            scene.instance("Running", "Unhealthy", 1);
            let last = scene.instances.last_mut().unwrap();
            last["status"]["health"] = "unhealthy".into();
        },
        OF_INSTANCE,
    ),
    (
        "an instance was stopped since a disk ran full",
        |scene| scene.instance("Scheduled", "Evicted", 1),
        OF_INSTANCE,
    ),
    (
        "the disk of an instance's volume does not answer",
        |scene| scene.instance("Scheduled", "DiskNotAnswering", 1),
        OF_INSTANCE,
    ),
    (
        "an instance does not stop",
        |scene| scene.instance("Stopping", "StopNotEnding", 1),
        OF_INSTANCE,
    ),
    (
        "an agent does not take an instance up",
        |scene| scene.instance("Scheduled", "WaitingForAgent", 90),
        OF_INSTANCE,
    ),
    (
        "a program of the machine listens on an instance's host port",
        |scene| {
            scene.instances[1]["status"]["conditions"] = json!([{"type": "HostPortInUse",
                "status": true, "reason": "HostPortInUse", "message": "port 80", "since": ago(5)}]);
        },
        OF_INSTANCE,
    ),
    (
        "the GPU of an instance is gone",
        |scene| scene.instance("Scheduled", "GpuMissing", 1),
        OF_INSTANCE,
    ),
    (
        "an image does not exist",
        |scene| scene.instance("Scheduled", "ImageNotFound", 1),
        OF_INSTANCE,
    ),
    (
        "Podman cannot start an instance",
        |scene| scene.instance("Starting", "CannotStart", 1),
        OF_INSTANCE,
    ),
    // Machines.
    (
        "a machine is NotReady",
        |scene| scene.phase("n3", "NotReady", "NoHeartbeat"),
        OF_MACHINE,
    ),
    (
        "most machines do not report",
        |scene| {
            scene.phase("n2", "NotReady", "MostMachinesLost");
            scene.phase("n3", "NotReady", "MostMachinesLost");
        },
        OF_MACHINE,
    ),
    (
        "a machine that reports does not answer over the overlay",
        |scene| scene.condition("n3", "OverlayReachable", false, "OverlayDown"),
        OF_CLUSTER,
    ),
    (
        "kat-net of a machine does not run",
        |scene| scene.condition("n3", "DataPathRuns", false, "DataPathDown"),
        OF_CLUSTER,
    ),
    (
        "a machine that reports does not act on its list of assignments",
        |scene| {
            scene.condition("n3", "AssignmentsApplied", false, "AssignmentsNotApplied");
        },
        OF_CLUSTER,
    ),
    (
        "two machines do not answer each other over the overlay",
        |scene| {
            scene.unanswered("n1", "n2", 45);
            scene.unanswered("n2", "n1", 45);
        },
        OF_CLUSTER,
    ),
    (
        "a machine has not answered another one over the overlay for a moment",
        |scene| scene.unanswered("n1", "n2", 20),
        WELL,
    ),
    (
        "the asked worker gets no answer of another machine over the overlay",
        |scene| scene.unanswered("n4", "n1", 45),
        [NotWell, Visible, NotWell],
    ),
    (
        "the asked worker does not answer over the overlay",
        |scene| scene.condition("n4", "OverlayReachable", false, "OverlayDown"),
        OF_MACHINE,
    ),
    (
        "a machine is short of disk space",
        |scene| scene.condition("n3", "DiskPressure", true, "DiskPressure"),
        OF_CLUSTER,
    ),
    (
        "the asked worker is short of disk space",
        |scene| scene.condition("n4", "DiskPressure", true, "DiskPressure"),
        OF_MACHINE,
    ),
    (
        "a machine cannot write the network's files",
        |scene| scene.condition("n3", "FilesWritten", false, "FilesNotWritten"),
        OF_CLUSTER,
    ),
    (
        "the asked worker cannot write the network's files",
        |scene| scene.condition("n4", "FilesWritten", false, "FilesNotWritten"),
        OF_MACHINE,
    ),
    (
        "a machine refuses the epoch of the store",
        |scene| scene.condition("n3", "StoreEpochRefused", true, "Unconfirmed"),
        OF_CLUSTER,
    ),
    (
        "the asked worker refuses the epoch of the store",
        |scene| scene.condition("n4", "StoreEpochRefused", true, "Unconfirmed"),
        OF_MACHINE,
    ),
    (
        "a machine reports an address that another one has",
        |scene| scene.condition("n3", "AddressesAccepted", false, "AddressTaken"),
        OF_CLUSTER,
    ),
    (
        "the data of a deleted volume cannot be removed",
        |scene| scene.condition("n3", "VolumesRemoved", false, "VolumeNotRemoved"),
        OF_CLUSTER,
    ),
    (
        "a disk that instances of a machine use does not answer",
        |scene| scene.condition("n3", "DisksAnswer", false, "DiskNotAnswering"),
        OF_CLUSTER,
    ),
    (
        "a disk that instances of the asked worker use does not answer",
        |scene| scene.condition("n4", "DisksAnswer", false, "DiskNotAnswering"),
        OF_MACHINE,
    ),
    (
        "another program has a port of kat-ingress on a machine",
        |scene| scene.condition("n3", "RoutesServed", false, "IngressPortInUse"),
        OF_CLUSTER,
    ),
    (
        "kat-ingress of the asked worker does not serve its routes",
        |scene| scene.condition("n4", "RoutesServed", false, "IngressFailed"),
        OF_MACHINE,
    ),
    (
        "another host has a virtual address that a machine is to hold",
        |scene| scene.condition("n3", "VirtualAddressesHeld", false, "VirtualAddressTaken"),
        OF_CLUSTER,
    ),
    (
        "the kernel of the asked worker refuses a virtual address",
        |scene| scene.condition("n4", "VirtualAddressesHeld", false, "VirtualAddressRefused"),
        OF_MACHINE,
    ),
    (
        "no machine can hold a virtual address",
        |scene| {
            scene.addresses = vec![address(json!({"held": false, "reason": "NoAddressHolder",
                "message": "no machine can hold it"}))];
        },
        OF_CLUSTER,
    ),
    (
        "a virtual address is on its way to another machine",
        |scene| scene.addresses = vec![address(json!({"holder": "n3", "held": false}))],
        WELL,
    ),
    (
        "a machine does not isolate namespaces",
        |scene| scene.condition("n3", "IsolationEnforced", false, "IsolationNotEnforced"),
        OF_CLUSTER,
    ),
    (
        "the asked worker does not isolate namespaces",
        |scene| scene.condition("n4", "IsolationEnforced", false, "IsolationNotEnforced"),
        OF_MACHINE,
    ),
    (
        "a machine does not enforce limits",
        |scene| scene.condition("n3", "LimitsEnforced", false, "ControllerMissing"),
        WELL,
    ),
    (
        "a machine has a CDI spec that it does not use",
        |scene| scene.condition("n3", "GpuSpecsRead", false, "CdiSpecUnusable"),
        WELL,
    ),
    (
        "a machine has an earlier version of KAT",
        |scene| scene.condition("n3", "ReadsFiles", false, "ReaderTooOld"),
        WELL,
    ),
    (
        "a person drains a machine",
        |scene| scene.phase("n3", "Draining", "Draining"),
        WELL,
    ),
    (
        "a machine joins",
        |scene| {
            scene.phase("n3", "Joining", "");
            scene.node("n3")["metadata"]["creationTimestamp"] = ago(30).into();
        },
        WELL,
    ),
    (
        "a machine has joined long ago and never reported",
        |scene| scene.phase("n3", "Joining", ""),
        OF_CLUSTER,
    ),
    (
        "the asked machine was deleted while it was cut off",
        |scene| {
            scene.nodes.retain(|node| node["metadata"]["name"] != "n4");
            scene.instances.truncate(1);
            let mut own = node("n4", "Ready", &["worker"]);
            own["status"]["conditions"] = json!([]);
            scene.nodes.push(own);
            scene.silent("the certificate is for a key by which the cluster does not know it");
        },
        [Well, Visible, NotWell],
    ),
    // The store, the leader and the authorities.
    (
        "etcd has known holes",
        |scene| {
            scene.health["store"] = json!({"fileBytes": 45_056, "usedBytes": 45_056,
                "versions": {"n1": "3.5.16"}});
            scene.overview["store"]["reasons"] = json!(["EtcdHasKnownHoles"]);
        },
        WELL,
    ),
    (
        "a member of etcd does not answer",
        |scene| {
            let n3 = node("n3", "Ready", &["etcd", "worker"]);
            let silent = with_member(n3, false, "NoAnswer", "its etcd does not answer");
            *scene.node("n3") = silent;
            scene.overview["store"]["healthy"] = 2.into();
        },
        OF_MACHINE,
    ),
    (
        "the data of a member of etcd is gone",
        |scene| {
            scene.member("n3", "NoAnswer", String::new());
            scene.condition("n3", "EtcdDataLost", true, "Member8e9e05c52164694d");
            scene.overview["store"]["healthy"] = 2.into();
        },
        OF_MACHINE,
    ),
    (
        "a machine whose data of etcd is gone becomes a new member",
        |scene| {
            scene.member("n3", "CatchesUp", ago(30));
            scene.condition("n3", "EtcdDataLost", true, "Member8e9e05c52164694d");
            scene.overview["store"]["voting"] = 2.into();
        },
        WELL,
    ),
    (
        "a member of etcd starts",
        |scene| {
            scene.member("n3", "Starts", ago(500));
            scene.overview["store"]["voting"] = 2.into();
            scene.overview["store"]["healthy"] = 2.into();
        },
        // The overview has only the number of members that do not answer.
        [Well, Visible, NotWell],
    ),
    (
        "a member of etcd does not start",
        |scene| {
            scene.member("n3", "Starts", ago(600));
            scene.overview["store"]["voting"] = 2.into();
            scene.overview["store"]["healthy"] = 2.into();
        },
        OF_MACHINE,
    ),
    (
        "a member of etcd catches up",
        |scene| {
            scene.member("n3", "CatchesUp", ago(500));
            scene.overview["store"]["voting"] = 2.into();
        },
        WELL,
    ),
    (
        "a member of etcd does not get its vote",
        |scene| {
            scene.member("n3", "CatchesUp", ago(600));
            scene.overview["store"]["voting"] = 2.into();
        },
        OF_CLUSTER,
    ),
    (
        "a leader of an earlier version does not say for how long a member of etcd has had no vote",
        |scene| {
            scene.member("n3", "CatchesUp", String::new());
            scene.overview["store"]["voting"] = 2.into();
        },
        WELL,
    ),
    (
        "the store is full",
        |scene| {
            scene.health["trouble"] = "the store is full".into();
            scene.overview["store"]["reasons"] = json!(["StoreFull"]);
        },
        [NotWell; 3],
    ),
    (
        "no machine leads",
        |scene| {
            scene.health = json!({"status": "ok", "leader": false, "stale": true});
            scene.node("n1")["status"]["roles"] = json!(["etcd", "worker"]);
            scene.overview["leader"] = Value::Null;
            scene.overview["stale"] = true.into();
        },
        [NotWell; 3],
    ),
    (
        "no machine that holds the store answers the worker",
        |scene| scene.silent("connection refused"),
        [Well, Visible, NotWell],
    ),
    (
        "the leader cannot write a workload",
        |scene| scene.health["planning"] = json!(["NotWritable: workload default/big"]),
        OF_HEALTH,
    ),
    (
        "backups fail",
        |scene| scene.health["backup"] = json!({"node": "n1", "failing": true}),
        OF_HEALTH,
    ),
    (
        "the last backup is old",
        |scene| {
            scene.health["backup"] =
                json!({"node": "n1", "last": ago(9000), "failing": false, "overdue": true});
        },
        OF_HEALTH,
    ),
    (
        "an authority is being replaced",
        |scene| {
            scene.authorities = vec![authority("Trust", &ago(60), "2036-11-01T00:00:00Z")];
        },
        WELL,
    ),
    (
        "the replacement of an authority does not end",
        |scene| {
            scene.authorities = vec![authority("Trust", &ago(700), "2036-11-01T00:00:00Z")];
        },
        OF_CLUSTER,
    ),
    (
        "a machine's certificate was not renewed",
        |scene| {
            scene.authorities[0]["certificates"] = json!([{"name": "n3", "expires": ago(-86_400)}]);
        },
        OF_CLUSTER,
    ),
    (
        "an authority has expired",
        |scene| scene.authorities = vec![authority("Settled", "", &ago(60))],
        OF_CLUSTER,
    ),
    (
        "the API fails to list workloads",
        |scene| scene.broken = true,
        OF_WORKLOAD,
    ),
    (
        "nothing answers",
        |scene| scene.down = true,
        [Unreachable; 3],
    ),
];

/// Exit code and first line of stdout.
fn expected(verdict: Verdict, asked: Asked) -> (&'static str, Option<String>) {
    let cluster = match asked {
        // The name is in the cluster's configuration, which a deploy token may not read.
        Asked::DeployToken => "the cluster",
        _ => "cluster `home`",
    };
    match verdict {
        Well => ("exit: 0", Some(format!("{cluster} is well"))),
        Visible => {
            let line = format!("{cluster} is well as far as this caller can see");
            ("exit: 0", Some(line))
        }
        NotWell => ("exit: 1", Some(format!("{cluster} is not well"))),
        Unreachable => ("exit: 4", None),
    }
}

#[test]
fn status_is_1_for_what_waits_for_a_person_and_0_for_what_is_not_visible() {
    let mut wrong = Vec::new();
    for (fault, make, verdicts) in TABLE {
        for (asked, verdict) in COLUMNS.into_iter().zip(*verdicts) {
            let mut scene = Scene::well();
            make(&mut scene);
            let fake = scene.fake(asked);
            let program = match scene.down {
                true => Program::alone(),
                false => Program::of(&fake),
            };
            let text = program.run(&["status"]);
            let mut lines = text.lines();
            let exit = lines.next().unwrap();
            let first = match lines.next() {
                Some("--- stdout") => lines.next().map(str::to_owned),
                _ => None,
            };
            let wanted = expected(verdict, asked);
            if (exit, first.clone()) != wanted {
                wrong.push(format!(
                    "{fault}, asked by {asked:?}:\n  wanted {wanted:?}\n  got {:?}\n{text}",
                    (exit, first)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_machine_that_others_do_not_reach_over_the_overlay_is_named_once() {
    let mut scene = Scene::well();
    for other in ["n1", "n3"] {
        scene.unanswered(other, "n2", 40);
    }
    scene.unanswered("n2", "n1", 70);
    // The leader's judgement says it already.
    scene.unanswered("n1", "n4", 90);
    scene.condition("n4", "OverlayReachable", false, "OverlayDown");
    let text = Program::of(&scene.fake(Asked::Reader)).run(&["status"]);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("over the overlay"))
        .map(str::trim)
        .collect();
    assert_eq!(
        lines,
        [
            "node n2 has not answered n1, n3 over the overlay for 40 s, so connections to it may hang: is WireGuard's port open between them, and does kat-net run on n2?",
            "node n4 is unreachable over the overlay: the words of it",
        ],
        "{text}"
    );
}

#[test]
fn a_member_of_etcd_that_gets_no_vote_is_named_with_what_says_more() {
    let mut scene = Scene::well();
    scene.member("n2", "Starts", ago(700));
    scene.member("n3", "CatchesUp", ago(7300));
    let text = Program::of(&scene.fake(Asked::Reader)).run(&["status"]);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("etcd "))
        .collect();
    assert_eq!(
        lines,
        [
            "etcd        1 of 3 members well",
            "etcd of n2: the words of it; it has had no vote for 11m: `systemctl status kat-etcd kat-agent` on n2 says more",
            "etcd of n3: the words of it; it has had no vote for 2h: `journalctl -u kat-agent` on the machine that leads says what it waits for",
        ],
        "{text}"
    );
}

#[test]
fn a_route_that_is_not_served_is_named_with_its_workload_and_its_machine() {
    let mut scene = Scene::well();
    scene.routes.push(unserved("HostTaken"));
    let mut outside = unserved("TlsNotReady");
    outside["metadata"]["name"] = "wiki.example/docs".into();
    outside["spec"]["workload"] = "".into();
    scene.routes.push(outside);
    scene.routes[0]["status"]["machines"] =
        json!([{"node": "n3", "reason": "RouteRefused", "message": "no such key"}]);
    // The condition of n3 has said so.
    scene.routes.push(unserved("IngressFailed"));
    let text = Program::of(&scene.fake(Asked::Reader)).run(&["status"]);
    let mut lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("route "))
        .collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "route shop.example/ of workload default/web is not served on n3: RouteRefused: no such key",
            "route shop.example/ of workload default/web is not served: HostTaken: the words of it",
            "route wiki.example/docs is not served: TlsNotReady: the words of it",
        ],
        "{text}"
    );
}

#[test]
fn a_deploy_token_sees_the_workloads_of_its_namespace() {
    let scene = Scene::well();
    let fake = scene.fake(Asked::DeployToken);
    let text = Program::of(&fake).run(&["status"]);
    for line in [
        "nodes       not visible to this caller",
        "workloads   1 of 1 running as written in namespace default",
        "instances   2 of 2 running in namespace default",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
    assert!(!text.contains("may not do this"), "{text}");

    // The size of the store is no secret, and is shown beside the members that are not visible.
    let mut scene = Scene::well();
    scene.health["store"] = json!({"fileBytes": 2_097_152, "usedBytes": 1_048_576});
    let text = Program::of(&scene.fake(Asked::DeployToken)).run(&["status"]);
    let etcd = "etcd        members not visible to this caller; 1.0Mi in use, largest file 2.0Mi";
    assert!(text.lines().any(|one| one == etcd), "{text}");

    // It does not see the condition of the machine whose kat-ingress fails.
    let mut scene = Scene::well();
    scene.routes.push(unserved("IngressFailed"));
    let text = Program::of(&scene.fake(Asked::DeployToken)).run(&["status"]);
    let route =
        "route shop.example/ of workload default/web is not served: IngressFailed: the words of it";
    assert!(text.lines().any(|one| one.trim() == route), "{text}");
}

#[test]
fn a_caller_that_the_cluster_does_not_know_gets_the_error_and_no_verdict() {
    for make in [
        |_: &mut Scene| {},
        |scene: &mut Scene| {
            scene.phase("n3", "NotReady", "NoHeartbeat");
        },
    ] {
        let mut scene = Scene::well();
        make(&mut scene);
        let text = Program::of(&scene.fake(Asked::UnknownToken)).run(&["status"]);
        assert!(text.starts_with("exit: 1\n--- stderr\nerror: "), "{text}");
    }
}
