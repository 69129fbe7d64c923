//! Copies of volumes between machines, on the agent's port: a machine named in a desired move gets
//! the volume of that move, once the volume's last instance has ended
//! (docs/internals/volume-moves.md).

use std::{convert::Infallible, pin::Pin, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use futures_util::{Stream, StreamExt};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::{
    access::{
        audit::{AuditedCaller, BoundedLines},
        authentication::{Caller, CertifiedMachine, ConnectionPeer},
    },
    agent_port::{KnowsPeer, stream_end},
    errors::ApiError,
    extract::{PathParameters, QueryParameters},
    server::{open_streams::OpenStreams, pools::ConnectionStandingHandle},
};
use kat_pki::{PeerCertificate, PeerIdentity};

/// The parts of a copy.
pub type CopyStream = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// The volumes of this machine that other machines may copy.
pub trait VolumeCopies: Send + Sync {
    /// Starts to send `volume` (`NAMESPACE/WORKLOAD/VOLUME`) for the move `id` to `machine`.
    ///
    /// # Errors
    /// [`ApiError::Forbidden`] if the leader does not want this move from this machine now.
    fn open(&self, machine: &str, volume: &str, id: &str) -> Result<CopyStream, ApiError>;
}

/// Query parameters of the route.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CopyParameters {
    id: String,
}

/// The calling machine and its certificate.
#[derive(Debug, Clone)]
struct CallingMachine(String, PeerCertificate);

struct VolumeCopyServer {
    copies: Arc<dyn VolumeCopies>,
    knows: KnowsPeer,
    streams: Arc<OpenStreams>,
    lines: Arc<BoundedLines>,
    shutdown: CancellationToken,
}

/// The routes that only machines may use.
pub(crate) fn routes(
    copies: Arc<dyn VolumeCopies>,
    knows: KnowsPeer,
    streams: Arc<OpenStreams>,
    lines: Arc<BoundedLines>,
    shutdown: CancellationToken,
) -> Router {
    let sender = Arc::new(VolumeCopyServer {
        copies,
        knows,
        streams,
        lines,
        shutdown,
    });
    let only_machines = from_fn_with_state(Arc::clone(&sender), only_machines);
    Router::new()
        .route(
            "/v1alpha1/n/{namespace}/workloads/{workload}/volumes/{volume}/copy",
            get(copy).route_layer(only_machines),
        )
        .with_state(sender)
}

/// Admits only machines, and writes one line for each call of any caller.
async fn only_machines(
    State(sender): State<Arc<VolumeCopyServer>>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<ConnectionPeer>();
    let certificate = peer.and_then(|peer| peer.certificate.clone());
    let name = match certificate.as_ref().map(|one| &one.identity) {
        Some(PeerIdentity::Node(name)) => name.clone(),
        _ => String::new(),
    };
    let machine = certificate.filter(|one| !name.is_empty() && (sender.knows)(one));
    let path: String = request.uri().path().chars().take(256).collect();
    let response = if let Some(certificate) = machine {
        if let Some(standing) = request.extensions().get::<ConnectionStandingHandle>() {
            standing.prove(&Caller::Node(CertifiedMachine {
                name: name.clone(),
                key_hash: certificate.key_hash.clone(),
            }));
        }
        let machine = CallingMachine(name.clone(), certificate);
        request.extensions_mut().insert(machine);
        next.run(request).await
    } else {
        let message = "only a machine that is to take this volume is answered here";
        let refused = ApiError::Forbidden {
            message: message.to_owned(),
            hint: None,
        };
        refused.into_response()
    };
    let status = response.status().as_u16();
    if status < 400 || sender.lines.take(AuditedCaller::Anybody) {
        tracing::info!(target: "audit", "GET {path} {status} by node:{name} on the agent's port");
    }
    response
}

async fn copy(
    State(sender): State<Arc<VolumeCopyServer>>,
    axum::Extension(CallingMachine(machine, certificate)): axum::Extension<CallingMachine>,
    PathParameters((namespace, workload, volume)): PathParameters<(String, String, String)>,
    QueryParameters(query): QueryParameters<CopyParameters>,
) -> Result<Response, ApiError> {
    let held = sender.streams.open(Some(&format!("node:{machine}")))?;
    let volume = format!("{namespace}/{workload}/{volume}");
    let pieces = sender.copies.open(&machine, &volume, &query.id)?;
    let over = stream_end(
        sender.shutdown.clone(),
        Arc::clone(&sender.knows),
        certificate,
    );
    let pieces = pieces
        .map(move |piece| {
            let _held = &held;
            Ok::<_, Infallible>(piece)
        })
        .take_until(over);
    Ok(Body::from_stream(pieces).into_response())
}
