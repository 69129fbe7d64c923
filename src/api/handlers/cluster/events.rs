//! Events (RFC001-KAT 9.3), oldest first.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use serde::Deserialize;

use crate::{
    access::{
        authentication::Caller,
        authorization as access,
        authorization::{CallScope, RouteAccess},
    },
    context::Api,
    errors::ApiError,
    extract::QueryParameters,
    view::ApiView,
    watch::{ListQuery, answer},
};
use kat_types::api::{Event, ObjectKind};

/// Query parameters of events; an absent parameter does not filter.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct EventParameters {
    watch: bool,
    resource_version: Option<String>,
    resource_type: Option<String>,
    resource_name: Option<String>,
    namespace: Option<String>,
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<EventParameters>,
) -> Result<Response, ApiError> {
    let list = ListQuery {
        watch: query.watch,
        resource_version: query.resource_version.clone(),
    };
    // Events of a machine concern everything that runs there, but a deploy token sees only its
    // namespace.
    let all = access::check(RouteAccess::ReadCluster, &caller, CallScope::default()).is_ok();
    let select = Arc::new(move |view: &ApiView<'_>| {
        let events = view.snapshot.events.values();
        events
            .filter(|stored| matches(&query, &stored.value, all))
            .map(|stored| Event::clone(&stored.value))
            .collect()
    });
    answer(&api, &caller, &list, select).await
}

/// Whether an event matches the query. The events of a namespace are those in it, those about it,
/// and with `all` those of machines.
fn matches(query: &EventParameters, event: &Event, all: bool) -> bool {
    let object = &event.involved_object;
    let kind = query.resource_type.as_ref();
    kind.is_none_or(|kind| kind.eq_ignore_ascii_case(object.kind.word()))
        && query
            .resource_name
            .as_ref()
            .is_none_or(|name| *name == object.name)
        && query.namespace.as_ref().is_none_or(|namespace| {
            *namespace == object.namespace
                || (object.kind == ObjectKind::Namespace && *namespace == object.name)
                || (all && object.kind == ObjectKind::Node)
        })
}
