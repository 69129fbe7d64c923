//! The status of a machine and of its instances after a report.

use jiff::Timestamp;

use super::{InstanceRecord, NodeStatusRecord};
use crate::api::{ImagesRemoved, InstanceReport, NodeReport, VolumeMoveReport};

impl NodeStatusRecord {
    /// The status with everything that the report says. The phase, which no report says, stays.
    pub fn after_report(&self, report: &NodeReport, now: Timestamp) -> Self {
        let instances = report.workload_instances.iter().map(|instance| {
            let id = &instance.instance_id;
            let earlier = self.instances.get(id);
            (id.clone(), InstanceRecord::new(instance, earlier, now))
        });
        let moves = report.volume_moves.iter().map(VolumeMoveReport::meaning);
        // The machine chooses the names. An agent that has removed no images since it began to
        // count does not reset the count.
        let removed = report.images_removed.as_ref().map(ImagesRemoved::bounded);
        Self {
            schema: 1,
            capacity: report.resources.capacity,
            allocatable: report.resources.allocatable,
            addresses: report.addresses.clone(),
            version: report.version.clone(),
            instances: instances.collect(),
            desired_revision: report.desired_revision,
            user_indexes: report.user_indexes.clone(),
            conditions: report.conditions.clone(),
            assignment_schema: report.assignment_schema,
            manifest_reader: report.manifest_reader,
            loss_timeout_seconds: report
                .configuration
                .as_ref()
                .map_or(0, |followed| followed.node_loss_timeout_seconds),
            data_path: report.data_path,
            volume_shared: report.volume_shared,
            host_network: report.host_network,
            runtime: report.runtime.clone(),
            foreign_indexes: report.foreign_indexes.clone(),
            gpus: report.gpus.clone(),
            made_volumes: report.made_volumes.clone(),
            removed_volumes: report.removed_volumes.clone(),
            missing_volumes: report.missing_volumes.clone(),
            volume_moves: moves.collect(),
            images_removed: removed.or_else(|| self.images_removed.clone()),
            ..self.clone()
        }
    }
}

impl InstanceRecord {
    fn new(report: &InstanceReport, before: Option<&Self>, now: Timestamp) -> Self {
        // The leader that wrote `since` may have a clock that is ahead. A program may have ended
        // and begun again between two reports.
        let since = before
            .filter(|before| before.phase == report.phase && report.restarts <= before.restarts)
            .and_then(|before| Some(before.since?.min(now)));
        Self {
            phase: report.phase,
            reason: report.reason.clone(),
            message: report.message.clone(),
            health: report.health_status,
            restarts: report.restarts,
            since: since.or(Some(now)),
            exit_code: report.exit_code,
            image_digest: (!report.image_id.is_empty()).then(|| report.image_id.clone()),
            container_id: report.container_id.clone(),
            template_hash: report.template_hash.clone(),
            conditions: report.conditions.clone(),
            containers: report.containers.clone(),
            bound: report.bound.clone(),
        }
    }
}
