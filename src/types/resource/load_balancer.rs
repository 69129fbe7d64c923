//! `VirtualLoadBalancer.kat` (RFC001-KAT 3.3).

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Ingress, workload::is_default};

/// Ports, health and ingress of a Service or DaemonService.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualLoadBalancer {
    /// Specification of the load balancer.
    pub spec: VirtualLoadBalancerSpec,
}

/// Specification of a load balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualLoadBalancerSpec {
    /// Ports of the container. Without any, the service's name resolves to the addresses of its
    /// instances.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// Health check of instances. Without one, an instance counts as healthy while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// The service's name resolves to the addresses of its instances instead of a virtual address.
    #[serde(default)]
    pub headless: bool,
    /// Settings for an ingress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<Ingress>,
    /// Further names of the workload in its namespace, which no other workload there has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Namespaces that may reach the service, in addition to those that its own namespace allows;
    /// `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_namespaces: Vec<String>,
}

/// One port of the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Name of the port, to which `ingress` and health checks refer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Port on which the program listens.
    pub container_port: u16,
    /// Transport protocol, TCP by default.
    #[serde(default)]
    pub protocol: Protocol,
    /// Port of each machine that runs the workload, which forwards to this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_port: Option<HostPort>,
    /// The machines that have the host port.
    #[serde(default, skip_serializing_if = "is_default")]
    pub host_port_on: HostPortOn,
    /// Addresses that may use the host port; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_sources: Vec<String>,
}

impl Port {
    /// The addresses that may use the host port; `None` for all.
    ///
    /// What is neither an address nor a range is left out, so that a list of such texts admits nobody.
    pub fn allowed_sources(&self) -> Option<Vec<IpNet>> {
        let sources = self.allow_sources.iter().filter_map(|text| {
            let address = text.parse::<IpAddr>().ok().map(IpNet::from);
            address.or_else(|| text.parse().ok())
        });
        (!self.allow_sources.is_empty()).then(|| sources.collect())
    }
}

/// The machines that have a host port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum HostPortOn {
    /// Those that run an instance.
    #[default]
    Instances,
    /// Those that serve ingress.
    Ingress,
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
    /// The name in `*.kat` files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// A host port: a port of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum HostPort {
    /// A fixed port.
    Number(u16),
    /// A port from 30000 to 32767, assigned by KAT.
    Auto(AutoPort),
}

/// The word `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AutoPort {
    /// KAT assigns the port.
    Auto,
}

/// A health check with exactly one of `exec`, `http` and `tcp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// A command in the container; exit code 0 is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecProbe>,
    /// An HTTP request; a status of 200 to 399 is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpProbe>,
    /// A TCP connection; an accepted connection is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpProbe>,
    /// Seconds before the first probe.
    #[serde(default)]
    pub initial_delay_seconds: u32,
    /// Seconds from one probe to the next.
    #[serde(default = "ten")]
    pub period_seconds: u32,
    /// Maximum seconds of a probe.
    #[serde(default = "one")]
    pub timeout_seconds: u32,
    /// Number of successes in a row after which an instance is healthy.
    #[serde(default = "one")]
    pub success_threshold: u32,
    /// Number of failures in a row after which an instance is unhealthy.
    #[serde(default = "three")]
    pub failure_threshold: u32,
    /// Whether an unhealthy instance is restarted.
    #[serde(default)]
    pub restart_on_unhealthy: bool,
}

/// The defaults of `VirtualLoadBalancer.kat`, without a probe.
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

/// A probe by a command in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecProbe {
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// A probe by an HTTP request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpProbe {
    /// Path and query of the request.
    pub path: String,
    /// Name or number of a port of the container.
    pub port: PortRef,
}

/// A probe by a TCP connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TcpProbe {
    /// Name or number of a port of the container.
    pub port: PortRef,
}

/// A port by its number or its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PortRef {
    /// Number of the port.
    Number(u16),
    /// Name of the port.
    Name(String),
}
