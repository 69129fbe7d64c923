//! The heartbeat: every tick, and at once when something changed (RFC001-KAT 4.1.3, 2.3).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Statuses, identity::Identity, supervisor::Listed};
use crate::{
    VERSION,
    api::types::{Condition, NodeReport, NodeResources, OverlayReport},
};

/// Changes within this time go into one report.
const GATHER: Duration = Duration::from_millis(5);
/// Longest wait of the first report for the first look at every instance.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// Between two looks whether that is so.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Pause after a report that did not arrive.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Where reports go: the leader's API, or a simulated one.
#[async_trait]
pub trait ReportSink: Send + Sync {
    /// Sends one report; an error is a sentence.
    async fn send(&self, report: &NodeReport) -> Result<(), String>;
}

/// What the machine itself is like; asked for every report.
#[async_trait]
pub trait MachineFacts: Send + Sync {
    /// Capacity and allocatable.
    fn resources(&self) -> NodeResources;
    /// `amd64`, `arm64` ...
    fn architecture(&self) -> String;
    /// Addresses of its links.
    fn addresses(&self) -> Vec<String>;
    /// Conditions of the machine.
    fn conditions(&self) -> Vec<Condition>;
    /// State of the overlay.
    async fn overlay(&self) -> OverlayReport;
}

/// Sends reports until `cancel`.
pub struct Reporter {
    /// Who this machine is.
    pub identity: Arc<Identity>,
    /// What the workers say.
    pub statuses: Statuses,
    /// The list that they work on.
    pub lists: watch::Receiver<Listed>,
    /// Where reports go.
    pub sink: Arc<dyn ReportSink>,
    /// What the machine is like.
    pub facts: Arc<dyn MachineFacts>,
    /// The last report, for KAT's own bus name.
    pub published: watch::Sender<Arc<NodeReport>>,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Reporter {
    /// Sends a report every tick and whenever something changed.
    pub async fn run(self, tick: Duration, cancel: CancellationToken) {
        let mut lists = self.lists.clone();
        self.wait_for_first_look().await;
        let mut failing = false;
        loop {
            let report = self.report().await;
            self.published.send_replace(Arc::new(report.clone()));
            let sent = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                sent = self.sink.send(&report) => sent,
            };
            match &sent {
                Ok(()) if failing => tracing::info!("the leader takes reports again"),
                Err(error) if !failing => {
                    tracing::warn!(error, "a report did not reach the leader; trying again")
                }
                Ok(()) | Err(_) => {}
            }
            failing = sent.is_err();
            let pause = if failing { AFTER_FAILURE } else { tick };
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = self.statuses.changed() => {}
                changed = lists.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// An agent that has just started knows nothing of the instances that run on: a report without
    /// them would take their names away. It is held until each was looked at, or for a while.
    async fn wait_for_first_look(&self) {
        let looked = async {
            loop {
                let listed = self.lists.borrow().clone();
                let (reports, _) = self.statuses.all();
                let known: BTreeSet<&String> =
                    reports.iter().map(|report| &report.instance_id).collect();
                let mut wanted = listed.desired.assignments.keys();
                if listed.known && wanted.all(|instance| known.contains(instance)) {
                    return;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        if tokio::time::timeout(FIRST_LOOK, looked).await.is_err() {
            tracing::warn!("some instances were not looked at yet; the report goes without them");
        }
    }

    async fn report(&self) -> NodeReport {
        let (workload_instances, user_indexes) = self.statuses.all();
        NodeReport {
            node_name: self.identity.node.clone(),
            node_uid: self.identity.node_uid.clone(),
            timestamp: (self.clock)().as_second(),
            resources: self.facts.resources(),
            workload_instances,
            overlay_network: self.facts.overlay().await,
            version: VERSION.to_owned(),
            architecture: self.facts.architecture(),
            addresses: self.facts.addresses(),
            desired_revision: self.statuses.acted(),
            user_indexes,
            conditions: self.facts.conditions(),
        }
    }
}
