//! Start order (`spec.startAfter`): what the first instance of a workload waits for.
//!
//! The gate is the leader's alone. Started and Healthy hold back the first start of a Service, and the
//! first one after it had no replicas; Completed holds back the first instance of each version. For a
//! Job every condition holds back the beginning of each run. What the gate has let through is recorded,
//! so that no failure of an instance, of a machine or of the other workload closes it again: nothing
//! that runs is stopped, and no replacement is delayed, because of another workload.
//!
//! Circles are refused at apply. One that came to be anyway, as by an automatic rollback, holds nothing
//! back.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use jiff::Timestamp;

use crate::{
    Snapshot,
    rollout::{settles_in, slot::LiveInstance, time_from},
    service::WorkloadPlanner,
};
use kat_types::{
    api::{EventKind, InstancePhase, NodePhase},
    assignment::DesiredRun,
    reason::{EventReason, Reason},
    resource::{OnStartTimeout, StartAfter, StartCondition, WorkloadType},
    store::{
        jobs::{JobRunRecord, RunPhase},
        records::{InstanceRecord, StartRecord, StartWaitRecord},
        revisions::WorkloadKey,
        snapshot::{ParsedWorkload, WorkloadEntry},
    },
};

/// Why a workload does not start yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartWait {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

/// Why a condition does not hold.
enum Unmet {
    /// It may come to hold by itself.
    Yet(String),
    /// Only a person can change that.
    ForPerson(String),
}

impl WorkloadPlanner<'_, '_, '_> {
    /// What new instances of the present version of a Service wait for; `None` if nothing holds them
    /// back.
    pub(crate) fn start_wait(
        &mut self,
        parsed: &ParsedWorkload,
        all: &[LiveInstance<'_>],
    ) -> Option<StartWait> {
        let spec = &parsed.workload.spec;
        if spec.start_after.is_empty() {
            self.record.start = None;
            return None;
        }
        let version = self.entry.meta.value.template_hash.clone();
        let made = self.record.instances_made > 0;
        let mut record = self.record.start.clone().unwrap_or_else(|| StartRecord {
            started: made,
            ..StartRecord::default()
        });
        let wanted = || all.iter().filter(|live| live.is_wanted());
        record.started |= wanted().next().is_some();
        if wanted().any(|live| live.current) {
            record.version.clone_from(&version);
        }
        if self.slots.count() == 0 {
            // A DaemonService without a machine has not been stopped.
            let stopped = spec.kind == WorkloadType::Service && all.is_empty();
            record.started &= !stopped;
            record.waits = None;
            self.record.start = Some(record);
            return None;
        }
        let holds = |one: &&StartAfter| match one.condition {
            StartCondition::Started | StartCondition::Healthy => !record.started,
            StartCondition::Completed => record.version != version,
        };
        let held: Vec<&StartAfter> = spec.start_after.iter().filter(holds).collect();
        let (wait, since) = self.wait_of(&held, &version, record.waits.as_ref());
        self.record.start = Some(match wait {
            Some(_) => StartRecord {
                waits: Some(StartWaitRecord { version, since }),
                ..record
            },
            None => StartRecord {
                started: true,
                version,
                waits: None,
            },
        });
        wait
    }

    /// What a run of a Job waits for before it begins; `key` is the last part of the run's key.
    pub(crate) fn run_wait(&mut self, parsed: &ParsedWorkload, key: &str) -> Option<StartWait> {
        let after: Vec<&StartAfter> = parsed.workload.spec.start_after.iter().collect();
        let before = self.record.start.clone();
        let waits = before.as_ref().and_then(|record| record.waits.as_ref());
        let (wait, since) = self.wait_of(&after, key, waits);
        let waits = wait.is_some().then(|| StartWaitRecord {
            version: key.to_owned(),
            since,
        });
        self.record.start = waits.map(|waits| StartRecord {
            waits: Some(waits),
            ..StartRecord::default()
        });
        wait
    }

    /// What of `held` does not hold, and since when `version` waits.
    fn wait_of(
        &mut self,
        held: &[&StartAfter],
        version: &str,
        before: Option<&StartWaitRecord>,
    ) -> (Option<StartWait>, Timestamp) {
        let now = self.draft.now;
        let before = before.filter(|before| before.version == version);
        // The leader that wrote the time may have a clock that is ahead of this one's.
        let since = before.map_or(now, |before| before.since.min(now));
        let waited = time_from(since, now);
        let mut waits: Vec<(Reason, String)> = Vec::new();
        let mut given_up = Vec::new();
        let mut unmet = Vec::new();
        for one in held {
            unmet.extend(self.unmet(one).map(|why| (*one, why)));
        }
        for (one, unmet) in self.without_circles(unmet) {
            let seconds = one.timeout_seconds;
            let left = Duration::from_secs(seconds.into()).saturating_sub(waited);
            if !left.is_zero() {
                self.draft.wake(left);
            }
            let (StartAfter { workload, .. }, wanted) = (one, wanted_in_words(one.condition));
            let (is_for_person, why) = match unmet {
                Unmet::Yet(why) => (false, why),
                Unmet::ForPerson(why) => (true, why),
            };
            let (reason, then) = match (one.on_timeout, left.is_zero()) {
                (OnStartTimeout::Start, true) => {
                    given_up.push(format!(
                        "it starts after {seconds} s although `{workload}` {}: {why}",
                        not_in_words(one.condition)
                    ));
                    continue;
                }
                (OnStartTimeout::Start, false) => (
                    Reason::WaitsForDependency,
                    format!("; it starts without that after {seconds} s"),
                ),
                (OnStartTimeout::Wait, _) if is_for_person => {
                    (Reason::DependencyFailed, String::new())
                }
                (OnStartTimeout::Wait, true) => (
                    Reason::DependencyTimedOut,
                    format!("; it has waited for more than {seconds} s"),
                ),
                (OnStartTimeout::Wait, false) => (Reason::WaitsForDependency, String::new()),
            };
            let message = format!("it starts when `{workload}` {wanted}: {why}{then}");
            waits.push((reason, message));
        }
        let Some(reason) = waits.iter().map(|(reason, _)| *reason).max_by_key(gravity) else {
            for message in given_up {
                let reason = EventReason::DependencyTimedOut;
                self.workload_event(EventKind::Warning, reason, message);
            }
            return (None, since);
        };
        let messages: Vec<String> = waits.into_iter().map(|(_, message)| message).collect();
        let message = messages.join("; ");
        (Some(StartWait { reason, message }), since)
    }

    /// Why a condition does not hold; `None` if it does.
    fn unmet(&mut self, one: &StartAfter) -> Option<Unmet> {
        let snapshot = self.draft.snapshot;
        let key = WorkloadKey::new(&self.key.namespace, &one.workload);
        let Some(entry) = snapshot.workloads.get(&key) else {
            let why = format!("the namespace `{}` has no such workload", key.namespace);
            return Some(Unmet::Yet(why));
        };
        let parsed = entry.parsed.as_ref().ok();
        let kind = parsed.map(|parsed| parsed.workload.spec.kind);
        let unmet = if let Some(why) = unsuitable(one.condition, kind) {
            Unmet::ForPerson(why.to_owned())
        } else if entry.meta.value.deleting {
            Unmet::Yet("it is being deleted".to_owned())
        } else {
            match (one.condition, kind) {
                (StartCondition::Completed, _) => unmet_by_runs(snapshot, &key, entry)?,
                (StartCondition::Started, Some(WorkloadType::Job))
                    if has_succeeded(snapshot, &key, entry) =>
                {
                    return None;
                }
                (StartCondition::Started | StartCondition::Healthy, _) => {
                    if self.has_instance_that(&key, one.condition) {
                        return None;
                    }
                    let spec = parsed.map(|parsed| &parsed.workload.spec);
                    // Only a Service has replicas, whatever the file of another type says.
                    let is_empty = spec.is_some_and(|spec| {
                        spec.kind == WorkloadType::Service && spec.replicas == Some(0)
                    });
                    Unmet::Yet(match (is_empty, one.condition) {
                        (true, _) => "it has 0 replicas".to_owned(),
                        (false, StartCondition::Healthy) => {
                            "no instance of it is healthy yet".to_owned()
                        }
                        (false, _) => "no instance of it runs yet".to_owned(),
                    })
                }
            }
        };
        Some(unmet)
    }

    /// Those of `unmet` that lead back to the workload itself hold nothing back. There is one search for
    /// all of them where none does, which is the rule: a tenant may have many workloads that wait.
    fn without_circles<'s>(
        &self,
        unmet: Vec<(&'s StartAfter, Unmet)>,
    ) -> Vec<(&'s StartAfter, Unmet)> {
        let snapshot = self.draft.snapshot;
        let all = unmet.iter().map(|(one, _)| *one);
        if StartOrder::of(snapshot, self.key, all).circle.is_none() {
            return unmet;
        }
        let unmet = unmet.into_iter();
        unmet
            .filter(|(one, _)| {
                let alone = std::iter::once(*one);
                StartOrder::of(snapshot, self.key, alone).circle.is_none()
            })
            .collect()
    }

    /// Whether an instance of the workload runs or is healthy.
    fn has_instance_that(&mut self, key: &WorkloadKey, condition: StartCondition) -> bool {
        let now = self.draft.now;
        let statuses = self.around.statuses;
        let draft = &*self.draft;
        let running: Vec<&InstanceRecord> = draft
            .instances_of(key)
            .iter()
            .filter(|(id, instance)| {
                let assignment = &instance.assignment.value;
                assignment.wanted == DesiredRun::Running && !draft.stops(id)
            })
            .filter_map(|(id, instance)| {
                let status = statuses.get(&instance.node)?;
                let answers = status.phase != NodePhase::NotReady;
                status.instances.get(*id).filter(|_| answers)
            })
            .filter(|record| record.phase == InstancePhase::Running)
            .collect();
        if condition != StartCondition::Healthy {
            return !running.is_empty();
        }
        let settling = running
            .into_iter()
            .filter_map(|record| settles_in(record, now))
            .min();
        match settling {
            Some(Duration::ZERO) => true,
            Some(left) => {
                self.draft.wake(left);
                false
            }
            None => false,
        }
    }
}

/// What a condition asks of the other workload, after its name.
fn wanted_in_words(condition: StartCondition) -> &'static str {
    match condition {
        StartCondition::Started => "runs",
        StartCondition::Healthy => "is healthy",
        StartCondition::Completed => "has completed",
    }
}

/// That a condition does not hold, after the name of the other workload.
fn not_in_words(condition: StartCondition) -> &'static str {
    match condition {
        StartCondition::Started => "does not run",
        StartCondition::Healthy => "is not healthy",
        StartCondition::Completed => "has not completed",
    }
}

/// Of several waits the gravest one gives the reason.
fn gravity(reason: &Reason) -> u8 {
    match reason {
        Reason::DependencyFailed => 2,
        Reason::DependencyTimedOut => 1,
        _ => 0,
    }
}

/// Why a workload of this type never fulfils a condition.
fn unsuitable(condition: StartCondition, kind: Option<WorkloadType>) -> Option<&'static str> {
    match (condition, kind?) {
        (StartCondition::Healthy, WorkloadType::Job) => {
            Some("it is a Job, which is never healthy; condition Completed waits for its end")
        }
        (StartCondition::Completed, WorkloadType::Service | WorkloadType::DaemonService) => {
            Some("it is no Job, and so never completes; condition Healthy waits for its health")
        }
        _ => None,
    }
}

/// The runs of a Job's present generation, without those by hand with other arguments, in the order of
/// their numbers.
fn runs_of<'s>(
    snapshot: &'s Snapshot,
    key: &WorkloadKey,
    entry: &WorkloadEntry,
) -> Vec<&'s JobRunRecord> {
    let meta = &entry.meta.value;
    let stored = snapshot.jobs.get(key);
    let runs = stored.into_iter().flat_map(|stored| stored.runs.values());
    let mut runs: Vec<&JobRunRecord> = runs
        .map(|run| &*run.value)
        .filter(|run| run.workload_uid == meta.uid && run.generation == meta.generation)
        .filter(|run| run.args.is_none())
        .collect();
    runs.sort_by_key(|run| run.number);
    runs
}

fn has_succeeded(snapshot: &Snapshot, key: &WorkloadKey, entry: &WorkloadEntry) -> bool {
    let mut runs = runs_of(snapshot, key, entry).into_iter();
    runs.any(|run| run.phase == RunPhase::Succeeded)
}

/// Why the present generation of a Job has not succeeded; `None` if it has.
fn unmet_by_runs(snapshot: &Snapshot, key: &WorkloadKey, entry: &WorkloadEntry) -> Option<Unmet> {
    if has_succeeded(snapshot, key, entry) {
        return None;
    }
    let runs = runs_of(snapshot, key, entry);
    if let Some(run) = runs.iter().rfind(|run| run.is_active()) {
        return Some(Unmet::Yet(format!("its run {} is active", run.number)));
    }
    if let Some(run) = runs.last() {
        let JobRunRecord {
            number, message, ..
        } = run;
        return Some(Unmet::ForPerson(format!(
            "its run {number} did not succeed: {message}"
        )));
    }
    let spec = entry.parsed.as_ref().ok().and_then(|one| one.job.as_ref());
    let state = snapshot.jobs.get(key).and_then(|job| job.state.as_ref());
    let suspended = state.is_some_and(|state| state.value.suspended.is_some());
    let suspended = suspended || spec.is_some_and(|spec| spec.suspend);
    let why = match suspended {
        true => "it is suspended, and its present generation has had no run",
        false => "its present generation has had no run yet",
    };
    Some(Unmet::Yet(why.to_owned()))
}

/// The workloads that one starts after, those that these start after, and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOrder {
    /// Names of workloads of the same namespace, some of which may not exist.
    pub before: BTreeSet<String>,
    /// The names along a circle through the workload, which is the first and the last of them.
    pub circle: Option<Vec<String>>,
}

impl StartOrder {
    /// The order of a workload that starts after `own`, among those that are stored.
    pub fn of<'s>(
        snapshot: &'s Snapshot,
        key: &WorkloadKey,
        own: impl Iterator<Item = &'s StartAfter>,
    ) -> Self {
        let mut order = Self {
            before: BTreeSet::new(),
            circle: None,
        };
        let mut reached_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut next: VecDeque<(&str, &str)> = own
            .map(|one| (one.workload.as_str(), key.name.as_str()))
            .collect();
        while let Some((name, from)) = next.pop_front() {
            if name == key.name {
                order.circle = Some(path_to(&key.name, from, &reached_from));
                return order;
            }
            if !order.before.insert(name.to_owned()) {
                continue;
            }
            reached_from.insert(name, from);
            let stored = snapshot
                .workloads
                .get(&WorkloadKey::new(&key.namespace, name));
            let parsed = stored.and_then(|entry| entry.parsed.as_ref().ok());
            let after = parsed
                .into_iter()
                .flat_map(|one| &one.workload.spec.start_after);
            next.extend(after.map(|one| (one.workload.as_str(), name)));
        }
        order
    }
}

/// The names from `own` to `last` and back to `own`.
fn path_to(own: &str, last: &str, reached_from: &BTreeMap<&str, &str>) -> Vec<String> {
    let mut path = vec![own.to_owned()];
    let mut name = last;
    while name != own {
        path.push(name.to_owned());
        let Some(from) = reached_from.get(name) else {
            break;
        };
        name = from;
    }
    path.push(own.to_owned());
    path.reverse();
    path
}

/// What of `after` does not exist yet or never reaches its condition, a sentence for each.
pub fn start_order_warnings(
    snapshot: &Snapshot,
    namespace: &str,
    after: &[StartAfter],
) -> Vec<String> {
    let warning = |one: &StartAfter| {
        let StartAfter {
            workload,
            condition,
            ..
        } = one;
        let key = WorkloadKey::new(namespace, workload);
        let Some(entry) = snapshot.workloads.get(&key) else {
            return Some(format!(
                "startAfter: there is no workload `{workload}` in namespace `{namespace}` yet; the start waits for it"
            ));
        };
        let kind = entry.parsed.as_ref().ok();
        let kind = kind.map(|parsed| parsed.workload.spec.kind);
        let why = unsuitable(*condition, kind)?;
        Some(format!(
            "startAfter: `{workload}` never fulfils condition {condition:?}: {why}"
        ))
    };
    after.iter().filter_map(warning).collect()
}
