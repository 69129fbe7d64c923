//! Stored objects of services that every machine reads: address, ports, and the instances behind
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::Ipv4Addr,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    api::HostPortStatus,
    resource::{HostPort, NamespaceAccess, Port, Protocol},
};

/// `/kat/network/services/{ns}/{workload}/ip`: the virtual address of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAddress {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The address.
    pub address: Ipv4Addr,
}

/// `/kat/network/services/{ns}/{workload}/balance`: what every machine needs to balance a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceBalance {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Ports that the service has, or that an instance of another version still has.
    pub ports: Vec<ServicePort>,
    /// Host ports that only some addresses may use; all may use the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<HostPortSources>,
    /// Its host ports with `hostPortOn: ingress`; `None` without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressPorts>,
}

/// Host ports of the machines that serve routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressPorts {
    /// The machines that have the ports.
    pub machines: BTreeSet<String>,
    /// The ports.
    pub ports: Vec<IngressPort>,
}

/// A host port of the machines that serve routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressPort {
    /// Port of the machines.
    pub port: u16,
    /// Its transport.
    pub protocol: Protocol,
    /// Port of the containers, whose instances are those of the [`ServicePort`] with this number.
    pub container_port: u16,
    /// The container ports of instances of earlier versions, where they are other ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub earlier: BTreeMap<Ipv4Addr, u16>,
}

/// The addresses that may use a host port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortSources {
    /// Port of the machine.
    pub port: u16,
    /// Its transport.
    pub protocol: Protocol,
    /// Addresses and ranges; nobody if it is empty.
    pub allow_sources: Vec<IpNet>,
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Its number, the same at the service's address and in the containers.
    pub port: u16,
    /// Its transport.
    pub protocol: Protocol,
    /// The instances that have this port.
    pub instances: Backends,
}

/// The role of an instance for callers of its workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BackendState {
    /// The instance receives new traffic.
    Serving,
    /// The instance is ending: it finishes open connections, and receives no new traffic.
    Leaving,
    /// The machine does not answer the leader, and the instance served before. Callers on other
    /// machines treat it as `Held`. A machine that reads this about itself has returned, and
    /// continues to forward its host ports until the leader has decided by its report.
    Away,
    /// The instance may exist, but receives no traffic: it is unhealthy, or restarts. A state of a
    /// newer version that this version does not know is read as `Held`.
    #[serde(other)]
    Held,
}

/// Instances of a service by their addresses.
pub type Backends = BTreeMap<Ipv4Addr, BackendState>;

/// `/kat/network/services/{ns}/{workload}/host_ports`: the numbers assigned for `auto`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortNumbers {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Also numbers that only an earlier version of the workload used.
    pub ports: Vec<HostPortNumber>,
}

/// The number assigned for `auto` for one port of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortNumber {
    /// Port of the container.
    pub container_port: u16,
    /// Its transport.
    pub protocol: Protocol,
    /// The host port, the same on each machine that runs the workload.
    pub number: u16,
}

impl fmt::Display for BackendState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Away => "away",
            Self::Held => "held",
        })
    }
}

/// `/kat/network/services/{ns}/{workload}/access`: which other namespaces may reach a workload, besides
/// those that its namespace allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccess {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Namespaces; `*` for all.
    pub allow_namespaces: Vec<String>,
}

/// `/kat/network/namespaces/{ns}`: which other namespaces may reach the workloads of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceNetwork {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The other namespaces.
    #[serde(flatten)]
    pub access: NamespaceAccess,
}

/// Host ports as the status of a workload or an instance shows them.
pub fn host_port_statuses(ports: &[Port]) -> Vec<HostPortStatus> {
    let shown = ports.iter().filter_map(|port| match port.host_port {
        Some(HostPort::Number(number)) => Some(HostPortStatus {
            port: number,
            protocol: port.protocol,
            container_port: port.container_port,
        }),
        Some(HostPort::Auto(_)) | None => None,
    });
    shown.collect()
}
