//! Which machines do not read what is stored, and so must not come to lead.
//!
//! Files are stored as they were written. A leader of an earlier version does not read files that
//! need a higher version of the reader, and leaves their workloads as they are. It drops settings of a
//! namespace that it does not know when it writes the namespace.

use std::collections::BTreeSet;

use crate::Snapshot;
use kat_types::{
    resource::{NAMESPACE_ACCESS_READER, NAMESPACE_DEFAULTS_READER, NAMESPACE_QUOTA_READER},
    store::snapshot::NodeEntry,
};

/// The version of a machine's reader; a version of KAT that reports none has the first one.
pub fn reader_of(node: &NodeEntry) -> u32 {
    let status = node.status.as_ref();
    status.map_or(1, |status| status.value.manifest_reader.max(1))
}

/// Machines besides the leader that may lead and have a reader below `version`, or have not
/// reported one.
pub fn older_leaders(snapshot: &Snapshot, version: u32) -> BTreeSet<String> {
    let members = snapshot.members.iter().flat_map(|stored| {
        let members = stored.value.members.keys();
        members.chain(&stored.value.next)
    });
    let candidates = snapshot.election.iter().map(|one| &one.candidate);
    let leader = snapshot.election.first().map(|one| one.candidate.as_str());
    let leader = leader.or(snapshot.leader_name.as_deref());
    let may_lead = members.chain(candidates);
    let others = may_lead.filter(|name| Some(name.as_str()) != leader);
    let is_older = |name: &&String| snapshot.nodes.get(*name).map_or(1, reader_of) < version;
    others.filter(is_older).cloned().collect()
}

/// The highest version of the reader that the files of a stored workload or the settings of a
/// namespace need, 1 at least.
pub fn highest_needed_reader(snapshot: &Snapshot) -> u32 {
    let read = snapshot.workloads.values();
    let read = read.filter_map(|entry| entry.parsed.as_ref().ok());
    let files = read.map(|parsed| parsed.needed_reader);
    let mut namespaces = snapshot.namespaces.values();
    let has_settings = namespaces
        .any(|stored| !stored.value.access.is_closed() || stored.value.ingress_hosts.is_some());
    let has_settings = has_settings || !snapshot.outside_routes.is_empty();
    let settings = has_settings.then_some(NAMESPACE_ACCESS_READER);
    let mut namespaces = snapshot.namespaces.values();
    let has_quotas = namespaces.any(|stored| stored.value.quota.needs_quota_reader());
    let quotas = has_quotas.then_some(NAMESPACE_QUOTA_READER);
    let mut namespaces = snapshot.namespaces.values();
    let has_defaults = namespaces.any(|stored| !stored.value.defaults.is_empty());
    let defaults = has_defaults.then_some(NAMESPACE_DEFAULTS_READER);
    let namespaces = settings.into_iter().chain(quotas).chain(defaults);
    files.chain(namespaces).max().unwrap_or(1)
}
