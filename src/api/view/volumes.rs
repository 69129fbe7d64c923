//! Volumes as users see them.

use super::ApiView;
use kat_plan::{is_forgotten, is_missing, users_of};
use kat_types::{
    api::{
        Item, KeptCopyView, Metadata, NodePhase, VolumeItem, VolumeMovePhase, VolumeMoveReport,
        VolumeMoveStatus, VolumeMoveStep, VolumePhase, VolumeRemovalState, VolumeRemovalView,
        VolumeSpec, VolumeStatus,
    },
    store::{records::VolumeRecord, revisions::Stored},
    volumes::{KeptCopy, VolumeKey, VolumeMove},
};

impl ApiView<'_> {
    /// Volumes of one namespace, or of all, by namespace, workload and name.
    pub(crate) fn volumes(&self, namespace: Option<&str>) -> Vec<VolumeItem> {
        let volumes = self.snapshot.volumes.iter();
        volumes
            .filter(|(key, _)| {
                namespace.is_none_or(|namespace| key.workload.namespace == namespace)
            })
            .map(|(key, stored)| self.volume_item(key, stored))
            .collect()
    }

    /// One volume.
    pub(crate) fn volume(&self, key: &VolumeKey) -> Option<VolumeItem> {
        let stored = self.snapshot.volumes.get(key)?;
        Some(self.volume_item(key, stored))
    }

    fn volume_item(&self, key: &VolumeKey, stored: &Stored<VolumeRecord>) -> VolumeItem {
        let record = &stored.value;
        let workloads = &self.snapshot.workloads;
        let phase = match (record.deleting, workloads.contains_key(&key.workload)) {
            (true, _) => VolumePhase::Removing,
            _ if record.moving.is_some() => VolumePhase::Moving,
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
                path: path.clone(),
                used_by: users_of(self.snapshot, key).map(str::to_owned).collect(),
                moving: record
                    .moving
                    .as_ref()
                    .map(|moving| self.moving(key, moving)),
                kept: record
                    .kept
                    .iter()
                    .filter(|copy| !copy.unsure)
                    .map(kept_copy_view)
                    .collect(),
                removals: self.removals(key, record, &path),
            },
        }
    }
}

impl ApiView<'_> {
    /// The removals of the volume's data that machines have not confirmed.
    fn removals(
        &self,
        key: &VolumeKey,
        record: &VolumeRecord,
        path: &str,
    ) -> Vec<VolumeRemovalView> {
        let asked = self.snapshot.removals.iter();
        let asked = asked.filter_map(|(node, all)| Some((node, all.get(key)?)));
        let views = asked.filter_map(|(node, removal)| {
            let entry = self.snapshot.nodes.get(node)?;
            let status = entry.status.as_ref().map(|stored| &stored.value);
            let away = status.is_none_or(|status| status.phase == NodePhase::NotReady);
            let is_missing = status.is_some_and(|status| is_missing(status, key, removal));
            let (state, message) = if is_forgotten(record, node, removal) {
                let message = format!("its data was given up, which {node} has yet to record");
                (VolumeRemovalState::Forgetting, message)
            } else if away {
                (
                    VolumeRemovalState::Requested,
                    format!("{node} does not answer"),
                )
            } else if is_missing {
                let forget = match status.is_some_and(|status| status.volume_shared) {
                    true => String::new(),
                    false => format!(
                        ", or give the data up with `katcall volume forget {key} --on {node}`"
                    ),
                };
                let message = format!("{path} is not there on {node}: mount its disk{forget}");
                (VolumeRemovalState::Missing, message)
            } else {
                (VolumeRemovalState::Requested, String::new())
            };
            Some(VolumeRemovalView {
                node: node.clone(),
                since: removal.asked.into(),
                state,
                message,
            })
        });
        views.collect()
    }

    /// The progress of a volume's move: from the last report of the receiving machine, if this
    /// machine received it, else from the stored status.
    fn moving(&self, key: &VolumeKey, moving: &VolumeMove) -> VolumeMoveStatus {
        let name = key.to_string();
        let of_this = |report: &&VolumeMoveReport| report.volume == name && report.id == moving.id;
        let heard = self.observed.reports.get(&moving.to);
        let heard = heard.and_then(|heard| heard.report.volume_moves.iter().find(of_this));
        let stored = self.snapshot.nodes.get(&moving.to);
        let stored = stored.and_then(|node| node.status.as_ref());
        let stored = stored.and_then(|status| status.value.volume_moves.iter().find(of_this));
        let report = heard.or(stored).cloned().unwrap_or_default();
        let user = users_of(self.snapshot, key).next();
        let (phase, message) = match user {
            Some(user) => (VolumeMoveStep::Stopping, format!("{user} has to end first")),
            None if moving.placing => (VolumeMoveStep::Placing, report.message),
            None => (
                match report.phase {
                    VolumeMovePhase::Waiting | VolumeMovePhase::Lost => VolumeMoveStep::Waiting,
                    VolumeMovePhase::Copying => VolumeMoveStep::Copying,
                    VolumeMovePhase::Verifying => VolumeMoveStep::Verifying,
                    VolumeMovePhase::Copied | VolumeMovePhase::Placed => VolumeMoveStep::Copied,
                },
                report.message,
            ),
        };
        VolumeMoveStatus {
            id: moving.id.clone(),
            from: moving.from.clone(),
            to: moving.to.clone(),
            since: moving.asked.into(),
            phase,
            message,
            files: report.files,
            bytes: report.bytes,
            total_files: report.total_files,
            total_bytes: report.total_bytes,
        }
    }
}

fn kept_copy_view(copy: &KeptCopy) -> KeptCopyView {
    KeptCopyView {
        node: copy.node.clone(),
        until: copy.until.into(),
    }
}

/// Metadata of a volume; one that is created anew under the same name has another uid.
pub(crate) fn volume_metadata(key: &VolumeKey, stored: &Stored<VolumeRecord>) -> Metadata {
    let created = stored.value.created;
    Metadata {
        name: key.volume.clone(),
        namespace: Some(key.workload.namespace.clone()),
        uid: format!("{key}/{}", created.as_microsecond()),
        generation: 1,
        resource_version: stored.revision.to_string(),
        creation_timestamp: created.into(),
        ..Metadata::default()
    }
}
