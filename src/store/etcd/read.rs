//! Reads: one key, or a prefix in pages that all show the same revision.

use etcd_client::{GetOptions, GetResponse};
use tokio::time::Instant;

use super::{EtcdStore, error};
use crate::{Listing, StoreError};
use kat_types::store::transaction::KeyValue;

/// Maximum bytes of an accepted answer. A page aims at [`PAGE_BYTES`]; one value is at most 1.5
/// MiB.
const MOST_BYTES: usize = 16 << 20;
/// Bytes that a page aims at.
const PAGE_BYTES: usize = 2 << 20;
/// Keys of the first page.
const FIRST_PAGE: i64 = 256;
/// Maximum number of keys of a page.
const MOST_KEYS: i64 = 8192;

impl EtcdStore {
    /// One key, and the store's revision.
    pub(super) async fn read_one(&self, key: &str) -> Result<(Option<KeyValue>, i64), StoreError> {
        let sent = Instant::now();
        let answer = self
            .call(true, |client| async move {
                client
                    .kv_client()
                    .max_decoding_message_size(MOST_BYTES)
                    .get(key, None)
                    .await
            })
            .await?;
        let revision = error::revision(answer.header())?;
        self.note_read(sent, revision);
        let found = answer.kvs().first().map(key_value).transpose()?;
        Ok((found, revision))
    }

    /// Every key with the prefix. The size of the pages follows the size of the values.
    pub(super) async fn read_all(&self, prefix: &str) -> Result<Listing, StoreError> {
        let sent = Instant::now();
        let mut listing = Listing::default();
        let mut limit = FIRST_PAGE;
        loop {
            let start = match listing.items.last() {
                Some(last) => [last.key.as_bytes(), &[0]].concat(),
                // etcd has no empty keys: the lowest key replaces an empty prefix.
                None if prefix.is_empty() => vec![0],
                None => prefix.as_bytes().to_vec(),
            };
            let Some(page) = self
                .read_page(prefix, start, limit, listing.revision)
                .await?
            else {
                limit = (limit / 4).max(1);
                continue;
            };
            if listing.revision == 0 {
                listing.revision = error::revision(page.header())?;
                self.note_read(sent, listing.revision);
            }
            let mut bytes = 0;
            for item in page.kvs() {
                bytes += item.key().len() + item.value().len() + 32;
                listing.items.push(key_value(item)?);
            }
            if !page.more() || page.kvs().is_empty() {
                return Ok(listing);
            }
            limit = next_limit(page.kvs().len(), bytes);
        }
    }

    /// Reads one page; `None` if the page is too large to be accepted.
    async fn read_page(
        &self,
        prefix: &str,
        start: Vec<u8>,
        limit: i64,
        revision: i64,
    ) -> Result<Option<GetResponse>, StoreError> {
        let options = GetOptions::new()
            .with_range(end_of(prefix))
            .with_limit(limit)
            .with_revision(revision);
        let page = self
            .call(true, |client| {
                let (start, options) = (start.clone(), options.clone());
                async move {
                    let answer = client
                        .kv_client()
                        .max_decoding_message_size(MOST_BYTES)
                        .get(start, Some(options))
                        .await;
                    match answer {
                        Ok(page) => Ok(Some(page)),
                        Err(failure) if limit > 1 && error::is_too_large(&failure) => Ok(None),
                        Err(failure) => Err(failure),
                    }
                }
            })
            .await;
        match page {
            Err(StoreError::Compacted(_)) => Err(StoreError::Compacted(revision)),
            page => page,
        }
    }
}

/// Number of keys of the next page, from the keys and bytes of the last one.
fn next_limit(keys: usize, bytes: usize) -> i64 {
    let next = keys.saturating_mul(PAGE_BYTES) / bytes.max(1);
    i64::try_from(next).unwrap_or(MOST_KEYS).clamp(1, MOST_KEYS)
}

/// The end of etcd's range for a prefix: the first key after all keys with the prefix; `\0` means
/// no end.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// A key of the store; KAT writes UTF-8 keys only.
pub(super) fn key_value(item: &etcd_client::KeyValue) -> Result<KeyValue, StoreError> {
    Ok(KeyValue {
        key: key_of(item)?,
        value: item.value().to_vec(),
        mod_revision: item.mod_revision(),
        create_revision: item.create_revision(),
    })
}

/// The name of a key.
pub(super) fn key_of(item: &etcd_client::KeyValue) -> Result<String, StoreError> {
    String::from_utf8(item.key().to_vec()).map_err(|_| {
        let key = String::from_utf8_lossy(item.key());
        StoreError::Invalid(format!(
            "the key `{key}` is not UTF-8; KAT did not write it"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_key() {
        assert_eq!(end_of("/kat/"), b"/kat0");
        assert_eq!(end_of(""), [0]);
        assert_eq!(end_of("a\u{7f}"), b"a\x80");
    }

    #[test]
    fn pages_follow_the_size_of_the_values() {
        assert_eq!(next_limit(256, 256 * 1024), 2048);
        assert_eq!(next_limit(2, 3 << 20), 1);
        assert_eq!(next_limit(1, 3 << 20), 1);
        assert_eq!(next_limit(256, 256), MOST_KEYS);
    }
}
