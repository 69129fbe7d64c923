//! The election in virtual time, with faults.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use kat_store::{Leadership, StateStore, TransactionResult};
use kat_testing::MemoryStore;
use kat_types::store::{keys, transaction::WriteOperation};

const LEASE: Duration = Duration::from_secs(10);

async fn elected(store: &MemoryStore, name: &str) -> Leadership {
    timeout(Duration::from_secs(60), store.campaign(name, LEASE))
        .await
        .expect("within a minute")
        .expect("elected")
}

#[tokio::test(start_paused = true)]
async fn a_healthy_leader_stays() {
    let store = MemoryStore::new();
    let leadership = elected(&store, "a").await;
    sleep(100 * LEASE).await;
    assert!(!leadership.lost.is_cancelled());
    assert_eq!(
        store.leader().await.expect("answered").as_deref(),
        Some("a")
    );
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_leader_gives_up_before_its_lease_ends_and_the_next_one_follows() {
    let store = MemoryStore::new();
    let (one, two) = (store.client(), store.client());
    let first = elected(&one, "a").await;
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { (elected(&two, "b").await, Instant::now()) }
    });
    sleep(5 * LEASE).await;
    one.set_partitioned(true);
    let cut = Instant::now();
    first.lost.cancelled().await;
    let lost = Instant::now();
    assert!(lost - cut < LEASE, "{:?}", lost - cut);
    assert!(lost - cut > LEASE / 2, "gave up after {:?}", lost - cut);
    assert!(!waiting.is_finished(), "two leaders");
    let (second, at) = waiting.await.expect("elected");
    assert!(at > lost, "elected before the first one gave up");
    assert!(at - cut <= LEASE + Duration::from_secs(1), "{:?}", at - cut);
    one.set_partitioned(false);
    let late = one
        .transact(&[first.fence()], &[WriteOperation::Delete("/x".into())])
        .await;
    assert_eq!(late.expect("answered"), TransactionResult::No);
    assert!(!second.lost.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_costs_nothing() {
    let store = MemoryStore::new();
    let one = store.client();
    let leadership = elected(&one, "a").await;
    for _ in 0..20 {
        one.set_partitioned(true);
        sleep(LEASE / 4).await;
        one.set_partitioned(false);
        sleep(LEASE / 2).await;
    }
    store.set_available(false);
    sleep(LEASE / 4).await;
    store.set_available(true);
    sleep(LEASE * 3).await;
    assert!(!leadership.lost.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_the_store_ended_is_noticed_at_the_next_renewal() {
    let store = MemoryStore::new();
    let leadership = elected(&store.client(), "a").await;
    let started = Instant::now();
    store.expire_leases();
    leadership.lost.cancelled().await;
    assert!(
        started.elapsed() <= LEASE / 3 + Duration::from_millis(10),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn lost_answers_and_outages_do_not_stop_a_candidate() {
    for lost in 0..4 {
        for refused in 0..4 {
            let store = MemoryStore::new();
            let one = store.client();
            one.lose_answers(lost);
            one.refuse_calls(refused);
            let leadership = elected(&one, "a").await;
            // A lease or key from a lost answer expires, and one key remains.
            sleep(2 * LEASE).await;
            let left = store.peek(keys::ELECTION).items;
            assert_eq!(left.len(), 1, "{lost} lost, {refused} refused: {left:?}");
            assert_eq!(left[0].create_revision, leadership.create_revision);
            assert!(!leadership.lost.is_cancelled());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn candidates_are_elected_in_their_order_and_never_together() {
    let store = MemoryStore::new();
    let leading = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..5_u64 {
        let (client, leading) = (store.client(), leading.clone());
        tasks.push(tokio::spawn(async move {
            sleep(Duration::from_millis(n * 10)).await;
            let leadership = elected(&client, &n.to_string()).await;
            leading.lock().push(n);
            sleep(Duration::from_secs(1)).await;
            assert!(!leadership.lost.is_cancelled());
            client.drop_watches();
            client.resign(&leadership).await.expect("resigned");
        }));
    }
    for task in tasks {
        task.await.expect("elected");
    }
    assert_eq!(*leading.lock(), [0, 1, 2, 3, 4]);
    assert!(store.peek(keys::ELECTION).items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn cancelling_lost_gives_the_lease_back() {
    let store = MemoryStore::new();
    let leadership = elected(&store.client(), "a").await;
    leadership.lost.cancel();
    let started = Instant::now();
    elected(&store.client(), "b").await;
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
}

/// Machines with `onPartition: stop` count from the moment at which the leader was last sure.
#[tokio::test(start_paused = true)]
async fn a_leader_knows_for_how_long_it_has_not_been_sure() {
    let store = MemoryStore::new();
    let (one, two) = (store.client(), store.client());
    let first = elected(&one, "a").await;
    for _ in 0..100 {
        sleep(LEASE / 7).await;
        assert!(first.unsure_for() <= LEASE / 5, "{:?}", first.unsure_for());
    }
    // Without the store, the leader leads on for a while by its own clock.
    one.set_partitioned(true);
    let cut = Instant::now();
    sleep(LEASE / 2).await;
    assert!(!first.lost.is_cancelled());
    assert!(first.unsure_for() >= cut.elapsed());
    // The leader is deposed before it reaches the store again.
    let delete = WriteOperation::Delete(first.key.clone());
    two.transact(&[], &[delete]).await.expect("deleted");
    let deposed = Instant::now();
    one.set_partitioned(false);
    while !first.lost.is_cancelled() {
        assert!(first.unsure_for() >= deposed.elapsed());
        sleep(Duration::from_millis(100)).await;
    }
}
