//! Publishes this machine's state on the system bus as `rip.dws.kat1`: what `katcall` shows without
//! the API.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::supervisor::DesiredList;
use crate::cluster::identity::MachineIdentity;
use kat_leader::LeaderHandle;
use kat_systemd::publish::{self, PublishedInstance, PublishedState};
use kat_types::{
    api::{InstanceReport, NodePhase, NodeReport},
    assignment::Assignment,
    encoding::json,
};

/// Publishes every report of the agent until `cancel`.
pub(crate) async fn serve(
    identity: Arc<MachineIdentity>,
    lists: watch::Receiver<DesiredList>,
    handle: LeaderHandle,
    mut reports: watch::Receiver<Arc<NodeReport>>,
    cancel: CancellationToken,
) {
    let (states, state) = watch::channel(Arc::default());
    let mut leadership = handle.leadership.clone();
    let follow = async {
        loop {
            let report = reports.borrow_and_update().clone();
            let leader = leadership.borrow_and_update().is_some();
            let listed = lists.borrow().clone();
            states.send_replace(Arc::new(published(&identity, &listed, leader, &report)));
            let changed = tokio::select! {
                changed = reports.changed() => changed,
                changed = leadership.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = follow => {}
        () = publish::publish_until_closed(state) => {}
    }
}

fn published(
    identity: &MachineIdentity,
    listed: &DesiredList,
    leader: bool,
    report: &NodeReport,
) -> PublishedState {
    let instances = report.workload_instances.iter().map(|instance| {
        let assignment = listed.desired.assignments.get(&instance.instance_id);
        (
            instance.instance_id.clone(),
            published_instance(instance, assignment),
        )
    });
    PublishedState {
        node: identity.node.clone(),
        leader,
        cluster: identity.cluster.metadata.name.clone(),
        status: word(&if listed.confirmed {
            NodePhase::Ready
        } else {
            NodePhase::NotReady
        }),
        instances: instances.collect(),
    }
}

fn published_instance(
    report: &InstanceReport,
    assignment: Option<&Assignment>,
) -> PublishedInstance {
    let mut published = PublishedInstance {
        namespace: report.namespace.clone(),
        workload: report.workload_name.clone(),
        phase: word(&report.phase),
        reason: report.reason.clone(),
        restarts: report.restarts,
        health: word(&report.health_status),
        ..PublishedInstance::default()
    };
    if let Some(assignment) = assignment {
        published.unit = assignment.unit();
        published.user = assignment.user.name.clone();
        published.uid = assignment.user.uid;
        published.address = assignment.address.to_string();
        published.image = assignment.image.clone();
        published.generation = assignment.generation;
    }
    published
}

/// The name of a phase or a health as users see it.
fn word(value: &impl Serialize) -> String {
    json::tree("a word", value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_a_phase_of_the_contract() {
        let contract = include_str!("../../../dbus/rip.dws.kat1.xml");
        let identity = MachineIdentity::example("n1");
        for (confirmed, phase) in [(true, "Ready"), (false, "NotReady")] {
            let listed = DesiredList {
                confirmed,
                ..DesiredList::default()
            };
            let state = published(&identity, &listed, false, &NodeReport::default());
            assert_eq!(state.status, phase);
            assert!(contract.contains(&format!(" {phase}: ")), "{phase}");
        }
    }
}
