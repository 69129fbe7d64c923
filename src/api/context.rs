//! What every handler has at hand: the leader's state, the right to write, limits and counters.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{errors::ApiError, history::History, view::View};
use crate::{
    access::{
        audit::BoundedLines,
        authentication::{Caller, not_ready},
    },
    handlers::{
        instances::InstanceLogs, joining::Joining, metrics::Counters, sessions::InstanceSessions,
        usage::Turns,
    },
    server::{
        limits::{Limits, RateLimits},
        open_streams::{Held, OpenStreams},
        shares::SharedTurns,
    },
};
use kat_daemon::watchdog::Pulses;
use kat_leader::{LeaderHandle, PlanningReport, StoreReport};
use kat_plan::{Observed, Snapshot};
use kat_registry::ImageSource;
use kat_store::{Committed, Leadership};
use kat_types::transaction::{Compare, Operation};

/// Most namespaces in which something that quotas count is written at once.
const GROWTH_AT_ONCE: usize = 1024;
/// How often a write is tried again after others changed the same keys.
const WRITE_ATTEMPTS: usize = 6;
/// How long a write waits for its own effect, or for the change that it collided with.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);

/// The time of day.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Makes an identity.
pub type NewUid = Arc<dyn Fn() -> String + Send + Sync>;

/// A random identity (RFC 9562, version 4).
pub fn random_uid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// What the API stands on.
#[derive(Clone)]
pub struct ApiConfig {
    /// The leader's state and reports, and the store.
    pub handle: LeaderHandle,
    /// Logs of instances.
    pub logs: Arc<dyn InstanceLogs>,
    /// Sessions with instances.
    pub sessions: Arc<dyn InstanceSessions>,
    /// The time of day.
    pub clock: WallClock,
    /// Makes identities of new objects, none of them twice.
    pub new_uid: NewUid,
    /// Name of this machine.
    pub node_name: String,
    /// What callers may ask for.
    pub limits: Limits,
    /// Where the loops that take connections are seen by the watchdog.
    pub pulses: Pulses,
    /// What lets machines join; only machines that hold the authorities' keys have it.
    pub joining: Option<Joining>,
    /// Who knows what images are; without it none is asked for.
    pub images: Option<Arc<dyn ImageSource>>,
}

/// Shared by all handlers.
pub struct Api {
    /// As handed in.
    pub(super) config: ApiConfig,
    pub(super) rates: RateLimits,
    pub(super) counters: Counters,
    pub(super) bounded_lines: BoundedLines,
    pub(super) history: History,
    pub(super) streams: Arc<OpenStreams>,
    pub(super) turns: Turns,
    /// For writes that quotas count: by namespace, so that each is decided on what the one before it wrote.
    pub(super) growth: SharedTurns,
    /// Ends every stream.
    pub(super) shutdown: CancellationToken,
    started: Instant,
}

/// What a write decided on one snapshot.
pub(super) enum Decision<T> {
    /// Nothing is to be written.
    Done(T),
    /// This is to be written, if the conditions hold.
    Write {
        conditions: Vec<Compare>,
        operations: Vec<Operation>,
        outcome: T,
    },
}

impl<T> Decision<T> {
    fn outcome(self) -> T {
        match self {
            Self::Done(outcome) | Self::Write { outcome, .. } => outcome,
        }
    }
}

impl Api {
    /// Ready to answer; streams end with `shutdown`.
    pub fn new(config: ApiConfig, shutdown: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            rates: RateLimits::new(&config.limits),
            streams: OpenStreams::new(config.limits.streams, config.limits.streams_of_one_caller),
            turns: Turns::default(),
            growth: SharedTurns::new(1, GROWTH_AT_ONCE),
            config,
            counters: Counters::default(),
            bounded_lines: BoundedLines::default(),
            history: History::default(),
            shutdown,
            started: Instant::now(),
        })
    }

    /// What lets machines join.
    pub(super) fn joining(&self) -> Result<&Joining, ApiError> {
        self.config.joining.as_ref().ok_or_else(|| {
            ApiError::Unavailable("this machine does not hold the cluster's authorities".to_owned())
        })
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.config.clock)()
    }

    /// One more stream of this caller's.
    pub(super) fn stream(&self, caller: &Caller) -> Result<Held, ApiError> {
        Ok(self.streams.open(Some(&caller.to_string()))?)
    }

    /// The newest snapshot, if there is one.
    pub(super) fn newest(&self) -> Option<Arc<Snapshot>> {
        self.config.handle.snapshot.borrow().clone()
    }

    /// The newest snapshot.
    pub(super) fn snapshot(&self) -> Result<Arc<Snapshot>, ApiError> {
        self.newest().ok_or_else(not_ready)
    }

    /// Whether this machine leads now.
    pub(super) fn leads(&self) -> bool {
        let leadership = self.config.handle.leadership.borrow();
        leadership
            .as_ref()
            .is_some_and(|leadership| !leadership.lost.is_cancelled())
    }

    /// The right to write.
    pub(super) fn leadership(&self) -> Result<Leadership, ApiError> {
        let leadership = self.config.handle.leadership.borrow().clone();
        leadership
            .filter(|leadership| !leadership.lost.is_cancelled())
            .ok_or_else(|| self.not_leader())
    }

    /// Others that hold the store pass callers on to the leader while they reach it.
    fn not_leader(&self) -> ApiError {
        let snapshot = self.newest();
        let members = self.members(snapshot.as_deref());
        if members > 0 {
            return ApiError::NoLeader { members };
        }
        let leader = snapshot.and_then(|snapshot| snapshot.leader_endpoint.clone());
        ApiError::NotLeader { leader }
    }

    /// How many machines hold the store, if this is one of them.
    fn members(&self, snapshot: Option<&Snapshot>) -> usize {
        let stored = snapshot.and_then(|snapshot| snapshot.members.as_ref());
        stored
            .filter(|_| self.config.joining.is_some())
            .map_or(0, |stored| stored.value.members.len())
    }

    /// What is shown may be old: this machine holds the store, and neither leads nor reaches who
    /// does. So it is with one member whose etcd is dead.
    pub(super) fn is_stale(&self) -> bool {
        !self.leads() && self.members(self.newest().as_deref()) > 0
    }

    /// The agents' reports as this machine knows them.
    pub(super) fn observed(&self) -> Observed {
        self.config.handle.reports.observed(self.started.elapsed())
    }

    /// What is known of the store's own upkeep.
    pub(super) fn store_report(&self) -> Option<StoreReport> {
        self.config.handle.store_health.report()
    }

    /// Whether the leader plans and can write that; where this machine leads.
    pub(super) fn planning_report(&self) -> Option<PlanningReport> {
        self.config.handle.planning.report()
    }

    /// What the snapshot looks like from outside.
    pub(super) fn view<'a>(&'a self, snapshot: &'a Snapshot, observed: &'a Observed) -> View<'a> {
        View {
            snapshot,
            observed,
            leader: self.leads().then_some(self.config.node_name.as_str()),
            store: self.store_report(),
            now: self.now(),
        }
    }

    /// The revision that the store is at, if this machine still leads.
    async fn newest_revision(&self, leadership: &Leadership) -> Result<i64, ApiError> {
        // A transaction without operations is no such question: etcd answers it from what the member
        // that is asked has, however old that is (`IsTxnSerializable` of its `server/etcdserver/txn`).
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
    /// snapshot shows it, so that the caller reads its own write. Decides again when others were
    /// quicker. That nothing is to be written, or can be, is said only when the snapshot shows all
    /// that the store had when that was decided: one that leads anew may have an old copy.
    ///
    /// Answers with the outcome and the revision of the write, if something was written.
    pub(super) async fn write<T>(
        &self,
        mut decide: impl FnMut(&Snapshot) -> Result<Decision<T>, ApiError>,
    ) -> Result<(T, Option<i64>), ApiError> {
        let mut newest = None;
        for _ in 0..WRITE_ATTEMPTS {
            let leadership = self.leadership()?;
            let mut receiver = self.config.handle.snapshot.clone();
            let snapshot = receiver.borrow_and_update().clone().ok_or_else(not_ready)?;
            let (mut conditions, operations, outcome) = match decide(&snapshot) {
                Ok(Decision::Write {
                    conditions,
                    operations,
                    outcome,
                }) => (conditions, operations, outcome),
                // No transaction tells whether that was decided on an old copy.
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
                Committed::Yes(revision) => {
                    let handle = &self.config.handle;
                    if !handle.wait_for_revision(revision, SHOWN_WITHIN).await {
                        tracing::warn!(revision, "a change was stored but is not shown yet");
                    }
                    return Ok((outcome, Some(revision)));
                }
                Committed::No => {
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
