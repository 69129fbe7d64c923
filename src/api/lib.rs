//! The HTTP API of RFC001-KAT 8: server, authentication, authorization and handlers. It also has
//! the port on which an agent answers the leader.
//!
//! Where to begin:
//! - `routes.rs`: `ROUTES` and [`routes::ApiOperation`], the one table of routes.
//! - `access/authorization.rs`: [`access::authorization::RouteAccess`], which caller may use a
//!   route.
//! - `context.rs`: [`Api`], the state of all handlers, and `Api::write`, by which handlers write.
//! - `apply.rs`: what an apply of a workload writes, as a decision on a snapshot.
//! - `server.rs`: [`serve`], listeners and connections.
//!
//! Modules:
//! - `server`: TLS, pools of connections, limits, and forwarding to the leader.
//! - `access`: identity and rights of callers, and the audit log.
//! - `routes`, `extract`, `errors`, `openapi`: from a request to a handler and back.
//! - `handlers`: one file for each kind of object, in `workloads`, `data`, `machines`, `cluster`.
//! - `apply`: reading of an archive, image digests, preview and removal.
//! - `metrics`: families of metrics as text for Prometheus.
//! - `view`, `watch`, `history`: stored state as callers see it, and its changes.
//! - `agent_port`: reads and streams of one machine's instances.
//!
//! Rules:
//! - Only the leader writes, and each transaction compares its election key (invariant 2). A
//!   handler decides on a snapshot and writes with `Api::write`; what every write brings is read by
//!   `extract::WriteRequest`.
//! - The API changes no machine by a call: it writes desired state.
//! - Every request, connection and stream is bounded in size, time and number (invariant 8).
//! - Every route is a row of `ROUTES` and a line in the test of `access/authorization.rs`. Routes
//!   of `agent_port` are not in the table: they accept the certificate of a machine that may lead,
//!   or for a volume that moves that of its new machine.
//! - No answer has a value of a secret or a password. A token is shown once, when it is created.
//!   Values of variables are masked, except in the files as written.
//! - The API knows neither systemd nor the machine's files: what it needs of the agent is a trait
//!   or a function, such as [`InstanceLogs`] and [`InstanceSessions`].
//!
//! Tests: `tests/api`, `tests/joining.rs`, `tests/bad_requests` and `tests/bad_input` over real
//! sockets. `tests/schemas` compares the OpenAPI document. Unit tests are beside the code.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod access;
mod agent_port;
mod apply;
mod context;
mod errors;
mod extract;
pub mod handlers;
mod history;
mod metrics;
pub mod openapi;
pub mod routes;
pub mod server;
mod view;
mod watch;

pub use crate::{
    access::authentication::SocketAccess,
    handlers::{
        cluster::{
            joining::{JoiningState, NodeUsers},
            overview::OverviewRelay,
            tokens::{NewToken, new_token},
        },
        data::volume_copies::{CopyStream, VolumeCopies},
        machines::{measurements::MEASURED_UNITS, nodes::take_own_report},
        workloads::{
            instances::{InstanceLogs, LogStream, LoggedWorkload, LogsError},
            sessions::{InputFrames, InstanceSessions, OutputFrames, SessionError, SessionRequest},
        },
    },
    server::{
        bind::{bind, bind_overlay},
        limits::{ApiLimits, ConnectionLimits},
        open_streams::{OpenStreamPermit, OpenStreams, StreamLimitReached},
        tcp_proxy::{LeaderLocator, LeaderSource, SocketLeader},
    },
};
pub use agent_port::{AgentPort, FindInstance, KnowsPeer, ListInstances, serve_agent};
pub use context::{Api, ApiConfig, NewUid, WallClock, random_uid};
pub use errors::ApiError;
pub use kat_types::api::{CallMetrics, LogQuery, Metrics, NamespaceRequest};
pub use server::{
    ApiListeners, OwnRoute, SocketListener, StateRoute, TlsListener, TlsSource, serve,
};
