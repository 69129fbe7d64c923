//! Whether every machine of a workload keeps its host ports to the addresses that may use them.

use crate::{apply::submission::Submission, errors::ApiError};
use kat_plan::{SOURCES_DATA_PATH, Snapshot, has_allowed_sources};
use kat_types::store::revisions::WorkloadKey;

/// Refuses `allowSources` while an instance of the workload is on a machine whose `kat-net` opens host
/// ports to all. Such a machine gets no new instance of the workload. What the stored files have already
/// is no reason to refuse another change of them.
///
/// # Errors
/// [`ApiError::Conflict`] with the names of these machines.
pub(super) fn check(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    submission: &Submission,
) -> Result<(), ApiError> {
    let stored = snapshot.workloads.get(key);
    let parsed = stored.and_then(|entry| entry.parsed.as_ref().ok());
    let balancer = parsed.and_then(|parsed| parsed.load_balancer.as_ref());
    let had = balancer.is_some_and(|balancer| has_allowed_sources(&balancer.spec.ports));
    if had || !submission.has_allowed_sources {
        return Ok(());
    }
    let is_own = |name: &str| {
        let mut instances = snapshot.instances.values();
        instances.any(|entry| {
            let assignment = &entry.assignment.value;
            entry.node == name
                && assignment.namespace == key.namespace
                && assignment.workload == key.name
        })
    };
    let older = snapshot.nodes.iter().filter(|(_, node)| {
        let status = node.status.as_ref();
        status.map_or(0, |stored| stored.value.data_path) < SOURCES_DATA_PATH
    });
    let names: Vec<&str> = older
        .map(|(name, _)| name.as_str())
        .filter(|name| is_own(name))
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    Err(ApiError::conflict(
        format!(
            "{}: allowSources of spec.ports is kept by kat-net of a later version than the instances of `{key}` have on {names}",
            submission.ports_file
        ),
        &format!("upgrade kat on {names} first, or leave allowSources out"),
    ))
}
