//! Routes: list and read; those to something outside KAT: write and delete; and KAT's own authority for
//! ingress.

use std::sync::Arc;

use axum::response::Response;
use axum::{Extension, Json, extract::State};

use crate::{
    access::authentication::Caller,
    apply::{exceeded_in, put, readers, route_claims, submission},
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JsonBody, PathParameters, QueryParameters, WriteRequest},
    handlers::workloads::workload_objects::{WriteResult, check_namespace_exists},
    view::ApiView,
    watch::{ListQuery, answer},
};
use kat_bundle as bundle;
use kat_bundle::{DecodeMode, SourceFile};
use kat_plan::{Snapshot, WorkloadClaims, check_hosts, claim_conflict, outside_target};
use kat_types::{
    api::{IngressAuthorityView, Metadata, WriteOutcome},
    encoding::json,
    resource::{Amounts, CORE_NAMESPACE, RouteSpec},
    store::{
        ingress::{OutsideRoute, OutsideRouteRecord},
        keys,
        transaction::{Compare, WriteOperation},
    },
};

pub(crate) async fn list_all(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, &caller, &query, Arc::new(|view| view.routes(None))).await
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(namespace): PathParameters<String>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    check_namespace_exists(&api, &namespace)?;
    let select = Arc::new(move |view: &ApiView<'_>| view.routes(Some(&namespace)));
    answer(&api, &caller, &query, select).await
}

/// What a browser has to trust: a certificate, and no secret.
pub(crate) async fn authority(
    State(api): State<Arc<Api>>,
) -> Result<Json<IngressAuthorityView>, ApiError> {
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    Ok(Json(api.view(&snapshot, &observed).ingress_authority()))
}

/// Writes a route to something outside KAT. Its host and path are its name.
pub(crate) async fn write(
    State(api): State<Arc<Api>>,
    request: WriteRequest,
    JsonBody(body): JsonBody<serde_json::Map<String, serde_json::Value>>,
) -> Result<Response, ApiError> {
    let spec = checked(&body)?;
    let (uid, now) = ((api.config.new_uid)(), api.now());
    let name = OutsideRoute::name(&spec.host, &spec.path);
    let decide = |snapshot: &Snapshot| {
        let stored = snapshot.outside_routes.get(&name);
        request
            .precondition
            .check(stored.map(|stored| stored.revision))?;
        let before = stored.map(|stored| &stored.value.record);
        let record = OutsideRouteRecord {
            schema: 1,
            uid: before.map_or_else(|| uid.clone(), |before| before.uid.clone()),
            created: before.map_or(now, |before| before.created),
            spec: spec.clone(),
        };
        let outcome = match before {
            None => WriteOutcome::Created,
            Some(before) => WriteOutcome::of_change(*before != record),
        };
        let revision = stored.map_or(0, |stored| stored.revision);
        let route = OutsideRoute::of(record);
        let mut result =
            WriteResult::of("Route", outcome, metadata(&name, &route.record, revision));
        if outcome == WriteOutcome::Unchanged {
            return Ok(WriteDecision::Done(result));
        }
        readers::check_outside_routes(snapshot)?;
        if let Err(said) = outside_target(snapshot, &spec.to) {
            return Err(ApiError::invalid(format!("route.kat: spec.to: {said}")));
        }
        let key = keys::outside_route(&name);
        let mut conditions = vec![Compare::ModRevision(key.clone(), revision)];
        let mut operations = vec![put(key, &route.record)?];
        if stored.is_none() {
            let claims = WorkloadClaims::of_outside(&route.route);
            if let Some(conflict) = claim_conflict(snapshot, &route.key, &claims) {
                return Err(route_claims::outside_refusal(&conflict));
            }
            check_hosts(snapshot, &route.key, &Amounts::default(), &claims)
                .map_err(|error| exceeded_in("route.kat", error))?;
            claimed(snapshot, &mut conditions, &mut operations);
        }
        route_claims::check_secrets(snapshot, &route.key, &route.route)?;
        let routes = std::slice::from_ref(&route.route);
        result.warnings = route_claims::warnings(snapshot, CORE_NAMESPACE, routes, now);
        if request.query.dry_run {
            return Ok(WriteDecision::Done(result));
        }
        if stored.is_none() {
            result.status = axum::http::StatusCode::CREATED;
        }
        Ok(WriteDecision::Write {
            conditions,
            operations,
            outcome: result,
        })
    };
    let (written, revision) = api.write(decide).await?;
    tracing::info!(route = name, "written by {}", request.caller);
    Ok(written.answer(revision))
}

/// Query parameters of the deletion of a route.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct DeleteRouteQuery {
    /// Return what would happen, and write nothing.
    dry_run: bool,
    /// Host of the route.
    host: String,
    /// Path of the route; `/` by default.
    path: String,
}

pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    request: WriteRequest<DeleteRouteQuery>,
) -> Result<Response, ApiError> {
    let DeleteRouteQuery {
        dry_run,
        host,
        path,
    } = &request.query;
    let name = OutsideRoute::name(host, path);
    let decide = |snapshot: &Snapshot| {
        let stored = snapshot.outside_routes.get(&name);
        let stored = stored.ok_or_else(|| ApiError::not_found("route", &name))?;
        request.precondition.check(Some(stored.revision))?;
        let metadata = metadata(&name, &stored.value.record, stored.revision);
        let result = WriteResult::of("Route", WriteOutcome::Deleted, metadata);
        if *dry_run {
            return Ok(WriteDecision::Done(result));
        }
        let key = keys::outside_route(&name);
        let mut conditions = vec![Compare::ModRevision(key.clone(), stored.revision)];
        let mut operations = vec![WriteOperation::Delete(key)];
        claimed(snapshot, &mut conditions, &mut operations);
        Ok(WriteDecision::Write {
            conditions,
            operations,
            outcome: result,
        })
    };
    let (deleted, revision) = api.write(decide).await?;
    tracing::info!(route = name, "deleted by {}", request.caller);
    Ok(deleted.answer(revision))
}

/// Of two writes that were decided on the same owners of hosts, one is refused.
fn claimed(
    snapshot: &Snapshot,
    conditions: &mut Vec<Compare>,
    operations: &mut Vec<WriteOperation>,
) {
    let key = keys::INGRESS_CLAIMS.to_owned();
    conditions.push(Compare::ModRevision(key.clone(), snapshot.claims_revision));
    operations.push(WriteOperation::Put(key, Vec::new()));
}

/// The route of a request, by the rules of `route.kat`.
fn checked(body: &serde_json::Map<String, serde_json::Value>) -> Result<RouteSpec, ApiError> {
    let text = json::bytes("a route", body)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let file = SourceFile {
        name: "route.kat".to_owned(),
        text: text.ok_or_else(|| ApiError::invalid("the body is no route"))?,
    };
    let read = bundle::parse(&[file], DecodeMode::Strict).map_err(submission::refusal)?;
    let not_yet = bundle::not_yet(&read);
    if !not_yet.is_empty() {
        return Err(submission::refusal(not_yet));
    }
    let mut routes = read.routes.into_iter();
    match (routes.next(), routes.next()) {
        (Some(route), None) if read.namespace.is_none() && read.workload.is_none() => {
            Ok(route.spec)
        }
        _ => Err(ApiError::invalid("the body is no document of kind Route")),
    }
}

fn metadata(name: &str, record: &OutsideRouteRecord, revision: i64) -> Metadata {
    Metadata {
        name: name.to_owned(),
        namespace: Some(CORE_NAMESPACE.to_owned()),
        uid: record.uid.clone(),
        labels: Default::default(),
        generation: 0,
        resource_version: revision.to_string(),
        creation_timestamp: Some(record.created).into(),
    }
}
