//! The planner in a test world: the store as a map, machines with a model of the agent, and a
//! clock.
//!
//! Every change is checked as the store would check it, and every state between two changes against
//! the invariants in `invariants.rs`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests"
)]

mod daemons;
mod data;
mod instances;
mod invariants;
mod jobs;
mod machine_model;
mod machines;
mod placement;
mod robustness;
mod start_order;
mod stored_objects;
mod updates;
mod volume_data_model;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hasher, RandomState},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use proptest::{prelude::ProptestConfig, test_runner::RngSeed};
use serde::Serialize;
use serde_json::json;

use self::machine_model::Machine;
use kat_leader::SnapshotBuilder;
use kat_plan::*;
use kat_store::mirror::MirrorEntries;
use kat_types::{
    api::{
        Event, Health, InstancePhase, InstanceReport, NodePhase, NodeReport, NodeResources,
        ObjectKind, Reach, Taint, WorkloadPhase,
    },
    assignment::*,
    resource::{Bytes, MilliCpu, OnPartition, ResourceList, TaintEffect},
    secrets::*,
    store::{
        keys,
        records::*,
        revisions::*,
        snapshot::{ObservedReports, ReportedNode},
        transaction::{Compare, KeyValue, MAX_OPERATIONS, WriteOperation},
    },
    volumes::*,
};

/// Random cases with a new seed in each run. The seed is printed, so that the output of a failed test
/// names it; `PROPTEST_RNG_SEED` repeats a run, and `PROPTEST_CASES` selects another number of cases.
fn random_cases(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let seed = match default.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().build_hasher().finish(),
    };
    println!("PROPTEST_RNG_SEED={seed} repeats these cases");
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => default.cases,
        None => cases,
    };
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..default
    }
}

const NAMESPACE: &str = "default";
const GIB: u64 = 1 << 30;

struct World {
    entries: MirrorEntries,
    revision: i64,
    builder: SnapshotBuilder,
    now: Timestamp,
    leading_for: Duration,
    machines: BTreeMap<String, Machine>,
    /// Images whose programs end with an error.
    failing: BTreeSet<String>,
    /// Images that cannot be pulled.
    missing: BTreeSet<String>,
    /// Images with which the programs of Jobs do not end.
    lasting: BTreeSet<String>,
    /// The ids of all instances so far.
    ids: BTreeSet<String>,
    /// Instances that had a DNS name at the last check, with the address.
    named: BTreeSet<(String, String)>,
    /// Instances that the present plan stops.
    stops: BTreeSet<String>,
    /// Machines that were NotReady or being drained at the present plan or the previous one.
    left: BTreeSet<String>,
    /// By volume, how often an instance has started with it.
    rows: BTreeMap<String, u64>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            entries: MirrorEntries::new(),
            revision: 1,
            builder: SnapshotBuilder::default(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            leading_for: Duration::from_secs(1),
            machines: BTreeMap::new(),
            failing: BTreeSet::new(),
            missing: BTreeSet::new(),
            lasting: BTreeSet::new(),
            ids: BTreeSet::new(),
            named: BTreeSet::new(),
            stops: BTreeSet::new(),
            left: BTreeSet::new(),
            rows: BTreeMap::new(),
        };
        world.namespace(NAMESPACE, false);
        world
    }

    /// A world with machines `n1`, `n2` ... of 4 processors and 8 GiB.
    fn with_machines(count: usize) -> Self {
        let mut world = Self::new();
        for number in 1..=count {
            world.machine(&format!("n{number}"), "23", &[]);
        }
        world
    }

    fn snapshot(&mut self) -> Snapshot {
        self.builder.build(&self.entries, self.revision)
    }

    /// The leader's knowledge of the machines; machines that speak report now.
    fn observed(&mut self) -> ObservedReports {
        for (name, machine) in &mut self.machines {
            let report = machine.report(name).filter(|_| machine.speaks);
            if let Some(report) = report {
                machine.heard = Some(Arc::new(report));
                machine.age = Duration::ZERO;
            }
        }
        let reports = self.machines.iter().filter_map(|(name, machine)| {
            let reported = ReportedNode {
                age: machine.age,
                steady: machine.steady,
                report: Arc::clone(machine.heard.as_ref()?),
            };
            Some((name.clone(), reported))
        });
        ObservedReports {
            leading_for: self.leading_for,
            reports: reports.collect(),
        }
    }

    /// Another machine leads, with the store and without reports.
    fn new_leader(&mut self) {
        self.leading_for = Duration::ZERO;
        for machine in self.machines.values_mut() {
            machine.heard = None;
        }
    }

    fn at(&mut self, machine: &str) -> &mut Machine {
        self.machines.get_mut(machine).unwrap()
    }

    /// Makes one plan and commits it change by change. Returns the number of changes.
    fn step(&mut self) -> usize {
        let snapshot = self.snapshot();
        let observed = self.observed();
        self.left.extend(invariants::left(&snapshot));
        let seed = u64::try_from(self.revision).unwrap();
        let planned = plan(&snapshot, &observed, self.now, seed);
        assert_eq!(
            planned,
            plan(&snapshot, &observed, self.now, seed),
            "the same input gives the same plan"
        );
        let operations = planned.changes.iter().flat_map(|change| &change.operations);
        self.stops = operations.clone().filter_map(stopped_by).collect();
        self.check_updates(&snapshot, operations);
        for change in &planned.changes {
            // The leader's fence takes one more operation.
            assert!(
                change.operations.len() < MAX_OPERATIONS,
                "{}: {} operations",
                change.reason,
                change.operations.len()
            );
            for condition in &change.conditions {
                let Compare::ModRevision(key, revision) = condition else {
                    panic!("{condition:?}")
                };
                let present = self
                    .entries
                    .get(key.as_str())
                    .map_or(0, |entry| entry.mod_revision);
                assert_eq!(present, *revision, "{key}");
            }
            self.apply(&change.operations);
            self.check();
        }
        self.left = invariants::left(&self.snapshot());
        planned.changes.len()
    }

    /// Plans until a plan is empty.
    fn plan_out(&mut self) {
        for _ in 0..50 {
            if self.step() == 0 {
                return;
            }
        }
        panic!("the plans do not come to rest");
    }

    /// Every agent that works makes a step.
    fn agents(&mut self) {
        self.offer();
        let images = machine_model::BadImages {
            failing: &self.failing,
            missing: &self.missing,
            lasting: &self.lasting,
        };
        for (name, machine) in &mut self.machines {
            if machine.obeys {
                machine.step(name, &self.entries, images);
            }
        }
        self.check_rows();
    }

    /// Advances the clock.
    fn pass(&mut self, time: Duration) {
        self.now = self.now.checked_add(time).unwrap();
        self.leading_for += time;
        for machine in self.machines.values_mut() {
            machine.age = machine.age.saturating_add(time);
        }
    }

    /// Alternates plans and agents' steps until neither changes anything.
    fn settle(&mut self) {
        for _ in 0..200 {
            let before = (self.revision, self.machines.clone());
            self.plan_out();
            self.agents();
            self.plan_out();
            self.agents();
            if before == (self.revision, self.machines.clone()) {
                assert_eq!(self.step(), 0, "a plan on what is settled is empty");
                return;
            }
        }
        panic!("the world does not settle");
    }

    /// Settles, lets running instances run long enough to count as ready, and settles again.
    fn settle_and_run(&mut self) {
        self.settle();
        self.pass(Duration::from_secs(3));
        self.settle();
    }

    /// Settles and lets new instances run, until nothing changes.
    fn roll_out(&mut self) {
        for _ in 0..100 {
            self.settle();
            let before = self.revision;
            self.pass(Duration::from_secs(3));
            self.settle();
            if self.revision == before {
                return;
            }
        }
        panic!("the rollout does not end");
    }

    fn events(&mut self, reason: &str) -> Vec<String> {
        let snapshot = self.snapshot();
        let events = snapshot.events.values().map(|stored| &stored.value);
        let events = events.filter(|event| event.reason == reason);
        events.map(|event| event.message.clone()).collect()
    }

    fn status(&mut self, name: &str) -> kat_types::api::WorkloadStatus {
        let snapshot = self.snapshot();
        let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, name)];
        entry.status.as_ref().unwrap().value.status.clone()
    }

    /// Wanted instances of a workload, with their machines and assignments.
    fn wanted(&mut self, name: &str) -> Vec<(String, String, Arc<Assignment>)> {
        let snapshot = self.snapshot();
        let key = WorkloadKey::new(NAMESPACE, name);
        let wanted = snapshot
            .instances_of(&key)
            .filter(|(_, entry)| entry.assignment.value.wanted == DesiredRun::Running)
            .map(|(id, entry)| {
                (
                    id.clone(),
                    entry.node.clone(),
                    Arc::clone(&entry.assignment.value),
                )
            });
        wanted.collect()
    }

    /// The number of running instances of a workload, by their machines' reports.
    fn running(&mut self, name: &str) -> usize {
        let phases: BTreeMap<String, InstancePhase> = self
            .machines
            .values()
            .flat_map(|machine| &machine.instances)
            .map(|(id, report)| (id.clone(), report.phase))
            .collect();
        self.wanted(name)
            .iter()
            .filter(|(id, ..)| phases.get(id) == Some(&InstancePhase::Running))
            .count()
    }

    fn keys(&self, prefix: &str) -> Vec<String> {
        self.entries
            .keys()
            .filter(|key| key.starts_with(prefix))
            .map(|key| key.to_string())
            .collect()
    }
}

fn no_schedule(key: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        value: String::new(),
        effect: TaintEffect::NoSchedule,
    }
}

/// The instance that this operation stops or removes.
fn stopped_by(operation: &WriteOperation) -> Option<String> {
    match operation {
        WriteOperation::Put(key, value) if key.starts_with(keys::NODE_DESIRED) => {
            let assignment = serde_json::from_slice::<Assignment>(value).ok()?;
            (assignment.wanted == DesiredRun::Stopped).then_some(assignment.instance)
        }
        WriteOperation::Delete(key) if key.starts_with(keys::NODE_DESIRED) => {
            Some(key.rsplit_once('/')?.1.to_owned())
        }
        _ => None,
    }
}
