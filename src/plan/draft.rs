//! The changes of a plan, grouped so that each transaction is safe alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;

use super::{Snapshot, event::EventLog};
use crate::{
    EventWord, RequestedResources,
    services::isolation,
    unwritable_objects as frozen,
    unwritable_objects::{FrozenObjects, NotWritable, NotWritableCause, WrittenObject},
};
use kat_types::{
    api::{EventKind, ObjectReference},
    assignment::{Assignment, DesiredMeta, DesiredRun},
    encoding::json,
    store::{
        keys,
        records::{Allocation, VolumeRecord},
        revisions::WorkloadKey,
        snapshot::InstanceEntry,
        transaction::{Compare, WriteOperation},
    },
    volumes::VolumeKey,
};

/// One transaction: all of it or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTransaction {
    /// Why, for the leader's log.
    pub reason: String,
    /// Conditions besides the leader's fence.
    pub conditions: Vec<Compare>,
    /// At most [`kat_types::store::transaction::MAX_OPERATIONS`]; the desired list of a machine and its
    /// meta are always in the same change.
    pub operations: Vec<WriteOperation>,
}

/// What became of the instances that a plan had to place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchedulingOutcome {
    /// Number of instances that the plan places.
    pub placed: usize,
    /// The slots for which no machine was found. Also a slot whose instance is to leave its machine
    /// and finds no other one.
    pub refused: BTreeSet<RefusedPlace>,
}

/// A slot for which no machine was found, and one reason why not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefusedPlace {
    /// The workload.
    pub workload: WorkloadKey,
    /// Number of the slot.
    pub slot: u32,
    /// What excluded at least one machine, in the words of [`crate::Unschedulable`].
    pub reason: &'static str,
}

/// What the leader writes now, and when it plans again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterPlan {
    /// To be committed in this order.
    pub changes: Vec<PlannedTransaction>,
    /// Plan again after this time even if nothing changes.
    pub wake_after: Option<Duration>,
    /// Objects that are left as they are because their changes cannot be written.
    pub frozen: Vec<NotWritable>,
    /// What became of the instances to place.
    pub scheduling: SchedulingOutcome,
}

/// A group is committed once it has this many operations, which leaves room for one more instance
/// with its metas and events within a transaction.
const SOFT_LIMIT: usize = 96;

/// A group is committed once it has this many bytes: an assignment with secrets can have 350 KiB.
const SOFT_BYTES: usize = 512 << 10;
/// Maximum bytes of a group that can be split: a transaction takes 1.4 MiB
/// ([`kat_types::store::transaction::MAX_BYTES`]).
const HARD_BYTES: usize = 1400 * 1000;

/// The id of a stored assignment, and the assignment.
pub(super) type StoredInstance<'a> = (&'a String, &'a InstanceEntry);

/// The stored assignments of a workload, in the order of their ids.
#[derive(Default)]
struct WorkloadInstances<'a> {
    all: Vec<StoredInstance<'a>>,
    by_slot: BTreeMap<u32, Vec<StoredInstance<'a>>>,
}

/// The state while a plan is made: the snapshot, and what the plan has changed so far.
pub(super) struct Draft<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) now: Timestamp,
    pub(super) seed: u64,
    pub(super) events: EventLog,
    pub(super) wake_after: Option<Duration>,
    desired: BTreeMap<String, DesiredMeta>,
    taken: BTreeMap<String, BTreeSet<Ipv4Addr>>,
    /// Addresses of instances that are gone, with the namespaces whose instances may get them.
    released: BTreeMap<Ipv4Addr, &'a str>,
    last: BTreeMap<String, Ipv4Addr>,
    /// Sums of the requests of the stored assignments, by machine.
    requested: BTreeMap<&'a str, RequestedResources>,
    /// Users of the stored assignments, by machine.
    users: BTreeMap<&'a str, BTreeSet<u32>>,
    /// The stored assignments by namespace and workload.
    instances: BTreeMap<&'a str, BTreeMap<&'a str, WorkloadInstances<'a>>>,
    /// Instances that this plan has placed, with their workloads.
    placed: BTreeMap<String, WorkloadKey>,
    /// Slots for which this plan has found no machine, with the reasons.
    refused_places: BTreeMap<(WorkloadKey, u32), BTreeSet<&'static str>>,
    /// Volumes as this plan leaves them.
    volumes: BTreeMap<VolumeKey, VolumeRecord>,
    /// Instances that this plan stops.
    stopped: BTreeSet<String>,
    /// Instances whose assignments this plan changes.
    changed: BTreeSet<String>,
    /// Instances whose assignments this plan deletes.
    removed: BTreeSet<String>,
    changes: Vec<PlannedTransaction>,
    /// Objects that are left as they are.
    pub(super) frozen: FrozenObjects,
    /// Objects with a value that can't be encoded as JSON, or that need a value that is too large.
    refused: Vec<NotWritable>,
}

/// Operations that become one or more changes.
#[derive(Default)]
pub(super) struct OperationGroup {
    operations: Vec<WriteOperation>,
    machines: BTreeSet<String>,
    /// A key whose value can't be encoded as JSON, and why.
    not_encoded: Option<(String, String)>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, now: Timestamp, seed: u64) -> Self {
        let mut taken: BTreeMap<String, BTreeSet<Ipv4Addr>> = BTreeMap::new();
        let mut newest: BTreeMap<String, (i64, Ipv4Addr)> = BTreeMap::new();
        let mut released = BTreeMap::new();
        for stored in snapshot.allocations.values() {
            let Allocation { node, address, .. } = &stored.value;
            match stored.value.released {
                true => drop(released.insert(*address, stored.value.namespace.as_str())),
                false => drop(taken.entry(node.clone()).or_default().insert(*address)),
            }
            let newest = newest.entry(node.clone()).or_insert((0, *address));
            *newest = (*newest).max((stored.revision, *address));
        }
        let mut instances: BTreeMap<&str, BTreeMap<&str, WorkloadInstances<'_>>> = BTreeMap::new();
        let mut users: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for (id, entry) in &snapshot.instances {
            let assignment = &entry.assignment.value;
            let own = users.entry(entry.node.as_str()).or_default();
            own.insert(assignment.user.index);
            let own = instances
                .entry(assignment.namespace.as_str())
                .or_default()
                .entry(assignment.workload.as_str())
                .or_default();
            own.all.push((id, entry));
            let in_slot = own.by_slot.entry(assignment.slot).or_default();
            in_slot.push((id, entry));
        }
        let mut draft = Self {
            snapshot,
            now,
            seed,
            events: EventLog::new(&snapshot.events, now),
            wake_after: None,
            desired: snapshot
                .nodes
                .iter()
                .map(|(name, node)| (name.clone(), node.desired.value.clone()))
                .collect(),
            taken,
            released,
            last: newest
                .into_iter()
                .map(|(node, (_, address))| (node, address))
                .collect(),
            requested: BTreeMap::new(),
            users,
            instances,
            placed: BTreeMap::new(),
            refused_places: BTreeMap::new(),
            volumes: BTreeMap::new(),
            stopped: BTreeSet::new(),
            changed: BTreeSet::new(),
            removed: BTreeSet::new(),
            changes: Vec::new(),
            frozen: FrozenObjects::default(),
            refused: Vec::new(),
        };
        for entry in snapshot.instances.values() {
            let requests = draft.requests_of(&entry.node, &entry.assignment.value);
            let sum = draft.requested.entry(entry.node.as_str()).or_default();
            *sum = sum.plus(requests);
        }
        draft
    }

    /// What an assignment adds to the requests on its machine. A prepared instance adds what it
    /// requests beyond the instances of its slot there, which end before it starts.
    pub(super) fn requests_of(&self, node: &str, assignment: &Assignment) -> RequestedResources {
        let own = RequestedResources::of(&assignment.together().resources);
        if assignment.wanted != DesiredRun::Prepared {
            return own;
        }
        let before = self.in_slot_of(assignment).filter(|entry| {
            entry.node == node && entry.assignment.value.wanted != DesiredRun::Prepared
        });
        let before = before.fold(RequestedResources::default(), |sum, entry| {
            let resources = &entry.assignment.value.together().resources;
            sum.plus(RequestedResources::of(resources))
        });
        own.beyond(before)
    }

    /// Whether an instance counts as staying on its machine: it is not being stopped, and no other
    /// instance is prepared to start in its place.
    pub(super) fn stays(&self, assignment: &Assignment) -> bool {
        let mut others = self.in_slot_of(assignment);
        match assignment.wanted {
            DesiredRun::Stopped => false,
            DesiredRun::Prepared => true,
            DesiredRun::Running => {
                !others.any(|entry| entry.assignment.value.wanted == DesiredRun::Prepared)
            }
        }
    }

    /// The stored assignments of the same slot that count as staying on their machines.
    pub(super) fn staying_in_slot_of(
        &self,
        assignment: &Assignment,
    ) -> impl Iterator<Item = &'a InstanceEntry> {
        let all = self.in_slot_of(assignment);
        all.filter(|entry| self.stays(&entry.assignment.value))
    }

    /// The stored assignments of the same slot, with this one.
    fn in_slot_of(&self, assignment: &Assignment) -> impl Iterator<Item = &'a InstanceEntry> {
        let workload = self.instances.get(assignment.namespace.as_str());
        let workload = workload.and_then(|all| all.get(assignment.workload.as_str()));
        let slot = workload.and_then(|own| own.by_slot.get(&assignment.slot));
        slot.into_iter().flatten().map(|(_, entry)| *entry)
    }

    /// The stored assignments of a workload, in the order of their ids.
    pub(super) fn instances_of(&self, key: &WorkloadKey) -> &[StoredInstance<'a>] {
        self.instances
            .get(key.namespace.as_str())
            .and_then(|namespace| namespace.get(key.name.as_str()))
            .map_or(&[], |own| own.all.as_slice())
    }

    /// The stored assignments of one slot of a workload, in the order of their ids.
    pub(super) fn instances_in_slot(&self, key: &WorkloadKey, slot: u32) -> &[StoredInstance<'a>] {
        self.instances
            .get(key.namespace.as_str())
            .and_then(|namespace| namespace.get(key.name.as_str()))
            .and_then(|own| own.by_slot.get(&slot))
            .map_or(&[], Vec::as_slice)
    }

    /// The stored assignments of a workload that this plan stops.
    pub(super) fn stopped_of(&self, key: &WorkloadKey) -> impl Iterator<Item = StoredInstance<'a>> {
        let stored = &self.snapshot.instances;
        let stopped = self.stopped.iter();
        let stopped = stopped.filter_map(move |id| stored.get_key_value(id));
        stopped.filter(move |(_, entry)| {
            let assignment = &entry.assignment.value;
            (assignment.namespace.as_str(), assignment.workload.as_str())
                == (key.namespace.as_str(), key.name.as_str())
        })
    }

    /// Whether a stored assignment is for this machine.
    pub(super) fn has_instances(&self, node: &str) -> bool {
        self.requested.contains_key(node)
    }

    /// Whether a stored assignment for this machine is of this user.
    pub(super) fn has_user(&self, node: &str, index: u32) -> bool {
        self.users
            .get(node)
            .is_some_and(|users| users.contains(&index))
    }

    /// Sum of the requests of a machine's stored assignments.
    pub(super) fn requested(&self, node: &str) -> RequestedResources {
        self.requested.get(node).copied().unwrap_or_default()
    }

    /// Whether the workload stays as it is: some key of it cannot be written, and it is not being
    /// deleted.
    pub(super) fn keeps(&self, key: &WorkloadKey) -> bool {
        self.frozen.workload(key).is_some()
            && self
                .snapshot
                .workloads
                .get(key)
                .is_none_or(|entry| !entry.meta.value.deleting)
    }

    /// Whether this key of the workload is the one that cannot be written.
    pub(super) fn is_not_writable(&self, workload: &WorkloadKey, key: &str) -> bool {
        let frozen = self.frozen.workload(workload);
        frozen.is_some_and(|frozen| frozen.key == key)
    }

    /// Notes that the workload has to stay as it is, because its next change cannot be written.
    pub(super) fn refuse(&mut self, workload: &WorkloadKey, key: String, cause: NotWritableCause) {
        self.refused.push(NotWritable {
            object: WrittenObject::Workload(workload.clone()),
            key,
            cause,
        });
    }

    /// The next address of a machine that is free for an instance of this namespace.
    pub(super) fn free_address(&self, node: &str, namespace: &str) -> Option<Ipv4Addr> {
        let subnet = self.snapshot.nodes.get(node)?.subnet?;
        let taken = self.taken.get(node);
        let is_taken = |address: Ipv4Addr| {
            let of_another = self.released.get(&address);
            taken.is_some_and(|taken| taken.contains(&address))
                || of_another.is_some_and(|owner| *owner != namespace)
        };
        super::next_address(subnet, is_taken, self.last.get(node).copied())
    }

    /// Whether some addresses are free for instances of one namespace alone.
    pub(super) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Puts a new assignment and its address.
    pub(super) fn add_assignment(
        &mut self,
        group: &mut OperationGroup,
        node: &str,
        assignment: &Assignment,
    ) {
        // The machine's own address is not allocated to an instance.
        if !assignment.container.host_network {
            self.taken
                .entry(node.to_owned())
                .or_default()
                .insert(assignment.address);
            self.last.insert(node.to_owned(), assignment.address);
            let allocation = Allocation {
                schema: 1,
                node: node.to_owned(),
                address: assignment.address,
                namespace: assignment.namespace.clone(),
                workload: assignment.workload.clone(),
                released: false,
            };
            group.put(keys::allocation(&assignment.instance), &allocation);
        }
        let workload = WorkloadKey::new(&assignment.namespace, &assignment.workload);
        self.placed.insert(assignment.instance.clone(), workload);
        group.put(
            keys::desired_instance(node, &assignment.instance),
            assignment,
        );
        self.bump(group, node, 1);
    }

    /// Notes why no machine was found for a slot; no reasons where one was found after all.
    pub(super) fn note_place(
        &mut self,
        workload: &WorkloadKey,
        slot: u32,
        reasons: impl Iterator<Item = &'static str>,
    ) {
        let reasons: BTreeSet<_> = reasons.collect();
        let place = (workload.clone(), slot);
        match reasons.is_empty() {
            true => self.refused_places.remove(&place),
            false => self.refused_places.insert(place, reasons),
        };
    }

    /// Whether an instance of this id exists, or this plan has placed one.
    pub(super) fn is_taken(&self, instance: &str) -> bool {
        self.snapshot.instances.contains_key(instance) || self.placed.contains_key(instance)
    }

    /// The record of a volume as this plan leaves it.
    pub(super) fn volume(&self, key: &VolumeKey) -> Option<&VolumeRecord> {
        let stored = self.snapshot.volumes.get(key).map(|stored| &stored.value);
        self.volumes.get(key).or(stored)
    }

    /// Whether this plan has written the record of a volume.
    pub(super) fn has_placed(&self, key: &VolumeKey) -> bool {
        self.volumes.contains_key(key)
    }

    /// The records of a workload's volumes as this plan leaves them.
    pub(super) fn volumes_of(&self, workload: &WorkloadKey) -> Vec<(VolumeKey, VolumeRecord)> {
        let stored = self.snapshot.volumes.iter();
        let mut all: BTreeMap<_, _> = stored.map(|(key, one)| (key, &one.value)).collect();
        all.extend(&self.volumes);
        all.into_iter()
            .filter(|(key, _)| key.workload == *workload)
            .map(|(key, record)| (key.clone(), record.clone()))
            .collect()
    }

    /// Writes the record of a volume.
    pub(super) fn put_volume(
        &mut self,
        group: &mut OperationGroup,
        key: &VolumeKey,
        record: VolumeRecord,
    ) {
        group.put(keys::volume(&key.to_string()), &record);
        self.volumes.insert(key.clone(), record);
    }

    /// Whether this plan stops the instance.
    pub(super) fn stops(&self, instance: &str) -> bool {
        self.stopped.contains(instance)
    }

    /// Whether this plan changes or deletes the assignment of the instance.
    pub(super) fn changes(&self, instance: &str) -> bool {
        self.changed.contains(instance) || self.removes(instance)
    }

    /// Whether this plan deletes the assignment of the instance.
    pub(super) fn removes(&self, instance: &str) -> bool {
        self.removed.contains(instance)
    }

    /// Writes a changed assignment. One that this plan deletes stays deleted.
    pub(super) fn update(
        &mut self,
        group: &mut OperationGroup,
        node: &str,
        assignment: &Assignment,
    ) {
        if self.removes(&assignment.instance) {
            return;
        }
        self.changed.insert(assignment.instance.clone());
        if assignment.wanted == DesiredRun::Stopped {
            self.stopped.insert(assignment.instance.clone());
        }
        group.put(
            keys::desired_instance(node, &assignment.instance),
            assignment,
        );
        self.bump(group, node, 0);
    }

    /// Deletes an assignment and releases its address. A list counts its assignments, so that each is
    /// deleted once.
    pub(super) fn remove(&mut self, group: &mut OperationGroup, node: &str, instance: &str) {
        if !self.removed.insert(instance.to_owned()) {
            return;
        }
        group
            .operations
            .push(WriteOperation::Delete(keys::desired_instance(
                node, instance,
            )));
        let allocation = self.snapshot.allocations.get(instance);
        match allocation.and_then(|stored| isolation::released(self.snapshot, stored)) {
            Some(released) => group.put(keys::allocation(instance), &released),
            None => group.delete(keys::allocation(instance)),
        }
        self.bump(group, node, -1);
    }

    fn bump(&mut self, group: &mut OperationGroup, node: &str, count: isize) {
        let meta = self.desired.entry(node.to_owned()).or_default();
        meta.schema = 1;
        meta.revision += 1;
        meta.changed = Some(self.now);
        meta.count = meta.count.saturating_add_signed(count);
        group.machines.insert(node.to_owned());
    }

    /// Adds an event to a group.
    pub(super) fn event<'w>(
        &mut self,
        group: &mut OperationGroup,
        kind: EventKind,
        reason: impl Into<EventWord<'w>>,
        object: ObjectReference,
        message: String,
    ) {
        group
            .operations
            .extend(self.events.record(kind, reason, object, message));
    }

    /// Whether the group is so large that it should be committed.
    pub(super) fn is_full(group: &OperationGroup) -> bool {
        let bytes = || -> usize { group.operations.iter().map(value_bytes).sum() };
        group.operations.len() + group.machines.len() >= SOFT_LIMIT || bytes() >= SOFT_BYTES
    }

    /// Whether the group has so much that a further large object would fill it.
    pub(super) fn is_half_full(group: &OperationGroup) -> bool {
        let bytes: usize = group.operations.iter().map(value_bytes).sum();
        group.operations.len() + group.machines.len() >= SOFT_LIMIT / 2 || bytes >= SOFT_BYTES / 8
    }

    /// Whether `more` bytes would make the group larger than a transaction takes.
    pub(super) fn has_no_room(group: &OperationGroup, more: usize) -> bool {
        let bytes: usize = group.operations.iter().map(value_bytes).sum();
        bytes + more > HARD_BYTES
    }

    /// Puts an object into a group that several objects share, and commits the group if it is full
    /// or has no room for the object.
    pub(super) fn put_in_turn<T: Serialize>(
        &mut self,
        group: &mut OperationGroup,
        key: String,
        value: &T,
        reason: &str,
    ) {
        let mut own = OperationGroup::default();
        own.put(key, value);
        let bytes: usize = own.operations.iter().map(value_bytes).sum();
        if own.not_encoded.is_some() || Self::has_no_room(group, bytes) {
            self.commit(std::mem::take(group), reason.to_owned(), Vec::new());
        }
        group.operations.append(&mut own.operations);
        group.not_encoded = own.not_encoded.take();
        if group.not_encoded.is_some() || Self::is_full(group) {
            self.commit(std::mem::take(group), reason.to_owned(), Vec::new());
        }
    }

    /// Ends a group: it becomes a change if it has any operation.
    ///
    /// If several operations of the group write the same key, the last one counts.
    pub(super) fn commit(
        &mut self,
        group: OperationGroup,
        reason: String,
        conditions: Vec<Compare>,
    ) {
        let OperationGroup {
            mut operations,
            machines,
            mut not_encoded,
        } = group;
        for node in machines {
            if let Some(meta) = self.desired.get(&node) {
                match put(keys::desired_meta(&node), meta) {
                    Ok(operation) => operations.push(operation),
                    Err(refused) => not_encoded = Some(refused),
                }
            }
        }
        if let Some((key, error)) = not_encoded {
            let object = frozen::object_of(self.snapshot, &self.placed, &key);
            self.refused.push(NotWritable {
                object: object.unwrap_or_else(|| WrittenObject::Key(key.clone())),
                key,
                cause: NotWritableCause::NotEncoded(error),
            });
            return;
        }
        operations.retain(|operation| !self.frozen.has_key(operation.key()));
        let mut seen = BTreeSet::new();
        operations.reverse();
        operations.retain(|operation| seen.insert(operation.key().to_owned()));
        operations.reverse();
        if !operations.is_empty() {
            self.changes.push(PlannedTransaction {
                reason,
                conditions,
                operations,
            });
        }
    }

    /// Plan again after `delay` at the latest.
    pub(super) fn wake(&mut self, delay: Duration) {
        self.wake_after = Some(self.wake_after.map_or(delay, |present| present.min(delay)));
    }

    /// Number of changes so far.
    pub(super) fn count(&self) -> usize {
        self.changes.len()
    }

    /// Moves the changes from `later` on before those from `earlier` on.
    pub(super) fn put_before(&mut self, earlier: usize, later: usize) {
        if let Some(changes) = self.changes.get_mut(earlier..)
            && let Some(count) = later.checked_sub(earlier)
        {
            changes.rotate_left(count);
        }
    }

    /// The plan; its `frozen` lists what cannot be written.
    pub(super) fn finish(self) -> ClusterPlan {
        let places = self.refused_places.into_iter();
        let refused = places.flat_map(|((workload, slot), reasons)| {
            let reasons = reasons.into_iter();
            reasons.map(move |reason| RefusedPlace {
                workload: workload.clone(),
                slot,
                reason,
            })
        });
        let refused = refused.collect();
        let mut frozen = self.refused;
        let changes = self.changes.iter();
        frozen.extend(
            changes.filter_map(|change| frozen::not_writable(self.snapshot, &self.placed, change)),
        );
        ClusterPlan {
            changes: self.changes,
            wake_after: self.wake_after,
            frozen,
            scheduling: SchedulingOutcome {
                placed: self.placed.len(),
                refused,
            },
        }
    }
}

impl OperationGroup {
    pub(super) fn put<T: Serialize>(&mut self, key: String, value: &T) {
        match put(key, value) {
            Ok(operation) => self.operations.push(operation),
            Err(refused) => self.not_encoded = Some(refused),
        }
    }

    /// Puts an object in the place of what the group has for its key.
    pub(super) fn replace<T: Serialize>(&mut self, key: String, value: &T) {
        self.operations.retain(|operation| operation.key() != key);
        self.put(key, value);
    }

    pub(super) fn put_text(&mut self, key: String, text: &[u8]) {
        self.operations
            .push(WriteOperation::Put(key, text.to_vec()));
    }

    pub(super) fn delete(&mut self, key: String) {
        self.operations.push(WriteOperation::Delete(key));
    }

    pub(super) fn delete_prefix(&mut self, prefix: String) {
        self.operations.push(WriteOperation::DeletePrefix(prefix));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.machines.is_empty() && self.not_encoded.is_none()
    }
}

fn value_bytes(operation: &WriteOperation) -> usize {
    match operation {
        WriteOperation::Put(_, value) => value.len(),
        WriteOperation::Delete(_) | WriteOperation::DeletePrefix(_) => 0,
    }
}

/// The write of an object as JSON; the error is the key and why its value can't be encoded.
fn put<T: Serialize>(key: String, value: &T) -> Result<WriteOperation, (String, String)> {
    match json::bytes(&key, value) {
        Ok(bytes) => Ok(WriteOperation::Put(key, bytes)),
        Err(error) => Err((key, error.reason)),
    }
}
