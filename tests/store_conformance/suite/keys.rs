//! Reads, writes and lists.

use tokio_util::sync::CancellationToken;

use super::{Backend, names, put, soon, write};
use kat_store::{StoreError, TransactionResult};
use kat_types::store::transaction::{Compare, MAX_OPERATIONS, WriteOperation};

pub(crate) async fn gets_what_was_put(backend: &dyn Backend) {
    let (store, other) = (backend.client().await, backend.client().await);
    assert_eq!(store.get("/t/a").await.expect("answered"), None);
    let first = write(&*store, &[put("/t/a", "1")]).await;
    let found = other.get("/t/a").await.expect("answered").expect("found");
    assert_eq!(
        (found.key.as_str(), found.value.as_slice()),
        ("/t/a", b"1".as_slice())
    );
    assert_eq!((found.create_revision, found.mod_revision), (first, first));
    let second = write(&*other, &[put("/t/a", "1")]).await;
    assert!(second > first, "the same value is a write too");
    let found = store.get("/t/a").await.expect("answered").expect("found");
    assert_eq!((found.create_revision, found.mod_revision), (first, second));
    write(&*store, &[WriteOperation::Delete("/t/a".into())]).await;
    let third = write(&*store, &[put("/t/a", "")]).await;
    let found = store.get("/t/a").await.expect("answered").expect("found");
    assert_eq!(
        found.create_revision, third,
        "a key that was deleted is created anew"
    );
    assert!(found.value.is_empty());
}

pub(crate) async fn transacts_under_conditions(backend: &dyn Backend) {
    let store = backend.client().await;
    let absent = [Compare::ModRevision("/t/a".into(), 0)];
    let made = store
        .transact(&absent, &[put("/t/a", "1")])
        .await
        .expect("answered");
    let TransactionResult::Yes(first) = made else {
        panic!("the key did not exist")
    };
    let again = store
        .transact(&absent, &[put("/t/a", "2")])
        .await
        .expect("answered");
    assert_eq!(again, TransactionResult::No);
    assert_eq!(
        store
            .get("/t/a")
            .await
            .expect("answered")
            .expect("found")
            .value,
        b"1"
    );

    // All conditions must hold, and all writes have one revision.
    let conditions = [
        Compare::ModRevision("/t/a".into(), first),
        Compare::CreateRevision("/t/a".into(), first),
        Compare::CreateRevision("/t/b".into(), 0),
    ];
    let writes = [
        put("/t/b", "b"),
        put("/t/c", "c"),
        WriteOperation::Delete("/t/a".into()),
    ];
    let done = store
        .transact(&conditions, &writes)
        .await
        .expect("answered");
    let TransactionResult::Yes(second) = done else {
        panic!("the conditions held")
    };
    assert_eq!(second, first + 1);
    for key in ["/t/b", "/t/c"] {
        assert_eq!(
            store
                .get(key)
                .await
                .expect("answered")
                .expect("found")
                .mod_revision,
            second
        );
    }
    let one_wrong = [
        Compare::ModRevision("/t/b".into(), second),
        Compare::CreateRevision("/t/c".into(), first),
    ];
    let refused = store
        .transact(&one_wrong, &[put("/t/d", "d")])
        .await
        .expect("answered");
    assert_eq!(refused, TransactionResult::No);
    assert_eq!(names(&*store, "/t/").await, ["/t/b", "/t/c"]);

    // A transaction without operations succeeds and makes no revision.
    let nothing = store
        .transact(&one_wrong[..1], &[])
        .await
        .expect("answered");
    assert_eq!(nothing, TransactionResult::Yes(second));
    let gone = [
        WriteOperation::Delete("/t/none".into()),
        WriteOperation::DeletePrefix("/t/none/".into()),
    ];
    assert_eq!(write(&*store, &gone).await, second);
    assert_eq!(store.list("/t/").await.expect("listed").revision, second);
}

pub(crate) async fn refuses_what_is_beyond_the_limits(backend: &dyn Backend) {
    let store = backend.client().await;
    let many =
        |count: usize| -> Vec<_> { (0..count).map(|n| put(&format!("/t/{n:03}"), "")).collect() };
    let absent = |count: usize| -> Vec<_> {
        (0..count)
            .map(|n| Compare::ModRevision(format!("/t/{n:03}"), 0))
            .collect()
    };
    let refused = |outcome: Result<TransactionResult, StoreError>, why: &str| match outcome {
        Err(StoreError::Invalid(_)) => {}
        other => panic!("{why}: {other:?}"),
    };
    refused(
        store.transact(&[], &many(MAX_OPERATIONS + 1)).await,
        "129 operations",
    );
    refused(
        store.transact(&absent(MAX_OPERATIONS + 1), &[]).await,
        "129 conditions",
    );
    refused(
        store
            .transact(&[], &[put("/t/a", "1"), put("/t/a", "2")])
            .await,
        "a key twice",
    );
    let below = [WriteOperation::DeletePrefix("/t/".into()), put("/t/a", "1")];
    refused(
        store.transact(&[], &below).await,
        "a key below a deleted prefix",
    );
    refused(store.transact(&[], &[put("", "1")]).await, "an empty key");
    refused(
        store
            .transact(&[], &[put("/t/a", &"x".repeat(1 << 21))])
            .await,
        "2 MiB",
    );
    assert!(matches!(store.get("").await, Err(StoreError::Invalid(_))));
    assert!(matches!(
        store.watch("/t/", 0).await,
        Err(StoreError::Invalid(_))
    ));
    assert!(names(&*store, "/t/").await.is_empty());

    let done = store
        .transact(&absent(MAX_OPERATIONS), &many(MAX_OPERATIONS))
        .await;
    assert!(matches!(done, Ok(TransactionResult::Yes(_))), "{done:?}");
    assert_eq!(names(&*store, "/t/").await.len(), MAX_OPERATIONS);
    // One value fills the largest permitted transaction.
    let value = "x".repeat(kat_types::store::transaction::MAX_BYTES - 100);
    write(&*store, &[put("/t/large", &value)]).await;
    assert_eq!(
        store
            .get("/t/large")
            .await
            .expect("answered")
            .expect("found")
            .value
            .len(),
        value.len()
    );
}

pub(crate) async fn lists_in_order_at_one_revision(backend: &dyn Backend) {
    let store = backend.client().await;
    assert!(store.list("/t/").await.expect("listed").items.is_empty());
    let outside = [put("/t", "-"), put("/t.", "-"), put("/t0", "-")];
    write(&*store, &outside).await;
    let revision = write(
        &*store,
        &[put("/t/b", "2"), put("/t/a/x", "1"), put("/t/ä", "3")],
    )
    .await;
    let listing = store.list("/t/").await.expect("listed");
    assert_eq!(listing.revision, revision);
    let items: Vec<_> = listing.items.iter().map(|item| item.key.as_str()).collect();
    assert_eq!(items, ["/t/a/x", "/t/b", "/t/ä"]);
    assert_eq!(
        names(&*store, "").await.len(),
        6,
        "an empty prefix is everything"
    );

    // Both ends of a long list are written together, so that a list of mixed revisions is noticed.
    for chunk in 0..24 {
        let keys: Vec<_> = (0..100)
            .map(|n| put(&format!("/p/m{:04}", chunk * 100 + n), "x"))
            .collect();
        write(&*store, &keys).await;
    }
    write(&*store, &[put("/p/a", "0"), put("/p/z", "0")]).await;
    let writer = backend.client().await;
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let writing = tokio::spawn(async move {
        let mut count = 0;
        while !stopped.is_cancelled() {
            count += 1;
            let value = count.to_string();
            write(&*writer, &[put("/p/a", &value), put("/p/z", &value)]).await;
        }
        count
    });
    for _ in 0..20 {
        let listing = store.list("/p/").await.expect("listed");
        let (first, last) = (&listing.items[0], &listing.items[listing.items.len() - 1]);
        assert_eq!((first.key.as_str(), last.key.as_str()), ("/p/a", "/p/z"));
        assert_eq!(first.value, last.value, "a list of two revisions");
        assert!(
            listing
                .items
                .iter()
                .all(|item| item.mod_revision <= listing.revision)
        );
    }
    stop.cancel();
    assert!(writing.await.expect("written") > 1);
}

pub(crate) async fn lists_more_than_one_message_holds(backend: &dyn Backend) {
    let store = backend.client().await;
    // The store gets 5 MiB in 10,000 small keys, then 12 MiB in large ones, so that pages of both
    // kinds occur.
    let value = "s".repeat(512);
    for chunk in 0..100 {
        let keys: Vec<_> = (0..100)
            .map(|n| put(&format!("/t/a{:05}", chunk * 100 + n), &value))
            .collect();
        write(&*store, &keys).await;
    }
    let large = "l".repeat(1_250_000);
    let mut revision = 0;
    for n in 0..10 {
        revision = write(&*store, &[put(&format!("/t/b{n}"), &large)]).await;
    }
    let listing = soon("the list", store.list("/t/")).await.expect("listed");
    assert_eq!(listing.items.len(), 10_010);
    assert_eq!(listing.revision, revision);
    assert!(listing.items.is_sorted_by(|a, b| a.key < b.key));
    assert!(
        listing.items[10_000..]
            .iter()
            .all(|item| item.value.len() == large.len())
    );
    assert!(
        listing.items[..10_000]
            .iter()
            .all(|item| item.value.len() == value.len())
    );
    // This list has only large values, so that its first page exceeds the limit of a message.
    assert_eq!(store.list("/t/b").await.expect("listed").items.len(), 10);
}
