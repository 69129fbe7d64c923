//! Sends the heartbeat reports: every tick, and at once when something changed (RFC001-KAT 4.1.3,
//! 2.3).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Statuses;
use crate::{
    cluster::{abilities::MachineAbilities, identity::MachineIdentity, reach::CurrentReach},
    desired_state::settings::FollowedSettings,
    network::{ingress_ports, kat_net_probe, virtual_addresses},
    service::supervisor::DesiredList,
};
use kat_api::take_own_report;
use kat_bundle::manifest_reader;
use kat_daemon::watchdog::LoopPulses;
use kat_leader::LeaderHandle;
use kat_network as network;
use kat_types::{
    VERSION,
    api::{
        ApiTime, AuthorityReport, Condition, DATA_PATH_RUNS, DISKS_ANSWER, FILES_WRITTEN,
        IngressReport, IngressState, IsolationReport, MemberKeys, NodeReport, NodeResources,
        OverlayReport, OverlayStatus, ROUTES_SERVED, ReportOrder, VirtualAddressReport,
    },
    assignment::ASSIGNMENT_SCHEMA,
    machine::{
        fence::{BootClock, BootTime},
        network::MachinePorts,
    },
    reason::Reason,
    resource::OnPartition,
};

/// Changes within this time go into one report.
const GATHER: Duration = Duration::from_millis(5);
/// Longest wait of the first report for a look at every instance. It is short, since one user whose
/// manager does not answer must not silence the whole machine.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Most instances that a line about that wait names.
const NAMED: usize = 10;
/// Interval of the checks during that wait.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Most different errors that are logged for failed reports, until a report arrives.
const REASONS_TOLD: usize = 8;
/// Pause after a report that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// So many reports in a row have to be refused before this machine counts as taken out of the
/// cluster.
const REFUSALS: u32 = 3;

/// Reports in the node loss timeout that a machine with `onPartition: stop` sends at least.
const REPORTS_IN_TIMEOUT: u32 = 10;

/// Receiver of reports: the leader's API, or a simulated one.
#[async_trait]
pub trait ReportSink: Send + Sync {
    /// Sends one report; an error is a sentence. Returns for how long the leader that accepted it
    /// has not been sure that no other machine leads.
    async fn send(&self, report: &NodeReport) -> Result<Duration, String>;
    /// Waits until the leader is another than the one the last report was sent to.
    async fn elsewhere(&self) {
        std::future::pending().await
    }
    /// The servers that were asked, as `host:port`, where no leader answered the last report; `None`
    /// where one did, also if it refused the report.
    fn unanswered(&self) -> Option<Vec<String>> {
        None
    }
    /// Whether the cluster answered the last report that it does not know this machine.
    fn unknown(&self) -> bool {
        false
    }
}

/// Reports of a machine that may lead: to its own leader directly while it leads, else over the API.
pub(crate) struct OwnLeaderFirst {
    /// The leader of this machine.
    pub(crate) handle: LeaderHandle,
    /// Any other leader.
    pub(crate) others: Arc<dyn ReportSink>,
}

#[async_trait]
impl ReportSink for OwnLeaderFirst {
    async fn send(&self, report: &NodeReport) -> Result<Duration, String> {
        match take_own_report(&self.handle, report) {
            Some(unsure) => Ok(unsure),
            None => self.others.send(report).await,
        }
    }

    async fn elsewhere(&self) {
        let mut leadership = self.handle.leadership.clone();
        if leadership.borrow().is_none() {
            return self.others.elsewhere().await;
        }
        if leadership.wait_for(Option::is_none).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn unanswered(&self) -> Option<Vec<String>> {
        self.others.unanswered()
    }

    fn unknown(&self) -> bool {
        self.others.unknown()
    }
}

/// What a machine says that the cluster does not know any more.
pub(crate) const OUTSIDE: &str = "this machine is no member of the cluster any more: it was taken out with `katcall delete node`, or another machine has its name; what runs here runs on, unseen by the cluster; `sudo kat-agent reset` ends it, and then the machine can join again";

/// No leader answers this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderSilence {
    /// When the first report without an answer failed.
    pub since: Timestamp,
    /// The servers that were asked last, as `host:port`.
    pub asked: Vec<String>,
}

/// Facts about the machine; read for every report.
#[async_trait]
pub trait MachineFacts: Send + Sync {
    fn resources(&self) -> NodeResources;
    /// Such as `amd64` or `arm64`.
    fn architecture(&self) -> String;
    fn addresses(&self) -> Vec<String>;
    fn conditions(&self) -> Vec<Condition>;
    /// Whether the volume base path is storage that machines share.
    fn volume_shared(&self) -> bool {
        false
    }
    /// Whether containers may share the machine's network.
    fn host_network(&self) -> bool {
        false
    }
    /// What decides which workloads can run on the machine.
    fn abilities(&self) -> MachineAbilities {
        MachineAbilities::default()
    }
    /// The volume folders that the machine has made and not removed.
    fn made_volumes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Hashes of the keys of its certificates as a machine that holds etcd.
    fn member_keys(&self) -> MemberKeys {
        MemberKeys::default()
    }
    /// How it uses the cluster's authorities.
    fn authorities(&self) -> Vec<AuthorityReport> {
        Vec::new()
    }
    /// Whether it reads the state stream now; a machine with the store reads its own.
    fn state_stream(&self) -> bool {
        false
    }
    /// Whether it has prepared to become a member of etcd; `None` if it can't.
    fn etcd_waits(&self) -> Option<bool> {
        None
    }
    /// Since when `kat-net` runs and does not answer; `None` where it answers or does not run.
    fn data_path_silent(&self) -> Option<Timestamp> {
        None
    }
    /// How its `kat-net` isolates namespaces; `None` where that is not known.
    fn isolation(&self) -> Option<IsolationReport> {
        None
    }
    /// What its `kat-net` does with virtual addresses.
    fn virtual_addresses(&self) -> Vec<VirtualAddressReport> {
        Vec::new()
    }
    /// The ports of its own programs, which `kat-net` forwards to no workload.
    fn machine_ports(&self) -> MachinePorts {
        MachinePorts::default()
    }
    async fn overlay(&self) -> OverlayReport;
    /// Where other machines reach this one; empty where that is not known.
    fn present(&self) -> CurrentReach {
        CurrentReach::default()
    }
    /// Waits until the machine's addresses, virtual ones among them, how it uses the authorities, or
    /// whether its `kat-net` answers may have changed since this call.
    fn moved(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// Sends reports until `cancel`.
pub struct Reporter {
    pub identity: Arc<MachineIdentity>,
    /// The workers' reports.
    pub statuses: Statuses,
    /// The list that the workers work on.
    pub lists: watch::Receiver<DesiredList>,
    pub sink: Arc<dyn ReportSink>,
    pub facts: Arc<dyn MachineFacts>,
    /// The last report, for the bus name `rip.dws.kat1`.
    pub published: watch::Sender<Arc<NodeReport>>,
    /// When this machine last counted as present for every leader that may replace its instances
    /// ([`kat_types::machine::fence::fence_after`]).
    pub reached: watch::Sender<Option<BootTime>>,
    /// For the service's status line.
    pub silence: watch::Sender<Option<LeaderSilence>>,
    /// Whether the cluster does not know this machine any more.
    pub outside: watch::Sender<bool>,
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// The clock of `reached`, and of the reports' order.
    pub boot_clock: BootClock,
    /// The kernel's id of this boot; reports have no order without it.
    pub boot_id: Option<String>,
    /// The tick, and what of the cluster's settings the machine reports.
    pub settings: FollowedSettings,
    /// Reports the loop's liveness to the watchdog.
    pub pulses: LoopPulses,
}

impl Reporter {
    /// Sends a report every tick and whenever something changed.
    pub async fn run(self, cancel: CancellationToken) {
        let mut lists = self.lists.clone();
        let mut settings = self.settings.subscribe();
        let mut confirmed = self.settings.subscribe_confirmed();
        self.wait_for_first_look().await;
        let mut failures = BTreeSet::new();
        let mut refusals = 0_u32;
        let pulse = self.pulses.watch("reports to the leader");
        let mut moved = self.facts.moved();
        loop {
            pulse.beat();
            let mut report = self.report().await;
            let began = (self.boot_clock)();
            // After `began`: settings that are read from here on do not hold for this contact, so that
            // it never counts with a time that the report does not state.
            report.configuration = Some(self.settings.followed());
            report.order = self.boot_id.clone().map(|boot_id| ReportOrder {
                boot_id,
                since_boot: began,
            });
            self.published.send_replace(Arc::new(report.clone()));
            let sent = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                sent = self.sink.send(&report) => sent,
                () = self.sink.elsewhere() => Err("another machine leads now".to_owned()),
            };
            if let Ok(unsure) = &sent {
                let counts = began.before(*unsure);
                self.reached.send_if_modified(|before| {
                    let later = counts > *before;
                    *before = counts.max(*before);
                    later
                });
            }
            self.note_silence(sent.is_ok());
            refusals = match sent.is_err() && self.sink.unknown() {
                true => refusals.saturating_add(1),
                false => 0,
            };
            self.note_outside(sent.is_ok(), refusals);
            match &sent {
                Ok(_) if failures.is_empty() => {}
                Ok(_) => tracing::info!("the leader takes reports again"),
                // Each error is logged once: every try may use another endpoint.
                Err(error) if failures.len() < REASONS_TOLD && !failures.contains(error) => {
                    tracing::warn!("a report did not reach the leader; trying again: {error}");
                }
                Err(_) => {}
            }
            let pause = match sent {
                Ok(_) => {
                    failures.clear();
                    self.tick()
                }
                Err(error) => {
                    if failures.len() < REASONS_TOLD {
                        failures.insert(error);
                    }
                    AFTER_FAILURE
                }
            };
            let news = async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => false,
                    () = self.statuses.changed() => true,
                    changed = lists.changed() => changed.is_ok(),
                    changed = settings.changed() => changed.is_ok(),
                    changed = confirmed.changed() => changed.is_ok(),
                    () = &mut moved => {
                        moved = self.facts.moved();
                        true
                    }
                    () = self.sink.elsewhere() => true,
                    () = tokio::time::sleep(pause) => true,
                }
            };
            if !pulse.wait(news).await {
                return;
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// A leader that has just begun may not know each machine for a moment, so one refusal does not
    /// count.
    fn note_outside(&self, accepted: bool, refusals: u32) {
        if refusals == REFUSALS {
            tracing::error!("{OUTSIDE}");
        }
        self.outside.send_if_modified(|outside| {
            let now = refusals >= REFUSALS || (*outside && !accepted);
            std::mem::replace(outside, now) != now
        });
    }

    fn note_silence(&self, accepted: bool) {
        let asked = self.sink.unanswered().filter(|_| !accepted);
        let now = (self.clock)();
        self.silence.send_if_modified(|silence| {
            let since = silence.as_ref().map_or(now, |silence| silence.since);
            let present = asked.map(|asked| LeaderSilence { since, asked });
            let differs = *silence != present;
            *silence = present;
            differs
        });
    }

    /// The tick, shortened with `onPartition: stop`: the last report must not be old when the
    /// machine has to tell a network partition from the loss of a leader.
    fn tick(&self) -> Duration {
        let settings = self.settings.present();
        let tick = match self.settings.is_confirmed() {
            true => settings.tick,
            // A leader waits for the confirmation, which takes a report that counts with them.
            false => settings.tick.min(AFTER_FAILURE),
        };
        let lists = self.lists.borrow();
        let mut assignments = lists.desired.assignments.values();
        if !assignments.any(|one| one.on_partition == OnPartition::Stop) {
            return tick;
        }
        tick.min(settings.loss_timeout / REPORTS_IN_TIMEOUT)
    }

    /// An agent that has just started knows nothing of the running instances. The leader keeps its
    /// state of instances that a report does not name, so the first report waits only for a short
    /// time until each instance was checked.
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
            let (reports, _) = self.statuses.all();
            let known: BTreeSet<&String> =
                reports.iter().map(|report| &report.instance_id).collect();
            let listed = self.lists.borrow();
            let wanted = listed.desired.assignments.keys();
            let missing: Vec<&str> = wanted
                .filter(|instance| !known.contains(instance))
                .map(String::as_str)
                .take(NAMED)
                .collect();
            tracing::warn!(
                "the first report goes without instances that were not looked at within {} s: {}",
                FIRST_LOOK.as_secs(),
                missing.join(", ")
            );
        }
    }

    /// Conditions of the machine, of its data path, of volumes that could not be removed, of files
    /// that are not written, and of file systems that do not answer.
    fn conditions(&self, overlay: &OverlayReport) -> Vec<Condition> {
        let mut conditions = self.facts.conditions();
        let silent = self.facts.data_path_silent();
        conditions.extend(data_path_condition(overlay, silent));
        let failures = self.statuses.not_removed();
        if !failures.is_empty() {
            conditions.push(Condition {
                kind: "VolumesRemoved".to_owned(),
                status: false,
                reason: Reason::VolumeNotRemoved.into(),
                message: failures.join("; "),
                since: ApiTime::UNKNOWN,
            });
        }
        let unwritten = self.statuses.unwritten();
        if !unwritten.is_empty() {
            conditions.push(Condition {
                kind: FILES_WRITTEN.to_owned(),
                status: false,
                reason: Reason::FilesNotWritten.into(),
                message: unwritten.join("; "),
                since: ApiTime::UNKNOWN,
            });
        }
        conditions.extend(ingress_condition(self.statuses.ingress().as_ref()));
        let ports = self.statuses.ingress_ports();
        if !ports.is_empty() {
            let programs = self.facts.machine_ports();
            conditions.extend(ingress_ports::condition(&ports, &programs));
        }
        let silent = self.statuses.silent_disks();
        if !silent.is_empty() {
            conditions.push(Condition {
                kind: DISKS_ANSWER.to_owned(),
                status: false,
                reason: Reason::DiskNotAnswering.into(),
                message: silent.join("; "),
                since: ApiTime::UNKNOWN,
            });
        }
        conditions
    }

    async fn report(&self) -> NodeReport {
        let (workload_instances, user_indexes) = self.statuses.all();
        let present = self.facts.present();
        let abilities = self.facts.abilities();
        let overlay_network = self.facts.overlay().await;
        let virtual_addresses = self.facts.virtual_addresses();
        let mut conditions = self.conditions(&overlay_network);
        conditions.extend(virtual_addresses::condition(&virtual_addresses));
        conditions.extend(abilities.gpus.condition());
        let mut report = NodeReport {
            node_name: self.identity.node.clone(),
            node_uid: self.identity.node_uid.clone(),
            timestamp: (self.clock)().as_second(),
            resources: self.facts.resources(),
            workload_instances,
            overlay_network,
            version: VERSION.to_owned(),
            architecture: self.facts.architecture(),
            addresses: self.facts.addresses(),
            advertise: present.addresses,
            endpoints: present.endpoints,
            desired_revision: self.statuses.acted(),
            user_indexes,
            conditions,
            assignment_schema: ASSIGNMENT_SCHEMA,
            manifest_reader: manifest_reader(),
            data_path: network::running_data_path(),
            volume_shared: self.facts.volume_shared(),
            host_network: self.facts.host_network(),
            runtime: abilities.runtime,
            foreign_indexes: abilities.foreign_indexes,
            made_volumes: self.facts.made_volumes(),
            removed_volumes: self.statuses.removed(),
            missing_volumes: self.statuses.missing(),
            volume_moves: self.statuses.moves(),
            images_removed: self.statuses.images_removed(),
            member_keys: self.facts.member_keys(),
            authorities: self.facts.authorities(),
            state_stream: Some(self.facts.state_stream()),
            etcd_waits: self.facts.etcd_waits(),
            configuration: Some(self.settings.followed()),
            isolation: self.facts.isolation(),
            ingress: self.statuses.ingress(),
            virtual_addresses,
            order: None,
            gpus: abilities.gpus.devices,
        };
        // Cut to the leader's limits, so that the leader never rejects a report because of long
        // output of programs.
        if let Err(error) = report.keep_bounds() {
            tracing::warn!("the report is longer than the leader takes: {error}");
        }
        report
    }
}

/// The condition of a machine that does not serve the routes that it was given.
fn ingress_condition(report: Option<&IngressReport>) -> Option<Condition> {
    let report = report?;
    let reason = match report.state {
        IngressState::Starting | IngressState::Serving => return None,
        IngressState::PortInUse => Reason::IngressPortInUse,
        IngressState::Failed => Reason::IngressFailed,
    };
    Some(Condition {
        kind: ROUTES_SERVED.to_owned(),
        status: false,
        reason: reason.into(),
        message: report.message.clone(),
        since: ApiTime::UNKNOWN,
    })
}

/// The condition of a machine whose `kat-net` does not run, or has not answered since `silent`.
fn data_path_condition(overlay: &OverlayReport, silent: Option<Timestamp>) -> Option<Condition> {
    let state = silent.map_or_else(
        || "kat-net.service does not run".to_owned(),
        kat_net_probe::silence_text,
    );
    (overlay.status == OverlayStatus::Down).then(|| Condition {
        kind: DATA_PATH_RUNS.to_owned(),
        status: false,
        reason: Reason::DataPathDown.into(),
        message: format!(
            "{state}, so names of the cluster are not resolved and no container starts"
        ),
        since: ApiTime::UNKNOWN,
    })
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::time::Instant;

    use super::*;
    use kat_leader::{AgentReports, PlanningHealth, StoreHealth};
    use kat_plan::Snapshot;
    use kat_store::Leadership;
    use kat_testing::MemoryStore;
    use kat_types::{
        assignment::DesiredMeta,
        store::{
            records::NodeRegistration,
            revisions::Stored,
            snapshot::{NodeEntry, StoredState},
        },
    };

    /// A machine with a settable address.
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
        fn present(&self) -> CurrentReach {
            let last = *self.address.borrow();
            CurrentReach {
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
        orders: Mutex<Vec<ReportOrder>>,
        begin: Mutex<Option<Instant>>,
        /// How long the leader takes to answer a report.
        takes: Duration,
    }

    #[async_trait]
    impl ReportSink for Sent {
        async fn send(&self, report: &NodeReport) -> Result<Duration, String> {
            let begin = *self.begin.lock().get_or_insert_with(Instant::now);
            let sent = (begin.elapsed(), report.endpoints.clone());
            self.reports.lock().push(sent);
            self.orders.lock().extend(report.order.clone());
            tokio::time::sleep(self.takes).await;
            Ok(Duration::ZERO)
        }
    }

    /// A reporter that sends its first report without delay, because its list has no instance to
    /// wait for.
    fn reporter(
        sink: Arc<dyn ReportSink>,
        facts: Arc<Moving>,
    ) -> (Reporter, watch::Sender<DesiredList>) {
        let listed = DesiredList {
            known: true,
            ..DesiredList::default()
        };
        let (lists_now, lists) = watch::channel(listed);
        let mut identity = MachineIdentity::example("n1");
        identity.cluster.spec.node_loss_timeout_seconds = 10;
        let settings = FollowedSettings::new(&identity.cluster.spec, BootTime(0));
        let reporter = Reporter {
            identity: Arc::new(identity),
            statuses: Statuses::default(),
            lists,
            sink,
            facts,
            published: watch::Sender::default(),
            reached: watch::Sender::default(),
            silence: watch::Sender::default(),
            outside: watch::Sender::default(),
            clock: Arc::new(Timestamp::now),
            boot_clock: crate::tests::boot_clock(Instant::now()),
            boot_id: Some("boot".to_owned()),
            settings,
            pulses: LoopPulses::default(),
        };
        (reporter, lists_now)
    }

    fn with_tick(mut reporter: Reporter, seconds: u32) -> Reporter {
        let mut spec = reporter.identity.cluster.spec.clone();
        spec.agent_tick_seconds = seconds;
        reporter.settings = FollowedSettings::new(&spec, BootTime(0));
        reporter
    }

    /// Sends reports of a machine that changes its address after `moves_at` seconds. Returns the
    /// second of each report and the endpoints in the last one.
    async fn reports(moves_at: u64, takes: u64) -> (Vec<u64>, Vec<String>) {
        let facts = Arc::new(Moving::default());
        let sink = Arc::new(Sent {
            takes: Duration::from_secs(takes),
            ..Sent::default()
        });
        let (reporter, _lists) = reporter(sink.clone(), facts.clone());
        let cancel = CancellationToken::new();
        let task = tokio::spawn(with_tick(reporter, 15).run(cancel.clone()));
        tokio::time::sleep(Duration::from_secs(moves_at)).await;
        facts.address.send_replace(7);
        tokio::time::sleep(Duration::from_secs(takes + 1)).await;
        cancel.cancel();
        task.await.unwrap();
        let sent = sink.reports.lock().clone();
        let seconds = sent.iter().map(|(at, _)| at.as_secs()).collect();
        (seconds, sent.last().unwrap().1.clone())
    }

    #[test]
    fn a_machine_whose_data_path_does_not_run_says_so() {
        let condition = |status| {
            let overlay = OverlayReport {
                status,
                ..OverlayReport::default()
            };
            data_path_condition(&overlay, None).map(|one| (one.kind, one.status, one.reason))
        };
        let told = (DATA_PATH_RUNS.to_owned(), false, "DataPathDown".to_owned());
        assert_eq!(condition(OverlayStatus::Down), Some(told));
        assert_eq!(condition(OverlayStatus::Connected), None);
        assert_eq!(condition(OverlayStatus::Unknown), None);
    }

    #[test]
    fn a_machine_whose_data_path_does_not_answer_says_since_when() {
        let overlay = OverlayReport {
            status: OverlayStatus::Down,
            ..OverlayReport::default()
        };
        let message = |silent| data_path_condition(&overlay, silent).unwrap().message;
        let rest = ", so names of the cluster are not resolved and no container starts";
        assert_eq!(
            message(Some("2026-11-22T03:40:12Z".parse().unwrap())),
            format!(
                "kat-net.service runs and has not answered since 2026-11-22 03:40:12 UTC{rest}"
            )
        );
        assert_eq!(message(None), format!("kat-net.service does not run{rest}"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_moved_says_so_before_its_next_tick() {
        let (seconds, last) = reports(20, 0).await;
        assert_eq!(seconds, [0, 15, 20]);
        assert_eq!(last, ["192.0.2.7:51820"]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_report_says_that_it_is_newer_than_the_one_before() {
        let sink = Arc::new(Sent::default());
        let (reporter, _lists) = reporter(sink.clone(), Arc::default());
        let cancel = CancellationToken::new();
        let task = tokio::spawn(with_tick(reporter, 3).run(cancel.clone()));
        tokio::time::sleep(Duration::from_secs(10)).await;
        cancel.cancel();
        task.await.unwrap();
        let orders = sink.orders.lock().clone();
        assert_eq!(orders.len(), sink.reports.lock().len());
        assert!(orders.len() > 2, "{orders:?}");
        assert!(orders.iter().all(|order| order.boot_id == "boot"));
        assert!(orders.is_sorted_by(|one, next| one.since_boot < next.since_boot));
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_that_nobody_can_look_at_holds_the_first_report_for_two_seconds() {
        let sink = Arc::new(Sent::default());
        let (reporter, lists) = reporter(sink.clone(), Arc::default());
        let mut desired = crate::desired_state::desired::DesiredState::default();
        let web = crate::tests::assignment(0, "web");
        desired.assignments.insert(web.instance.clone(), web);
        lists.send_modify(|listed| listed.desired = Arc::new(desired));
        let (cancel, began) = (CancellationToken::new(), Instant::now());
        let task = tokio::spawn(with_tick(reporter, 15).run(cancel.clone()));
        let first = || *sink.begin.lock();
        tokio::time::sleep(Duration::from_millis(1900)).await;
        assert_eq!(first(), None, "it may still be looked at");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(first().unwrap() - began < Duration::from_millis(2050));
        cancel.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_moves_during_a_report_says_so_in_the_next_at_once() {
        let (seconds, last) = reports(2, 3).await;
        assert_eq!(seconds, [0, 3]);
        assert_eq!(last, ["192.0.2.7:51820"]);
    }

    /// A leader that answers, refuses, or is silent.
    #[derive(Default)]
    struct Answering {
        refuses: watch::Sender<bool>,
        asked: watch::Sender<Option<Vec<String>>>,
    }

    #[async_trait]
    impl ReportSink for Answering {
        async fn send(&self, _: &NodeReport) -> Result<Duration, String> {
            if *self.refuses.borrow() || self.asked.borrow().is_some() {
                return Err("no".to_owned());
            }
            Ok(Duration::ZERO)
        }
        fn unanswered(&self) -> Option<Vec<String>> {
            self.asked.borrow().clone()
        }
    }

    /// A cluster that knows the machine, does not, or does not answer.
    struct Knowing(watch::Sender<Option<bool>>);

    #[async_trait]
    impl ReportSink for Knowing {
        async fn send(&self, _: &NodeReport) -> Result<Duration, String> {
            match *self.0.borrow() {
                Some(true) => Ok(Duration::ZERO),
                Some(false) => Err("not known".to_owned()),
                None => Err("no answer".to_owned()),
            }
        }
        fn unknown(&self) -> bool {
            *self.0.borrow() == Some(false)
        }
    }

    /// A machine that was cut off while somebody deleted it hears of that with its first reports.
    #[tokio::test(start_paused = true)]
    async fn a_machine_that_was_deleted_while_it_was_cut_off_knows_it_when_it_hears() {
        let answers = Arc::new(Knowing(watch::Sender::new(Some(true))));
        let (reporter, _lists) = reporter(answers.clone(), Arc::new(Moving::default()));
        let outside = reporter.outside.subscribe();
        let cancel = CancellationToken::new();
        let task = tokio::spawn(with_tick(reporter, 1).run(cancel.clone()));
        let after = async |answer: Option<bool>, seconds| {
            answers.0.send_replace(answer);
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            *outside.borrow()
        };
        assert!(!after(Some(true), 60).await);
        assert!(!after(None, 600).await, "nobody answered");
        assert!(after(Some(false), 10).await);
        // It stays so while nobody answers, and ends where the cluster takes a report.
        assert!(after(None, 600).await);
        assert!(!after(Some(true), 10).await);
        cancel.cancel();
        task.await.unwrap();
    }

    /// A sink that never ends, as an API on a machine whose processors have other work.
    struct Hanging;

    #[async_trait]
    impl ReportSink for Hanging {
        async fn send(&self, _: &NodeReport) -> Result<Duration, String> {
            std::future::pending().await
        }
    }

    fn leading(uid: &str) -> (LeaderHandle, watch::Sender<Option<Leadership>>) {
        let registration = NodeRegistration::new(uid, Timestamp::UNIX_EPOCH);
        let entry = NodeEntry {
            registration: Stored {
                value: registration,
                revision: 1,
            },
            status: None,
            subnet: None,
            public_key: None,
            endpoints: Vec::new(),
            reach: Default::default(),
            desired: Stored {
                value: DesiredMeta::default(),
                revision: 1,
            },
        };
        let state = StoredState {
            nodes: [("n1".to_owned(), entry)].into(),
            ..StoredState::default()
        };
        let leadership = Leadership {
            key: "/kat/leader_election/1".to_owned(),
            create_revision: 1,
            won_revision: 1,
            since: Instant::now(),
            lost: CancellationToken::new(),
            sure: watch::channel(Instant::now()).1,
        };
        let (leaderships, leadership) = watch::channel(Some(leadership));
        let handle = LeaderHandle {
            store: Arc::new(MemoryStore::default()),
            snapshot: watch::channel(Some(Arc::new(Snapshot::from(state)))).1,
            shown: None,
            leadership,
            reports: AgentReports::default(),
            store_health: StoreHealth::default(),
            planning: PlanningHealth::default(),
            feed: None,
        };
        (handle, leaderships)
    }

    /// Eighty workloads at once kept the processors of the leading machine busy, and it counted
    /// itself as lost: its reports went through its own API.
    #[tokio::test(start_paused = true)]
    async fn the_leader_never_counts_its_own_machine_as_lost_while_its_api_is_late() {
        let (handle, _leaderships) = leading(&MachineIdentity::example("n1").node_uid);
        let sink = Arc::new(OwnLeaderFirst {
            handle: handle.clone(),
            others: Arc::new(Hanging),
        });
        let (reporter, _lists) = reporter(sink, Arc::new(Moving::default()));
        let cancel = CancellationToken::new();
        let task = tokio::spawn(with_tick(reporter, 3).run(cancel.clone()));
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let observed = handle.reports.observed(Duration::from_secs(60));
            let age = observed.reports.get("n1").map(|reported| reported.age);
            assert!(
                age.is_some_and(|age| age <= Duration::from_secs(4)),
                "{age:?}"
            );
        }
        cancel.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_does_not_lead_or_is_not_known_reports_over_the_api() {
        let report = NodeReport {
            node_name: "n1".to_owned(),
            node_uid: "u1".to_owned(),
            ..NodeReport::default()
        };
        let (handle, leaderships) = leading("u1");
        assert!(take_own_report(&handle, &report).is_some());
        let (other, _leaderships) = leading("u2");
        assert_eq!(
            take_own_report(&other, &report),
            None,
            "another machine's name"
        );
        leaderships.send_replace(None);
        assert_eq!(take_own_report(&handle, &report), None, "it leads no more");
    }

    /// The leader counts such a machine from its newer report on.
    #[tokio::test(start_paused = true)]
    async fn a_report_that_came_after_a_newer_one_is_no_younger_contact() {
        let report = |seconds| NodeReport {
            node_name: "n1".to_owned(),
            node_uid: "u1".to_owned(),
            order: Some(ReportOrder {
                boot_id: "boot".to_owned(),
                since_boot: BootTime::from(Duration::from_secs(seconds)),
            }),
            ..NodeReport::default()
        };
        let (handle, leaderships) = leading("u1");
        let sent = |seconds| take_own_report(&handle, &report(seconds)).unwrap();
        let second = Duration::from_secs(1);
        assert!(sent(20) < second);
        tokio::time::advance(second * 7).await;
        // The leader has confirmed its lease.
        leaderships.send_modify(|leadership| {
            leadership.as_mut().unwrap().sure = watch::channel(Instant::now()).1;
        });
        assert!(sent(10) >= second * 7);
        assert!(sent(27) < second);
    }

    /// A machine that boots while nobody answers: the kept addresses are asked, and named.
    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_silent_from_the_start_is_silent_since_the_first_report() {
        let sink = Arc::new(Answering::default());
        let kept = vec!["192.0.2.1:9115".to_owned(), "n2.example:9115".to_owned()];
        sink.asked.send_replace(Some(kept.clone()));
        let (mut reporter, _lists) = reporter(sink.clone(), Arc::default());
        let began = Instant::now();
        reporter.clock = Arc::new(move || {
            let seconds = i64::try_from(began.elapsed().as_secs()).unwrap();
            Timestamp::from_second(seconds).unwrap()
        });
        let silence = reporter.silence.subscribe();
        let cancel = CancellationToken::new();
        let task = tokio::spawn(with_tick(reporter, 15).run(cancel.clone()));
        for minutes in [1, 30] {
            tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
            let silent = silence.borrow().clone().unwrap();
            assert!(silent.since.as_second() < 3, "{silent:?}");
            assert_eq!(silent.asked, kept);
        }
        sink.asked.send_replace(None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(*silence.borrow(), None, "a leader answers");
        cancel.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_leader_is_silent_since_the_first_report_without_an_answer() {
        let sink = Arc::new(Answering::default());
        let (mut reporter, _lists) = reporter(sink.clone(), Arc::default());
        let began = Instant::now();
        let clock = move || {
            let seconds = i64::try_from(began.elapsed().as_secs()).unwrap();
            Timestamp::from_second(seconds).unwrap()
        };
        reporter.clock = Arc::new(clock);
        let silence = reporter.silence.subscribe();
        let cancel = CancellationToken::new();
        let task = tokio::spawn(with_tick(reporter, 15).run(cancel.clone()));
        let after = async |seconds: u64| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            silence.borrow().clone()
        };
        assert_eq!(after(5).await, None);

        let first = vec!["192.0.2.1:9115".to_owned()];
        sink.asked.send_replace(Some(first.clone()));
        // The next report is due at second 15.
        let silent = after(15).await.unwrap();
        assert_eq!((silent.since.as_second(), silent.asked), (15, first));
        let other = vec!["192.0.2.2:9115".to_owned()];
        sink.asked.send_replace(Some(other.clone()));
        let silent = after(5).await.unwrap();
        assert_eq!((silent.since.as_second(), silent.asked), (15, other));

        // A leader that refuses a report answers.
        sink.refuses.send_replace(true);
        sink.asked.send_replace(None);
        assert_eq!(after(5).await, None);
        cancel.cancel();
        task.await.unwrap();
    }

    /// Successive leaders that accept reports or do not answer.
    #[derive(Default)]
    struct Leaders {
        /// Time since the leader last confirmed its lease. `None` while the leader does not answer.
        sure: watch::Sender<Option<Duration>>,
        leader: watch::Sender<u32>,
        /// The leader that received the last report.
        sent_to: Mutex<u32>,
        taken: Mutex<Vec<Instant>>,
    }

    #[async_trait]
    impl ReportSink for Leaders {
        async fn send(&self, _: &NodeReport) -> Result<Duration, String> {
            *self.sent_to.lock() = *self.leader.borrow();
            let unsure = *self.sure.borrow();
            let Some(unsure) = unsure else {
                return std::future::pending().await;
            };
            self.taken.lock().push(Instant::now());
            Ok(unsure)
        }
        async fn elsewhere(&self) {
            let last = || *self.sent_to.lock();
            let mut leader = self.leader.subscribe();
            leader.wait_for(|now| *now != last()).await.unwrap();
        }
    }

    /// With a node loss timeout of 10 s, reports are a second apart. A report to a lost leader is
    /// cancelled when another machine leads, and contact is counted from the leader's last
    /// confirmed lease.
    #[tokio::test(start_paused = true)]
    async fn where_a_cut_counts_reports_are_close_and_follow_the_leader() {
        let sink = Arc::new(Leaders::default());
        sink.sure.send_replace(Some(Duration::from_millis(300)));
        let (reporter, lists) = reporter(sink.clone(), Arc::default());
        let mut desired = crate::desired_state::desired::DesiredState::default();
        let stops = kat_types::assignment::Assignment {
            on_partition: OnPartition::Stop,
            ..crate::tests::assignment(0, "web")
        };
        desired.assignments.insert(stops.instance.clone(), stops);
        let reached = reporter.reached.subscribe();
        let (began, booted) = (Instant::now(), (reporter.boot_clock)());
        let cancel = CancellationToken::new();
        let task = tokio::spawn(with_tick(reporter, 3).run(cancel.clone()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        lists.send_modify(|listed| listed.desired = Arc::new(desired));
        tokio::time::sleep(Duration::from_millis(5500)).await;
        let taken = || sink.taken.lock().clone();
        let gone = Instant::now();
        assert!(gone - *taken().last().unwrap() <= Duration::from_secs(1));
        let counts = reached.borrow().unwrap();
        assert_eq!(
            booted.after(*taken().last().unwrap() - began),
            counts.after(Duration::from_millis(300))
        );
        sink.sure.send_replace(None);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(*taken().last().unwrap() <= gone);
        // The new leader's last confirmed lease is older than the recorded contact, which does not
        // go back.
        sink.sure.send_replace(Some(Duration::from_secs(60)));
        let leads = Instant::now();
        sink.leader.send_replace(2);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(*taken().last().unwrap() >= leads, "at once");
        assert_eq!(*reached.borrow(), Some(counts));
        cancel.cancel();
        task.await.unwrap();
    }
}
