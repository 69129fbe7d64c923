//! Virtual addresses: list and watch.

use std::sync::Arc;

use axum::response::Response;
use axum::{Extension, extract::State};

use crate::{
    access::authentication::Caller,
    context::Api,
    errors::ApiError,
    extract::QueryParameters,
    watch::{ListQuery, answer},
};

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    let select = Arc::new(|view: &crate::view::ApiView<'_>| view.virtual_addresses());
    answer(&api, &caller, &query, select).await
}
