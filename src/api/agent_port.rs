//! The agent's port, on every machine's overlay address: reads and streams of its instances that a
//! user requested from the leader. Nothing here changes the machine (docs/internals/api.md).
//!
//! It admits machines that may lead, by their certificate `leader:NAME`, and, for a volume that
//! moves to another machine, that machine (`api/handlers/data/volume_copies.rs`). The machine takes its
//! instances and their workloads from its own list: the leader only names one.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{Request, State},
    http::HeaderMap,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::{net::TcpListener, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    errors::ApiError,
    extract::{PathParameters, QueryParameters},
    server::{ApiListeners, ApiServer, TlsListener, TlsSource},
    watch::{line, ndjson},
};
use crate::{
    access::{
        audit::{AuditedCaller, BoundedLines},
        authentication::{Caller, CertifiedMachine, ConnectionPeer},
    },
    handlers::{
        data::{volume_copies, volume_copies::VolumeCopies},
        workloads::{
            gone_instances::readable,
            instances::{InstanceLogs, LogParameters, LoggedWorkload},
            sessions::{
                ExecParameters, ForwardParameters, InstanceSessions, SessionRequest, answer, inputs,
            },
        },
    },
    server::{limits::ApiLimits, open_streams::OpenStreams, pools::ConnectionStandingHandle},
};
use kat_daemon::watchdog::LoopPulses;
use kat_pki::{PeerCertificate, PeerIdentity};
use kat_types::{
    api::{CALLER_HEADER, GoneInstances, NodeMeasurements, NodeUsage},
    store::snapshot::InstanceEntry,
};

/// The end of the path of what the machine measures, and of no other path.
const METRICS: &str = "/metrics";

/// Maximum characters of a caller's name.
const MOST_NAME: usize = 256;

/// Interval at which a stream's caller is looked up again.
const LOOKED_UP_EVERY: Duration = Duration::from_millis(500);

/// Whether a certificate is at present that of a machine of the cluster, or of a leader on a
/// machine that holds etcd.
pub type KnowsPeer = Arc<dyn Fn(&PeerCertificate) -> bool + Send + Sync>;

/// Finds an instance of this machine by its id.
pub type FindInstance = Arc<dyn Fn(&str) -> Option<InstanceEntry> + Send + Sync>;

/// Lists all instances of this machine.
pub type ListInstances = Arc<dyn Fn() -> Vec<InstanceEntry> + Send + Sync>;

/// Settings of the agent's port.
pub struct AgentPort {
    /// A bound listener.
    pub listener: TcpListener,
    /// TLS 1.3, only for clients with a certificate of a leader or a machine.
    pub config: TlsSource,
    /// Whether a peer is in the cluster now.
    pub knows: KnowsPeer,
    /// Finds an instance of this machine.
    pub find: FindInstance,
    /// Lists all instances of this machine.
    pub all: ListInstances,
    /// Logs of instances.
    pub logs: Arc<dyn InstanceLogs>,
    /// Sessions with instances, and their usage.
    pub sessions: Arc<dyn InstanceSessions>,
    /// Volumes of this machine that other machines may copy.
    pub copies: Arc<dyn VolumeCopies>,
    /// Limits of calls.
    pub limits: ApiLimits,
    /// Reports the accept loop to the watchdog.
    pub pulses: LoopPulses,
}

struct AgentPortState {
    knows: KnowsPeer,
    find: FindInstance,
    all: ListInstances,
    logs: Arc<dyn InstanceLogs>,
    sessions: Arc<dyn InstanceSessions>,
    streams: Arc<OpenStreams>,
    /// Bounds the lines of refused calls: nothing else limits how often a machine's certificate
    /// makes them.
    bounded_lines: Arc<BoundedLines>,
    shutdown: CancellationToken,
}

/// Serves the port until `cancel`.
pub async fn serve_agent(port: AgentPort, cancel: CancellationToken) {
    let agent = Arc::new(AgentPortState {
        knows: Arc::clone(&port.knows),
        find: port.find,
        all: port.all,
        logs: port.logs,
        sessions: port.sessions,
        streams: OpenStreams::new(port.limits.streams, port.limits.streams_of_one_caller),
        bounded_lines: Arc::default(),
        shutdown: cancel.clone(),
    });
    let router = Router::new()
        .route(
            "/v1alpha1/n/{namespace}/workloads/{workload}/instances/{instance}/logs",
            get(logs),
        )
        .route(
            "/v1alpha1/n/{namespace}/workloads/{workload}/instances/{instance}/exec",
            post(exec),
        )
        .route(
            "/v1alpha1/n/{namespace}/workloads/{workload}/instances/{instance}/forward",
            post(forward),
        )
        .route(
            "/v1alpha1/n/{namespace}/workloads/{workload}/gone-instances",
            get(gone),
        )
        .route("/v1alpha1/nodes/{node}/usage", get(usage))
        .route("/v1alpha1/nodes/{node}/metrics", get(metrics))
        .layer(from_fn_with_state(Arc::clone(&agent), only_leaders))
        .with_state(Arc::clone(&agent))
        .merge(volume_copies::routes(
            port.copies,
            port.knows,
            Arc::clone(&agent.streams),
            Arc::clone(&agent.bounded_lines),
            cancel.clone(),
        ));
    let name = "the agent's port";
    let server = ApiServer::new(router, name, port.limits, port.pulses, cancel.clone());
    server.listen(ApiListeners {
        tls: vec![TlsListener {
            listener: port.listener,
            config: port.config,
            leader: Arc::new(Vec::<String>::new()),
            stands_in: false,
            state_route: None,
            own_route: None,
        }],
        sockets: Vec::new(),
    });
    cancel.cancelled().await;
    server.end().await;
}

/// Admits only leaders, and writes one line for each call of any caller.
async fn only_leaders(
    State(agent): State<Arc<AgentPortState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<ConnectionPeer>();
    let certificate = peer.and_then(|peer| peer.certificate.clone());
    let name = match certificate.as_ref().map(|one| &one.identity) {
        Some(PeerIdentity::Leader(name)) => name.clone(),
        _ => String::new(),
    };
    let leader = certificate.filter(|one| !name.is_empty() && (agent.knows)(one));
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(256).collect();
    let whom = for_whom(request.headers()).map_or_else(String::new, |whom| format!(" for {whom}"));
    let (response, but) = if let Some(leader) = leader {
        if let Some(standing) = request.extensions().get::<ConnectionStandingHandle>() {
            standing.prove(&Caller::Leader(CertifiedMachine {
                name: name.clone(),
                key_hash: leader.key_hash.clone(),
            }));
        }
        request.extensions_mut().insert(leader);
        (next.run(request).await, "")
    } else {
        let message = "only a machine that may lead this cluster is answered here";
        let refused = ApiError::Forbidden {
            message: message.to_owned(),
            hint: None,
        };
        (refused.into_response(), ", which may not lead,")
    };
    let status = response.status().as_u16();
    // As for the API's own line of such a call.
    if but.is_empty() && status < 400 && path.ends_with(METRICS) {
        tracing::debug!(target: "audit", "{method} {path} {status} by leader:{name}{whom} on the agent's port");
    } else if but.is_empty() || agent.bounded_lines.take(AuditedCaller::Anybody) {
        tracing::info!(target: "audit", "{method} {path} {status} by leader:{name}{but}{whom} on the agent's port");
    }
    response
}

/// The name of the leader's caller, from [`CALLER_HEADER`].
fn for_whom(headers: &HeaderMap) -> Option<String> {
    let name = headers.get(CALLER_HEADER)?.to_str().ok()?;
    let name: String = name.chars().take(MOST_NAME).collect();
    (!name.is_empty()).then_some(name)
}

impl AgentPortState {
    /// An instance of this machine, if it is of this workload.
    fn instance(
        &self,
        namespace: &str,
        workload: &str,
        id: &str,
    ) -> Result<InstanceEntry, ApiError> {
        let found = (self.find)(id).filter(|entry| {
            let assignment = &entry.assignment.value;
            assignment.namespace == namespace && assignment.workload == workload
        });
        found.ok_or_else(|| ApiError::not_found("instance", id))
    }

    /// Ends when the agent stops, or when the leader's machine has left the cluster.
    fn stream_end(&self, leader: PeerCertificate) -> impl Future<Output = ()> + use<> {
        stream_end(self.shutdown.clone(), Arc::clone(&self.knows), leader)
    }
}

/// Ends with `shutdown`, or when the peer of a stream is no longer known.
pub(super) async fn stream_end(
    shutdown: CancellationToken,
    knows: KnowsPeer,
    peer: PeerCertificate,
) {
    let unknown = async {
        while knows(&peer) {
            sleep(LOOKED_UP_EVERY).await;
        }
    };
    shutdown.run_until_cancelled(unknown).await;
}

async fn exec(
    State(agent): State<Arc<AgentPortState>>,
    Extension(leader): Extension<PeerCertificate>,
    PathParameters(name): PathParameters<(String, String, String)>,
    QueryParameters(query): QueryParameters<ExecParameters>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    begin(&agent, leader, &name, query.request()?, &headers, body).await
}

async fn forward(
    State(agent): State<Arc<AgentPortState>>,
    Extension(leader): Extension<PeerCertificate>,
    PathParameters(name): PathParameters<(String, String, String)>,
    QueryParameters(query): QueryParameters<ForwardParameters>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    begin(&agent, leader, &name, query.request()?, &headers, body).await
}

async fn begin(
    agent: &AgentPortState,
    leader: PeerCertificate,
    (namespace, workload, id): &(String, String, String),
    request: SessionRequest,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let entry = agent.instance(namespace, workload, id)?;
    let caller = for_whom(headers);
    let held = agent.streams.open(caller.as_deref())?;
    let begun = agent
        .sessions
        .begin(caller.as_deref(), &entry, request, inputs(body));
    let outputs = begun.await?;
    let outputs = outputs
        .map(move |output| {
            let _held = &held;
            output
        })
        .take_until(agent.stream_end(leader));
    Ok(answer(outputs))
}

/// The certificate identifies this machine; the path is only the API's.
async fn usage(
    State(agent): State<Arc<AgentPortState>>,
    PathParameters(node): PathParameters<String>,
) -> Result<Json<NodeUsage>, ApiError> {
    Ok(Json(agent.sessions.usage(&node, &(agent.all)()).await?))
}

/// As [`usage`]: the machine measures itself, whatever the path says.
async fn metrics(
    State(agent): State<Arc<AgentPortState>>,
    PathParameters(node): PathParameters<String>,
) -> Result<Json<NodeMeasurements>, ApiError> {
    Ok(Json(agent.sessions.measurements(&node).await?))
}

/// Query parameters of the instances that are gone.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GoneParameters {
    gone_of: String,
}

async fn gone(
    State(agent): State<Arc<AgentPortState>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
    QueryParameters(query): QueryParameters<GoneParameters>,
) -> Json<GoneInstances> {
    let workload = LoggedWorkload {
        namespace,
        name,
        uid: query.gone_of,
    };
    Json(agent.logs.gone(&workload, &[]).await)
}

async fn logs(
    State(agent): State<Arc<AgentPortState>>,
    Extension(leader): Extension<PeerCertificate>,
    PathParameters((namespace, workload, id)): PathParameters<(String, String, String)>,
    QueryParameters(query): QueryParameters<LogParameters>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let query = query.query()?;
    let held = agent.streams.open(for_whom(&headers).as_deref())?;
    let lines = match query.gone_of.clone() {
        Some(uid) => {
            let workload = LoggedWorkload {
                namespace,
                name: workload,
                uid,
            };
            let query = readable(query, &id)?;
            let lines = agent.logs.open_gone(&workload, "", &id, query).await?;
            lines.ok_or_else(|| ApiError::not_found("instance", &id))?
        }
        None => {
            let entry = agent.instance(&namespace, &workload, &id)?;
            agent.logs.open(&entry, query).await?
        }
    };
    let lines = lines
        .map(move |line_or_error| {
            let _held = &held;
            line_or_error.map(|one| line(&one))
        })
        .take_until(agent.stream_end(leader));
    Ok(ndjson(Body::from_stream(lines)))
}
