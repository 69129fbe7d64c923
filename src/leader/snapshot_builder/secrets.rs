//! Secrets and the keys that seal them, as they are stored.

use std::{collections::BTreeMap, sync::Arc};

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
        let mut kept = BTreeMap::new();
        for (name, entry) in entries_below(entries, keys::SECRETS) {
            let Some(key) = SecretKey::parse(name) else {
                continue;
            };
            let known = self.secrets.remove(&entry.key);
            let known = known.filter(|(revision, _)| *revision == entry.mod_revision);
            let parsed = match known {
                Some((_, parsed)) => Some(parsed),
                None => self
                    .json::<SecretRecord>(entry)
                    .map(|stored| Arc::new(stored.value)),
            };
            let Some(value) = parsed else {
                snapshot.unread_secrets += 1;
                continue;
            };
            let revision = entry.mod_revision;
            kept.insert(entry.key.clone(), (revision, Arc::clone(&value)));
            snapshot.secrets.insert(key, Stored { revision, value });
        }
        self.secrets = kept;
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
