//! A machine's copy of the keys that it may see, from any [`StateSource`]: the feed of its own
//! store, or the stream of another machine.
//!
//! The copy changes by whole revisions only, and never goes back. It is confirmed by beats alone,
//! each for [`SILENCE`], and never longer than [`SURE_FOR`] more after the read from a quorum of
//! which the beat tells, however long the beat was on its way.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Mirror, MirrorState, WatchBatch, WatchEvent,
    mirror::MirrorEntries,
    ordered_watch::{OrderedSender, ordered_watch},
};
use kat_types::{
    api::StoreEpoch,
    backoff::{Backoff, Pauses},
    encoding::state_frames::{
        MOST_LIST, STATE_SCHEMA, StateBeat, StateBegin, StateEnd, StateEndReason, StateFrame,
        StatePosition,
    },
    store::{keys, transaction::KeyValue},
};

/// Time without a beat or a commit after which the copy is not confirmed.
pub const SILENCE: Duration = Duration::from_secs(4);
/// Age up to which a server's read from a quorum counts.
pub const SURE_FOR: Duration = Duration::from_secs(2);
/// Time after which a stream was long in opening: its beats may be as much older as that took.
const LONG_OPENING: Duration = Duration::from_secs(2);
/// Shortest time for which the beats of such a stream have to confirm: the next one comes after a
/// second. Another stream may open sooner.
const LEAST_SURE: Duration = Duration::from_millis(1_500);
/// Number of frames after which the copy is shown although more have arrived.
const MOST_FRAMES: usize = 4096;
/// Time without any frame, or part of one, after which a list, a change or a long frame that is
/// being sent is given up.
const LIST_SILENCE: Duration = Duration::from_secs(10);
/// Longest wait for a source to open.
const OPEN_WITHIN: Duration = Duration::from_secs(15);
/// Pauses between two attempts.
const PAUSES: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(5)).with_jitter(0.5);

/// Frames of a source; the stream ends after an error.
pub type StateFrames = Pin<Box<dyn Stream<Item = Result<StateFrame, StateSourceError>> + Send>>;

/// Why a source gives no frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateSourceError {
    /// No server answers.
    #[error("{0}")]
    Unreachable(String),
    /// The server refuses this machine.
    #[error("{0}")]
    Refused(String),
    /// The server is of a version without the stream.
    #[error("the server's version has no state stream")]
    NotOffered,
    /// The connection broke.
    #[error("the stream broke: {0}")]
    Broken(String),
    /// The frames contradict each other or what is known.
    #[error("{0}")]
    Invalid(String),
    /// The state is of a later epoch of the store that nothing proves.
    #[error("{0}")]
    Unproved(String),
    /// The server ended the stream.
    #[error("the server ended the stream: {:?}", .0.reason)]
    Ended(StateEnd),
}

/// Where a machine reads the keys that it may see.
#[async_trait]
pub trait StateSource: Send + Sync + 'static {
    /// Opens a stream of frames that continues after `resume`, or begins with a whole list. Each
    /// call after the first may choose another server.
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError>;
}

/// Decides whether a state of a later epoch of the store is accepted.
pub trait EpochProofs: Send + Sync + 'static {
    /// Whether a state may replace one of the earlier epoch `own`. `record` is the record of the
    /// epoch in the state.
    ///
    /// # Errors
    /// Why it may not, in words.
    fn check(&self, own: u64, offered: u64, record: Option<&StoreEpoch>) -> Result<(), String>;

    /// A state of this epoch was accepted. Called again when its record changes.
    fn accepted(&self, epoch: u64, record: Option<&StoreEpoch>);

    /// The accepted state is confirmed.
    fn confirmed(&self) {}
}

/// Accepts every later epoch.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnyEpoch;

impl EpochProofs for AnyEpoch {
    fn check(&self, _: u64, _: u64, _: Option<&StoreEpoch>) -> Result<(), String> {
        Ok(())
    }

    fn accepted(&self, _: u64, _: Option<&StoreEpoch>) {}
}

/// What a machine knows before it has read anything.
#[derive(Clone)]
pub struct KnownState {
    /// A list of an earlier epoch or revision, which an earlier process of this machine has seen
    /// confirmed, is refused.
    pub lowest: Option<StatePosition>,
    /// By what a later epoch is accepted.
    pub proofs: Arc<dyn EpochProofs>,
}

impl Default for KnownState {
    fn default() -> Self {
        Self {
            lowest: None,
            proofs: Arc::new(AnyEpoch),
        }
    }
}

/// A copy that follows a source.
#[derive(Debug, Clone)]
pub struct FollowedState {
    /// The copy.
    pub mirror: Mirror,
    /// What the copy showed when it last changed while it was confirmed; `None` before that.
    pub confirmed: watch::Receiver<Option<StatePosition>>,
}

/// Random numbers from 0 to 1, which shorten the pauses between two attempts.
pub type Chances = Box<dyn FnMut() -> f64 + Send>;

/// Follows a source until `cancel`, from nothing.
pub fn follow_source(source: Arc<dyn StateSource>, cancel: CancellationToken) -> Mirror {
    follow_source_from(source, KnownState::default(), cancel).mirror
}

/// Follows a source until `cancel`, from what an earlier process of this machine knew.
pub fn follow_source_from(
    source: Arc<dyn StateSource>,
    known: KnownState,
    cancel: CancellationToken,
) -> FollowedState {
    follow_source_with(source, known, Box::new(chance), cancel)
}

/// [`follow_source_from`] with other random numbers.
pub fn follow_source_with(
    source: Arc<dyn StateSource>,
    known: KnownState,
    chances: Chances,
    cancel: CancellationToken,
) -> FollowedState {
    let (sender, state) = ordered_watch(Arc::default());
    let (confirmed_now, confirmed) = watch::channel(None);
    let follower = ViewFollower {
        source,
        chances,
        state: MirrorState::default(),
        position: None,
        list_schema: 0,
        known,
        confirmed: confirmed_now,
        transaction: Transaction::Changes(Vec::new(), 0),
        in_frame: false,
        sender,
        confirmed_until: Instant::now(),
        requested_at: Instant::now(),
        opened_late: false,
        changed: false,
    };
    tokio::spawn(async move {
        cancel.run_until_cancelled(follower.run()).await;
    });
    FollowedState {
        mirror: Mirror::of_state("the keys of this machine", state),
        confirmed,
    }
}

struct ViewFollower {
    source: Arc<dyn StateSource>,
    chances: Chances,
    state: MirrorState,
    /// What the copy shows; `None` before the first list.
    position: Option<StatePosition>,
    /// Version of the stream that the last list came by.
    list_schema: u32,
    known: KnownState,
    confirmed: watch::Sender<Option<StatePosition>>,
    transaction: Transaction,
    /// Whether a part of a long frame came last.
    in_frame: bool,
    sender: OrderedSender<Arc<MirrorState>>,
    confirmed_until: Instant,
    /// When the present stream was asked for.
    requested_at: Instant,
    /// The present stream was long in opening.
    opened_late: bool,
    /// Whether the copy has changed since it was shown.
    changed: bool,
}

/// What has arrived since the last commit, with its size in bytes.
enum Transaction {
    /// Changes of the next revision.
    Changes(Vec<WatchEvent>, usize),
    /// A list that replaces everything.
    List(StateBegin, MirrorEntries, usize),
}

enum ViewStage {
    Waiting(Instant),
    Opening(
        BoxFuture<'static, Result<StateFrames, StateSourceError>>,
        Instant,
    ),
    Reading(StateFrames, Instant),
}

enum ViewEvent {
    /// The pause is over.
    Waited,
    Opened(Result<StateFrames, StateSourceError>),
    Frame(Option<Result<StateFrame, StateSourceError>>),
}

impl ViewStage {
    async fn next(&mut self) -> ViewEvent {
        match self {
            Self::Waiting(until) => {
                sleep_until(*until).await;
                ViewEvent::Waited
            }
            Self::Opening(opening, _) => ViewEvent::Opened(opening.await),
            Self::Reading(frames, _) => ViewEvent::Frame(frames.next().await),
        }
    }

    /// When this stage is given up.
    fn ends_at(&self) -> Option<Instant> {
        match self {
            Self::Waiting(_) => None,
            Self::Opening(_, at) | Self::Reading(_, at) => Some(*at),
        }
    }
}

impl ViewFollower {
    async fn run(mut self) {
        let mut pauses = PAUSES.pauses();
        let mut stage = self.opening();
        loop {
            let ends_at = stage.ends_at();
            let confirmed_until = self.state.confirmed.then_some(self.confirmed_until);
            let event = tokio::select! {
                biased;
                // Frames without a beat keep nothing confirmed, however many arrive.
                () = at(confirmed_until) => {
                    self.state.confirmed = false;
                    self.show();
                    continue;
                }
                event = stage.next() => event,
                () = at(ends_at) => {
                    stage = self.failed(&StateSourceError::Unreachable("no answer in time".to_owned()), &mut pauses);
                    continue;
                }
            };
            let next = match event {
                ViewEvent::Waited => Ok(self.opening()),
                ViewEvent::Opened(opened) => opened.map(|frames| self.reading(frames)),
                ViewEvent::Frame(None) => Err(StateSourceError::Broken("it ended".to_owned())),
                ViewEvent::Frame(Some(frame)) => {
                    let taken = self.take_ready(frame, &mut stage, &mut pauses);
                    if std::mem::take(&mut self.changed) {
                        self.show();
                    }
                    match taken {
                        Ok(()) => continue,
                        Err(error) => Err(error),
                    }
                }
            };
            stage = match next {
                Ok(next) => next,
                Err(error) => self.failed(&error, &mut pauses),
            };
        }
    }

    /// Takes a frame and those that have already arrived behind it, so that readers see many
    /// revisions at once.
    fn take_ready(
        &mut self,
        first: Result<StateFrame, StateSourceError>,
        stage: &mut ViewStage,
        pauses: &mut Pauses,
    ) -> Result<(), StateSourceError> {
        let ViewStage::Reading(frames, ends_at) = stage else {
            return Ok(());
        };
        let mut next = Some(first);
        for _ in 0..MOST_FRAMES {
            let Some(frame) = next.take() else { break };
            if self.take(frame?)? {
                pauses.reset();
            }
            next = frames.next().now_or_never().flatten();
        }
        if let Some(frame) = next {
            self.take(frame?)?;
        }
        *ends_at = self.silent_until();
        Ok(())
    }

    fn opening(&mut self) -> ViewStage {
        self.requested_at = Instant::now();
        // A list of an earlier version lacks objects that no change would bring.
        let is_whole = self.list_schema >= STATE_SCHEMA;
        let (source, resume) = (Arc::clone(&self.source), self.position.filter(|_| is_whole));
        let opening = async move { source.open(resume).await };
        ViewStage::Opening(Box::pin(opening), Instant::now() + OPEN_WITHIN)
    }

    fn reading(&mut self, frames: StateFrames) -> ViewStage {
        self.transaction = Transaction::Changes(Vec::new(), 0);
        self.in_frame = false;
        self.opened_late = self.requested_at.elapsed() > LONG_OPENING;
        // A source's stream may not be polled after its end.
        let frames: StateFrames = Box::pin(frames.fuse());
        ViewStage::Reading(frames, Instant::now() + LIST_SILENCE)
    }

    fn silent_until(&self) -> Instant {
        Instant::now()
            + match self.transaction {
                Transaction::Changes(ref events, _) if events.is_empty() && !self.in_frame => {
                    SILENCE
                }
                Transaction::Changes(..) | Transaction::List(..) => LIST_SILENCE,
            }
    }

    fn failed(&mut self, error: &StateSourceError, pauses: &mut Pauses) -> ViewStage {
        match error {
            StateSourceError::Invalid(_)
            | StateSourceError::Refused(_)
            | StateSourceError::Ended(StateEnd {
                reason: StateEndReason::TooLarge,
                ..
            }) => {
                tracing::warn!("the cluster's state can't be followed: {error}");
            }
            // Whoever checks the proofs says it.
            _ => tracing::debug!("the cluster's state can't be followed: {error}"),
        }
        let wanted = match error {
            StateSourceError::Ended(end) => Duration::from_millis(end.retry_after_ms),
            _ => Duration::ZERO,
        };
        // Added, not the longer of the two: all readers of a server that ended are given one time.
        let pause = wanted.min(PAUSES.most) + pauses.next_jittered((self.chances)());
        ViewStage::Waiting(Instant::now() + pause)
    }

    /// Takes a frame. Returns whether it shows that the source serves.
    fn take(&mut self, frame: StateFrame) -> Result<bool, StateSourceError> {
        self.in_frame = matches!(frame, StateFrame::Part);
        match frame {
            StateFrame::Part => Ok(false),
            StateFrame::Begin(begin) => self.begin(begin).map(|()| false),
            StateFrame::Put(item) => self.put(item).map(|()| false),
            StateFrame::Delete(key) => self.delete(key).map(|()| false),
            StateFrame::Commit(revision) => self.commit(revision).map(|()| true),
            StateFrame::Beat(beat) => self.beat(beat).map(|()| true),
            StateFrame::End(end) => Err(StateSourceError::Ended(end)),
        }
    }

    /// What this machine has seen last, in this process or an earlier one.
    fn seen(&self) -> Option<StatePosition> {
        self.position.or(self.known.lowest)
    }

    /// Refuses a state of a later epoch that nothing proves. A record of another epoch than the
    /// list's counts like a list of its epoch.
    fn check_epoch(&self, epoch: u64, record: Option<&StoreEpoch>) -> Result<(), StateSourceError> {
        let stated = record.map_or(0, |record| record.epoch);
        let offered = epoch.max(stated);
        match self.seen() {
            Some(seen) if offered > seen.epoch => {
                let checked = self.known.proofs.check(seen.epoch, offered, record);
                checked.map_err(StateSourceError::Unproved)
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, begin: StateBegin) -> Result<(), StateSourceError> {
        let offered = StatePosition {
            epoch: begin.epoch,
            revision: begin.revision,
        };
        if let Some(known) = self.seen()
            && offered < known
        {
            return Err(StateSourceError::Invalid(format!(
                "the server's list is of epoch {} and revision {}, and this machine has seen epoch {} and revision {}",
                begin.epoch, begin.revision, known.epoch, known.revision
            )));
        }
        self.transaction = Transaction::List(begin, MirrorEntries::new(), 0);
        Ok(())
    }

    fn put(&mut self, item: KeyValue) -> Result<(), StateSourceError> {
        let more = item.key.len() + item.value.len();
        match &mut self.transaction {
            Transaction::Changes(events, bytes) => {
                grow(bytes, more)?;
                events.push(WatchEvent::Put(item));
            }
            Transaction::List(_, entries, bytes) => {
                grow(bytes, more)?;
                entries.insert(Arc::from(item.key.as_str()), Arc::new(item));
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: String) -> Result<(), StateSourceError> {
        let Transaction::Changes(events, bytes) = &mut self.transaction else {
            return Err(StateSourceError::Invalid("a list deletes a key".to_owned()));
        };
        grow(bytes, key.len())?;
        events.push(WatchEvent::Delete {
            key,
            mod_revision: 0,
        });
        Ok(())
    }

    fn commit(&mut self, revision: i64) -> Result<(), StateSourceError> {
        let empty = Transaction::Changes(Vec::new(), 0);
        match std::mem::replace(&mut self.transaction, empty) {
            Transaction::List(begin, entries, _) => {
                if begin.keys != entries.len() || begin.revision != revision {
                    return Err(StateSourceError::Invalid(format!(
                        "the list has {} of {} keys",
                        entries.len(),
                        begin.keys
                    )));
                }
                let record = entries.get(keys::STORE_EPOCH);
                let record = record.and_then(|item| epoch_record(item));
                self.check_epoch(begin.epoch, record.as_ref())?;
                self.list_schema = begin.schema;
                self.state.entries = entries;
                self.state.revision = revision;
                self.position = Some(StatePosition {
                    epoch: begin.epoch,
                    revision,
                });
                self.known.proofs.accepted(begin.epoch, record.as_ref());
            }
            Transaction::Changes(events, _) => {
                let last = events.iter().rev().find_map(|event| match event {
                    WatchEvent::Put(item) if item.key == keys::STORE_EPOCH => Some(item),
                    _ => None,
                });
                let record = last.and_then(epoch_record);
                let epoch = self.position.map_or(0, |position| position.epoch);
                self.check_epoch(epoch, record.as_ref())?;
                self.advance(revision, !events.is_empty())?;
                self.state.apply(WatchBatch { revision, events });
                if record.is_some() {
                    self.known.proofs.accepted(epoch, record.as_ref());
                }
            }
        }
        self.changed = true;
        Ok(())
    }

    fn beat(&mut self, beat: StateBeat) -> Result<(), StateSourceError> {
        let (revision, age) = (beat.revision, Duration::from_millis(beat.quorum_age_ms));
        if !matches!(&self.transaction, Transaction::Changes(events, _) if events.is_empty()) {
            return Err(StateSourceError::Invalid(
                "a beat comes before the commit of what was sent".to_owned(),
            ));
        }
        self.advance(revision, false)?;
        // No reader waits for a revision without changes, so none is woken for it.
        self.state.revision = revision;
        let now = Instant::now();
        // The request was sent before the stream was opened there, so this is not later than the
        // beat.
        let sent_at = self.requested_at + Duration::from_millis(beat.open_for_ms);
        let read_at = sent_at.min(now).checked_sub(age);
        let until = read_at.map(|at| (at + SURE_FOR + SILENCE).min(now + SILENCE));
        let too_late = || StateSourceError::Broken("its beats arrive too late".to_owned());
        let until = until.filter(|until| *until > now).ok_or_else(too_late)?;
        self.known.proofs.confirmed();
        self.state.synced_at = read_at.max(self.state.synced_at);
        self.confirmed_until = until;
        self.changed |= !std::mem::replace(&mut self.state.confirmed, true);
        match self.opened_late && until < now + LEAST_SURE {
            true => Err(too_late()),
            false => Ok(()),
        }
    }

    /// Moves the position forward.
    fn advance(&mut self, revision: i64, changes: bool) -> Result<(), StateSourceError> {
        let Some(known) = &mut self.position else {
            return Err(StateSourceError::Invalid(
                "changes came before the first list".to_owned(),
            ));
        };
        if revision < known.revision || (changes && revision == known.revision) {
            return Err(StateSourceError::Invalid(format!(
                "revision {revision} comes after {}",
                known.revision
            )));
        }
        known.revision = revision;
        Ok(())
    }

    fn show(&self) {
        self.sender.send(Arc::new(self.state.clone()));
        if self.state.confirmed {
            self.confirmed.send_if_modified(|shown| {
                let differs = *shown != self.position;
                *shown = self.position;
                differs
            });
        }
    }
}

fn epoch_record(item: &KeyValue) -> Option<StoreEpoch> {
    serde_json::from_slice(&item.value).ok()
}

fn grow(bytes: &mut usize, more: usize) -> Result<(), StateSourceError> {
    *bytes += more;
    if *bytes > MOST_LIST {
        return Err(StateSourceError::Invalid(format!(
            "the server sends more than {MOST_LIST} bytes at once"
        )));
    }
    Ok(())
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A random number from 0 to 1, for pauses alone.
fn chance() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(random >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}
