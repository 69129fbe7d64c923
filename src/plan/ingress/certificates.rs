//! KAT's own authority for ingress and its certificates, and those that stand in for ordered ones: what
//! the leader makes next.
//!
//! [`next_certificate`] makes keys, and so is no part of a plan: the leader calls it between two plans.
//! A certificate is replaced when two thirds of its time are over, and never by nothing: a step that
//! fails leaves what is stored.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use jiff::Timestamp;

use super::{
    acme::ordered_hosts,
    authority::{IngressIssuer, first_authority, issuers, replacement_end, replacement_step},
    internal_domains, planned_routes,
    routes::hosts,
};
use crate::{
    EventLog, ResealingError, Snapshot, SnapshotSealing, another_data_key, recovery_key_unchanged,
};
use kat_pki::{
    CertificateKeyPair, PkiError, Validity,
    delivery::SealingError,
    ingress::{create_sticky_key, issue_ingress_certificate, stand_in_certificate},
    validity_of,
};
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference},
    encoding::{
        digest::sha256_hex,
        json::{self, NotEncoded},
    },
    reason::{EventReason, Reason},
    resource::secret::SecretValues,
    secrets::{SecretKey, SecretRecord},
    store::{
        ingress::{
            IngressCertificateRecord, IngressRenewalRecord, IngressStickyRecord, STICKY_KEY,
            TLS_CERTIFICATE, TLS_KEY, is_within,
        },
        keys,
        transaction::{Compare, WriteOperation},
    },
};

/// Most certificates that are issued or deleted in one step.
const BATCH: usize = 16;
/// Most certificates by ACME that stay for hosts that no route has any more.
const MOST_SPARE: usize = 64;

/// Namespace that no user's secret can have, for the contexts of sealing.
pub(super) const PLACE: &str = "/ingress";

/// Why a certificate can't be made.
#[derive(Debug, thiserror::Error)]
pub enum IssuingError {
    /// A key or a certificate can't be made or read.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A key can't be sealed or opened.
    #[error(transparent)]
    Sealing(#[from] SealingError),
    /// The data key can't be made.
    #[error(transparent)]
    DataKey(#[from] ResealingError),
    /// A record can't be written.
    #[error(transparent)]
    NotEncoded(#[from] NotEncoded),
}

/// A write that makes the authority or certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateStep {
    /// What is done, for the leader's log.
    pub what: String,
    /// The state that the step was decided from.
    pub conditions: Vec<Compare>,
    /// What is written.
    pub operations: Vec<WriteOperation>,
}

/// Name that routes use for a certificate of the authority, one by ACME, or one that stands in for it.
pub(super) fn given_name(host: &str, record: &IngressCertificateRecord) -> String {
    match record.acme {
        Some(_) => format!("acme:{host}"),
        None => format!("internal:{host}"),
    }
}

/// Whether it is the name of a certificate that browsers do not trust by themselves.
pub(super) fn is_internal(name: &str) -> bool {
    name.starts_with("internal:")
}

/// Whether a certificate is signed by itself, until the one that is ordered is there.
pub(super) fn stands_in(record: &IngressCertificateRecord) -> bool {
    record.acme.is_none() && record.authority.is_empty()
}

/// Where a certificate's key is sealed for.
pub(crate) fn certificate_place(host: &str) -> SecretKey {
    SecretKey::new(PLACE, &format!("certificate/{host}"))
}

/// Where the authority's key is sealed for.
pub(crate) fn authority_place() -> SecretKey {
    SecretKey::new(PLACE, "authority")
}

/// Where the key of the cookies of sticky routes is sealed for.
pub(crate) fn sticky_place() -> SecretKey {
    SecretKey::new(PLACE, STICKY_KEY)
}

/// The round that certificates have to be of.
pub(super) fn round(snapshot: &Snapshot) -> u64 {
    let stored = snapshot.ingress_renewal.as_ref();
    stored.map_or(0, |stored| stored.value.round)
}

/// The next round, in which every certificate is issued anew: a machine that has left may have kept
/// their keys. `None` without certificates.
pub(crate) fn next_round(snapshot: &Snapshot) -> Option<IngressRenewalRecord> {
    let issued = snapshot.ingress_certificates.values();
    let highest = issued.map(|stored| stored.value.round).max()?;
    Some(IngressRenewalRecord {
        schema: 1,
        round: round(snapshot).max(highest).saturating_add(1),
    })
}

/// The hosts that need certificates of the leader.
struct WantedHosts {
    /// The authority issues theirs.
    internal: BTreeSet<String>,
    /// Theirs are ordered by ACME.
    ordered: BTreeSet<String>,
    /// What is stored for them stays: also a certificate by ACME whose terms are agreed to no more.
    kept: BTreeSet<String>,
}

fn wanted_hosts(snapshot: &Snapshot, domains: &BTreeSet<String>) -> WantedHosts {
    let routes = planned_routes(snapshot);
    let of_leader = routes
        .iter()
        .filter(|route| route.uses_authority && route.is_assigned());
    let all: BTreeSet<&String> = of_leader.flat_map(|planned| hosts(planned.route)).collect();
    let internal = all.iter().filter(|host| is_within(host, domains));
    let by_acme = |host: &String| {
        let stored = snapshot.ingress_certificates.get(host);
        stored.is_some_and(|stored| stored.value.acme.is_some())
    };
    let internal: BTreeSet<String> = internal.map(|host| (*host).clone()).collect();
    let ordered = ordered_hosts(snapshot, &routes);
    let others = all.iter().filter(|host| by_acme(host));
    let kept = others.map(|host| (*host).clone());
    // Certificates by ACME are few a week: a route that is not served for a while loses none.
    let unserved = routes.iter().filter(|route| {
        let reason = route.trouble.as_ref().map(|trouble| trouble.reason);
        let returns = matches!(reason, Some(Reason::IngressDisabled | Reason::RouteRefused));
        route.uses_authority && returns
    });
    let unserved = unserved.flat_map(|planned| hosts(planned.route));
    let kept = kept
        .chain(unserved.filter(|host| by_acme(host)).cloned())
        .chain(internal.iter().cloned())
        .chain(ordered.iter().cloned());
    WantedHosts {
        kept: kept.collect(),
        internal,
        ordered,
    }
}

/// The next step after which every host has its certificate; `None` if all have.
///
/// # Errors
/// [`IssuingError`]; what is stored stays.
pub fn next_certificate(
    snapshot: &Snapshot,
    now: Timestamp,
) -> Result<Option<CertificateStep>, IssuingError> {
    let SnapshotSealing::With(_) = snapshot.sealing else {
        return Ok(None);
    };
    let domains = internal_domains(&snapshot.wanted_cluster().spec);
    let wanted = wanted_hosts(snapshot, &domains);
    let WantedHosts {
        internal,
        ordered,
        kept,
    } = &wanted;
    let wants_key = snapshot.ingress_sticky.is_none()
        && planned_routes(snapshot)
            .iter()
            .any(|planned| planned.route.sticky && planned.is_assigned());
    let authority = snapshot.ingress_authority.as_ref();
    let replaces = authority.is_some_and(|stored| stored.value.is_being_replaced());
    if internal.is_empty() && ordered.is_empty() && !wants_key && !replaces {
        return unwanted(snapshot, kept, now);
    }
    if snapshot.sealing_keys.is_empty() {
        return data_key_step(snapshot, now).map(Some);
    }
    if let Some(step) = missing_stand_ins(snapshot, ordered, now)? {
        return Ok(Some(step));
    }
    if wants_key {
        return new_sticky_key(snapshot, now).map(Some);
    }
    if internal.is_empty() && !replaces {
        return unwanted(snapshot, kept, now);
    }
    own_authority_step(snapshot, &domains, &wanted, now)
}

/// The next step of KAT's own authority: it is made or replaced, or issues certificates.
fn own_authority_step(
    snapshot: &Snapshot,
    domains: &BTreeSet<String>,
    wanted: &WantedHosts,
    now: Timestamp,
) -> Result<Option<CertificateStep>, IssuingError> {
    let Some(stored) = &snapshot.ingress_authority else {
        return first_authority(snapshot, domains, now).map(Some);
    };
    let is_used = !wanted.internal.is_empty();
    if let Some(step) = replacement_step(snapshot, stored, domains, is_used, now)? {
        return Ok(Some(step));
    }
    for issuer in issuers(&stored.value, &wanted.internal)? {
        if let Some(step) = issued_by(snapshot, &issuer, stored.revision, now)? {
            return Ok(Some(step));
        }
    }
    if let Some(step) = unwanted(snapshot, &wanted.kept, now)? {
        return Ok(Some(step));
    }
    replacement_end(snapshot, stored, &wanted.ordered, now)
}

/// The certificates that the authority has to issue now; `None` if its hosts have theirs. `revision` is
/// that of the authority's record.
fn issued_by(
    snapshot: &Snapshot,
    issuer: &IngressIssuer<'_>,
    revision: i64,
    now: Timestamp,
) -> Result<Option<CertificateStep>, IssuingError> {
    let wanted_round = round(snapshot);
    let due: Vec<&String> = issuer
        .hosts
        .iter()
        .copied()
        .filter(|host| {
            let stored = snapshot.ingress_certificates.get(*host);
            stored.is_none_or(|stored| {
                let IngressCertificateRecord {
                    authority, round, ..
                } = &*stored.value;
                *authority != issuer.hash || *round < wanted_round || is_due(&stored.value, now)
            })
        })
        .take(BATCH)
        .collect();
    if due.is_empty() {
        return Ok(None);
    }
    let opened = snapshot
        .sealing
        .open(snapshot, &authority_place(), issuer.key)?;
    let key = String::from_utf8(single_value(&opened, TLS_KEY)?)
        .map_err(|_| SealingError::Malformed("the authority's key".to_owned()))?;
    let pair = CertificateKeyPair {
        certificate_pem: issuer.certificate.to_owned(),
        key_pem: key,
    };
    let mut step = CertificateStep {
        what: String::new(),
        conditions: vec![Compare::ModRevision(
            keys::INGRESS_AUTHORITY.to_owned(),
            revision,
        )],
        operations: Vec::new(),
    };
    conditions_of_data_key(snapshot, &mut step);
    let names: Vec<_> = due.iter().map(|host| host.as_str()).collect();
    step.what = format!("certificates for {}", names.join(", "));
    let mut log = EventLog::new(&snapshot.events, now);
    for host in due {
        let leaf = issue_ingress_certificate(&pair, host, now)?;
        let not_after = step.store(snapshot, host, &leaf, issuer.hash.clone(), now)?;
        let is_another = snapshot.ingress_certificates.contains_key(host);
        let events = issued(snapshot, &mut log, host, is_another, not_after);
        step.operations.extend(events);
    }
    Ok(Some(step))
}

/// Certificates that are signed by themselves, for hosts that have none or only an old one of these:
/// port 443 can so answer with the page that says what it waits for.
fn missing_stand_ins(
    snapshot: &Snapshot,
    ordered: &BTreeSet<String>,
    now: Timestamp,
) -> Result<Option<CertificateStep>, IssuingError> {
    let missing = ordered.iter().filter(|host| {
        let stored = snapshot.ingress_certificates.get(*host);
        stored.is_none_or(|stored| stands_in(&stored.value) && is_due(&stored.value, now))
    });
    let missing: Vec<&String> = missing.take(BATCH).collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let mut step = CertificateStep {
        what: "certificates that stand in until those by ACME are there".to_owned(),
        ..CertificateStep::default()
    };
    conditions_of_data_key(snapshot, &mut step);
    for host in missing {
        let leaf = stand_in_certificate(host, now)?;
        step.store(snapshot, host, &leaf, String::new(), now)?;
    }
    Ok(Some(step))
}

impl CertificateStep {
    /// Stores a certificate that was made now, and returns its end; `authority` is the hash of the certificate of KAT's own
    /// authority if that issued it.
    fn store(
        &mut self,
        snapshot: &Snapshot,
        host: &str,
        leaf: &CertificateKeyPair,
        authority: String,
        now: Timestamp,
    ) -> Result<Timestamp, IssuingError> {
        let stored = snapshot.ingress_certificates.get(host);
        let Validity { not_after, .. } = validity_of(&leaf.certificate_pem)?;
        let before = stored.map(|stored| &stored.value.key);
        let values = [
            (TLS_CERTIFICATE, leaf.certificate_pem.as_bytes()),
            (TLS_KEY, leaf.key_pem.as_bytes()),
        ];
        let key = sealed(snapshot, &certificate_place(host), &values, before, now)?;
        let record = IngressCertificateRecord {
            schema: 1,
            certificate: leaf.certificate_pem.clone(),
            authority,
            acme: None,
            issued: now,
            expires: not_after,
            round: round(snapshot),
            key,
        };
        let name = keys::ingress_certificate(host);
        let revision = stored.map_or(0, |stored| stored.revision);
        self.conditions
            .push(Compare::ModRevision(name.clone(), revision));
        self.operations.push(put(name, &record)?);
        Ok(not_after)
    }
}

/// The write of the first data key.
pub(super) fn data_key_step(
    snapshot: &Snapshot,
    now: Timestamp,
) -> Result<CertificateStep, IssuingError> {
    let step = another_data_key(snapshot, now)?;
    Ok(CertificateStep {
        what: "the first data key".to_owned(),
        conditions: step.conditions,
        operations: step.operations,
    })
}

/// One of the opened values.
pub(super) fn single_value(opened: &SecretValues, key: &str) -> Result<Vec<u8>, IssuingError> {
    let found = opened.0.get(key).cloned();
    Ok(found.ok_or_else(|| SealingError::Malformed(format!("a value without {key}")))?)
}

/// The event of a workload whose host got a certificate.
fn issued(
    snapshot: &Snapshot,
    log: &mut EventLog,
    host: &String,
    before: bool,
    expires: Timestamp,
) -> Vec<WriteOperation> {
    let planned = planned_routes(snapshot).into_iter();
    let mut having = planned.filter(|planned| {
        planned.is_assigned()
            && (planned.route.host == *host || planned.route.redirect_from.contains(host))
    });
    let found = having.find_map(|planned| {
        let entry = snapshot.workloads.get(planned.workload)?;
        Some((planned.workload, entry))
    });
    let Some((key, entry)) = found else {
        return Vec::new();
    };
    let object = ObjectReference {
        kind: ObjectKind::Workload,
        name: key.name.clone(),
        namespace: key.namespace.clone(),
        uid: entry.meta.value.uid.clone(),
    };
    let how = match before {
        true => "another certificate",
        false => "a certificate",
    };
    let message = format!("KAT's own authority issued {how} for {host}, until {expires}");
    let reason = EventReason::CertificateIssued;
    log.record(EventKind::Normal, reason, object, message)
}

/// Two thirds of its time are over.
fn is_due(record: &IngressCertificateRecord, now: Timestamp) -> bool {
    let validity = Validity {
        not_before: record.issued,
        not_after: record.expires,
    };
    validity.renew_due(now)
}

/// Deletes certificates of hosts that no route has; the newest ones by ACME once they would be renewed: a
/// server gives few for a host, and the route may come back.
fn unwanted(
    snapshot: &Snapshot,
    wanted: &BTreeSet<String>,
    now: Timestamp,
) -> Result<Option<CertificateStep>, IssuingError> {
    let mut entries = snapshot.workloads.values();
    let unread = entries.any(|entry| entry.parsed.is_err());
    if unread || snapshot.unread_outside_routes > 0 {
        // Its routes may need them.
        return Ok(None);
    }
    let stored = snapshot.ingress_certificates.iter();
    let (mut spare, mut gone): (Vec<_>, Vec<_>) = stored
        .filter(|(host, _)| !wanted.contains(*host))
        .partition(|(_, stored)| stored.value.acme.is_some() && !is_due(&stored.value, now));
    spare.sort_by_key(|(host, stored)| (Reverse(stored.value.issued), *host));
    gone.extend(spare.into_iter().skip(MOST_SPARE));
    gone.truncate(BATCH);
    if gone.is_empty() {
        return Ok(None);
    }
    let names: Vec<_> = gone.iter().map(|(host, _)| host.as_str()).collect();
    let key = |host: &String| keys::ingress_certificate(host);
    Ok(Some(CertificateStep {
        what: format!("no route has {} any more", names.join(", ")),
        conditions: gone
            .iter()
            .map(|(host, stored)| Compare::ModRevision(key(host), stored.revision))
            .collect(),
        operations: gone
            .iter()
            .map(|(host, _)| WriteOperation::Delete(key(host)))
            .collect(),
    }))
}

fn new_sticky_key(snapshot: &Snapshot, now: Timestamp) -> Result<CertificateStep, IssuingError> {
    let made = create_sticky_key()?;
    let key = sealed(
        snapshot,
        &sticky_place(),
        &[(STICKY_KEY, made.as_slice())],
        None,
        now,
    )?;
    let record = IngressStickyRecord {
        schema: 1,
        since: now,
        key,
    };
    let name = keys::INGRESS_STICKY.to_owned();
    let mut step = CertificateStep {
        what: "the key of sticky routes".to_owned(),
        conditions: vec![Compare::ModRevision(name.clone(), 0)],
        operations: vec![put(name, &record)?],
    };
    conditions_of_data_key(snapshot, &mut step);
    Ok(step)
}

/// No other data key may have come meanwhile: what is sealed with an earlier one would be lost with
/// it.
pub(super) fn conditions_of_data_key(snapshot: &Snapshot, step: &mut CertificateStep) {
    if let Some((last, stored)) = snapshot.sealing_keys.last_key_value() {
        let next = keys::sealing_key(last.saturating_add(1));
        step.conditions.extend([
            Compare::ModRevision(keys::sealing_key(*last), stored.revision),
            Compare::ModRevision(next, 0),
        ]);
    }
    step.conditions.push(recovery_key_unchanged(snapshot));
}

/// The values sealed with the last data key, as the next version of `before`.
pub(super) fn sealed(
    snapshot: &Snapshot,
    place: &SecretKey,
    values: &[(&str, &[u8])],
    before: Option<&SecretRecord>,
    now: Timestamp,
) -> Result<SecretRecord, SealingError> {
    let last = snapshot.sealing_keys.last_key_value();
    let (number, key) = last.ok_or(SealingError::NoDataKey(1))?;
    // No two records of one place have the same identity and version: values are sealed for both.
    let identity = values.iter().map(|(_, value)| sha256_hex(value));
    let identity = identity.collect::<Vec<_>>().join("");
    let record = SecretRecord {
        schema: 1,
        uid: sha256_hex(identity.as_bytes()),
        version: before.map_or(0, |before| before.version).saturating_add(1),
        created: before.map_or(now, |before| before.created),
        updated: now,
        keys: BTreeMap::new(),
        key_id: *number,
        sealed: String::new(),
    };
    let values = values.iter();
    let values = SecretValues(
        values
            .map(|(name, value)| ((*name).to_owned(), value.to_vec()))
            .collect(),
    );
    snapshot
        .sealing
        .seal((*number, &key.value), place, &values, record)
}

pub(super) fn put<T: serde::Serialize>(
    key: String,
    value: &T,
) -> Result<WriteOperation, NotEncoded> {
    let value = json::bytes(&key, value)?;
    Ok(WriteOperation::Put(key, value))
}
