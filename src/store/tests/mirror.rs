//! The mirror in virtual time, with faults.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use kat_store::{Mirror, MirrorState, StateStore, mirror::MirrorError};
use kat_testing::MemoryStore;
use kat_types::store::transaction::WriteOperation;

const LIMIT: Duration = Duration::from_secs(60);

fn put(key: &str, value: &str) -> WriteOperation {
    WriteOperation::Put(key.into(), value.into())
}

async fn write(store: &MemoryStore, operations: &[WriteOperation]) -> i64 {
    store.transact(&[], operations).await.expect("written");
    store.revision()
}

fn start(store: &MemoryStore) -> (Mirror, CancellationToken) {
    let cancel = CancellationToken::new();
    let mirror = Mirror::start(Arc::new(store.clone()), "/t/", cancel.clone());
    (mirror, cancel)
}

fn keys(state: &MirrorState) -> Vec<&str> {
    state.entries.keys().map(AsRef::as_ref).collect()
}

#[tokio::test(start_paused = true)]
async fn shows_nothing_until_the_whole_list_is_there() {
    let store = MemoryStore::new();
    write(
        &store,
        &[put("/t/a", "1"), put("/t/b", "1"), put("/u", "1")],
    )
    .await;
    store.set_available(false);
    let (mirror, _cancel) = start(&store);
    let error = mirror
        .wait_confirmed(Duration::from_secs(30))
        .await
        .expect_err("down");
    let timed_out = MirrorError::TimedOut {
        prefix: "/t/".into(),
        wanted: 0,
        shown: 0,
    };
    assert_eq!(error, timed_out);
    let state = mirror.snapshot();
    assert!(!state.confirmed && state.synced_at.is_none() && state.entries.is_empty());
    store.set_available(true);
    let state = mirror.wait_confirmed(LIMIT).await.expect("confirmed");
    assert_eq!(keys(&state), ["/t/a", "/t/b"]);
}

#[tokio::test(start_paused = true)]
async fn keeps_what_it_knew_through_an_outage_and_drops_what_is_gone_after_it() {
    let store = MemoryStore::new();
    write(&store, &[put("/t/a", "1"), put("/t/b", "1")]).await;
    let node = store.client();
    let (mirror, _cancel) = start(&node);
    mirror.wait_confirmed(LIMIT).await.expect("confirmed");
    node.set_partitioned(true);
    let mut stale = mirror.clone();
    while stale.snapshot().confirmed {
        stale.changed().await.expect("running");
    }
    let revision = write(
        &store,
        &[WriteOperation::Delete("/t/a".into()), put("/t/c", "1")],
    )
    .await;
    store.compact(revision).expect("compacted");
    assert_eq!(keys(&mirror.snapshot()), ["/t/a", "/t/b"]);
    node.set_partitioned(false);
    let state = mirror
        .wait_for_revision(revision, LIMIT)
        .await
        .expect("caught up");
    assert_eq!(keys(&state), ["/t/b", "/t/c"]);
}

#[tokio::test(start_paused = true)]
async fn lists_again_when_its_history_is_compacted() {
    let store = MemoryStore::new();
    let node = store.client();
    let (mirror, _cancel) = start(&node);
    mirror.wait_confirmed(LIMIT).await.expect("confirmed");
    node.set_partitioned(true);
    let mut revision = 0;
    for n in 0..10 {
        revision = write(&store, &[put("/t/a", &n.to_string())]).await;
    }
    store.compact(revision).expect("compacted");
    // The partition ends before the watch fails. The watch continues, and only then learns that its
    // history is compacted.
    node.set_partitioned(false);
    let state = mirror
        .wait_for_revision(revision, LIMIT)
        .await
        .expect("caught up");
    assert_eq!(state.get("/t/a").expect("there").value, b"9");
}

#[tokio::test(start_paused = true)]
async fn a_held_snapshot_does_not_change_and_many_changes_wake_once() {
    let store = MemoryStore::new();
    let (mut mirror, cancel) = start(&store);
    let before = mirror.wait_confirmed(LIMIT).await.expect("confirmed");
    mirror.changed().await.expect("the first list");
    for n in 0..100 {
        // The loop does not await, so the mirror cannot run in between.
        store.write_now(&[put(&format!("/t/{n:03}"), "x")]);
    }
    let after = mirror.changed().await.expect("changes");
    assert_eq!((before.entries.len(), after.entries.len()), (0, 100));
    cancel.cancel();
    tokio::task::yield_now().await;
    assert_eq!(
        mirror.changed().await.expect_err("stopped"),
        MirrorError::Stopped("/t/".into())
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_that_stays_is_tried_again_with_a_growing_pause() {
    let store = MemoryStore::new();
    let node = store.client();
    node.restrict(&["/elsewhere/"]);
    let (mirror, _cancel) = start(&node);
    assert!(mirror.wait_confirmed(LIMIT).await.is_err());
    node.restrict(&["/t/"]);
    let started = Instant::now();
    mirror.wait_confirmed(LIMIT).await.expect("confirmed");
    assert!(
        started.elapsed() <= Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn follows_under_every_fault_and_never_shows_half_a_transaction() {
    let store = MemoryStore::new();
    let node = store.client();
    let (mirror, _cancel) = start(&node);
    let checker = tokio::spawn({
        let mut mirror = mirror.clone();
        async move {
            let mut seen = 0;
            while let Ok(state) = mirror.changed().await {
                let (a, z) = (state.get("/t/a"), state.get("/t/z"));
                assert_eq!(a.map(|item| &item.value), z.map(|item| &item.value));
                assert!(
                    state.revision >= seen,
                    "went back from {seen} to {}",
                    state.revision
                );
                seen = state.revision;
                if a.is_some_and(|item| item.value == b"end") {
                    return;
                }
            }
        }
    });
    for round in 0..60 {
        match round % 6 {
            0 => node.drop_watches(),
            1 => node.set_partitioned(true),
            2 => node.set_partitioned(false),
            3 => node.refuse_calls(3),
            4 => node.set_delay(Duration::from_millis(700)),
            _ => {
                node.set_delay(Duration::ZERO);
                let _ = store.compact(store.revision());
            }
        }
        let value = round.to_string();
        write(&store, &[put("/t/a", &value), put("/t/z", &value)]).await;
        sleep(Duration::from_millis(1500)).await;
    }
    let revision = write(&store, &[put("/t/a", "end"), put("/t/z", "end")]).await;
    let state = mirror
        .wait_for_revision(revision, LIMIT)
        .await
        .expect("caught up");
    assert_eq!(state.entries.len(), 2);
    checker.await.expect("consistent");
}
