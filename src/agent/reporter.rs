//! The heartbeat: every tick, and at once when something changed (RFC001-KAT 4.1.3, 2.3).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Statuses, identity::Identity, reach::Present, supervisor::Listed};
use crate::{
    VERSION,
    api::types::{Condition, NodeReport, NodeResources, OverlayReport},
    plan::ASSIGNMENT_SCHEMA,
    pulse::Pulses,
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
    /// Where others reach it; empty where that is not known.
    fn present(&self) -> Present {
        Present::default()
    }
    /// Waits until that may be another than when this was called.
    fn moved(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
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
    /// When the last report that a leader took was sent.
    pub reached: watch::Sender<Option<Instant>>,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Where the loop is seen by the watchdog.
    pub pulses: Pulses,
}

impl Reporter {
    /// Sends a report every tick and whenever something changed.
    pub async fn run(self, tick: Duration, cancel: CancellationToken) {
        let mut lists = self.lists.clone();
        self.wait_for_first_look().await;
        let mut failing = false;
        let pulse = self.pulses.watch("who reports to the leader");
        let mut moved = self.facts.moved();
        loop {
            pulse.beat();
            let report = self.report().await;
            self.published.send_replace(Arc::new(report.clone()));
            let began = Instant::now();
            let sent = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                sent = self.sink.send(&report) => sent,
            };
            if sent.is_ok() {
                self.reached.send_replace(Some(began));
            }
            match &sent {
                Ok(()) if failing => tracing::info!("the leader takes reports again"),
                Err(error) if !failing => {
                    tracing::warn!(error, "a report did not reach the leader; trying again")
                }
                Ok(()) | Err(_) => {}
            }
            failing = sent.is_err();
            let pause = if failing { AFTER_FAILURE } else { tick };
            let news = async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => false,
                    () = self.statuses.changed() => true,
                    changed = lists.changed() => changed.is_ok(),
                    () = &mut moved => {
                        moved = self.facts.moved();
                        true
                    }
                    () = tokio::time::sleep(pause) => true,
                }
            };
            if !pulse.wait(news).await {
                return;
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
        let present = self.facts.present();
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
            advertise: present.addresses,
            endpoints: present.endpoints,
            desired_revision: self.statuses.acted(),
            user_indexes,
            conditions: self.facts.conditions(),
            assignment_schema: ASSIGNMENT_SCHEMA,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A machine whose address changes when it is told to.
    #[derive(Default)]
    struct Moving {
        address: watch::Sender<u8>,
    }

    #[async_trait]
    impl MachineFacts for Moving {
        fn resources(&self) -> NodeResources {
            NodeResources::default()
        }
        fn architecture(&self) -> String {
            String::new()
        }
        fn addresses(&self) -> Vec<String> {
            Vec::new()
        }
        fn conditions(&self) -> Vec<Condition> {
            Vec::new()
        }
        async fn overlay(&self) -> OverlayReport {
            OverlayReport::default()
        }
        fn present(&self) -> Present {
            let last = *self.address.borrow();
            Present {
                addresses: vec![[192, 0, 2, last].into()],
                endpoints: vec![format!("192.0.2.{last}:51820")],
            }
        }
        fn moved(&self) -> BoxFuture<'static, ()> {
            let mut address = self.address.subscribe();
            Box::pin(async move { address.changed().await.unwrap() })
        }
    }

    #[derive(Default)]
    struct Sent {
        reports: Mutex<Vec<(Duration, Vec<String>)>>,
        begin: Mutex<Option<Instant>>,
        /// How long a report is on its way.
        takes: Duration,
    }

    #[async_trait]
    impl ReportSink for Sent {
        async fn send(&self, report: &NodeReport) -> Result<(), String> {
            let begin = *self.begin.lock().unwrap().get_or_insert_with(Instant::now);
            let sent = (begin.elapsed(), report.endpoints.clone());
            self.reports.lock().unwrap().push(sent);
            tokio::time::sleep(self.takes).await;
            Ok(())
        }
    }

    /// The seconds of the reports of a machine that moves at this one, and the last one's endpoints.
    async fn reports(moves_at: u64, takes: u64) -> (Vec<u64>, Vec<String>) {
        let identity = Identity {
            schema: 1,
            node: "n1".to_owned(),
            node_uid: String::new(),
            cluster_uid: String::new(),
            cluster: crate::resource::ClusterConfiguration::default(),
            subnet: "10.100.0.0/23".parse().unwrap(),
            advertise: Vec::new(),
            etcd: false,
            reached: Default::default(),
        };
        let facts = Arc::new(Moving::default());
        let sink = Arc::new(Sent {
            takes: Duration::from_secs(takes),
            ..Sent::default()
        });
        let listed = Listed {
            known: true,
            ..Listed::default()
        };
        let (_lists, lists) = watch::channel(listed);
        let reporter = Reporter {
            identity: Arc::new(identity),
            statuses: Statuses::default(),
            lists,
            sink: sink.clone(),
            facts: facts.clone(),
            published: watch::Sender::default(),
            reached: watch::Sender::default(),
            clock: Arc::new(Timestamp::now),
            pulses: Pulses::default(),
        };
        let cancel = CancellationToken::new();
        let task = tokio::spawn(reporter.run(Duration::from_secs(15), cancel.clone()));
        tokio::time::sleep(Duration::from_secs(moves_at)).await;
        facts.address.send_replace(7);
        tokio::time::sleep(Duration::from_secs(takes + 1)).await;
        cancel.cancel();
        task.await.unwrap();
        let sent = sink.reports.lock().unwrap().clone();
        let seconds = sent.iter().map(|(at, _)| at.as_secs()).collect();
        (seconds, sent.last().unwrap().1.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_moved_says_so_before_its_next_tick() {
        let (seconds, last) = reports(20, 0).await;
        assert_eq!(seconds, [0, 15, 20]);
        assert_eq!(last, ["192.0.2.7:51820"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_moves_during_a_report_says_so_in_the_next_at_once() {
        let (seconds, last) = reports(2, 3).await;
        assert_eq!(seconds, [0, 3]);
        assert_eq!(last, ["192.0.2.7:51820"]);
    }
}
