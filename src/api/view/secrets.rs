//! Secrets as users see them: no values.

use super::ApiView;
use kat_plan::{behind_secret, users_of_secret};
use kat_types::{
    api::{Item, Metadata, SecretItem, SecretKeyView, SecretSpec, SecretStatus},
    secrets::{SecretKey, SecretRecord},
    store::revisions::Stored,
};

impl ApiView<'_> {
    /// Secrets of one namespace, or of all, by namespace and name.
    pub(crate) fn secrets(&self, namespace: Option<&str>) -> Vec<SecretItem> {
        let keys = self.snapshot.secrets.keys();
        keys.filter(|key| namespace.is_none_or(|namespace| key.namespace == namespace))
            .filter_map(|key| self.secret(key))
            .collect()
    }

    /// One secret.
    pub(crate) fn secret(&self, key: &SecretKey) -> Option<SecretItem> {
        let stored = self.snapshot.secrets.get(key)?;
        let record = stored.value.as_ref();
        let keys = record.keys.iter().map(|(name, known)| SecretKeyView {
            name: name.clone(),
            size: known.size as u64,
        });
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        Some(Item {
            kind: "Secret".to_owned(),
            metadata: secret_metadata(key, record, stored.revision),
            spec: SecretSpec {
                keys: keys.collect(),
            },
            status: SecretStatus {
                updated: record.updated.into(),
                used_by: owned(users_of_secret(self.snapshot, key)),
                behind: owned(behind_secret(self.snapshot, key)),
            },
        })
    }
}

/// Metadata of a secret.
pub(crate) fn secret_metadata(key: &SecretKey, record: &SecretRecord, revision: i64) -> Metadata {
    Metadata {
        name: key.name.clone(),
        namespace: Some(key.namespace.clone()),
        uid: record.uid.clone(),
        generation: record.version,
        resource_version: revision.to_string(),
        creation_timestamp: record.created.into(),
        ..Metadata::default()
    }
}

/// Metadata of a stored secret.
pub(crate) fn stored_secret_metadata(
    key: &SecretKey,
    stored: &Stored<std::sync::Arc<SecretRecord>>,
) -> Metadata {
    secret_metadata(key, &stored.value, stored.revision)
}
