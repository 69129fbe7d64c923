//! The trace of a run, and the first violation in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::{
    checks::{
        jobs::JobHistory,
        kept_schedules::{KeptEnd, KeptSchedules, KeptStart, identity_on},
        orders::OrderHistory,
    },
    faults::unwritable_workload,
    load::{jobs::ScheduledJob, rollouts},
    world::start_of_time,
};
use kat_plan::{ClusterPlan, Snapshot};
use kat_testing::MemoryStore;
use kat_types::{
    api::NodePhase,
    assignment::{AssignedRun, Assignment, is_machine_slot},
    reason::Reason,
    resource::OnPartition,
    store::{
        keys,
        records::{NodeRegistration, NodeStatusRecord},
        transaction::WriteOperation,
    },
};

/// Seconds by which a wall clock that has not jumped is ahead at most.
const MOST_SKEW: i64 = 3;

/// An instance that was ever assigned.
#[derive(Debug, Clone)]
pub(crate) struct Assigned {
    pub instance: String,
    pub address: Ipv4Addr,
    /// Folders of the volumes that the instance mounts; in the simulation every mount writes.
    pub writes: Vec<String>,
    /// The instance has `onPartition: stop`: its machine stops it before a leader replaces it.
    pub stops: bool,
    pub slot: u32,
    /// The run of a Job that it belongs to.
    pub run: Option<AssignedRun>,
    pub workload_uid: String,
}

fn writes(assignment: &Assignment) -> Vec<String> {
    let volumes = assignment.volumes.iter();
    volumes.filter_map(|volume| volume.folder.clone()).collect()
}

pub(crate) struct Monitor {
    store: MemoryStore,
    began: Instant,
    /// How long a machine must be silent before a leader may call it lost.
    silence: Duration,
    state: Mutex<State>,
    jobs: Mutex<JobHistory>,
    orders: Mutex<OrderHistory>,
}

/// The newest report of a machine that a leader accepted.
struct Heard {
    sent: Instant,
    accepted: Instant,
}

#[derive(Default)]
struct State {
    violation: Option<String>,
    trace: Vec<String>,
    assigned: BTreeMap<String, Assigned>,
    /// Names of the workloads of these instances.
    placed: BTreeSet<String>,
    heard: BTreeMap<String, Heard>,
    /// When each machine's overlay was dead last.
    overlay_dead: BTreeMap<String, Instant>,
}

impl Monitor {
    pub(crate) fn new(store: &MemoryStore, silence: Duration) -> Self {
        Self {
            store: store.clone(),
            began: Instant::now(),
            silence,
            state: Mutex::default(),
            jobs: Mutex::default(),
            orders: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn note(&self, text: &str) {
        let at = self.began.elapsed().as_secs_f64();
        let line = format!("{at:9.3} r{} {text}", self.store.revision());
        self.lock().trace.push(line);
    }

    /// Records a violation. Only the first one counts.
    pub(crate) fn violated(&self, text: String) {
        self.note(&format!("VIOLATED: {text}"));
        self.lock().violation.get_or_insert(text);
    }

    pub(crate) fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.lock().trace.clone()
    }

    pub(crate) fn assigned(&self, unit: &str) -> Option<Assigned> {
        self.lock().assigned.get(unit).cloned()
    }

    /// Whether an instance of the workload was ever assigned.
    pub(crate) fn was_placed(&self, workload: &str) -> bool {
        self.lock().placed.contains(workload)
    }

    /// What is written of these Jobs is checked.
    pub(crate) fn follow_jobs(&self, jobs: Vec<ScheduledJob>) {
        self.jobs.lock().followed = jobs;
    }

    /// Whether a run of the Job has succeeded.
    pub(crate) fn has_succeeded(&self, workload: &str) -> bool {
        self.jobs.lock().succeeded.contains(workload)
    }

    /// The place of a certificate by ACME in the order in which leaders stored them.
    pub(crate) fn certificate_number(&self, chain: &str) -> Option<usize> {
        self.orders.lock().number(chain)
    }

    /// From now on leaders may delete certificates by ACME: their routes are deleted.
    pub(crate) fn let_certificates_go(&self) {
        self.orders.lock().routes_leave = true;
    }

    /// A gate lets an attempt of a run begin that the unit's machine keeps the schedule of.
    pub(crate) fn record_kept_start(&self, unit: &str, start: KeptStart) {
        let (machine, scheduled) = (&start.machine, start.scheduled);
        let what = match start.is_further {
            true => "begins a further attempt of",
            false => "begins",
        };
        self.note(&format!(
            "{unit} on {machine} {what} the run of {scheduled}"
        ));
        let known = self.assigned(unit);
        let known = known.map(|known| match is_machine_slot(known.slot) {
            true => identity_on(&known.workload_uid, machine),
            false => known.workload_uid,
        });
        let Some(uid) = known else {
            self.violated(format!("{unit} on {machine} was never assigned"));
            return;
        };
        let elapsed = i64::try_from(self.began.elapsed().as_secs()).unwrap();
        let latest = start_of_time().as_second() + elapsed + MOST_SKEW;
        let is_ahead = scheduled > latest;
        let wrong = self.jobs.lock().kept.begins(&uid, start, is_ahead);
        if let Some(why) = wrong {
            self.violated(why);
        }
    }

    /// Such a run has ended, and its gate has written that.
    pub(crate) fn record_kept_end(
        &self,
        machine: &str,
        invocation: &str,
        at: i64,
        succeeded: bool,
    ) {
        let end = KeptEnd { at, succeeded };
        self.jobs.lock().kept.ends(machine, invocation, end);
    }

    pub(crate) fn with_kept<T>(&self, look: impl FnOnce(&KeptSchedules) -> T) -> T {
        look(&self.jobs.lock().kept)
    }

    /// The process with the oldest candidate key in the store.
    pub(crate) fn leader(&self) -> Option<String> {
        self.leadership().map(|(process, _)| process)
    }

    /// The process that leads, and the revision that created its candidate key.
    pub(crate) fn leadership(&self) -> Option<(String, i64)> {
        let candidates = self.store.peek(keys::ELECTION).items;
        let first = candidates
            .into_iter()
            .min_by_key(|item| item.create_revision)?;
        let process = String::from_utf8(first.value).unwrap();
        Some((process, first.create_revision))
    }

    /// Called right after a transaction of a process took effect.
    pub(crate) fn written(&self, process: &str, operations: &[WriteOperation]) {
        let written: Vec<&str> = operations.iter().map(key_of).collect();
        self.note(&format!("{process} wrote {}", written.join(" ")));
        let leader = self.leader();
        if leader.as_deref() != Some(process) {
            self.violated(format!(
                "{process} wrote {written:?} while {leader:?} led: a deposed leader changed something"
            ));
        }
        let wrong = self.jobs.lock().written(operations);
        if let Some(why) = wrong {
            self.violated(why);
        }
        let wrong = self.orders.lock().written(operations);
        if let Some(why) = wrong {
            self.violated(why);
        }
        for operation in operations {
            let WriteOperation::Put(key, value) = operation else {
                continue;
            };
            if key.starts_with(keys::NODE_DESIRED) && key.contains("/instances/") {
                let assignment: Assignment = serde_json::from_slice(value).unwrap();
                let assigned = Assigned {
                    instance: assignment.instance.clone(),
                    address: assignment.address,
                    writes: writes(&assignment),
                    stops: assignment.on_partition == OnPartition::Stop,
                    slot: assignment.slot,
                    run: assignment.run.clone(),
                    workload_uid: assignment.workload_uid.clone(),
                };
                self.lock().placed.insert(assignment.workload.clone());
                let before = self.lock().assigned.insert(assignment.unit(), assigned);
                if let Some(node) = key.strip_prefix(keys::NODE_DESIRED)
                    && let Some((node, _)) = node.split_once('/')
                    && before.is_none()
                    && self.is_drained(node)
                {
                    let unit = assignment.unit();
                    self.violated(format!("{unit} is placed on {node}, which is drained"));
                }
            }
        }
    }

    /// The machine's status is drained, and its registration still asks for that.
    fn is_drained(&self, node: &str) -> bool {
        let one = |key: String| {
            self.store
                .peek(&key)
                .items
                .into_iter()
                .find(|item| item.key == key)
        };
        let registration = one(keys::registration(node));
        let status = one(keys::node_status(node));
        let draining = registration.is_some_and(|item| {
            let registration: NodeRegistration = serde_json::from_slice(&item.value).unwrap();
            registration.draining
        });
        let drained = status.is_some_and(|item| {
            let status: NodeStatusRecord = serde_json::from_slice(&item.value).unwrap();
            status.phase == NodePhase::Drained
        });
        draining && drained
    }

    /// A leader accepted the report that the machine sent at `sent`. One that comes after a newer one
    /// says nothing of the machine.
    pub(crate) fn record_accepted_report(&self, machine: &str, sent: Instant) {
        let accepted = Instant::now();
        let mut state = self.lock();
        let before = state.heard.get(machine);
        if before.is_none_or(|before| before.sent < sent) {
            let heard = Heard { sent, accepted };
            state.heard.insert(machine.to_owned(), heard);
        }
    }

    /// How long ago a leader accepted the machine's newest report; `None` if none ever was.
    pub(crate) fn silent(&self, machine: &str) -> Option<Duration> {
        let state = self.lock();
        state
            .heard
            .get(machine)
            .map(|heard| heard.accepted.elapsed())
    }

    /// The overlay of the machine is dead now.
    pub(crate) fn record_dead_overlay(&self, machine: &str) {
        let mut state = self.lock();
        state
            .overlay_dead
            .insert(machine.to_owned(), Instant::now());
    }

    /// Why the judgement that the machine is unreachable over the overlay is wrong. Only forged
    /// reports could say so of a machine that answers.
    fn wrongly_unreachable(
        &self,
        machine: &str,
        before: Option<&NodeStatusRecord>,
        status: &NodeStatusRecord,
    ) -> Option<String> {
        let is_judged = |status: &NodeStatusRecord| {
            let mut conditions = status.conditions.iter();
            conditions.any(|one| one.reason == Reason::OverlayDown)
        };
        if !is_judged(status) || before.is_some_and(is_judged) {
            return None;
        }
        let dead = self.lock().overlay_dead.get(machine).map(Instant::elapsed);
        let recent = dead.is_some_and(|ago| ago < self.silence * 2);
        (!recent).then(|| {
            format!(
                "{machine} is judged unreachable over the overlay, which was dead {dead:?} ago: its callers are taken away"
            )
        })
    }

    /// Checks a plan. A leader must not call a machine lost whose report this leader or the
    /// previous one accepted recently.
    pub(crate) fn decided(&self, process: &str, snapshot: &Snapshot, plan: &ClusterPlan) {
        if let Some(why) = rollouts::wrong(snapshot, plan) {
            self.violated(format!("{process} plans: {why}"));
        }
        if let Some(why) = unwritable_workload::touched(snapshot, plan) {
            self.violated(format!("{process} plans: {why}"));
        }
        let operations = plan.changes.iter().flat_map(|change| &change.operations);
        for operation in operations {
            let WriteOperation::Put(key, value) = operation else {
                continue;
            };
            let Some(machine) = key.strip_prefix(keys::NODE_STATUS) else {
                continue;
            };
            let status: NodeStatusRecord = serde_json::from_slice(value).unwrap();
            let before = snapshot.nodes.get(machine);
            let before = before.and_then(|node| node.status.as_ref());
            let new = before.is_none_or(|before| before.value.phase != NodePhase::NotReady);
            let record = before.map(|before| &before.value);
            if let Some(why) = self.wrongly_unreachable(machine, record, &status) {
                self.violated(format!("{process} plans: {why}"));
            }
            let heard = self.silent(machine);
            if let Some(ago) = heard
                && status.phase == NodePhase::NotReady
                && new
                && ago < self.silence
            {
                self.violated(format!(
                    "{process} says that {machine} is lost, which was heard of {ago:?} ago"
                ));
            }
        }
    }
}

fn key_of(operation: &WriteOperation) -> &str {
    match operation {
        WriteOperation::Put(key, _)
        | WriteOperation::Delete(key)
        | WriteOperation::DeletePrefix(key) => key,
    }
}
