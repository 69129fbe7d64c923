//! Every accepted field of a workload changes a unit or a decision.
//!
//! The test stores the files as an apply does, plans them with the reports of several machines,
//! plans again after the loss of the chosen machine, and renders the assignments. It compares the
//! visible results (instances, their machines and units, reasons to wait) with and without the
//! field. The assignment and the template's hash are left out, because they contain every field.

use std::{collections::BTreeMap, fmt::Write, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    documents::{another, around, carried, decode, must, remove, set},
    *,
};
use kat_bundle::fields::{self, Field, FieldStatus};
use kat_leader::SnapshotBuilder;
use kat_plan::{SOURCES_DATA_PATH, plan};
use kat_render::{RenderSettings, Renderer};
use kat_store::mirror::MirrorEntries;
use kat_types::{
    api::{InstancePhase, InstanceReport, NodeReport, NodeResources, Taint},
    assignment::{
        ASSIGNMENT_SCHEMA, Assignment, DesiredMeta, DesiredRun, FIRST_MACHINE_SLOT, WorkloadUser,
    },
    machine::gpu::GpuDevice,
    resource::{
        Bytes, Container, HostPort, MilliCpu, OnPartition, Port, Protocol, ResourceList,
        RestartCondition, RestartPolicy, TaintEffect, WorkloadType,
    },
    services::ServiceBalance,
    store::{
        keys,
        records::{NamespaceRecord, NodeRegistration, WorkloadMeta},
        snapshot::{ObservedReports, ReportedNode},
        transaction::{KeyValue, WriteOperation},
    },
};

/// Fields on which neither a unit nor a decision depends, and where each of them is used.
const SHOWN_ONLY: [(&str, &str); 5] = [
    (
        "spec.ports[].name",
        "`describe`, and the workload's service address",
    ),
    (
        "spec.ports[].containerPort",
        "`describe`, and the workload's service address",
    ),
    (
        "spec.ports[].protocol",
        "`describe`, and the workload's service address",
    ),
    (
        "spec.ingress[].servicePortName",
        "another word for the number of the same port",
    ),
    (
        "spec.container.resources.requests.storage",
        "who is stopped when a disk runs full, which the agent measures",
    ),
];

/// A machine's labels, taint, CPU in thousandths and memory in MiB.
#[derive(Clone, Copy)]
struct Machine {
    labels: &'static [(&'static str, &'static str)],
    taint: Option<(&'static str, &'static str, TaintEffect)>,
    cpu: u64,
    memory: u64,
    /// Another workload that has an instance on the machine.
    runs: Option<&'static str>,
    /// CDI name and mebibytes of its GPU.
    gpu: Option<(&'static str, u64)>,
}

const PLAIN: Machine = Machine {
    labels: &[],
    taint: None,
    cpu: 4000,
    memory: 4096,
    runs: None,
    gpu: None,
};

/// Groups of machines. A workload is planned on each group.
fn worlds() -> Vec<Vec<Machine>> {
    let large = Machine {
        cpu: 8000,
        memory: 8192,
        ..PLAIN
    };
    // The name decides between equal machines, so both orders are tried.
    let both_orders = |one: Machine, other: Machine| [vec![one, other], vec![other, one]];
    let zone = Machine {
        labels: &[("zone", "a")],
        ..PLAIN
    };
    let mut worlds = vec![
        vec![PLAIN],
        vec![Machine {
            runs: Some("other-workload"),
            ..PLAIN
        }],
        vec![Machine {
            labels: &[("disk", "ssd")],
            ..PLAIN
        }],
        vec![Machine {
            gpu: Some(("amd.com/gpu=0", 2048)),
            ..PLAIN
        }],
    ];
    // The smaller machine is chosen only because it has the label of the spread.
    worlds.extend(both_orders(zone, large));
    for key in ["dedicated", "gpu"] {
        for value in ["", "db", "x"] {
            let taint = |effect| Machine {
                taint: Some((key, value, effect)),
                ..PLAIN
            };
            worlds.push(vec![taint(TaintEffect::NoSchedule)]);
            // The larger machine is chosen if the taint is tolerated.
            let large = Machine {
                cpu: 8000,
                memory: 8192,
                ..taint(TaintEffect::PreferNoSchedule)
            };
            worlds.extend(both_orders(PLAIN, large));
        }
    }
    for cpu in [50, 150, 500, 1500] {
        worlds.push(vec![Machine { cpu, ..PLAIN }]);
    }
    for memory in [16, 48, 100, 200] {
        worlds.push(vec![Machine { memory, ..PLAIN }]);
    }
    worlds
}

#[derive(Default)]
struct Store(MirrorEntries);

impl Store {
    fn put<T: Serialize>(&mut self, key: String, value: &T) {
        self.write(&WriteOperation::Put(
            key,
            serde_json::to_vec(value).unwrap(),
        ));
    }

    fn write(&mut self, operation: &WriteOperation) {
        match operation {
            WriteOperation::Put(key, value) => {
                let entry = KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                    mod_revision: 1,
                    create_revision: 1,
                };
                self.0.insert(key.as_str().into(), Arc::new(entry));
            }
            WriteOperation::Delete(key) => {
                self.0.remove(key.as_str());
            }
            WriteOperation::DeletePrefix(prefix) => {
                let kept = std::mem::take(&mut self.0).into_iter();
                let kept = kept.filter(|(key, _)| !key.starts_with(prefix));
                self.0 = kept.collect();
            }
        }
    }

    /// Writes the plan. Returns the units of new instances, and the statuses.
    fn planned(&mut self, observed: &ObservedReports) -> String {
        self.planned_at(observed, 0)
    }

    /// As `planned`, at a time in seconds.
    fn planned_at(&mut self, observed: &ObservedReports, seconds: i64) -> String {
        let snapshot = SnapshotBuilder::default().build(&self.0, 1);
        let now = Timestamp::from_second(seconds).unwrap() + observed.leading_for;
        let planned = plan(&snapshot, observed, now, 1);
        let mut shown = String::new();
        for operation in planned.changes.iter().flat_map(|change| &change.operations) {
            self.write(operation);
            let WriteOperation::Put(key, value) = operation else {
                continue;
            };
            if key.starts_with(keys::NODE_DESIRED) && key.contains("/instances/") {
                // The fields by which the agent decides, in addition to the units.
                let assignment: Assignment = serde_json::from_slice(value).unwrap();
                let Assignment {
                    on_partition,
                    health_check,
                    volumes,
                    machine_access,
                    ..
                } = &assignment;
                let drain = assignment.drain();
                let hosts = volumes.iter().map(|volume| &volume.definition.host_mount);
                let hosts: Vec<_> = hosts.collect();
                writeln!(
                    shown,
                    "{key} {on_partition:?} {health_check:?} {drain:?} {hosts:?} {machine_access:?}"
                )
                .unwrap();
                shown.push_str(&rendered(value));
            } else if key.starts_with(keys::WORKLOAD_STATUS)
                || key.starts_with(keys::VOLUMES)
                || key.ends_with("/base/meta")
                || key.ends_with("/base/access")
                || (key.starts_with(keys::NODE_DESIRED) && key.contains("/routes/"))
            {
                writeln!(shown, "{key} {}", String::from_utf8_lossy(value)).unwrap();
            } else if key.starts_with(keys::DNS) {
                writeln!(shown, "{key}").unwrap();
            } else if key.ends_with("/base/balance") {
                let balance: ServiceBalance = serde_json::from_slice(value).unwrap();
                writeln!(shown, "{key} {:?} {:?}", balance.sources, balance.ingress).unwrap();
            }
        }
        shown
    }
}

/// The result of a workload with these files on these machines.
fn outcome(files: &[SourceFile], machines: &[Machine]) -> String {
    let mut store = Store::default();
    store.put(
        keys::namespace("default"),
        &NamespaceRecord {
            schema: 1,
            uid: "default".to_owned(),
            labels: BTreeMap::new(),
            created: Timestamp::UNIX_EPOCH,
            deleting: false,
            quota: Default::default(),
            access: Default::default(),
            ingress_hosts: None,
            defaults: Default::default(),
        },
    );
    let mut reports = BTreeMap::new();
    for (number, machine) in machines.iter().enumerate() {
        let name = format!("n{number}");
        store.put(keys::registration(&name), &registration(&name, machine));
        let list = DesiredMeta {
            schema: 1,
            revision: 1,
            count: usize::from(machine.runs.is_some()),
            changed: None,
        };
        if let Some(workload) = machine.runs {
            let other = instance(workload);
            store.put(keys::desired_instance(&name, &other.instance), &other);
        }
        store.put(keys::desired_meta(&name), &list);
        let subnet = format!("10.100.{number}.0/24");
        store.write(&WriteOperation::Put(
            keys::network_node(&name, "subnet"),
            subnet.into_bytes(),
        ));
        reports.insert(name.clone(), report(&name, machine));
    }
    for file in files {
        let key = keys::manifest("default", "base", &file.name);
        store.write(&WriteOperation::Put(key, file.text.clone().into_bytes()));
    }
    let meta = WorkloadMeta {
        schema: 1,
        uid: "base".to_owned(),
        generation: 1,
        spec_hash: String::new(),
        template_hash: "same".to_owned(),
        index: 7,
        created: Timestamp::UNIX_EPOCH,
        updated: Timestamp::UNIX_EPOCH,
        deleting: false,
        deletes_volumes: false,
        paused: false,
        restarted: None,
        stopped: None,
        image: Default::default(),
    };
    store.put(keys::workload_meta("default", "base"), &meta);
    let mut observed = ObservedReports {
        leading_for: Duration::ZERO,
        reports,
    };
    let mut shown = store.planned(&observed);
    assert!(!shown.is_empty());
    let chosen = |name: &String| {
        let prefix = keys::desired_instance(name, "");
        store.0.keys().any(|key| key.starts_with(&prefix))
    };
    observed.reports.retain(|name, _| !chosen(name));
    observed.leading_for = Duration::from_secs(3600);
    shown.push_str(&store.planned(&observed));
    shown
}

/// The result of a rollout that replaces an earlier version and does not become healthy: at once,
/// after 400 s, and after a day. The earlier version has eight instances on one machine, or of a
/// DaemonService one on each of three machines.
fn rolled(files: &[SourceFile]) -> String {
    let mut store = Store::default();
    let large = Machine {
        cpu: 64_000,
        memory: 65_536,
        ..PLAIN
    };
    let is_daemon = files.iter().any(|file| file.text.contains("DaemonService"));
    let kind = match is_daemon {
        true => WorkloadType::DaemonService,
        false => WorkloadType::Service,
    };
    for file in files {
        for key in [
            keys::manifest("default", "base", &file.name),
            keys::archive_file("default", "base", 1, &file.name),
        ] {
            store.write(&WriteOperation::Put(key, file.text.clone().into_bytes()));
        }
    }
    let meta = json!({
        "schema": 1, "uid": "base", "generation": 2, "specHash": "", "templateHash": "new", "index": 7,
        "created": "2020-01-01T00:00:00Z", "updated": "2020-01-01T00:00:00Z",
    });
    store.put(keys::workload_meta("default", "base"), &meta);
    let earlier = json!({
        "schema": 1, "applied": "2020-01-01T00:00:00Z", "specHash": "other", "templateHash": "other",
    });
    store.put(keys::archive_meta("default", "base", 1), &earlier);
    let status = json!({"schema": 1, "good": [1]});
    store.put(keys::workload_status("default", "base"), &status);
    let mut reports = BTreeMap::new();
    let machines: u8 = if is_daemon { 3 } else { 1 };
    for machine in 0..machines {
        let name = format!("n{machine}");
        store.put(keys::registration(&name), &registration(&name, &large));
        let subnet = format!("10.100.{machine}.0/24");
        store.write(&WriteOperation::Put(
            keys::network_node(&name, "subnet"),
            subnet.into_bytes(),
        ));
        let slots = match is_daemon {
            true => {
                let slot = FIRST_MACHINE_SLOT + u32::from(machine);
                slot..slot + 1
            }
            false => 0..8,
        };
        let mut reported = report(&name, &large);
        let mut spoken = NodeReport::clone(&reported.report);
        for (last, slot) in (200..).zip(slots.clone()) {
            let id = format!("base-aaa{machine}{}", slot % 10);
            let old = Assignment {
                instance: id.clone(),
                slot,
                workload_type: kind,
                address: [10, 100, machine, last].into(),
                ..instance("base")
            };
            store.put(keys::desired_instance(&name, &id), &old);
            spoken.workload_instances.push(InstanceReport {
                instance_id: id,
                phase: InstancePhase::Running,
                ..InstanceReport::default()
            });
        }
        let list = DesiredMeta {
            schema: 1,
            revision: 1,
            count: slots.len(),
            changed: None,
        };
        store.put(keys::desired_meta(&name), &list);
        reported.report = Arc::new(spoken);
        reports.insert(name, reported);
    }
    let observed = ObservedReports {
        leading_for: Duration::from_secs(3600),
        reports,
    };
    let times = [0, 400, 86_500].into_iter();
    times.map(|at| store.planned_at(&observed, at)).collect()
}

/// An instance of another workload.
fn instance(workload: &str) -> Assignment {
    Assignment {
        schema: 1,
        instance: format!("{workload}-aaaaa"),
        namespace: "default".to_owned(),
        workload: workload.to_owned(),
        workload_uid: workload.to_owned(),
        workload_type: WorkloadType::Service,
        labels: BTreeMap::new(),
        slot: 0,
        generation: 1,
        template_hash: "other".to_owned(),
        user: WorkloadUser::from_index(8, "default", workload).unwrap(),
        address: [10, 100, 0, 200].into(),
        image: "registry.example/other:1".to_owned(),
        container: Container::default(),
        init_containers: Vec::new(),
        sidecars: Vec::new(),
        ports: vec![Port {
            name: None,
            container_port: 80,
            protocol: Protocol::Tcp,
            host_port: Some(HostPort::Number(80)),
            ..Port::default()
        }],
        health_check: None,
        restart_policy: RestartPolicy {
            condition: RestartCondition::Always,
            max_restarts: 5,
            reset_seconds: 3600,
        },
        created: None,
        on_partition: OnPartition::Keep,
        machine_access: Vec::new(),
        volumes: Vec::new(),
        carried: None,
        wanted: DesiredRun::Running,
        secrets: None,
        logins: None,
        run: None,
        gpu: None,
        bound: None,
        not_understood: None,
    }
}

fn registration(name: &str, machine: &Machine) -> NodeRegistration {
    let labels = machine.labels.iter();
    let taints = machine.taint.iter().map(|(key, value, effect)| Taint {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
        effect: *effect,
    });
    NodeRegistration {
        labels: labels
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        taints: taints.collect(),
        architecture: "amd64".to_owned(),
        ..NodeRegistration::new(name, Timestamp::UNIX_EPOCH)
    }
}

fn report(name: &str, machine: &Machine) -> ReportedNode {
    let resources = ResourceList {
        cpu: Some(MilliCpu(machine.cpu)),
        memory: Some(Bytes(machine.memory << 20)),
        storage: None,
    };
    let gpus = machine.gpu.iter().map(|(name, mebibytes)| GpuDevice {
        name: (*name).to_owned(),
        memory: Some(Bytes(mebibytes << 20)),
    });
    let report = NodeReport {
        gpus: gpus.collect(),
        node_name: name.to_owned(),
        node_uid: name.to_owned(),
        resources: NodeResources {
            capacity: resources,
            allocatable: resources,
        },
        desired_revision: 1,
        assignment_schema: ASSIGNMENT_SCHEMA,
        data_path: SOURCES_DATA_PATH,
        ..NodeReport::default()
    };
    ReportedNode {
        age: Duration::ZERO,
        steady: Duration::from_secs(3600),
        report: Arc::new(report),
    }
}

/// Units of a stored assignment, with the files of its variables.
fn rendered(stored: &[u8]) -> String {
    let assignment: Assignment = serde_json::from_slice(stored).unwrap();
    let renderer = Renderer::new(None).unwrap();
    let settings = RenderSettings::default();
    let mut files = renderer.instance(&assignment, &settings).unwrap();
    files.extend(renderer.image(&assignment, &settings, false).unwrap());
    let mut shown = String::new();
    for file in files {
        writeln!(shown, "{}\n{}", file.name, file.text).unwrap();
    }
    shown
}

/// The files of a workload, with the document as one of them.
fn files(field: &Field, document: &Value) -> Vec<SourceFile> {
    match field.kind {
        DocumentKind::Workload => {
            let mut document = document.clone();
            document["metadata"]["name"] = json!("base");
            let mut files = vec![file("workload.kat", &document)];
            files.extend(carried(&document));
            files
        }
        _ => vec![
            file("workload.kat", &workload()),
            file(field.kind.file(), document),
        ],
    }
}

#[test]
fn every_accepted_field_of_a_workload_changes_a_unit_or_a_decision() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for field in fields::all() {
        let of_a_workload = matches!(
            field.kind,
            DocumentKind::Workload | DocumentKind::VirtualLoadBalancer
        );
        let has_children = fields::children(field.kind, field.path).next().is_some();
        if !of_a_workload || has_children || field.status != FieldStatus::Effective {
            continue;
        }
        let mut document = around(field);
        if field.description.ends_with("MaxCount only") {
            document["spec"]["restartPolicy"]["condition"] = json!("MaxCount");
        }
        if field.path.starts_with("spec.updateStrategy") {
            document["spec"]["replicas"] = json!(8);
        }
        let mut with = document.clone();
        set(&mut with, field, json_of(field.example));
        must(field, &with);
        let mut without = document.clone();
        remove(&mut without, field);
        if decode(field, &without).is_err() {
            without = another(field, &with);
        }
        // The rollout has other machines for each of the two types.
        let rolls_alike = field.path == "spec.type"
            || rolled(&files(field, &with)) == rolled(&files(field, &without));
        let differs = !rolls_alike
            || worlds().iter().any(|machines| {
                outcome(&files(field, &with), machines)
                    != outcome(&files(field, &without), machines)
            });
        let shown_only = SHOWN_ONLY.iter().any(|(path, _)| *path == field.path);
        if differs == shown_only {
            wrong.push(format!(
                "{} changes {}",
                field.path,
                if differs { "something" } else { "nothing" }
            ));
        }
        tried += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(tried > 30, "only {tried} fields were tried");
}
