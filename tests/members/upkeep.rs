//! A full store and a store with mostly empty files, in etcds with a small quota.

use std::time::Duration;

use tokio::time::sleep;

use super::cluster::{Cluster, Machine, until};
use kat_leader::StoreReport;
use kat_store::{
    EtcdStore, StateStore, StoreError, TransactionResult, etcd_admin, etcd_maintenance,
};
use kat_types::{
    api::{Event, EventKind},
    store::{keys, transaction::WriteOperation},
};

const MIB: usize = 1 << 20;
const KEY: &str = "/kat/test";

async fn write(store: &EtcdStore, key: &str, bytes: usize) -> Result<(), StoreError> {
    let write = [WriteOperation::Put(key.to_owned(), vec![b'x'; bytes])];
    match store.transact(&[], &write).await? {
        TransactionResult::Yes(_) => Ok(()),
        TransactionResult::No => panic!("there is no condition"),
    }
}

/// Writes one MiB to each of these keys until the store is full; returns the number of writes.
async fn fill(store: &EtcdStore, key: impl Fn(usize) -> String) -> usize {
    for number in 0..200 {
        match write(store, &key(number), MIB).await {
            Ok(()) => {}
            Err(StoreError::Full(_)) => return number,
            // A change of the raft leader drops requests in flight.
            Err(StoreError::Unavailable(_)) => sleep(Duration::from_millis(100)).await,
            Err(error) => panic!("write {number}: {error}"),
        }
    }
    panic!("the quota has no effect");
}

async fn events(store: &EtcdStore, reason: &str) -> Option<Vec<Event>> {
    let list = store.list(keys::EVENTS).await.ok()?;
    let events = list.items.iter();
    let events = events.map(|item| serde_json::from_slice(&item.value).expect("an event"));
    let found: Vec<Event> = events
        .filter(|event: &Event| event.reason == reason)
        .collect();
    (!found.is_empty()).then_some(found)
}

fn report(machine: &Machine) -> Option<StoreReport> {
    machine.handle().store_health.report()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_full_of_history_makes_room_by_itself() {
    let cluster = Cluster {
        quota: 16 << 20,
        ..Cluster::new()
    };
    let machines = cluster.three().await;
    let store = &machines[0].store;
    let writes = fill(store, |_| KEY.to_owned()).await;
    println!("full after {writes} writes of one key");
    assert!(writes > 5, "{writes}");
    until("it takes writes again", async || {
        write(store, KEY, 100).await.ok()
    })
    .await;
    let told = until("it is told", async || events(store, "StoreWasFull").await).await;
    assert_eq!(told[0].kind, EventKind::Warning);
    for number in 1..=3 {
        let at = cluster.at(number).await;
        let status = etcd_admin::status(&at).await.expect("a status");
        assert!(status.db_size < 8 << 20, "n{number}: {status:?}");
        assert!(status.errors.is_empty(), "n{number}: {status:?}");
    }
    until("it is well again", async || {
        report(&machines[0]).filter(|report| report.trouble.is_none())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_mostly_empty_are_made_smaller_one_after_the_other() {
    let cluster = Cluster {
        quota: 128 << 20,
        ..Cluster::new()
    };
    let machines = cluster.three().await;
    let store = &machines[0].store;
    // A change of the raft leader drops requests in flight.
    for bytes in [[MIB; 20].as_slice(), &[100]].concat() {
        until("it is written", async || {
            write(store, KEY, bytes).await.ok()
        })
        .await;
    }
    // Each member reports its own file, and one member may lag behind.
    until("the file has grown", async || {
        let status = etcd_admin::status(store).await.ok()?;
        (status.db_size > 20 << 20).then_some(())
    })
    .await;
    let last = store.get(KEY).await.expect("an answer").expect("the key");
    until("the history is cut", async || {
        etcd_maintenance::compact(store, last.mod_revision)
            .await
            .ok()
    })
    .await;
    // A member counts the pages that a compaction frees when the next write is committed.
    for number in 1..=3 {
        let at = cluster.at(number).await;
        until("its free pages are counted", async || {
            write(store, KEY, 100).await.ok()?;
            let status = etcd_admin::status(&at).await.ok()?;
            let is_small = status.db_size < 8 << 20;
            (is_small || status.db_size_in_use < status.db_size / 2).then_some(())
        })
        .await;
    }
    let told = until("all three are told", async || {
        let told = events(store, "StoreDefragmented").await?;
        (told.len() == 3).then_some(told)
    })
    .await;
    for number in 1..=3 {
        let name = format!("n{number}");
        assert!(told.iter().any(|event| event.involved_object.name == name));
        let at = cluster.at(number).await;
        let status = etcd_admin::status(&at).await.expect("a status");
        assert!(status.db_size < 8 << 20, "{name}: {status:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_full_of_what_is_in_use_says_what_a_person_can_do() {
    let cluster = Cluster {
        machines: 1,
        quota: 8 << 20,
        ..Cluster::new()
    };
    let machine = cluster.first().await;
    until("it leads", async || machine.leads().then_some(())).await;
    let store = &machine.store;
    let key = |number: usize| format!("{KEY}/{number}");
    let writes = fill(store, key).await;
    let trouble = until("it is said", async || {
        let trouble = report(&machine)?.trouble?;
        trouble
            .contains("ETCD_QUOTA_BACKEND_BYTES")
            .then_some(trouble)
    })
    .await;
    println!("{trouble}");
    assert!(matches!(
        write(store, KEY, MIB).await,
        Err(StoreError::Full(_))
    ));
    assert!(machine.leads(), "a lease lives on in a full store");
    // A full etcd still accepts deletions, which make room.
    let deletes: Vec<_> = (0..writes)
        .map(|number| WriteOperation::Delete(key(number)))
        .collect();
    let deleted = store.transact(&[], &deletes).await;
    assert!(
        matches!(deleted, Ok(TransactionResult::Yes(_))),
        "{deleted:?}"
    );
    until("it takes writes again", async || {
        write(store, KEY, 100).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_without_a_leader_gets_one() {
    let cluster = Cluster {
        machines: 1,
        quota: 8 << 20,
        ..Cluster::new()
    };
    let mut machine = cluster.seeded().await;
    fill(&machine.store, |_| KEY.to_owned()).await;
    let lease = std::time::Duration::from_secs(5);
    let campaign = tokio::time::timeout(lease, machine.store.campaign("n1", lease)).await;
    assert!(
        !matches!(campaign, Ok(Ok(_))),
        "a full store grants no lease"
    );
    cluster.campaign(&mut machine);
    until("it leads", async || machine.leads().then_some(())).await;
    until("it takes writes again", async || {
        write(&machine.store, KEY, 100).await.ok()
    })
    .await;
}
