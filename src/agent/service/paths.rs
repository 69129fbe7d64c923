//! Where things lie (ARCHITECTURE.md, Files).

use std::path::{Path, PathBuf};

use kat_types::root::Root;

/// Configuration.
pub const CONFIGURATION: &str = "/etc/kat";
/// What belongs to this machine.
pub const AGENT_CONFIG: &str = "/etc/kat/agent.yaml";
/// The administrator's connection, 0600.
pub const ADMIN_CONNECTION: &str = "/etc/kat/admin.conf";
/// State and keys.
pub const STATE: &str = "/var/lib/kat";
/// Who this machine is ([`crate::cluster::identity::Identity`]).
pub const IDENTITY: &str = "/var/lib/kat/node.json";
/// The same while it joins: it is in the cluster already, and not set up yet.
pub const JOINING: &str = "/var/lib/kat/joining.json";
/// Where the cluster was last seen ([`crate::cluster::cluster_cache::Known`]).
pub const KNOWN: &str = "/var/lib/kat/cluster.json";
/// etcd's id of this machine's member, hexadecimal.
pub const MEMBER: &str = "/var/lib/kat/member";
/// A store is being begun anew ([`crate::commands::recovery`]), 0600.
pub const RECOVERY: &str = "/var/lib/kat/recovery.json";
/// The last confirmed desired list, 0600.
pub const DESIRED: &str = "/var/lib/kat/desired.json";
/// What workloads had before the machine's owner was asked ([`crate::volumes::earlier_grants`]), 0600.
pub const GRANTED: &str = "/var/lib/kat/granted.json";
/// Folders of the machine that KAT makes for workloads: in it one for each namespace ([`crate::volumes::host_paths`]).
pub const HOST: &str = "/var/lib/kat/host";
/// The folders of volumes that this machine has made ([`crate::volumes::Volumes`]), 0600.
pub const VOLUMES: &str = "/var/lib/kat/volumes.json";
/// Since when images are not used ([`crate::images::unused::ImageCare`]), 0600.
pub const IMAGES: &str = "/var/lib/kat/images.json";
/// Room for Podman while an instance is evicted ([`crate::disk::eviction`]), 0600.
pub const EVICTION_RESERVE: &str = "/var/lib/kat/eviction-reserve";
/// Authorities, certificates and keys, 0700.
pub const PKI: &str = "/var/lib/kat/pki";
/// Unit files of workload users, one folder for each uid.
pub const UNITS: &str = "/var/lib/kat/units";
/// Files of workloads' folders that containers mount ([`crate::volumes::carried_files`]), one folder for each uid.
pub const FILES: &str = "/var/lib/kat/files";
/// Where Podman's generator finds them, one folder for each uid, linked one by one.
pub const QUADLETS: &str = "/etc/containers/systemd/users";
/// Root of the containers that hold networks ([`crate::worker::network_holder`]).
pub const HOLDER: &str = "/var/lib/kat/holder";
/// Run time.
pub const RUN: &str = "/run/kat";
/// When a leader was last reached, in microseconds since the machine started.
pub const REACHED: &str = "/run/kat/reached";
/// Instances that were stopped because a disk ran full ([`crate::disk::eviction`]), 0600.
pub const EVICTED: &str = "/run/kat/evicted.json";
/// The API for members of the group `kat`.
pub const API_SOCKET: &str = "/run/kat/api.sock";
/// Drop-ins of the system manager.
pub const SYSTEM_UNITS: &str = "/etc/systemd/system";

/// Folders of one user's unit files.
#[derive(Debug, Clone)]
pub struct UserFolders {
    /// The files.
    pub units: PathBuf,
    /// The links to them.
    pub links: PathBuf,
}

impl UserFolders {
    /// The folders of `uid` below `root`, which is `/` on a real machine.
    pub fn new(root: &Path, uid: u32) -> Self {
        let root = Root::new(root);
        let below = |folder: &str| root.below(folder).join(uid.to_string());
        Self {
            units: below(UNITS),
            links: below(QUADLETS),
        }
    }
}
