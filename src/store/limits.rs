//! What one transaction may hold. The same rules for every store, checked before anything is sent,
//! so that a test against memory refuses what etcd would.

use std::collections::BTreeSet;

use super::{Compare, Operation, StoreError};

/// Most operations, and most conditions, in one transaction: etcd's `--max-txn-ops`.
pub const MAX_OPERATIONS: usize = 128;

/// Most bytes of keys and values in one transaction: 1.4 MiB, which leaves room for the encoding
/// below etcd's `--max-request-bytes` of 1.5 MiB.
pub const MAX_BYTES: usize = 1_468_006;

/// Bytes of one operation as [`MAX_BYTES`] counts them: key, value, and 16 for the encoding.
pub(crate) fn operation_bytes(operation: &Operation) -> usize {
    16 + match operation {
        Operation::Put(key, value) => key.len() + value.len(),
        Operation::Delete(key) => key.len(),
        Operation::DeletePrefix(prefix) => prefix.len() * 2,
    }
}

/// Bytes of one condition.
fn condition_bytes(condition: &Compare) -> usize {
    16 + compared_key(condition).len()
}

/// What a transaction, or a part of one, takes of its limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TransactionSize {
    pub(crate) conditions: usize,
    pub(crate) operations: usize,
    pub(crate) bytes: usize,
}

impl TransactionSize {
    pub(crate) fn of(conditions: &[Compare], operations: &[Operation]) -> Self {
        Self {
            conditions: conditions.len(),
            operations: operations.len(),
            bytes: conditions.iter().map(condition_bytes).sum::<usize>()
                + operations.iter().map(operation_bytes).sum::<usize>(),
        }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            conditions: self.conditions + other.conditions,
            operations: self.operations + other.operations,
            bytes: self.bytes + other.bytes,
        }
    }

    pub(crate) fn fits(self) -> bool {
        self.conditions <= MAX_OPERATIONS
            && self.operations <= MAX_OPERATIONS
            && self.bytes <= MAX_BYTES
    }
}

/// The key that a condition looks at.
pub(crate) fn compared_key(condition: &Compare) -> &str {
    match condition {
        Compare::ModRevision(key, _) | Compare::CreateRevision(key, _) => key,
    }
}

/// Checks a transaction: counts, bytes, empty keys, a key twice.
///
/// # Errors
/// [`StoreError::Invalid`], which names the key or the number.
pub(crate) fn check(conditions: &[Compare], operations: &[Operation]) -> Result<(), StoreError> {
    let size = TransactionSize::of(conditions, operations);
    for (count, what) in [
        (size.conditions, "conditions"),
        (size.operations, "operations"),
    ] {
        if count > MAX_OPERATIONS {
            return Err(StoreError::Invalid(format!(
                "a transaction has {count} {what}, at most {MAX_OPERATIONS} are allowed"
            )));
        }
    }
    if size.bytes > MAX_BYTES {
        let bytes = size.bytes;
        return Err(StoreError::Invalid(format!(
            "a transaction has {bytes} bytes, at most {MAX_BYTES} are allowed"
        )));
    }
    if conditions
        .iter()
        .any(|condition| compared_key(condition).is_empty())
    {
        return Err(StoreError::Invalid("a condition has an empty key".into()));
    }
    check_keys(operations)
}

fn check_keys(operations: &[Operation]) -> Result<(), StoreError> {
    let mut keys = BTreeSet::new();
    let mut prefixes = Vec::new();
    for operation in operations {
        match operation {
            Operation::Put(key, _) | Operation::Delete(key) => {
                if key.is_empty() {
                    return Err(StoreError::Invalid("an operation has an empty key".into()));
                }
                if !keys.insert(key.as_str()) {
                    return Err(StoreError::Invalid(format!(
                        "a transaction writes the key {key} twice"
                    )));
                }
            }
            Operation::DeletePrefix(prefix) => {
                if prefix.is_empty() {
                    return Err(StoreError::Invalid(
                        "the prefix to delete is empty; that would delete everything".into(),
                    ));
                }
                prefixes.push(prefix.as_str());
            }
        }
    }
    for (index, prefix) in prefixes.iter().enumerate() {
        let other = prefixes.iter().take(index);
        if let Some(twice) = other
            .copied()
            .find(|other| other.starts_with(prefix) || prefix.starts_with(other))
        {
            return Err(StoreError::Invalid(format!(
                "a transaction deletes the prefixes {prefix} and {twice}, one within the other"
            )));
        }
        let first = keys.range(*prefix..).next();
        if let Some(key) = first.filter(|key| key.starts_with(prefix)) {
            return Err(StoreError::Invalid(format!(
                "a transaction writes the key {key} and deletes its prefix {prefix}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> Operation {
        Operation::Put(key.into(), b"value".to_vec())
    }

    fn refusal(operations: &[Operation]) -> String {
        check(&[], operations).expect_err("refused").to_string()
    }

    #[test]
    fn refuses_a_key_twice_and_a_key_below_a_deleted_prefix() {
        assert!(refusal(&[put("/a"), Operation::Delete("/a".into())]).contains("/a twice"));
        let prefix = Operation::DeletePrefix("/a/".into());
        assert!(refusal(&[put("/a/1"), prefix.clone()]).contains("/a/1"));
        assert!(
            refusal(&[prefix.clone(), Operation::DeletePrefix("/a/b/".into())]).contains("within")
        );
        assert!(check(&[], &[put("/a"), put("/b/1"), prefix]).is_ok());
    }

    #[test]
    fn refuses_too_many_and_too_large() {
        let many: Vec<_> = (0..129).map(|n| put(&format!("/{n}"))).collect();
        assert!(refusal(&many).contains("129 operations"));
        assert!(check(&[], &many[..128]).is_ok());
        let large = Operation::Put("/a".into(), vec![0; MAX_BYTES]);
        assert!(refusal(&[large]).contains("bytes"));
        let conditions: Vec<_> = (0..129)
            .map(|n| Compare::ModRevision(format!("/{n}"), 0))
            .collect();
        assert!(check(&conditions, &[]).is_err());
    }

    #[test]
    fn refuses_empty_keys() {
        assert!(refusal(&[put("")]).contains("empty key"));
        assert!(refusal(&[Operation::DeletePrefix(String::new())]).contains("empty"));
    }
}
