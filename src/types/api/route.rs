//! Routes from outside the cluster, in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;
use crate::resource::{API_VERSION, Route, RouteSpec};

/// A route of a workload, or one to something outside KAT.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteView {
    /// Name of the workload; empty for a route to something outside KAT.
    pub workload: String,
    /// Host of the requests; `*.` at its start stands for one label.
    pub host: String,
    /// Prefix of the path, in whole segments.
    pub path: String,
    /// The answer: `port NUMBER`, `redirect to URL`, `maintenance`, or the URL outside KAT.
    pub to: String,
    /// Further hosts, which are redirected to `host`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub redirect_from: Vec<String>,
    /// Issuer of the certificate: `none`, `internal` (KAT's own authority) or `secret NAME`.
    pub issuer: String,
    /// Whether requests without TLS are redirected to https.
    pub redirects_plain: bool,
}

/// The request that writes a route to something outside KAT: `route.kat` as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteRequest {
    /// `kat.dws.rip/v1alpha1`.
    pub api_version: String,
    /// `Route`.
    pub kind: String,
    /// The route.
    pub spec: RouteSpec,
}

impl From<&Route> for RouteRequest {
    fn from(route: &Route) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: "Route".to_owned(),
            spec: route.spec.clone(),
        }
    }
}

/// Observed state of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteStatus {
    /// Whether at least one machine serves the route as it is written.
    pub served: bool,
    /// `Served`, or why it is not, one word for programs.
    pub reason: String,
    /// Why it is not served, in a sentence.
    pub message: String,
    /// Instances that get new requests.
    pub serving: u32,
    /// Instances of the port.
    pub instances: u32,
    /// When the certificate of KAT's own authority or by ACME expires; unknown for others.
    pub expires: ApiTime,
    /// The machines that serve routes.
    pub machines: Vec<RouteMachine>,
    /// Addresses of those machines outside the overlay: the host's A and AAAA records.
    pub addresses: Vec<String>,
}

/// A machine that serves routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteMachine {
    /// Name of the machine.
    pub node: String,
    /// Whether it serves the route.
    pub serves: bool,
    /// Whether it holds the private key of the route's certificate.
    pub holds_key: bool,
    /// Why it does not serve the route, one word for programs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why it does not serve the route, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// KAT's own authority for ingress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressAuthorityView {
    /// Its certificate, PEM; empty before the first certificate of it.
    pub certificate: String,
    /// SHA-256 of its certificate in DER, as 64 hexadecimal digits.
    pub fingerprint: String,
    /// Domains for which it can issue certificates.
    pub domains: Vec<String>,
    /// The authority that replaces it, for clients to trust beside it; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<TrustedIngressAuthority>,
    /// The authority that it has replaced, while certificates of that one are in use; absent if there
    /// is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<TrustedIngressAuthority>,
    /// When `next` begins to issue all certificates; RFC 3339, UTC; empty without `next`.
    pub next_issues: ApiTime,
}

/// An authority for ingress that clients have to trust beside the present one while it is replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrustedIngressAuthority {
    /// Its certificate, PEM.
    pub certificate: String,
    /// SHA-256 of its certificate in DER, as 64 hexadecimal digits.
    pub fingerprint: String,
    /// Domains for which it can issue certificates.
    pub domains: Vec<String>,
}
