//! `VirtualLoadBalancer.kat` (RFC001-KAT 3.3).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Ports, health and ingress of a Service or DaemonService.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualLoadBalancer {
    /// What is wanted.
    pub spec: VirtualLoadBalancerSpec,
}

/// What a load balancer is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualLoadBalancerSpec {
    /// At least one port.
    pub ports: Vec<Port>,
    /// When an instance counts as healthy; running is healthy without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// The service's name answers with instance addresses.
    #[serde(default)]
    pub headless: bool,
    /// Hints for an ingress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<Ingress>,
}

/// One port of the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Name that ingress and probes refer to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Port that the program listens on.
    pub container_port: u16,
    /// TCP unless written.
    #[serde(default)]
    pub protocol: Protocol,
    /// Port of the machine that leads here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_port: Option<HostPort>,
}

/// Transport protocol of a port.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Protocol {
    /// TCP.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// UDP.
    #[serde(rename = "UDP")]
    Udp,
}

impl Protocol {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// A port of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum HostPort {
    /// This one.
    Number(u16),
    /// Any of 30000 to 32767.
    Auto(AutoPort),
}

/// The word `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AutoPort {
    /// KAT chooses.
    Auto,
}

/// A probe: exactly one of exec, http and tcp.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// A command in the container; 0 is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecProbe>,
    /// An HTTP request; 200 to 399 is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpProbe>,
    /// A connection that opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpProbe>,
    /// Wait before the first probe.
    #[serde(default)]
    pub initial_delay_seconds: u32,
    /// From one probe to the next.
    #[serde(default = "ten")]
    pub period_seconds: u32,
    /// Longest time of a probe.
    #[serde(default = "one")]
    pub timeout_seconds: u32,
    /// Successes in a row to be healthy.
    #[serde(default = "one")]
    pub success_threshold: u32,
    /// Failures in a row to be unhealthy.
    #[serde(default = "three")]
    pub failure_threshold: u32,
    /// Restart an unhealthy instance.
    #[serde(default)]
    pub restart_on_unhealthy: bool,
}

/// As where nothing but the probe is written; the probe itself is missing.
impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            exec: None,
            http: None,
            tcp: None,
            initial_delay_seconds: 0,
            period_seconds: ten(),
            timeout_seconds: one(),
            success_threshold: one(),
            failure_threshold: three(),
            restart_on_unhealthy: false,
        }
    }
}

fn one() -> u32 {
    1
}

fn three() -> u32 {
    3
}

fn ten() -> u32 {
    10
}

/// A command in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecProbe {
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// An HTTP request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpProbe {
    /// Path and query.
    pub path: String,
    /// Name or number of a port.
    pub port: PortRef,
}

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TcpProbe {
    /// Name or number of a port.
    pub port: PortRef,
}

/// A port by its number or its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PortRef {
    /// By number.
    Number(u16),
    /// By name.
    Name(String),
}

/// A hint for an ingress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ingress {
    /// Host name from outside.
    pub host: String,
    /// Prefix of the path.
    #[serde(default = "root_path")]
    pub path: String,
    /// Name of a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port_name: Option<String>,
    /// Number of a port; wins over the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port: Option<u16>,
    /// Ask the ingress for a certificate.
    #[serde(default)]
    pub tls: bool,
}

fn root_path() -> String {
    "/".to_owned()
}
