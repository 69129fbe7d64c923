//! What every machine reads of a service: its address, its ports, and the instances behind them.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use serde::{Deserialize, Serialize};

use crate::resource::Protocol;

/// `/kat/network/services/{ns}/{workload}/ip`.
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
    /// Those that the service has, or an instance of another version still has.
    pub ports: Vec<ServicePort>,
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

/// What an instance is to those who call its workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BackendState {
    /// It takes what comes.
    Serving,
    /// It is on its way out: it ends what it has begun, and takes nothing new.
    Leaving,
    /// It may be there, and nobody is sent to it: it is ill, starts again, or its machine does not
    /// answer. So is what a newer version says that this one does not know.
    #[serde(other)]
    Held,
}

/// Instances of a service by their addresses.
pub type Backends = BTreeMap<Ipv4Addr, BackendState>;

/// `/kat/network/services/{ns}/{workload}/host_ports`: what `auto` is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortNumbers {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Those that a version of the workload had once.
    pub ports: Vec<HostPortNumber>,
}

/// What `auto` is for one port of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortNumber {
    /// Port of the container.
    pub container_port: u16,
    /// Its transport.
    pub protocol: Protocol,
    /// Port of each machine that runs it.
    pub number: u16,
}

impl fmt::Display for BackendState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Held => "held",
        })
    }
}
