//! The planner in a world of its own: a store's map, machines that obey, and a clock.
//!
//! Every change is checked as the store would check it, and every state between two changes
//! against what must always hold.

mod deletion;
mod failing;
mod joining;
mod nodes;
mod placement;
mod properties;
mod rollout;
mod scale;
mod status;
mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use super::*;
use crate::{
    api::types::{
        Health, InstancePhase, InstanceReport, NodePhase, NodeReport, NodeResources, Taint,
        WorkloadPhase,
    },
    leader::SnapshotBuilder,
    resource::{Bytes, MilliCpu, ResourceList, TaintEffect},
    store::{Compare, KeyValue, MAX_OPERATIONS, Operation, keys, mirror::Entries},
};

const NAMESPACE: &str = "default";
const GIB: u64 = 1 << 30;

/// A machine whose agent does what it is told, one phase with each round.
struct Machine {
    uid: String,
    resources: ResourceList,
    instances: BTreeMap<String, InstanceReport>,
    users: BTreeSet<u32>,
    age: Duration,
    speaks: bool,
    obeys: bool,
}

struct World {
    entries: Entries,
    revision: i64,
    builder: SnapshotBuilder,
    now: Timestamp,
    leading_for: Duration,
    machines: BTreeMap<String, Machine>,
    /// Images whose programs end with an error.
    failing: BTreeSet<String>,
    /// Every instance that ever was.
    ids: BTreeSet<String>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            entries: Entries::new(),
            revision: 1,
            builder: SnapshotBuilder::default(),
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            leading_for: Duration::from_secs(1),
            machines: BTreeMap::new(),
            failing: BTreeSet::new(),
            ids: BTreeSet::new(),
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

    fn write<T: Serialize>(&mut self, key: String, value: &T) {
        let value = serde_json::to_vec(value).unwrap();
        self.apply(&[Operation::Put(key, value)]);
    }

    fn namespace(&mut self, name: &str, deleting: bool) {
        let record = NamespaceRecord {
            schema: 1,
            uid: format!("uid of {name}"),
            labels: BTreeMap::new(),
            created: self.now,
            deleting,
        };
        self.write(keys::namespace(name), &record);
    }

    fn machine(&mut self, name: &str, prefix: &str, taints: &[Taint]) {
        let number = self.machines.len() * 2;
        let registration = NodeRegistration {
            schema: 1,
            uid: format!("uid of {name}"),
            identity_key: String::new(),
            labels: BTreeMap::from([("name".to_owned(), name.to_owned())]),
            taints: taints.to_vec(),
            draining: false,
            architecture: "amd64".to_owned(),
            etcd: true,
            advertise: Vec::new(),
            deleting: false,
            created: self.now,
        };
        self.write(keys::registration(name), &registration);
        let subnet = format!("10.100.{number}.0/{prefix}").into_bytes();
        self.apply(&[Operation::Put(keys::network_node(name, "subnet"), subnet)]);
        let machine = Machine {
            uid: registration.uid,
            resources: ResourceList {
                cpu: Some(MilliCpu(4000)),
                memory: Some(Bytes(8 * GIB)),
            },
            instances: BTreeMap::new(),
            users: BTreeSet::new(),
            age: Duration::ZERO,
            speaks: true,
            obeys: true,
        };
        self.machines.insert(name.to_owned(), machine);
    }

    /// Applies a workload as the API does; `change` is made to its file first.
    fn apply_workload(&mut self, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
        self.apply_workload_in(NAMESPACE, name, change);
    }

    fn apply_workload_in(
        &mut self,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut serde_json::Value),
    ) {
        let mut file = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "Workload",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "type": "Service",
                "source": {"image": format!("registry.example/{name}:1")},
                "replicas": 1,
                "restartPolicy": {"condition": "Always"},
                "container": {},
            },
        });
        change(&mut file);
        let mut template = file.clone();
        template["spec"]["replicas"] = json!(null);
        let snapshot = self.snapshot();
        let key = WorkloadKey::new(namespace, name);
        let before = snapshot
            .workloads
            .get(&key)
            .map(|entry| entry.meta.value.clone());
        let index = before.as_ref().map_or_else(
            || {
                (0..)
                    .find(|index| !snapshot.indexes.contains_key(index))
                    .unwrap()
            },
            |meta| meta.index,
        );
        let meta = WorkloadMeta {
            schema: 1,
            uid: before.as_ref().map_or_else(
                || format!("uid {} of {name}", self.revision),
                |meta| meta.uid.clone(),
            ),
            generation: before.as_ref().map_or(0, |meta| meta.generation) + 1,
            spec_hash: file.to_string(),
            template_hash: template.to_string(),
            index,
            created: self.now,
            updated: self.now,
            deleting: false,
            last_good_generation: 0,
        };
        let record = IndexRecord {
            schema: 1,
            namespace: namespace.to_owned(),
            workload: name.to_owned(),
            workload_uid: meta.uid.clone(),
        };
        self.write(keys::index(index), &record);
        self.write(keys::manifest(namespace, name, "workload.kat"), &file);
        self.write(keys::workload_meta(namespace, name), &meta);
    }

    fn replicas(&mut self, name: &str, count: u32) {
        self.apply_workload(name, |file| file["spec"]["replicas"] = json!(count));
    }

    fn delete_workload(&mut self, name: &str) {
        let snapshot = self.snapshot();
        let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, name)];
        let meta = WorkloadMeta {
            deleting: true,
            ..entry.meta.value.clone()
        };
        self.write(keys::workload_meta(NAMESPACE, name), &meta);
    }

    fn apply(&mut self, operations: &[Operation]) {
        self.revision += 1;
        for operation in operations {
            match operation {
                Operation::Put(key, value) => {
                    let create_revision = self
                        .entries
                        .get(key.as_str())
                        .map_or(self.revision, |entry| entry.create_revision);
                    let entry = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        mod_revision: self.revision,
                        create_revision,
                    };
                    self.entries.insert(key.as_str().into(), Arc::new(entry));
                }
                Operation::Delete(key) => {
                    self.entries.remove(key.as_str());
                }
                Operation::DeletePrefix(prefix) => {
                    self.entries.retain(|key, _| !key.starts_with(prefix));
                }
            }
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        self.builder.build(&self.entries, self.revision)
    }

    fn observed(&self) -> Observed {
        let reports = self
            .machines
            .iter()
            .filter(|(_, machine)| machine.age != Duration::MAX)
            .map(|(name, machine)| {
                let report = NodeReport {
                    node_name: name.clone(),
                    node_uid: machine.uid.clone(),
                    resources: NodeResources {
                        capacity: machine.resources,
                        allocatable: machine.resources,
                    },
                    workload_instances: machine.instances.values().cloned().collect(),
                    user_indexes: machine.users.iter().copied().collect(),
                    ..NodeReport::default()
                };
                let reported = ReportedNode {
                    age: machine.age,
                    report: Arc::new(report),
                };
                (name.clone(), reported)
            })
            .collect();
        Observed {
            leading_for: self.leading_for,
            reports,
        }
    }

    /// One plan, committed change by change. Returns the number of changes.
    fn step(&mut self) -> usize {
        let snapshot = self.snapshot();
        let observed = self.observed();
        let seed = u64::try_from(self.revision).unwrap();
        let planned = plan(&snapshot, &observed, self.now, seed);
        assert_eq!(
            planned,
            plan(&snapshot, &observed, self.now, seed),
            "the same input gives the same plan"
        );
        for change in &planned.changes {
            // The leader's fence needs a place.
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
        planned.changes.len()
    }

    /// Plans until nothing is left to do.
    fn plan_out(&mut self) {
        for _ in 0..50 {
            if self.step() == 0 {
                return;
            }
        }
        panic!("the plans do not come to rest");
    }

    /// Every machine that obeys goes one phase on.
    fn agents(&mut self) {
        let snapshot = self.snapshot();
        for (name, machine) in &mut self.machines {
            if !machine.obeys {
                continue;
            }
            let list: BTreeMap<&String, &Assignment> = snapshot
                .instances
                .iter()
                .filter(|(_, entry)| entry.node == *name)
                .map(|(id, entry)| (id, &*entry.assignment.value))
                .collect();
            machine.users = machine
                .instances
                .keys()
                .filter_map(|id| list.get(id))
                .chain(list.values())
                .map(|assignment| assignment.user.index)
                .collect();
            machine.instances.retain(|id, _| list.contains_key(id));
            for (id, assignment) in list {
                let report =
                    machine
                        .instances
                        .entry(id.clone())
                        .or_insert_with(|| InstanceReport {
                            instance_id: id.clone(),
                            health_status: Health::NotApplicable,
                            ..InstanceReport::default()
                        });
                report.phase = match (assignment.wanted, report.phase) {
                    (Wanted::Stopped, InstancePhase::Stopping | InstancePhase::Pending) => {
                        InstancePhase::Stopped
                    }
                    (Wanted::Stopped, InstancePhase::Stopped) => InstancePhase::Stopped,
                    (Wanted::Stopped, _) => InstancePhase::Stopping,
                    (Wanted::Running, InstancePhase::Pending) => InstancePhase::Starting,
                    (Wanted::Running, _) if self.failing.contains(&assignment.image) => {
                        InstancePhase::Failed
                    }
                    (Wanted::Running, _) => InstancePhase::Running,
                };
                let failed = report.phase == InstancePhase::Failed;
                report.reason = if failed { "RestartsExhausted" } else { "" }.to_owned();
            }
        }
    }

    /// Lets time go by; machines that speak report at its end.
    fn pass(&mut self, time: Duration) {
        self.now = self.now.checked_add(time).unwrap();
        self.leading_for += time;
        for machine in self.machines.values_mut() {
            machine.age = match (machine.speaks, machine.age) {
                (true, _) => Duration::ZERO,
                (false, age) => age.saturating_add(time),
            };
        }
    }

    /// Plans and obeys in turns until both are at rest.
    fn settle(&mut self) {
        for _ in 0..200 {
            let before = self.revision;
            self.plan_out();
            self.agents();
            self.plan_out();
            self.agents();
            if self.revision == before {
                assert_eq!(self.step(), 0, "a plan on what is settled is empty");
                return;
            }
        }
        panic!("the world does not settle");
    }

    fn status(&mut self, name: &str) -> crate::api::types::WorkloadStatus {
        let snapshot = self.snapshot();
        let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, name)];
        entry.status.as_ref().unwrap().value.status.clone()
    }

    /// Instances of a workload that should run, with their machines.
    fn wanted(&mut self, name: &str) -> Vec<(String, String, Arc<Assignment>)> {
        let snapshot = self.snapshot();
        let key = WorkloadKey::new(NAMESPACE, name);
        let wanted = snapshot
            .instances_of(&key)
            .filter(|(_, entry)| entry.assignment.value.wanted == Wanted::Running)
            .map(|(id, entry)| {
                (
                    id.clone(),
                    entry.node.clone(),
                    Arc::clone(&entry.assignment.value),
                )
            });
        wanted.collect()
    }

    /// Instances of a workload that run, by what their machines say.
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

    /// What must hold between any two changes.
    fn check(&mut self) {
        let snapshot = self.snapshot();
        for (name, node) in &snapshot.nodes {
            let here = snapshot
                .instances
                .values()
                .filter(|entry| entry.node == *name);
            assert_eq!(
                node.desired.value.count,
                here.clone().count(),
                "{name}: the meta counts the list"
            );
            let mut sum = Requested::default();
            for entry in here {
                let assignment = &entry.assignment.value;
                sum.add(assignment.container.resources.effective_requests());
                let subnet = node.subnet.unwrap();
                assert!(subnet.contains(&assignment.address));
                assert_ne!(assignment.address, node_address(subnet));
            }
            let resources = self.machines[name].resources;
            assert!(
                sum.cpu <= resources.cpu.unwrap_or_default(),
                "{name}: {sum:?}"
            );
            assert!(
                sum.memory <= resources.memory.unwrap_or_default(),
                "{name}: {sum:?}"
            );
        }
        let mut addresses = BTreeSet::new();
        let mut slots: BTreeMap<(WorkloadKey, u32), Vec<&str>> = BTreeMap::new();
        let mut present = BTreeSet::new();
        for (id, entry) in &snapshot.instances {
            let assignment = &entry.assignment.value;
            assert!(
                addresses.insert(assignment.address),
                "{} twice",
                assignment.address
            );
            let allocation = &snapshot.allocations[id].value;
            assert_eq!(
                (allocation.node.as_str(), allocation.address),
                (entry.node.as_str(), assignment.address)
            );
            if assignment.wanted == Wanted::Running {
                let key = WorkloadKey::new(&assignment.namespace, &assignment.workload);
                slots
                    .entry((key, assignment.slot))
                    .or_default()
                    .push(&assignment.template_hash);
            }
            present.insert(id.clone());
        }
        assert_eq!(snapshot.allocations.len(), snapshot.instances.len());
        for ((key, slot), hashes) in slots {
            let different: BTreeSet<_> = hashes.iter().collect();
            assert!(
                hashes.len() <= 2,
                "{key} slot {slot} has {} instances",
                hashes.len()
            );
            assert_eq!(different.len(), hashes.len(), "{key} slot {slot}");
        }
        assert!(snapshot.events.len() <= LIMIT);
        // An id that came back would be known already and yet new.
        for id in present {
            let created = snapshot.instances[&id].created_revision;
            if created == self.revision {
                assert!(self.ids.insert(id.clone()), "{id} is used again");
            }
        }
    }
}

fn no_schedule(key: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        value: String::new(),
        effect: TaintEffect::NoSchedule,
    }
}
