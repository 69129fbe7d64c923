//! Limits of a transaction. They are the same for every store and are checked before anything is
//! sent, so that a test with the memory store refuses what etcd would refuse.

use std::collections::BTreeSet;

use super::StoreError;
use kat_types::store::transaction::{
    Compare, MAX_BYTES, MAX_OPERATIONS, TransactionSize, WriteOperation, compared_key,
};

/// Checks a transaction: counts, bytes, empty keys, a key twice.
///
/// # Errors
/// [`StoreError::Invalid`], which names the key or the number.
pub fn check(conditions: &[Compare], operations: &[WriteOperation]) -> Result<(), StoreError> {
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

fn check_keys(operations: &[WriteOperation]) -> Result<(), StoreError> {
    let mut keys = BTreeSet::new();
    let mut prefixes = Vec::new();
    for operation in operations {
        match operation {
            WriteOperation::Put(key, _) | WriteOperation::Delete(key) => {
                if key.is_empty() {
                    return Err(StoreError::Invalid("an operation has an empty key".into()));
                }
                if !keys.insert(key.as_str()) {
                    return Err(StoreError::Invalid(format!(
                        "a transaction writes the key {key} twice"
                    )));
                }
            }
            WriteOperation::DeletePrefix(prefix) => {
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

    fn put(key: &str) -> WriteOperation {
        WriteOperation::Put(key.into(), b"value".to_vec())
    }

    fn refusal(operations: &[WriteOperation]) -> String {
        check(&[], operations).expect_err("refused").to_string()
    }

    #[test]
    fn refuses_a_key_twice_and_a_key_below_a_deleted_prefix() {
        assert!(refusal(&[put("/a"), WriteOperation::Delete("/a".into())]).contains("/a twice"));
        let prefix = WriteOperation::DeletePrefix("/a/".into());
        assert!(refusal(&[put("/a/1"), prefix.clone()]).contains("/a/1"));
        assert!(
            refusal(&[prefix.clone(), WriteOperation::DeletePrefix("/a/b/".into())])
                .contains("within")
        );
        assert!(check(&[], &[put("/a"), put("/b/1"), prefix]).is_ok());
    }

    #[test]
    fn refuses_too_many_and_too_large() {
        let many: Vec<_> = (0..129).map(|n| put(&format!("/{n}"))).collect();
        assert!(refusal(&many).contains("129 operations"));
        assert!(check(&[], &many[..128]).is_ok());
        let large = WriteOperation::Put("/a".into(), vec![0; MAX_BYTES]);
        assert!(refusal(&[large]).contains("bytes"));
        let conditions: Vec<_> = (0..129)
            .map(|n| Compare::ModRevision(format!("/{n}"), 0))
            .collect();
        assert!(check(&conditions, &[]).is_err());
    }

    #[test]
    fn refuses_empty_keys() {
        assert!(refusal(&[put("")]).contains("empty key"));
        assert!(refusal(&[WriteOperation::DeletePrefix(String::new())]).contains("empty"));
    }
}
