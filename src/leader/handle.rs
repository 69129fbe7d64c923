//! The API's access to the leader: the state, the right to write, and the agents' reports.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{PlanningHealth, StoreHealth, report_order::NewestReport};
use kat_plan::Snapshot;
use kat_store::{Leadership, OrderedReceiver, StateFeed, StateStore};
use kat_types::{
    api::NodeReport,
    store::snapshot::{ObservedReports, ReportedNode},
};

/// Shared by the leader's loop and the API. Cheap to clone.
#[derive(Clone)]
pub struct LeaderHandle {
    /// The store, as the leader's user.
    pub store: Arc<dyn StateStore>,
    /// The newest snapshot; `None` until the first complete list has arrived.
    pub snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    /// Revision of the newest snapshot. Calls that wait for one revision go on in the order in which
    /// they began to wait, so that a run of the simulation can be repeated. `None` where nothing but
    /// `snapshot` says it.
    pub shown: Option<OrderedReceiver<i64>>,
    /// The present leadership; `None` while this machine does not lead. Every write compares its
    /// fence.
    pub leadership: watch::Receiver<Option<Leadership>>,
    /// The agents' reports.
    pub reports: AgentReports,
    /// State of the store's upkeep.
    pub store_health: StoreHealth,
    /// Whether the leader makes plans and can write them.
    pub planning: PlanningHealth,
    /// What each machine may see of the store; `None` on a machine that does not hold it.
    pub feed: Option<StateFeed>,
}

impl LeaderHandle {
    /// Waits until the snapshot shows `revision`, so that a caller reads its own write.
    ///
    /// Returns false if the snapshot does not show it within `limit`.
    pub async fn wait_for_revision(&self, revision: i64, limit: Duration) -> bool {
        if let Some(mut shown) = self.shown.clone() {
            let waited = shown.wait_for(|shown| *shown >= revision);
            return matches!(tokio::time::timeout(limit, waited).await, Ok(Ok(_)));
        }
        let mut snapshot = self.snapshot.clone();
        let shown = snapshot.wait_for(|snapshot| {
            snapshot
                .as_ref()
                .is_some_and(|snapshot| snapshot.revision >= revision)
        });
        matches!(tokio::time::timeout(limit, shown).await, Ok(Ok(_)))
    }
}

/// The agents' last reports, with the leader's own time of their arrival.
#[derive(Clone, Default)]
pub struct AgentReports {
    inner: Arc<ReportsInner>,
}

#[derive(Default)]
struct ReportsInner {
    by_node: Mutex<BTreeMap<String, ArrivedReport>>,
    /// The newest reports of the machines that say their order, also from before this leadership.
    /// Locked after `by_node`.
    newest: Mutex<BTreeMap<String, NewestReport>>,
    arrived: Notify,
    /// The leader waits for a revision of the rules of isolation in the reports.
    awaits_isolation: AtomicBool,
}

struct ArrivedReport {
    at: Instant,
    /// When the first report arrived after which there was no gap.
    steady_since: Instant,
    report: Arc<NodeReport>,
}

impl AgentReports {
    /// Stores a machine's report. It wakes the leader's loop, unless it came in time and repeats the
    /// report before: machines report at every tick, and a plan for a large cluster is expensive.
    /// `tick` is the longest time between two reports; two ticks without one are a gap.
    ///
    /// A report that arrives after a newer one changes nothing. Returns the age of the report by
    /// which the machine counts as present: zero if it is this one. The machine has to count its
    /// contact from that age on, since the leader does.
    pub fn accept(&self, node: &str, report: NodeReport, tick: Duration) -> Duration {
        let mut reports = self.inner.by_node.lock();
        if let Some(age) = self.age_of_newer(node, &report, tick) {
            return age;
        }
        let at = Instant::now();
        let before = reports.get(node);
        let in_time = before.filter(|before| at.duration_since(before.at) < tick * 3 / 2);
        let awaits_isolation = self.inner.awaits_isolation.load(Ordering::Relaxed);
        let is_news = in_time.is_none_or(|before| {
            let follows = report.isolation_revision() != before.report.isolation_revision();
            (awaits_isolation && follows) || !report.repeats(&before.report)
        });
        let before = before.filter(|before| at.duration_since(before.at) < tick * 2);
        let arrived = ArrivedReport {
            at,
            steady_since: before.map_or(at, |before| before.steady_since),
            report: Arc::new(report),
        };
        reports.insert(node.to_owned(), arrived);
        drop(reports);
        if is_news {
            self.inner.arrived.notify_one();
        }
        Duration::ZERO
    }

    /// The age of the machine's newest report; `None` if `report` is the newest.
    fn age_of_newer(&self, node: &str, report: &NodeReport, tick: Duration) -> Option<Duration> {
        let order = report.order.as_ref()?;
        let mut newest = self.inner.newest.lock();
        let Some(known) = newest.get_mut(node) else {
            newest.insert(node.to_owned(), NewestReport::new(order));
            return None;
        };
        (!known.follow(order, quiet(report, tick))).then(|| known.age())
    }

    /// Whether a report is news because of the revision of the rules of isolation alone. To be said
    /// before [`observed`](Self::observed), so that no report comes between.
    pub(super) fn await_isolation(&self, awaits: bool) {
        self.inner.awaits_isolation.store(awaits, Ordering::Relaxed);
    }

    /// Begins a leadership of this machine, and returns since when reports count. The reports of
    /// before are forgotten, so that the first one of each machine is news.
    pub(super) fn begin(&self) -> Instant {
        let mut reports = self.inner.by_node.lock();
        reports.clear();
        let mut newest = self.inner.newest.lock();
        newest.retain(|_, report| report.may_be_followed());
        Instant::now()
    }

    /// Forgets the report of a machine.
    pub fn forget(&self, node: &str) {
        self.inner.by_node.lock().remove(node);
        self.inner.newest.lock().remove(node);
    }

    /// Waits for the next report that is news.
    pub async fn next(&self) {
        self.inner.arrived.notified().await;
    }

    /// The last reports and their ages, for a leader that has led for `leading_for`.
    pub fn observed(&self, leading_for: Duration) -> ObservedReports {
        let reports = self.inner.by_node.lock();
        let reports = reports.iter().map(|(node, arrived)| {
            let reported = ReportedNode {
                age: arrived.at.elapsed(),
                steady: arrived.steady_since.elapsed(),
                report: Arc::clone(&arrived.report),
            };
            (node.clone(), reported)
        });
        ObservedReports {
            leading_for,
            reports: reports
                .filter(|(_, reported)| reported.age <= leading_for)
                .collect(),
        }
    }
}

/// Silence of a boot of a machine after which one that seems to have begun before is believed: two ticks are
/// a gap. A machine that is refused meanwhile is to lose no instance, so this is well below the time after which
/// it stops them or counts as lost.
fn quiet(report: &NodeReport, tick: Duration) -> Duration {
    let followed = report.configuration.as_ref();
    let timeout = followed.map_or(0, |followed| followed.node_loss_timeout_seconds);
    match timeout {
        0 => tick * 2,
        timeout => (tick * 2).min(Duration::from_secs(timeout.into()) / 5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::{
        api::{FollowedConfiguration, IsolationReport, ReportOrder},
        machine::fence::BootTime,
        resource::Isolation,
    };

    const TICK: Duration = Duration::from_secs(3);

    async fn after(reports: &AgentReports, pause: Duration) -> Duration {
        tokio::time::advance(pause).await;
        reports.accept("n1", NodeReport::default(), TICK);
        reports.observed(Duration::MAX).reports["n1"].steady
    }

    #[tokio::test(start_paused = true)]
    async fn two_ticks_without_a_report_are_a_gap() {
        let reports = AgentReports::default();
        assert_eq!(after(&reports, Duration::ZERO).await, Duration::ZERO);
        assert_eq!(after(&reports, TICK).await, TICK);
        let nearly = TICK * 2 - Duration::from_millis(1);
        assert_eq!(after(&reports, nearly).await, TICK + nearly);
        assert_eq!(after(&reports, TICK * 2).await, Duration::ZERO);
        assert_eq!(after(&reports, TICK).await, TICK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_wakes_the_leader_unless_it_repeats_the_one_before_in_time() {
        let reports = AgentReports::default();
        let wakes = async |report: &NodeReport| {
            reports.accept("n1", report.clone(), TICK);
            tokio::time::timeout(Duration::ZERO, reports.next())
                .await
                .is_ok()
        };
        let mut report = NodeReport::default();
        assert!(wakes(&report).await, "the first report");
        tokio::time::advance(TICK).await;
        report.timestamp += 3;
        assert!(!wakes(&report).await, "only its time differs");
        report.desired_revision += 1;
        assert!(wakes(&report).await, "it acted on another list");
        let isolation = report.isolation.insert(IsolationReport::default());
        isolation.mode = Some(Isolation::Namespaces);
        assert!(wakes(&report).await, "it isolates");
        let follows = |report: &mut NodeReport| {
            report.isolation.as_mut().unwrap().revision += 1;
        };
        follows(&mut report);
        assert!(!wakes(&report).await, "nobody waits for its rules");
        reports.await_isolation(true);
        follows(&mut report);
        assert!(wakes(&report).await, "an address waits for its rules");
        tokio::time::advance(TICK * 3 / 2).await;
        assert!(wakes(&report).await, "it is late");
        reports.begin();
        assert!(wakes(&report).await, "the first report to this leader");
        assert!(!wakes(&report).await);
    }

    fn ordered(boot_id: &str, seconds: u64) -> NodeReport {
        NodeReport {
            desired_revision: seconds,
            order: Some(ReportOrder {
                boot_id: boot_id.to_owned(),
                since_boot: BootTime::from(Duration::from_secs(seconds)),
            }),
            ..NodeReport::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_that_arrives_after_a_newer_one_changes_nothing() {
        let reports = AgentReports::default();
        let believed = || {
            let observed = reports.observed(Duration::MAX);
            let reported = &observed.reports["n1"];
            (reported.report.desired_revision, reported.age)
        };
        assert_eq!(reports.accept("n1", ordered("a", 20), TICK), Duration::ZERO);
        reports.next().await;
        tokio::time::advance(TICK).await;
        // The machine counts from the newer report on, as the leader does.
        assert_eq!(reports.accept("n1", ordered("a", 10), TICK), TICK);
        assert_eq!(believed(), (20, TICK));
        let woken = tokio::time::timeout(Duration::ZERO, reports.next()).await;
        assert!(woken.is_err(), "nothing is planned for it");

        assert_eq!(reports.accept("n1", ordered("a", 23), TICK), Duration::ZERO);
        assert_eq!(believed(), (23, Duration::ZERO));
        assert_eq!(reports.accept("n1", ordered("b", 5), TICK), Duration::ZERO);
        assert_eq!(reports.accept("n1", ordered("a", 24), TICK), Duration::ZERO);
        assert_eq!(believed(), (5, Duration::ZERO), "it has booted");
        let other = NodeReport::default();
        assert_eq!(reports.accept("n2", other, TICK), Duration::ZERO);
        assert_eq!(reports.observed(Duration::MAX).reports.len(), 2);
    }

    /// The first report that this leader gets is a late one of a boot that was shorter than its way.
    #[tokio::test(start_paused = true)]
    async fn a_machine_whose_boot_seems_to_be_the_earlier_one_is_refused_for_a_fifth_of_its_timeout()
     {
        let (tick, step) = (Duration::from_secs(15), Duration::from_secs(6));
        let reports = AgentReports::default();
        let accept = |boot_id: &str, seconds: u64, timeout: u32| {
            let report = NodeReport {
                configuration: Some(FollowedConfiguration {
                    node_loss_timeout_seconds: timeout,
                    ..FollowedConfiguration::default()
                }),
                ..ordered(boot_id, seconds)
            };
            reports.accept("n1", report, tick)
        };
        assert_eq!(accept("left", 10, 60), Duration::ZERO);
        tokio::time::advance(step).await;
        assert_eq!(accept("new", 1_000, 60), step);
        tokio::time::advance(step).await;
        assert_eq!(accept("new", 1_006, 60), Duration::ZERO);
        // Two ticks where the timeout is long, or not known.
        for timeout in [0, 600] {
            reports.forget("n1");
            assert_eq!(accept("left", 10, timeout), Duration::ZERO);
            tokio::time::advance(tick * 2 - step).await;
            assert_eq!(accept("new", 1_000, timeout), tick * 2 - step);
            tokio::time::advance(step).await;
            assert_eq!(accept("new", 1_006, timeout), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_of_an_earlier_version_counts_when_it_arrives() {
        let reports = AgentReports::default();
        reports.accept("n1", ordered("a", 20), TICK);
        let earlier = NodeReport {
            order: None,
            ..ordered("a", 10)
        };
        reports.accept("n1", earlier, TICK);
        let observed = reports.observed(Duration::MAX);
        assert_eq!(observed.reports["n1"].report.desired_revision, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_leads_again_still_knows_which_reports_are_late() {
        let reports = AgentReports::default();
        reports.accept("n1", ordered("a", 20), TICK);
        tokio::time::advance(TICK).await;
        reports.begin();
        assert_eq!(reports.accept("n1", ordered("a", 10), TICK), TICK);
        assert!(reports.observed(TICK).reports.is_empty());
        reports.accept("n1", ordered("a", 21), TICK);
        assert_eq!(reports.observed(TICK).reports.len(), 1);

        reports.forget("n1");
        reports.accept("n1", ordered("a", 1), TICK);
        assert_eq!(reports.observed(TICK).reports.len(), 1, "another machine");
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_from_before_the_leadership_is_not_shown() {
        let reports = AgentReports::default();
        reports.accept("n1", NodeReport::default(), TICK);
        tokio::time::advance(TICK).await;
        let shown = |leading_for| reports.observed(leading_for).reports.contains_key("n1");
        assert!(shown(TICK));
        assert!(!shown(TICK - Duration::from_millis(1)));
    }
}
