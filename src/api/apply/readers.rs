//! The version of the reader of stored files that every machine which may lead must have.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::errors::ApiError;
use kat_bundle::{NeededReader, SourceFile, needed_reader};
use kat_plan::Snapshot;
use kat_types::store::revisions::Stored;

/// Refuses files that a machine which may lead does not read. Files that need no more than the
/// stored ones are accepted.
pub(super) fn check(
    snapshot: &Snapshot,
    needed: &NeededReader,
    stored: Option<&BTreeMap<String, Stored<Arc<str>>>>,
) -> Result<(), ApiError> {
    let stored = stored.into_iter().flatten().map(|(name, text)| SourceFile {
        name: name.clone(),
        text: text.value.to_string(),
    });
    let before = needed_reader(&stored.collect::<Vec<_>>());
    if before.is_some_and(|before| before.version >= needed.version) {
        return Ok(());
    }
    let NeededReader {
        version,
        why,
        instead,
    } = needed;
    let older = older_leaders(snapshot, *version);
    if older.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = older.iter().map(String::as_str).collect();
    let names = names.join(", ");
    Err(ApiError::conflict(
        format!("{why}, which a machine that may lead does not read yet: {names}"),
        &format!("upgrade kat on {names}, or {instead}"),
    ))
}

/// Machines besides the leader that may lead and have an older reader, or have not reported one.
fn older_leaders(snapshot: &Snapshot, version: u32) -> BTreeSet<String> {
    let members = snapshot.members.iter().flat_map(|stored| {
        let members = stored.value.members.keys();
        members.chain(&stored.value.next)
    });
    let candidates = snapshot.election.iter().map(|one| &one.candidate);
    let leader = snapshot.election.first().map(|one| one.candidate.as_str());
    let leader = leader.or(snapshot.leader_name.as_deref());
    let may_lead = members.chain(candidates);
    let others = may_lead.filter(|name| Some(name.as_str()) != leader);
    let is_older = |name: &&String| {
        let node = snapshot.nodes.get(*name);
        let status = node.and_then(|node| node.status.as_ref());
        // A version that did not report it has the first reader.
        let reader = status.map_or(1, |status| status.value.manifest_reader.max(1));
        reader < version
    };
    others.filter(is_older).cloned().collect()
}
