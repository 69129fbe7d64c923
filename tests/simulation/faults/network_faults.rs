//! The network path between a machine and everything else: its latency, and whether it is cut.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{TryStreamExt, future::BoxFuture};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{checks::monitor::Monitor, faults::stream_faults::lagging};
use kat_store::{
    Leadership, Listing, StateStore, StoreError, TransactionResult, WatchEvent, WatchStream,
};
use kat_testing::{CALL_TIMEOUT, MemoryStore};
use kat_types::store::{
    keys,
    transaction::{Compare, KeyValue, WriteOperation},
};

/// How long a packet is retransmitted before its sender gives up.
const SENT_AGAIN: Duration = Duration::from_secs(30);

/// The network path of one machine.
#[derive(Default)]
pub(crate) struct Way {
    state: Mutex<Conditions>,
    changed: Notify,
    /// Loops of the machine's agent that have work while it hangs.
    held: Mutex<Vec<Waker>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Conditions {
    /// No traffic between the machine and the store.
    pub store_cut: bool,
    /// Since when; see [`Way::store_cut_for`].
    store_cut_since: Option<Instant>,
    /// No traffic between the machine and other machines over their own network. Probes over the
    /// overlay, which is carried by that network, are not answered either.
    pub machines_cut: bool,
    /// No traffic over the overlay. Reports, state streams and calls use the machines' own network.
    /// etcd listens on the overlay alone, so the machine's store reaches no other.
    pub overlay_cut: bool,
    /// The machine's agent hangs as after SIGSTOP: it handles nothing, and its units run on.
    pub hung: bool,
    /// The machine is off.
    pub off: bool,
    /// The machine's disk has no free space. The machine's etcd has ended.
    pub disk_full: bool,
    /// One-way latency of all traffic.
    pub latency: Duration,
    /// Number of the next answers to writes that get lost.
    pub lost_answers: u32,
    /// Counts power losses. A power loss drops the writes in flight.
    pub power: u64,
    /// The machine's reports are refused on their way; everything else arrives.
    pub reports_refused: bool,
    /// Each report arrives a second time, so much later.
    pub reports_repeated: Option<Duration>,
    /// Connections for new state streams get no answer; open streams stay.
    pub opens_no_stream: bool,
    /// How much later than other traffic the frames of the machine's streams arrive.
    pub stream_late: Duration,
    /// Shortest time between two frames of the machine's streams.
    pub stream_pace: Duration,
    /// Counts the times at which all streams of the machine broke.
    pub streams_broken: u64,
    /// The machine's copy of the store changes only once in so long.
    pub copy_lag: Duration,
    /// The machine's copy of the store does not change.
    pub copy_frozen: bool,
}

impl Conditions {
    /// A leader sees the store and can write to it.
    pub(crate) fn writes(&self) -> bool {
        !self.store_is_cut() && !self.copy_frozen && !self.hung
    }

    /// The machine's store answers nothing.
    pub(crate) fn store_is_cut(&self) -> bool {
        self.store_cut || self.overlay_cut || self.disk_full
    }

    /// Reports, streams and the copy of the store are whole again.
    pub(crate) fn heal_streams(&mut self) {
        self.reports_refused = false;
        self.opens_no_stream = false;
        self.stream_late = Duration::ZERO;
        self.stream_pace = Duration::ZERO;
        self.copy_lag = Duration::ZERO;
        self.copy_frozen = false;
    }
}

impl Way {
    fn lock(&self) -> MutexGuard<'_, Conditions> {
        self.state.lock()
    }

    pub(crate) fn now(&self) -> Conditions {
        self.lock().clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Conditions)) {
        let mut state = self.lock();
        change(&mut state);
        let since = state.store_cut_since.unwrap_or_else(Instant::now);
        state.store_cut_since = state.store_is_cut().then_some(since);
        let hung = state.hung;
        drop(state);
        self.changed.notify_waiters();
        if !hung {
            let held = std::mem::take(&mut *self.held.lock());
            held.into_iter().for_each(Waker::wake);
        }
    }

    /// How long the machine has not reached the store; `None` if it does.
    pub(crate) fn store_cut_for(&self) -> Option<Duration> {
        self.lock().store_cut_since.map(|since| since.elapsed())
    }

    /// Waits until the machine's agent handles what reaches it.
    pub(crate) async fn awake(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.lock().hung {
                return;
            }
            changed.await;
        }
    }

    /// Runs a loop of the machine's agent. It is not polled while the agent hangs.
    pub(crate) async fn run_while_awake(self: Arc<Self>, work: BoxFuture<'static, ()>) {
        let mut work = work;
        std::future::poll_fn(|context| {
            if self.lock().hung {
                self.held.lock().push(context.waker().clone());
                return Poll::Pending;
            }
            work.as_mut().poll(context)
        })
        .await;
    }

    /// Carries a write to the store. A write sent before the cut arrives once the path is open
    /// again, because nobody can recall it.
    async fn there(&self) -> Result<(), StoreError> {
        let power = self.now().power;
        sleep(self.now().latency).await;
        let until = Instant::now() + SENT_AGAIN;
        loop {
            let changed = self.changed.notified();
            let now = self.now();
            if now.power != power {
                return Err(StoreError::Unavailable("the machine is off".into()));
            }
            if !now.store_is_cut() {
                return Ok(());
            }
            if timeout_at(until, changed).await.is_err() {
                return Err(StoreError::Unavailable("never arrived".into()));
            }
        }
    }

    async fn back(&self) -> Result<(), StoreError> {
        sleep(self.now().latency).await;
        let lost = {
            let mut state = self.lock();
            let lost = state.lost_answers > 0;
            state.lost_answers -= u32::from(lost);
            lost || state.store_is_cut()
        };
        if lost {
            return Err(StoreError::Unavailable("the answer was lost".into()));
        }
        Ok(())
    }
}

/// What the transactions of a process compare.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WireRules {
    /// The leader's election key.
    pub fenced: bool,
    /// What they replace of accounts, orders and certificates by ACME.
    pub compares_orders: bool,
}

/// A process' connection to the store. Transactions continue without the process: one that gave up
/// or was killed cannot recall what it sent.
#[derive(Clone)]
pub(crate) struct Wire {
    /// Reads, watches and the election. Cut off with the machine, and for good when the process
    /// ends.
    pub reads: MemoryStore,
    writes: MemoryStore,
    way: Arc<Way>,
    process: String,
    monitor: Arc<Monitor>,
    /// What transactions compare.
    rules: WireRules,
    /// Cancelled at the end of the process.
    closed: CancellationToken,
    began: Instant,
}

impl Wire {
    pub(crate) fn new(
        store: &MemoryStore,
        way: &Arc<Way>,
        process: (&str, &CancellationToken),
        monitor: &Arc<Monitor>,
        rules: WireRules,
    ) -> Self {
        let (process, closed) = process;
        let wire = Self {
            reads: store.client(),
            writes: store.client(),
            way: Arc::clone(way),
            process: process.to_owned(),
            monitor: Arc::clone(monitor),
            rules,
            closed: closed.clone(),
            began: Instant::now(),
        };
        wire.follow_way();
        wire
    }

    /// Applies the current conditions of the machine's path.
    pub(crate) fn follow_way(&self) {
        let now = self.way.now();
        self.reads.set_partitioned(now.store_is_cut() || now.hung);
        self.reads.set_delay(now.latency);
    }

    async fn carry(
        self,
        conditions: Vec<Compare>,
        operations: Vec<WriteOperation>,
    ) -> Result<TransactionResult, StoreError> {
        // A process that hangs sends this when it continues, whatever has happened meanwhile.
        if self.way.now().hung {
            self.closed.run_until_cancelled(self.way.awake()).await;
            if self.closed.is_cancelled() {
                return Err(StoreError::Unavailable("the process has ended".into()));
            }
        }
        self.way.there().await?;
        let committed = self.writes.transact(&conditions, &operations).await?;
        // No other task ran since the store applied the transaction.
        if matches!(committed, TransactionResult::Yes(_)) {
            self.monitor.written(&self.process, &operations);
        }
        self.way.back().await?;
        Ok(committed)
    }
}

/// A leader publishes the name of its machine. The candidates of the simulation have the name and the
/// number of their process.
fn with_machine(operation: WriteOperation) -> WriteOperation {
    match operation {
        WriteOperation::Put(key, name) if key == keys::LEADER_NAME => {
            WriteOperation::Put(key, machine_of(&name))
        }
        other => other,
    }
}

/// As [`with_machine`], for what a process reads: candidates of the product have the names of machines.
fn with_candidate(mut item: KeyValue) -> KeyValue {
    if item.key.starts_with(keys::ELECTION) {
        item.value = machine_of(&item.value);
    }
    item
}

/// The machine of a process, such as n1 of n1.2.
fn machine_of(process: &[u8]) -> Vec<u8> {
    let machine = process.split(|byte| *byte == b'.').next();
    machine.unwrap_or_default().to_vec()
}

fn is_fence(condition: &Compare) -> bool {
    matches!(condition, Compare::CreateRevision(key, _) if key.starts_with(keys::ELECTION))
}

fn is_of_ingress(condition: &Compare) -> bool {
    let (Compare::ModRevision(key, _) | Compare::CreateRevision(key, _)) = condition;
    key.starts_with(keys::INGRESS)
}

#[async_trait]
impl StateStore for Wire {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.reads.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let mut listing = self.reads.list(prefix).await?;
        listing.items = listing.items.into_iter().map(with_candidate).collect();
        Ok(listing)
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<WatchStream, StoreError> {
        let changes = self.reads.watch(prefix, from_revision).await?;
        let changes = changes.map_ok(|mut batch| {
            for event in &mut batch.events {
                if let WatchEvent::Put(item) = event {
                    *item = with_candidate(item.clone());
                }
            }
            batch
        });
        Ok(lagging(
            Box::pin(changes),
            Arc::clone(&self.way),
            self.began,
        ))
    }

    async fn transact(
        &self,
        conditions: &[Compare],
        operations: &[WriteOperation],
    ) -> Result<TransactionResult, StoreError> {
        let mut conditions = conditions.to_vec();
        if !self.rules.fenced {
            conditions.retain(|condition| !is_fence(condition));
        }
        if !self.rules.compares_orders {
            conditions.retain(|condition| !is_of_ingress(condition));
        }
        let operations = operations.iter().cloned().map(with_machine).collect();
        let carried = tokio::spawn(self.clone().carry(conditions, operations));
        let limit = Instant::now() + CALL_TIMEOUT;
        timeout_at(limit, carried)
            .await
            .map_err(|_| StoreError::Unavailable("no answer".into()))?
            .map_err(|error| StoreError::Unavailable(error.to_string()))?
    }

    async fn campaign(&self, candidate: &str, lease: Duration) -> Result<Leadership, StoreError> {
        self.reads.campaign(candidate, lease).await
    }

    async fn resign(&self, leadership: &Leadership) -> Result<(), StoreError> {
        self.reads.resign(leadership).await
    }

    async fn leader(&self) -> Result<Option<String>, StoreError> {
        self.reads.leader().await
    }
}
