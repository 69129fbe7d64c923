//! Where machines answer: for agents, which read it from the store, and for people's contexts.

use std::{collections::BTreeMap, net::SocketAddr};

use serde::{Deserialize, Serialize};

use super::{
    Snapshot,
    draft::{Draft, Group},
    node_address,
};
use crate::{api::types::MachineEndpoints, store::keys};

/// `/kat/config/endpoints`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterEndpoints {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By machine.
    pub machines: BTreeMap<String, MachineEndpoints>,
}

impl ClusterEndpoints {
    /// As the registrations have it.
    pub fn of(snapshot: &Snapshot) -> Self {
        let port = snapshot.cluster.spec.api_port;
        let machines = snapshot.nodes.iter().map(|(name, node)| {
            let registration = &node.registration.value;
            let api = registration.advertise.iter();
            let endpoints = MachineEndpoints {
                api: api
                    .map(|address| SocketAddr::new(*address, port).to_string())
                    .collect(),
                overlay: node.subnet.map(node_address),
                etcd: registration.etcd,
            };
            (name.clone(), endpoints)
        });
        Self {
            schema: 1,
            machines: machines
                .filter(|(_, machine)| !machine.api.is_empty())
                .collect(),
        }
    }

    /// Where etcd answers: URLs on the overlay.
    pub fn etcd(&self, port: u16) -> Vec<String> {
        let members = self.machines.values().filter(|machine| machine.etcd);
        members
            .filter_map(|machine| machine.overlay)
            .map(|address| format!("https://{address}:{port}"))
            .collect()
    }

    /// Where the API answers: of the machines that may lead, each first address before any second.
    pub fn api(&self) -> Vec<String> {
        let members = || self.machines.values().filter(|machine| machine.etcd);
        let first = members().filter_map(|machine| machine.api.first());
        let others = members().flat_map(|machine| machine.api.iter().skip(1));
        first.chain(others).cloned().collect()
    }
}

/// Writes the list when it is another than the registrations make.
pub(super) fn plan_endpoints(draft: &mut Draft<'_>) {
    let wanted = ClusterEndpoints::of(draft.snapshot);
    let stored = draft.snapshot.endpoints.as_ref();
    if stored.map_or(wanted.machines.is_empty(), |stored| stored.value == wanted) {
        return;
    }
    let mut group = Group::default();
    group.put(keys::ENDPOINTS.to_owned(), &wanted);
    draft.commit(group, "endpoints of the machines".to_owned(), Vec::new());
}
