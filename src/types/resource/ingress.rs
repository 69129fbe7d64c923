//! Routes of requests from outside the cluster: `spec.ingress` of `VirtualLoadBalancer.kat`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PortRef, workload::is_default};

/// A host name and path whose requests the ingress forwards, redirects or answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ingress {
    /// Host name of the requests; `*.` at its start stands for one label.
    pub host: String,
    /// Path prefix of the requests in whole segments, `/` by default.
    #[serde(default = "root_path")]
    pub path: String,
    /// Name of the port that requests are forwarded to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port_name: Option<String>,
    /// Number of the port that requests are forwarded to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port: Option<u16>,
    /// URL that requests are redirected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect_to: Option<String>,
    /// Whether requests are answered with a page that says that the service is in maintenance.
    #[serde(default, skip_serializing_if = "is_default")]
    pub maintenance: bool,
    /// Whether the host is served with TLS, and with which certificate.
    #[serde(default)]
    pub tls: IngressTls,
    /// What requests without TLS get; `redirect` by default where `tls` is set.
    #[serde(default, rename = "plainHTTP", skip_serializing_if = "Option::is_none")]
    pub plain_http: Option<PlainHttp>,
    /// Further host names, which are redirected to `host`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redirect_from: Vec<String>,
    /// Whether `path` is removed from forwarded requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub strip_prefix: bool,
    /// Changed headers of requests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub request_headers: HeaderChanges,
    /// Changed headers of responses.
    #[serde(default, skip_serializing_if = "is_default")]
    pub response_headers: HeaderChanges,
    /// Users with passwords.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
    /// A workload that decides about each request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward_auth: Option<ForwardAuth>,
    /// Addresses that may use the route; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_sources: Vec<String>,
    /// Most bytes of a request's body; 0 for any number.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_body_bytes: u64,
    /// Longest waits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeouts: IngressTimeouts,
    /// Protocol that the program speaks.
    #[serde(default, skip_serializing_if = "is_default")]
    pub upstream: UpstreamProtocol,
    /// Whether requests of one client go to one instance.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sticky: bool,
    /// Whether connections are forwarded by their server name, without ending TLS.
    #[serde(default, skip_serializing_if = "is_default")]
    pub passthrough: bool,
    /// Version of the PROXY protocol towards the instance.
    #[serde(default, skip_serializing_if = "is_default")]
    pub proxy_protocol: ProxyProtocol,
}

impl Ingress {
    /// A route of a host without a target, with defaults for everything else.
    pub fn new(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            path: root_path(),
            service_port_name: None,
            service_port: None,
            redirect_to: None,
            maintenance: false,
            tls: IngressTls::default(),
            plain_http: None,
            redirect_from: Vec::new(),
            strip_prefix: false,
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
            basic_auth: None,
            forward_auth: None,
            allow_sources: Vec::new(),
            max_body_bytes: 0,
            timeouts: IngressTimeouts::default(),
            upstream: UpstreamProtocol::default(),
            sticky: false,
            passthrough: false,
            proxy_protocol: ProxyProtocol::default(),
        }
    }
}

fn root_path() -> String {
    "/".to_owned()
}

/// `true`, `false`, or where the certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum IngressTls {
    /// Whether the host is served with TLS.
    Switch(bool),
    /// Where the certificate comes from.
    Source(TlsSource),
}

impl IngressTls {
    /// Whether the host is served with TLS.
    pub fn is_on(&self) -> bool {
        *self != Self::Switch(false)
    }
}

impl Default for IngressTls {
    fn default() -> Self {
        Self::Switch(false)
    }
}

/// Where a certificate comes from: exactly one of `issuer` and `secret`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsSource {
    /// The issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<TlsIssuer>,
    /// Name of a secret with the keys `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Who issues a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum TlsIssuer {
    /// The ACME server of the cluster's settings.
    Acme,
    /// KAT's own authority for ingress.
    Internal,
}

/// What requests without TLS get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PlainHttp {
    /// A redirect to https.
    Redirect,
    /// The same as with TLS.
    Serve,
}

/// Changes of headers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderChanges {
    /// Values by the header's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Names of headers to remove.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// Users with passwords.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BasicAuth {
    /// Name of a secret with the key `htpasswd`.
    pub secret: String,
}

/// A workload that decides about each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForwardAuth {
    /// Name of the workload in the same namespace, or `NAMESPACE/NAME` of one that lets this namespace
    /// reach it.
    pub workload: String,
    /// Name or number of its port.
    pub port: PortRef,
    /// Path of the question.
    #[serde(default = "root_path")]
    pub path: String,
    /// Headers of the answer that the forwarded request gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<String>,
}

/// Longest waits of a route, in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressTimeouts {
    /// For a connection to an instance.
    pub connect_seconds: u32,
    /// For the head of a response.
    pub response_seconds: u32,
    /// Between two bytes.
    pub idle_seconds: u32,
}

impl Default for IngressTimeouts {
    fn default() -> Self {
        Self {
            connect_seconds: 5,
            response_seconds: 60,
            idle_seconds: 300,
        }
    }
}

/// Protocol between the ingress and the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum UpstreamProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// HTTP/2 without TLS.
    H2c,
}

/// Version of the PROXY protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ProxyProtocol {
    /// None.
    #[default]
    None,
    /// The text form.
    V1,
    /// The binary form.
    V2,
}

/// A route to something outside KAT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// Specification of the route.
    pub spec: RouteSpec,
}

/// Specification of a route to something outside KAT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteSpec {
    /// Host name of the requests; `*.` at its start stands for one label.
    pub host: String,
    /// Path prefix of the requests in whole segments, `/` by default.
    #[serde(default = "root_path")]
    pub path: String,
    /// URL that requests are forwarded to.
    pub to: String,
    /// Whether the host is served with TLS, and with which certificate.
    #[serde(default)]
    pub tls: IngressTls,
}
