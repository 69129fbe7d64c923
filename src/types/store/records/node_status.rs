//! The status of a machine and of its instances after a report.

use jiff::Timestamp;

use super::{InstanceRecord, NodeStatusRecord};
use crate::{
    api::{ImagesRemoved, InstanceReport, NodePhase, NodeReport, VolumeMoveReport},
    reason::Reason,
};

impl NodeStatusRecord {
    /// Records that `machine` has not reported to the store, which was begun anew: all that is known
    /// of the machine was reported to the store before. Returns true if that changes the status.
    ///
    /// The phase stays until the machine reports or is lost, since instances that run there continue
    /// to serve; users see [`Self::shown_phase`].
    pub fn set_unheard(&mut self, machine: &str) -> bool {
        let was_heard = match self.phase {
            NodePhase::Ready | NodePhase::Draining | NodePhase::Drained => !self.is_unheard(),
            NodePhase::Joining | NodePhase::NotReady | NodePhase::Detached => false,
        };
        if was_heard {
            self.reason = Reason::NoHeartbeat.into();
            self.message =
                format!("machine {machine} has not reported since the store was begun anew");
        }
        was_heard
    }

    /// The machine has not reported since the store was begun anew, and is not lost yet.
    pub fn is_unheard(&self) -> bool {
        self.phase != NodePhase::NotReady && self.reason == Reason::NoHeartbeat
    }

    /// The phase that users see: a machine that the store has not heard is not Ready.
    pub fn shown_phase(&self) -> NodePhase {
        if self.is_unheard() {
            NodePhase::NotReady
        } else {
            self.phase
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_unheard_in_a_new_store_unless_it_was_away_in_the_old_one() {
        for (phase, marked) in [
            (NodePhase::Ready, true),
            (NodePhase::Draining, true),
            (NodePhase::Drained, true),
            (NodePhase::Joining, false),
            (NodePhase::NotReady, false),
            (NodePhase::Detached, false),
        ] {
            let before = NodeStatusRecord {
                phase,
                ..NodeStatusRecord::default()
            };
            let mut status = before.clone();
            assert_eq!(status.set_unheard("n3"), marked, "{phase:?}");
            assert_eq!(status.is_unheard(), marked, "{phase:?}");
            let shown = if marked { NodePhase::NotReady } else { phase };
            assert_eq!((status.phase, status.shown_phase()), (phase, shown));
            if marked {
                assert_eq!(
                    status.message,
                    "machine n3 has not reported since the store was begun anew"
                );
                assert!(!status.set_unheard("n3"), "a repeated command");
            } else {
                assert_eq!(status, before);
            }
        }
    }

    #[test]
    fn a_lost_machine_is_not_ready_and_not_unheard() {
        let status = NodeStatusRecord {
            phase: NodePhase::NotReady,
            reason: Reason::NoHeartbeat.into(),
            ..NodeStatusRecord::default()
        };
        assert!(!status.is_unheard());
        assert_eq!(status.shown_phase(), NodePhase::NotReady);
    }
}
