//! How many instances the leader places in a second; `contrib/bench/schedule` says what is
//! measured.

#![allow(
    clippy::disallowed_methods,
    reason = "a value without JSON ends the run"
)]

use std::{collections::BTreeMap, io::Write, sync::Arc, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::json;

use kat_leader::SnapshotBuilder;
use kat_plan::{ClusterPlan, plan};
use kat_store::mirror::MirrorEntries;
use kat_types::{
    api::{NodeReport, NodeResources},
    assignment::DesiredMeta,
    resource::{Bytes, MilliCpu, ResourceList},
    store::{
        keys,
        records::{NamespaceRecord, NodeRegistration, WorkloadMeta},
        snapshot::{ObservedReports, ReportedNode},
        transaction::{KeyValue, WriteOperation},
    },
};

const MACHINES: usize = 1000;
const INSTANCES: usize = 10_000;
const ROUNDS: usize = 3;
const NAMESPACE: &str = "default";

/// The contents of the store, as in the leader's mirror.
#[derive(Default, Clone)]
struct Store {
    entries: MirrorEntries,
    revision: i64,
    machines: usize,
}

impl Store {
    fn put<T: Serialize>(&mut self, key: String, value: &T) -> anyhow::Result<()> {
        let value = serde_json::to_vec(value)?;
        self.apply(&[WriteOperation::Put(key, value)]);
        Ok(())
    }

    fn apply(&mut self, operations: &[WriteOperation]) {
        self.revision += 1;
        for operation in operations {
            match operation {
                WriteOperation::Put(key, value) => {
                    let entry = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        mod_revision: self.revision,
                        create_revision: self.revision,
                    };
                    self.entries.insert(key.as_str().into(), Arc::new(entry));
                }
                WriteOperation::Delete(key) => {
                    self.entries.remove(key.as_str());
                }
                WriteOperation::DeletePrefix(prefix) => {
                    let kept = std::mem::take(&mut self.entries).into_iter();
                    let kept = kept.filter(|(key, _)| !key.starts_with(prefix));
                    self.entries = kept.collect();
                }
            }
        }
    }

    /// A store with machines that have reported.
    fn with_machines(machines: usize) -> anyhow::Result<Self> {
        let mut store = Self {
            machines,
            ..Self::default()
        };
        store.put(
            keys::namespace(NAMESPACE),
            &NamespaceRecord {
                schema: 1,
                uid: "namespace".to_owned(),
                labels: BTreeMap::new(),
                created: Timestamp::UNIX_EPOCH,
                deleting: false,
                quota: Default::default(),
                access: Default::default(),
                ingress_hosts: None,
                defaults: Default::default(),
            },
        )?;
        for number in 0..machines {
            let name = machine(number);
            let registration = NodeRegistration {
                labels: BTreeMap::from([("kat.dws.rip/nodeName".to_owned(), name.clone())]),
                architecture: "amd64".to_owned(),
                ..NodeRegistration::new(&name, Timestamp::UNIX_EPOCH)
            };
            store.put(keys::registration(&name), &registration)?;
            let list = DesiredMeta {
                schema: 1,
                revision: 1,
                count: 0,
                ..DesiredMeta::default()
            };
            store.put(keys::desired_meta(&name), &list)?;
            let subnet = format!("10.{}.{}.0/24", number / 256, number % 256);
            let key = keys::network_node(&name, "subnet");
            store.apply(&[WriteOperation::Put(key, subnet.into_bytes())]);
        }
        let planned = store.plan()?.0;
        store.commit(&planned);
        Ok(store)
    }

    fn workload(&mut self, number: usize, replicas: usize) -> anyhow::Result<()> {
        let name = format!("web-{number}");
        let file = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "Workload",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "type": "Service",
                "source": {"image": "registry.example/web:1"},
                "replicas": replicas,
                "restartPolicy": {"condition": "Always"},
                "container": {"resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
            },
        });
        self.put(keys::manifest(NAMESPACE, &name, "workload.kat"), &file)?;
        let meta = WorkloadMeta {
            schema: 1,
            uid: format!("uid of {name}"),
            generation: 1,
            spec_hash: "spec".to_owned(),
            template_hash: "template".to_owned(),
            index: u32::try_from(number)?,
            created: Timestamp::UNIX_EPOCH,
            updated: Timestamp::UNIX_EPOCH,
            deleting: false,
            deletes_volumes: false,
            paused: false,
            restarted: None,
            stopped: None,
            image: Default::default(),
        };
        self.put(keys::workload_meta(NAMESPACE, &name), &meta)
    }

    /// A plan for the stored state, and the processor time that it took.
    fn plan(&self) -> anyhow::Result<(ClusterPlan, Duration)> {
        let snapshot = SnapshotBuilder::default().build(&self.entries, self.revision);
        let observed = observed(self.machines);
        let seed = u64::try_from(self.revision)?;
        let begun = processor_time()?;
        let planned = plan(&snapshot, &observed, Timestamp::UNIX_EPOCH, seed);
        Ok((planned, processor_time()?.saturating_sub(begun)))
    }

    fn commit(&mut self, planned: &ClusterPlan) {
        for change in &planned.changes {
            self.apply(&change.operations);
        }
    }
}

/// Processor time used by this thread so far.
fn processor_time() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::ThreadCPUTime).try_into()?)
}

fn machine(number: usize) -> String {
    format!("machine-{number:04}")
}

fn observed(machines: usize) -> ObservedReports {
    let resources = ResourceList {
        cpu: Some(MilliCpu(16_000)),
        memory: Some(Bytes(64 << 30)),
        storage: None,
    };
    let reports = (0..machines).map(|number| {
        let report = NodeReport {
            node_name: machine(number),
            node_uid: machine(number),
            resources: NodeResources {
                capacity: resources,
                allocatable: resources,
            },
            desired_revision: 1,
            ..NodeReport::default()
        };
        let reported = ReportedNode {
            age: Duration::ZERO,
            steady: Duration::ZERO,
            report: Arc::new(report),
        };
        (machine(number), reported)
    });
    ObservedReports {
        leading_for: Duration::ZERO,
        reports: reports.collect(),
    }
}

/// The number of assignments that a plan writes.
fn placed(planned: &ClusterPlan) -> usize {
    let operations = planned.changes.iter().flat_map(|change| &change.operations);
    operations
        .filter(|operation| {
            matches!(operation, WriteOperation::Put(key, _)
                if key.starts_with(keys::NODE_DESIRED) && key.contains("/instances/"))
        })
        .count()
}

/// The fastest of several runs of the same plan, which must place `expected` instances.
fn quickest(store: &Store, expected: usize) -> anyhow::Result<(ClusterPlan, Duration)> {
    let mut best: Option<(ClusterPlan, Duration)> = None;
    for _ in 0..ROUNDS {
        let (planned, took) = store.plan()?;
        let count = placed(&planned);
        anyhow::ensure!(count == expected, "{count} of {expected} are placed");
        if best.as_ref().is_none_or(|(_, before)| took < *before) {
            best = Some((planned, took));
        }
    }
    best.context("there is no round")
}

fn main() -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let machines = Store::with_machines(MACHINES)?;
    for workloads in [1, 1000] {
        let mut store = machines.clone();
        for number in 0..workloads {
            store.workload(number, INSTANCES / workloads)?;
        }
        let (planned, took) = quickest(&store, INSTANCES)?;
        let rate = INSTANCES as f64 / took.as_secs_f64();
        writeln!(
            out,
            "{INSTANCES} instances of {workloads} workloads on {MACHINES} machines: {:.0} ms, {rate:.0} in a second",
            took.as_secs_f64() * 1000.0,
        )?;
        store.commit(&planned);
        let (_, took) = quickest(&store, 0)?;
        writeln!(
            out,
            "  nothing to do beside them: {:.1} ms",
            took.as_secs_f64() * 1000.0
        )?;
        store.workload(workloads, 1)?;
        let (_, took) = quickest(&store, 1)?;
        writeln!(
            out,
            "  one more beside them: {:.1} ms",
            took.as_secs_f64() * 1000.0
        )?;
    }
    grow(&mut out)
}

/// The rate for different numbers of machines and of instances placed at once.
fn grow(out: &mut impl Write) -> anyhow::Result<()> {
    for machines in [10, 100, 1000] {
        let empty = Store::with_machines(machines)?;
        for instances in [100, 1000, 10_000] {
            // Each machine has addresses and processors for 160 instances.
            if instances > machines * 160 {
                continue;
            }
            let mut store = empty.clone();
            store.workload(0, instances)?;
            let (_, took) = quickest(&store, instances)?;
            writeln!(
                out,
                "{instances} instances of a workload on {machines} machines: {:.0} in a second",
                instances as f64 / took.as_secs_f64(),
            )?;
        }
    }
    Ok(())
}
