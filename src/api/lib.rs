//! The API (RFC001-KAT 8): HTTP server, authentication, authorization and handlers.

// Tests encode JSON in places; the build without tests is what keeps `serde_json::to_vec` and its
// like out.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod access;
mod agent_port;
mod apply;
mod context;
mod errors;
mod extract;
pub mod handlers;
mod history;
pub mod openapi;
pub mod routes;
pub mod server;
mod view;
mod watch;

pub use crate::access::authentication::SocketAccess;
pub use crate::handlers::instances::{InstanceLogs, LogQuery, LogStream, LogsError};
pub use crate::handlers::joining::{Joining, NodeUsers};
pub use crate::handlers::metrics::{CallMetrics, Metrics};
pub use crate::handlers::namespaces::NamespaceRequest;
pub use crate::handlers::sessions::{
    Inputs, InstanceSessions, Outputs, SessionError, SessionRequest,
};
pub use crate::handlers::tokens::{NewToken, new_token};
pub use crate::handlers::volume_copies::{CopyStream, VolumeCopies};
pub use crate::server::bind::{bind, bind_overlay};
pub use crate::server::limits::{Limits, Share};
pub use crate::server::open_streams::{Full, Held, OpenStreams};
pub use crate::server::tcp_proxy::{Leader, LeaderSource, SocketLeader};
pub use agent_port::{AgentPort, FindInstance, KnowsPeer, ListInstances, serve_agent};
pub use context::{Api, ApiConfig, NewUid, WallClock, random_uid};
pub use errors::ApiError;
pub use server::{Listeners, SocketListener, TlsListener, TlsSource, serve};
