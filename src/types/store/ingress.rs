//! Stored objects of routes from outside the cluster: what an ingress machine serves, and KAT's own
//! authority for ingress with its certificates.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    resource::{
        CORE_NAMESPACE, HeaderChanges, Ingress, IngressTimeouts, ProxyProtocol, RouteSpec,
        UpstreamProtocol,
    },
    secrets::{AssignedSecrets, SecretRecord},
    store::{authorities::RotationReason, revisions::WorkloadKey},
};

/// Keys of a secret of `tls`: the chain and the key, PEM.
pub const TLS_CERTIFICATE: &str = "tls.crt";
/// See [`TLS_CERTIFICATE`].
pub const TLS_KEY: &str = "tls.key";
/// Key of a secret of `basicAuth`: lines `USER:HASH` with hashes of bcrypt.
pub const HTPASSWD: &str = "htpasswd";

/// Name among [`AssignedRoutes::secrets`], and of the value in it, of the key of the cookies of sticky
/// routes: 32 bytes, the same for all workloads and machines.
pub const STICKY_KEY: &str = "sticky";

/// TCP ports of machines that serve routes.
pub const INGRESS_PORTS: [u16; 2] = [80, 443];

/// Name of KAT's own authority for ingress among the authorities, for users.
pub const INGRESS_AUTHORITY_NAME: &str = "ingress-ca";

/// Most hosts of the routes of a namespace, with those that are redirected: each may have a certificate
/// that the leader issues, renews and stores.
pub const NAMESPACE_HOSTS: usize = 200;

/// Domains for which KAT's own authority issues certificates besides the cluster's own, where
/// `internalDomains` is not set.
pub const INTERNAL_DOMAINS: [&str; 5] = ["local", "lan", "internal", "home.arpa", "test"];

/// `/kat/nodes/desired/{node}/routes/{ns}/{workload}`: the routes of a workload that a machine serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AssignedRoutes {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The routes, in the order of the workload's file.
    pub routes: Vec<AssignedRoute>,
    /// The machine's public key that `secrets` are sealed for; empty without secrets.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sealed_for: String,
    /// Values of the secrets that the routes name ([`AssignedRoute::certificate`],
    /// [`AssignedRoute::users`]), sealed for the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<AssignedSecrets>,
}

/// One route that a machine serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedRoute {
    /// Host of the requests, or `*.` and a domain.
    pub host: String,
    /// Prefix of the path, in whole segments.
    pub path: String,
    /// Requests are forwarded to this port of the workload's instances. A route without this,
    /// `outside`, `redirect_to` and `maintenance` is one of a newer version, and is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Requests are forwarded to this address outside KAT instead of a port of the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<SocketAddr>,
    /// Requests are redirected to this URL, with their path and query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect_to: Option<String>,
    /// Requests are answered with a page that says that the service is in maintenance.
    #[serde(default)]
    pub maintenance: bool,
    /// The host is served with TLS.
    #[serde(default)]
    pub tls: bool,
    /// Name among [`AssignedRoutes::secrets`] of the certificate; `None` without TLS, and while there
    /// is none. With `awaits` it is one of KAT's own authority that stands in for a user's: the host is
    /// answered with the page alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Why there is no certificate yet, for the page that is answered meanwhile.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub awaits: String,
    /// Requests without TLS are redirected to https.
    #[serde(default)]
    pub redirects_plain: bool,
    /// Hosts that are redirected to `host`, each with the name of its certificate, if it has one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub redirect_from: BTreeMap<String, Option<String>>,
    /// `path` is removed from forwarded requests.
    #[serde(default)]
    pub strip_prefix: bool,
    /// Changed headers of requests.
    #[serde(default)]
    pub request_headers: HeaderChanges,
    /// Changed headers of responses.
    #[serde(default)]
    pub response_headers: HeaderChanges,
    /// Name among [`AssignedRoutes::secrets`] of the users with passwords. A machine that can't read
    /// them serves the route to nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<String>,
    /// Addresses and ranges that may use the route; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_sources: Vec<String>,
    /// Most bytes of a request's body; 0 for any number.
    #[serde(default)]
    pub max_body_bytes: u64,
    /// Longest waits.
    #[serde(default)]
    pub timeouts: IngressTimeouts,
    /// Protocol of the program.
    #[serde(default)]
    pub upstream: UpstreamProtocol,
    /// Requests of one client go to one instance.
    #[serde(default)]
    pub sticky: bool,
    /// TLS connections with the host as their server name are passed on whole.
    #[serde(default, skip_serializing_if = "is_default")]
    pub passthrough: bool,
    /// Version of the PROXY protocol towards the instance.
    #[serde(default, skip_serializing_if = "is_default")]
    pub proxy_protocol: ProxyProtocol,
    /// The workload that decides about each request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_auth: Option<AssignedForwardAuth>,
}

/// A workload that decides about each request of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedForwardAuth {
    /// `NAMESPACE/NAME` of the workload.
    pub workload: String,
    /// Its port. Without one the route is served to nobody: the workload does not exist, or does not
    /// let the route's namespace reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Path of the question.
    pub path: String,
    /// Headers of the answer that the forwarded request gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<String>,
}

/// `/kat/ingress/authority`: KAT's own authority for ingress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressAuthorityRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Its certificate, PEM.
    pub certificate: String,
    /// Domains that it is constrained to.
    pub domains: BTreeSet<String>,
    /// When the first one was made, or a later one had become the only one.
    pub since: Timestamp,
    /// Its private key ([`TLS_KEY`]), sealed with a data key.
    pub key: SecretRecord,
    /// It is to be replaced, and the leader has not made the other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<IngressReplacement>,
    /// The one that will issue certificates. It issues those of hosts that only its domains have
    /// already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextIngressAuthority>,
    /// The one before, while certificates of it are in use. Its key is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousIngressAuthority>,
}

impl IngressAuthorityRecord {
    /// Whether it is to be replaced, or being replaced.
    pub const fn is_being_replaced(&self) -> bool {
        self.due.is_some() || self.next.is_some() || self.previous.is_some()
    }
}

/// A replacement of KAT's own authority for ingress. Clients outside the cluster trust the authority, and
/// none of them reports that it trusts another one: so the new one waits for a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressReplacement {
    /// Why the authority is replaced.
    pub reason: RotationReason,
    /// When the replacement was asked for or, with an authority, when that was made.
    pub since: Timestamp,
    /// For how many seconds after `since` the authority that is replaced issues certificates.
    pub grace_seconds: u32,
}

impl IngressReplacement {
    /// When the new authority begins to issue all certificates.
    pub fn grace_end(&self) -> Timestamp {
        let grace = SignedDuration::from_secs(i64::from(self.grace_seconds));
        self.since.checked_add(grace).unwrap_or(Timestamp::MAX)
    }
}

/// An authority for ingress that will issue certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NextIngressAuthority {
    /// Its certificate, PEM.
    pub certificate: String,
    /// Domains that it is constrained to.
    pub domains: BTreeSet<String>,
    /// Its private key ([`TLS_KEY`]), sealed with a data key.
    pub key: SecretRecord,
    /// The replacement; it begins when the authority is made.
    pub replacement: IngressReplacement,
}

/// An authority for ingress that issued certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviousIngressAuthority {
    /// Its certificate, PEM.
    pub certificate: String,
    /// Domains that it is constrained to.
    pub domains: BTreeSet<String>,
    /// The replacement.
    pub replacement: IngressReplacement,
    /// Since when it issues none.
    pub until: Timestamp,
}

/// `/kat/ingress/certificates/{host}`: a certificate of KAT's own authority, one by ACME, or one that
/// stands in until the first one by ACME is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressCertificateRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Its chain, PEM.
    pub certificate: String,
    /// SHA-256 of the certificate of KAT's own authority that issued it; empty if another one did.
    pub authority: String,
    /// URL of the directory of the ACME server that issued it; `None` if none did. Without this and
    /// `authority` it is signed by itself, and stands in for one that is being ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acme: Option<String>,
    /// When it was issued.
    pub issued: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
    /// The round in which it was issued, of [`IngressRenewalRecord::round`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub round: u64,
    /// Chain and private key ([`TLS_CERTIFICATE`], [`TLS_KEY`]), sealed with a data key.
    pub key: SecretRecord,
}

/// `/kat/ingress/renewal`: certificates of KAT's own authority that were issued in an earlier round are
/// issued anew. A count and no time: the clocks of two leaders may differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRenewalRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Rises with each machine that is deleted and may have kept keys.
    pub round: u64,
}

/// `/kat/ingress/sticky`: the key of the cookies of sticky routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressStickyRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// When it was made.
    pub since: Timestamp,
    /// The key ([`STICKY_KEY`]), sealed with a data key.
    pub key: SecretRecord,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// `/kat/routes/{host}{path}`: a route to something outside KAT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutsideRouteRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Generated when the route is created.
    pub uid: String,
    /// When it was created.
    pub created: Timestamp,
    /// The route as it was written.
    pub spec: RouteSpec,
}

/// A stored route to something outside KAT, as the routes of workloads are treated: its secrets and its
/// host belong to the namespace of KAT itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutsideRoute {
    /// What is stored.
    pub record: OutsideRouteRecord,
    /// Stands for the workload: [`CORE_NAMESPACE`] and a name that no workload can have.
    pub key: WorkloadKey,
    /// The route; without a port, a redirect or maintenance.
    pub route: Ingress,
}

/// Beginning of a name that stands for a workload where a route to something outside KAT is assigned.
const OUTSIDE: &str = "route:";

impl OutsideRoute {
    /// What follows from a record.
    pub fn of(record: OutsideRouteRecord) -> Self {
        let RouteSpec {
            host, path, tls, ..
        } = &record.spec;
        // Keys of assigned routes have no further slash, and paths no bar.
        let name = format!("{OUTSIDE}{host}{}", path.trim_end_matches('/'));
        let key = WorkloadKey::new(CORE_NAMESPACE, &name.replace('/', "|"));
        let route = Ingress {
            path: path.clone(),
            tls: tls.clone(),
            ..Ingress::new(host)
        };
        Self { record, key, route }
    }

    /// Name of a route: its host and path, without a final slash after a path.
    pub fn name(host: &str, path: &str) -> String {
        match path.trim_end_matches('/') {
            "" => format!("{host}/"),
            path => format!("{host}{path}"),
        }
    }
}

/// The owner of a host in words: `workload NAMESPACE/NAME`, or `Route HOST/PATH`.
pub fn owner_in_words(key: &WorkloadKey) -> String {
    match key.name.strip_prefix(OUTSIDE) {
        Some(name) => format!("Route {}", name.replace('|', "/")),
        None => format!("workload {key}"),
    }
}

/// Whether a name lies in one of the domains: it is the domain, or ends in it. A wildcard counts as the
/// domain that it stands in.
pub fn is_within<'d>(host: &str, domains: impl IntoIterator<Item = &'d String>) -> bool {
    let host = host.strip_prefix("*.").unwrap_or(host);
    domains.into_iter().any(|domain| {
        let rest = host.strip_suffix(domain.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Whether a wildcard covers a host: one label stands for `*`.
pub fn covers(pattern: &str, host: &str) -> bool {
    let Some(domain) = pattern.strip_prefix("*.") else {
        return pattern == host;
    };
    pattern == host
        || host
            .split_once('.')
            .is_some_and(|(label, rest)| rest == domain && label != "*")
}
