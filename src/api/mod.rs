//! The API (RFC001-KAT 8): server, who may call what, wire types and client.

pub mod access;
mod agent_port;
mod apply;
mod audit;
mod bind;
pub mod caller;
pub mod client;
mod config;
mod context;
mod errors;
mod events;
mod extract;
pub mod frames;
mod history;
mod instances;
mod joining;
pub mod limits;
mod membership;
mod metrics;
mod namespaces;
mod node_settings;
mod nodes;
pub mod openapi;
mod pass;
mod preview;
pub mod proto;
mod rollouts;
pub mod routes;
pub mod server;
mod sessions;
mod stalled;
mod submission;
mod tokens;
pub mod types;
pub mod usage;
mod view;
mod watch;
mod workloads;

pub use agent_port::{AgentPort, FindInstance, ListInstances, MayLead, serve_agent};
pub use bind::{bind, bind_overlay};
pub use caller::SocketAccess;
pub use config::{BackupView, HealthView, StoreView};
pub use context::{Api, ApiConfig, NewUid, WallClock, random_uid};
pub use errors::ApiError;
pub use instances::{InstanceLogs, LogQuery, LogStream, LogsError};
pub use joining::{Joining, NodeUsers};
pub use limits::Limits;
pub use metrics::{CallMetrics, Metrics};
pub use namespaces::NamespaceRequest;
pub use pass::{Leader, LeaderSource, SocketLeader};
pub use server::{Listeners, SocketListener, TlsListener, TlsSource, serve};
pub use sessions::{
    CONTENT_TYPE, ExecRequest, Inputs, InstanceSessions, Outputs, SessionError, SessionRequest,
};
pub use tokens::{NewToken, new_token};
