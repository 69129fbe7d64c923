//! The leader's loop: campaign, plan, commit, wait until the snapshot shows the changes, repeat.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    AgentReports, LeaderHandle, PlanningHealth, SnapshotBuilder, StoreHealth, planning::PlanWrites,
};
use kat_daemon::watchdog::{LoopPulse, LoopPulses};
use kat_plan as plan;
use kat_plan::{ClusterPlan, Snapshot, SnapshotSealing};
use kat_store::{
    ChangeLog, Leadership, Mirror, OrderedSender, StateFeed, StateStore, fenced, ordered_watch,
};
use kat_types::store::{keys, snapshot::ObservedReports, transaction::WriteOperation};

/// Longest time between two plans.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// Longest wait for the snapshot to show the committed changes, before the wait is repeated.
const SHOWN_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a commit that failed.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// Pause after a certificate could not be made.
const AFTER_FAILED_ISSUE: Duration = Duration::from_secs(10);

/// Number of changes that are written between two beats for the watchdog.
const GROUPS_AT_ONCE: usize = 256;

/// Decides what to write: [`plan::plan`], or a test's planner.
pub type Planner =
    Arc<dyn Fn(&Snapshot, &ObservedReports, Timestamp, u64) -> ClusterPlan + Send + Sync>;

/// Settings of a candidate.
#[derive(Clone)]
pub struct LeaderConfig {
    /// Name of the machine.
    pub candidate: String,
    /// Time after which the leadership expires without a renewal.
    pub lease: Duration,
    /// `host:port` of this machine's API as of now, published while it leads.
    pub endpoint: Arc<dyn Fn() -> String + Send + Sync>,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Reports the loop to the watchdog while this machine leads.
    pub pulses: LoopPulses,
    /// How secrets are opened and sealed: it changes when the recovery key is replaced.
    pub sealing: watch::Receiver<SnapshotSealing>,
}

/// Follows the store and campaigns until `cancel`, then resigns.
pub fn start(
    store: Arc<dyn StateStore>,
    config: LeaderConfig,
    cancel: CancellationToken,
) -> LeaderHandle {
    start_with(store, config, Arc::new(plan::plan), cancel)
}

/// [`start`] with another planner than [`plan::plan`].
pub fn start_with(
    store: Arc<dyn StateStore>,
    config: LeaderConfig,
    planner: Planner,
    cancel: CancellationToken,
) -> LeaderHandle {
    let log = ChangeLog::default();
    let mirror = Mirror::start_logged(Arc::clone(&store), keys::ROOT, log.clone(), cancel.clone());
    let feed = StateFeed::start(Arc::clone(&store), mirror.clone(), log, cancel.clone());
    let (snapshots, snapshot) = watch::channel(None);
    let (shown_now, shown) = ordered_watch(0);
    let (leaderships, leadership) = watch::channel(None);
    let handle = LeaderHandle {
        store,
        snapshot,
        shown: Some(shown),
        leadership,
        reports: AgentReports::default(),
        store_health: StoreHealth::default(),
        planning: PlanningHealth::default(),
        feed: Some(feed),
    };
    tokio::spawn(follow(
        mirror,
        (snapshots, shown_now),
        config.sealing.clone(),
        cancel.clone(),
    ));
    tokio::spawn(campaign(
        handle.clone(),
        config,
        planner,
        leaderships,
        cancel,
    ));
    handle
}

/// Builds a snapshot of every state that the mirror shows, with the keys of that time.
async fn follow(
    mut mirror: Mirror,
    (snapshots, shown): (watch::Sender<Option<Arc<Snapshot>>>, OrderedSender<i64>),
    mut sealing: watch::Receiver<SnapshotSealing>,
    cancel: CancellationToken,
) {
    let mut builder = SnapshotBuilder::with_sealing(sealing.borrow_and_update().clone());
    let mut keys_change = true;
    loop {
        let state = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            state = mirror.changed() => match state {
                Ok(state) => state,
                Err(_) => return,
            },
            changed = sealing.changed(), if keys_change => {
                keys_change = changed.is_ok();
                mirror.snapshot()
            }
        };
        builder.use_sealing(sealing.borrow_and_update().clone());
        if state.synced_at.is_some() {
            let snapshot = builder.build(&state.entries, state.revision);
            snapshots.send_replace(Some(Arc::new(snapshot)));
            shown.send(state.revision);
        }
    }
}

async fn campaign(
    handle: LeaderHandle,
    config: LeaderConfig,
    planner: Planner,
    leaderships: watch::Sender<Option<Leadership>>,
    cancel: CancellationToken,
) {
    loop {
        let won = tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            won = handle.store.campaign(&config.candidate, config.lease) => won,
        };
        let leadership = match won {
            Ok(leadership) => leadership,
            Err(error) => {
                tracing::warn!("the election cannot be held: {error}");
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => return,
                    () = sleep(Duration::from_secs(1)) => continue,
                }
            }
        };
        tracing::info!(node = config.candidate, "this machine leads");
        // This has to come before the API accepts the first report.
        let since = handle.reports.begin();
        handle.planning.begin();
        leaderships.send_replace(Some(leadership.clone()));
        let mut tenure = LeaderTenure {
            handle: &handle,
            config: &config,
            planner: &planner,
            leadership: &leadership,
            since,
            floor: 0,
            published: None,
            pause_issuing: None,
            issues: IssuingTurn::default(),
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = leadership.lost.cancelled() => tracing::warn!(node = config.candidate, "this machine no longer leads"),
            () = tenure.lead() => {}
        }
        leaderships.send_replace(None);
        handle.planning.end();
        if cancel.is_cancelled() {
            if let Err(error) = handle.store.resign(&leadership).await {
                tracing::warn!(
                    "leadership was not given up in order, and runs out by itself: {error}"
                );
            }
            return;
        }
    }
}

/// One leadership, from its beginning to its end.
struct LeaderTenure<'a> {
    handle: &'a LeaderHandle,
    config: &'a LeaderConfig,
    planner: &'a Planner,
    leadership: &'a Leadership,
    since: Instant,
    /// Lowest revision of a snapshot to plan from.
    floor: i64,
    /// The endpoint in the store.
    published: Option<String>,
    /// No certificate is made before this time: the last attempt failed.
    pause_issuing: Option<Instant>,
    /// Whether a certificate or a plan comes next.
    issues: IssuingTurn,
}

/// Steps that make certificates take turns with plans: a namespace with many hosts delays no instance
/// of others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum IssuingTurn {
    /// A step may come next.
    #[default]
    Step,
    /// A step was written: a plan comes next, and then at once another step.
    Plan,
}

impl LeaderTenure<'_> {
    async fn lead(&mut self) {
        let mut snapshots = self.handle.snapshot.clone();
        let pulse = self.config.pulses.watch("leader");
        loop {
            pulse.beat();
            if !self.publish_endpoint().await {
                sleep(AFTER_FAILURE).await;
                continue;
            }
            let Some(snapshot) = self.newest(&mut snapshots).await else {
                continue;
            };
            let now = (self.config.clock)();
            let turn = std::mem::take(&mut self.issues);
            if turn == IssuingTurn::Step && self.issued_certificates(&snapshot, now).await {
                self.issues = IssuingTurn::Plan;
                continue;
            }
            // Addresses of instances that are gone wait for the machines.
            let mut allocations = snapshot.allocations.values();
            let awaits = allocations.any(|allocation| allocation.value.released);
            self.handle.reports.await_isolation(awaits);
            let observed = self.handle.reports.observed(self.since.elapsed());
            let began = Instant::now();
            let plan = (self.planner)(&snapshot, &observed, now, plan::SEED);
            self.handle.planning.count_plan(&plan, began.elapsed());
            self.handle.planning.planned(&plan.frozen);
            let wake = plan.wake_after.map_or(LONGEST_SLEEP, |wake| {
                wake.clamp(Duration::from_millis(1), LONGEST_SLEEP)
            });
            if !plan.changes.is_empty() {
                match self.commit(plan, snapshot.planned, &pulse).await {
                    true => self.handle.planning.finished(),
                    false => sleep(AFTER_FAILURE).await,
                }
                continue;
            }
            self.handle.planning.finished();
            if turn == IssuingTurn::Plan {
                continue;
            }
            tokio::select! {
                biased;
                changed = snapshots.changed() => if changed.is_err() { return },
                () = self.handle.reports.next() => {}
                () = sleep(wake) => {}
            }
        }
    }

    /// The newest snapshot, once it shows everything that this leader has written.
    async fn newest(
        &self,
        snapshots: &mut watch::Receiver<Option<Arc<Snapshot>>>,
    ) -> Option<Arc<Snapshot>> {
        let floor = self.floor;
        let shown = async {
            let waited = snapshots
                .wait_for(|snapshot| snapshot.as_ref().is_some_and(|one| one.revision >= floor))
                .await;
            waited.map(|snapshot| snapshot.clone()).ok().flatten()
        };
        match timeout(SHOWN_LIMIT, shown).await {
            Ok(Some(snapshot)) => Some(snapshot),
            Ok(None) => std::future::pending().await,
            Err(_) => {
                tracing::warn!(
                    revision = floor,
                    "the copy of the store is behind; nothing is planned until it shows this revision"
                );
                None
            }
        }
    }

    /// Writes a plan that was made from a snapshot with this `turn`. A plan is refused if its
    /// snapshot lacks an earlier write, such as one whose answer was lost.
    async fn commit(&mut self, plan: ClusterPlan, turn: i64, pulse: &LoopPulse) -> bool {
        let began = Instant::now();
        let placed = plan.scheduling.placed;
        let (end, changes) = self.write(plan, turn, pulse).await;
        let planning = &self.handle.planning;
        planning.count_writes(end, (changes, placed), began.elapsed());
        end == PlanWrites::Done
    }

    /// Returns how the writes ended, and the number of changes in the parts that were written.
    async fn write(
        &mut self,
        plan: ClusterPlan,
        mut turn: i64,
        pulse: &LoopPulse,
    ) -> (PlanWrites, usize) {
        let mut written = 0;
        let groups: Vec<_> = plan
            .changes
            .into_iter()
            .map(|change| {
                tracing::debug!(
                    reason = change.reason,
                    operations = change.operations.len(),
                    "a change"
                );
                fenced::WriteGroup {
                    conditions: change.conditions,
                    operations: change.operations,
                }
            })
            .collect();
        // A long list of changes is not a hanging loop.
        for part in groups.chunks(GROUPS_AT_ONCE) {
            pulse.beat();
            let store = self.handle.store.as_ref();
            let fence = self.leadership.fence();
            match fenced::commit_in_turn(store, &fence, &mut turn, part).await {
                Ok(fenced::CommitOutcome::Done(revision)) => {
                    self.floor = self.floor.max(revision);
                    written += part.len();
                }
                Ok(fenced::CommitOutcome::Refused { .. }) => {
                    tracing::info!(of = groups.len(), "a change was refused; planning again");
                    return (PlanWrites::Refused, written);
                }
                Err(error) => {
                    tracing::warn!("changes could not be written: {error}");
                    self.handle.planning.failed(error.to_string());
                    return (PlanWrites::Failed, written);
                }
            }
        }
        (PlanWrites::Done, written)
    }

    /// Takes the next step of KAT's own authority for ingress. Returns true if something was written,
    /// which the next snapshot shows.
    async fn issued_certificates(&mut self, snapshot: &Arc<Snapshot>, now: Timestamp) -> bool {
        // No thread is used where no route needs a certificate or a key of the leader.
        if !plan::uses_own_authority(snapshot) {
            return false;
        }
        if self
            .pause_issuing
            .is_some_and(|until| Instant::now() < until)
        {
            return false;
        }
        let given = Arc::clone(snapshot);
        // Keys and signatures take milliseconds.
        let made = tokio::task::spawn_blocking(move || plan::next_certificate(&given, now)).await;
        let failed = match made {
            Ok(Ok(None)) => return false,
            Ok(Ok(Some(step))) => {
                let group = fenced::WriteGroup {
                    conditions: step.conditions,
                    operations: step.operations,
                };
                let fence = self.leadership.fence();
                let store = self.handle.store.as_ref();
                match fenced::commit(store, &fence, &[group]).await {
                    Ok(fenced::CommitOutcome::Done(revision)) => {
                        tracing::info!("{} made", step.what);
                        self.floor = self.floor.max(revision);
                        return true;
                    }
                    Ok(fenced::CommitOutcome::Refused { .. }) => {
                        "another write came first".to_owned()
                    }
                    Err(error) => error.to_string(),
                }
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!("certificates for routes could not be made: {failed}");
        self.pause_issuing = Some(Instant::now() + AFTER_FAILED_ISSUE);
        false
    }

    /// Publishes the endpoint. Returns true if the store has the present one.
    async fn publish_endpoint(&mut self) -> bool {
        let endpoint = (self.config.endpoint)();
        if self.published.as_ref() == Some(&endpoint) {
            return true;
        }
        let text = |key: &str, value: &str| {
            WriteOperation::Put(key.to_owned(), value.to_owned().into_bytes())
        };
        let group = fenced::WriteGroup {
            conditions: Vec::new(),
            operations: vec![
                text(keys::LEADER_ENDPOINT, &endpoint),
                text(keys::LEADER_NAME, &self.config.candidate),
            ],
        };
        match fenced::commit(
            self.handle.store.as_ref(),
            &self.leadership.fence(),
            &[group],
        )
        .await
        {
            Ok(fenced::CommitOutcome::Done(revision)) => {
                self.floor = revision;
                self.published = Some(endpoint);
                true
            }
            Err(error) => {
                tracing::warn!("the leader's endpoint could not be published: {error}");
                self.handle.planning.failed(error.to_string());
                false
            }
            Ok(fenced::CommitOutcome::Refused { .. }) => {
                tracing::warn!(
                    "the leader's endpoint could not be published: the fence refused it"
                );
                false
            }
        }
    }
}
