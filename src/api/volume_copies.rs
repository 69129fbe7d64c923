//! What one machine sends another of its volumes, on the port of its agent: the one that the leader's wish names gets
//! the one volume that it names, once its last instance has ended (ARCHITECTURE.md, Volumes).

use std::{convert::Infallible, pin::Pin, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{
    caller::Peer,
    errors::ApiError,
    extract::{At, Parameters},
    streams::OpenStreams,
};
use crate::pki::PeerIdentity;

/// A copy's pieces.
pub type CopyStream = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// The volumes of this machine that others are to take.
pub trait VolumeCopies: Send + Sync {
    /// Begins to send `volume` (`NAMESPACE/WORKLOAD/VOLUME`) for the move `id` to the machine of that name.
    ///
    /// # Errors
    /// [`ApiError::Forbidden`] where the leader does not want this of this machine now.
    fn open(&self, machine: &str, volume: &str, id: &str) -> Result<CopyStream, ApiError>;
}

/// The query of the route.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CopyParameters {
    id: String,
}

/// Which machine calls.
#[derive(Debug, Clone)]
struct Machine(String);

struct Sender {
    copies: Arc<dyn VolumeCopies>,
    streams: Arc<OpenStreams>,
    shutdown: CancellationToken,
}

/// The routes that machines may use, and nobody else.
pub(super) fn routes(
    copies: Arc<dyn VolumeCopies>,
    streams: Arc<OpenStreams>,
    shutdown: CancellationToken,
) -> Router {
    let sender = Sender {
        copies,
        streams,
        shutdown,
    };
    Router::new()
        .route(
            "/v1alpha1/n/{namespace}/workloads/{workload}/volumes/{volume}/copy",
            get(copy).route_layer(from_fn(only_machines)),
        )
        .with_state(Arc::new(sender))
}

/// One line for each call, whoever it comes from.
async fn only_machines(mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>();
    let name = match peer.and_then(|peer| peer.identity.as_ref()) {
        Some(PeerIdentity::Node(name)) => name.clone(),
        _ => String::new(),
    };
    let path: String = request.uri().path().chars().take(256).collect();
    let response = if name.is_empty() {
        let message = "only a machine that is to take this volume is answered here";
        let refused = ApiError::Forbidden {
            message: message.to_owned(),
            hint: None,
        };
        refused.into_response()
    } else {
        request.extensions_mut().insert(Machine(name.clone()));
        next.run(request).await
    };
    let status = response.status().as_u16();
    tracing::info!(target: "audit", "GET {path} {status} by node:{name} on the agent's port");
    response
}

async fn copy(
    State(sender): State<Arc<Sender>>,
    axum::Extension(Machine(machine)): axum::Extension<Machine>,
    At((namespace, workload, volume)): At<(String, String, String)>,
    Parameters(query): Parameters<CopyParameters>,
) -> Result<Response, ApiError> {
    let held = sender.streams.open(Some(&format!("node:{machine}")))?;
    let volume = format!("{namespace}/{workload}/{volume}");
    let pieces = sender.copies.open(&machine, &volume, &query.id)?;
    let shutdown = sender.shutdown.clone();
    let pieces = pieces
        .map(move |piece| {
            let _held = &held;
            Ok::<_, Infallible>(piece)
        })
        .take_until(shutdown.cancelled_owned());
    Ok(Body::from_stream(pieces).into_response())
}
