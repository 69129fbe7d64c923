//! The faults of the store in memory. `tests/store_conformance` checks the store itself.

use futures_util::{FutureExt, StreamExt};
use tokio::time::timeout;

use super::*;

fn put(key: &str) -> WriteOperation {
    WriteOperation::Put(key.into(), b"x".to_vec())
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_a_write_that_took_effect() {
    let store = MemoryStore::new();
    let one = store.client();
    one.lose_answers(1);
    let unknown = one.transact(&[], &[put("/a")]).await;
    assert!(
        matches!(unknown, Err(StoreError::Unavailable(_))),
        "{unknown:?}"
    );
    assert_eq!(store.peek("/").items.len(), 1);
    one.refuse_calls(1);
    let refused = one.transact(&[], &[put("/b")]).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    assert_eq!(store.peek("/").items.len(), 1);
    one.transact(&[], &[put("/b")]).await.expect("only once");
}

#[tokio::test(start_paused = true)]
async fn a_partition_concerns_one_client_and_takes_time() {
    let store = MemoryStore::new();
    let (one, two) = (store.client(), store.client());
    let mut changes = one.watch("/", 2).await.expect("watched");
    one.set_partitioned(true);
    let started = Instant::now();
    assert!(one.transact(&[], &[put("/a")]).await.is_err());
    assert_eq!(started.elapsed(), CALL_TIMEOUT);
    assert!(store.peek("/").items.is_empty());
    two.transact(&[], &[put("/b")])
        .await
        .expect("not concerned");
    let started = Instant::now();
    let silent = changes.next().await.expect("an item");
    assert!(
        matches!(silent, Err(StoreError::Unavailable(_))),
        "{silent:?}"
    );
    assert_eq!(started.elapsed(), WATCH_TIMEOUT);
    assert!(changes.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_lives_through_a_short_partition() {
    let store = MemoryStore::new();
    let one = store.client();
    let mut changes = one.watch("/", 2).await.expect("watched");
    one.set_partitioned(true);
    store.transact(&[], &[put("/a")]).await.expect("written");
    assert!(
        timeout(Duration::from_secs(1), changes.next())
            .await
            .is_err()
    );
    one.set_partitioned(false);
    let batch = changes
        .next()
        .now_or_never()
        .expect("at once")
        .expect("an item");
    assert_eq!(batch.expect("a batch").revision, 2);
}

#[tokio::test(start_paused = true)]
async fn delays_watches_dropped_and_a_store_that_is_down() {
    let store = MemoryStore::new();
    let one = store.client();
    one.set_delay(Duration::from_millis(300));
    let started = Instant::now();
    one.transact(&[], &[put("/a")]).await.expect("written");
    assert_eq!(started.elapsed(), Duration::from_millis(300));
    let (mut changes, mut others) = (
        one.watch("/", 9).await.expect("watched"),
        store.watch("/", 9).await.expect("watched"),
    );
    one.drop_watches();
    assert!(changes.next().await.expect("an item").is_err());
    assert!(others.next().now_or_never().is_none(), "others go on");
    store.set_available(false);
    assert!(others.next().await.expect("an item").is_err());
    assert!(matches!(
        store.get("/a").await,
        Err(StoreError::Unavailable(_))
    ));
    store.set_available(true);
    assert!(store.get("/a").await.expect("answered").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_restricted_client_reads_its_prefixes() {
    let store = MemoryStore::new();
    let node = store.client();
    node.restrict(&["/kat/nodes/desired/a/"]);
    assert!(node.list("/kat/nodes/desired/a/").await.is_ok());
    assert!(matches!(
        node.list("/kat/").await,
        Err(StoreError::Denied(_))
    ));
    assert!(matches!(
        node.get("/kat/tokens/x").await,
        Err(StoreError::Denied(_))
    ));
    assert!(matches!(
        node.watch("/kat/", 1).await,
        Err(StoreError::Denied(_))
    ));
    let write = node.transact(&[], &[put("/kat/nodes/desired/a/x")]).await;
    assert!(matches!(write, Err(StoreError::Denied(_))), "{write:?}");
}

#[tokio::test(start_paused = true)]
async fn leases_wait_while_the_store_is_down_and_end_with_their_keys() {
    let store = MemoryStore::new();
    let ttl = Duration::from_secs(10);
    let lease = store.grant(ttl).await.expect("granted");
    store
        .create_leased("/l", "x", lease.id)
        .await
        .expect("created");
    sleep(Duration::from_secs(9)).await;
    store.set_available(false);
    sleep(Duration::from_secs(100)).await;
    store.set_available(true);
    sleep(Duration::from_secs(9)).await;
    assert_eq!(
        store.peek("/l").items.len(),
        1,
        "it has its full time again"
    );
    sleep(Duration::from_secs(2)).await;
    assert!(store.peek("/l").items.is_empty());
    assert!(!store.renew(lease.id).await.expect("answered"));
    let late = store.create_leased("/l", "x", lease.id).await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
}
