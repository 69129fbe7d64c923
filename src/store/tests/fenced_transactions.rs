//! Transactions under a fence, split by count and size.

use kat_store::{StateStore, TransactionResult, fenced::*};
use kat_testing::MemoryStore;
use kat_types::store::{
    keys,
    transaction::{Compare, MAX_BYTES, WriteOperation},
};

fn put(key: String, bytes: usize) -> WriteOperation {
    WriteOperation::Put(key, vec![b'x'; bytes])
}

async fn fence(store: &MemoryStore) -> Compare {
    let made = store
        .transact(&[], &[put("/fence".into(), 1)])
        .await
        .expect("written");
    let TransactionResult::Yes(revision) = made else {
        panic!("not written")
    };
    Compare::CreateRevision("/fence".into(), revision)
}

#[tokio::test]
async fn cuts_by_count_and_size_and_keeps_groups_and_order() {
    let store = MemoryStore::new();
    let fence = fence(&store).await;
    let groups: Vec<WriteGroup> = (0..100)
        .map(|n| {
            vec![
                put(format!("/a/{n}/1"), 40_000),
                put(format!("/a/{n}/2"), 10),
            ]
            .into()
        })
        .collect();
    let before = store.revision();
    let outcome = commit(&store, &fence, &groups).await.expect("committed");
    assert_eq!(outcome, CommitOutcome::Done(store.revision()));
    assert_eq!(store.peek("/a/").items.len(), 200);
    // 36 groups of 40 kB fit into 1.4 MiB, and 63 groups of two into 127 operations.
    assert_eq!(store.revision() - before, 3);
    for n in 0..100 {
        let revisions: Vec<_> = store
            .peek(&format!("/a/{n}/"))
            .items
            .iter()
            .map(|item| item.mod_revision)
            .collect();
        assert_eq!(revisions[0], revisions[1], "group {n} was split");
    }
}

#[tokio::test]
async fn groups_before_one_beyond_the_limit_are_written_and_it_is_not() {
    let store = MemoryStore::new();
    let fence = fence(&store).await;
    let large: Vec<_> = (0..129).map(|n| put(format!("/b/{n}"), 1)).collect();
    let groups = [vec![put("/a".into(), 1)].into(), large.into()];
    let error = commit(&store, &fence, &groups)
        .await
        .expect_err("too large");
    assert!(
        matches!(
            error,
            CommitError::TooLarge {
                index: 1,
                operations: 129,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(store.peek("/a").items.len(), 1);
    assert!(store.peek("/b/").items.is_empty());
    let groups = [vec![put("/a".into(), MAX_BYTES)].into()];
    assert!(commit(&store, &fence, &groups).await.is_err());
}

#[tokio::test]
async fn a_deposed_leader_writes_nothing_more() {
    let store = MemoryStore::new();
    let fence = fence(&store).await;
    store
        .transact(&[], &[WriteOperation::Delete("/fence".into())])
        .await
        .expect("deleted");
    let groups = [vec![put("/a".into(), 1)].into()];
    let outcome = commit(&store, &fence, &groups).await.expect("answered");
    let refused = CommitOutcome::Refused {
        written: 0,
        first: 0,
        end: 1,
    };
    assert_eq!(outcome, refused);
    assert!(store.peek("/a").items.is_empty());
}

#[tokio::test]
async fn the_same_key_in_two_groups_is_written_in_order() {
    let store = MemoryStore::new();
    let fence = fence(&store).await;
    let groups = [
        vec![put("/a".into(), 1)].into(),
        vec![put("/a".into(), 2)].into(),
        vec![WriteOperation::DeletePrefix("/a".into())].into(),
        vec![put("/a".into(), 3)].into(),
    ];
    commit(&store, &fence, &groups).await.expect("committed");
    assert_eq!(store.peek("/a").items[0].value.len(), 3);
}

#[tokio::test]
async fn what_follows_from_an_older_copy_is_refused() {
    let store = MemoryStore::new();
    let fence = fence(&store).await;
    let groups: Vec<WriteGroup> = (0..3)
        .map(|n| vec![put(format!("/a/{n}"), MAX_BYTES / 2)].into())
        .collect();
    let mut turn = 0;
    let outcome = commit_in_turn(&store, &fence, &mut turn, &groups).await;
    assert_eq!(outcome.expect("committed"), CommitOutcome::Done(turn));
    assert_eq!(turn, store.revision());
    let written = store.peek(keys::PLANNED).items;
    assert_eq!(written[0].mod_revision, turn, "with the last of them");
    // The first refused writer has an older copy, the second one lost the answer to its own write.
    let mut older = 0;
    let late = [vec![put("/a/0".into(), 1)].into()];
    let outcome = commit_in_turn(&store, &fence, &mut older, &late).await;
    assert!(matches!(
        outcome,
        Ok(CommitOutcome::Refused { written: 0, .. })
    ));
    let mut known = turn;
    store.lose_answers(1);
    let outcome = commit_in_turn(&store, &fence, &mut known, &late).await;
    assert!(outcome.is_err());
    assert_eq!(store.peek("/a/0").items[0].value.len(), 1, "it was written");
    let next = [vec![put("/a/0".into(), 2)].into()];
    let outcome = commit_in_turn(&store, &fence, &mut known, &next).await;
    assert!(matches!(
        outcome,
        Ok(CommitOutcome::Refused { written: 0, .. })
    ));
    // Writes without a turn do not change `PLANNED`.
    commit(&store, &fence, &next).await.expect("committed");
    let mut now = store.peek(keys::PLANNED).items[0].mod_revision;
    let outcome = commit_in_turn(&store, &fence, &mut now, &next).await;
    assert!(matches!(outcome, Ok(CommitOutcome::Done(_))));
}

#[tokio::test]
async fn says_how_far_it_came() {
    let store = MemoryStore::new();
    let fence = fence(&store).await;
    let mut groups: Vec<WriteGroup> = vec![vec![put("/a".into(), 1)].into()];
    groups.push(WriteGroup {
        conditions: vec![Compare::ModRevision("/b".into(), 7)],
        operations: vec![put("/a".into(), 2)],
    });
    let outcome = commit(&store, &fence, &groups).await.expect("answered");
    let refused = CommitOutcome::Refused {
        written: 1,
        first: 1,
        end: 2,
    };
    assert_eq!(outcome, refused);
    store.refuse_calls(1);
    let error = commit(&store, &fence, &groups).await.expect_err("refused");
    assert!(
        matches!(
            error,
            CommitError::Store {
                written: 0,
                total: 2,
                ..
            }
        ),
        "{error}"
    );
}
