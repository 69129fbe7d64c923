//! The version of the reader of stored files that every machine which may lead must have.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::errors::ApiError;
use kat_bundle::{NeededReader, SourceFile, needed_readers};
use kat_plan::{Snapshot, older_leaders};
use kat_types::{
    resource::{NAMESPACE_ACCESS_READER, NAMESPACE_DEFAULTS_READER, NAMESPACE_QUOTA_READER},
    store::revisions::Stored,
};

/// Refuses files that a machine which may lead does not read.
///
/// What the stored files need already is no reason: that machine does not read the workload as it
/// is, and it can still be scaled, stopped or corrected. So an apply or a rollback is refused that
/// adds another such need, whatever the stored files need.
pub(super) fn check(
    snapshot: &Snapshot,
    needed: &[NeededReader],
    stored: Option<&BTreeMap<String, Stored<Arc<str>>>>,
) -> Result<(), ApiError> {
    let versions: BTreeSet<u32> = needed.iter().map(|one| one.version).collect();
    let older: BTreeMap<u32, BTreeSet<String>> = versions
        .into_iter()
        .map(|version| (version, older_leaders(snapshot, version)))
        .filter(|(_, older)| !older.is_empty())
        .collect();
    if older.is_empty() {
        return Ok(());
    }
    let stored = stored.into_iter().flatten().map(|(name, text)| SourceFile {
        name: name.clone(),
        text: text.value.to_string(),
    });
    let before = needed_readers(&stored.collect::<Vec<_>>());
    let before: BTreeSet<&str> = before.iter().map(|one| one.what.as_str()).collect();
    let mut refused = needed
        .iter()
        .filter_map(|one| Some((one, older.get(&one.version)?)));
    let Some((one, older)) = refused.find(|(one, _)| !before.contains(one.what.as_str())) else {
        return Ok(());
    };
    let names: Vec<_> = older.iter().map(String::as_str).collect();
    let names = names.join(", ");
    let NeededReader { why, instead, .. } = one;
    Err(ApiError::conflict(
        format!("{why}, which a machine that may lead does not read yet: {names}"),
        &format!("upgrade kat on {names}, or {instead}"),
    ))
}

/// Refuses settings of a namespace that a machine which may lead would drop with its next change of the
/// namespace.
///
/// # Errors
/// [`ApiError::Conflict`] with the names of these machines.
pub(crate) fn check_namespace_access(snapshot: &Snapshot) -> Result<(), ApiError> {
    let what = "`isolation`, `allowNamespaces` and `ingressHosts` of a namespace";
    known_to_leaders(
        snapshot,
        NAMESPACE_ACCESS_READER,
        what,
        ", or leave `spec` out",
    )
}

/// Refuses quotas of a namespace that a machine which may lead would drop with its next change of the
/// namespace.
///
/// # Errors
/// [`ApiError::Conflict`] with the names of these machines.
pub(crate) fn check_namespace_quotas(snapshot: &Snapshot) -> Result<(), ApiError> {
    let what = "the quotas `hosts` and `certificateOrders` of a namespace";
    known_to_leaders(snapshot, NAMESPACE_QUOTA_READER, what, "")
}

/// Refuses defaults of a namespace that a machine which may lead would not give to new instances.
///
/// # Errors
/// [`ApiError::Conflict`] with the names of these machines.
pub(crate) fn check_namespace_defaults(snapshot: &Snapshot) -> Result<(), ApiError> {
    let what = "`defaults` of a namespace";
    known_to_leaders(
        snapshot,
        NAMESPACE_DEFAULTS_READER,
        what,
        ", or leave `defaults` out",
    )
}

/// Refuses a route to something outside KAT that a machine which may lead would not give to machines.
///
/// # Errors
/// [`ApiError::Conflict`] with the names of these machines.
pub(crate) fn check_outside_routes(snapshot: &Snapshot) -> Result<(), ApiError> {
    let what = "documents of kind Route";
    known_to_leaders(snapshot, NAMESPACE_ACCESS_READER, what, "")
}

fn known_to_leaders(
    snapshot: &Snapshot,
    reader: u32,
    what: &str,
    instead: &str,
) -> Result<(), ApiError> {
    let older = older_leaders(snapshot, reader);
    if older.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = older.iter().map(String::as_str).collect();
    let names = names.join(", ");
    Err(ApiError::conflict(
        format!("a machine that may lead does not know {what} yet: {names}"),
        &format!("upgrade kat on {names}{instead}"),
    ))
}
