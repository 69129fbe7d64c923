//! Secrets and the keys that seal them, as they are stored.

use std::sync::Arc;

use super::{SnapshotBuilder, entries_below};
use kat_plan::Snapshot;
use kat_store::mirror::MirrorEntries;
use kat_types::{
    registry::{LoginPlace, LoginRecord},
    secrets::{SealingKeyRecord, SecretKey, SecretRecord},
    store::{
        acme::{
            AcmeAccountRecord, AcmeChallengeRecord, AcmeDnsRecord, AcmeNewOrdersRecord,
            AcmeOrderRecord,
        },
        ingress::{
            IngressAuthorityRecord, IngressCertificateRecord, IngressStickyRecord, OutsideRoute,
            OutsideRouteRecord,
        },
        keys,
        revisions::Stored,
    },
};

fn shared<T>(stored: Stored<T>) -> Stored<Arc<T>> {
    Stored {
        revision: stored.revision,
        value: Arc::new(stored.value),
    }
}

impl SnapshotBuilder {
    /// KAT's own authority for ingress and its certificates.
    fn read_ingress(&mut self, entries: &MirrorEntries, snapshot: &mut Snapshot) {
        let claims = entries.get(keys::INGRESS_CLAIMS);
        snapshot.claims_revision = claims.map_or(0, |entry| entry.mod_revision);
        if let Some(entry) = entries.get(keys::INGRESS_AUTHORITY) {
            match self.json::<IngressAuthorityRecord>(entry) {
                Some(stored) => snapshot.ingress_authority = Some(shared(stored)),
                None => snapshot.unread_secrets += 1,
            }
        }
        let renewal = entries.get(keys::INGRESS_RENEWAL);
        snapshot.ingress_renewal = renewal.and_then(|entry| self.json(entry));
        for (name, entry) in entries_below(entries, keys::OUTSIDE_ROUTES) {
            let Some(Stored { revision, value }) = self.json::<OutsideRouteRecord>(entry) else {
                snapshot.unread_outside_routes += 1;
                continue;
            };
            let value = Arc::new(OutsideRoute::of(value));
            let routes = &mut snapshot.outside_routes;
            routes.insert(name.to_owned(), Stored { revision, value });
        }
        if let Some(entry) = entries.get(keys::INGRESS_STICKY) {
            match self.json::<IngressStickyRecord>(entry) {
                Some(stored) => snapshot.ingress_sticky = Some(shared(stored)),
                None => snapshot.unread_secrets += 1,
            }
        }
        for (host, entry) in entries_below(entries, keys::INGRESS_CERTIFICATES) {
            match self.json::<IngressCertificateRecord>(entry) {
                Some(stored) => {
                    let certificates = &mut snapshot.ingress_certificates;
                    certificates.insert(host.to_owned(), shared(stored));
                }
                None => snapshot.unread_secrets += 1,
            }
        }
        for (id, entry) in entries_below(entries, keys::ACME_ACCOUNTS) {
            match self.json::<AcmeAccountRecord>(entry) {
                Some(stored) => {
                    let accounts = &mut snapshot.acme_accounts;
                    accounts.insert(id.to_owned(), shared(stored));
                }
                None => {
                    snapshot.unread_secrets += 1;
                    snapshot.unread_acme.insert(id.to_owned());
                }
            }
        }
        for (host, entry) in entries_below(entries, keys::ACME_ORDERS) {
            match self.json::<AcmeOrderRecord>(entry) {
                Some(stored) => {
                    snapshot.acme_orders.insert(host.to_owned(), shared(stored));
                }
                None => {
                    snapshot.unread_secrets += 1;
                    snapshot.unread_acme.insert(host.to_owned());
                }
            }
        }
        for (token, entry) in entries_below(entries, keys::ACME_CHALLENGES) {
            if let Some(stored) = self.json::<AcmeChallengeRecord>(entry) {
                snapshot.acme_challenges.insert(token.to_owned(), stored);
            }
        }
        for (value, entry) in entries_below(entries, keys::ACME_DNS) {
            if let Some(stored) = self.json::<AcmeDnsRecord>(entry) {
                snapshot.acme_dns.insert(value.to_owned(), stored);
            }
        }
        for (namespace, entry) in entries_below(entries, keys::ACME_NEW_ORDERS) {
            if let Some(stored) = self.json::<AcmeNewOrdersRecord>(entry) {
                let counts = &mut snapshot.acme_new_orders;
                counts.insert(namespace.to_owned(), stored);
            }
        }
    }

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
        self.read_ingress(entries, snapshot);
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
