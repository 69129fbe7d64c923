//! The stored state as users see it (docs/internals/api.md). Values of environment variables are
//! masked here.

use std::collections::BTreeMap;

use jiff::Timestamp;

use kat_leader::StoreReport;
use kat_plan::{Snapshot, used_by_namespace};
use kat_types::{
    api::{
        ApiTime, Condition, Item, Metadata, NamespaceItem, NamespacePhase, NamespaceSpec,
        NamespaceStatus, TokenView, WorkloadItem, WorkloadPhase, WorkloadStatus, WorkloadView,
    },
    reason::Reason,
    resource::{
        Container, RestartCondition, RestartPolicy, Source, UpdateStrategy, WorkloadSpec,
        WorkloadType,
    },
    store::{
        records::{NamespaceRecord, NodeRegistration, TokenRecord},
        revisions::WorkloadKey,
        snapshot::{ObservedReports, WorkloadEntry},
    },
};

/// Replaces the value of an environment variable.
pub(crate) const MASK: &str = "***";

/// A snapshot and the agents' reports, as seen from this machine.
pub(crate) struct ApiView<'a> {
    /// The stored state.
    pub snapshot: &'a Snapshot,
    /// The agents' last reports.
    pub observed: &'a ObservedReports,
    /// The leading machine, if it is certainly this one.
    pub leader: Option<&'a str>,
    /// State of the store's files.
    pub store: Option<StoreReport>,
    /// The present time.
    pub now: Timestamp,
}

impl ApiView<'_> {
    /// Namespaces, by name.
    pub(crate) fn namespaces(&self) -> Vec<NamespaceItem> {
        let names = self.snapshot.namespaces.keys();
        names.filter_map(|name| self.namespace(name)).collect()
    }

    /// One namespace.
    pub(crate) fn namespace(&self, name: &str) -> Option<NamespaceItem> {
        let stored = self.snapshot.namespaces.get(name)?;
        let workloads = self.snapshot.workloads.keys();
        let count = workloads.filter(|key| key.namespace == name).count();
        let phase = if stored.value.deleting {
            NamespacePhase::Deleting
        } else {
            NamespacePhase::Active
        };
        Some(Item {
            kind: "Namespace".to_owned(),
            metadata: namespace_metadata(name, &stored.value, stored.revision),
            spec: NamespaceSpec {
                isolation: stored.value.access.isolation,
                allow_namespaces: stored.value.access.allow_namespaces.clone(),
                ingress_hosts: stored.value.ingress_hosts.clone(),
                quota: stored.value.quota,
                defaults: stored.value.defaults,
            },
            status: NamespaceStatus {
                phase,
                workloads: u32::try_from(count).unwrap_or(u32::MAX),
                used: used_by_namespace(self.snapshot, name),
            },
        })
    }

    /// Workloads of one namespace, or of all, by namespace and name.
    pub(crate) fn workloads(&self, namespace: Option<&str>) -> Vec<WorkloadItem> {
        let workloads = self.snapshot.workloads.iter();
        workloads
            .filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace))
            .map(|(key, entry)| workload_item(key, entry))
            .collect()
    }

    /// One workload.
    pub(crate) fn workload(&self, key: &WorkloadKey) -> Option<WorkloadItem> {
        let entry = self.snapshot.workloads.get(key)?;
        Some(workload_item(key, entry))
    }

    /// Tokens, by id, without their secrets.
    pub(crate) fn tokens(&self) -> Vec<TokenView> {
        let tokens = self.snapshot.tokens.iter();
        tokens
            .map(|(id, stored)| token_view(id, &stored.value))
            .collect()
    }
}

/// Metadata of a namespace.
pub(crate) fn namespace_metadata(name: &str, record: &NamespaceRecord, revision: i64) -> Metadata {
    Metadata {
        uid: record.uid.clone(),
        labels: record.labels.clone(),
        creation_timestamp: record.created.into(),
        ..unversioned(name, revision)
    }
}

/// Metadata of a machine.
pub(crate) fn node_metadata(
    name: &str,
    registration: &NodeRegistration,
    revision: i64,
) -> Metadata {
    // A machine without the store does not know when machines joined.
    let created = Some(registration.created).filter(|created| *created != Timestamp::UNIX_EPOCH);
    Metadata {
        uid: registration.uid.clone(),
        labels: registration.labels.clone(),
        creation_timestamp: created.into(),
        ..unversioned(name, revision)
    }
}

/// Metadata of an object without a namespace and with only one generation.
fn unversioned(name: &str, revision: i64) -> Metadata {
    Metadata {
        name: name.to_owned(),
        generation: 1,
        resource_version: revision.to_string(),
        ..Metadata::default()
    }
}

/// A token without its secret.
pub(crate) fn token_view(id: &str, record: &TokenRecord) -> TokenView {
    TokenView {
        id: id.to_owned(),
        name: record.name.clone(),
        scope: record.scope.clone(),
        created: record.created.into(),
        expires: record.expires.map(ApiTime::from),
        uses: record.uses,
        insecure_trust_network: record.insecure_trust_network,
        token: None,
        leader_api: None,
        connection: None,
    }
}

/// Metadata of a workload; `resource_version` is empty.
pub(crate) fn workload_metadata(key: &WorkloadKey, entry: &WorkloadEntry) -> Metadata {
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
        creation_timestamp: meta.created.into(),
    }
}

/// The newest revision of a workload's keys.
pub(crate) fn workload_version(entry: &WorkloadEntry) -> i64 {
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
            job: parsed.job.clone(),
        },
        Err(reason) => {
            status.conditions.push(Condition {
                kind: "Readable".to_owned(),
                status: false,
                reason: Reason::UnreadableFiles.into(),
                message: format!("the stored files can't be read any more: {reason}"),
                since: entry.meta.value.updated.into(),
            });
            unreadable()
        }
    };
    if entry.status.is_none() {
        status.replicas = match spec.workload.kind {
            WorkloadType::Service => spec.workload.replicas.unwrap_or(0),
            // They follow from runs and machines.
            WorkloadType::Job | WorkloadType::DaemonService => 0,
        };
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

/// Replaces a specification that can't be read.
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
            on_partition: kat_types::resource::OnPartition::default(),
            spread: None,
            anti_affinity: Vec::new(),
            affinity: Vec::new(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            container: Container::default(),
            init_containers: Vec::new(),
            sidecars: Vec::new(),
            volumes: Vec::new(),
            ports: Vec::new(),
            start_after: Vec::new(),
            machine_access: Vec::new(),
        },
        load_balancer: None,
        job: None,
    }
}

/// A copy of a specification with masked values of environment variables.
pub(crate) fn masked(spec: &WorkloadSpec) -> WorkloadSpec {
    let mut spec = spec.clone();
    let containers = std::iter::once(&mut spec.container)
        .chain(&mut spec.init_containers)
        .chain(&mut spec.sidecars);
    containers.for_each(mask);
    spec
}

/// Masks the values of environment variables in a container.
pub(crate) fn mask(container: &mut Container) {
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

/// The time in whole microseconds, as far as machines' clocks are worth showing.
fn time(timestamp: Option<Timestamp>) -> ApiTime {
    let whole = timestamp.map(|time| Timestamp::from_microsecond(time.as_microsecond()));
    whole.and_then(Result::ok).into()
}

mod instances;
mod nodes;
mod overview;
mod routes;
mod runs;
mod secrets;
#[cfg(test)]
mod tests;
mod virtual_addresses;
mod volumes;

pub(crate) use overview::shown_version;
pub(crate) use runs::run_item;
pub(crate) use secrets::{secret_metadata, stored_secret_metadata};
pub(crate) use volumes::volume_metadata;
