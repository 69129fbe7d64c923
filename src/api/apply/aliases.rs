//! Whether a workload can have its name and the aliases of its files.

use crate::{apply::submission::Submission, errors::ApiError};
use kat_plan::{NameConflict, NameUse, Snapshot, aliases_of, name_conflict};
use kat_types::store::{keys, revisions::WorkloadKey, transaction::Compare};

/// The aliases of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckedAliases {
    /// They differ from those of the stored workload.
    pub(super) change: bool,
    /// No workload has a new alias as its own name.
    pub(super) conditions: Vec<Compare>,
}

/// Refuses names that another workload of the namespace has. Names that the stored files have already are
/// not refused: the plan decides about those. It also decides if a workload is created whose name becomes
/// an alias at the same moment: the workload of this name has it.
///
/// # Errors
/// [`ApiError::Conflict`] with the workload that has the name, and the place of the name.
pub(super) fn check(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    submission: &Submission,
) -> Result<CheckedAliases, ApiError> {
    if let Some(conflict) = name_conflict(snapshot, key, &submission.aliases) {
        return Err(refusal(&conflict));
    }
    let stored = snapshot.workloads.get(key);
    let parsed = stored.and_then(|entry| entry.parsed.as_ref().ok());
    let before: &[String] = parsed.map_or(&[], |parsed| aliases_of(parsed));
    let new = submission.aliases.iter();
    let new = new.filter(|alias| !before.contains(*alias));
    let conditions = new.map(|alias| {
        // Another one that has it already is stored, and was not refused.
        let other = WorkloadKey::new(&key.namespace, alias);
        let other = snapshot.workloads.get(&other);
        let revision = other.map_or(0, |entry| entry.meta.revision);
        Compare::ModRevision(keys::workload_meta(&key.namespace, alias), revision)
    });
    Ok(CheckedAliases {
        change: submission.aliases != before,
        conditions: conditions.collect(),
    })
}

fn refusal(conflict: &NameConflict) -> ApiError {
    let NameConflict {
        name,
        alias,
        owner,
        of_owner,
    } = conflict;
    let place = match alias {
        Some(index) => format!("VirtualLoadBalancer.kat: spec.aliases[{index}]"),
        None => "workload.kat: metadata.name".to_owned(),
    };
    let of_owner = match of_owner {
        NameUse::Alias(index) => {
            format!("an alias of workload {owner} (its spec.aliases[{index}])")
        }
        NameUse::UnreadAlias => {
            format!("an alias of workload {owner}, whose files can't be read")
        }
        NameUse::OwnName => format!("the name of workload {owner}"),
    };
    ApiError::conflict(
        format!("{place}: `{name}` is {of_owner}"),
        "choose another name, or take it from that workload first: names and aliases are unique in a namespace",
    )
}
