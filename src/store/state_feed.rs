//! The source of the state stream on a machine that holds the store: what each machine may see of
//! the store, as a list and then as changes.
//!
//! All readers share one copy of the store and one log of its changes. A reader has only a
//! position in the log. It first gets a whole list, or continues from its position; then changes,
//! one [`StateFrame::Commit`] for each revision, and a beat each second. A beat says that the
//! reader has everything that a quorum of the store had less than [`SURE_FOR`] ago; a server that
//! can't say this ends its streams.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
    time::Duration,
    vec,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::yield_now,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    ChangeLog, Mirror, MirrorState, QuorumRead, StateStore, WatchEvent,
    change_log::VisibleBatch,
    mirror::MirrorError,
    ordered_watch::{OrderedReceiver, OrderedSender, ordered_watch},
    state_view::{SURE_FOR, StateFrames, StateSource, StateSourceError},
};
use kat_types::{
    api::StoreEpoch,
    encoding::state_frames::{
        MOST_LIST, STATE_SCHEMA, StateBeat, StateBegin, StateEnd, StateEndReason, StateFrame,
        StatePosition,
    },
    store::{
        keys,
        transaction::KeyValue,
        visibility::{is_visible, visible_prefixes},
    },
};

/// Interval of the reads from a quorum, and of the beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the feed reads from a quorum itself, where another read of this client is due: a
/// candidate reads its election key as often.
const READ_OF_ANOTHER: Duration = Duration::from_millis(100);
/// Longest wait of a new stream for the server's own copy of the store.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// Time in which a change that a quorum has shows in the server's own copy; after it the watch is
/// asked for its progress.
const SHOWN_WITHIN: Duration = Duration::from_millis(200);
/// Number of whole lists that are sent at the same time.
const LISTS_AT_ONCE: usize = 8;
/// Number of keys of a list that are sent together.
const KEYS_AT_ONCE: usize = 256;
/// Number of bytes after which no more keys are sent together.
const BYTES_AT_ONCE: usize = 1 << 20;
/// Number of streams that one machine may open in [`OPENS_WITHIN`].
const MOST_OPENS: usize = 10;
const OPENS_WITHIN: Duration = Duration::from_secs(60);

/// Sends machines what they may see. Clones share it.
#[derive(Clone)]
pub struct StateFeed {
    shared: Arc<SharedFeed>,
}

struct SharedFeed {
    mirror: Mirror,
    log: ChangeLog,
    /// When the copy of the store was last as new as a quorum.
    sure: OrderedReceiver<Option<Instant>>,
    lists: Arc<Semaphore>,
    streams: Mutex<BTreeMap<String, OpenedStreams>>,
    /// Number of open streams: without one, no quorum is read.
    open: watch::Sender<usize>,
    cancel: CancellationToken,
}

/// The streams that one machine opened.
#[derive(Default)]
struct OpenedStreams {
    /// Ends the open stream.
    current: CancellationToken,
    opens: VecDeque<Instant>,
}

/// A machine opens streams too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a machine may open its state stream {MOST_OPENS} times a minute")]
pub struct TooManyOpens {
    /// Time after which the machine may try again.
    pub retry_after: Duration,
}

/// An open stream of a machine.
pub struct OpenedFrames {
    /// The frames. They end with [`StateEndReason::Replaced`] after `replaced`.
    pub frames: StateFrames,
    /// Cancelled when the machine has opened another stream.
    pub replaced: CancellationToken,
}

impl StateFeed {
    /// Serves from a mirror of the whole store and the log that it fills, until `cancel`.
    pub fn start(
        store: Arc<dyn StateStore>,
        mirror: Mirror,
        log: ChangeLog,
        cancel: CancellationToken,
    ) -> Self {
        let (sure_now, sure) = ordered_watch(None);
        let (open, opened) = watch::channel(0);
        let (own, until) = (mirror.clone(), cancel.clone());
        tokio::spawn(async move {
            let confirm = confirm(store, own, opened, sure_now);
            until.run_until_cancelled(confirm).await;
        });
        let shared = SharedFeed {
            mirror,
            log,
            sure,
            lists: Arc::new(Semaphore::new(LISTS_AT_ONCE)),
            streams: Mutex::default(),
            open,
            cancel,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Opens the stream of the machine `node` after the position `resume`; an open stream of that
    /// machine ends.
    ///
    /// # Errors
    /// [`TooManyOpens`].
    pub fn open(
        &self,
        node: &str,
        resume: Option<StatePosition>,
    ) -> Result<StateFrames, TooManyOpens> {
        let opened = self.open_replaceable(node, resume)?;
        Ok(opened.frames)
    }

    /// [`Self::open`], and tells when the machine has opened another stream, while the frames are not
    /// read.
    ///
    /// # Errors
    /// [`TooManyOpens`].
    pub fn open_replaceable(
        &self,
        node: &str,
        resume: Option<StatePosition>,
    ) -> Result<OpenedFrames, TooManyOpens> {
        let replaced = self.shared.register(node, Instant::now())?;
        Ok(OpenedFrames {
            frames: self.frames(node, resume, replaced.clone()),
            replaced,
        })
    }

    fn frames(
        &self,
        node: &str,
        resume: Option<StatePosition>,
        replaced: CancellationToken,
    ) -> StateFrames {
        self.shared.open.send_modify(|open| *open += 1);
        let reader = StateReader {
            feed: Arc::clone(&self.shared),
            node: node.to_owned(),
            replaced,
            stage: ReaderStage::Opening(resume),
            opened_at: Instant::now(),
            beat_at: Instant::now(),
        };
        let frames = stream::unfold(reader, |mut reader| async move {
            let frames = reader.next().await?;
            Some((stream::iter(frames.into_iter().map(Ok)), reader))
        });
        Box::pin(frames.flatten().fuse())
    }
}

impl SharedFeed {
    fn register(&self, node: &str, now: Instant) -> Result<CancellationToken, TooManyOpens> {
        let mut streams = self.streams.lock();
        let opened = streams.entry(node.to_owned()).or_default();
        while let Some(first) = opened.opens.front() {
            let age = now.duration_since(*first);
            if age >= OPENS_WITHIN {
                opened.opens.pop_front();
                continue;
            }
            if opened.opens.len() < MOST_OPENS {
                break;
            }
            return Err(TooManyOpens {
                retry_after: OPENS_WITHIN - age,
            });
        }
        opened.opens.push_back(now);
        let replaced = CancellationToken::new();
        std::mem::replace(&mut opened.current, replaced.clone()).cancel();
        Ok(replaced)
    }
}

/// While a stream is open, reads from a quorum each second unless something else of this client does
/// so, and notes when the mirror shows what was read. A mirror that does not is to list everything
/// again.
async fn confirm(
    store: Arc<dyn StateStore>,
    mirror: Mirror,
    mut open: watch::Receiver<usize>,
    sure: OrderedSender<Option<Instant>>,
) {
    let mut others = store.quorum_reads();
    let mut last = None;
    while open.wait_for(|open| *open > 0).await.is_ok() {
        let read_of_another = match (&mut others, last) {
            (Some(others), Some(last)) => newer_read(others, last).await,
            _ => None,
        };
        let (at, revision) = match read_of_another {
            Some(read) => (read.sent, Some(read.revision)),
            None => (Instant::now(), read_revision(store.as_ref()).await),
        };
        if let Some(revision) = revision {
            match shows(store.as_ref(), &mirror, revision).await {
                true => sure.send(Some(at)),
                false => mirror.list_again(revision),
            }
        }
        last = Some(at);
        sleep_until(at + BEAT_INTERVAL).await;
    }
}

/// The revision of the whole store, from a quorum.
async fn read_revision(store: &dyn StateStore) -> Option<i64> {
    // Any key will do: the revision of the answer is that of the whole store.
    match timeout(SURE_FOR, store.list(keys::SCHEMA_VERSION)).await {
        Ok(Ok(listing)) => Some(listing.revision),
        Ok(Err(error)) => {
            tracing::debug!("no quorum confirms the store: {error:#}");
            None
        }
        Err(_) => {
            tracing::debug!("no quorum confirms the store in time");
            None
        }
    }
}

/// A read of this client that was sent well after `last`, if one is answered soon.
async fn newer_read(
    reads: &mut watch::Receiver<Option<QuorumRead>>,
    last: Instant,
) -> Option<QuorumRead> {
    let is_newer = |read: &Option<QuorumRead>| {
        read.is_some_and(|read| read.sent.duration_since(last) > BEAT_INTERVAL / 2)
    };
    let newer = timeout(READ_OF_ANOTHER, reads.wait_for(is_newer)).await;
    newer.ok()?.ok().and_then(|read| *read)
}

/// Waits until the mirror shows this revision. A write outside the mirror's prefix raises the
/// revision without a change that its watch would show, so the watch is asked for its progress.
async fn shows(store: &dyn StateStore, mirror: &Mirror, revision: i64) -> bool {
    let until = Instant::now() + SURE_FOR;
    while Instant::now() < until {
        match mirror.wait_for_revision(revision, SHOWN_WITHIN).await {
            Ok(_) => return true,
            Err(MirrorError::TimedOut { .. }) => store.request_progress(),
            Err(MirrorError::Stopped(_)) => return false,
        }
    }
    false
}

/// One machine's place in the feed.
struct StateReader {
    feed: Arc<SharedFeed>,
    node: String,
    /// Cancelled when the machine has opened another stream.
    replaced: CancellationToken,
    stage: ReaderStage,
    opened_at: Instant,
    beat_at: Instant,
}

impl Drop for StateReader {
    fn drop(&mut self) {
        self.feed.open.send_modify(|open| *open -= 1);
    }
}

enum ReaderStage {
    /// Nothing was sent yet.
    Opening(Option<StatePosition>),
    /// A whole list is being sent, or its last frame was handed out and may not be taken yet.
    Listing(Box<ListInProgress>),
    /// Changes are sent.
    Following(LogCursor),
    /// The last frame was sent.
    Ended,
}

struct ListInProgress {
    items: vec::IntoIter<Arc<KeyValue>>,
    /// Whether the last frame of the list was handed out.
    is_whole: bool,
    cursor: LogCursor,
    _turn: OwnedSemaphorePermit,
}

/// Everything up to `revision` was sent.
#[derive(Clone, Copy)]
struct LogCursor {
    /// The log was started anew so often.
    start: u64,
    revision: i64,
    /// Epoch of the store.
    epoch: u64,
}

impl StateReader {
    /// The next frames, at least one; `None` after the end.
    async fn next(&mut self) -> Option<Vec<StateFrame>> {
        let stage = std::mem::replace(&mut self.stage, ReaderStage::Ended);
        let step = async {
            match stage {
                ReaderStage::Ended => None,
                ReaderStage::Opening(resume) => Some(self.begin(resume).await),
                ReaderStage::Listing(list) if list.is_whole => {
                    let cursor = list.cursor;
                    // Another list may begin.
                    drop(list);
                    Some(self.follow(cursor).await)
                }
                ReaderStage::Listing(list) => Some(self.list(*list)),
                ReaderStage::Following(cursor) => Some(self.follow(cursor).await),
            }
        };
        step.await
    }

    /// Begins with the changes after `resume` if the log has them, else with a whole list.
    async fn begin(&mut self, resume: Option<StatePosition>) -> Vec<StateFrame> {
        let mut sure = self.feed.sure.clone();
        let confirmed = sure.wait_for(|at| at.is_some_and(|at| at.elapsed() < SURE_FOR));
        if !matches!(timeout(READY_WITHIN, confirmed).await, Ok(Ok(_))) {
            return self.not_served(StateEndReason::NoQuorum, BEAT_INTERVAL);
        }
        let Some(position) = resume else {
            return self.begin_list();
        };
        let reached = self.feed.mirror.wait_for_revision(0, READY_WITHIN).await;
        let Ok(state) = reached else {
            return self.not_served(StateEndReason::Behind, BEAT_INTERVAL);
        };
        match position.epoch.cmp(&epoch(&state)) {
            std::cmp::Ordering::Less => return self.begin_list(),
            std::cmp::Ordering::Greater => {
                return self.not_served(StateEndReason::Behind, BEAT_INTERVAL);
            }
            std::cmp::Ordering::Equal => {}
        }
        let wanted = position.revision;
        let reached = self.feed.mirror.wait_for_revision(wanted, READY_WITHIN);
        if reached.await.is_err() {
            return self.not_served(StateEndReason::Behind, BEAT_INTERVAL);
        }
        let log = &self.feed.log;
        let cursor = LogCursor {
            start: log.start(),
            revision: wanted,
            epoch: position.epoch,
        };
        match log.after(cursor.start, wanted) {
            Ok(_) => self.follow(cursor).await,
            Err(_) => self.begin_list(),
        }
    }

    /// Ends a stream before it served anything; its opening does not count.
    fn not_served(&self, reason: StateEndReason, retry_after: Duration) -> Vec<StateFrame> {
        let mut streams = self.feed.streams.lock();
        if let Some(opened) = streams.get_mut(&self.node) {
            opened.opens.pop_back();
        }
        drop(streams);
        ended(reason, retry_after)
    }

    fn begin_list(&mut self) -> Vec<StateFrame> {
        let Ok(turn) = Arc::clone(&self.feed.lists).try_acquire_owned() else {
            return self.not_served(StateEndReason::Busy, BEAT_INTERVAL / 2);
        };
        // Read before the copy: a log that was started anew in between is found by its start.
        let start = self.feed.log.start();
        let state = self.feed.mirror.snapshot();
        let items = visible(&state, &self.node);
        let bytes: usize = items
            .iter()
            .map(|item| item.key.len() + item.value.len())
            .sum();
        if bytes > MOST_LIST {
            tracing::error!(
                node = self.node,
                bytes,
                "the list of a machine is larger than {MOST_LIST} bytes and can't be sent"
            );
            return ended(StateEndReason::TooLarge, OPENS_WITHIN);
        }
        let epoch = epoch(&state);
        let begin = StateBegin {
            epoch,
            revision: state.revision,
            schema: STATE_SCHEMA,
            keys: items.len(),
        };
        self.stage = ReaderStage::Listing(Box::new(ListInProgress {
            items: items.into_iter(),
            is_whole: false,
            cursor: LogCursor {
                start,
                revision: state.revision,
                epoch,
            },
            _turn: turn,
        }));
        vec![StateFrame::Begin(begin)]
    }

    fn list(&mut self, mut list: ListInProgress) -> Vec<StateFrame> {
        if self.replaced.is_cancelled() {
            return ended(StateEndReason::Replaced, Duration::ZERO);
        }
        let (mut frames, mut bytes) = (Vec::new(), 0);
        while frames.len() < KEYS_AT_ONCE
            && bytes < BYTES_AT_ONCE
            && let Some(item) = list.items.next()
        {
            bytes += item.key.len() + item.value.len();
            frames.push(StateFrame::Put(item.as_ref().clone()));
        }
        if list.items.len() == 0 {
            frames.push(StateFrame::Commit(list.cursor.revision));
            self.beat_at = Instant::now();
            list.is_whole = true;
        }
        // The turn ends once the client has taken the last frame.
        self.stage = ReaderStage::Listing(Box::new(list));
        frames
    }

    async fn follow(&mut self, mut cursor: LogCursor) -> Vec<StateFrame> {
        let feed = Arc::clone(&self.feed);
        let mut latest = feed.log.latest();
        loop {
            if self.replaced.is_cancelled() {
                return ended(StateEndReason::Replaced, Duration::ZERO);
            }
            latest.get_and_mark_seen();
            // Read before the changes: they are then at least as new.
            let sure = feed.sure.get();
            let Ok(changes) = feed.log.after(cursor.start, cursor.revision) else {
                return self.begin_list();
            };
            let mut batches = changes.batches.iter();
            if batches.any(|batch| is_other_epoch(batch, cursor.epoch)) {
                return self.begin_list();
            }
            let all = changes.until == latest.get();
            cursor.revision = changes.until;
            let batches = changes.batches.iter();
            let mut frames: Vec<_> = batches.flat_map(|batch| shown(batch, &self.node)).collect();
            if all && Instant::now() >= self.beat_at {
                // Behind changes too: a store that changes all the time must not silence the beats.
                frames.extend(self.beat(cursor, sure));
                return frames;
            }
            if !frames.is_empty() {
                self.stage = ReaderStage::Following(cursor);
                return frames;
            }
            if !all {
                yield_now().await;
                continue;
            }
            tokio::select! {
                biased;
                () = feed.cancel.cancelled() => {
                    return ended(StateEndReason::Stopping, Duration::ZERO);
                }
                () = self.replaced.cancelled() => {
                    return ended(StateEndReason::Replaced, Duration::ZERO);
                }
                changed = latest.changed() => if changed.is_err() {
                    return ended(StateEndReason::Stopping, Duration::ZERO);
                },
                () = sleep_until(self.beat_at) => {}
            }
        }
    }

    fn beat(&mut self, cursor: LogCursor, sure: Option<Instant>) -> Vec<StateFrame> {
        let age = sure.map(|at| at.elapsed()).filter(|age| *age < SURE_FOR);
        let Some(age) = age else {
            return ended(StateEndReason::NoQuorum, BEAT_INTERVAL);
        };
        self.beat_at = Instant::now() + BEAT_INTERVAL;
        self.stage = ReaderStage::Following(cursor);
        vec![StateFrame::Beat(StateBeat {
            revision: cursor.revision,
            quorum_age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            open_for_ms: u64::try_from(self.opened_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        })]
    }
}

fn ended(reason: StateEndReason, retry_after: Duration) -> Vec<StateFrame> {
    vec![StateFrame::End(StateEnd {
        reason,
        retry_after_ms: u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX),
    })]
}

/// Epoch of the store in this state; a store without the key has never been created anew.
pub(crate) fn epoch(state: &MirrorState) -> u64 {
    state.get(keys::STORE_EPOCH).map_or(0, epoch_of)
}

fn epoch_of(stored: &KeyValue) -> u64 {
    serde_json::from_slice::<StoreEpoch>(&stored.value).map_or(0, |stated| stated.epoch)
}

/// Whether the store is of another epoch by this change. The record of the epoch changes without it,
/// too.
fn is_other_epoch(batch: &VisibleBatch, epoch: u64) -> bool {
    batch.shared().any(|event| match event {
        WatchEvent::Put(item) => item.key == keys::STORE_EPOCH && epoch_of(item) != epoch,
        WatchEvent::Delete { key, .. } => key == keys::STORE_EPOCH && epoch != 0,
    })
}

/// The visible keys of the machine `node`, in their order.
fn visible(state: &MirrorState, node: &str) -> Vec<Arc<KeyValue>> {
    let mut items = Vec::new();
    for prefix in visible_prefixes(node) {
        let range = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let below = state.entries.range::<_, str>(range);
        let below = below.take_while(|(key, _)| key.starts_with(&prefix));
        let shown = below.filter(|(key, _)| is_visible(key, node));
        items.extend(shown.map(|(_, item)| Arc::clone(item)));
    }
    items
}

/// The frames of one revision; none if the machine `node` sees nothing of it.
fn shown(batch: &VisibleBatch, node: &str) -> Vec<StateFrame> {
    let seen = batch.seen_by(node);
    let frames = seen.map(|event| match event {
        WatchEvent::Put(item) => StateFrame::Put(item.clone()),
        WatchEvent::Delete { key, .. } => StateFrame::Delete(key.clone()),
    });
    let mut frames: Vec<_> = frames.collect();
    if !frames.is_empty() {
        frames.push(StateFrame::Commit(batch.revision));
    }
    frames
}

/// The feed of this machine, for this machine itself.
pub struct LocalStateSource {
    feed: StateFeed,
    node: String,
}

impl LocalStateSource {
    /// The keys that the machine `node` may see.
    pub fn new(feed: StateFeed, node: &str) -> Self {
        Self {
            feed,
            node: node.to_owned(),
        }
    }
}

#[async_trait]
impl StateSource for LocalStateSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        // The limit of opens is for other machines.
        let replaced = CancellationToken::new();
        Ok(self.feed.frames(&self.node, resume, replaced))
    }
}
