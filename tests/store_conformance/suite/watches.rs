//! Watches, and the effect of compaction on them.

use std::time::Duration;

use futures_util::StreamExt;

use super::{Backend, names, next, put, shown, soon, write};
use kat_store::StoreError;
use kat_types::store::transaction::WriteOperation;

pub(crate) async fn deletes_prefixes(backend: &dyn Backend) {
    let store = backend.client().await;
    let revision = write(
        &*store,
        &[
            put("/t/a", ""),
            put("/t/a/1", ""),
            put("/t/a/2", ""),
            put("/t/a0", ""),
        ],
    )
    .await;
    let mut changes = store.watch("/t/", revision + 1).await.expect("watched");
    write(
        &*store,
        &[
            WriteOperation::DeletePrefix("/t/a/".into()),
            put("/t/b", "b"),
        ],
    )
    .await;
    assert_eq!(names(&*store, "/t/").await, ["/t/a", "/t/a0", "/t/b"]);
    assert_eq!(
        shown(&next(&mut changes).await),
        ["-/t/a/1", "-/t/a/2", "+/t/b=b"]
    );
}

pub(crate) async fn watches_history_and_changes(backend: &dyn Backend) {
    let (store, writer) = (backend.client().await, backend.client().await);
    let first = write(&*writer, &[put("/t/a", "1")]).await;
    write(&*writer, &[put("/other", "1")]).await;
    let second = write(
        &*writer,
        &[
            put("/t/b", "1"),
            WriteOperation::Delete("/t/a".into()),
            put("/x", ""),
        ],
    )
    .await;
    let mut changes = store.watch("/t/", first).await.expect("watched");
    assert_eq!(shown(&next(&mut changes).await), ["+/t/a=1"]);
    let batch = next(&mut changes).await;
    assert_eq!(batch.revision, second, "history of others is left out");
    assert_eq!(
        shown(&batch),
        ["+/t/b=1", "-/t/a"],
        "one transaction is one batch"
    );

    // A watch from the revision after a list neither repeats nor misses a change.
    let listing = store.list("/t/").await.expect("listed");
    let mut later = store
        .watch("/t/", listing.revision + 1)
        .await
        .expect("watched");
    for n in 0..200 {
        write(&*writer, &[put("/t/n", &n.to_string()), put("/y", "")]).await;
    }
    for stream in [&mut changes, &mut later] {
        for n in 0..200 {
            assert_eq!(shown(&next(stream).await), [format!("+/t/n={n}")]);
        }
    }
    // An empty prefix watches all keys.
    let mut all = store.watch("", second).await.expect("watched");
    assert_eq!(shown(&next(&mut all).await), ["+/t/b=1", "-/t/a", "+/x="]);
    // A watch from a future revision omits the changes before it.
    let ahead = store.list("/t/").await.expect("listed").revision + 2;
    let mut ahead = store.watch("/t/", ahead).await.expect("watched");
    write(&*writer, &[put("/t/too-early", "")]).await;
    write(&*writer, &[put("/t/now", "")]).await;
    assert_eq!(shown(&next(&mut ahead).await), ["+/t/now="]);
}

pub(crate) async fn a_watch_says_on_request_how_far_it_is(backend: &dyn Backend) {
    let (store, writer) = (backend.client().await, backend.client().await);
    let first = write(&*writer, &[put("/t/a", "1")]).await;
    let mut changes = store.watch("/t/", first + 1).await.expect("watched");
    let mut silent = writer.watch("/t/", first + 1).await.expect("watched");
    let elsewhere = write(&*writer, &[put("/other", "1")]).await;
    // Without a request nothing comes, on a watch of another client too.
    let unasked = tokio::time::timeout(Duration::from_millis(500), changes.next()).await;
    assert!(unasked.is_err(), "{unasked:?}");
    let told = soon("the progress of the watch", async {
        loop {
            store.request_progress();
            let told = tokio::time::timeout(Duration::from_millis(200), changes.next()).await;
            if let Ok(told) = told {
                return told.expect("a batch").expect("no error");
            }
        }
    });
    let told = told.await;
    assert_eq!((told.revision, told.events.len()), (elsewhere, 0));
    let unasked = tokio::time::timeout(Duration::from_millis(500), silent.next()).await;
    assert!(unasked.is_err(), "{unasked:?}");

    // A change is never behind the progress that was told, however often it is requested.
    for n in 0..200 {
        let written = write(&*writer, &[put("/t/n", &n.to_string()), put("/y", "")]).await;
        store.request_progress();
        loop {
            let batch = soon("a change", changes.next()).await;
            let batch = batch.expect("a batch").expect("no error");
            if !batch.events.is_empty() {
                assert_eq!(batch.revision, written);
                break;
            }
            assert!(batch.revision < written, "the progress overtook the change");
        }
    }
}

pub(crate) async fn compaction_ends_old_watches(backend: &dyn Backend) {
    let store = backend.client().await;
    let mut revision = 0;
    for n in 0..10 {
        revision = write(&*store, &[put("/t/a", &n.to_string())]).await;
    }
    let mut current = store.watch("/t/", revision + 1).await.expect("watched");
    backend.compact(revision).await;
    let from = revision - 5;
    let error = soon("the error", async {
        match store.watch("/t/", from).await {
            Ok(mut changes) => {
                let error = changes
                    .next()
                    .await
                    .expect("an item")
                    .expect_err("compacted");
                assert!(changes.next().await.is_none(), "an error is the end");
                error
            }
            Err(error) => error,
        }
    });
    let error = error.await;
    assert!(
        matches!(error, StoreError::Compacted(at) if at == from),
        "{error:?}"
    );
    assert!(error.is_passing());
    // A watch that is up to date continues, and a new list works.
    write(&*store, &[put("/t/b", "")]).await;
    assert_eq!(shown(&next(&mut current).await), ["+/t/b="]);
    assert_eq!(names(&*store, "/t/").await, ["/t/a", "/t/b"]);
}
