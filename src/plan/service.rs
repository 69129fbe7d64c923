//! The plan of one workload: the state of its instances, the steps of `converge`, its status, and
//! its deletion.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    draft::{Draft, OperationGroup, StoredInstance},
    images,
    status::{self, InstanceTally},
    volumes,
};
use crate::{
    Snapshot,
    instances::measure,
    nodes::{drain::is_drained_by_force, node_loss::LostMachines},
    rollout::{
        blocked::{Blocked, LeaveObstacle, WorkloadOutcome},
        classify::may_be_ending,
        in_place, is_settled, replicas,
        rollback::Rollback,
        slot::LiveInstance,
        slots::{Apart, DaemonView, SlotSet, machines_with_daemon},
    },
    scheduling::{
        host_ports::{HostPorts, ports_of},
        machines::Machines,
    },
    services::{isolation::ConfirmedRules, service_addresses::ServiceAddresses},
    unwritable_objects as frozen,
    unwritable_objects::{NotWritable, NotWritableCause},
};
use kat_types::{
    api::{EventKind, InstancePhase, NodePhase, ObjectKind, ObjectReference},
    assignment::{Assignment, DesiredRun},
    reason::{EventReason, Reason},
    resource::{OnNodeLoss, OnPartition, WorkloadSpec, WorkloadType},
    services::host_port_statuses,
    store::{
        keys,
        records::{NodeStatusRecord, WorkloadStatusRecord},
        revisions::WorkloadKey,
        snapshot::{ParsedWorkload, WorkloadEntry},
        transaction::Compare,
    },
};

/// The part of a plan's input that all workloads share.
#[derive(Clone, Copy)]
pub(super) struct ClusterView<'b> {
    pub(super) statuses: &'b BTreeMap<String, NodeStatusRecord>,
    pub(super) losses: &'b LostMachines,
    /// How long this leader has led.
    pub(super) leading_for: Duration,
    pub(super) services: &'b ServiceAddresses,
    /// The numbers assigned for `hostPort: auto`.
    pub(super) host_ports: &'b HostPorts,
    /// The rules of isolation that all machines have in force.
    pub(super) confirmed: Option<&'b ConfirmedRules>,
}

/// Brings one workload a step closer to its desired state.
pub(super) fn plan_workload<'a>(
    draft: &mut Draft<'a>,
    machines: &mut Machines<'a>,
    key: &WorkloadKey,
    entry: &WorkloadEntry,
    around: ClusterView<'_>,
) {
    let meta = &entry.meta.value;
    let all = live_instances(draft, machines, (key, entry), around);
    let (slots, apart) = slots_of(draft.snapshot, entry, around, &all);
    let is_prepared = |live: &LiveInstance<'_>| live.assignment.wanted == DesiredRun::Prepared;
    let (prepared, all): (Vec<_>, Vec<_>) = all.into_iter().partition(is_prepared);
    let mut record = entry
        .status
        .as_ref()
        .map(|stored| stored.value.clone())
        .unwrap_or_default();
    record.schema = 1;
    let mut pass = WorkloadPlanner {
        draft,
        machines,
        key,
        entry,
        around,
        group: OperationGroup::default(),
        record,
        slots,
    };

    let frozen = pass.draft.frozen.workload(key).cloned();
    if let Some(frozen) = frozen.filter(|_| !meta.deleting) {
        return pass.write_frozen(&all, &frozen);
    }
    if let Some((key, cause)) = pass.next_is_not_writable(&all) {
        // The plan is repeated, and then leaves the workload as it is.
        return pass.draft.refuse(pass.key, key, cause);
    }
    pass.confirm_stopped(&all);
    pass.note_volumes(&all);
    let data_moves = pass.stop_what_moves(&all);
    // The others are planned as if these were not there.
    let is_apart = |live: &LiveInstance<'_>| !meta.deleting && apart.contains_key(live.id);
    let (left_alone, all): (Vec<_>, Vec<_>) = all.into_iter().partition(is_apart);
    let outcome = WorkloadOutcome {
        blocked: leaving_last(&left_alone, &apart),
        lost: lost_machines(&left_alone, &apart),
        data_moves,
        ..WorkloadOutcome::default()
    };
    let wanted: Vec<&LiveInstance<'_>> = all
        .iter()
        .filter(|live| live.is_wanted() && !pass.draft.stops(live.id))
        .collect();
    let planned = if meta.deleting {
        for live in &wanted {
            pass.stop(live, "its workload is deleted");
        }
        for live in &prepared {
            pass.remove_prepared(live);
        }
        let has_user = pass.machines_with_user();
        if all.is_empty() && prepared.is_empty() && has_user.is_empty() {
            return pass.finish_deletion();
        }
        Some(WorkloadOutcome {
            has_user,
            ..outcome
        })
    } else if let Ok(parsed) = &entry.parsed {
        pass.plan_instances(parsed, &wanted, (&all, &prepared), outcome)
    } else {
        // Instances of a workload whose files can't be read are left alone; the status says why.
        Some(outcome)
    };
    let Some(outcome) = planned else {
        return;
    };
    if !meta.deleting {
        pass.follow_logins(all.iter().chain(&prepared).chain(&left_alone));
    }
    pass.write_status(&all, &prepared, &outcome);
}

/// The instances of a workload, with what follows from the state of their machines.
fn live_instances<'l, 'a: 'l>(
    draft: &Draft<'a>,
    machines: &Machines<'a>,
    (key, entry): (&WorkloadKey, &WorkloadEntry),
    around: ClusterView<'l>,
) -> Vec<LiveInstance<'l>> {
    let ClusterView {
        statuses, losses, ..
    } = around;
    let meta = &entry.meta.value;
    let spec = entry.parsed.as_ref().ok();
    let spec = spec.map(|parsed| &parsed.workload.spec);
    let keeps = spec.is_some_and(|spec| spec.on_node_loss == Some(OnNodeLoss::Keep));
    // Its instances are replaced on no other machine.
    let is_daemon = is_daemon(entry);
    let live = |&(id, instance): &StoredInstance<'a>| {
        let status = statuses.get(&instance.node);
        let away = status.is_some_and(|status| status.phase == NodePhase::NotReady);
        let drained = !away && machines.is_drained(&instance.node);
        let assignment = &instance.assignment.value;
        let lost = losses.is_replaced(&instance.node);
        let fenced = lost && assignment.on_partition == OnPartition::Stop;
        // An instance that writes data may still run unless its machine has stopped it, and one
        // whose data is on that machine is useless elsewhere.
        let pinned = volumes::is_pinned(draft, key, assignment, statuses);
        let waits = (assignment.writes_data() && !fenced) || pinned;
        let record = status.and_then(|status| status.instances.get(id));
        let short = status.is_some_and(|one| images::pressure(&one.conditions).is_some());
        let stopped = record.is_some_and(|record| {
            record.phase == InstancePhase::Scheduled && record.reason == Reason::Evicted
        });
        let leaves = drained || (lost && !waits && !keeps && !is_daemon);
        let tied = away || pinned || assignment.writes_data() || is_daemon;
        LiveInstance {
            id,
            node: &instance.node,
            assignment,
            record,
            current: assignment.template_hash == meta.template_hash
                && has_others_of(assignment, entry),
            away,
            heard: losses.last_contact(&instance.node),
            leaves,
            forced_out: leaves && !away && is_drained_by_force(draft.snapshot, &instance.node),
            waits,
            fenced,
            evicted: stopped && short && !tied,
        }
    };
    draft.instances_of(key).iter().map(live).collect()
}

fn is_daemon(entry: &WorkloadEntry) -> bool {
    let parsed = entry.parsed.as_ref();
    parsed.is_ok_and(|parsed| parsed.workload.spec.kind == WorkloadType::DaemonService)
}

/// The slots of a workload; and of a DaemonService the instances that are not counted, by id.
fn slots_of<'l, 'a>(
    snapshot: &'a Snapshot,
    entry: &WorkloadEntry,
    around: ClusterView<'_>,
    all: &[LiveInstance<'l>],
) -> (SlotSet<'a>, BTreeMap<&'l str, Apart>) {
    let parsed = match &entry.parsed {
        Ok(parsed) if is_daemon(entry) => parsed,
        Ok(parsed) => {
            let replicas = replicas(&parsed.workload.spec);
            return (SlotSet::Replicas(replicas), BTreeMap::new());
        }
        Err(_) => return (SlotSet::Replicas(0), BTreeMap::new()),
    };
    let own = machines_with_daemon(all);
    let daemon = DaemonView {
        snapshot,
        statuses: around.statuses,
        losses: around.losses,
        spec: &parsed.workload.spec,
        own: &own,
    };
    let apart = all
        .iter()
        .filter_map(|live| Some((live.id, daemon.apart(live)?)));
    (daemon.slots(), apart.collect())
}

/// The plan of one workload while it is made.
pub(super) struct WorkloadPlanner<'d, 'a, 'b> {
    pub(super) draft: &'d mut Draft<'a>,
    pub(super) machines: &'d mut Machines<'a>,
    pub(super) key: &'b WorkloadKey,
    pub(super) entry: &'b WorkloadEntry,
    pub(super) around: ClusterView<'b>,
    pub(super) group: OperationGroup,
    pub(super) record: WorkloadStatusRecord,
    pub(super) slots: SlotSet<'a>,
}

impl<'b> WorkloadPlanner<'_, '_, 'b> {
    /// Deletes the assignments of instances that their machine confirms as stopped.
    fn confirm_stopped(&mut self, all: &[LiveInstance<'_>]) {
        let parsed = self.entry.parsed.as_ref().ok();
        let is_job = parsed.is_some_and(|parsed| parsed.job.is_some());
        for live in all.iter().filter(|live| !live.is_wanted()) {
            // The Job's plan deletes it, together with the machine's last runs.
            let has_runs = live.assignment.bound.is_some();
            if has_runs && is_job && !self.entry.meta.value.deleting {
                continue;
            }
            let stopped = live
                .record
                .is_some_and(|record| record.phase == InstancePhase::Stopped);
            if stopped {
                self.draft.remove(&mut self.group, live.node, live.id);
                self.flush_if_full();
            }
        }
    }

    /// Requests that an instance is stopped. It stays assigned, with its address, until its machine
    /// confirms.
    pub(super) fn stop(&mut self, live: &LiveInstance<'_>, reason: &str) {
        let assignment = Assignment {
            wanted: DesiredRun::Stopped,
            not_understood: None,
            ..Assignment::clone(live.assignment)
        };
        let assignment = match self.is_frozen() {
            // Without files, secrets and credentials, the stop can always be written.
            true => Assignment {
                carried: None,
                secrets: None,
                logins: None,
                ..assignment
            },
            false => assignment,
        };
        self.make_room_for(&assignment);
        self.draft.update(&mut self.group, live.node, &assignment);
        let message = if live.away {
            let node = live.node;
            format!("to be stopped when its machine {node} is back, because {reason}")
        } else {
            format!("stopped because {reason}")
        };
        self.instance_event(EventReason::Stopping, live.id, message);
        self.flush_if_full();
    }

    /// Stops the instances from before a change of the workload's type: a Job and a Service take over
    /// nothing from each other. True where there were any.
    fn stop_other_type(
        &mut self,
        kind: WorkloadType,
        wanted: &[&LiveInstance<'_>],
        prepared: &[LiveInstance<'_>],
    ) -> bool {
        let mut any = false;
        for live in wanted {
            if live.assignment.workload_type != kind {
                self.stop(live, "the type of its workload has changed");
                any = true;
            }
        }
        for live in prepared {
            if live.assignment.workload_type != kind {
                self.remove_prepared(live);
                any = true;
            }
        }
        any
    }

    /// Takes the instances a step closer to what the files say, and returns `outcome` with what that
    /// leaves to be said; `None` where something was written that the next plan begins with.
    fn plan_instances<'o>(
        &mut self,
        parsed: &ParsedWorkload,
        wanted: &[&LiveInstance<'_>],
        (all, prepared): (&[LiveInstance<'_>], &[LiveInstance<'_>]),
        mut outcome: WorkloadOutcome<'o>,
    ) -> Option<WorkloadOutcome<'o>> {
        let kind = parsed.workload.spec.kind;
        if kind != WorkloadType::Job {
            outcome.start_wait = self.start_wait(parsed, all);
        }
        let keeps_other = outcome.start_wait.is_some() && other_type_serves(kind, wanted);
        if !keeps_other && self.stop_other_type(kind, wanted, prepared) {
            // The next plan begins with what is left, and its status is of the new type.
            self.flush_gathered();
            return None;
        }
        if kind == WorkloadType::Job {
            return Some(self.plan_job(parsed, all, outcome));
        }
        if self.draft.snapshot.jobs.contains_key(self.key) {
            // Runs of the time when it was a Job would stay active for ever.
            let WorkloadKey { namespace, name } = self.key;
            self.group.delete_prefix(keys::job(namespace, name));
            self.flush_gathered();
        }
        if self.follow_secrets(all) {
            // A new generation was written: the next plan sees it.
            return None;
        }
        outcome.without_place = self.slots_without_place(parsed, (all, prepared));
        match self.follow(parsed, (all, prepared), &outcome) {
            Rollback::None => {}
            Rollback::Written => return None,
            Rollback::Refused(why) => outcome.not_rolled_back = Some(why),
        }
        if !keeps_other && !daemons_end(&parsed.workload.spec, all) {
            let blocked = self.converge(parsed, (all, prepared), &outcome);
            outcome.blocked.extend(blocked);
        }
        Some(outcome)
    }

    /// Machines that may have something of the workload's user.
    fn machines_with_user(&self) -> Vec<&'b str> {
        let index = self.entry.meta.value.index;
        let statuses = self.around.statuses.iter();
        statuses
            .filter(|(_, status)| status.user_indexes.contains(&index))
            .map(|(machine, _)| machine.as_str())
            .collect()
    }

    /// Deletes the workload's keys, once no machine has anything of it.
    fn finish_deletion(&mut self) {
        let index = self.entry.meta.value.index;
        let has_data = self.give_up_volumes();
        let WorkloadKey { namespace, name } = self.key;
        let mut group = std::mem::take(&mut self.group);
        group.delete_prefix(keys::workload(namespace, name));
        group.delete_prefix(keys::archive(namespace, name));
        group.delete(keys::workload_status(namespace, name));
        group.delete_prefix(keys::job(namespace, name));
        if !has_data {
            group.delete(keys::index(index));
        }
        let object = self.object(ObjectKind::Workload, name.clone());
        self.draft.event(
            &mut group,
            EventKind::Normal,
            EventReason::Deleted,
            object,
            format!("workload {} is gone", self.key),
        );
        let meta = keys::workload_meta(namespace, name);
        let unchanged = Compare::ModRevision(meta, self.entry.meta.revision);
        self.draft.commit(
            group,
            format!("workload {} is gone", self.key),
            vec![unchanged],
        );
    }

    /// Whether a change of the workload cannot be written.
    pub(super) fn is_frozen(&self) -> bool {
        self.draft.frozen.workload(self.key).is_some()
    }

    /// The instance that is to be replaced by one that cannot be written, and why. With in-place
    /// replacement the old instance stops first, and after that it would be too late to find out.
    fn next_is_not_writable(&self, all: &[LiveInstance<'_>]) -> Option<(String, NotWritableCause)> {
        let meta = &self.entry.meta.value;
        if meta.deleting || meta.paused {
            return None;
        }
        let parsed = self.entry.parsed.as_ref().ok()?;
        let spec = &parsed.workload.spec;
        let is_wanted = spec.kind != WorkloadType::Service || spec.replicas != Some(0);
        let replaced = all.iter().find(|live| !live.current || live.leaves);
        let replaced = replaced.filter(|_| is_wanted)?;
        let cause = match measure::least_assignment(parsed) {
            Ok(bytes) => frozen::too_large(bytes)?,
            Err(error) => NotWritableCause::NotEncoded(error.reason),
        };
        Some((keys::desired_instance(replaced.node, replaced.id), cause))
    }

    /// Writes only the status, which says why nothing of the workload is started, stopped or moved.
    fn write_frozen(&mut self, all: &[LiveInstance<'_>], frozen: &NotWritable) {
        let WorkloadKey { namespace, name } = self.key;
        let stored_at = keys::workload_status(namespace, name);
        if frozen.key == stored_at {
            return;
        }
        let before = self.record.clone();
        let settled = self.settled(all);
        let outcome = WorkloadOutcome::default();
        let mut tally = InstanceTally::count(all, &settled, self.entry, &outcome);
        tally.note_machines(&self.slots, &outcome.lost);
        tally.not_writable = Some(frozen.to_string());
        let rollout = before.rollout.as_ref();
        let now = self.draft.now;
        self.record.status =
            status::workload_status(&tally, &before.status, self.entry, rollout, now);
        self.record.status.last_good_generation = self.record.good.last().copied();
        self.record.status.service_address = before.status.service_address;
        self.record
            .status
            .host_ports
            .clone_from(&before.status.host_ports);
        if self.entry.status.is_some() && self.record == before {
            return;
        }
        let told = before.status.conditions.iter();
        if !told.clone().any(|one| one.reason == Reason::NotWritable) {
            let object = self.object(ObjectKind::Workload, name.clone());
            let message = frozen.to_string();
            let kind = EventKind::Warning;
            let reason = EventReason::NotWritable;
            self.draft
                .event(&mut self.group, kind, reason, object, message);
        }
        let mut group = std::mem::take(&mut self.group);
        group.put(stored_at, &self.record);
        let reason = format!("workload {} cannot be written", self.key);
        self.draft.commit(group, reason, Vec::new());
    }

    /// Ids of the wanted instances that are settled. Schedules a new plan for when others may be.
    fn settled<'l>(&mut self, all: &'l [LiveInstance<'_>]) -> BTreeSet<&'l str> {
        let mut settled = BTreeSet::new();
        for live in all.iter().filter(|live| live.is_wanted()) {
            self.wake_when_settled(live);
            if is_settled(live, self.draft.now) {
                settled.insert(live.id);
            }
        }
        settled
    }

    fn write_status(
        &mut self,
        all: &[LiveInstance<'_>],
        prepared: &[LiveInstance<'_>],
        outcome: &WorkloadOutcome<'_>,
    ) {
        let settled = self.settled(all);
        let mut tally = InstanceTally::count(all, &settled, self.entry, outcome);
        tally.note_machines(&self.slots, &outcome.lost);
        tally.note_prepared(prepared);
        tally.note_stopped(status::stopped_in_words(
            self.draft.snapshot,
            (self.key, self.entry),
        ));
        if let Some(lost) = all.iter().find(|live| live.is_wanted() && live.away) {
            tally.is_away(lost, self.around.losses.why_not(lost.node));
        }
        let before = self
            .entry
            .status
            .as_ref()
            .map(|stored| stored.value.clone())
            .unwrap_or_default();
        let rollout = self.record.rollout.as_ref();
        self.record.status =
            status::workload_status(&tally, &before.status, self.entry, rollout, self.draft.now);
        if let Some(job) = outcome
            .job
            .as_ref()
            .filter(|_| !self.entry.meta.value.deleting)
        {
            let instances = all.iter().filter(|live| live.is_wanted()).count();
            let instances = u32::try_from(instances).unwrap_or(u32::MAX);
            let status = std::mem::take(&mut self.record.status);
            self.record.status =
                status::job_status(status, job, instances, &before.status, self.draft.now);
        }
        self.record.status.last_good_generation = self.record.good.last().copied();
        self.tell_stalled(&before);
        if let Some(why) = outcome.drain_blocked() {
            let condition = status::drain_blocked(&before.status, why, self.draft.now);
            self.record.status.conditions.push(condition);
        }
        let services = self.around.services;
        self.record.status.service_address = services.of(self.key);
        if let Ok(parsed) = &self.entry.parsed {
            let ports = self.around.host_ports.numbered(self.key, ports_of(parsed));
            self.record.status.host_ports = host_port_statuses(&ports.unwrap_or_default());
        } else {
            self.record.status.host_ports = before.status.host_ports.clone();
        }
        if let Some(why) = services.why_none(self.key, self.draft.snapshot) {
            let condition = status::without_address(&before.status, why, self.draft.now);
            self.record.status.conditions.push(condition);
        }
        let changed = self.entry.status.is_none() || self.record != before;
        if changed || !self.group.is_empty() {
            self.flush(changed);
        }
    }

    pub(super) fn flush_if_full(&mut self) {
        if Draft::is_full(&self.group) {
            self.flush(true);
        }
    }

    /// Commits the gathered operations.
    pub(super) fn flush_gathered(&mut self) {
        if !self.group.is_empty() {
            self.flush(true);
        }
    }

    /// Commits the gathered operations if nothing else has changed what they depend on.
    pub(super) fn commit_gathered(&mut self, reason: String, condition: Compare) {
        let group = std::mem::take(&mut self.group);
        self.draft.commit(group, reason, vec![condition]);
    }

    /// Stops an instance of a run, whose end is written in the same transaction. Its files and secrets
    /// are not needed for that, so that it fits.
    pub(super) fn stop_attempt(&mut self, live: &LiveInstance<'_>, reason: &str) {
        let assignment = Assignment {
            wanted: DesiredRun::Stopped,
            not_understood: None,
            carried: None,
            secrets: None,
            logins: None,
            ..Assignment::clone(live.assignment)
        };
        self.draft.update(&mut self.group, live.node, &assignment);
        self.instance_event(
            EventReason::Stopping,
            live.id,
            format!("stopped because {reason}"),
        );
    }

    /// Commits the gathered operations if `bytes` more would be too much for one transaction.
    pub(super) fn make_room(&mut self, bytes: usize) {
        if Draft::has_no_room(&self.group, bytes) {
            self.flush(true);
        }
    }

    /// Commits the gathered operations, with the count of the instances made so far.
    fn flush(&mut self, with_record: bool) {
        let mut group = std::mem::take(&mut self.group);
        if with_record {
            group.put(
                keys::workload_status(&self.key.namespace, &self.key.name),
                &self.record,
            );
        }
        self.draft
            .commit(group, format!("workload {}", self.key), Vec::new());
    }

    pub(super) fn instance_event(&mut self, reason: EventReason, instance: &str, message: String) {
        let object = self.object(ObjectKind::Instance, instance.to_owned());
        self.draft
            .event(&mut self.group, EventKind::Normal, reason, object, message);
    }

    pub(super) fn object(&self, kind: ObjectKind, name: String) -> ObjectReference {
        ObjectReference {
            kind,
            name,
            namespace: self.key.namespace.clone(),
            uid: self.entry.meta.value.uid.clone(),
        }
    }
}

/// The instances that leave their drained machine last, as blocked.
fn leaving_last(left_alone: &[LiveInstance<'_>], apart: &BTreeMap<&str, Apart>) -> Vec<Blocked> {
    let last = left_alone
        .iter()
        .filter(|live| apart.get(live.id) == Some(&Apart::LeavesLast));
    last.map(|live| Blocked::cannot_leave(live, LeaveObstacle::LeavesLast))
        .collect()
}

/// The lost machines of instances that are left alone.
fn lost_machines(left_alone: &[LiveInstance<'_>], apart: &BTreeMap<&str, Apart>) -> Vec<String> {
    let lost = left_alone
        .iter()
        .filter(|live| apart.get(live.id) == Some(&Apart::Lost));
    lost.map(|live| live.node.to_owned()).collect()
}

/// Whether instances from before a change of the type may serve until the present version starts. One that
/// has to leave its machine has no place elsewhere, and a run of a Job is over.
fn other_type_serves(kind: WorkloadType, wanted: &[&LiveInstance<'_>]) -> bool {
    let others = wanted.iter();
    let others: Vec<_> = others
        .filter(|live| live.assignment.workload_type != kind)
        .collect();
    !others.is_empty()
        && others
            .iter()
            .all(|live| live.assignment.workload_type != WorkloadType::Job && !live.leaves)
}

/// Whether a Service waits for instances of before, when it was a DaemonService: they have other
/// slots, and may use the same of their machine.
fn daemons_end(spec: &WorkloadSpec, all: &[LiveInstance<'_>]) -> bool {
    let of_daemon =
        |live: &&LiveInstance<'_>| live.assignment.workload_type == WorkloadType::DaemonService;
    let waits = |live: &LiveInstance<'_>| {
        let in_place = in_place(spec) || live.assignment.stops_first();
        in_place && !live.away && may_be_ending(live)
    };
    spec.kind == WorkloadType::Service && all.iter().filter(of_daemon).any(waits)
}

/// The assignment has the init containers and sidecars of its files, which a leader of an earlier
/// version leaves out.
fn has_others_of(assignment: &Assignment, entry: &WorkloadEntry) -> bool {
    let Ok(parsed) = &entry.parsed else {
        return true;
    };
    let spec = &parsed.workload.spec;
    assignment.others().count() == spec.init_containers.len() + spec.sidecars.len()
}
