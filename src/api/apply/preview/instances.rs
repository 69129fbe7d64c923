//! The effect of a change on each instance of a workload.

use std::collections::{BTreeMap, BTreeSet};

use kat_leader::RehearsalResult;
use kat_plan::{Snapshot, machines_of_daemon};
use kat_types::{
    api::{AVAILABLE, InstanceAction, InstanceChange, InstancePhase, NodePhase},
    assignment::{Assignment, DesiredRun, PREPARED_SCHEMA, is_machine_slot},
    resource::{Completions, WorkloadType},
    store::{
        revisions::WorkloadKey,
        snapshot::{InstanceEntry, ObservedReports, ParsedWorkload, WorkloadEntry},
    },
};

/// An instance that is wanted.
#[derive(Clone, Copy)]
pub(crate) struct PreviewedInstance<'a> {
    pub(crate) id: &'a str,
    pub(crate) node: &'a str,
    pub(crate) assignment: &'a Assignment,
}

/// A slot without an instance.
struct EmptySlot<'a> {
    slot: u32,
    /// The machine that it is bound to.
    node: Option<&'a str>,
    /// What the machine has to do before it gets an instance.
    waits: Option<&'static str>,
}

/// The slots that a workload is to have.
fn slots_of<'a>(
    snapshot: &'a Snapshot,
    key: &WorkloadKey,
    parsed: &ParsedWorkload,
) -> Vec<EmptySlot<'a>> {
    let spec = &parsed.workload.spec;
    if is_per_node(parsed) && !has_run(snapshot, key, parsed) {
        return Vec::new();
    }
    if spec.kind == WorkloadType::DaemonService || is_per_node(parsed) {
        let machines = machines_of_daemon(snapshot, spec).into_iter();
        return machines
            .map(|machine| EmptySlot {
                slot: machine.slot,
                node: Some(machine.name),
                waits: machine.waits,
            })
            .collect();
    }
    (0..spec.replicas.unwrap_or(1))
        .map(|slot| EmptySlot {
            slot,
            node: None,
            waits: None,
        })
        .collect()
}

/// Whether runs of the Job have one instance on each machine.
fn is_per_node(parsed: &ParsedWorkload) -> bool {
    let job = parsed.job.as_ref();
    job.is_some_and(|job| matches!(job.completions, Completions::PerNode(_)))
}

/// Whether a Job has an active run, or gets one by its schedule.
fn has_run(snapshot: &Snapshot, key: &WorkloadKey, parsed: &ParsedWorkload) -> bool {
    let job = parsed.job.as_ref();
    let stored = snapshot.jobs.get(key).into_iter();
    let mut runs = stored.flat_map(|stored| stored.runs.values());
    job.is_some_and(|job| job.schedule.is_some()) || runs.any(|run| run.value.is_active())
}

/// Instances before and after, by slot.
pub(crate) struct InstanceFates<'a> {
    before: &'a Snapshot,
    /// A present instance, and the instance in its place afterwards.
    pub(crate) pairs: Vec<(Option<PreviewedInstance<'a>>, Option<PreviewedInstance<'a>>)>,
    /// Slots without an instance afterwards.
    empty: Vec<EmptySlot<'a>>,
    /// The type of the workload afterwards.
    kind: Option<WorkloadType>,
    /// Its runs have one instance on each machine.
    per_node: bool,
    replicas: u32,
    /// Template hash of the wanted version.
    template: &'a str,
    /// Why the rehearsal did not complete all changes.
    pub(crate) blocked: String,
    /// How far the runs of a Job with one instance on each machine are; empty for any other workload.
    runs: String,
    reports: &'a ObservedReports,
}

impl<'a> InstanceFates<'a> {
    pub(crate) fn of(
        key: &'a WorkloadKey,
        before: &'a Snapshot,
        rehearsed: &'a RehearsalResult,
        reports: &'a ObservedReports,
    ) -> Self {
        let after = &rehearsed.snapshot;
        let entry = after.workloads.get(key);
        let parsed = entry.and_then(|entry| entry.parsed.as_ref().ok());
        let spec = parsed.map(|parsed| &parsed.workload.spec);
        let slots_after = parsed.map_or_else(Vec::new, |parsed| slots_of(after, key, parsed));
        let per_node = parsed.is_some_and(|parsed| is_per_node(parsed));
        let mut olds = by_slot(key, before);
        let mut news = by_slot(key, after);
        let slots: BTreeSet<u32> = olds.keys().chain(news.keys()).copied().collect();
        let mut pairs = Vec::new();
        for slot in slots {
            let mut old = olds.remove(&slot).unwrap_or_default();
            let mut new = news.remove(&slot).unwrap_or_default();
            old.retain(
                |one| match new.iter().position(|other| other.id == one.id) {
                    Some(place) => {
                        pairs.push((Some(*one), Some(new.remove(place))));
                        false
                    }
                    None => true,
                },
            );
            let mut new = new.into_iter();
            pairs.extend(old.into_iter().map(|one| (Some(one), new.next())));
            pairs.extend(new.map(|one| (None, Some(one))));
        }
        let filled = |slot: u32| {
            let mut after = pairs.iter().filter_map(|(_, after)| after.as_ref());
            after.any(|one| one.assignment.slot == slot)
        };
        Self {
            before,
            kind: spec.map(|spec| spec.kind),
            per_node,
            replicas: spec.map_or(0, |spec| spec.replicas.unwrap_or(1)),
            empty: slots_after
                .into_iter()
                .filter(|one| !filled(one.slot))
                .collect(),
            template: entry.map_or("", |entry| &entry.meta.value.template_hash),
            blocked: entry.map_or_else(String::new, |entry| blocked(entry)),
            runs: entry
                .filter(|_| per_node)
                .map_or_else(String::new, |entry| runs_in_words(entry)),
            pairs,
            reports,
        }
    }

    /// Whether any instance is replaced by another.
    pub(crate) fn replaces(&self) -> bool {
        self.pairs.iter().any(|pair| match pair {
            (Some(old), Some(after)) => old.id != after.id,
            _ => false,
        })
    }

    /// Machines of new instances whose agent does not know prepared instances.
    pub(crate) fn too_old_to_prepare(&self) -> BTreeSet<&'a str> {
        let replaced = self.pairs.iter().filter_map(|pair| match pair {
            (Some(old), Some(after)) => (old.id != after.id).then_some(after.node),
            _ => None,
        });
        let is_too_old = |node: &&str| {
            let reported = self.reports.reports.get(*node);
            reported.is_some_and(|one| one.report.assignment_schema < PREPARED_SCHEMA)
        };
        replaced.filter(is_too_old).collect()
    }

    /// The changes in words. If the workload is `new`, its rehearsed ids derive from a uid that the
    /// real workload will not have.
    pub(crate) fn changes(&self, new: bool) -> Vec<InstanceChange> {
        let pairs = self.pairs.iter().filter_map(|pair| self.change(pair, new));
        let waiting = self.empty.iter().map(|empty| InstanceChange {
            action: InstanceAction::Wait,
            slot: empty.slot,
            node: empty.node.map(str::to_owned),
            reason: match (empty.waits, self.blocked.as_str()) {
                (Some(waits), _) if self.per_node => {
                    format!("left out of a run, unless the machine {waits} before the run begins")
                }
                (None, "") if self.per_node => self.runs.clone(),
                (Some(waits), _) => format!("when the machine {waits}"),
                (None, "") => "its turn was not reached".to_owned(),
                (None, blocked) => blocked.to_owned(),
            },
            ..InstanceChange::default()
        });
        let mut changes: Vec<_> = pairs.chain(waiting).collect();
        changes.sort_by_key(|change| change.slot);
        changes
    }

    fn change(
        &self,
        pair: &(Option<PreviewedInstance<'_>>, Option<PreviewedInstance<'_>>),
        new: bool,
    ) -> Option<InstanceChange> {
        let change = match pair {
            (Some(old), Some(after)) if old.id == after.id => InstanceChange {
                action: InstanceAction::Keep,
                reason: self.why_kept(after),
                ..about(old)
            },
            (Some(old), Some(after)) => InstanceChange {
                action: if old.node == after.node {
                    InstanceAction::Restart
                } else {
                    InstanceAction::Move
                },
                successor: Some(after.id.to_owned()),
                successor_node: Some(after.node.to_owned()),
                reason: self.why_replaced(old, after),
                ..about(old)
            },
            (Some(old), None) => InstanceChange {
                action: InstanceAction::Stop,
                reason: self.why_stopped(old).to_owned(),
                ..about(old)
            },
            (None, Some(after)) => InstanceChange {
                action: InstanceAction::Create,
                slot: after.assignment.slot,
                successor: (!new).then(|| after.id.to_owned()),
                successor_node: Some(after.node.to_owned()),
                ..InstanceChange::default()
            },
            (None, None) => return None,
        };
        Some(change)
    }

    fn why_stopped(&self, old: &PreviewedInstance<'_>) -> &'static str {
        let Assignment {
            slot,
            workload_type,
            ..
        } = old.assignment;
        if self.kind.is_some_and(|kind| kind != *workload_type) {
            "the type of its workload changes"
        } else if is_machine_slot(*slot) && *workload_type == WorkloadType::Job {
            "its run ends"
        } else if is_machine_slot(*slot) {
            "its machine does not match the workload"
        } else if *slot < self.replicas {
            "another one has its place"
        } else {
            "fewer replicas are wanted"
        }
    }

    fn why_kept(&self, after: &PreviewedInstance<'_>) -> String {
        let outdated = after.assignment.template_hash != self.template;
        if !self.blocked.is_empty() && (outdated || !self.empty.is_empty()) {
            return self.blocked.clone();
        }
        if outdated {
            return "its turn was not reached".to_owned();
        }
        "nothing that it is made of changes".to_owned()
    }

    fn why_replaced(&self, old: &PreviewedInstance<'_>, after: &PreviewedInstance<'_>) -> String {
        if old.assignment.template_hash != after.assignment.template_hash {
            return "what it is made of changes".to_owned();
        }
        let node = old.node;
        let entry = self.before.nodes.get(node);
        if entry.is_some_and(|entry| entry.registration.value.draining) {
            return format!("its machine {node} is being drained");
        }
        let status = entry.and_then(|entry| entry.status.as_ref());
        if status.is_some_and(|status| status.value.phase == NodePhase::NotReady) {
            return format!("its machine {node} does not answer");
        }
        let reported = self.reports.reports.get(node).into_iter();
        let failed = reported
            .flat_map(|reported| &reported.report.workload_instances)
            .any(|one| one.instance_id == old.id && one.phase == InstancePhase::Failed);
        let reason = if failed {
            "its program ended"
        } else {
            "another one takes its place"
        };
        reason.to_owned()
    }
}

fn about(present: &PreviewedInstance<'_>) -> InstanceChange {
    InstanceChange {
        slot: present.assignment.slot,
        instance: Some(present.id.to_owned()),
        node: Some(present.node.to_owned()),
        ..InstanceChange::default()
    }
}

fn by_slot<'a>(
    key: &'a WorkloadKey,
    snapshot: &'a Snapshot,
) -> BTreeMap<u32, Vec<PreviewedInstance<'a>>> {
    let mut slots: BTreeMap<u32, Vec<PreviewedInstance<'a>>> = BTreeMap::new();
    let running = snapshot
        .instances_of(key)
        .filter(|(_, entry)| entry.assignment.value.wanted == DesiredRun::Running);
    for (id, entry) in running {
        let InstanceEntry {
            node, assignment, ..
        } = entry;
        let present = PreviewedInstance {
            id,
            node,
            assignment: &assignment.value,
        };
        slots
            .entry(present.assignment.slot)
            .or_default()
            .push(present);
    }
    slots
}

/// What blocks the workload at the end, in the leader's words.
fn blocked(entry: &WorkloadEntry) -> String {
    let conditions = entry.status.iter();
    conditions
        .flat_map(|status| &status.value.status.conditions)
        .find(|condition| condition.kind == AVAILABLE && !condition.status)
        .map_or_else(String::new, |condition| condition.message.clone())
}

/// How far the runs of a Job are, in the leader's words.
fn runs_in_words(entry: &WorkloadEntry) -> String {
    let conditions = entry.status.iter();
    conditions
        .flat_map(|status| &status.value.status.conditions)
        .find(|condition| condition.kind == AVAILABLE)
        .map_or_else(String::new, |condition| condition.message.clone())
}
