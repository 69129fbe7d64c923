//! This machine on the system bus as `rip.dws.kat1`: what `katcall` says of it, without the API.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{identity::Identity, supervisor::Listed};
use crate::{
    api::types::{InstanceReport, NodeReport},
    leader::LeaderHandle,
    plan::Assignment,
    systemd::publish::{self, PublishedInstance, PublishedState},
};

/// Publishes every report of the agent until `cancel`.
pub async fn serve(
    identity: Arc<Identity>,
    lists: watch::Receiver<Listed>,
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
        () = publish::keep(state) => {}
    }
}

fn published(
    identity: &Identity,
    listed: &Listed,
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
        status: if listed.confirmed {
            "Ready".to_owned()
        } else {
            "Unconfirmed".to_owned()
        },
        instances: instances.collect(),
    }
}

fn published_instance(
    report: &InstanceReport,
    assignment: Option<&Assignment>,
) -> PublishedInstance {
    let word = |value: serde_json::Result<serde_json::Value>| {
        value
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    let mut published = PublishedInstance {
        namespace: report.namespace.clone(),
        workload: report.workload_name.clone(),
        phase: word(serde_json::to_value(report.phase)),
        reason: report.reason.clone(),
        restarts: report.restarts,
        health: word(serde_json::to_value(report.health_status)),
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
