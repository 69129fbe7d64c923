//! The feed and the copy that follows it, in virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use kat_store::{
    ChangeLog, EpochProofs, KnownState, Leadership, Listing, LocalStateSource, Mirror, MirrorState,
    QuorumRead, StateFeed, StateFrames, StateSource, StateSourceError, StateStore, StoreError,
    TransactionResult, WatchStream, follow_source, follow_source_from,
};
use kat_testing::{
    MemoryStore,
    state_stream::{ServingStore, conforms, wait_for},
};
use kat_types::{
    api::StoreEpoch,
    encoding::state_frames::{
        STATE_SCHEMA, StateBeat, StateBegin, StateEnd, StateEndReason, StateFrame,
        StateFrameDecoder, StatePosition,
    },
    store::{
        keys,
        transaction::{Compare, KeyValue, WriteOperation},
    },
};

fn local(serving: &ServingStore) -> Arc<dyn StateSource> {
    Arc::new(LocalStateSource::new(serving.feed.clone(), "n1"))
}

/// The local source, with each frame encoded and decoded in between.
struct EncodedSource(LocalStateSource);

#[async_trait]
impl StateSource for EncodedSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let frames = self.0.open(resume).await?;
        let mut decoder = StateFrameDecoder::default();
        Ok(Box::pin(frames.flat_map(move |frame| {
            let wire = frame.expect("a local frame").encode().expect("encoded");
            decoder.push(&wire);
            let mut decoded = Vec::new();
            while let Some(frame) = decoder.take().expect("decoded") {
                decoded.push(Ok(frame));
            }
            stream::iter(decoded)
        })))
    }
}

#[tokio::test(start_paused = true)]
async fn the_local_source_conforms() {
    conforms(&local).await;
}

#[tokio::test(start_paused = true)]
async fn the_encoded_source_conforms() {
    let encoded = |serving: &ServingStore| -> Arc<dyn StateSource> {
        Arc::new(EncodedSource(LocalStateSource::new(
            serving.feed.clone(),
            "n1",
        )))
    };
    conforms(&encoded).await;
}

async fn serving() -> ServingStore {
    let store = MemoryStore::new();
    let operations = [
        WriteOperation::Put(keys::SCHEMA_VERSION.to_owned(), b"1".to_vec()),
        WriteOperation::Put(keys::desired_meta("n1"), b"{}".to_vec()),
    ];
    store.transact(&[], &operations).await.expect("written");
    ServingStore::start(&store)
}

async fn next(frames: &mut StateFrames) -> Option<StateFrame> {
    let next = timeout(Duration::from_secs(60), frames.next()).await;
    next.expect("a frame in time")
        .map(|frame| frame.expect("a frame"))
}

#[tokio::test(start_paused = true)]
async fn a_stream_begins_with_the_whole_list_and_continues_without_one() {
    let serving = serving().await;
    let mut frames = serving.feed.open("n1", None).expect("open");
    let Some(StateFrame::Begin(begin)) = next(&mut frames).await else {
        panic!("no list");
    };
    assert_eq!(begin.keys, 1);
    assert!(matches!(next(&mut frames).await, Some(StateFrame::Put(_))));
    assert_eq!(
        next(&mut frames).await,
        Some(StateFrame::Commit(begin.revision))
    );
    assert!(matches!(next(&mut frames).await, Some(StateFrame::Beat(_))));
    drop(frames);
    let put = WriteOperation::Put(keys::desired_instance("n1", "a"), b"{}".to_vec());
    serving.store.transact(&[], &[put]).await.expect("written");
    let position = StatePosition {
        epoch: begin.epoch,
        revision: begin.revision,
    };
    let mut frames = serving.feed.open("n1", Some(position)).expect("open");
    // Beats come first while the server's copy does not show the write yet.
    let mut first = next(&mut frames).await;
    while matches!(first, Some(StateFrame::Beat(_))) {
        first = next(&mut frames).await;
    }
    assert!(matches!(first, Some(StateFrame::Put(_))), "{first:?}");
    assert_eq!(
        next(&mut frames).await,
        Some(StateFrame::Commit(begin.revision + 1))
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_behind_its_reader_says_so_after_two_seconds() {
    let serving = serving().await;
    let begun = Instant::now();
    for (epoch, revision) in [(0, 1_000_000), (9, 1)] {
        let ahead = StatePosition { epoch, revision };
        let mut frames = serving.feed.open("n1", Some(ahead)).expect("open");
        let Some(StateFrame::End(end)) = next(&mut frames).await else {
            panic!("no end");
        };
        assert_eq!(end.reason, StateEndReason::Behind);
        assert!(next(&mut frames).await.is_none());
    }
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_watch_hangs_lists_again_and_serves_on() {
    let serving = serving().await;
    let cancel = CancellationToken::new();
    let mirror = follow_source(local(&serving), cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    for instance in ["a", "b", "c"] {
        serving.server.hang_watches();
        let key = keys::desired_instance("n1", instance);
        let put = WriteOperation::Put(key.clone(), b"{}".to_vec());
        serving.store.transact(&[], &[put]).await.expect("written");
        let written = Instant::now();
        let shows = |state: &MirrorState| state.confirmed && state.get(&key).is_some();
        wait_for(&mirror, shows).await;
        let waited = written.elapsed();
        assert!(waited < Duration::from_secs(12), "{waited:?}");
    }
    cancel.cancel();
}

/// A client of the store that something else than the feed uses too.
struct SharedClient {
    store: MemoryStore,
    /// How often the feed read from a quorum.
    lists: AtomicUsize,
    others: watch::Sender<Option<QuorumRead>>,
}

#[async_trait]
impl StateStore for SharedClient {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.store.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        if prefix == keys::SCHEMA_VERSION {
            self.lists.fetch_add(1, Ordering::Relaxed);
        }
        self.store.list(prefix).await
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<WatchStream, StoreError> {
        self.store.watch(prefix, from_revision).await
    }

    fn quorum_reads(&self) -> Option<watch::Receiver<Option<QuorumRead>>> {
        Some(self.others.subscribe())
    }

    async fn transact(
        &self,
        conditions: &[Compare],
        operations: &[WriteOperation],
    ) -> Result<TransactionResult, StoreError> {
        self.store.transact(conditions, operations).await
    }

    async fn campaign(&self, candidate: &str, lease: Duration) -> Result<Leadership, StoreError> {
        self.store.campaign(candidate, lease).await
    }

    async fn resign(&self, leadership: &Leadership) -> Result<(), StoreError> {
        self.store.resign(leadership).await
    }

    async fn leader(&self) -> Result<Option<String>, StoreError> {
        self.store.leader().await
    }
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_quorum_that_others_make_spare_the_feed_its_own_as_long_as_they_come() {
    let store = serving().await.store;
    let client = Arc::new(SharedClient {
        store: store.clone(),
        lists: AtomicUsize::default(),
        others: watch::Sender::default(),
    });
    let own: Arc<dyn StateStore> = Arc::<SharedClient>::clone(&client);
    let (log, cancel) = (ChangeLog::default(), CancellationToken::new());
    let mirror = Mirror::start_logged(Arc::clone(&own), keys::ROOT, log.clone(), cancel.clone());
    let feed = StateFeed::start(own, mirror, log, cancel.clone());
    let mut frames = feed.open("n1", None).expect("opened");
    // Counts the beats of so many seconds, and the feed's own reads meanwhile.
    let mut watched = async |seconds: u64| {
        let before = client.lists.load(Ordering::Relaxed);
        let until = Instant::now() + Duration::from_secs(seconds);
        let mut beats = 0;
        while Instant::now() < until {
            match next(&mut frames).await.expect("the stream goes on") {
                StateFrame::Beat(beat) => {
                    assert!(beat.quorum_age_ms < 1_500, "{beat:?}");
                    beats += 1;
                }
                StateFrame::End(end) => panic!("{end:?}"),
                _ => {}
            }
        }
        (beats, client.lists.load(Ordering::Relaxed) - before)
    };
    let alone = watched(20).await;
    assert!(alone.0 >= 18 && alone.1 >= 17, "{alone:?}");
    let (reader, others) = (store.clone(), client.others.clone());
    let reading = tokio::spawn(async move {
        loop {
            let sent = Instant::now();
            let revision = reader.list(keys::ELECTION).await.expect("listed").revision;
            others.send_replace(Some(QuorumRead { sent, revision }));
            sleep(Duration::from_secs(1)).await;
        }
    });
    let together = watched(20).await;
    assert!(together.0 >= 18 && together.1 <= 3, "{together:?}");
    reading.abort();
    let alone = watched(20).await;
    assert!(alone.0 >= 18 && alone.1 >= 16, "{alone:?}");
    cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_newer_stream_of_a_machine_ends_the_older() {
    let serving = serving().await;
    let mut older = serving.feed.open("n1", None).expect("open");
    while !matches!(next(&mut older).await, Some(StateFrame::Beat(_))) {}
    let mut other = serving.feed.open("n2", None).expect("open");
    let mut newer = serving.feed.open("n1", None).expect("open");
    let end = loop {
        match next(&mut older).await {
            Some(StateFrame::End(end)) => break end,
            Some(_) => {}
            None => panic!("no end"),
        }
    };
    assert_eq!(end.reason, StateEndReason::Replaced);
    for frames in [&mut other, &mut newer] {
        while !matches!(next(frames).await, Some(StateFrame::Beat(_))) {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_opens_streams_too_often_is_refused_for_a_while() {
    let serving = serving().await;
    for _ in 0..10 {
        drop(serving.feed.open("n1", None).expect("open"));
    }
    let Err(refused) = serving.feed.open("n1", None) else {
        panic!("an eleventh stream");
    };
    drop(serving.feed.open("n2", None).expect("another machine"));
    sleep(refused.retry_after).await;
    drop(serving.feed.open("n1", None).expect("open again"));
}

/// A list for each change of the record would make all machines read theirs at once.
#[tokio::test(start_paused = true)]
async fn another_epoch_begins_a_list_and_a_changed_record_of_the_same_one_does_not() {
    let serving = serving().await;
    let mut frames = serving.feed.open("n1", None).expect("open");
    while !matches!(next(&mut frames).await, Some(StateFrame::Commit(_))) {}
    let write = async |epoch: u64, signature: &str| {
        let stated =
            format!(r#"{{"schema":1,"epoch":{epoch},"proof":"","signature":"{signature}"}}"#);
        let record = WriteOperation::Put(keys::STORE_EPOCH.to_owned(), stated.into_bytes());
        serving
            .store
            .transact(&[], &[record])
            .await
            .expect("written");
    };
    let mut answer = async || loop {
        match next(&mut frames).await.expect("the stream goes on") {
            StateFrame::Beat(_) => {}
            frame => return frame,
        }
    };
    write(0, "first").await;
    assert!(matches!(answer().await, StateFrame::Put(item) if item.key == keys::STORE_EPOCH));
    assert!(matches!(answer().await, StateFrame::Commit(_)));
    write(7, "second").await;
    assert!(matches!(answer().await, StateFrame::Begin(begin) if begin.epoch == 7));
    while !matches!(answer().await, StateFrame::Commit(_)) {}
    write(7, "third").await;
    assert!(matches!(answer().await, StateFrame::Put(item) if item.key == keys::STORE_EPOCH));
    serving.cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn at_most_eight_lists_are_sent_at_once() {
    let serving = serving().await;
    let mut lists = Vec::new();
    for number in 0..8 {
        let mut frames = serving
            .feed
            .open(&format!("n{number}"), None)
            .expect("open");
        assert!(matches!(
            next(&mut frames).await,
            Some(StateFrame::Begin(_))
        ));
        lists.push(frames);
    }
    let mut ninth = serving.feed.open("n9", None).expect("open");
    let Some(StateFrame::End(end)) = next(&mut ninth).await else {
        panic!("a ninth list");
    };
    assert_eq!(end.reason, StateEndReason::Busy);
    drop(lists);
    let mut tenth = serving.feed.open("n10", None).expect("open");
    assert!(matches!(next(&mut tenth).await, Some(StateFrame::Begin(_))));
}

/// The log keeps 64 MiB: an open stream that is not read for longer than that has lost its place.
#[tokio::test(start_paused = true)]
async fn an_open_stream_whose_reader_fell_out_of_the_log_begins_anew() {
    let serving = serving().await;
    let mut frames = serving.feed.open("n1", None).expect("open");
    while !matches!(next(&mut frames).await, Some(StateFrame::Beat(_))) {}
    let [gone, kept] = ["gone", "kept"].map(|name| keys::desired_instance("n1", name));
    let put = |key: &String, byte: u8| WriteOperation::Put(key.clone(), vec![byte; 1 << 20]);
    serving.store.write_now(&[put(&gone, 0)]);
    for byte in 0..70 {
        serving.store.write_now(&[put(&kept, byte)]);
    }
    serving
        .store
        .write_now(&[WriteOperation::Delete(gone.clone())]);
    let reader = follow_source(local(&serving), serving.cancel.clone());
    let last = wait_for(&reader, |state| {
        let value = state.get(&kept).map(|item| item.value.first().copied());
        value == Some(Some(69)) && state.get(&gone).is_none()
    });
    let last = last.await.revision;

    let mut first = next(&mut frames).await;
    while matches!(first, Some(StateFrame::Beat(_))) {
        first = next(&mut frames).await;
    }
    let Some(StateFrame::Begin(begin)) = first else {
        panic!("the stream goes on with a hole: {first:?}");
    };
    assert!(begin.revision >= last);
    let mut listed = Vec::new();
    while let Some(StateFrame::Put(item)) = next(&mut frames).await {
        listed.push((item.key, item.value.first().copied()));
    }
    let expected = [
        (kept.clone(), Some(69)),
        (keys::desired_meta("n1"), Some(b'{')),
    ];
    assert_eq!(listed, expected);
    // It follows again.
    serving.store.write_now(&[put(&gone, 1)]);
    let mut frame = next(&mut frames).await;
    while matches!(frame, Some(StateFrame::Beat(_))) {
        frame = next(&mut frames).await;
    }
    assert!(
        matches!(&frame, Some(StateFrame::Put(item)) if item.key == gone),
        "{frame:?}"
    );
    serving.cancel.cancel();
}

/// One server, and then another.
struct TwoServers {
    first: Mutex<Option<LocalStateSource>>,
    then: LocalStateSource,
}

#[async_trait]
impl StateSource for TwoServers {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let first = self.first.lock().take();
        match first {
            Some(first) => first.open(resume).await,
            None => self.then.open(resume).await,
        }
    }
}

/// The reader knows an instance that was written and deleted while its next server was cut off from
/// the store: the difference between that server's copies of before and after does not have it.
#[tokio::test(start_paused = true)]
async fn what_a_server_missed_is_not_kept_by_a_reader_of_another_server() {
    let cut = serving().await;
    let other = ServingStore::start(&cut.store);
    let source = TwoServers {
        first: Mutex::new(Some(LocalStateSource::new(other.feed.clone(), "n1"))),
        then: LocalStateSource::new(cut.feed.clone(), "n1"),
    };
    let mirror = follow_source(Arc::new(source), CancellationToken::new());
    wait_for(&mirror, |state| state.confirmed).await;
    cut.server.set_partitioned(true);
    sleep(Duration::from_secs(20)).await;
    let instance = keys::desired_instance("n1", "a");
    let put = WriteOperation::Put(instance.clone(), b"{}".to_vec());
    cut.store.transact(&[], &[put]).await.expect("written");
    wait_for(&mirror, |state| state.get(&instance).is_some()).await;
    other.cancel.cancel();
    let delete = WriteOperation::Delete(instance.clone());
    cut.store.transact(&[], &[delete]).await.expect("deleted");
    cut.server.set_partitioned(false);
    wait_for(&mirror, |state| state.get(&instance).is_none()).await;
    cut.cancel.cancel();
}

/// A source that sends what a test says, once for each opening.
struct ScriptedSource(Mutex<Vec<Vec<StateFrame>>>);

#[async_trait]
impl StateSource for ScriptedSource {
    async fn open(&self, _: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let mut scripts = self.0.lock();
        if scripts.is_empty() {
            return Err(StateSourceError::Unreachable("nobody is there".to_owned()));
        }
        let frames = scripts.remove(0).into_iter().map(Ok);
        Ok(Box::pin(stream::iter(frames).chain(stream::pending())))
    }
}

fn item(key: &str, value: &str) -> StateFrame {
    StateFrame::Put(KeyValue {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
        mod_revision: 1,
        create_revision: 1,
    })
}

fn begin(epoch: u64, revision: i64, keys: usize) -> StateFrame {
    StateFrame::Begin(StateBegin {
        epoch,
        revision,
        schema: STATE_SCHEMA,
        keys,
    })
}

fn beat(revision: i64) -> StateFrame {
    StateFrame::Beat(StateBeat {
        revision,
        quorum_age_ms: 0,
        open_for_ms: u64::MAX / 2000,
    })
}

/// Follows the scripts to their end and returns what the copy shows then: revision, keys, and
/// whether it was confirmed at the end of the last script.
async fn shown(scripts: Vec<Vec<StateFrame>>) -> (i64, Vec<String>) {
    let cancel = CancellationToken::new();
    let source = Arc::new(ScriptedSource(Mutex::new(scripts)));
    let mirror = follow_source(Arc::clone(&source) as Arc<dyn StateSource>, cancel.clone());
    while !source.0.lock().is_empty() {
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(1)).await;
    let state = mirror.snapshot();
    cancel.cancel();
    let keys = state.entries.keys().map(ToString::to_string).collect();
    (state.revision, keys)
}

/// As [`ScriptedSource`], and keeps the positions after which it was asked.
struct AskedSource(ScriptedSource, Mutex<Vec<Option<StatePosition>>>);

#[async_trait]
impl StateSource for AskedSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let frames = self.0.open(resume).await?;
        self.1.lock().push(resume);
        Ok(frames)
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_of_an_earlier_version_is_followed_by_a_whole_one() {
    let cancel = CancellationToken::new();
    let list = |schema, revision| {
        let begin = StateFrame::Begin(StateBegin {
            epoch: 0,
            revision,
            schema,
            keys: 0,
        });
        vec![begin, StateFrame::Commit(revision)]
    };
    let scripts = vec![list(STATE_SCHEMA - 1, 5), list(STATE_SCHEMA, 6), Vec::new()];
    let source = ScriptedSource(Mutex::new(scripts));
    let source = Arc::new(AskedSource(source, Mutex::default()));
    let mirror = follow_source(Arc::clone(&source) as Arc<dyn StateSource>, cancel.clone());
    while source.1.lock().len() < 3 {
        sleep(Duration::from_secs(1)).await;
    }
    cancel.cancel();
    assert_eq!(mirror.snapshot().revision, 6);
    let present = StatePosition {
        epoch: 0,
        revision: 6,
    };
    assert_eq!(*source.1.lock(), [None, None, Some(present)]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_not_whole_replaces_nothing() {
    let good = vec![
        begin(0, 5, 2),
        item("/a", "1"),
        item("/b", "1"),
        StateFrame::Commit(5),
    ];
    let known = (5, vec!["/a".to_owned(), "/b".to_owned()]);
    for bad in [
        // Fewer keys than announced, and more.
        vec![begin(0, 9, 2), item("/c", "1"), StateFrame::Commit(9)],
        vec![
            begin(0, 9, 1),
            item("/c", "1"),
            item("/d", "1"),
            StateFrame::Commit(9),
        ],
        // Another revision than announced.
        vec![begin(0, 9, 1), item("/c", "1"), StateFrame::Commit(8)],
        // No commit.
        vec![begin(0, 9, 1), item("/c", "1")],
        // A list that deletes.
        vec![
            begin(0, 9, 0),
            StateFrame::Delete("/a".to_owned()),
            StateFrame::Commit(9),
        ],
        // An older revision, and an older epoch.
        vec![begin(0, 4, 0), StateFrame::Commit(4)],
        vec![StateFrame::Commit(3)],
        vec![item("/c", "1"), StateFrame::Commit(5)],
        vec![beat(4)],
        // Changes without their commit.
        vec![item("/c", "1"), beat(6)],
    ] {
        let scripts = vec![good.clone(), bad.clone()];
        let (revision, keys) = shown(scripts).await;
        assert_eq!((revision, keys), known, "{bad:?}");
    }
    let older = vec![begin(2, 5, 0), StateFrame::Commit(5)];
    let (revision, keys) = shown(vec![
        older,
        vec![begin(1, 9, 1), item("/c", "1"), StateFrame::Commit(9)],
    ])
    .await;
    assert_eq!((revision, keys.len()), (5, 0), "an older epoch is refused");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_confirmed_before_the_first_list() {
    let scripts = vec![vec![beat(7)], vec![item("/a", "1"), StateFrame::Commit(7)]];
    assert_eq!(shown(scripts).await, (0, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_silent_source_is_left_after_four_seconds() {
    let first = vec![begin(0, 5, 0), StateFrame::Commit(5), beat(5)];
    let second = vec![
        begin(0, 6, 1),
        item("/a", "1"),
        StateFrame::Commit(6),
        beat(6),
    ];
    let cancel = CancellationToken::new();
    let source = Arc::new(ScriptedSource(Mutex::new(vec![first, second])));
    let mirror = follow_source(source, cancel.clone());
    wait_for(&mirror, |state| state.confirmed && state.revision == 5).await;
    let begun = Instant::now();
    wait_for(&mirror, |state| state.confirmed && state.revision == 6).await;
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_secs(4) && waited < Duration::from_secs(5),
        "{waited:?}"
    );
    // The second is silent too, and there is no other.
    wait_for(&mirror, |state| !state.confirmed).await;
    assert!(begun.elapsed() < Duration::from_secs(9));
    cancel.cancel();
}

/// A beat of `age` milliseconds, sent so many milliseconds after the opening.
fn beat_of(revision: i64, quorum_age_ms: u64, open_for_ms: u64) -> StateFrame {
    StateFrame::Beat(StateBeat {
        revision,
        quorum_age_ms,
        open_for_ms,
    })
}

#[tokio::test(start_paused = true)]
async fn a_list_alone_confirms_nothing_and_a_late_beat_neither() {
    let list = || [begin(0, 5, 0), StateFrame::Commit(5)];
    let follow = |frames: Vec<StateFrame>| {
        let cancel = CancellationToken::new();
        let source = Arc::new(ScriptedSource(Mutex::new(vec![frames])));
        (follow_source(source, cancel.clone()), cancel)
    };
    let (mirror, cancel) = follow(list().to_vec());
    wait_for(&mirror, |state| state.revision == 5).await;
    sleep(Duration::from_secs(3)).await;
    assert!(!mirror.snapshot().confirmed);
    cancel.cancel();
    // The server read from a quorum 1.5 s before the beat: confirmed for 4 s all the same.
    let fresh = list().into_iter().chain([beat_of(5, 1500, 0)]).collect();
    let (mirror, cancel) = follow(fresh);
    wait_for(&mirror, |state| state.confirmed).await;
    let begun = Instant::now();
    wait_for(&mirror, |state| !state.confirmed).await;
    let confirmed_for = begun.elapsed();
    assert!(confirmed_for <= Duration::from_secs(4), "{confirmed_for:?}");
    assert!(confirmed_for > Duration::from_secs(3), "{confirmed_for:?}");
    cancel.cancel();
    // As if the beat had been on its way for the whole time since its reading.
    let late = list().into_iter().chain([beat_of(5, 6001, 0)]).collect();
    let (mirror, cancel) = follow(late);
    wait_for(&mirror, |state| state.revision == 5).await;
    sleep(Duration::from_secs(3)).await;
    assert!(!mirror.snapshot().confirmed);
    cancel.cancel();
}

/// Opens its first stream late, as a server that hung, and then beats each second.
struct LateSource(AtomicUsize);

#[async_trait]
impl StateSource for LateSource {
    async fn open(&self, _: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(5_500)).await;
        }
        let list = stream::iter([begin(0, 5, 0), StateFrame::Commit(5)]);
        let beats = stream::unfold(0, |seconds| async move {
            sleep(Duration::from_secs(u64::from(seconds > 0))).await;
            Some((beat_of(5, 100, seconds * 1000), seconds + 1))
        });
        Ok(Box::pin(list.chain(beats).map(Ok)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_long_in_opening_is_replaced() {
    let cancel = CancellationToken::new();
    let source = Arc::new(LateSource(AtomicUsize::default()));
    let mirror = follow_source(Arc::clone(&source) as Arc<dyn StateSource>, cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    sleep(Duration::from_secs(2)).await;
    for _ in 0..1_000 {
        sleep(Duration::from_millis(50)).await;
        assert!(mirror.snapshot().confirmed);
    }
    assert_eq!(source.0.load(Ordering::Relaxed), 2);
    cancel.cancel();
}

/// Ends right after its frames, and panics when it is polled after that.
struct EndingSource;

#[async_trait]
impl StateSource for EndingSource {
    async fn open(&self, _: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let frames = [begin(0, 5, 0), StateFrame::Commit(5), beat(5)].into_iter();
        Ok(Box::pin(stream::unfold(frames, |mut frames| async move {
            frames.next().map(|frame| (Ok(frame), frames))
        })))
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_right_after_its_frames_is_opened_again() {
    let cancel = CancellationToken::new();
    let mirror = follow_source(Arc::new(EndingSource), cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_secs(1)).await;
        assert!(mirror.snapshot().revision == 5);
    }
    // The copy is still kept.
    wait_for(&mirror, |state| state.confirmed).await;
    cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_changes_all_the_time_silences_no_beat() {
    let serving = serving().await;
    let mut frames = serving.feed.open("n1", None).expect("open");
    while !matches!(next(&mut frames).await, Some(StateFrame::Beat(_))) {}
    let key = keys::desired_instance("n1", "a");
    let (mut commits, mut beats) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        let put = WriteOperation::Put(key.clone(), commits.to_string().into_bytes());
        serving.store.transact(&[], &[put]).await.expect("written");
        loop {
            match next(&mut frames).await {
                Some(StateFrame::Commit(_)) => break,
                Some(StateFrame::Beat(_)) => beats += 1,
                Some(StateFrame::Put(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        commits += 1;
        sleep(Duration::from_millis(10)).await;
    }
    assert!(
        commits > 500 && beats >= 8,
        "{commits} commits, {beats} beats"
    );
}

/// A list with a part of a long frame behind it, and then these frames, each six seconds after the
/// last. It opens once.
struct SlowSource(Mutex<Vec<StateFrame>>);

#[async_trait]
impl StateSource for SlowSource {
    async fn open(&self, _: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let later = std::mem::take(&mut *self.0.lock());
        if later.is_empty() {
            return Err(StateSourceError::Unreachable("it was left".to_owned()));
        }
        let list = [
            begin(0, 5, 0),
            StateFrame::Commit(5),
            beat(5),
            StateFrame::Part,
        ];
        let later = stream::iter(later).then(|frame| async {
            sleep(Duration::from_secs(6)).await;
            Ok(frame)
        });
        let frames = stream::iter(list.map(Ok)).chain(later);
        Ok(Box::pin(frames.chain(stream::pending())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_frame_that_makes_progress_keeps_its_stream() {
    let mut long = vec![StateFrame::Part; 7];
    long.extend([item("/long", "value"), StateFrame::Commit(6)]);
    let cancel = CancellationToken::new();
    let source = Arc::new(SlowSource(Mutex::new(long)));
    let mirror = follow_source(source, cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    let begun = Instant::now();
    wait_for(&mirror, |state| state.get("/long").is_some()).await;
    assert!(begun.elapsed() > Duration::from_secs(45));
    assert!(!mirror.snapshot().confirmed, "no beat came meanwhile");
    cancel.cancel();
}

/// Counts how often it is opened: the first stream stalls after a part of a long frame.
struct StallingSource(Mutex<usize>);

#[async_trait]
impl StateSource for StallingSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let mut opens = self.0.lock();
        *opens += 1;
        let frames = match (*opens, resume) {
            (1, None) => vec![
                begin(0, 5, 0),
                StateFrame::Commit(5),
                beat(5),
                StateFrame::Part,
            ],
            (2, Some(_)) => vec![item("/long", "value"), StateFrame::Commit(6), beat(6)],
            other => panic!("{other:?}"),
        };
        let frames = stream::iter(frames.into_iter().map(Ok));
        Ok(Box::pin(frames.chain(stream::pending())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_frame_that_stalls_is_given_up_after_ten_seconds() {
    let cancel = CancellationToken::new();
    let mirror = follow_source(Arc::new(StallingSource(Mutex::default())), cancel.clone());
    wait_for(&mirror, |state| state.confirmed).await;
    let begun = Instant::now();
    wait_for(&mirror, |state| state.confirmed && state.revision == 6).await;
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_secs(10) && waited < Duration::from_secs(12),
        "{waited:?}"
    );
    cancel.cancel();
}

/// Writes this many mebibytes for n1, in values of one mebibyte, and returns their number.
async fn grow(store: &MemoryStore, mebibytes: usize) -> usize {
    for number in 0..mebibytes {
        let key = keys::desired_instance("n1", &format!("i{number:03}"));
        let put = WriteOperation::Put(key, vec![b'x'; 1 << 20]);
        store.transact(&[], &[put]).await.expect("written");
    }
    mebibytes
}

#[tokio::test(start_paused = true)]
async fn a_list_of_nearly_64_mebibytes_arrives_whole_and_a_larger_one_is_refused_with_its_reason() {
    let serving = serving().await;
    let instances = grow(&serving.store, 63).await;
    let encoded = || EncodedSource(LocalStateSource::new(serving.feed.clone(), "n1"));
    let mirror = follow_source(Arc::new(encoded()), serving.cancel.clone());
    let state = wait_for(&mirror, |state| state.revision > 0).await;
    assert_eq!(state.entries.len(), instances + 1);
    let bytes: usize = state.entries.values().map(|item| item.value.len()).sum();
    assert!(bytes >= 63 << 20);
    // It grows beyond what a list may have: readers that follow go on, new ones are told why not.
    let put = |name: &str| {
        let key = keys::desired_instance("n1", name);
        WriteOperation::Put(key, vec![b'y'; 1 << 20])
    };
    serving.store.write_now(&[put("y")]);
    wait_for(&mirror, |state| {
        state.get(&keys::desired_instance("n1", "y")).is_some()
    })
    .await;
    let mut frames = serving.feed.open("n1", None).expect("open");
    let Some(StateFrame::End(end)) = next(&mut frames).await else {
        panic!("the list is sent");
    };
    assert_eq!(end.reason, StateEndReason::TooLarge);
    // The other machines are served.
    let mut frames = serving.feed.open("n2", None).expect("open");
    assert!(matches!(
        next(&mut frames).await,
        Some(StateFrame::Begin(_))
    ));
    serving.cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_not_confirmed_after_a_jump_of_the_clock() {
    let serving = serving().await;
    let mirror = follow_source(local(&serving), serving.cancel.clone());
    let before = wait_for(&mirror, |state| state.confirmed).await;
    // As on a machine that did not run this process for an hour.
    serving.server.set_partitioned(true);
    tokio::time::advance(Duration::from_secs(3600)).await;
    let begun = Instant::now();
    wait_for(&mirror, |state| !state.confirmed).await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    serving.server.set_partitioned(false);
    assert_eq!(mirror.snapshot().entries, before.entries);
    let put = WriteOperation::Put(keys::desired_instance("n1", "later"), b"{}".to_vec());
    serving.store.transact(&[], &[put]).await.expect("written");
    wait_for(&mirror, |state| {
        state.confirmed && state.entries.len() > before.entries.len()
    })
    .await;
    serving.cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_first_list_has_to_be_as_new_as_what_was_confirmed_before_the_restart() {
    let lowest = StatePosition {
        epoch: 3,
        revision: 50,
    };
    let list = |epoch, revision| {
        let frames = [
            begin(epoch, revision, 1),
            item("/a", "1"),
            StateFrame::Commit(revision),
            beat(revision),
        ];
        frames.to_vec()
    };
    for (epoch, revision, accepted) in [
        (3, 49, false),
        (2, 1000, false),
        (0, 0, false),
        (3, 50, true),
        (3, 51, true),
        // Restored from a backup.
        (4, 2, true),
    ] {
        let cancel = CancellationToken::new();
        let source = Arc::new(ScriptedSource(Mutex::new(vec![list(epoch, revision)])));
        let known = KnownState {
            lowest: Some(lowest),
            ..KnownState::default()
        };
        let followed = follow_source_from(source, known, cancel.clone());
        sleep(Duration::from_secs(2)).await;
        let shown = followed.mirror.snapshot().entries.len() == 1;
        assert_eq!(shown, accepted, "epoch {epoch}, revision {revision}");
        let confirmed = *followed.confirmed.borrow();
        let expected = accepted.then_some(StatePosition { epoch, revision });
        assert_eq!(confirmed, expected, "epoch {epoch}, revision {revision}");
        cancel.cancel();
    }
}

/// Accepts the epochs whose record has the proof `signed`, and notes what was accepted.
#[derive(Default)]
struct SignedEpochs(Mutex<Vec<(u64, Option<String>)>>);

impl EpochProofs for SignedEpochs {
    fn check(&self, own: u64, offered: u64, record: Option<&StoreEpoch>) -> Result<(), String> {
        assert!(offered > own);
        match record {
            Some(record) if record.epoch == offered && record.signature == "signed" => Ok(()),
            _ => Err(format!("epoch {offered} is not signed")),
        }
    }

    fn accepted(&self, epoch: u64, record: Option<&StoreEpoch>) {
        let signature = record.map(|record| record.signature.clone());
        self.0.lock().push((epoch, signature));
    }
}

fn record(epoch: u64, signature: &str) -> StateFrame {
    let stated = format!(r#"{{"schema":1,"epoch":{epoch},"signature":"{signature}"}}"#);
    item(keys::STORE_EPOCH, &stated)
}

#[tokio::test(start_paused = true)]
async fn a_later_epoch_without_a_proof_is_refused_and_nothing_of_it_shows() {
    let list = |epoch, frames: &[StateFrame], revision| {
        let mut list = vec![begin(epoch, revision, frames.len())];
        list.extend_from_slice(frames);
        list.extend([StateFrame::Commit(revision), beat(revision)]);
        list
    };
    let first = list(3, &[record(3, "old"), item("/a", "1")], 50);
    let changes = |revision, frame| vec![frame, StateFrame::Commit(revision), beat(revision)];
    for (script, accepted) in [
        (list(4, &[record(4, "")], 2), None),
        (list(4, &[item("/b", "1")], 2), None),
        // The record says less, or more, than the list.
        (list(4, &[record(3, "signed")], 2), None),
        (list(3, &[record(4, "")], 60), None),
        (list(9, &[record(4, "signed")], 2), None),
        (changes(60, record(4, "")), None),
        (list(4, &[record(4, "signed")], 2), Some((4, 2))),
        // The same epoch needs no proof.
        (list(3, &[record(3, "")], 60), Some((3, 60))),
        (changes(60, record(3, "")), Some((3, 60))),
    ] {
        let cancel = CancellationToken::new();
        let proofs = Arc::new(SignedEpochs::default());
        // A change continues the first stream.
        let scripts = match matches!(script[0], StateFrame::Begin(_)) {
            true => vec![[first.clone(), vec![end()]].concat(), script.clone()],
            false => vec![[first.clone(), script.clone()].concat()],
        };
        let source = Arc::new(ScriptedSource(Mutex::new(scripts)));
        let known = KnownState {
            lowest: None,
            proofs: Arc::clone(&proofs) as Arc<dyn EpochProofs>,
        };
        let followed = follow_source_from(source, known, cancel.clone());
        sleep(Duration::from_secs(2)).await;
        let (epoch, revision) = accepted.unwrap_or((3, 50));
        let shown = *followed.confirmed.borrow();
        assert_eq!(shown, Some(StatePosition { epoch, revision }), "{script:?}");
        let state = followed.mirror.snapshot();
        assert_eq!(state.revision, revision, "{script:?}");
        if accepted.is_none() {
            assert_eq!(state.get("/a").map(|item| &*item.value), Some(&b"1"[..]));
        }
        let noted = proofs.0.lock().clone();
        assert_eq!(noted[0], (3, Some("old".to_owned())));
        assert_eq!(
            noted.len(),
            if accepted.is_some() { 2 } else { 1 },
            "{script:?}"
        );
        assert_eq!(noted.last().map(|(epoch, _)| *epoch), Some(epoch));
        cancel.cancel();
    }
    // As after a restart.
    for (signature, accepted) in [("", false), ("signed", true)] {
        let cancel = CancellationToken::new();
        let scripts = vec![list(4, &[record(4, signature)], 2)];
        let known = KnownState {
            lowest: Some(StatePosition {
                epoch: 3,
                revision: 50,
            }),
            proofs: Arc::new(SignedEpochs::default()),
        };
        let source = Arc::new(ScriptedSource(Mutex::new(scripts)));
        let followed = follow_source_from(source, known, cancel.clone());
        sleep(Duration::from_secs(2)).await;
        assert_eq!(followed.confirmed.borrow().is_some(), accepted);
        cancel.cancel();
    }
}

fn end() -> StateFrame {
    StateFrame::End(StateEnd {
        reason: StateEndReason::Stopping,
        retry_after_ms: 0,
    })
}
