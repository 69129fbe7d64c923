//! The workloads that an applied one starts after: circles are refused, and what is missing is a
//! warning.

use std::collections::BTreeSet;

use crate::errors::ApiError;
use kat_plan::{Snapshot, StartOrder, start_order_warnings};
use kat_types::{
    resource::StartAfter,
    store::{keys, revisions::WorkloadKey, transaction::Compare},
};

/// Most workloads that one starts after, those included that these start after in turn: the apply
/// compares each of them. It holds for the workloads that start after the applied one as well.
const MOST_BEFORE: usize = 64;

/// What an apply with `startAfter` depends on.
#[derive(Debug, Default)]
pub(super) struct CheckedOrder {
    /// None of the workloads that it starts after has changed: two applies that would make a circle
    /// together do not both succeed.
    pub(super) conditions: Vec<Compare>,
    /// What is missing or never fulfils its condition.
    pub(super) warnings: Vec<String>,
}

/// Checks the order of an applied workload. The order that its stored files have already is no reason
/// to refuse another change of it.
///
/// # Errors
/// [`ApiError::Conflict`] with the path of a circle, [`ApiError::Invalid`] for an order that is too long.
pub(super) fn check(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    after: &[StartAfter],
) -> Result<CheckedOrder, ApiError> {
    let stored = snapshot.workloads.get(key);
    let stored = stored.and_then(|entry| entry.parsed.as_ref().ok());
    let before = stored.map(|parsed| parsed.workload.spec.start_after.as_slice());
    if before.unwrap_or_default() == after {
        return Ok(CheckedOrder::default());
    }
    let order = StartOrder::of(snapshot, key, after.iter());
    if let Some(circle) = order.circle {
        return Err(ApiError::conflict(
            format!(
                "workload.kat: spec.startAfter: the workloads would wait for each other: {}",
                circle.join(" -> ")
            ),
            "leave one of these out of the startAfter of another one",
        ));
    }
    if order.before.len() > MOST_BEFORE {
        return Err(ApiError::invalid(format!(
            "workload.kat: spec.startAfter: it would start after {} workloads, those included that these start after; expected at most {MOST_BEFORE}",
            order.before.len()
        )));
    }
    let longer = longer_order(snapshot, key, &order.before);
    if let Some((name, count)) = longer.filter(|_| !after.is_empty()) {
        return Err(ApiError::invalid(format!(
            "workload.kat: spec.startAfter: with it workload `{name}` would start after {count} workloads, those included that these start after; expected at most {MOST_BEFORE}"
        )));
    }
    let conditions = order.before.iter().map(|name| {
        let other = WorkloadKey::new(&key.namespace, name);
        let revision = snapshot.workloads.get(&other);
        let revision = revision.map_or(0, |entry| entry.meta.revision);
        Compare::ModRevision(keys::workload_meta(&key.namespace, name), revision)
    });
    Ok(CheckedOrder {
        conditions: conditions.collect(),
        warnings: start_order_warnings(snapshot, &key.namespace, after),
    })
}

/// A workload that starts after this one, and that `before` gives more workloads than it may start after:
/// the planner looks at all of them while one waits. With their number.
fn longer_order<'s>(
    snapshot: &'s Snapshot,
    key: &WorkloadKey,
    before: &BTreeSet<String>,
) -> Option<(&'s str, usize)> {
    let first = WorkloadKey::new(&key.namespace, "");
    let all = snapshot.workloads.range(first..);
    let mut all = all.take_while(|(other, _)| other.namespace == key.namespace);
    all.find_map(|(other, entry)| {
        let parsed = entry.parsed.as_ref().ok().filter(|_| other != key)?;
        let order = StartOrder::of(snapshot, other, parsed.workload.spec.start_after.iter());
        let is_after = order.before.contains(&key.name);
        let count = order.before.union(before).count();
        (is_after && count > MOST_BEFORE).then_some((other.name.as_str(), count))
    })
}
