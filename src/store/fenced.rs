//! Commits of the leader: a long list of changes, split into transactions that each contain the
//! fence.

use super::{StateStore, StoreError, TransactionResult};
use kat_types::store::{
    keys,
    transaction::{Compare, MAX_BYTES, MAX_OPERATIONS, TransactionSize, WriteOperation},
};

/// Writes that must take effect together, and their conditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteGroup {
    /// Conditions besides the fence.
    pub conditions: Vec<Compare>,
    /// The writes; they are not split over transactions.
    pub operations: Vec<WriteOperation>,
}

impl From<Vec<WriteOperation>> for WriteGroup {
    fn from(operations: Vec<WriteOperation>) -> Self {
        Self {
            conditions: Vec::new(),
            operations,
        }
    }
}

/// Result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
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
/// conditions share a transaction, so they may be refused together; see [`CommitOutcome::Refused`].
pub async fn commit(
    store: &dyn StateStore,
    fence: &Compare,
    groups: &[WriteGroup],
) -> Result<CommitOutcome, CommitError> {
    write(store, fence, None, groups).await
}

/// As [`commit`], for groups that were derived from stored state. `turn` is the revision of
/// [`keys::PLANNED`] in the copy from which they were derived, and becomes that of the last
/// transaction. Each transaction compares that key and writes it again. So a transaction is refused
/// if the copy lacks an earlier write; and one whose answer was lost, and that arrives late, is
/// refused if another was written since.
pub async fn commit_in_turn(
    store: &dyn StateStore,
    fence: &Compare,
    turn: &mut i64,
    groups: &[WriteGroup],
) -> Result<CommitOutcome, CommitError> {
    write(store, fence, Some(turn), groups).await
}

fn turn_group(turn: i64) -> WriteGroup {
    WriteGroup {
        conditions: vec![Compare::ModRevision(keys::PLANNED.to_owned(), turn)],
        operations: vec![WriteOperation::Put(keys::PLANNED.to_owned(), Vec::new())],
    }
}

async fn write(
    store: &dyn StateStore,
    fence: &Compare,
    mut turn: Option<&mut i64>,
    groups: &[WriteGroup],
) -> Result<CommitOutcome, CommitError> {
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
            Ok(TransactionResult::Yes(at)) => {
                revision = at;
                if let Some(turn) = &mut turn {
                    **turn = at;
                }
            }
            Ok(TransactionResult::No) => {
                return Ok(CommitOutcome::Refused {
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
        None => Ok(CommitOutcome::Done(revision)),
    }
}

/// Ranges of groups that share a transaction, up to the first group that fits into none. A group
/// with a key that an earlier group writes begins a new transaction, since no transaction may
/// contain a key twice.
fn cut(base: TransactionSize, groups: &[WriteGroup]) -> (Vec<(usize, usize)>, Option<CommitError>) {
    let mut pieces = Vec::new();
    let mut first = 0;
    let mut size = base;
    let mut keys: Vec<&WriteOperation> = Vec::new();
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
                    .map(WriteOperation::key)
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

fn size_of(group: &WriteGroup) -> TransactionSize {
    TransactionSize::of(&group.conditions, &group.operations)
}

/// Whether two writes can't be in one transaction.
fn overlap(one: &WriteOperation, other: &WriteOperation) -> bool {
    let (a, b) = (one.key(), other.key());
    match (one, other) {
        (WriteOperation::DeletePrefix(_), WriteOperation::DeletePrefix(_)) => {
            a.starts_with(b) || b.starts_with(a)
        }
        (WriteOperation::DeletePrefix(_), _) => b.starts_with(a),
        (_, WriteOperation::DeletePrefix(_)) => a.starts_with(b),
        _ => a == b,
    }
}
