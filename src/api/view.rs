//! The stored state as users see it (ARCHITECTURE.md, The API). Values of environment variables
//! never get past here.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::types::{
    Condition, ETCD_CONDITION, InstanceItem, InstancePhase, InstanceSpec, InstanceStatus, Item,
    Metadata, NamespaceItem, NamespaceSpec, NamespaceStatus, NodeItem, NodePhase, NodeRole,
    NodeSpec, NodeStatus, TokenView, WorkloadItem, WorkloadPhase, WorkloadStatus, WorkloadView,
};
use crate::{
    leader::StoreReport,
    plan::{
        InstanceEntry, InstanceRecord, NodeEntry, Observed, Snapshot, TokenRecord, Wanted,
        WorkloadEntry, WorkloadKey, node_address,
    },
    resource::{
        Bytes, Container, RestartCondition, RestartPolicy, Source, UpdateStrategy, WorkloadSpec,
        WorkloadType,
    },
};

/// What stands in place of the value of an environment variable.
pub const MASK: &str = "***";
/// Label of machines that let the outside in.
const INGRESS_LABEL: &str = "kat.dws.rip/ingress";

/// A snapshot, what the agents report, and from where it is looked at.
pub struct View<'a> {
    /// The stored state.
    pub snapshot: &'a Snapshot,
    /// The agents' last reports.
    pub observed: &'a Observed,
    /// The machine that leads, if this one knows for certain.
    pub leader: Option<&'a str>,
    /// What is known of the store's files.
    pub store: Option<StoreReport>,
    /// The time of day.
    pub now: Timestamp,
}

impl View<'_> {
    /// Namespaces, by name.
    pub fn namespaces(&self) -> Vec<NamespaceItem> {
        let names = self.snapshot.namespaces.keys();
        names.filter_map(|name| self.namespace(name)).collect()
    }

    /// One namespace.
    pub fn namespace(&self, name: &str) -> Option<NamespaceItem> {
        let stored = self.snapshot.namespaces.get(name)?;
        let workloads = self.snapshot.workloads.keys();
        let count = workloads.filter(|key| key.namespace == name).count();
        let phase = if stored.value.deleting {
            "Deleting"
        } else {
            "Active"
        };
        Some(Item {
            kind: "Namespace".to_owned(),
            metadata: Metadata {
                name: name.to_owned(),
                namespace: None,
                uid: stored.value.uid.clone(),
                labels: stored.value.labels.clone(),
                generation: 1,
                resource_version: stored.revision.to_string(),
                creation_timestamp: stored.value.created.to_string(),
            },
            spec: NamespaceSpec {},
            status: NamespaceStatus {
                phase: phase.to_owned(),
                workloads: u32::try_from(count).unwrap_or(u32::MAX),
            },
        })
    }

    /// Workloads of one namespace, or of all, by namespace and name.
    pub fn workloads(&self, namespace: Option<&str>) -> Vec<WorkloadItem> {
        let workloads = self.snapshot.workloads.iter();
        workloads
            .filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace))
            .map(|(key, entry)| workload_item(key, entry))
            .collect()
    }

    /// One workload.
    pub fn workload(&self, key: &WorkloadKey) -> Option<WorkloadItem> {
        let entry = self.snapshot.workloads.get(key)?;
        Some(workload_item(key, entry))
    }

    /// Instances that `wanted` lets through, by id.
    pub fn instances(&self, wanted: impl Fn(&InstanceEntry) -> bool) -> Vec<InstanceItem> {
        let instances = self.snapshot.instances.values();
        instances
            .filter(|entry| wanted(entry))
            .map(|entry| self.instance_item(entry))
            .collect()
    }

    /// One instance.
    pub fn instance(&self, namespace: &str, id: &str) -> Option<InstanceItem> {
        let entry = self.snapshot.instances.get(id)?;
        (entry.assignment.value.namespace == namespace).then(|| self.instance_item(entry))
    }

    fn instance_item(&self, entry: &InstanceEntry) -> InstanceItem {
        let assignment = &entry.assignment.value;
        let node = self.snapshot.nodes.get(&entry.node);
        let node_status = node.and_then(|node| node.status.as_ref());
        let record =
            node_status.and_then(|status| status.value.instances.get(&assignment.instance));
        let version = node_status
            .filter(|_| record.is_some())
            .map_or(0, |status| status.revision)
            .max(entry.assignment.revision);
        let lost = node_status.is_some_and(|status| status.value.phase == NodePhase::NotReady);
        let (phase, reason, message) = instance_phase(assignment.wanted, record, lost, &entry.node);
        let report = self.observed.reports.get(&entry.node).and_then(|reported| {
            let instances = reported.report.workload_instances.iter();
            instances
                .into_iter()
                .find(|report| report.instance_id == assignment.instance)
        });
        let unset = InstanceRecord::default();
        let record = record.unwrap_or(&unset);
        Item {
            kind: "Instance".to_owned(),
            metadata: Metadata {
                name: assignment.instance.clone(),
                namespace: Some(assignment.namespace.clone()),
                // Ids are never used again, so the id is the identity.
                uid: assignment.instance.clone(),
                labels: assignment.labels.clone(),
                generation: assignment.generation,
                resource_version: version.to_string(),
                creation_timestamp: assignment
                    .created
                    .map(|created| created.to_string())
                    .unwrap_or_default(),
            },
            spec: InstanceSpec {
                image: assignment.image.clone(),
            },
            status: InstanceStatus {
                workload: assignment.workload.clone(),
                slot: assignment.slot,
                node: Some(entry.node.clone()),
                ip: Some(assignment.address),
                ips: vec![assignment.address],
                phase,
                reason,
                message,
                health: record.health,
                restarts: record.restarts,
                image: assignment.image.clone(),
                image_digest: record.image_digest.clone(),
                generation: assignment.generation,
                user: assignment.user.name.clone(),
                uid: assignment.user.uid,
                unit: assignment.unit(),
                since: time(record.since),
                exit_code: record.exit_code,
                memory: report.and_then(|report| report.memory),
                cpu: report.and_then(|report| report.cpu),
                conditions: record.conditions.clone(),
            },
        }
    }

    /// Machines, by name.
    pub fn nodes(&self) -> Vec<NodeItem> {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for entry in self.snapshot.instances.values() {
            let count = counts.entry(entry.node.as_str()).or_default();
            *count = count.saturating_add(1);
        }
        let nodes = self.snapshot.nodes.iter();
        nodes
            .map(|(name, entry)| self.node_item(name, entry, counts.get(name.as_str()).copied()))
            .collect()
    }

    /// One machine.
    pub fn node(&self, name: &str) -> Option<NodeItem> {
        let entry = self.snapshot.nodes.get(name)?;
        let instances = self.snapshot.instances.values();
        let count = instances.filter(|entry| entry.node == name).count();
        let mut item = self.node_item(name, entry, u32::try_from(count).ok());
        if let Some(reported) = self.observed.reports.get(name) {
            let overlay = &reported.report.overlay_network;
            item.status.peers.clone_from(&overlay.peers);
        }
        Some(item)
    }

    fn node_item(&self, name: &str, entry: &NodeEntry, instances: Option<u32>) -> NodeItem {
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
        let roles = self.roles(name, entry, &status.addresses);
        let mut conditions = status.conditions;
        conditions.extend(self.membership(name));
        Item {
            kind: "Node".to_owned(),
            metadata: Metadata {
                name: name.to_owned(),
                namespace: None,
                uid: registration.uid.clone(),
                labels: registration.labels.clone(),
                generation: 1,
                resource_version: version.to_string(),
                creation_timestamp: registration.created.to_string(),
            },
            spec: NodeSpec {
                taints: registration.taints.clone(),
                draining: registration.draining,
            },
            status: NodeStatus {
                phase: status.phase,
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
                last_heartbeat: heartbeat.map(|heartbeat| time(Some(heartbeat))),
                instances: instances.unwrap_or(0),
                conditions,
                peers: Vec::new(),
            },
        }
    }

    fn roles(&self, name: &str, entry: &NodeEntry, addresses: &[String]) -> Vec<NodeRole> {
        let leads = match self.leader {
            Some(leader) => leader == name,
            None => {
                let endpoint = self.snapshot.leader_endpoint.as_deref().unwrap_or_default();
                let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let overlay = entry.subnet.map(|subnet| node_address(subnet).to_string());
                addresses
                    .iter()
                    .chain(&overlay)
                    .any(|address| address == host)
            }
        };
        let labels = &entry.registration.value.labels;
        let ingress = labels
            .get(INGRESS_LABEL)
            .is_some_and(|value| value == "true");
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
            .filter(|members| members.value.members.contains_key(name))
            .map_or(0, |members| members.revision)
    }

    /// How the machine's member of etcd is, as the leader last saw it.
    fn membership(&self, name: &str) -> Option<Condition> {
        let members = self.snapshot.members.as_ref()?;
        let member = members.value.members.get(name)?;
        let (reason, message) = match (member.healthy, member.voting) {
            (true, true) => ("Votes", "its etcd answers and has a vote"),
            (true, false) => ("CatchesUp", "its etcd answers and has no vote yet"),
            (false, true) => ("NoAnswer", "its etcd does not answer"),
            (false, false) => ("Starts", "its etcd has no vote and does not answer yet"),
        };
        let file = self.store.as_ref().and_then(|store| store.files.get(name));
        let message = match file {
            Some(store) => format!(
                "{message}; {} of its file of {} are in use",
                Bytes(store.used).rounded(),
                Bytes(store.file).rounded()
            ),
            None => message.to_owned(),
        };
        Some(Condition {
            kind: ETCD_CONDITION.to_owned(),
            status: member.healthy && member.voting,
            reason: reason.to_owned(),
            message,
            since: String::new(),
        })
    }

    /// Tokens, by id, without their secrets.
    pub fn tokens(&self) -> Vec<TokenView> {
        let tokens = self.snapshot.tokens.iter();
        tokens
            .map(|(id, stored)| token_view(id, &stored.value))
            .collect()
    }
}

/// A token without its secret.
pub fn token_view(id: &str, record: &TokenRecord) -> TokenView {
    TokenView {
        id: id.to_owned(),
        name: record.name.clone(),
        scope: record.scope.clone(),
        created: record.created.to_string(),
        expires: record.expires.map(|expires| expires.to_string()),
        uses: record.uses,
        insecure_trust_network: record.insecure_trust_network,
        token: None,
        leader_api: None,
    }
}

/// Identity of a workload; `resource_version` is empty.
pub fn workload_metadata(key: &WorkloadKey, entry: &WorkloadEntry) -> Metadata {
    let meta = &entry.meta.value;
    let labels = entry
        .parsed
        .as_ref()
        .map(|parsed| parsed.workload.metadata.labels.clone());
    Metadata {
        name: key.name.clone(),
        namespace: Some(key.namespace.clone()),
        uid: meta.uid.clone(),
        labels: labels.unwrap_or_default(),
        generation: meta.generation,
        resource_version: workload_version(entry).to_string(),
        creation_timestamp: meta.created.to_string(),
    }
}

/// The revision of the newest part of a workload.
pub fn workload_version(entry: &WorkloadEntry) -> i64 {
    let files = entry
        .files
        .values()
        .map(|file| file.revision)
        .max()
        .unwrap_or(0);
    let status = entry.status.as_ref().map_or(0, |status| status.revision);
    entry.meta.revision.max(files).max(status)
}

fn workload_item(key: &WorkloadKey, entry: &WorkloadEntry) -> WorkloadItem {
    let mut status = entry
        .status
        .as_ref()
        .map_or_else(WorkloadStatus::default, |stored| {
            stored.value.status.clone()
        });
    let spec = match &entry.parsed {
        Ok(parsed) => WorkloadView {
            workload: masked(&parsed.workload.spec),
            load_balancer: parsed
                .load_balancer
                .as_ref()
                .map(|load_balancer| load_balancer.spec.clone()),
        },
        Err(reason) => {
            status.conditions.push(Condition {
                kind: "Readable".to_owned(),
                status: false,
                reason: "UnreadableFiles".to_owned(),
                message: format!("the stored files can't be read any more: {reason}"),
                since: entry.meta.value.updated.to_string(),
            });
            unreadable()
        }
    };
    if entry.status.is_none() {
        status.replicas = spec.workload.replicas.unwrap_or(0);
    }
    if entry.meta.value.deleting {
        status.phase = WorkloadPhase::Deleting;
    }
    Item {
        kind: "Workload".to_owned(),
        metadata: workload_metadata(key, entry),
        spec,
        status,
    }
}

/// What stands in place of a specification that can't be read.
fn unreadable() -> WorkloadView {
    WorkloadView {
        workload: WorkloadSpec {
            kind: WorkloadType::Service,
            source: Source::default(),
            replicas: None,
            update_strategy: UpdateStrategy::default(),
            restart_policy: RestartPolicy {
                condition: RestartCondition::Never,
                max_restarts: 0,
                reset_seconds: 0,
            },
            on_node_loss: None,
            on_partition: crate::resource::OnPartition::default(),
            spread: None,
            anti_affinity: Vec::new(),
            affinity: Vec::new(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            container: Container::default(),
            init_containers: Vec::new(),
            sidecars: Vec::new(),
            volumes: Vec::new(),
        },
        load_balancer: None,
    }
}

/// A specification without the values of environment variables.
pub fn masked(spec: &WorkloadSpec) -> WorkloadSpec {
    let mut spec = spec.clone();
    let containers = std::iter::once(&mut spec.container)
        .chain(&mut spec.init_containers)
        .chain(&mut spec.sidecars);
    for container in containers {
        for variable in &mut container.env {
            if let Some(value) = &mut variable.value {
                MASK.clone_into(value);
            }
        }
        for (key, value) in &mut container.quadlet {
            if key.to_ascii_lowercase().contains("environment") {
                MASK.clone_into(value);
            }
        }
    }
    spec
}

fn instance_phase(
    wanted: Wanted,
    record: Option<&InstanceRecord>,
    node_lost: bool,
    node: &str,
) -> (InstancePhase, String, String) {
    let phase = match (record, wanted) {
        (None, Wanted::Running) => InstancePhase::Scheduled,
        (None, Wanted::Stopped) => InstancePhase::Stopping,
        (Some(record), _) => record.phase,
    };
    let over = matches!(
        phase,
        InstancePhase::Stopped | InstancePhase::Failed | InstancePhase::Succeeded
    );
    if node_lost && !over {
        return (
            InstancePhase::Unknown,
            "NodeNotReady".to_owned(),
            format!("its machine {node} does not answer"),
        );
    }
    match record {
        Some(record) => (phase, record.reason.clone(), record.message.clone()),
        None => (
            phase,
            "WaitingForAgent".to_owned(),
            format!("the agent of {node} has not reported it yet"),
        ),
    }
}

/// RFC 3339 to the microsecond; empty for nothing.
fn time(timestamp: Option<Timestamp>) -> String {
    timestamp.map_or_else(String::new, |timestamp| format!("{timestamp:.6}"))
}

#[cfg(test)]
mod tests;
