//! Settings of registries: mirrors, and registries without a valid certificate.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use crate::{
    apply::put,
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JsonBody, NoQuery, PathParameters, Precondition, WriteRequest},
};
use kat_bundle as bundle;
use kat_plan::Snapshot;
use kat_types::{
    api::{List, ListMetadata, RegistryRequest, RegistryView},
    registry::{RegistrySetting, RegistrySettings},
    store::{keys, transaction::Compare},
};

/// Maximum number of registries with settings.
const MAX_REGISTRIES: usize = 100;
/// Maximum number of mirrors of one registry.
const MAX_MIRRORS: usize = 10;

pub(crate) async fn list(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let (revision, settings) = now(&snapshot);
    let items = settings.registries.into_iter();
    let list = List {
        items: items.map(|(host, setting)| view(host, setting)).collect(),
        metadata: ListMetadata {
            resource_version: revision.to_string(),
        },
    };
    Ok(Json(list).into_response())
}

pub(crate) async fn set(
    State(api): State<Arc<Api>>,
    PathParameters(host): PathParameters<String>,
    request: WriteRequest<NoQuery>,
    JsonBody(RegistryRequest { insecure, mirrors }): JsonBody<RegistryRequest>,
) -> Result<Response, ApiError> {
    let caller = &request.caller;
    check_host(&host)?;
    if mirrors.len() > MAX_MIRRORS {
        return Err(ApiError::invalid(format!(
            "mirrors: found {}, expected at most {MAX_MIRRORS}",
            mirrors.len()
        )));
    }
    for mirror in &mirrors {
        bundle::check_registry(mirror)
            .map_err(|error| ApiError::invalid(format!("mirrors: {error}")))?;
    }
    let setting = RegistrySetting { insecure, mirrors };
    let change = |settings: &mut RegistrySettings| {
        let known = settings.registries.contains_key(&host);
        if !known && settings.registries.len() >= MAX_REGISTRIES {
            return Err(ApiError::conflict(
                format!("{MAX_REGISTRIES} registries are set already"),
                "`katcall registry unset HOST` forgets one",
            ));
        }
        settings.registries.insert(host.clone(), setting.clone());
        Ok(())
    };
    write(&api, request.precondition, change).await?;
    tracing::info!(%host, %caller, "a registry was set");
    Ok(Json(view(host, setting)).into_response())
}

pub(crate) async fn unset(
    State(api): State<Arc<Api>>,
    PathParameters(host): PathParameters<String>,
    request: WriteRequest<NoQuery>,
) -> Result<Response, ApiError> {
    let caller = &request.caller;
    let change = |settings: &mut RegistrySettings| match settings.registries.remove(&host) {
        Some(_) => Ok(()),
        None => Err(ApiError::not_found("registry", &host)),
    };
    write(&api, request.precondition, change).await?;
    tracing::info!(%host, %caller, "a registry was forgotten");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Accepts only a host: a path of it would count as another registry.
fn check_host(host: &str) -> Result<(), ApiError> {
    let fits = !host.contains('/') && bundle::check_registry(host).is_ok();
    if fits {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "found the registry `{}`, expected a host such as `registry.example` or `registry.lab:5000`",
        host.escape_debug()
    )))
}

async fn write(
    api: &Arc<Api>,
    precondition: Precondition,
    change: impl Fn(&mut RegistrySettings) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let decide = |snapshot: &Snapshot| {
        let (revision, before) = now(snapshot);
        precondition.check((revision > 0).then_some(revision))?;
        let mut settings = before.clone();
        change(&mut settings)?;
        settings.schema = 1;
        if settings == before {
            return Ok(WriteDecision::Done(()));
        }
        let key = keys::REGISTRIES.to_owned();
        Ok(WriteDecision::Write {
            conditions: vec![Compare::ModRevision(key.clone(), revision)],
            operations: vec![put(key, &settings)?],
            outcome: (),
        })
    };
    api.write(decide).await.map(drop)
}

/// The stored settings and their revision; revision 0 if there are none.
fn now(snapshot: &Snapshot) -> (i64, RegistrySettings) {
    let stored = snapshot.registries.as_ref();
    stored.map_or_else(Default::default, |stored| {
        (stored.revision, stored.value.clone())
    })
}

fn view(host: String, RegistrySetting { insecure, mirrors }: RegistrySetting) -> RegistryView {
    RegistryView {
        host,
        insecure,
        mirrors,
    }
}
