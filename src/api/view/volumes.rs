//! Volumes as users see them.

use super::View;
use crate::{
    api::types::{Item, Metadata, VolumeItem, VolumePhase, VolumeSpec, VolumeStatus},
    plan::{Stored, VolumeKey, VolumeRecord, users_of},
};

impl View<'_> {
    /// Volumes of one namespace, or of all, by namespace, workload and name.
    pub fn volumes(&self, namespace: Option<&str>) -> Vec<VolumeItem> {
        let volumes = self.snapshot.volumes.iter();
        volumes
            .filter(|(key, _)| {
                namespace.is_none_or(|namespace| key.workload.namespace == namespace)
            })
            .map(|(key, stored)| self.volume_item(key, stored))
            .collect()
    }

    /// One volume.
    pub fn volume(&self, key: &VolumeKey) -> Option<VolumeItem> {
        let stored = self.snapshot.volumes.get(key)?;
        Some(self.volume_item(key, stored))
    }

    fn volume_item(&self, key: &VolumeKey, stored: &Stored<VolumeRecord>) -> VolumeItem {
        let record = &stored.value;
        let workloads = &self.snapshot.workloads;
        let phase = match (record.deleting, workloads.contains_key(&key.workload)) {
            (true, _) => VolumePhase::Removing,
            (false, false) => VolumePhase::Released,
            (false, true) if record.made => VolumePhase::Bound,
            (false, true) => VolumePhase::Pending,
        };
        let node = record.node.as_ref().filter(|node| {
            let entry = self.snapshot.nodes.get(*node);
            let status = entry.and_then(|entry| entry.status.as_ref());
            let shares = status.is_some_and(|status| status.value.volume_shared);
            record.host_path.is_some() || !shares
        });
        let path = record.host_path.clone().unwrap_or_else(|| {
            let base = &self.snapshot.cluster.spec.volume_base_path;
            format!("{}/{key}", base.trim_end_matches('/'))
        });
        Item {
            kind: "Volume".to_owned(),
            metadata: volume_metadata(key, stored),
            spec: VolumeSpec {
                workload: key.workload.name.clone(),
                volume: key.name().to_owned(),
                slot: key.slot(),
                reclaim: record.reclaim,
                host_path: record.host_path.clone(),
            },
            status: VolumeStatus {
                phase,
                node: node.cloned(),
                shared: node.is_none() && record.host_path.is_none(),
                path,
                used_by: users_of(self.snapshot, key).map(str::to_owned).collect(),
            },
        }
    }
}

/// Identity of a volume: one that is made anew under the same name is another.
pub fn volume_metadata(key: &VolumeKey, stored: &Stored<VolumeRecord>) -> Metadata {
    let created = stored.value.created;
    Metadata {
        name: key.volume.clone(),
        namespace: Some(key.workload.namespace.clone()),
        uid: format!("{key}/{}", created.as_microsecond()),
        generation: 1,
        resource_version: stored.revision.to_string(),
        creation_timestamp: created.to_string(),
        ..Metadata::default()
    }
}
