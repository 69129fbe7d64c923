//! The machine's identity: written by init or join, and read at every start. The agent writes the
//! machine's role into it, and the cluster's settings that it follows.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

use anyhow::Context;
use ipnet::Ipv4Net;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::reach::ReachSettings;
use kat_host::files::{self, FileAccess};
use kat_types::{encoding::json, resource::ClusterConfiguration};

/// Largest identity in bytes.
const LIMIT: u64 = 256 << 10;
/// Held while the file is read and written again: two loops of the agent change parts of it.
static UPDATE: Mutex<()> = Mutex::new(());

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
    /// The cluster's configuration that this machine follows: at first that of its init or join.
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
    /// Changes a part of the identity on the disk.
    pub(crate) fn update(path: &Path, change: impl FnOnce(&mut Self)) -> anyhow::Result<()> {
        let _held = UPDATE.lock();
        let name = path.display().to_string();
        let text = files::read_text(path, LIMIT)?;
        let mut identity: Self = serde_json::from_str(&text).with_context(|| name.clone())?;
        change(&mut identity);
        let text = json::pretty(&name, &identity)?;
        files::write_if_changed(path, &text, FileAccess::mode(0o600))?;
        Ok(())
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_one_part_keeps_what_another_loop_has_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.json");
        let first = MachineIdentity::example("n1");
        std::fs::write(&path, serde_json::to_vec(&first).unwrap()).unwrap();
        MachineIdentity::update(&path, |identity| identity.etcd = true).unwrap();
        let settings = |identity: &mut MachineIdentity| identity.cluster.spec.mtu = 1380;
        MachineIdentity::update(&path, settings).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let read: MachineIdentity = serde_json::from_str(&text).unwrap();
        let mut expected = first;
        expected.etcd = true;
        expected.cluster.spec.mtu = 1380;
        assert_eq!(read, expected);
    }
}
