//! KAT's own authority for ingress: the first one, and its replacement in phases.
//!
//! Clients outside the cluster trust it, and none of them reports that it trusts another one: a phase
//! waits for a time, which a person can end. Everything is in one record, so each step is one write that
//! compares the record's revision, and a leader that is lost between two steps leaves nothing undone:
//!
//! 1. The record says that the replacement is due, or the leader sees a reason by itself.
//! 2. The new authority is made (`next`): `katcall ca trust` prints both. It issues the certificates of
//!    hosts that only its domains have; the present one issues all others.
//! 3. When the time is over, the new authority takes the place of the present one (`previous`), whose key
//!    is forgotten, and issues all certificates anew.
//! 4. When no certificate of the earlier one is in use, the earlier one is forgotten.

use std::{collections::BTreeSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::certificates::{
    CertificateStep, IssuingError, authority_place, conditions_of_data_key, put, sealed,
};
use crate::{EventLog, Snapshot};
use kat_pki::{
    CertificateKeyPair, PkiError,
    ingress::{certificate_hash, create_ingress_authority},
    validity_of,
};
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference},
    reason::EventReason,
    secrets::SecretRecord,
    store::{
        authorities::RotationReason,
        ingress::{
            INGRESS_AUTHORITY_NAME, IngressAuthorityRecord, IngressReplacement,
            NextIngressAuthority, PreviousIngressAuthority, TLS_KEY, is_within,
        },
        keys,
        revisions::Stored,
        transaction::{Compare, WriteOperation},
    },
};

/// For how long the present authority issues certificates beside the new one, where no request says it:
/// people have to bring clients to trust the new one.
pub const INGRESS_GRACE_SECONDS: u32 = 30 * 24 * 3600;

/// An authority that expires this soon is replaced: the time that clients have, and the life of a
/// certificate, which is then not longer than that of its authority.
const REPLACED_BEFORE: SignedDuration = SignedDuration::from_hours((30 + 90) * 24);

/// An authority that issues certificates now, and the hosts that it issues them for.
pub(super) struct IngressIssuer<'a> {
    pub(super) certificate: &'a str,
    /// SHA-256 of `certificate`.
    pub(super) hash: String,
    pub(super) key: &'a SecretRecord,
    pub(super) hosts: Vec<&'a String>,
}

/// The authorities that issue certificates now. A host that only the next one's domains have needs no
/// client that trusts the present one, and is not kept waiting.
pub(super) fn issuers<'a>(
    record: &'a IngressAuthorityRecord,
    wanted: &'a BTreeSet<String>,
) -> Result<Vec<IngressIssuer<'a>>, PkiError> {
    let (own, others): (Vec<&String>, Vec<&String>) = wanted
        .iter()
        .partition(|host| is_within(host, &record.domains));
    let mut issuers = vec![IngressIssuer {
        certificate: &record.certificate,
        hash: certificate_hash(&record.certificate)?,
        key: &record.key,
        hosts: own,
    }];
    if let Some(next) = &record.next {
        let hosts = others.into_iter();
        issuers.push(IngressIssuer {
            certificate: &next.certificate,
            hash: certificate_hash(&next.certificate)?,
            key: &next.key,
            hosts: hosts
                .filter(|host| is_within(host, &next.domains))
                .collect(),
        });
    }
    Ok(issuers)
}

/// The write of the first authority.
pub(super) fn first_authority(
    snapshot: &Snapshot,
    domains: &BTreeSet<String>,
    now: Timestamp,
) -> Result<CertificateStep, IssuingError> {
    let MadeAuthority { certificate, key } = made(snapshot, domains, None, now)?;
    let record = IngressAuthorityRecord {
        schema: 1,
        certificate,
        domains: domains.clone(),
        since: now,
        key,
        due: None,
        next: None,
        previous: None,
    };
    written(snapshot, 0, &record, "the authority for ingress")
}

/// The next step of the replacement before certificates are issued; `None` if there is none now. Without
/// a host that needs a certificate of the authority (`is_used`) none begins by itself.
pub(super) fn replacement_step(
    snapshot: &Snapshot,
    stored: &Stored<Arc<IngressAuthorityRecord>>,
    domains: &BTreeSet<String>,
    is_used: bool,
    now: Timestamp,
) -> Result<Option<CertificateStep>, IssuingError> {
    let record = &*stored.value;
    if record.previous.is_some() {
        // It ends when the certificates have been issued.
        return Ok(None);
    }
    let Some(next) = &record.next else {
        let replacement = match &record.due {
            Some(due) => IngressReplacement {
                since: now,
                ..due.clone()
            },
            None => match reason_by_itself(record, domains, now)? {
                Some(reason) if is_used => IngressReplacement {
                    reason,
                    since: now,
                    grace_seconds: INGRESS_GRACE_SECONDS,
                },
                _ => return Ok(None),
            },
        };
        return begin(snapshot, stored, domains, replacement).map(Some);
    };
    let begins_anew = || IngressReplacement {
        since: now,
        ..next.replacement.clone()
    };
    if next.domains != *domains {
        let only_domains = next.replacement.reason == RotationReason::DomainsChanged;
        if only_domains && record.domains == *domains {
            let changed = IngressAuthorityRecord {
                next: None,
                ..record.clone()
            };
            let what = "the end of the replacement of the authority for ingress";
            return written(snapshot, stored.revision, &changed, what).map(Some);
        }
        return begin(snapshot, stored, domains, begins_anew()).map(Some);
    }
    if now < next.replacement.grace_end() {
        return Ok(None);
    }
    let opened = snapshot
        .sealing
        .open(snapshot, &authority_place(), &next.key);
    match opened {
        Ok(_) => take_over(snapshot, stored, next, now).map(Some),
        // It could issue nothing, and the present one, which can, would be forgotten.
        Err(_) => begin(snapshot, stored, domains, begins_anew()).map(Some),
    }
}

/// The last step of a replacement, after all certificates have been issued; `None` if there is no
/// replacement or certificates of the earlier authority are in use. Hosts of `ordered` keep theirs until
/// the ACME server issues one.
pub(super) fn replacement_end(
    snapshot: &Snapshot,
    stored: &Stored<Arc<IngressAuthorityRecord>>,
    ordered: &BTreeSet<String>,
    now: Timestamp,
) -> Result<Option<CertificateStep>, IssuingError> {
    let record = &*stored.value;
    let Some(previous) = &record.previous else {
        return Ok(None);
    };
    let hash = certificate_hash(&previous.certificate)?;
    let mut certificates = snapshot.ingress_certificates.iter();
    if certificates.any(|(host, one)| one.value.authority == hash && !ordered.contains(host)) {
        return Ok(None);
    }
    let changed = IngressAuthorityRecord {
        since: now,
        previous: None,
        ..record.clone()
    };
    let what = "the end of the replacement of the authority for ingress";
    let mut step = written(snapshot, stored.revision, &changed, what)?;
    let message = format!(
        "{INGRESS_AUTHORITY_NAME} was replaced: the new one has issued every certificate, and clients need not trust the earlier one any more"
    );
    let event = event(snapshot, EventReason::AuthorityReplaced, message, now);
    step.operations.extend(event);
    Ok(Some(step))
}

/// Why an authority is replaced that nobody has asked to replace.
fn reason_by_itself(
    record: &IngressAuthorityRecord,
    domains: &BTreeSet<String>,
    now: Timestamp,
) -> Result<Option<RotationReason>, PkiError> {
    if record.domains != *domains {
        return Ok(Some(RotationReason::DomainsChanged));
    }
    let end = validity_of(&record.certificate)?.not_after;
    let expires = end.duration_since(now) < REPLACED_BEFORE;
    Ok(expires.then_some(RotationReason::Expires))
}

/// Makes the new authority, or another one in its place.
fn begin(
    snapshot: &Snapshot,
    stored: &Stored<Arc<IngressAuthorityRecord>>,
    domains: &BTreeSet<String>,
    replacement: IngressReplacement,
) -> Result<CertificateStep, IssuingError> {
    let record = &*stored.value;
    let now = replacement.since;
    let why = replacement.reason.in_words();
    let MadeAuthority { certificate, key } = made(snapshot, domains, Some(&record.key), now)?;
    let changed = IngressAuthorityRecord {
        due: None,
        next: Some(NextIngressAuthority {
            certificate,
            domains: domains.clone(),
            key,
            replacement,
        }),
        ..record.clone()
    };
    let what = "the authority that replaces the one for ingress";
    let mut step = written(snapshot, stored.revision, &changed, what)?;
    if record.next.is_none() {
        let message =
            format!("the replacement of {INGRESS_AUTHORITY_NAME} has begun, because {why}");
        let event = event(snapshot, EventReason::ReplacementStarted, message, now);
        step.operations.extend(event);
    }
    Ok(step)
}

/// The new authority takes the place of the present one, whose key is forgotten.
fn take_over(
    snapshot: &Snapshot,
    stored: &Stored<Arc<IngressAuthorityRecord>>,
    next: &NextIngressAuthority,
    now: Timestamp,
) -> Result<CertificateStep, IssuingError> {
    let record = &*stored.value;
    let changed = IngressAuthorityRecord {
        certificate: next.certificate.clone(),
        domains: next.domains.clone(),
        key: next.key.clone(),
        next: None,
        previous: Some(PreviousIngressAuthority {
            certificate: record.certificate.clone(),
            domains: record.domains.clone(),
            replacement: next.replacement.clone(),
            until: now,
        }),
        ..record.clone()
    };
    let what = "the change to the new authority for ingress";
    written(snapshot, stored.revision, &changed, what)
}

/// A new authority, as it is stored.
struct MadeAuthority {
    certificate: String,
    key: SecretRecord,
}

fn made(
    snapshot: &Snapshot,
    domains: &BTreeSet<String>,
    before: Option<&SecretRecord>,
    now: Timestamp,
) -> Result<MadeAuthority, IssuingError> {
    let name = &snapshot.cluster.metadata.name;
    let CertificateKeyPair {
        certificate_pem,
        key_pem,
    } = create_ingress_authority(name, domains, now)?;
    let values = [(TLS_KEY, key_pem.as_bytes())];
    let key = sealed(snapshot, &authority_place(), &values, before, now)?;
    Ok(MadeAuthority {
        certificate: certificate_pem,
        key,
    })
}

fn written(
    snapshot: &Snapshot,
    revision: i64,
    record: &IngressAuthorityRecord,
    what: &str,
) -> Result<CertificateStep, IssuingError> {
    let name = keys::INGRESS_AUTHORITY.to_owned();
    let mut step = CertificateStep {
        what: what.to_owned(),
        conditions: vec![Compare::ModRevision(name.clone(), revision)],
        operations: vec![put(name, record)?],
    };
    conditions_of_data_key(snapshot, &mut step);
    Ok(step)
}

fn event(
    snapshot: &Snapshot,
    reason: EventReason,
    message: String,
    now: Timestamp,
) -> Vec<WriteOperation> {
    let object = ObjectReference {
        kind: ObjectKind::Cluster,
        name: snapshot.cluster.metadata.name.clone(),
        ..ObjectReference::default()
    };
    EventLog::new(&snapshot.events, now).record(EventKind::Normal, reason, object, message)
}
