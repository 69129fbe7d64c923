//! The API (RFC001-KAT 8): HTTP server, authentication, authorization and handlers.

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
        machines::nodes::take_own_report,
        workloads::{
            instances::{InstanceLogs, LogStream, LogsError},
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
pub use server::{ApiListeners, SocketListener, StateRoute, TlsListener, TlsSource, serve};
