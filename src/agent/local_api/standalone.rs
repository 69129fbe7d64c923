//! The API that a machine without etcd serves on its own socket. It reads only this machine's list
//! and its last report, so that it answers while the rest of the cluster is unreachable.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{cluster::identity::MachineIdentity, service::supervisor::DesiredList};
use kat_leader::{AgentReports, LeaderHandle, PlanningHealth, StoreHealth};
use kat_plan::Snapshot;
use kat_store::StateStore;
use kat_types::{
    api::{NodePhase, NodeReport},
    machine::node_labels::node_labels,
    reason::Reason,
    store::{
        records::{NodeRegistration, NodeStatusRecord},
        revisions::Stored,
        snapshot::{InstanceEntry, NodeEntry, StoredState},
    },
};

pub(crate) fn start(
    store: Arc<dyn StateStore>,
    identity: Arc<MachineIdentity>,
    lists: watch::Receiver<DesiredList>,
    reports: watch::Receiver<Arc<NodeReport>>,
    cancel: CancellationToken,
) -> LeaderHandle {
    let (snapshots, snapshot) = watch::channel(None);
    let (leaderships, leadership) = watch::channel(None);
    let handle = LeaderHandle {
        store,
        snapshot,
        leadership,
        reports: AgentReports::default(),
        store_health: StoreHealth::default(),
        planning: PlanningHealth::default(),
        feed: None,
    };
    let taken = handle.reports.clone();
    tokio::spawn(async move {
        let follow = follow(&identity, lists, reports, &taken, &snapshots);
        cancel.run_until_cancelled(follow).await;
        drop(leaderships);
    });
    handle
}

async fn follow(
    identity: &MachineIdentity,
    mut lists: watch::Receiver<DesiredList>,
    mut reports: watch::Receiver<Arc<NodeReport>>,
    taken: &AgentReports,
    snapshots: &watch::Sender<Option<Arc<Snapshot>>>,
) {
    // A higher revision than an earlier process of the agent showed.
    let mut revision = Timestamp::now().as_second();
    let mut status = NodeStatusRecord::default();
    loop {
        revision += 1;
        let listed = lists.borrow_and_update().clone();
        let report = reports.borrow_and_update().clone();
        taken.accept(&identity.node, report.as_ref().clone());
        status = shown_status(&status, &report, listed.confirmed, Timestamp::now());
        let snapshot = snapshot(identity, &listed, &report, &status, revision);
        snapshots.send_replace(Some(Arc::new(snapshot)));
        let changed = tokio::select! {
            changed = lists.changed() => changed,
            changed = reports.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

fn shown_status(
    before: &NodeStatusRecord,
    report: &NodeReport,
    confirmed: bool,
    now: Timestamp,
) -> NodeStatusRecord {
    let (phase, reason, message) = if confirmed {
        (NodePhase::Ready, None, "")
    } else {
        (
            NodePhase::NotReady,
            Some(Reason::Unconfirmed),
            "the cluster's store has not confirmed this machine's list since kat-agent started; what was known is shown",
        )
    };
    NodeStatusRecord {
        phase,
        reason: Reason::word_or_empty(reason).to_owned(),
        message: message.to_owned(),
        since: before.since.filter(|_| before.phase == phase).or(Some(now)),
        ..before.after_report(report, now)
    }
}

fn snapshot(
    identity: &MachineIdentity,
    listed: &DesiredList,
    report: &NodeReport,
    status: &NodeStatusRecord,
    revision: i64,
) -> Snapshot {
    fn stored<T>(revision: i64, value: T) -> Stored<T> {
        Stored { revision, value }
    }
    let registration = NodeRegistration {
        labels: node_labels(&identity.node, &report.architecture),
        architecture: report.architecture.clone(),
        etcd: identity.etcd,
        advertise: identity.advertise.clone(),
        ..NodeRegistration::new(&identity.node_uid, Timestamp::UNIX_EPOCH)
    };
    let node = NodeEntry {
        registration: stored(revision, registration),
        status: Some(stored(revision, status.clone())),
        subnet: Some(identity.subnet),
        public_key: None,
        endpoints: Vec::new(),
        reach: identity.reached.published_reach(),
        desired: stored(revision, Default::default()),
    };
    let instances = listed.desired.assignments.iter().map(|(id, assignment)| {
        let entry = InstanceEntry {
            node: identity.node.clone(),
            created_revision: revision,
            assignment: stored(revision, Arc::new(assignment.clone())),
        };
        (id.clone(), entry)
    });
    Snapshot::from(StoredState {
        revision,
        cluster_uid: identity.cluster_uid.clone(),
        cluster: identity.cluster.clone(),
        nodes: BTreeMap::from([(identity.node.clone(), node)]),
        instances: instances.collect(),
        ..StoredState::default()
    })
}
