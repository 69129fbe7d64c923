//! Instances as users see them.

use super::{ApiView, time};
use kat_types::{
    api::{InstanceItem, InstancePhase, InstanceSpec, InstanceStatus, Item, Metadata, NodePhase},
    assignment::{Assignment, DesiredRun},
    reason::Reason,
    resource::OnPartition,
    services::host_port_statuses,
    store::{
        records::{InstanceRecord, NodeStatusRecord},
        snapshot::InstanceEntry,
    },
};

impl ApiView<'_> {
    /// Instances for which `wanted` is true, by id.
    pub(crate) fn instances(&self, wanted: impl Fn(&InstanceEntry) -> bool) -> Vec<InstanceItem> {
        let instances = self.snapshot.instances.values();
        instances
            .filter(|entry| wanted(entry))
            .map(|entry| self.instance_item(entry))
            .collect()
    }

    /// One instance.
    pub(crate) fn instance(&self, namespace: &str, id: &str) -> Option<InstanceItem> {
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
        let lost =
            node_status.is_some_and(|status| status.value.shown_phase() == NodePhase::NotReady);
        let (phase, mut reason, mut message) =
            instance_phase(assignment.wanted, record, lost, &entry.node);
        if reason == Reason::NodeNotReady
            && waits_for_data(assignment, node_status.map(|status| &status.value))
        {
            reason = Reason::WaitsForItsData.into();
            message.push_str("; it has data of its own, and waits for its machine");
        }
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
                // Ids are never reused, so the id is the uid.
                uid: assignment.instance.clone(),
                labels: assignment.labels.clone(),
                generation: assignment.generation,
                resource_version: version.to_string(),
                creation_timestamp: assignment.created.into(),
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
                host_ports: host_port_statuses(&assignment.ports),
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
                since: time(record.since.or(assignment.created)),
                exit_code: record.exit_code,
                memory: report.and_then(|report| report.memory),
                cpu: report.and_then(|report| report.cpu),
                conditions: record.conditions.clone(),
                containers: record.containers.clone(),
            },
        }
    }
}

/// The instance is not replaced on another machine: it may still write, or its data lies on its
/// machine.
fn waits_for_data(assignment: &Assignment, machine: Option<&NodeStatusRecord>) -> bool {
    let here = machine.is_none_or(|machine| !machine.volume_shared);
    let mut volumes = assignment.volumes.iter();
    let wanted = assignment.wanted == DesiredRun::Running;
    let may_write = assignment.writes_data() && assignment.on_partition == OnPartition::Keep;
    wanted && (may_write || (here && volumes.any(|volume| volume.folder.is_some())))
}

fn instance_phase(
    wanted: DesiredRun,
    record: Option<&InstanceRecord>,
    node_lost: bool,
    node: &str,
) -> (InstancePhase, String, String) {
    let phase = match (record, wanted) {
        (None, DesiredRun::Running | DesiredRun::Prepared) => InstancePhase::Scheduled,
        (None, DesiredRun::Stopped) => InstancePhase::Stopping,
        (Some(record), _) => record.phase,
    };
    let over = matches!(
        phase,
        InstancePhase::Stopped | InstancePhase::Failed | InstancePhase::Succeeded
    );
    if node_lost && !over {
        return (
            InstancePhase::Unknown,
            Reason::NodeNotReady.into(),
            format!("its machine {node} does not answer"),
        );
    }
    match record {
        Some(record) => (phase, record.reason.clone(), record.message.clone()),
        None => (
            phase,
            Reason::WaitingForAgent.into(),
            format!("the agent of {node} has not reported it yet"),
        ),
    }
}
