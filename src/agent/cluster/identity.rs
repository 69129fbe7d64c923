//! The machine's identity: written once by init or join, read at every start.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::reach::ReachSettings;
use kat_types::resource::ClusterConfiguration;

/// The content of `/var/lib/kat/node.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineIdentity {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    pub node: String,
    /// Generated at init or join; not the machine id, which cloned machines share.
    pub node_uid: String,
    pub cluster_uid: String,
    /// The cluster's configuration as it was at init or join.
    pub cluster: ClusterConfiguration,
    /// This machine's subnet of the overlay.
    pub subnet: Ipv4Net,
    /// Addresses at which others reached this machine at init or join.
    pub advertise: Vec<IpAddr>,
    /// Whether this machine holds etcd.
    pub etcd: bool,
    /// How other machines reach this one, as given at init or join.
    #[serde(default)]
    pub reached: ReachSettings,
}

impl MachineIdentity {
    pub fn overlay_address(&self) -> Ipv4Addr {
        kat_types::machine::network::node_address(self.subnet)
    }
}

#[cfg(test)]
impl MachineIdentity {
    /// A machine without etcd, of a cluster with the defaults.
    pub(crate) fn example(node: &str) -> Self {
        Self {
            schema: 1,
            node: node.to_owned(),
            node_uid: "7a1c".to_owned(),
            cluster_uid: "3f0c".to_owned(),
            cluster: ClusterConfiguration::default(),
            subnet: "10.100.0.0/23".parse().unwrap(),
            advertise: Vec::new(),
            etcd: false,
            reached: ReachSettings::default(),
        }
    }
}
