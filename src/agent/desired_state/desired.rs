//! The desired list of this machine, from the store or from the disk.

use std::{collections::BTreeMap, ops::Bound, path::Path};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use kat_host::files::{self, FileAccess, FileError};
use kat_store::mirror::MirrorEntries;
use kat_types::{
    assignment::{Assignment, DesiredMeta},
    images::KeptImages,
    store::keys,
    volumes::{MoveRecord, RemovalRecord},
};

/// `/var/lib/kat/desired.json`: the last list that the store confirmed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredState {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// [`DesiredMeta::revision`] of the list.
    pub revision: u64,
    /// By instance.
    pub assignments: BTreeMap<String, Assignment>,
    /// Volumes whose data is to be removed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removals: BTreeMap<String, RemovalRecord>,
    /// Volumes whose data is to be sent or received.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub moves: BTreeMap<String, MoveRecord>,
    /// Images to keep beside those of the assignments; `None` where the leader's version does not
    /// publish them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<KeptImages>,
}

/// Largest stored list in bytes.
const STORED_LIMIT: u64 = 64 << 20;

impl DesiredState {
    /// Reads the list that was stored before the agent last stopped, if there is one and it can be
    /// read. The agent acts on it at once, but removes nothing because of it.
    pub fn stored(path: &Path) -> Option<Self> {
        let content = match files::read_bounded(path, STORED_LIMIT) {
            Ok(content) => content,
            Err(error) if error.is_not_found() => return None,
            Err(error) => {
                tracing::error!("the stored list can't be read; waiting for etcd: {error:#}");
                return None;
            }
        };
        match serde_json::from_slice(&content) {
            Ok(desired) => Some(desired),
            Err(error) => {
                tracing::error!(path = %path.display(), "the stored list can't be read; waiting for etcd: {error:#}");
                None
            }
        }
    }

    /// Stores the list for the next start, mode 0600.
    pub fn store(&self, path: &Path) -> Result<(), FileError> {
        let content = files::json_of(path, self)?;
        files::write_if_changed(path, &content, FileAccess::mode(0o600)).map(drop)
    }
}

/// Why a list was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DesiredError {
    /// The list has no meta: the leader never wrote a list for this machine. An empty list has a
    /// meta, too.
    #[error("there is no desired list for machine {0} yet")]
    NoMeta(String),
    /// The meta can't be read.
    #[error("{0}: {1}")]
    Meta(String, String),
    /// The list is incomplete.
    #[error("the desired list has {found} of {expected} entries")]
    Partial {
        /// Entries found.
        found: usize,
        /// Entries that the meta counts.
        expected: usize,
    },
    /// An entry can't be read, so the list is incomplete.
    #[error("{0}: {1}")]
    Entry(String, String),
}

/// Reads the list from the keys below `/kat/nodes/desired/{node}/`, all of one revision.
///
/// An incomplete list is an error, never a shorter list.
pub fn read(entries: &MirrorEntries, node: &str) -> Result<DesiredState, DesiredError> {
    let meta_key = keys::desired_meta(node);
    let meta = entries
        .get(meta_key.as_str())
        .ok_or_else(|| DesiredError::NoMeta(node.to_owned()))?;
    let meta: DesiredMeta = serde_json::from_slice(&meta.value)
        .map_err(|error| DesiredError::Meta(meta_key, error.to_string()))?;
    let prefix = keys::desired_instances(node);
    let mut assignments = BTreeMap::new();
    let below = entries.range::<_, str>((Bound::Included(prefix.as_str()), Bound::Unbounded));
    for (key, entry) in below.take_while(|(key, _)| key.starts_with(&prefix)) {
        let assignment: Assignment = serde_json::from_slice(&entry.value)
            .map_err(|error| DesiredError::Entry(key.to_string(), error.to_string()))?;
        assignments.insert(assignment.instance.clone(), assignment);
    }
    if assignments.len() != meta.count {
        return Err(DesiredError::Partial {
            found: assignments.len(),
            expected: meta.count,
        });
    }
    Ok(DesiredState {
        schema: 1,
        revision: meta.revision,
        assignments,
        removals: records(entries, &keys::desired_removals(node)),
        moves: records(entries, &keys::desired_moves(node)),
        images: entries
            .get(keys::desired_images(node).as_str())
            .and_then(|entry| serde_json::from_slice(&entry.value).ok()),
    })
}

/// Reads the requests for single volumes. The requests are independent: one that can't be read is
/// skipped.
fn records<T: DeserializeOwned>(entries: &MirrorEntries, prefix: &str) -> BTreeMap<String, T> {
    let below = entries.range::<_, str>((Bound::Included(prefix), Bound::Unbounded));
    let records = below.map_while(|(key, entry)| Some((key.strip_prefix(prefix)?, entry)));
    let read = records.filter_map(|(volume, entry)| {
        let record: T = serde_json::from_slice(&entry.value).ok()?;
        Some((volume.to_owned(), record))
    });
    read.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use kat_types::store::transaction::KeyValue;

    fn entry(key: &str, value: &str) -> (Arc<str>, Arc<KeyValue>) {
        let entry = KeyValue {
            key: key.to_owned(),
            value: value.as_bytes().to_vec(),
            mod_revision: 1,
            create_revision: 1,
        };
        (key.into(), Arc::new(entry))
    }

    #[test]
    fn an_empty_list_must_be_confirmed() {
        assert_eq!(
            read(&MirrorEntries::new(), "n1"),
            Err(DesiredError::NoMeta("n1".to_owned()))
        );
        let entries = MirrorEntries::from_iter([entry(
            "/kat/nodes/desired/n1/meta",
            r#"{"schema":1,"revision":4,"count":0}"#,
        )]);
        assert_eq!(
            read(&entries, "n1").map(|desired| (desired.revision, desired.assignments.len())),
            Ok((4, 0))
        );
    }

    #[test]
    fn a_partial_list_is_refused() {
        let entries = MirrorEntries::from_iter([entry(
            "/kat/nodes/desired/n1/meta",
            r#"{"schema":1,"revision":4,"count":2}"#,
        )]);
        assert_eq!(
            read(&entries, "n1"),
            Err(DesiredError::Partial {
                found: 0,
                expected: 2
            })
        );
    }

    #[test]
    fn an_unreadable_entry_is_not_a_shorter_list() {
        let entries = MirrorEntries::from_iter([
            entry(
                "/kat/nodes/desired/n1/meta",
                r#"{"schema":1,"revision":4,"count":1}"#,
            ),
            entry("/kat/nodes/desired/n1/instances/web-aaaaa", "{"),
        ]);
        assert!(matches!(read(&entries, "n1"), Err(DesiredError::Entry(..))));
    }
}
