//! Instances of a Service: one live instance for each slot, start-first replacement, a growing
//! delay before a failed one is replaced (RFC001-KAT 4.5).

use std::{collections::BTreeMap, time::Duration};

use super::{
    Assignment, Demand, EventKind, NodeStatusRecord, ParsedWorkload, Wanted, WorkloadEntry,
    WorkloadKey, WorkloadStatusRecord, WorkloadUser, choose,
    draft::{Draft, Group},
    instance_id,
    loss::Losses,
    machines::Machines,
    needed_schema,
    slot::{Live, Slot},
    status::{self, Tally},
};
use crate::{
    api::types::{InstancePhase, NodePhase, ObjectReference},
    resource::{OnNodeLoss, WorkloadSpec, WorkloadType},
    store::{Compare, keys},
};

/// First delay before a failed instance is replaced; it doubles up to [`LONGEST_DELAY`].
const FIRST_DELAY: Duration = Duration::from_secs(10);
/// Longest delay before a failed instance is replaced.
const LONGEST_DELAY: Duration = Duration::from_secs(300);
/// After so long without a failure the delay starts anew.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// Brings one workload closer to what is wanted of it.
pub(super) fn plan_workload<'a>(
    draft: &mut Draft<'a>,
    machines: &mut Machines<'a>,
    key: &WorkloadKey,
    entry: &WorkloadEntry,
    (statuses, losses): (&BTreeMap<String, NodeStatusRecord>, &Losses),
) {
    let meta = &entry.meta.value;
    let keeps = entry
        .parsed
        .as_ref()
        .is_ok_and(|parsed| parsed.workload.spec.on_node_loss == Some(OnNodeLoss::Keep));
    let all: Vec<Live<'_>> = draft
        .instances_of(key)
        .iter()
        .map(|&(id, instance)| {
            let status = statuses.get(&instance.node);
            let away = status.is_some_and(|status| status.phase == NodePhase::NotReady);
            let drained = !away && machines.is_drained(&instance.node);
            Live {
                id,
                node: &instance.node,
                assignment: &instance.assignment.value,
                record: status.and_then(|status| status.instances.get(id)).cloned(),
                current: instance.assignment.value.template_hash == meta.template_hash,
                away,
                leaves: drained || (losses.is_replaced(&instance.node) && !keeps),
            }
        })
        .collect();
    let mut record = entry
        .status
        .as_ref()
        .map(|stored| stored.value.clone())
        .unwrap_or_default();
    record.schema = 1;
    let mut pass = Pass {
        draft,
        machines,
        key,
        entry,
        statuses,
        losses,
        group: Group::default(),
        record,
        unschedulable: None,
        stuck: None,
        left: Vec::new(),
    };

    pass.confirm_stopped(&all);
    let wanted: Vec<&Live<'_>> = all.iter().filter(|live| live.wanted()).collect();
    if meta.deleting {
        for live in &wanted {
            pass.stop(live, "its workload is deleted");
        }
        pass.finish_deletion(&all);
    } else {
        // What runs of a workload that can't be read is left alone; its status says why.
        if let Ok(parsed) = &entry.parsed {
            pass.converge(parsed, &wanted);
        }
    }
    pass.write_status(&all);
}

struct Pass<'d, 'a, 'b> {
    draft: &'d mut Draft<'a>,
    machines: &'d mut Machines<'a>,
    key: &'b WorkloadKey,
    entry: &'b WorkloadEntry,
    statuses: &'b BTreeMap<String, NodeStatusRecord>,
    losses: &'b Losses,
    group: Group,
    record: WorkloadStatusRecord,
    unschedulable: Option<String>,
    /// Why something can't leave a machine that is drained.
    stuck: Option<String>,
    /// Machines that may have something of a deleted workload's user.
    left: Vec<&'b str>,
}

impl<'a> Pass<'_, 'a, '_> {
    /// Takes away the assignments whose machine confirms that nothing of them is left.
    fn confirm_stopped(&mut self, all: &[Live<'_>]) {
        for live in all.iter().filter(|live| !live.wanted()) {
            let stopped = live
                .record
                .as_ref()
                .is_some_and(|record| record.phase == InstancePhase::Stopped);
            if stopped {
                self.draft.remove(&mut self.group, live.node, live.id);
                self.flush_if_full();
            }
        }
    }

    fn converge(&mut self, parsed: &ParsedWorkload, wanted: &[&Live<'_>]) {
        let replicas = match parsed.workload.spec.kind {
            WorkloadType::Service => parsed.workload.spec.replicas.unwrap_or(1),
            WorkloadType::Job | WorkloadType::DaemonService => 0,
        };
        let mut slots: BTreeMap<u32, Slot<'_, '_>> = BTreeMap::new();
        for live in wanted {
            if live.assignment.slot < replicas {
                slots.entry(live.assignment.slot).or_default().add(live);
            } else {
                self.stop(live, "fewer replicas are wanted");
            }
        }
        self.forgive(wanted);
        let mut replacing = slots.values().filter(|slot| slot.is_replacing()).count();
        for slot in 0..replicas {
            let here = slots.remove(&slot).unwrap_or_default();
            self.converge_slot(parsed, slot, &here, &mut replacing);
        }
    }

    fn converge_slot(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        here: &Slot<'_, '_>,
        replacing: &mut usize,
    ) {
        let Some(best) = here.best() else {
            self.succeed(parsed, slot, here, replacing);
            return;
        };
        for surplus in here.surplus(best) {
            self.stop(surplus, "its slot has another instance");
        }
        if best.healthy() {
            for live in here.predecessors() {
                self.stop(live, "its successor is healthy");
            }
        }
        if best.over() && !best.away {
            self.replace_failed(parsed, slot, best);
        }
    }

    /// Gives a slot an instance of the wanted version on a machine that it can stay on.
    fn succeed(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        here: &Slot<'_, '_>,
        replacing: &mut usize,
    ) {
        let Some(before) = here.predecessor() else {
            self.create(parsed, slot);
            return;
        };
        for live in here.outdone(before) {
            self.stop(live, "a newer version takes its place");
        }
        // Nothing is known of it, and it is not given up.
        if before.away && !before.leaves {
            return;
        }
        let nothing_to_lose = before.away || before.over();
        if !nothing_to_lose && *replacing > 0 {
            return;
        }
        *replacing += 1;
        let Live { id, node, .. } = before;
        match self.create(parsed, slot) {
            Some(successor) if before.away => {
                let message = format!("its machine {node} is lost; {successor} takes its place");
                self.instance_event("Lost", id, message);
            }
            None if before.leaves && !before.away => {
                let why = self.unschedulable.as_deref().unwrap_or("no place");
                self.stuck = Some(format!("{id} can't leave {node}: {why}"));
            }
            _ => {}
        }
    }

    /// Replaces an instance whose program ended for good, once its delay has passed.
    fn replace_failed(&mut self, parsed: &ParsedWorkload, slot: u32, failed: &Live<'_>) {
        let ended = failed
            .record
            .as_ref()
            .and_then(|record| record.since)
            .unwrap_or(self.draft.now);
        let delay = delay_after(self.record.failures);
        let waited = self
            .draft
            .now
            .duration_since(ended)
            .try_into()
            .unwrap_or(Duration::ZERO);
        if waited < delay {
            self.draft.wake(delay - waited);
            return;
        }
        self.record.failures = self.record.failures.saturating_add(1);
        self.record.last_failure = Some(self.draft.now);
        self.stop(failed, "its program ended");
        self.create(parsed, slot);
    }

    fn forgive(&mut self, wanted: &[&Live<'_>]) {
        let Some(last) = self.record.last_failure else {
            return;
        };
        let quiet: Duration = self
            .draft
            .now
            .duration_since(last)
            .try_into()
            .unwrap_or(Duration::ZERO);
        if quiet >= FORGIVEN_AFTER && wanted.iter().all(|live| !live.over()) {
            self.record.failures = 0;
            self.record.last_failure = None;
        }
    }

    /// Places a new instance; its id, or nothing where none can be placed now.
    fn create(&mut self, parsed: &ParsedWorkload, slot: u32) -> Option<String> {
        let spec = &parsed.workload.spec;
        let meta = &self.entry.meta.value;
        let image = spec.source.image.clone()?;
        let Some(user) = WorkloadUser::from_index(meta.index, &self.key.namespace, &self.key.name)
        else {
            self.unschedulable = Some(format!("index {} has no user", meta.index));
            return None;
        };
        let ports = parsed
            .load_balancer
            .as_ref()
            .map(|balancer| balancer.spec.ports.as_slice())
            .unwrap_or_default();
        let health_check = parsed
            .load_balancer
            .as_ref()
            .and_then(|balancer| balancer.spec.health_check.as_ref());
        let replaces = self.replaced(spec, slot);
        let demand = Demand {
            spec,
            ports,
            replaces: &replaces,
            architectures: &meta.architectures,
            schema: needed_schema(spec, health_check),
        };
        let candidates = self.machines.candidates(self.key, self.draft);
        let node = match choose(demand, candidates, self.draft.seed ^ u64::from(slot)) {
            Ok(node) => node,
            Err(reason) => {
                let waiting = self.losses.waiting();
                let waiting = waiting.map_or_else(String::new, |why| format!("; {why}"));
                self.unschedulable = Some(format!("{reason}{waiting}"));
                return None;
            }
        };
        let address = self.draft.free_address(node)?;
        let instance = self.next_id();
        let assignment = Assignment {
            schema: demand.schema,
            instance: instance.clone(),
            namespace: self.key.namespace.clone(),
            workload: self.key.name.clone(),
            workload_uid: meta.uid.clone(),
            workload_type: spec.kind,
            labels: parsed.workload.metadata.labels.clone(),
            slot,
            generation: meta.generation,
            template_hash: meta.template_hash.clone(),
            user,
            address,
            image,
            container: spec.container.clone(),
            ports: self.machines.ports(node, ports),
            health_check: health_check.cloned(),
            restart_policy: spec.restart_policy.clone(),
            created: Some(self.draft.now),
            on_partition: spec.on_partition,
            wanted: Wanted::Running,
            not_understood: None,
        };
        self.draft.place(&mut self.group, node, &assignment);
        let has_address = self.draft.free_address(node).is_some();
        self.machines
            .placed(self.key, node, &assignment, has_address);
        self.instance_event(
            "Scheduled",
            &instance,
            format!("placed on {node} with address {address}"),
        );
        self.flush_if_full();
        Some(instance)
    }

    /// Machines of the live instances of a slot that a new one takes the place of.
    fn replaced(&self, spec: &WorkloadSpec, slot: u32) -> Vec<&'a str> {
        if spec.spread.is_none() {
            return Vec::new();
        }
        let own = self.draft.instances_of(self.key).iter();
        own.filter(|(_, entry)| {
            let assignment = &entry.assignment.value;
            assignment.slot == slot && assignment.wanted == Wanted::Running
        })
        .map(|(_, entry)| entry.node.as_str())
        .collect()
    }

    /// The next id that no present instance has.
    fn next_id(&mut self) -> String {
        loop {
            let id = instance_id(
                &self.key.name,
                &self.entry.meta.value.uid,
                self.record.instances_made,
            );
            self.record.instances_made = self.record.instances_made.wrapping_add(1);
            if !self.draft.is_taken(&id) {
                return id;
            }
        }
    }

    /// Asks for an instance to be stopped. It stays assigned, with its address, until its machine
    /// confirms.
    fn stop(&mut self, live: &Live<'_>, reason: &str) {
        let assignment = Assignment {
            wanted: Wanted::Stopped,
            not_understood: None,
            ..Assignment::clone(live.assignment)
        };
        self.draft.update(&mut self.group, live.node, &assignment);
        let message = if live.away {
            let node = live.node;
            format!("to be stopped when its machine {node} is back, because {reason}")
        } else {
            format!("stopped because {reason}")
        };
        self.instance_event("Stopping", live.id, message);
        self.flush_if_full();
    }

    /// The workload's keys go when no machine has anything of it any more.
    fn finish_deletion(&mut self, all: &[Live<'_>]) {
        let index = self.entry.meta.value.index;
        self.left = self
            .statuses
            .iter()
            .filter(|(_, status)| status.user_indexes.contains(&index))
            .map(|(machine, _)| machine.as_str())
            .collect();
        if !all.is_empty() || !self.left.is_empty() {
            return;
        }
        let WorkloadKey { namespace, name } = self.key;
        let mut group = std::mem::take(&mut self.group);
        group.delete_prefix(keys::workload(namespace, name));
        group.delete_prefix(keys::archive(namespace, name));
        group.delete(keys::workload_status(namespace, name));
        group.delete(keys::index(index));
        let object = self.object("Workload", name.clone());
        self.draft.event(
            &mut group,
            EventKind::Normal,
            "Deleted",
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
        self.record.gone = true;
    }

    fn write_status(&mut self, all: &[Live<'_>]) {
        if self.record.gone {
            return;
        }
        let mut tally = Tally::count(all, self.entry, self.unschedulable.as_deref(), &self.left);
        if let Some(lost) = all.iter().find(|live| live.wanted() && live.away) {
            tally.is_away(lost, self.losses.why_not(lost.node));
        }
        let before = self
            .entry
            .status
            .as_ref()
            .map(|stored| stored.value.clone())
            .unwrap_or_default();
        self.record.status =
            status::workload_status(&tally, &before.status, self.entry, self.draft.now);
        if let Some(why) = &self.stuck {
            let condition = status::drain_blocked(&before.status, why, self.draft.now);
            self.record.status.conditions.push(condition);
        }
        let services = &self.draft.services;
        self.record.status.service_address = services.of(self.key);
        if let Some(why) = services.why_none(self.key, self.draft.snapshot) {
            let condition = status::without_address(&before.status, why, self.draft.now);
            self.record.status.conditions.push(condition);
        }
        let changed = self.entry.status.is_none() || self.record != before;
        if changed || !self.group.is_empty() {
            self.flush(changed);
        }
    }

    fn flush_if_full(&mut self) {
        if Draft::is_full(&self.group) {
            self.flush(true);
        }
    }

    /// Commits what is gathered, with the count of the instances made so far.
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

    fn instance_event(&mut self, reason: &str, instance: &str, message: String) {
        let object = self.object("Instance", instance.to_owned());
        self.draft
            .event(&mut self.group, EventKind::Normal, reason, object, message);
    }

    fn object(&self, kind: &str, name: String) -> ObjectReference {
        ObjectReference {
            kind: kind.to_owned(),
            name,
            namespace: self.key.namespace.clone(),
            uid: self.entry.meta.value.uid.clone(),
        }
    }
}

fn delay_after(failures: u32) -> Duration {
    FIRST_DELAY
        .saturating_mul(1u32.checked_shl(failures.min(16)).unwrap_or(u32::MAX))
        .min(LONGEST_DELAY)
}
