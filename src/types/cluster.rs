//! What every machine reads of the cluster: etcd's members, and where machines answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::MachineEndpoints;

/// `/kat/config/members`: etcd's members as the leader last saw them. Every machine may read it; a
/// machine that is listed starts its etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterMembers {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By name of the machine.
    pub members: BTreeMap<String, MemberRecord>,
}

/// One member within [`ClusterMembers`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberRecord {
    /// etcd's member id, hexadecimal. A machine that was removed and added again has another one.
    pub id: String,
    /// It has a vote. A member starts without one and gets it when it has caught up.
    pub voting: bool,
    /// It answers the leader.
    pub healthy: bool,
}

/// `/kat/config/endpoints`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterEndpoints {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By name of the machine.
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

    /// Endpoints of the API on machines that may lead: each machine's first address before any
    /// second. Machines that only the cluster's own machines reach come last.
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
