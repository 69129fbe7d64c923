//! Stored objects of the cluster that every machine reads: the members of etcd, and the endpoints
//! of machines.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::MachineEndpoints;

/// `/kat/config/members`: etcd's members as the leader last saw them. Every machine may read it; a
/// machine that is listed starts its etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterMembers {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The members, by the machine's name.
    pub members: BTreeMap<String, MemberRecord>,
    /// Ids in etcd, hexadecimal, of members whose machine has left the cluster. They count for the
    /// quorum until they are removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
    /// Machines that prepare to become members: each fetches the authorities and starts an etcd
    /// that waits for its membership. Earlier versions do not know it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub next: BTreeSet<String>,
    /// Since when each of these machines has been a member without a vote, by the leader's clock. A machine whose
    /// member is removed and that is to become one again keeps its time. Earlier versions do not know it: a leader of
    /// such a version drops it with its next change of the list, and the next leader begins to count again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub voteless_since: BTreeMap<String, Timestamp>,
}

impl ClusterMembers {
    /// Whether the machine holds the authorities: it is a member, or prepares to become one.
    pub fn holds_store(&self, machine: &str) -> bool {
        self.members.contains_key(machine) || self.next.contains(machine)
    }
}

/// One member within [`ClusterMembers`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberRecord {
    /// Id of the member in etcd, hexadecimal. A machine that was removed and added again has
    /// another id.
    pub id: String,
    /// Whether the member votes, and has answered at least once. A new member gets its vote when it
    /// has caught up, or together with one that has.
    pub voting: bool,
    /// Whether the member answers the leader.
    pub healthy: bool,
}

/// `/kat/config/endpoints`: the endpoints of every machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterEndpoints {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The endpoints, by the machine's name.
    pub machines: BTreeMap<String, MachineEndpoints>,
}

impl ClusterEndpoints {
    /// URLs of etcd's members on the overlay.
    pub fn etcd(&self, port: u16) -> Vec<String> {
        let members = self.machines.values().filter(|machine| machine.etcd);
        members
            .filter_map(|machine| machine.overlay)
            .map(|address| format!("https://{address}:{port}"))
            .collect()
    }

    /// Whether every machine that holds etcd has a certificate of the API, and there is one. Then no
    /// machine needs the server name of version 0.1.0, which all machines had.
    pub fn is_api_named(&self) -> bool {
        let members = || self.machines.values().filter(|machine| machine.etcd);
        members().next().is_some() && members().all(|machine| !machine.api_key.is_empty())
    }

    /// API endpoints of machines that may lead: the first endpoint of each machine, then the
    /// others. Machines that only other machines of the cluster can reach come last.
    pub fn api(&self) -> Vec<String> {
        let members = self.machines.values().filter(|machine| machine.etcd);
        let (hidden, open): (Vec<_>, Vec<_>) = members.partition(|machine| machine.is_hidden());
        let first = |machines: &[&MachineEndpoints]| {
            let first = machines.iter().filter_map(|machine| machine.api.first());
            first.cloned().collect::<Vec<_>>()
        };
        let others = |machines: &[&MachineEndpoints]| {
            let others = machines
                .iter()
                .flat_map(|machine| machine.api.iter().skip(1));
            others.cloned().collect::<Vec<_>>()
        };
        [first(&open), others(&open), first(&hidden), others(&hidden)].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_an_earlier_version_has_no_time_of_members_without_a_vote() {
        let stored = r#"{"schema":1,"members":{"n1":{"id":"a","voting":true,"healthy":true}}}"#;
        let mut members: ClusterMembers = serde_json::from_str(stored).unwrap();
        assert!(members.voteless_since.is_empty());
        assert_eq!(serde_json::to_string(&members).unwrap(), stored);
        members.voteless_since = BTreeMap::from([("n2".to_owned(), Timestamp::UNIX_EPOCH)]);
        let stored = serde_json::to_string(&members).unwrap();
        assert!(
            stored.contains(r#""votelessSince":{"n2":"1970-01-01T00:00:00Z"}"#),
            "{stored}"
        );
        let again: ClusterMembers = serde_json::from_str(&stored).unwrap();
        assert_eq!(again, members);
    }
}
