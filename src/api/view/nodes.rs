//! Machines as users see them.

use std::collections::{BTreeMap, BTreeSet};

use super::{ApiView, node_metadata, time};
use kat_plan::{RequestedResources, highest_needed_reader, reader_of};
use kat_types::{
    api::{
        ApiTime, Condition, ETCD_CONDITION, Item, NodeGpu, NodeItem, NodeRole, NodeSpec,
        NodeStatus, READS_FILES,
    },
    assignment::DesiredRun,
    machine::{network::node_address, node_labels::is_for_ingress},
    reason::Reason,
    resource::{Bytes, ResourceList},
    store::snapshot::{InstanceEntry, NodeEntry},
};

/// What the instances on a machine add up to.
#[derive(Debug, Clone, Default)]
struct NodeLoad<'a> {
    instances: u32,
    requested: RequestedResources,
    /// Names of the GPUs that instances have.
    gpus: BTreeSet<&'a str>,
}

impl<'a> NodeLoad<'a> {
    fn add(&mut self, entry: &'a InstanceEntry) {
        self.instances = self.instances.saturating_add(1);
        let assignment = &entry.assignment.value;
        self.gpus.extend(assignment.gpu.as_deref());
        // A prepared instance starts when its predecessor has ended, which counts until then.
        if assignment.wanted != DesiredRun::Prepared {
            self.requested.add_all(&assignment.together().resources);
        }
    }
}

impl ApiView<'_> {
    /// Machines, by name.
    pub(crate) fn nodes(&self) -> Vec<NodeItem> {
        let mut loads: BTreeMap<&str, NodeLoad<'_>> = BTreeMap::new();
        for entry in self.snapshot.instances.values() {
            loads.entry(entry.node.as_str()).or_default().add(entry);
        }
        let needed = highest_needed_reader(self.snapshot);
        let nodes = self.snapshot.nodes.iter();
        let items = nodes.map(|(name, entry)| {
            let load = loads.remove(name.as_str()).unwrap_or_default();
            self.node_item((name.as_str(), entry), load, needed)
        });
        items.collect()
    }

    /// One machine.
    pub(crate) fn node(&self, name: &str) -> Option<NodeItem> {
        let entry = self.snapshot.nodes.get(name)?;
        let mut load = NodeLoad::default();
        let instances = self.snapshot.instances.values();
        for entry in instances.filter(|entry| entry.node == name) {
            load.add(entry);
        }
        let needed = highest_needed_reader(self.snapshot);
        let mut item = self.node_item((name, entry), load, needed);
        if let Some(reported) = self.observed.reports.get(name) {
            let overlay = &reported.report.overlay_network;
            item.status.peers.clone_from(&overlay.peers);
        }
        Some(item)
    }

    /// `needed` is the reader that what is stored needs, which is computed once for a list.
    fn node_item(
        &self,
        (name, entry): (&str, &NodeEntry),
        load: NodeLoad<'_>,
        needed: u32,
    ) -> NodeItem {
        let registration = &entry.registration.value;
        let status = entry.status.as_ref();
        let version = status
            .map_or(0, |status| status.revision)
            .max(entry.registration.revision)
            .max(self.members_revision(name));
        let status = status
            .map(|status| status.value.clone())
            .unwrap_or_default();
        let reported = self.observed.reports.get(name);
        let heartbeat = reported.and_then(|reported| {
            let age = jiff::SignedDuration::try_from(reported.age).ok()?;
            self.now.checked_sub(age).ok()
        });
        let phase = status.shown_phase();
        let roles = self.roles(name, entry, &status.addresses);
        let gpus = status.gpus.into_iter().map(|gpu| NodeGpu {
            used: load.gpus.contains(gpu.name.as_str()),
            name: gpu.name,
            memory: gpu.memory,
        });
        let mut conditions = status.conditions;
        conditions.extend(self.membership(name));
        conditions.extend(self.unread_files(name, entry, needed));
        Item {
            kind: "Node".to_owned(),
            metadata: node_metadata(name, registration, version),
            spec: NodeSpec {
                taints: registration.taints.clone(),
                draining: registration.draining,
                drain_forced: registration.draining && registration.drain_forced,
            },
            status: NodeStatus {
                phase,
                reason: status.reason,
                message: status.message,
                roles,
                addresses: status.addresses,
                endpoints: entry.endpoints.clone(),
                overlay_address: entry
                    .subnet
                    .map_or_else(String::new, |subnet| node_address(subnet).to_string()),
                subnet: entry
                    .subnet
                    .map_or_else(String::new, |subnet| subnet.to_string()),
                version: status.version,
                architecture: registration.architecture.clone(),
                capacity: status.capacity,
                allocatable: status.allocatable,
                requested: ResourceList {
                    cpu: Some(load.requested.cpu),
                    memory: Some(load.requested.memory),
                    storage: None,
                },
                last_heartbeat: heartbeat.map(|heartbeat| time(Some(heartbeat))),
                instances: load.instances,
                conditions,
                peers: reported.map_or_else(Vec::new, |reported| {
                    let peers = &reported.report.overlay_network.peers;
                    let silent = peers
                        .iter()
                        .filter(|peer| peer.unanswered_seconds.is_some());
                    silent.cloned().collect()
                }),
                gpus: gpus.collect(),
            },
        }
    }

    pub(super) fn roles(
        &self,
        name: &str,
        entry: &NodeEntry,
        addresses: &[String],
    ) -> Vec<NodeRole> {
        // An address that a machine itself reports is only compared if the leader's name is
        // unknown.
        let leads = match self.leader.or(self.snapshot.leader_name.as_deref()) {
            Some(leader) => leader == name,
            None => {
                let endpoint = self.snapshot.leader_endpoint.as_deref().unwrap_or_default();
                let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let overlay = entry.subnet.map(|subnet| node_address(subnet).to_string());
                let mut addresses = addresses.iter().chain(&overlay);
                entry.registration.value.etcd && addresses.any(|address| address == host)
            }
        };
        let labels = &entry.registration.value.labels;
        let ingress = is_for_ingress(labels) || self.snapshot.routes.contains_key(name);
        let roles = BTreeSet::from_iter(
            [
                leads.then_some(NodeRole::Leader),
                entry.registration.value.etcd.then_some(NodeRole::Etcd),
                Some(NodeRole::Worker),
                ingress.then_some(NodeRole::Ingress),
            ]
            .into_iter()
            .flatten(),
        );
        roles.into_iter().collect()
    }

    /// Revision at which the members were last written, for a machine that is one of them.
    fn members_revision(&self, name: &str) -> i64 {
        let members = self.snapshot.members.as_ref();
        members
            .filter(|members| {
                let members = &members.value;
                members.members.contains_key(name) || members.voteless_since.contains_key(name)
            })
            .map_or(0, |members| members.revision)
    }

    /// Why the machine becomes no member of etcd, or a member should not lead: it does not read the
    /// files of every workload, or know the settings of every namespace, which need this version. The
    /// message names none, since callers of any namespace read it.
    fn unread_files(&self, name: &str, entry: &NodeEntry, needed: u32) -> Option<Condition> {
        let registration = &entry.registration.value;
        if registration.no_etcd || entry.status.is_none() {
            return None;
        }
        let own = reader_of(entry);
        if own >= needed {
            return None;
        }
        let members = self.snapshot.members.as_ref();
        let is_member = members.is_some_and(|members| members.value.members.contains_key(name));
        let effect = match is_member {
            true => {
                "it holds the store, and would leave such workloads as they are and drop such settings if it led"
            }
            false => "it does not become a machine that holds the store",
        };
        Some(Condition {
            kind: READS_FILES.to_owned(),
            status: false,
            reason: Reason::ReaderTooOld.into(),
            message: format!(
                "its KAT reads files of version {own}, and a stored workload or namespace needs version {needed}: {effect}; upgrade kat there"
            ),
            since: ApiTime::UNKNOWN,
        })
    }

    /// State of the machine's etcd member, as the leader last saw it. A member that did not start is removed and added
    /// again; the condition stays between the two.
    fn membership(&self, name: &str) -> Option<Condition> {
        let members = &self.snapshot.members.as_ref()?.value;
        let since = members.voteless_since.get(name).copied();
        let Some(member) = members.members.get(name) else {
            return Some(Condition {
                kind: ETCD_CONDITION.to_owned(),
                status: false,
                reason: Reason::Starts.into(),
                message: "its member was removed, and is to be added again".to_owned(),
                since: time(Some(since?)),
            });
        };
        let (reason, message) = match (member.healthy, member.voting) {
            (true, true) => (Reason::Votes, "its etcd answers and has a vote"),
            (true, false) => (Reason::CatchesUp, "its etcd answers and has no vote yet"),
            (false, true) => (Reason::NoAnswer, "its etcd does not answer"),
            (false, false) => (
                Reason::Starts,
                "its etcd has no vote and does not answer yet",
            ),
        };
        // Both get their votes at the same moment, so the other one may be why it has none.
        let mut others = members.next.iter().filter(|other| *other != name);
        let message = match others.next().filter(|_| reason == Reason::CatchesUp) {
            Some(other) => format!("{message}; {other} is to get its vote at the same moment"),
            None => message.to_owned(),
        };
        let file = self.store.as_ref().and_then(|store| store.files.get(name));
        let message = match file {
            Some(store) => format!(
                "{message}; {} of its file of {} are in use",
                Bytes(store.used).rounded(),
                Bytes(store.file).rounded()
            ),
            None => message,
        };
        Some(Condition {
            kind: ETCD_CONDITION.to_owned(),
            status: member.healthy && member.voting,
            reason: reason.into(),
            message,
            since: time(since),
        })
    }
}
