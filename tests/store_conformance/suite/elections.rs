//! Elections, fenced transactions and mirrors.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{Backend, names, put, soon, write};
use kat_store::{
    Leadership, Mirror, StateStore, StoreError, TransactionResult,
    election::dismiss_candidates,
    fenced::{self, CommitOutcome, WriteGroup},
};
use kat_types::store::{keys, transaction::WriteOperation};

async fn elect(store: &Arc<dyn StateStore>, name: &str) -> Leadership {
    soon("an election", store.campaign(name, Duration::from_secs(5)))
        .await
        .expect("elected")
}

pub(crate) async fn elects_one_leader(backend: &dyn Backend) {
    let (one, two, three) = (
        backend.client().await,
        backend.client().await,
        backend.client().await,
    );
    assert_eq!(one.leader().await.expect("answered"), None);
    let first = elect(&one, "alpha").await;
    assert_eq!(
        three.leader().await.expect("answered").as_deref(),
        Some("alpha")
    );
    assert!(first.key.starts_with(keys::ELECTION));
    let own = three
        .get(&first.key)
        .await
        .expect("answered")
        .expect("found");
    assert_eq!(
        (own.create_revision, own.value.as_slice()),
        (first.create_revision, b"alpha".as_slice())
    );

    let candidate = two.clone();
    let waiting = tokio::spawn(async move { elect(&candidate, "beta").await });
    // The second candidate is in the queue and not elected.
    soon("the second candidate", async {
        while names(&*three, keys::ELECTION).await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(!waiting.is_finished());
    assert_eq!(
        three.leader().await.expect("answered").as_deref(),
        Some("alpha")
    );
    let fenced = one.transact(&[first.fence()], &[put("/t/a", "1")]).await;
    let Ok(TransactionResult::Yes(last_write)) = fenced else {
        panic!("{fenced:?}")
    };

    one.resign(&first).await.expect("resigned");
    assert!(first.lost.is_cancelled());
    let second = soon("the takeover", waiting).await.expect("elected");
    assert!(second.create_revision > first.create_revision);
    assert!(second.create_revision < last_write && last_write < second.won_revision);
    assert!(!second.lost.is_cancelled());
    assert_eq!(
        three.leader().await.expect("answered").as_deref(),
        Some("beta")
    );
    let deposed = one.transact(&[first.fence()], &[put("/t/a", "2")]).await;
    assert_eq!(deposed.expect("answered"), TransactionResult::No);
    let leading = two.transact(&[second.fence()], &[put("/t/a", "3")]).await;
    assert!(
        matches!(leading, Ok(TransactionResult::Yes(_))),
        "{leading:?}"
    );
    one.resign(&first).await.expect("resigning twice is fine");
    assert!(!second.lost.is_cancelled());

    let wrong = one.campaign("", Duration::from_secs(5)).await;
    assert!(matches!(wrong, Err(StoreError::Invalid(_))));
    let wrong = one.campaign("alpha", Duration::from_millis(1500)).await;
    assert!(matches!(wrong, Err(StoreError::Invalid(_))));
}

pub(crate) async fn a_dropped_candidate_withdraws(backend: &dyn Backend) {
    let (one, two, three) = (
        backend.client().await,
        backend.client().await,
        backend.client().await,
    );
    let first = elect(&one, "alpha").await;
    let given_up = tokio::time::timeout(Duration::from_millis(500), elect(&two, "beta")).await;
    assert!(given_up.is_err(), "beta was elected beside alpha");
    soon("the withdrawal", async {
        while names(&*three, keys::ELECTION).await.len() > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    one.resign(&first).await.expect("resigned");
    let third = elect(&three, "gamma").await;
    assert_eq!(
        one.leader().await.expect("answered").as_deref(),
        Some("gamma")
    );
    assert!(third.create_revision > first.create_revision);
}

pub(crate) async fn a_deleted_election_key_ends_leadership(backend: &dyn Backend) {
    let (one, two) = (backend.client().await, backend.client().await);
    let first = elect(&one, "alpha").await;
    write(&*two, &[WriteOperation::Delete(first.key.clone())]).await;
    soon("the loss", first.lost.cancelled()).await;
    let second = elect(&two, "beta").await;
    assert!(!second.lost.is_cancelled());
}

pub(crate) async fn fenced_commits(backend: &dyn Backend) {
    let store = backend.client().await;
    let leadership = elect(&store, "alpha").await;
    let groups: Vec<WriteGroup> = (0..300)
        .map(|n| {
            vec![
                put(&format!("/t/{n:03}/a"), "1"),
                put(&format!("/t/{n:03}/b"), "1"),
            ]
            .into()
        })
        .collect();
    let done = fenced::commit(&*store, &leadership.fence(), &groups)
        .await
        .expect("committed");
    assert!(matches!(done, CommitOutcome::Done(_)), "{done:?}");
    assert_eq!(names(&*store, "/t/").await.len(), 600);
    store.resign(&leadership).await.expect("resigned");
    let again = [vec![put("/t/late", "")].into()];
    let refused = fenced::commit(&*store, &leadership.fence(), &again)
        .await
        .expect("answered");
    assert!(
        matches!(refused, CommitOutcome::Refused { written: 0, .. }),
        "{refused:?}"
    );
    assert_eq!(store.get("/t/late").await.expect("answered"), None);
}

pub(crate) async fn mirrors(backend: &dyn Backend) {
    let (store, writer) = (backend.client().await, backend.client().await);
    write(&*writer, &[put("/t/a", "1"), put("/u", "1")]).await;
    let cancel = CancellationToken::new();
    let mirror = Mirror::start(store, "/t/", cancel.clone());
    let limit = Duration::from_secs(20);
    let state = mirror.wait_confirmed(limit).await.expect("confirmed");
    assert_eq!(state.get("/t/a").expect("there").value, b"1");
    let mut revision = 0;
    for n in 0..50 {
        let gone = WriteOperation::Delete(format!("/t/n{}", n - 1));
        revision = write(&*writer, &[put(&format!("/t/n{n}"), "x"), gone]).await;
    }
    let later = mirror
        .wait_for_revision(revision, limit)
        .await
        .expect("caught up");
    let keys: Vec<_> = later.entries.keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["/t/a", "/t/n49"]);
    assert_eq!(state.entries.len(), 1, "a snapshot does not change");
    assert_eq!(later.below("/t/n").count(), 1);
    cancel.cancel();
}

/// A candidate that is dismissed stands again, behind those that came meanwhile; the leader stays.
pub(crate) async fn dismissed_candidates_stand_again_and_the_leader_stays(backend: &dyn Backend) {
    let (one, two, three) = (
        backend.client().await,
        backend.client().await,
        backend.client().await,
    );
    dismiss_candidates(&*three).await.expect("nobody stands");
    let first = elect(&one, "alpha").await;
    dismiss_candidates(&*three).await.expect("alpha alone");
    let candidate = two.clone();
    let waiting = tokio::spawn(async move { elect(&candidate, "beta").await });
    let of_beta = async || {
        let mut standing = names(&*three, keys::ELECTION).await;
        standing.retain(|key| *key != first.key);
        standing
    };
    let before = soon("the candidate", async {
        loop {
            let standing = of_beta().await;
            if !standing.is_empty() {
                return standing;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    dismiss_candidates(&*three).await.expect("dismissed");
    soon("the candidate's next key", async {
        loop {
            let standing = of_beta().await;
            if !standing.is_empty() && standing != before {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(!first.lost.is_cancelled() && !waiting.is_finished());
    one.resign(&first).await.expect("resigned");
    soon("the takeover", waiting).await.expect("elected");
}
