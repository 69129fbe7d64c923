//! Objects whose changes cannot be written: all their keys stay, and the plan continues for the
//! others.
//!
//! This state is not stored. Every plan determines it from what the plan would write, so that a new
//! leader comes to the same result, and an object is written again as soon as its change fits.

use std::collections::BTreeMap;

use super::{Snapshot, draft::PlannedTransaction};
use kat_types::{
    store::{
        keys,
        revisions::WorkloadKey,
        transaction::{
            MAX_BYTES, MAX_OPERATIONS, TransactionSize, WriteOperation, operation_bytes,
        },
    },
    volumes::VolumeKey,
};

/// Room that a transaction needs besides a change: the leader's fence and the revision of the plan.
const FENCE_BYTES: usize = 1024;
const FENCE_OPERATIONS: usize = 2;

/// The object that a key belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WrittenObject {
    /// A workload, with its instances and volumes.
    Workload(WorkloadKey),
    /// The status of a machine.
    Machine(String),
    /// A key of the cluster or of a machine that no other key depends on.
    Key(String),
}

impl std::fmt::Display for WrittenObject {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workload(key) => write!(formatter, "workload {key}"),
            Self::Machine(name) => write!(formatter, "node {name}"),
            Self::Key(key) => write!(formatter, "key {key}"),
        }
    }
}

/// An object whose change the store does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotWritable {
    /// The object with the change.
    pub object: WrittenObject,
    /// The largest key of the change.
    pub key: String,
    pub cause: NotWritableCause,
}

/// Why a change cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotWritableCause {
    /// It does not fit into one transaction.
    TooLarge {
        /// Number of operations of the change.
        operations: usize,
        /// Bytes of the change.
        bytes: usize,
    },
    /// A value of the change can't be encoded as JSON, with the error.
    NotEncoded(String),
}

/// Without the object, and rounded, so that the text stays the same from plan to plan.
impl std::fmt::Display for NotWritable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key, cause, .. } = self;
        match cause {
            NotWritableCause::TooLarge { operations, bytes } => write!(
                formatter,
                "{key} cannot be written: the change has {operations} operations and {} KiB, a transaction takes {MAX_OPERATIONS} and {} KiB",
                bytes.div_ceil(1024),
                MAX_BYTES / 1024
            ),
            NotWritableCause::NotEncoded(error) => {
                write!(formatter, "{key} cannot be written as JSON: {error}")
            }
        }
    }
}

/// Objects that a plan leaves as they are.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrozenObjects {
    by_object: BTreeMap<WrittenObject, NotWritable>,
}

impl FrozenObjects {
    /// Returns true if any of `found` was not known.
    pub(crate) fn extend(&mut self, found: &[NotWritable]) -> bool {
        let before = self.by_object.len();
        for one in found {
            self.by_object
                .entry(one.object.clone())
                .or_insert_with(|| one.clone());
        }
        self.by_object.len() > before
    }

    pub(crate) fn workload(&self, key: &WorkloadKey) -> Option<&NotWritable> {
        // Mostly there is none, and then the key is not copied.
        if self.by_object.is_empty() {
            return None;
        }
        self.by_object.get(&WrittenObject::Workload(key.clone()))
    }

    pub(crate) fn machine(&self, name: &str) -> Option<&NotWritable> {
        if self.by_object.is_empty() {
            return None;
        }
        self.by_object.get(&WrittenObject::Machine(name.to_owned()))
    }

    /// The key itself is frozen.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        !self.by_object.is_empty()
            && self
                .by_object
                .contains_key(&WrittenObject::Key(key.to_owned()))
    }

    pub(crate) fn into_list(self) -> Vec<NotWritable> {
        self.by_object.into_values().collect()
    }
}

/// Why an assignment of this many bytes, with its address and the meta of its machine's list,
/// cannot be written; `None` if it can.
pub(crate) fn too_large(bytes: usize) -> Option<NotWritableCause> {
    const OPERATIONS: usize = 3;
    (bytes + FENCE_BYTES > MAX_BYTES).then_some(NotWritableCause::TooLarge {
        operations: OPERATIONS,
        bytes,
    })
}

/// The change fits into one transaction.
pub(crate) fn fits(change: &PlannedTransaction) -> bool {
    let fence = TransactionSize {
        conditions: FENCE_OPERATIONS,
        operations: FENCE_OPERATIONS,
        bytes: FENCE_BYTES,
    };
    TransactionSize::of(&change.conditions, &change.operations)
        .and(fence)
        .fits()
}

/// The object of a change that does not fit: the one with the largest share of the operations or
/// bytes.
pub(crate) fn not_writable(
    snapshot: &Snapshot,
    placed: &BTreeMap<String, WorkloadKey>,
    change: &PlannedTransaction,
) -> Option<NotWritable> {
    if fits(change) {
        return None;
    }
    let size = TransactionSize::of(&change.conditions, &change.operations);
    let too_many = size.operations + FENCE_OPERATIONS > MAX_OPERATIONS;
    let weight = |operation: &WriteOperation| match too_many {
        true => 1,
        false => operation_bytes(operation),
    };
    let mut by_object: BTreeMap<WrittenObject, usize> = BTreeMap::new();
    for operation in &change.operations {
        if let Some(object) = object_of(snapshot, placed, operation.key()) {
            *by_object.entry(object).or_default() += weight(operation);
        }
    }
    // Objects that are only a key come last.
    let rank = |object: &WrittenObject| !matches!(object, WrittenObject::Key(_));
    let (object, _) = by_object
        .into_iter()
        .max_by_key(|(object, weight)| (rank(object), *weight))?;
    let own = |operation: &&WriteOperation| {
        object_of(snapshot, placed, operation.key()).as_ref() == Some(&object)
    };
    let largest = change.operations.iter().filter(own);
    let key = largest.max_by_key(|operation| operation_bytes(operation));
    Some(NotWritable {
        key: key.map_or_else(String::new, |operation| operation.key().to_owned()),
        object,
        cause: NotWritableCause::TooLarge {
            operations: size.operations,
            bytes: size.bytes,
        },
    })
}

/// The object that a key belongs to; `None` for the metas of desired lists, which every change of a
/// machine writes.
pub(crate) fn object_of(
    snapshot: &Snapshot,
    placed: &BTreeMap<String, WorkloadKey>,
    key: &str,
) -> Option<WrittenObject> {
    let workload_of = |path: &str| {
        let mut parts = path.split('/');
        let (namespace, name) = (parts.next()?, parts.next()?);
        let workload = WorkloadKey::new(namespace, name);
        (!name.is_empty()).then_some(WrittenObject::Workload(workload))
    };
    let of_instance = |instance: &str| {
        let stored = snapshot.instances.get(instance);
        let stored = stored.map(|entry| {
            let assignment = &entry.assignment.value;
            WorkloadKey::new(&assignment.namespace, &assignment.workload)
        });
        stored
            .or_else(|| placed.get(instance).cloned())
            .map(WrittenObject::Workload)
    };
    let of_workloads = [
        keys::WORKLOADS,
        keys::WORKLOAD_STATUS,
        keys::ARCHIVE,
        keys::SERVICES,
        keys::DNS,
        keys::VOLUMES,
    ];
    let whole = || Some(WrittenObject::Key(key.to_owned()));
    for prefix in of_workloads {
        if let Some(path) = key.strip_prefix(prefix) {
            // Names of machines are in the zone as well.
            let object = workload_of(path).filter(|object| match object {
                WrittenObject::Workload(key) => snapshot.workloads.contains_key(key),
                WrittenObject::Machine(_) | WrittenObject::Key(_) => false,
            });
            return object.or_else(whole);
        }
    }
    if let Some(name) = key.strip_prefix(keys::NODE_STATUS) {
        return Some(WrittenObject::Machine(name.to_owned()));
    }
    if let Some(path) = key.strip_prefix(keys::ALLOCATIONS) {
        return path
            .strip_suffix("/ip")
            .and_then(of_instance)
            .or_else(whole);
    }
    let Some(path) = key.strip_prefix(keys::NODE_DESIRED) else {
        return whole();
    };
    match path.split_once('/').map(|(_, rest)| rest) {
        Some("meta") => None,
        Some(rest) => {
            let (kind, what) = rest.split_once('/').unwrap_or((rest, ""));
            match kind {
                "instances" => of_instance(what).or_else(whole),
                _ => VolumeKey::parse(what)
                    .map(|volume| WrittenObject::Workload(volume.workload))
                    .filter(|object| match object {
                        WrittenObject::Workload(key) => snapshot.workloads.contains_key(key),
                        WrittenObject::Machine(_) | WrittenObject::Key(_) => false,
                    })
                    .or_else(whole),
            }
        }
        None => whole(),
    }
}

/// The changes that can be written. A change that is left out may have been counted in the meta of
/// a desired list, so nothing after it is written.
pub(crate) fn without_the_unwritable(changes: Vec<PlannedTransaction>) -> Vec<PlannedTransaction> {
    let mut left = Vec::with_capacity(changes.len());
    for change in changes {
        if fits(&change) {
            left.push(change);
        } else if change.operations.iter().any(|one| is_meta(one.key())) {
            break;
        }
    }
    left
}

fn is_meta(key: &str) -> bool {
    key.starts_with(keys::NODE_DESIRED) && key.ends_with("/meta")
}
