//! Keys with their values, transactions, and the limits of a transaction.

/// A key of the store with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The whole key.
    pub key: String,
    /// Bytes of the value.
    pub value: Vec<u8>,
    /// Revision of the store at which the key was last written.
    pub mod_revision: i64,
    /// Revision of the store at which the key was created.
    pub create_revision: i64,
}

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key's last write was at this revision; 0 means that it does not exist.
    ModRevision(String, i64),
    /// The key was created at this revision; a leader's fence compares its election key in this
    /// way.
    CreateRevision(String, i64),
}

/// A write of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOperation {
    /// Write a key.
    Put(String, Vec<u8>),
    /// Delete a key; nothing happens if it does not exist.
    Delete(String),
    /// Delete every key with this prefix.
    DeletePrefix(String),
}

impl WriteOperation {
    /// The key, or for [`WriteOperation::DeletePrefix`] the prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put(key, _) | Self::Delete(key) | Self::DeletePrefix(key) => key,
        }
    }
}

/// Maximum number of operations, and of conditions, in one transaction: etcd's `--max-txn-ops`.
pub const MAX_OPERATIONS: usize = 128;

/// Maximum bytes of keys and values in one transaction: 1.4 MiB, which leaves room for the encoding
/// below etcd's `--max-request-bytes` of 1.5 MiB.
pub const MAX_BYTES: usize = 1_468_006;

/// Bytes of one operation as [`MAX_BYTES`] counts them: key, value, and 16 for the encoding.
pub fn operation_bytes(operation: &WriteOperation) -> usize {
    16 + match operation {
        WriteOperation::Put(key, value) => key.len() + value.len(),
        WriteOperation::Delete(key) => key.len(),
        WriteOperation::DeletePrefix(prefix) => prefix.len() * 2,
    }
}

/// Bytes of one condition.
fn condition_bytes(condition: &Compare) -> usize {
    16 + compared_key(condition).len()
}

/// Size of a transaction, or of a part of one, for comparison with the limits.
#[derive(Debug, Clone, Copy)]
pub struct TransactionSize {
    /// Number of conditions.
    pub conditions: usize,
    /// Number of operations.
    pub operations: usize,
    /// Bytes of both, as [`MAX_BYTES`] counts them.
    pub bytes: usize,
}

impl TransactionSize {
    /// Size of these conditions and operations together.
    pub fn of(conditions: &[Compare], operations: &[WriteOperation]) -> Self {
        Self {
            conditions: conditions.len(),
            operations: operations.len(),
            bytes: conditions.iter().map(condition_bytes).sum::<usize>()
                + operations.iter().map(operation_bytes).sum::<usize>(),
        }
    }

    /// Size of both parts in one transaction.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            conditions: self.conditions + other.conditions,
            operations: self.operations + other.operations,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Whether one transaction can hold this.
    pub fn fits(self) -> bool {
        self.conditions <= MAX_OPERATIONS
            && self.operations <= MAX_OPERATIONS
            && self.bytes <= MAX_BYTES
    }
}

/// The key that a condition compares.
pub fn compared_key(condition: &Compare) -> &str {
    match condition {
        Compare::ModRevision(key, _) | Compare::CreateRevision(key, _) => key,
    }
}
