//! Where things lie (ARCHITECTURE.md, Files).

use std::path::{Path, PathBuf};

/// Configuration.
pub const CONFIGURATION: &str = "/etc/kat";
/// What belongs to this machine.
pub const AGENT_CONFIG: &str = "/etc/kat/agent.yaml";
/// The administrator's connection, 0600.
pub const ADMIN_CONNECTION: &str = "/etc/kat/admin.conf";
/// State and keys.
pub const STATE: &str = "/var/lib/kat";
/// Who this machine is ([`super::identity::Identity`]).
pub const IDENTITY: &str = "/var/lib/kat/node.json";
/// The same while it joins: it is in the cluster already, and not set up yet.
pub const JOINING: &str = "/var/lib/kat/joining.json";
/// Where the cluster was last seen ([`super::known::Known`]).
pub const KNOWN: &str = "/var/lib/kat/cluster.json";
/// etcd's id of this machine's member, hexadecimal.
pub const MEMBER: &str = "/var/lib/kat/member";
/// A store is being begun anew ([`super::recovery`]), 0600.
pub const RECOVERY: &str = "/var/lib/kat/recovery.json";
/// The last confirmed desired list, 0600.
pub const DESIRED: &str = "/var/lib/kat/desired.json";
/// What workloads had before the machine's owner was asked ([`super::earlier_grants`]), 0600.
pub const GRANTED: &str = "/var/lib/kat/granted.json";
/// Folders of the machine that KAT makes for workloads: in it one for each namespace ([`super::host_paths`]).
pub const HOST: &str = "/var/lib/kat/host";
/// The folders of volumes that this machine has made ([`super::volumes::Volumes`]), 0600.
pub const VOLUMES: &str = "/var/lib/kat/volumes.json";
/// Since when images are not used ([`super::image_care::ImageCare`]), 0600.
pub const IMAGES: &str = "/var/lib/kat/images.json";
/// Room for Podman while an instance is evicted ([`super::eviction`]), 0600.
pub const EVICTION_RESERVE: &str = "/var/lib/kat/eviction-reserve";
/// Authorities, certificates and keys, 0700.
pub const PKI: &str = "/var/lib/kat/pki";
/// Unit files of workload users, one folder for each uid.
pub const UNITS: &str = "/var/lib/kat/units";
/// Files of workloads' folders that containers mount ([`super::carried`]), one folder for each uid.
pub const FILES: &str = "/var/lib/kat/files";
/// Where Podman's generator finds them, one folder for each uid, linked one by one.
pub const QUADLETS: &str = "/etc/containers/systemd/users";
/// Root of the containers that hold networks ([`super::holder`]).
pub const HOLDER: &str = "/var/lib/kat/holder";
/// resolv.conf of containers, one for each namespace.
pub const RESOLV: &str = "/var/lib/kat/resolv";
/// Run time.
pub const RUN: &str = "/run/kat";
/// When a leader was last reached, in microseconds since the machine started.
pub const REACHED: &str = "/run/kat/reached";
/// Instances that were stopped because a disk ran full ([`super::eviction`]), 0600.
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
        let below = |folder: &str| {
            root.join(folder.trim_start_matches('/'))
                .join(uid.to_string())
        };
        Self {
            units: below(UNITS),
            links: below(QUADLETS),
        }
    }
}
