//! Where machines answer: for agents, which read it from the store, and for people's contexts.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

use super::{
    EventKind, NodeRegistration, Snapshot,
    draft::{Draft, Group},
    loss::Heard,
    node_address,
};
use crate::{
    api::types::{MachineEndpoints, NodePhase, ObjectReference},
    store::{Compare, keys},
};

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
            let names = node.reach.names.iter();
            let names = names.map(|name| format!("{name}:{port}"));
            let at = |address: IpAddr| SocketAddr::new(address, port).to_string();
            let overlay = node.subnet.map(node_address);
            let api = match overlay.filter(|_| node.reach.behind_nat) {
                // Its name is that of a router, or is known in its own network alone.
                Some(overlay) => std::iter::once(at(overlay.into())).chain(names).collect(),
                None => {
                    let addresses = registration.advertise.iter().copied();
                    names.chain(addresses.map(at)).collect()
                }
            };
            let endpoints = MachineEndpoints {
                api,
                overlay,
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

    /// Where the API answers: of the machines that may lead, each first address before any second;
    /// those that only the cluster's own machines reach come last.
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

/// `host:port` of an API for a machine that is not in the cluster yet, and so has no way over the
/// overlay: the leader's, or where that is behind NAT another machine's, since all pass callers on. A
/// relay goes before others, for it is meant to be reached. Nothing where no such machine is Ready.
pub fn endpoint_for_joining(snapshot: &Snapshot) -> Option<String> {
    let machines = ClusterEndpoints::of(snapshot).machines;
    let leader = snapshot.leader_endpoint.as_ref()?;
    let host = leader.parse::<SocketAddr>().ok().map(|leader| leader.ip());
    let is_leader = |machine: &MachineEndpoints| host == machine.overlay.map(IpAddr::V4);
    if host.is_none() || !machines.values().any(is_leader) {
        return Some(leader.clone());
    }
    let open = snapshot.nodes.iter().filter_map(|(name, node)| {
        let machine = machines.get(name).filter(|one| !one.is_hidden())?;
        let status = node.status.as_ref().map(|stored| &stored.value);
        let ready = status.is_some_and(|status| status.phase == NodePhase::Ready);
        let order = (!node.reach.relay, !machine.etcd, name);
        Some((order, machine.api.first()?)).filter(|_| ready)
    });
    open.min().map(|(_, endpoint)| endpoint.clone())
}

/// Writes where a machine is reached when its agent says something else than what is stored. An
/// agent that does not know says nothing.
pub(super) fn plan_reach(draft: &mut Draft<'_>, heard: &BTreeMap<&str, Heard<'_>>) {
    for (name, node) in &draft.snapshot.nodes {
        let Some(report) = heard.get(name.as_str()).and_then(|heard| heard.report) else {
            continue;
        };
        let registration = &node.registration;
        let mut group = Group::default();
        let mut conditions = Vec::new();
        let endpoints = !report.endpoints.is_empty() && report.endpoints != node.endpoints;
        if endpoints {
            let key = keys::network_node(name, "wg_endpoints");
            group.put(key, &report.endpoints);
        }
        let known = &registration.value.advertise;
        if !report.advertise.is_empty() && report.advertise != *known {
            let moved = NodeRegistration {
                advertise: report.advertise.clone(),
                ..registration.value.clone()
            };
            group.put(keys::registration(name), &moved);
            // Its labels, or what else a person decides, may change in this moment.
            let key = keys::registration(name);
            conditions.push(Compare::ModRevision(key, registration.revision));
        }
        if endpoints {
            let object = ObjectReference {
                kind: "Node".to_owned(),
                name: name.clone(),
                namespace: String::new(),
                uid: registration.value.uid.clone(),
            };
            let message = format!(
                "others reach machine {name} at {}",
                report.endpoints.join(" ")
            );
            draft.event(
                &mut group,
                EventKind::Normal,
                "EndpointsChanged",
                object,
                message,
            );
        }
        draft.commit(group, format!("endpoints of machine {name}"), conditions);
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
