//! Commits of the leader: a long list of changes, split into transactions that each contain the
//! fence.

use super::{Committed, StateStore, StoreError};
use kat_types::{
    keys,
    transaction::{Compare, MAX_BYTES, MAX_OPERATIONS, Operation, TransactionSize},
};

/// Writes that must take effect together, and their conditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Conditions besides the fence.
    pub conditions: Vec<Compare>,
    /// The writes; they are not split over transactions.
    pub operations: Vec<Operation>,
}

impl From<Vec<Operation>> for Group {
    fn from(operations: Vec<Operation>) -> Self {
        Self {
            conditions: Vec::new(),
            operations,
        }
    }
}

/// Result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is written; the last write is at this revision (0 if there was nothing to do).
    Done(i64),
    /// A transaction was refused: the leadership is lost, or a condition of one of its groups did
    /// not hold. The groups before it are written; its own groups and all later ones are not.
    Refused {
        /// Number of groups that are written.
        written: usize,
        /// Index of the first group of the refused transaction.
        first: usize,
        /// Index after the last group of the refused transaction.
        end: usize,
    },
}

/// Why a commit failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// A group can't be written at all. The groups before it are written; it and all later ones are
    /// not.
    #[error(
        "change {index} ({key}) does not fit into one transaction: {operations} operations, \
         {bytes} bytes; at most {MAX_OPERATIONS} and {MAX_BYTES}, the fence included"
    )]
    TooLarge {
        /// Index of the group.
        index: usize,
        /// Its first key.
        key: String,
        /// Number of its operations.
        operations: usize,
        /// Its size in bytes.
        bytes: usize,
    },
    /// The store failed during the commit.
    #[error("after {written} of {total} changes: {source}")]
    Store {
        /// Number of groups that are known to be written. The outcome of the next ones is unknown
        /// if the store was not reachable.
        written: usize,
        /// Number of all groups.
        total: usize,
        /// Error of the store.
        source: StoreError,
    },
}

/// Writes the groups in order, as many as fit into each transaction, each transaction under the
/// fence. Each group must be safe alone: the list may stop after any of them. Groups with
/// conditions share a transaction, so they may be refused together; see [`Outcome::Refused`].
///
/// # Errors
/// [`CommitError`].
pub async fn commit(
    store: &dyn StateStore,
    fence: &Compare,
    groups: &[Group],
) -> Result<Outcome, CommitError> {
    write(store, fence, None, groups).await
}

/// As [`commit`], for groups that were derived from stored state. `turn` is the revision of
/// [`keys::PLANNED`] in the copy from which they were derived, and becomes that of the last
/// transaction. Each transaction compares that key and writes it again. So a transaction is refused
/// if the copy lacks an earlier write; and one whose answer was lost, and that arrives late, is
/// refused if another was written since.
///
/// # Errors
/// [`CommitError`].
pub async fn commit_in_turn(
    store: &dyn StateStore,
    fence: &Compare,
    turn: &mut i64,
    groups: &[Group],
) -> Result<Outcome, CommitError> {
    write(store, fence, Some(turn), groups).await
}

fn turn_group(turn: i64) -> Group {
    Group {
        conditions: vec![Compare::ModRevision(keys::PLANNED.to_owned(), turn)],
        operations: vec![Operation::Put(keys::PLANNED.to_owned(), Vec::new())],
    }
}

async fn write(
    store: &dyn StateStore,
    fence: &Compare,
    mut turn: Option<&mut i64>,
    groups: &[Group],
) -> Result<Outcome, CommitError> {
    let mut base = TransactionSize::of(std::slice::from_ref(fence), &[]);
    if turn.is_some() {
        base = base.and(size_of(&turn_group(i64::MAX)));
    }
    let (pieces, too_large) = cut(base, groups);
    let mut revision = 0;
    for (first, end) in pieces {
        let piece = groups.get(first..end).unwrap_or_default();
        let mut conditions = vec![fence.clone()];
        let mut operations = Vec::new();
        if let Some(turn) = &turn {
            let own = turn_group(**turn);
            conditions.extend(own.conditions);
            operations.extend(own.operations);
        }
        for group in piece {
            for condition in &group.conditions {
                if !conditions.contains(condition) {
                    conditions.push(condition.clone());
                }
            }
            operations.extend(group.operations.iter().cloned());
        }
        match store.transact(&conditions, &operations).await {
            Ok(Committed::Yes(at)) => {
                revision = at;
                if let Some(turn) = &mut turn {
                    **turn = at;
                }
            }
            Ok(Committed::No) => {
                return Ok(Outcome::Refused {
                    written: first,
                    first,
                    end,
                });
            }
            Err(source) => {
                return Err(CommitError::Store {
                    written: first,
                    total: groups.len(),
                    source,
                });
            }
        }
    }
    match too_large {
        Some(error) => Err(error),
        None => Ok(Outcome::Done(revision)),
    }
}

/// Ranges of groups that share a transaction, up to the first group that fits into none. A group
/// with a key that an earlier group writes begins a new transaction, since no transaction may
/// contain a key twice.
fn cut(base: TransactionSize, groups: &[Group]) -> (Vec<(usize, usize)>, Option<CommitError>) {
    let mut pieces = Vec::new();
    let mut first = 0;
    let mut size = base;
    let mut keys: Vec<&Operation> = Vec::new();
    let mut too_large = None;
    let mut count = groups.len();
    for (index, group) in groups.iter().enumerate() {
        let own = size_of(group);
        if !base.and(own).fits() {
            too_large = Some(CommitError::TooLarge {
                index,
                key: group
                    .operations
                    .first()
                    .map(Operation::key)
                    .unwrap_or_default()
                    .to_owned(),
                operations: own.operations,
                bytes: own.bytes,
            });
            count = index;
            break;
        }
        let clash = group
            .operations
            .iter()
            .any(|operation| keys.iter().any(|other| overlap(operation, other)));
        if index > first && (clash || !size.and(own).fits()) {
            pieces.push((first, index));
            first = index;
            size = base;
            keys.clear();
        }
        size = size.and(own);
        keys.extend(&group.operations);
    }
    if first < count {
        pieces.push((first, count));
    }
    (pieces, too_large)
}

fn size_of(group: &Group) -> TransactionSize {
    TransactionSize::of(&group.conditions, &group.operations)
}

/// Whether two writes can't be in one transaction.
fn overlap(one: &Operation, other: &Operation) -> bool {
    let (a, b) = (one.key(), other.key());
    match (one, other) {
        (Operation::DeletePrefix(_), Operation::DeletePrefix(_)) => {
            a.starts_with(b) || b.starts_with(a)
        }
        (Operation::DeletePrefix(_), _) => b.starts_with(a),
        (_, Operation::DeletePrefix(_)) => a.starts_with(b),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    fn put(key: String, bytes: usize) -> Operation {
        Operation::Put(key, vec![b'x'; bytes])
    }

    async fn fence(store: &MemoryStore) -> Compare {
        let made = store
            .transact(&[], &[put("/fence".into(), 1)])
            .await
            .expect("written");
        let Committed::Yes(revision) = made else {
            panic!("not written")
        };
        Compare::CreateRevision("/fence".into(), revision)
    }

    #[tokio::test]
    async fn cuts_by_count_and_size_and_keeps_groups_and_order() {
        let store = MemoryStore::new();
        let fence = fence(&store).await;
        let groups: Vec<Group> = (0..100)
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
        assert_eq!(outcome, Outcome::Done(store.revision()));
        assert_eq!(store.peek("/a/").items.len(), 200);
        // 36 groups of 40 kB fit into 1.4 MiB; 63 groups of two into 127 operations.
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
            .transact(&[], &[Operation::Delete("/fence".into())])
            .await
            .expect("deleted");
        let groups = [vec![put("/a".into(), 1)].into()];
        let outcome = commit(&store, &fence, &groups).await.expect("answered");
        let refused = Outcome::Refused {
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
            vec![Operation::DeletePrefix("/a".into())].into(),
            vec![put("/a".into(), 3)].into(),
        ];
        commit(&store, &fence, &groups).await.expect("committed");
        assert_eq!(store.peek("/a").items[0].value.len(), 3);
    }

    #[tokio::test]
    async fn what_follows_from_an_older_copy_is_refused() {
        let store = MemoryStore::new();
        let fence = fence(&store).await;
        let groups: Vec<Group> = (0..3)
            .map(|n| vec![put(format!("/a/{n}"), MAX_BYTES / 2)].into())
            .collect();
        let mut turn = 0;
        let outcome = commit_in_turn(&store, &fence, &mut turn, &groups).await;
        assert_eq!(outcome.expect("committed"), Outcome::Done(turn));
        assert_eq!(turn, store.revision());
        let written = store.peek(keys::PLANNED).items;
        assert_eq!(written[0].mod_revision, turn, "with the last of them");
        // Another copy, without these; and one whose answer was lost.
        let mut older = 0;
        let late = [vec![put("/a/0".into(), 1)].into()];
        let outcome = commit_in_turn(&store, &fence, &mut older, &late).await;
        assert!(matches!(outcome, Ok(Outcome::Refused { written: 0, .. })));
        let mut known = turn;
        store.lose_answers(1);
        let outcome = commit_in_turn(&store, &fence, &mut known, &late).await;
        assert!(outcome.is_err());
        assert_eq!(store.peek("/a/0").items[0].value.len(), 1, "it was written");
        let next = [vec![put("/a/0".into(), 2)].into()];
        let outcome = commit_in_turn(&store, &fence, &mut known, &next).await;
        assert!(matches!(outcome, Ok(Outcome::Refused { written: 0, .. })));
        // Writes that follow from nothing take no turn.
        commit(&store, &fence, &next).await.expect("committed");
        let mut now = store.peek(keys::PLANNED).items[0].mod_revision;
        let outcome = commit_in_turn(&store, &fence, &mut now, &next).await;
        assert!(matches!(outcome, Ok(Outcome::Done(_))));
    }

    #[tokio::test]
    async fn says_how_far_it_came() {
        let store = MemoryStore::new();
        let fence = fence(&store).await;
        let mut groups: Vec<Group> = vec![vec![put("/a".into(), 1)].into()];
        groups.push(Group {
            conditions: vec![Compare::ModRevision("/b".into(), 7)],
            operations: vec![put("/a".into(), 2)],
        });
        let outcome = commit(&store, &fence, &groups).await.expect("answered");
        let refused = Outcome::Refused {
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
}
