//! The client of the API: `katcall` uses it with a token or over the local socket, the agent with
//! its machine's certificate.
//!
//! Where to begin:
//! - `lib.rs`: [`Client`], with one constructor for each kind of caller, and [`ClientOptions`].
//! - `send.rs`: one call, its endpoints, retries and deadline.
//! - `path.rs`: [`RequestPath`], the only place that builds paths of routes.
//! - `calls.rs`: methods for most routes; files such as `nodes.rs` and `volumes.rs` have the
//!   others.
//! - `error.rs`: [`ClientError`], with the exit code of each error.
//!
//! Modules:
//! - `calls`, `authorities`, `logins`, `nodes`, `registries`, `rollouts`, `secrets`, `volumes`:
//!   calls.
//! - `transport`, `authority`, `send`, `retry`: connections, trust, attempts.
//! - `follow`, `lines`: lists that are kept up to date, and streams of JSON lines.
//! - `session`, `state`: sessions with an instance, and the state stream.
//!
//! Rules:
//! - Endpoints are tried in order, and the next call starts with the one that answered last.
//! - Every attempt has a time limit, every answer a bound, every retry a capped pause (invariant
//!   8).
//! - A call that would create something twice, such as a new token, is never sent again once it may
//!   have arrived.
//! - TLS is 1.3 only and trusts only the cluster's authority. The expected name is
//!   `api.kat.<cluster uid>`, whatever the address. `kat.<cluster uid>`, the name of version 0.1.0,
//!   is accepted only where the other one was never seen (docs/internals/identity-and-access.md).
//!   Some constructors, such as [`Client::for_joining`], trust something else, which they document.
//! - No debug output has the token.
//! - The crate knows neither the store nor the server: requests and answers are `kat_types::api`.
//!
//! Tests: `src/client/tests` with small servers; `tests/api` with the real API; `tests/cli` through
//! `katcall`.

#![warn(missing_docs)]

mod authorities;
mod authority;
mod calls;
mod error;
mod follow;
mod jobs;
mod lines;
mod logins;
mod nodes;
mod path;
mod registries;
mod retry;
mod rollouts;
mod secrets;
mod send;
mod session;
mod state;
#[cfg(test)]
mod tests;
mod transport;
mod volumes;

use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use kat_pki::{ApiServers, ServerMemory};
use kat_types::api::Connection;
use transport::Endpoint;

pub use authority::TrustedAuthority;
pub use calls::{ApplyOutcome, Deletion, StoredSource};
pub use error::{ApiRefusal, ClientError};
pub use follow::{FollowedList, KeyedItem, ListChange};
pub use kat_pki::token::{Token, TokenError};
pub use lines::{JsonLines, LineError, LineSplitter};
pub use path::RequestPath;
pub use retry::RetryPauses;
pub use session::{SessionInput, SessionOutput};
pub use state::StateConnection;
pub use volumes::CopyPieces;

/// Time limits of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientOptions {
    /// Time limit of a TCP and TLS handshake.
    pub connect_timeout: Duration,
    /// Time limit of one attempt, until the complete response is read; for streams, until its head
    /// is read.
    pub request_timeout: Duration,
    /// How long a call is retried while the server answers `Unavailable` or breaks off.
    pub retry_for: Duration,
    /// How long a call is retried while no endpoint can be reached at all.
    pub unreachable_for: Duration,
    /// First pause between two rounds of attempts; it doubles up to `backoff_limit`.
    pub backoff: Duration,
    /// Longest pause between two rounds of attempts.
    pub backoff_limit: Duration,
    /// Silence after which a watch counts as dead; the server sends a bookmark every 15 s.
    pub watch_idle: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(10),
            unreachable_for: Duration::from_secs(2),
            backoff: Duration::from_millis(100),
            backoff_limit: Duration::from_secs(2),
            watch_idle: Duration::from_secs(45),
        }
    }
}

#[derive(Clone)]
struct Learning {
    memory: Arc<ServerMemory>,
    connection: Arc<Connection>,
}

/// What a connection should say from now on: that servers must have the name of the API, because one
/// had it, and which authorities sign their certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedConnection {
    /// Uid of the cluster of the connection.
    pub cluster_uid: String,
    /// Certificates of the authorities, PEM, where they are others than before: an authority is being
    /// replaced, or has been.
    pub ca: Option<String>,
    /// Those of before.
    pub ca_before: String,
}

impl LearnedConnection {
    /// Enters it into a connection to this cluster.
    pub fn enter(&self, connection: &mut Connection) {
        connection.api_name_required = true;
        // Another katcall may have learned more meanwhile.
        if let Some(ca) = &self.ca
            && connection.ca == self.ca_before
        {
            connection.ca.clone_from(ca);
        }
    }
}

/// A client of one cluster. Clones share connections.
#[derive(Clone)]
pub struct Client {
    endpoints: Arc<[Endpoint]>,
    /// Index of the endpoint that answered last.
    preferred: Arc<AtomicUsize>,
    /// A response had the mark that it may be old.
    stale: Arc<AtomicBool>,
    /// The header's value: `Bearer` and the token.
    authorization: Option<Arc<str>>,
    /// What servers teach about the connection that the client was made from.
    learning: Option<Learning>,
    /// Name of the caller on whose behalf a leader starts sessions.
    caller: Option<Arc<str>>,
    options: ClientOptions,
}

impl Client {
    /// A client with a bearer token.
    ///
    /// # Errors
    /// [`ClientError::Configuration`] when the connection has no endpoints, a uid that is no DNS
    /// label, or a certificate that can't be read. Nothing is sent yet.
    pub fn from_connection(
        connection: &Connection,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let memory = ServerMemory::new(connection.api_name_required);
        Self::remembering(connection, memory, options)
    }

    /// A client with connections of its own, which shares with this one what servers teach: they say
    /// it at the beginning of a connection.
    ///
    /// # Errors
    /// As [`Client::from_connection`].
    pub fn anew(&self) -> Result<Self, ClientError> {
        match &self.learning {
            Some(learning) => {
                let memory = Arc::clone(&learning.memory);
                Self::remembering(&learning.connection, memory, self.options)
            }
            None => Ok(self.clone()),
        }
    }

    fn remembering(
        connection: &Connection,
        memory: Arc<ServerMemory>,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let endpoints = transport::tls(
            &connection.endpoints,
            &connection.cluster_uid,
            &connection.ca,
            None,
            &ApiServers::Named(Arc::clone(&memory)),
            options,
        )?;
        let mut client = Self::new(endpoints, options);
        client.learning = Some(Learning {
            memory,
            connection: Arc::new(connection.clone()),
        });
        if !connection.token.is_empty() {
            // A server needs no more of a token; what it cannot read, it refuses with a reason.
            let token = Token::parse(&connection.token).map(|token| token.bearer());
            let token = token.unwrap_or_else(|_| connection.token.clone());
            client.authorization = Some(format!("Bearer {token}").into());
        }
        Ok(client)
    }

    /// A client with a bearer token, for servers of this authority.
    ///
    /// # Errors
    /// [`ClientError::Configuration`] when there are no endpoints, or one is not `host:port`.
    ///
    /// The name of the API is demanded.
    pub fn with_authority(
        endpoints: &[String],
        authority: &TrustedAuthority,
        token: &Token,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let endpoints = match authority {
            TrustedAuthority::Certificate { pem, cluster_uid } => {
                let named = ApiServers::Named(ServerMemory::new(true));
                transport::tls(endpoints, cluster_uid, pem, None, &named, options)?
            }
            TrustedAuthority::Hash(hash) => transport::all_pinned(endpoints, hash, options)?,
        };
        let mut client = Self::new(endpoints, options);
        client.authorization = Some(format!("Bearer {}", token.bearer()).into());
        Ok(client)
    }

    /// A machine's client of these servers. `identity` holds the machine's certificate and its key,
    /// PEM; without it the caller proves itself by its request.
    ///
    /// # Errors
    /// As [`Client::from_connection`].
    pub fn of_machine(
        endpoints: &[String],
        cluster_uid: &str,
        ca: &str,
        identity: Option<&str>,
        servers: &ApiServers,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let endpoints = transport::tls(endpoints, cluster_uid, ca, identity, servers, options)?;
        Ok(Self::new(endpoints, options))
    }

    /// A machine's client that knows the hash of the authority's certificate alone, and proves itself
    /// by its requests.
    ///
    /// # Errors
    /// As [`Client::from_connection`].
    pub fn of_authority(
        endpoint: &str,
        fingerprint: &str,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let endpoint = transport::pinned(endpoint, Some(fingerprint), options)?;
        Ok(Self::new(vec![endpoint], options))
    }

    /// A client without credentials of any server: nothing proves who answers.
    ///
    /// # Errors
    /// As [`Client::from_connection`].
    pub fn unverified(endpoint: &str, options: ClientOptions) -> Result<Self, ClientError> {
        let endpoint = transport::pinned(endpoint, None, options)?;
        Ok(Self::new(vec![endpoint], options))
    }

    /// A client without credentials of a server whose authority has replaced one of these (PEM).
    ///
    /// # Errors
    /// As [`Client::from_connection`].
    pub fn of_successor(
        endpoint: &str,
        authorities: &str,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let endpoint = transport::successor(endpoint, authorities, options)?;
        Ok(Self::new(vec![endpoint], options))
    }

    /// A client for a machine that joins: it knows the hash of the authority's certificate and a
    /// token, both from the join token.
    ///
    /// # Errors
    /// As [`Client::from_connection`].
    pub fn for_joining(
        endpoint: &str,
        fingerprint: Option<&str>,
        token: &str,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let endpoint = transport::pinned(endpoint, fingerprint, options)?;
        let mut client = Self::new(vec![endpoint], options);
        client.authorization = Some(format!("Bearer {token}").into());
        Ok(client)
    }

    /// A leader's client of one machine's agent, at `host:port`.
    ///
    /// # Errors
    /// As [`Client::from_connection`].
    pub fn of_agent(
        endpoint: &str,
        config: rustls::ClientConfig,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let endpoint = transport::agent(endpoint, "kat.agent", config, options)?;
        Ok(Self::new(vec![endpoint], options))
    }

    /// A client over a Unix socket, such as `/run/kat/api.sock`; the socket's file mode controls
    /// access.
    ///
    /// # Errors
    /// [`ClientError::Configuration`]. Only the first call shows whether the socket answers.
    pub fn from_unix_socket(path: &Path, options: ClientOptions) -> Result<Self, ClientError> {
        Ok(Self::new(vec![transport::unix(path, options)?], options))
    }

    /// The same client, which uses a Unix socket of this machine if no other endpoint answers; the
    /// token is not sent to the socket.
    ///
    /// # Errors
    /// As [`Client::from_unix_socket`].
    pub fn or_unix_socket(mut self, path: &Path) -> Result<Self, ClientError> {
        let mut endpoints = self.endpoints.to_vec();
        endpoints.push(transport::unix(path, self.options)?);
        self.endpoints = endpoints.into();
        Ok(self)
    }

    fn new(endpoints: Vec<Endpoint>, options: ClientOptions) -> Self {
        Self {
            endpoints: endpoints.into(),
            preferred: Arc::new(AtomicUsize::new(0)),
            stale: Arc::default(),
            authorization: None,
            learning: None,
            caller: None,
            options,
        }
    }

    /// The same client with other time limits; it shares the connections.
    pub fn with_options(&self, options: ClientOptions) -> Self {
        Self {
            options,
            ..self.clone()
        }
    }

    /// The same client without retries, for callers that repeat their calls anyway.
    pub fn trying_once(&self) -> Self {
        self.with_options(ClientOptions {
            retry_for: Duration::ZERO,
            unreachable_for: Duration::ZERO,
            ..self.options
        })
    }

    /// The client for sessions on behalf of this caller.
    pub fn for_caller(&self, caller: Option<&str>) -> Self {
        Self {
            caller: caller.map(Arc::from),
            ..self.clone()
        }
    }

    /// The time limits of this client.
    pub fn options(&self) -> ClientOptions {
        self.options
    }

    /// Whether a response so far had the mark that it may be old: its machine reached no leader.
    pub fn saw_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// What servers taught that the connection does not say yet. This client goes by it from then on;
    /// a later one has to be told.
    pub fn learned(&self) -> Option<LearnedConnection> {
        let learning = self.learning.as_ref()?;
        if !learning.memory.is_required() {
            return None;
        }
        let before = &learning.connection;
        let ca = learning.memory.authorities();
        let ca = ca.filter(|ca| !kat_pki::tls::same_certificates(ca, &before.ca));
        if before.api_name_required && ca.is_none() {
            return None;
        }
        Some(LearnedConnection {
            cluster_uid: before.cluster_uid.clone(),
            ca,
            ca_before: before.ca.clone(),
        })
    }

    /// The endpoint that the next call starts with, as `host:port` or the socket's path.
    pub fn endpoint(&self) -> &str {
        let index = self.preferred.load(Ordering::Relaxed);
        self.endpoints
            .get(index)
            .map_or("", |endpoint| endpoint.label.as_str())
    }
}

impl fmt::Debug for Client {
    /// Omits the token.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<&str> = self.endpoints.iter().map(|at| at.label.as_str()).collect();
        formatter
            .debug_struct("Client")
            .field("endpoints", &labels)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
