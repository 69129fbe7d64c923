//! Files between the agent and `kat-ingress`, the reverse proxy for requests from outside.
//!
//! The agent writes the files of [`FOLDER`]; `kat-ingress` reads them, and needs nothing else of the
//! agent: no call, no reload, nothing at boot.
//!
//! How the agent writes:
//! - The folder is 0750 `root:kat-ingress` ([`USER`]), each file 0640 `root:kat-ingress`, because
//!   they hold private keys and hashes of passwords.
//! - Each file is written whole under another name in the same folder (a name that begins with a
//!   dot), synced, and renamed. `kat-ingress` sees the rename by inotify and swaps what it serves.
//! - `revision` rises with each change of a file's content. It is reported in
//!   [`IngressStatus::revisions`] as soon as new connections and requests follow the file.
//! - The order of the files does not matter. A route without its upstream is answered with 503, and
//!   a host without its certificate gets no TLS. To avoid both, write certificates and upstreams
//!   before routes when something is added, and after routes when something is removed.
//! - `kat-ingress.socket` has `ConditionPathExists=` for [`ROUTES_FILE`]: it opens ports 80 and 443
//!   at boot only where that file exists. The agent writes the file before it starts
//!   `kat-ingress.socket` and `kat-ingress@a.service`, and removes the file after it has stopped them
//!   when the machine has no route to serve any more. It enables the socket only once it holds the
//!   ports: at the next boot an enabled one would take them before the machine's own program.
//! - To stop: `kat-ingress.socket` first, then both instances ([`INSTANCES`]), which finish what they
//!   have ([`INSTANCE_STOP_SECONDS`]). [`CERTIFICATES_FILE`] is removed between the two. After an
//!   upgrade either instance may be the one that runs.
//! - A port that another program holds makes the start of `kat-ingress.socket` fail.
//!
//! How `kat-ingress` reads:
//! - A file that is missing means an empty one, except after it was read once: then the last valid
//!   content stays, as for one that is unreadable, larger than [`MAXIMUM_SIZE`] or not JSON.
//! - One bad route, upstream or certificate drops only itself. What is dropped is in
//!   [`IngressStatus::refused`] with the reason.
//! - The place of a dropped route answers 503, so that no route of a shorter path opens it. Instead of
//!   a dropped certificate the last valid one of its name stays.
//! - Unknown fields are ignored. A route with a word that this version does not know is dropped.
//! - Machines that do not answer are read from [`super::machine::network::SILENT_PEERS_FILE`],
//!   which `kat-net` writes. Their instances get no new requests while another one serves.
//!
//! The agent has to treat what it reads from [`RUN_FOLDER`] as a stranger's: the folder belongs to
//! the user of `kat-ingress`. Open the file with O_NOFOLLOW, and bound what is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    resource::{HeaderChanges, IngressTimeouts, PlainHttp, ProxyProtocol, UpstreamProtocol},
    services::BackendState,
};

/// The program; it is called by `kat-ingress@.service` only.
pub const PROGRAM: &str = "/usr/libexec/kat/kat-ingress";
/// User and group of the program, made by systemd-sysusers at `init`.
pub const USER: &str = "kat-ingress";
/// The socket unit that holds ports 80 and 443.
pub const SOCKET_UNIT: &str = "kat-ingress.socket";
/// Instances of `kat-ingress@.service`. The first one is started at boot and by the socket; an
/// upgrade starts the one that does not run, and stops the other one when the new one is ready.
pub const INSTANCES: [&str; 2] = ["a", "b"];

/// Name of the service of one of [`INSTANCES`].
pub fn service_unit(instance: &str) -> String {
    format!("kat-ingress@{instance}.service")
}

/// Longest stop of one of [`INSTANCES`] in seconds: longer than its `TimeoutStopSec=`, within which it
/// finishes what it has.
pub const INSTANCE_STOP_SECONDS: u64 = 105;

/// Folder of the agent's files.
pub const FOLDER: &str = "/var/lib/kat/ingress";
/// Settings of the cluster: [`IngressSettings`].
pub const SETTINGS_FILE: &str = "settings.json";
/// Routes: [`IngressRoutes`].
pub const ROUTES_FILE: &str = "routes.json";
/// Instances behind the routes: [`IngressUpstreams`].
pub const UPSTREAMS_FILE: &str = "upstreams.json";
/// Certificates with their keys: [`IngressCertificates`].
pub const CERTIFICATES_FILE: &str = "certificates.json";
/// Answers to HTTP-01 challenges (RFC 8555 8.3): [`IngressChallenges`].
pub const CHALLENGES_FILE: &str = "challenges.json";
/// Largest file in bytes.
pub const MAXIMUM_SIZE: u64 = 64 << 20;

/// Folder of the files that `kat-ingress` writes; 0755, of its user. It stays when the program ends.
pub const RUN_FOLDER: &str = "/run/kat-ingress";

/// Name in [`RUN_FOLDER`] of the status of an instance: [`IngressStatus`]. It is written at each
/// change, and removed when the instance ends.
pub fn status_file(instance: &str) -> String {
    format!("status-{instance}.json")
}

/// Name in [`RUN_FOLDER`] of the counters of an instance: [`IngressMetrics`]. It is written every
/// ten seconds, if something has changed, and removed when the instance ends.
pub fn metrics_file(instance: &str) -> String {
    format!("metrics-{instance}.json")
}

/// Settings of the cluster for all routes.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressSettings {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Rises with each change.
    pub revision: i64,
    /// Name of this machine, instances on it come first.
    pub node: String,
    /// Peers whose `X-Forwarded-For`, `X-Forwarded-Proto`, `X-Forwarded-Host` and `Forwarded` are
    /// kept and extended. From all others they are removed and set anew.
    pub trusted_proxies: Vec<IpNet>,
    /// Peers that must send a PROXY header (v1 or v2) on both ports. It is refused from all others.
    pub proxy_protocol_from: Vec<IpNet>,
    /// One line in the journal for each request.
    pub access_log: bool,
    /// Key of the cookie `kat-instance`, the same on all machines: 32 bytes in hexadecimal digits.
    /// Empty for a random one of the process, so that clients may change their instance at a restart.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sticky_key: String,
}

/// The routes that this machine serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRoutes {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Rises with each change.
    pub revision: i64,
    /// By name. The name is in metrics, in the access log and in
    /// [`IngressStatus::refused`], and never in an answer; `NAMESPACE/WORKLOAD/HOST/PATH` is a
    /// good one.
    pub routes: BTreeMap<String, IngressRoute>,
}

/// One host with one path.
///
/// Of several routes that match a request, an exact host wins over a wildcard, then the longest path
/// wins. Of two routes with the same host and path the first name wins, and the other is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressRoute {
    /// Host name in lower case and ASCII (IDNA), without port and final dot; `*.` at its start stands
    /// for one label.
    pub host: String,
    /// Path prefix in whole segments: begins with `/`, has no `//`, `.`, `..`, `%`, query or final
    /// slash (except `/` itself).
    #[serde(default = "root_path")]
    pub path: String,
    /// What is done with a request.
    pub action: RouteAction,
    /// TLS of this host; `None` serves it on port 80 alone. All routes of a host should agree; of
    /// several, the one that matches a request counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<RouteTls>,
    /// What a request on port 80 gets if the route has `tls`; 308 to https by default.
    #[serde(default = "redirect", rename = "plainHTTP")]
    pub plain_http: PlainHttp,
    /// Further hosts, redirected with 308 to `host` with the same path and query. With `tls` they
    /// need certificates of their own or names in the same one. An exact route of another name wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redirect_from: Vec<String>,
    /// The path prefix is removed from the forwarded path, and sent as `X-Forwarded-Prefix`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub strip_prefix: bool,
    /// Changes to requests. Those of hop-by-hop headers, `Host`, `Content-Length`,
    /// `X-Forwarded-*`, `Forwarded` and `X-Real-IP` refuse the route.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request_headers: HeaderChanges,
    /// Changes to responses. Those of hop-by-hop headers and `Content-Length` refuse the route.
    #[serde(default, skip_serializing_if = "is_default")]
    pub response_headers: HeaderChanges,
    /// Lines `NAME:HASH` with bcrypt hashes (`$2a$`, `$2b$`, `$2y$`, cost at most 12): one of these
    /// users must sign in. An empty list refuses everybody, so that an unreadable secret opens
    /// nothing; `None` asks for no password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<Vec<String>>,
    /// Another upstream that decides about each request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_auth: Option<RouteForwardAuth>,
    /// Client addresses that may use the route, after PROXY header and trusted proxies; `None` for
    /// all. An empty list refuses everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_sources: Option<Vec<IpNet>>,
    /// Most bytes of a request's body; 0 for any number.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_body_bytes: u64,
    /// Longest waits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeouts: IngressTimeouts,
    /// Protocol towards the instances.
    #[serde(default, skip_serializing_if = "is_default")]
    pub protocol: UpstreamProtocol,
    /// One client keeps its instance, by the cookie `kat-instance`, while the instance serves.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sticky: bool,
    /// Connections to port 443 with this server name are forwarded without ending TLS. Only `host`
    /// (path `/`), a service action, `allow_sources`, `timeouts` and `proxy_protocol` have an effect.
    #[serde(default, skip_serializing_if = "is_default")]
    pub passthrough: bool,
    /// Header that each connection to an instance begins with, which names the client. Each
    /// connection then carries the requests of one client connection alone.
    #[serde(default, skip_serializing_if = "is_default")]
    pub proxy_protocol: ProxyProtocol,
}

impl IngressRoute {
    /// A route with defaults for everything else.
    pub fn new(host: &str, action: RouteAction) -> Self {
        Self {
            host: host.to_owned(),
            path: root_path(),
            action,
            tls: None,
            plain_http: redirect(),
            redirect_from: Vec::new(),
            strip_prefix: false,
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
            basic_auth: None,
            forward_auth: None,
            allow_sources: None,
            max_body_bytes: 0,
            timeouts: IngressTimeouts::default(),
            protocol: UpstreamProtocol::default(),
            sticky: false,
            passthrough: false,
            proxy_protocol: ProxyProtocol::default(),
        }
    }
}

fn root_path() -> String {
    "/".to_owned()
}

fn redirect() -> PlainHttp {
    PlainHttp::Redirect
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What is done with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RouteAction {
    /// It is forwarded to an instance.
    Service {
        /// Name in [`IngressUpstreams`].
        upstream: String,
    },
    /// It is answered with 308 to this URL; the request's path below `path`, and its query, are
    /// appended.
    Redirect {
        /// Absolute, `http` or `https`, with host.
        to: String,
    },
    /// It is answered with a 503 page that says so.
    Maintenance {},
}

/// TLS of a route's host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteTls {
    /// Why the host's own certificate is not there yet, as a sentence for strangers, such as `The
    /// certificate of shop.example.org is being ordered.`. Requests on port 443 are answered with
    /// 503 and this sentence, and those on port 80 with the same instead of the redirect, until it
    /// is `None`. The host's entry in [`IngressCertificates`] then is one of the internal authority, if
    /// that issues certificates for the host; otherwise port 443 offers no TLS for it meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// `max-age` of the header `Strict-Transport-Security`, which responses on port 443 get unless
    /// `response_headers` names it; 0 for none. 0 with a certificate of the internal authority.
    pub hsts_seconds: u64,
}

/// An upstream that decides about each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteForwardAuth {
    /// Name in [`IngressUpstreams`].
    pub upstream: String,
    /// Path of the question.
    pub path: String,
    /// Headers of an allowing answer (2xx) that the forwarded request gets. They are removed from
    /// what clients send.
    #[serde(default)]
    pub response_headers: Vec<String>,
}

/// The instances behind the routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressUpstreams {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Rises with each change.
    pub revision: i64,
    /// By name; `NAMESPACE/WORKLOAD:PORT` is a good one.
    pub upstreams: BTreeMap<String, IngressUpstream>,
}

/// The instances of one port of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressUpstream {
    /// All instances that exist, by name, those without traffic too: so the page for a service
    /// without a serving instance differs from that for one without instances.
    pub instances: BTreeMap<String, UpstreamInstance>,
}

/// One instance behind a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamInstance {
    /// Its address in the overlay, or of the machine with `hostNetwork`, or of a route's target
    /// outside KAT.
    pub address: IpAddr,
    /// Port of the container.
    pub port: u16,
    /// Its machine. Instances on [`IngressSettings::node`] come first. Empty for targets outside.
    #[serde(default)]
    pub machine: String,
    /// `serving` gets new requests. `leaving` finishes what it has. `away` and `held` get nothing
    /// new; all instances of an upstream being `away` gets requests to those, because the leader's
    /// view may be the old one.
    pub state: BackendState,
}

/// Certificates with their keys.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressCertificates {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Rises with each change.
    pub revision: i64,
    /// By name, which appears in [`IngressStatus::refused`].
    pub certificates: BTreeMap<String, IngressCertificate>,
}

/// A certificate with its key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressCertificate {
    /// Server names that get it, written as [`IngressRoute::host`]. They come from the routes and
    /// their owners, never from the certificate: one that a user gives must not serve another's
    /// host. An exact name wins over a wildcard; of two certificates for one name the first
    /// certificate's name wins.
    pub hosts: BTreeSet<String>,
    /// PEM, the leaf first.
    pub chain: String,
    /// PEM: PKCS #8, PKCS #1 or SEC 1.
    pub key: String,
}

impl std::fmt::Debug for IngressSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key appears in no log.
        f.debug_struct("IngressSettings")
            .field("revision", &self.revision)
            .field("node", &self.node)
            .field("trusted_proxies", &self.trusted_proxies)
            .field("proxy_protocol_from", &self.proxy_protocol_from)
            .field("access_log", &self.access_log)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for IngressCertificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IngressCertificates")
            .field("revision", &self.revision)
            .field("certificates", &self.certificates)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for IngressCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key appears in no log.
        f.debug_struct("IngressCertificate")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Answers to HTTP-01 challenges. `/.well-known/acme-challenge/TOKEN` on port 80 is answered from
/// here before any route, for each host. Tokens without an entry follow the routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressChallenges {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Rises with each change. An order is answered after each machine's
    /// [`IngressRevisions::challenges`] has reached it.
    pub revision: i64,
    /// Key authorizations by token. Tokens are base64url, at most 128 characters; key authorizations
    /// have at most 512.
    pub tokens: BTreeMap<String, String>,
}

/// State of one instance of `kat-ingress`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressStatus {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Version of the program.
    pub version: String,
    /// Process id. A file whose process is gone is a rest of one that was killed.
    pub pid: u32,
    /// It finishes what it has, and another instance takes new connections.
    pub draining: bool,
    /// What it serves.
    pub revisions: IngressRevisions,
    /// What it does not serve; at most [`MOST_REFUSED`].
    pub refused: Vec<RefusedPart>,
}

/// Longest list of [`IngressStatus::refused`].
pub const MOST_REFUSED: usize = 256;

/// Revisions of the files that an instance serves; 0 for a file that it has not read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRevisions {
    /// Of [`SETTINGS_FILE`].
    pub settings: i64,
    /// Of [`ROUTES_FILE`].
    pub routes: i64,
    /// Of [`UPSTREAMS_FILE`].
    pub upstreams: i64,
    /// Of [`CERTIFICATES_FILE`].
    pub certificates: i64,
    /// Of [`CHALLENGES_FILE`].
    pub challenges: i64,
}

/// A part of a file, or a whole file, that is not served.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedPart {
    /// Name of the file, such as [`ROUTES_FILE`].
    pub file: String,
    /// Name of the route, upstream or certificate; empty for the whole file, of which the content
    /// before is still served.
    #[serde(default)]
    pub name: String,
    /// Why, in at most 300 bytes.
    pub reason: String,
}

/// Counters of one instance of `kat-ingress` since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressMetrics {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Open client connections.
    pub connections: u64,
    /// Client connections so far.
    pub accepted: u64,
    /// Client connections that were refused or ended at a limit, by the limit's name.
    pub limited: BTreeMap<String, u64>,
    /// By name of the route. Requests without a route count under the empty name.
    pub routes: BTreeMap<String, RouteMetrics>,
}

/// Counters of one route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteMetrics {
    /// Answers by the first digit of the status code.
    pub responses: BTreeMap<u8, u64>,
    /// Answers that `kat-ingress` made because no instance could.
    pub upstream_failures: u64,
    /// Requests that were sent to a second instance.
    pub retries: u64,
    /// Requests under way.
    pub active: u64,
    /// Bytes of request bodies.
    pub received: u64,
    /// Bytes of response bodies.
    pub sent: u64,
    /// Sum of the times to the head of the response, in milliseconds.
    pub head_milliseconds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_with_its_host_and_action_alone_has_the_defaults() {
        let text =
            r#"{"host":"a.example","action":{"service":{"upstream":"default/web:80"}},"newer":1}"#;
        let read: IngressRoute = serde_json::from_str(text).unwrap();
        let upstream = "default/web:80".to_owned();
        let expected = IngressRoute::new("a.example", RouteAction::Service { upstream });
        assert_eq!(read, expected);
        assert_eq!(read.plain_http, PlainHttp::Redirect);
        let maintenance: IngressRoute =
            serde_json::from_str(r#"{"host":"a.example","action":{"maintenance":{}}}"#).unwrap();
        assert_eq!(maintenance.action, RouteAction::Maintenance {});
    }

    #[test]
    fn the_debug_text_of_certificates_has_no_key() {
        let certificate = IngressCertificate {
            hosts: ["a.example".to_owned()].into(),
            chain: "chain".to_owned(),
            key: "private".to_owned(),
        };
        let all = IngressCertificates {
            certificates: [("a".to_owned(), certificate)].into(),
            ..IngressCertificates::default()
        };
        let text = format!("{all:?}");
        assert!(
            text.contains("a.example") && !text.contains("private"),
            "{text}"
        );
    }
}
