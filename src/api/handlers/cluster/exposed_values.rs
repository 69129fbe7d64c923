//! The secrets and credentials whose present value could be read with an earlier recovery key.

use std::sync::Arc;

use axum::{Json, extract::State};

use crate::{context::Api, errors::ApiError};
use kat_types::{
    api::{ExposedKind, ExposedValue, ExposedValues},
    store::authorities::ReplaceableKey,
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
    let exposed = secrets
        .chain(logins)
        .filter(|(updated, _)| *updated < since);
    Ok(Json(ExposedValues {
        sealed_since: since.into(),
        items: exposed.map(|(_, value)| value).collect(),
        unread: snapshot.unread_secrets as u64,
    }))
}
