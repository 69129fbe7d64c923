//! KAT's own authority for ingress among the authorities: how far its replacement is, and requests for
//! one. Its record is of another type, and no machine reports about it: clients outside the cluster trust
//! it.

use axum::Json;

use crate::{
    access::authentication::Caller,
    apply::put,
    context::{Api, WriteDecision},
    errors::ApiError,
};
use kat_pki::{ingress::certificate_hash, validity_of};
use kat_plan::{INGRESS_GRACE_SECONDS, Snapshot};
use kat_types::{
    api::{AuthorityPhase, AuthorityStatus},
    store::{
        authorities::RotationReason,
        ingress::{INGRESS_AUTHORITY_NAME, IngressAuthorityRecord, IngressReplacement},
        keys,
        transaction::Compare,
    },
};

/// How far the replacement of the authority is; `None` before the authority was made.
pub(super) fn status(snapshot: &Snapshot) -> Result<Option<AuthorityStatus>, ApiError> {
    let Some(stored) = &snapshot.ingress_authority else {
        return Ok(None);
    };
    let record = &*stored.value;
    // Until the replacement is complete, the authority is the earlier one.
    let (certificate, next) = match (&record.previous, &record.next) {
        (Some(previous), _) => (&previous.certificate, Some(&record.certificate)),
        (None, next) => {
            let next = next.as_ref().map(|next| &next.certificate);
            (&record.certificate, next)
        }
    };
    let validity = validity_of(certificate);
    let validity = validity.map_err(|error| ApiError::Internal(error.to_string()))?;
    let next = next.map(|next| hash_of(next)).transpose()?;
    let (phase, replacement) = phase(record);
    let grace_until = match (&record.previous, &record.next) {
        // A person may have ended the time before.
        (Some(previous), _) => Some(previous.until),
        (None, Some(next)) if next.replacement.grace_seconds > 0 => {
            Some(next.replacement.grace_end())
        }
        (None, _) => None,
    };
    Ok(Some(AuthorityStatus {
        name: INGRESS_AUTHORITY_NAME.to_owned(),
        fingerprint: hash_of(certificate)?,
        not_after: validity.not_after.into(),
        since: record.since.into(),
        phase,
        next,
        reason: replacement.map(|replacement| replacement.reason),
        replacement_since: replacement.map(|replacement| replacement.since).into(),
        grace_until: grace_until.into(),
        message: message(snapshot, record)?,
        certificates: Vec::new(),
    }))
}

fn phase(record: &IngressAuthorityRecord) -> (AuthorityPhase, Option<&IngressReplacement>) {
    match (&record.previous, &record.next, &record.due) {
        (Some(previous), ..) => (AuthorityPhase::Issue, Some(&previous.replacement)),
        (None, Some(next), _) => (AuthorityPhase::Trust, Some(&next.replacement)),
        (None, None, Some(due)) => (AuthorityPhase::Due, Some(due)),
        (None, None, None) => (AuthorityPhase::Settled, None),
    }
}

fn message(snapshot: &Snapshot, record: &IngressAuthorityRecord) -> Result<String, ApiError> {
    let why = |replacement: &IngressReplacement| replacement.reason.in_words();
    Ok(match (&record.previous, &record.next, &record.due) {
        (Some(previous), ..) => {
            let hash = hash_of(&previous.certificate)?;
            let certificates = snapshot.ingress_certificates.values();
            let left = certificates.filter(|one| one.value.authority == hash);
            format!(
                "being replaced, because {}; certificates of the old one that are in use: {}",
                why(&previous.replacement),
                left.count()
            )
        }
        (None, Some(next), _) => format!(
            "being replaced, because {}; until {:.0} clients can come to trust the new one: `katcall ca trust` prints both",
            why(&next.replacement),
            next.replacement.grace_end()
        ),
        (None, None, Some(due)) => format!("to be replaced, because {}", why(due)),
        (None, None, None) => String::new(),
    })
}

fn hash_of(certificate: &str) -> Result<String, ApiError> {
    certificate_hash(certificate).map_err(|error| ApiError::Internal(error.to_string()))
}

/// Writes that the replacement is due, or for how long the present authority issues certificates beside
/// the new one. `grace_seconds` is the time of the request.
pub(super) async fn rotate(
    api: &Api,
    caller: &Caller,
    grace_seconds: Option<u32>,
) -> Result<Json<AuthorityStatus>, ApiError> {
    let (_, written) = api
        .write(|snapshot| {
            let stored = snapshot.ingress_authority.as_ref().ok_or_else(not_made)?;
            let mut record = IngressAuthorityRecord::clone(&stored.value);
            if record.previous.is_some() {
                return Err(under_way(snapshot, &stored.value));
            }
            match (record.next.as_mut(), grace_seconds) {
                (Some(next), Some(grace)) => next.replacement.grace_seconds = grace,
                (Some(_), None) => return Err(under_way(snapshot, &stored.value)),
                (None, grace) => {
                    let due = record.due.get_or_insert_with(|| IngressReplacement {
                        reason: RotationReason::Requested,
                        since: api.now(),
                        grace_seconds: INGRESS_GRACE_SECONDS,
                    });
                    due.grace_seconds = grace.unwrap_or(due.grace_seconds);
                }
            }
            if record == *stored.value {
                return Ok(WriteDecision::Done(()));
            }
            let key = keys::INGRESS_AUTHORITY.to_owned();
            Ok(WriteDecision::Write {
                conditions: vec![Compare::ModRevision(key.clone(), stored.revision)],
                operations: vec![put(key, &record)?],
                outcome: (),
            })
        })
        .await?;
    if written.is_some() {
        tracing::info!(authority = INGRESS_AUTHORITY_NAME, %caller, "an authority is to be replaced");
    }
    let status = status(&*api.snapshot()?)?;
    Ok(Json(status.ok_or_else(not_made)?))
}

fn not_made() -> ApiError {
    ApiError::conflict(
        format!("{INGRESS_AUTHORITY_NAME} has not been made yet"),
        "it is made for the first route with `tls: true` and a host in internalDomains",
    )
}

/// The refusal of a request in this phase.
fn under_way(snapshot: &Snapshot, record: &IngressAuthorityRecord) -> ApiError {
    let (phase, _) = phase(record);
    let message = match message(snapshot, record) {
        Ok(message) => message,
        Err(error) => return error,
    };
    let hint = match phase {
        AuthorityPhase::Trust => {
            "`katcall ca rotate ingress-ca --grace 0s` has the new one issue all certificates now"
        }
        _ => "`katcall ca list` shows how far it is",
    };
    ApiError::conflict(
        format!("{INGRESS_AUTHORITY_NAME} is in phase {phase:?}: {message}"),
        hint,
    )
}
