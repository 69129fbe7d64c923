//! State shared by all handlers: the leader's state, the right to write, limits and counters.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{errors::ApiError, history::SnapshotHistory, view::ApiView};
use crate::{
    access::{
        audit::BoundedLines,
        authentication::{Caller, not_ready},
    },
    handlers::{
        cluster::{joining::JoiningState, metrics::Counters, overview::OverviewRelay},
        machines::usage::UsageQueryTurns,
        workloads::{instances::InstanceLogs, sessions::InstanceSessions},
    },
    server::{
        limits::{ApiLimits, RateLimits},
        open_streams::{OpenStreamPermit, OpenStreams},
        work_permits::SharedTurns,
    },
};
use kat_daemon::watchdog::LoopPulses;
use kat_leader::{LeaderHandle, PlanningReport, StoreReport};
use kat_pki::Authorities;
use kat_plan::Snapshot;
use kat_registry::ImageSource;
use kat_store::{Leadership, TransactionResult};
use kat_types::store::{
    snapshot::ObservedReports,
    transaction::{Compare, WriteOperation},
};

/// Maximum number of namespaces with a write that counts against quotas at the same time.
const GROWTH_AT_ONCE: usize = 1024;
/// Maximum tries of a write when others change the same keys.
const WRITE_ATTEMPTS: usize = 6;
/// Longest wait of a write for its own effect, or for the change that it collided with.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);

/// The wall clock.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Generates an identity.
pub type NewUid = Arc<dyn Fn() -> String + Send + Sync>;

/// Generates a random identity (RFC 9562, version 4).
pub fn random_uid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// Settings and dependencies of the API.
#[derive(Clone)]
pub struct ApiConfig {
    /// The leader's state and reports, and the store.
    pub handle: LeaderHandle,
    /// Logs of instances.
    pub logs: Arc<dyn InstanceLogs>,
    /// Sessions with instances.
    pub sessions: Arc<dyn InstanceSessions>,
    /// The wall clock.
    pub clock: WallClock,
    /// Generates unique identities of new objects.
    pub new_uid: NewUid,
    /// Name of this machine.
    pub node_name: String,
    /// Limits of calls.
    pub limits: ApiLimits,
    /// Reports the accept loops to the watchdog.
    pub pulses: LoopPulses,
    /// State for joining machines; only on machines that hold the authorities' keys.
    pub joining: Option<JoiningState>,
    /// Queries registries for images; without it none is queried.
    pub images: Option<Arc<dyn ImageSource>>,
    /// Reads the cluster's overview; only on machines without the store.
    pub relay: Option<Arc<dyn OverviewRelay>>,
}

/// Shared state of all handlers.
pub struct Api {
    pub(super) config: ApiConfig,
    pub(super) rates: RateLimits,
    pub(super) counters: Counters,
    pub(super) bounded_lines: BoundedLines,
    pub(super) history: SnapshotHistory,
    pub(super) streams: Arc<OpenStreams>,
    pub(super) turns: UsageQueryTurns,
    /// Of their own, so that scrapes of machines that do not answer hold up no other caller.
    pub(super) measurement_turns: UsageQueryTurns,
    /// By namespace, one turn at a time for writes that count against quotas, so that each is
    /// decided on the result of the one before it.
    pub(super) growth: SharedTurns,
    /// Ends every stream.
    pub(super) shutdown: CancellationToken,
    started: Instant,
}

/// The decision of a write on one snapshot.
pub(super) enum WriteDecision<T> {
    /// Nothing has to be written.
    Done(T),
    /// These operations have to be written if the conditions hold.
    Write {
        conditions: Vec<Compare>,
        operations: Vec<WriteOperation>,
        outcome: T,
    },
}

impl<T> WriteDecision<T> {
    fn outcome(self) -> T {
        match self {
            Self::Done(outcome) | Self::Write { outcome, .. } => outcome,
        }
    }
}

impl Api {
    /// Creates the state; streams end with `shutdown`.
    pub fn new(config: ApiConfig, shutdown: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            rates: RateLimits::new(&config.limits),
            streams: OpenStreams::new(config.limits.streams, config.limits.streams_of_one_caller),
            turns: UsageQueryTurns::default(),
            measurement_turns: UsageQueryTurns::default(),
            growth: SharedTurns::new(1, GROWTH_AT_ONCE),
            config,
            counters: Counters::default(),
            bounded_lines: BoundedLines::default(),
            history: SnapshotHistory::default(),
            shutdown,
            started: Instant::now(),
        })
    }

    /// The state for joining machines.
    pub(super) fn joining(&self) -> Result<&JoiningState, ApiError> {
        self.config.joining.as_ref().ok_or_else(|| {
            ApiError::Unavailable("this machine does not hold the cluster's authorities".to_owned())
        })
    }

    /// The cluster's authorities; `None` on a machine that does not hold them.
    pub(super) fn authorities(&self) -> Option<Arc<Authorities>> {
        let joining = self.config.joining.as_ref()?;
        Some(joining.authorities())
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.config.clock)()
    }

    /// Opens one more stream of this caller.
    pub(super) fn stream(&self, caller: &Caller) -> Result<OpenStreamPermit, ApiError> {
        Ok(self.streams.open(Some(&caller.to_string()))?)
    }

    /// The newest snapshot; `None` before the first one.
    pub(super) fn newest(&self) -> Option<Arc<Snapshot>> {
        self.config.handle.snapshot.borrow().clone()
    }

    /// The newest snapshot; an error before the first one.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>, ApiError> {
        self.newest().ok_or_else(not_ready)
    }

    pub(super) fn leads(&self) -> bool {
        let leadership = self.config.handle.leadership.borrow();
        leadership
            .as_ref()
            .is_some_and(|leadership| !leadership.lost.is_cancelled())
    }

    /// The present leadership, which writes are fenced with.
    pub(super) fn leadership(&self) -> Result<Leadership, ApiError> {
        let leadership = self.config.handle.leadership.borrow().clone();
        leadership
            .filter(|leadership| !leadership.lost.is_cancelled())
            .ok_or_else(|| self.not_leader())
    }

    /// How long this machine has led; `None` if it does not lead.
    fn leading_for(&self) -> Option<Duration> {
        let leadership = self.config.handle.leadership.borrow();
        let leadership = leadership.as_ref();
        let leadership = leadership.filter(|leadership| !leadership.lost.is_cancelled())?;
        Some(leadership.since.elapsed())
    }

    /// The error of a machine that does not lead. Machines that hold etcd forward callers to the
    /// leader while they reach it, so there it means that no leader is known.
    fn not_leader(&self) -> ApiError {
        let snapshot = self.newest();
        let members = self.members(snapshot.as_deref());
        if members > 0 {
            return ApiError::NoLeader { members };
        }
        let leader = snapshot.and_then(|snapshot| snapshot.leader_endpoint.clone());
        ApiError::NotLeader { leader }
    }

    /// Number of machines that hold etcd, if this is one of them; else 0.
    fn members(&self, snapshot: Option<&Snapshot>) -> usize {
        let stored = snapshot.and_then(|snapshot| snapshot.members.as_ref());
        stored
            .filter(|_| self.config.joining.is_some())
            .map_or(0, |stored| stored.value.members.len())
    }

    /// Whether the answers of this machine may be old: it holds etcd, and neither leads nor reaches
    /// the leader. This happens with one member whose etcd is dead.
    pub(super) fn is_stale(&self) -> bool {
        !self.leads() && self.members(self.newest().as_deref()) > 0
    }

    /// The agents' reports as this machine knows them.
    pub(super) fn observed(&self) -> ObservedReports {
        let leading_for = self.leading_for();
        let leading_for = leading_for.unwrap_or_else(|| self.started.elapsed());
        self.config.handle.reports.observed(leading_for)
    }

    /// State of the store's upkeep.
    pub(super) fn store_report(&self) -> Option<StoreReport> {
        self.config.handle.store_health.report()
    }

    /// Whether the leader makes plans and can write them; `None` if another machine leads.
    pub(super) fn planning_report(&self) -> Option<PlanningReport> {
        self.config.handle.planning.report()
    }

    /// The users' view of a snapshot.
    pub(super) fn view<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        observed: &'a ObservedReports,
    ) -> ApiView<'a> {
        ApiView {
            snapshot,
            observed,
            leader: self.leads().then_some(self.config.node_name.as_str()),
            store: self.store_report(),
            now: self.now(),
        }
    }

    /// The store's present revision, if this machine still leads.
    async fn newest_revision(&self, leadership: &Leadership) -> Result<i64, ApiError> {
        // A transaction without operations does not return it: etcd answers such a transaction from
        // the data of the queried member, however old that is (`IsTxnSerializable` of its
        // `server/etcdserver/txn`).
        let listing = self.config.handle.store.list(&leadership.key).await?;
        let mut keys = listing.items.iter();
        let owned = keys.any(|key| {
            key.key == leadership.key && key.create_revision == leadership.create_revision
        });
        if !owned || leadership.lost.is_cancelled() {
            return Err(self.not_leader());
        }
        Ok(listing.revision)
    }

    /// Decides on the newest snapshot, commits under the leader's fence, and waits until the
    /// snapshot shows the write, so that the caller reads its own write. Decides again if another
    /// write came first. A no-op or a refusal is only returned once the snapshot has caught up with
    /// the store: a new leader may still hold an old copy.
    ///
    /// Returns the outcome and the revision of the write, if something was written.
    pub(super) async fn write<T>(
        &self,
        mut decide: impl FnMut(&Snapshot) -> Result<WriteDecision<T>, ApiError>,
    ) -> Result<(T, Option<i64>), ApiError> {
        let mut newest = None;
        for _ in 0..WRITE_ATTEMPTS {
            let leadership = self.leadership()?;
            let mut receiver = self.config.handle.snapshot.clone();
            let snapshot = receiver.borrow_and_update().clone().ok_or_else(not_ready)?;
            let (mut conditions, operations, outcome) = match decide(&snapshot) {
                Ok(WriteDecision::Write {
                    conditions,
                    operations,
                    outcome,
                }) => (conditions, operations, outcome),
                // No transaction shows whether a no-op or a refusal was decided on an old copy.
                settled => {
                    let revision = match newest {
                        Some(revision) => revision,
                        None => self.newest_revision(&leadership).await?,
                    };
                    newest = Some(revision);
                    if snapshot.revision >= revision {
                        return settled.map(|decision| (decision.outcome(), None));
                    }
                    let handle = &self.config.handle;
                    if !handle.wait_for_revision(revision, SHOWN_WITHIN).await {
                        return Err(ApiError::Unavailable(
                            "the leader's copy of the store is older than the store".to_owned(),
                        ));
                    }
                    continue;
                }
            };
            conditions.insert(0, leadership.fence());
            let store = &self.config.handle.store;
            match store.transact(&conditions, &operations).await? {
                TransactionResult::Yes(revision) => {
                    let handle = &self.config.handle;
                    if !handle.wait_for_revision(revision, SHOWN_WITHIN).await {
                        tracing::warn!(revision, "a change was stored but is not shown yet");
                    }
                    return Ok((outcome, Some(revision)));
                }
                TransactionResult::No => {
                    self.newest_revision(&leadership).await?;
                    let _ = tokio::time::timeout(SHOWN_WITHIN, receiver.changed()).await;
                }
            }
        }
        Err(ApiError::conflict(
            "others keep changing the same thing",
            "send the request again",
        ))
    }
}
