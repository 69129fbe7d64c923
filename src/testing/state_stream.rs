//! The conformance suite of a [`StateSource`]: the feed of a machine's own store, and the stream of
//! another machine. It waits for conditions, in virtual or real time.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a suite fails by panicking, as tests do"
)]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::Stream;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::MemoryStore;
use kat_store::{
    ChangeLog, Mirror, MirrorState, StateFeed, StateFrames, StateSource, StateSourceError,
    StateStore, follow_source,
};
use kat_types::{
    encoding::state_frames::{StateFrame, StatePosition},
    store::{keys, transaction::WriteOperation},
};

/// Longest wait for a condition.
const LIMIT: Duration = Duration::from_secs(60);

/// A store with a feed that serves from it.
pub struct ServingStore {
    /// The store as a writer reaches it.
    pub store: MemoryStore,
    /// The feed's own client of the store, for faults.
    pub server: MemoryStore,
    /// The feed.
    pub feed: StateFeed,
    /// Ends the feed.
    pub cancel: CancellationToken,
}

impl ServingStore {
    /// A feed of this store.
    pub fn start(store: &MemoryStore) -> Self {
        let cancel = CancellationToken::new();
        let server = store.client();
        let log = ChangeLog::default();
        let own: Arc<dyn StateStore> = Arc::new(server.clone());
        let mirror =
            Mirror::start_logged(Arc::clone(&own), keys::ROOT, log.clone(), cancel.clone());
        Self {
            store: store.clone(),
            server,
            feed: StateFeed::start(own, mirror, log, cancel.clone()),
            cancel,
        }
    }
}

/// Makes the source under test for the machine `n1`.
pub type MakeSource<'a> = &'a dyn Fn(&ServingStore) -> Arc<dyn StateSource>;

/// Runs every case.
///
/// # Panics
/// If the source does not conform.
pub async fn conforms(make: MakeSource<'_>) {
    a_machine_sees_its_own_keys_and_the_shared_ones(make).await;
    changes_of_one_transaction_are_seen_together(make).await;
    a_copy_without_a_quorum_is_kept_but_not_confirmed(make).await;
    a_stream_that_breaks_at_any_frame_loses_nothing(make).await;
    a_store_that_was_created_anew_replaces_the_copy(make).await;
    a_write_outside_kat_keeps_the_copy_confirmed(make).await;
}

fn put(key: &str, value: &str) -> WriteOperation {
    WriteOperation::Put(key.to_owned(), value.as_bytes().to_vec())
}

async fn write(store: &MemoryStore, operations: &[WriteOperation]) {
    store.transact(&[], operations).await.expect("written");
}

fn content(state: &MirrorState) -> Vec<(String, String)> {
    let entries = state.entries.iter();
    entries
        .map(|(key, item)| {
            let value = String::from_utf8_lossy(&item.value).into_owned();
            (key.to_string(), value)
        })
        .collect()
}

/// Waits until the copy is as `is_so` says.
///
/// # Panics
/// If it is not so within a minute.
pub async fn wait_for(mirror: &Mirror, is_so: impl Fn(&MirrorState) -> bool) -> Arc<MirrorState> {
    let mut mirror = mirror.clone();
    let reached = async {
        loop {
            let state = mirror.snapshot();
            if is_so(&state) {
                return state;
            }
            mirror.changed().await.expect("the copy is kept");
        }
    };
    let reached = timeout(LIMIT, reached).await;
    reached.unwrap_or_else(|_| panic!("the copy stays {:?}", mirror.snapshot()))
}

async fn populated() -> MemoryStore {
    let store = MemoryStore::new();
    write(
        &store,
        &[
            put(keys::SCHEMA_VERSION, "1"),
            put(keys::CLUSTER_UID, "3f0c"),
            put(&keys::desired_meta("n1"), "own"),
            put(&keys::desired_meta("n2"), "other"),
            put(&keys::desired_meta("n10"), "other"),
            put(&keys::secret("default/password"), "sealed"),
            put(&keys::dns_record("default", "web", "A", "10.100.0.2"), ""),
            put(&keys::network_node("n2", "subnet"), "10.100.2.0/23"),
        ],
    )
    .await;
    store
}

async fn a_machine_sees_its_own_keys_and_the_shared_ones(make: MakeSource<'_>) {
    let serving = ServingStore::start(&populated().await);
    let mirror = follow_source(make(&serving), serving.cancel.clone());
    let state = wait_for(&mirror, |state| state.confirmed).await;
    let found: Vec<_> = content(&state).into_iter().map(|(key, _)| key).collect();
    let expected = [
        keys::CLUSTER_UID.to_owned(),
        keys::dns_record("default", "web", "A", "10.100.0.2"),
        keys::network_node("n2", "subnet"),
        keys::desired_meta("n1"),
    ];
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(found, expected);
    // A change of another machine's keys and of hidden ones does not show.
    write(
        &serving.store,
        &[
            put(&keys::desired_instance("n2", "web-abcde"), "{}"),
            put(&keys::token("0123456789ab"), "{}"),
        ],
    )
    .await;
    write(
        &serving.store,
        &[put(&keys::desired_instance("n1", "web-fghij"), "{}")],
    )
    .await;
    let state = wait_for(&mirror, |state| state.entries.len() > expected.len()).await;
    assert_eq!(state.entries.len(), expected.len() + 1);
    assert!(
        state
            .get(&keys::desired_instance("n1", "web-fghij"))
            .is_some()
    );
    serving.cancel.cancel();
}

async fn changes_of_one_transaction_are_seen_together(make: MakeSource<'_>) {
    let serving = ServingStore::start(&populated().await);
    let mut mirror = follow_source(make(&serving), serving.cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    let (first, second) = (
        keys::desired_instance("n1", "a"),
        keys::dns_record("default", "a", "A", "10.100.0.3"),
    );
    for round in 0..20 {
        let value = round.to_string();
        write(&serving.store, &[put(&first, &value), put(&second, &value)]).await;
        let deadline = Instant::now() + LIMIT;
        loop {
            let state = mirror.snapshot();
            let (one, other) = (state.get(&first), state.get(&second));
            let (one, other) = (one.map(|one| &one.value), other.map(|other| &other.value));
            assert_eq!(one, other, "half of a transaction shows");
            if one.is_some_and(|one| *one == value.as_bytes()) {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let changed = timeout(left, mirror.changed()).await;
            changed
                .expect("it shows in time")
                .expect("the copy is kept");
        }
    }
    write(&serving.store, &[WriteOperation::Delete(first.clone())]).await;
    wait_for(&mirror, |state| state.get(&first).is_none()).await;
    serving.cancel.cancel();
}

async fn a_copy_without_a_quorum_is_kept_but_not_confirmed(make: MakeSource<'_>) {
    let serving = ServingStore::start(&populated().await);
    let mirror = follow_source(make(&serving), serving.cancel.clone());
    let before = wait_for(&mirror, |state| state.confirmed).await;
    let cut_off = Instant::now();
    serving.server.set_partitioned(true);
    let state = wait_for(&mirror, |state| !state.confirmed).await;
    // The read from a quorum is at most 2 s old, and the last beat at most 4 s; a second more for
    // slow machines.
    assert!(
        cut_off.elapsed() < Duration::from_secs(7),
        "{:?}",
        cut_off.elapsed()
    );
    assert_eq!(content(&state), content(&before));
    write(
        &serving.store,
        &[put(&keys::desired_instance("n1", "a"), "later")],
    )
    .await;
    serving.server.set_partitioned(false);
    let state = wait_for(&mirror, |state| {
        state.confirmed && state.entries.len() > before.entries.len()
    });
    assert!(
        state
            .await
            .get(&keys::desired_instance("n1", "a"))
            .is_some()
    );
    serving.cancel.cancel();
}

/// Cuts each stream after so many frames, one more each time.
struct BreakingSource {
    source: Arc<dyn StateSource>,
    opens: AtomicUsize,
    most: usize,
}

struct CutFrames {
    frames: StateFrames,
    left: usize,
}

impl Stream for CutFrames {
    type Item = Result<StateFrame, StateSourceError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let next = self.frames.as_mut().poll_next(context);
        if next.is_ready() {
            self.left -= 1;
        }
        next
    }
}

#[async_trait]
impl StateSource for BreakingSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let frames = self.source.open(resume).await?;
        let opens = self.opens.fetch_add(1, Ordering::Relaxed);
        if opens >= self.most {
            return Ok(frames);
        }
        Ok(Box::pin(CutFrames {
            frames,
            left: opens,
        }))
    }
}

async fn a_stream_that_breaks_at_any_frame_loses_nothing(make: MakeSource<'_>) {
    let serving = ServingStore::start(&populated().await);
    let source = BreakingSource {
        source: make(&serving),
        opens: AtomicUsize::new(0),
        most: 8,
    };
    let mirror = follow_source(Arc::new(source), serving.cancel.clone());
    for round in 0..12 {
        let instance = keys::desired_instance("n1", &format!("i{round}"));
        let record = keys::dns_record("default", "web", "A", &format!("10.100.1.{round}"));
        write(&serving.store, &[put(&instance, "{}"), put(&record, "")]).await;
        if round % 3 == 2 {
            write(&serving.store, &[WriteOperation::Delete(instance.clone())]).await;
        }
        let there = round % 3 != 2;
        wait_for(&mirror, |state| {
            assert_eq!(
                state.get(&record).is_some() && there,
                state.get(&instance).is_some() && there,
                "half of a transaction shows"
            );
            state.get(&record).is_some() && state.get(&instance).is_some() == there
        })
        .await;
    }
    serving.cancel.cancel();
}

async fn a_write_outside_kat_keeps_the_copy_confirmed(make: MakeSource<'_>) {
    let serving = ServingStore::start(&populated().await);
    let mirror = follow_source(make(&serving), serving.cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    write(&serving.store, &[put("/application/setting", "1")]).await;
    // A copy that no server confirms is unconfirmed after 6 s.
    let begun = Instant::now();
    let mut changes = mirror.clone();
    while begun.elapsed() < Duration::from_secs(8) {
        let state = mirror.snapshot();
        let since = begun.elapsed();
        assert!(state.confirmed, "not confirmed {since:?} after the write");
        assert!(state.get("/application/setting").is_none());
        let _ = timeout(Duration::from_millis(200), changes.changed()).await;
    }
    let own = keys::desired_instance("n1", "later");
    write(&serving.store, &[put(&own, "{}")]).await;
    wait_for(&mirror, |state| state.get(&own).is_some()).await;
    serving.cancel.cancel();
}

async fn a_store_that_was_created_anew_replaces_the_copy(make: MakeSource<'_>) {
    let serving = ServingStore::start(&populated().await);
    let mirror = follow_source(make(&serving), serving.cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    let epoch = r#"{"schema":1,"epoch":7,"proof":""}"#;
    write(
        &serving.store,
        &[
            put(keys::STORE_EPOCH, epoch),
            WriteOperation::DeletePrefix(keys::DNS.to_owned()),
        ],
    )
    .await;
    let state = wait_for(&mirror, |state| state.get(keys::STORE_EPOCH).is_some()).await;
    assert!(state.below(keys::DNS).next().is_none());
    serving.cancel.cancel();
}
