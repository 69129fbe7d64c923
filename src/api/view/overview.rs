//! The overview of the cluster. It is built field by field from what every machine may know; nothing
//! of it is text that somebody wrote.

use super::ApiView;
use kat_plan::cluster_endpoints;
use kat_types::{
    api::{ClusterOverview, MachineEndpoints, NodeRole, OverviewNode, OverviewStore},
    machine::{
        network::node_address,
        program_version::{ProgramVersion, etcd_has_known_holes},
    },
    reason::Reason,
    store::{records::NodeStatusRecord, snapshot::NodeEntry},
};

/// Longest version that is shown, bytes.
const MAX_VERSION: usize = 40;

impl ApiView<'_> {
    /// The overview. `stale`: this machine neither leads nor reaches the leader.
    pub(crate) fn overview(&self, stale: bool) -> ClusterOverview {
        let endpoints = cluster_endpoints(self.snapshot).machines;
        let nodes = self.snapshot.nodes.iter();
        let nodes: Vec<OverviewNode> = nodes
            .map(|(name, entry)| self.overview_node(name, entry, endpoints.get(name), stale))
            .collect();
        let leads = |node: &&OverviewNode| node.roles.contains(&NodeRole::Leader);
        ClusterOverview {
            cluster: self.snapshot.cluster.metadata.name.clone(),
            cluster_uid: self.snapshot.cluster_uid.clone(),
            leader: nodes.iter().find(leads).map(|node| node.name.clone()),
            stale,
            nodes,
            store: self.overview_store(stale),
            relay: None,
        }
    }

    fn overview_node(
        &self,
        name: &str,
        entry: &NodeEntry,
        endpoints: Option<&MachineEndpoints>,
        stale: bool,
    ) -> OverviewNode {
        let status = entry.status.as_ref().map(|stored| &stored.value);
        let addresses = status.map(|status| status.addresses.as_slice());
        let mut roles = self.roles(name, entry, addresses.unwrap_or_default());
        if stale {
            roles.retain(|role| *role != NodeRole::Leader);
        }
        let reason = status.and_then(|status| Reason::from_word(&status.reason));
        OverviewNode {
            name: name.to_owned(),
            phase: status
                .map(NodeStatusRecord::shown_phase)
                .unwrap_or_default(),
            reason: Reason::word_or_empty(reason).to_owned(),
            roles,
            overlay_address: entry.subnet.map(node_address),
            endpoints: endpoints.map(|one| one.api.clone()).unwrap_or_default(),
            version: status.map_or_else(String::new, |status| shown_version(&status.version)),
        }
    }

    fn overview_store(&self, stale: bool) -> OverviewStore {
        let members = self.snapshot.members.as_ref();
        let members: Vec<_> = members
            .map(|stored| stored.value.members.values().collect())
            .unwrap_or_default();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let voting = members.iter().filter(|one| one.voting).count();
        let healthy = members.iter().filter(|one| one.healthy).count();
        let answering = members.iter().filter(|one| one.voting && one.healthy);
        let quorum = answering.count() > voting / 2;
        let known = !stale && voting > 0;
        let store = self.store.as_ref();
        let holes = store.is_some_and(|store| {
            let versions = store.versions.values();
            versions
                .filter_map(|version| ProgramVersion::find(version))
                .any(etcd_has_known_holes)
        });
        let reason = store.and_then(|store| store.reason);
        let reasons = reason
            .into_iter()
            .chain(holes.then_some(Reason::EtcdHasKnownHoles));
        OverviewStore {
            members: count(members.len()),
            voting: count(voting),
            healthy: count(healthy),
            quorum: known.then_some(quorum),
            reasons: reasons.map(String::from).collect(),
        }
    }
}

/// A version as a machine reported it, if it looks like one: a report must not carry other text to
/// all machines.
pub(crate) fn shown_version(version: &str) -> String {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".+~-_:".contains(&byte);
    let is_version = version.starts_with(|first: char| first.is_ascii_digit())
        && version.len() <= MAX_VERSION
        && version.bytes().all(fits);
    match is_version {
        true => version.to_owned(),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_looks_like_a_version_is_shown_as_one() {
        for version in ["0.2.0", "0.2.0~dev+5.g1a2b3c-1", "1:0.2.0"] {
            assert_eq!(shown_version(version), version);
        }
        for other in ["", "v1", "0.2 secret", "0.2\n", &"1".repeat(41)] {
            assert_eq!(shown_version(other), "", "{other:?}");
        }
    }
}
