//! The secrets, credentials and tokens from before the recovery key was replaced, which whoever had
//! root on a machine that held the store could read, and KAT's own authority for ingress, whose key is in
//! the store as they are.

use std::sync::Arc;

use axum::{Json, extract::State};

use crate::{access::authentication, context::Api, errors::ApiError};
use kat_pki::{BACKDATED, validity_of};
use kat_types::{
    api::{ExposedKind, ExposedValue, ExposedValues, Scope},
    store::{authorities::ReplaceableKey, ingress::INGRESS_AUTHORITY_NAME},
};

/// Only the leader answers, as for the replacement itself. Sealing a value again is no change of it.
pub(crate) async fn list(State(api): State<Arc<Api>>) -> Result<Json<ExposedValues>, ApiError> {
    api.leadership()?;
    let snapshot = api.snapshot()?;
    let record = snapshot.authorities.get(ReplaceableKey::Recovery.name());
    let Some(since) = record.and_then(|stored| stored.value.sealed_since) else {
        return Ok(Json(ExposedValues::default()));
    };
    let secrets = snapshot.secrets.iter().map(|(key, stored)| {
        let value = ExposedValue {
            kind: ExposedKind::Secret,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            updated: stored.value.updated.into(),
        };
        (stored.value.updated, value)
    });
    let logins = snapshot.logins.iter().flat_map(|(namespace, logins)| {
        logins.iter().map(move |(place, stored)| {
            let value = ExposedValue {
                kind: ExposedKind::RegistryLogin,
                namespace: namespace.clone(),
                name: place.to_string(),
                updated: stored.value.updated.into(),
            };
            (stored.value.updated, value)
        })
    });
    // `since` of the record is later than the key, which was made with its certificate.
    let authority = snapshot.ingress_authority.iter().map(|stored| {
        let record = &stored.value;
        let made = validity_of(&record.certificate);
        let made = made
            .ok()
            .and_then(|validity| validity.not_before.checked_add(BACKDATED).ok());
        let made = made.unwrap_or(record.since);
        let value = ExposedValue {
            kind: ExposedKind::Authority,
            namespace: String::new(),
            name: INGRESS_AUTHORITY_NAME.to_owned(),
            updated: made.into(),
        };
        (made, value)
    });
    // The store has only hashes of tokens, but the leader sees a token in each call, and the first
    // machine keeps one in its connection file.
    let now = api.now();
    let usable = snapshot
        .tokens
        .iter()
        .filter(|(_, stored)| !authentication::expired(&stored.value, now))
        .filter(|(_, stored)| stored.value.uses != Some(0));
    let tokens = usable.map(|(id, stored)| {
        let namespace = match &stored.value.scope {
            Scope::Deploy { namespace } => namespace.clone(),
            Scope::Admin | Scope::Read | Scope::Join => String::new(),
        };
        let value = ExposedValue {
            kind: ExposedKind::Token,
            namespace,
            name: id.clone(),
            updated: stored.value.created.into(),
        };
        (stored.value.created, value)
    });
    let exposed = secrets
        .chain(logins)
        .chain(authority)
        .chain(tokens)
        .filter(|(updated, _)| *updated < since);
    Ok(Json(ExposedValues {
        sealed_since: since.into(),
        items: exposed.map(|(_, value)| value).collect(),
        unread: snapshot.unread_secrets as u64,
    }))
}
