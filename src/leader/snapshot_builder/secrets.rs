//! Secrets and the keys that seal them, as they are stored.

use std::sync::Arc;

use super::{SnapshotBuilder, entries_below};
use kat_plan::Snapshot;
use kat_store::mirror::MirrorEntries;
use kat_types::{
    registry::{LoginPlace, LoginRecord},
    secrets::{SealingKeyRecord, SecretKey, SecretRecord},
    store::{keys, revisions::Stored},
};

impl SnapshotBuilder {
    pub(crate) fn read_secrets(&mut self, entries: &MirrorEntries, snapshot: &mut Snapshot) {
        snapshot.sealing = self.sealing.clone();
        for (number, entry) in entries_below(entries, keys::SEALING) {
            let Ok(number) = number.parse() else { continue };
            match self.json::<SealingKeyRecord>(entry) {
                Some(value) => drop(snapshot.sealing_keys.insert(number, value)),
                // What is sealed with it does not open, and the recovery key that opens it is not
                // known.
                None => snapshot.unread_secrets += 1,
            }
        }
        let mut earlier = self.secrets.take();
        for (name, entry) in entries_below(entries, keys::SECRETS) {
            let Some(key) = SecretKey::parse(name) else {
                continue;
            };
            let parsed = earlier.find(entry).or_else(|| {
                let stored = self.json::<SecretRecord>(entry)?;
                Some(Arc::new(stored.value))
            });
            let Some(value) = parsed else {
                snapshot.unread_secrets += 1;
                continue;
            };
            self.secrets.push(entry, &value);
            let revision = entry.mod_revision;
            snapshot.secrets.insert(key, Stored { revision, value });
        }
        for (name, entry) in entries_below(entries, keys::LOGINS) {
            let Some((namespace, place)) = name.split_once('/') else {
                continue;
            };
            match self.json::<LoginRecord>(entry) {
                Some(value) => {
                    let logins = snapshot.logins.entry(namespace.to_owned()).or_default();
                    logins.insert(LoginPlace::parse(place), value);
                }
                None => snapshot.unread_secrets += 1,
            }
        }
    }
}
