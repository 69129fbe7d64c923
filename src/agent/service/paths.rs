//! The paths of KAT's files and folders (docs/internals/files-on-a-machine.md).

use std::path::PathBuf;

use kat_types::machine::root::Root;

/// Folder of the configuration.
pub(crate) const CONFIGURATION: &str = "/etc/kat";
/// Settings of this machine.
pub(crate) const AGENT_CONFIG: &str = "/etc/kat/agent.yaml";
/// The administrator's connection file, 0600.
pub(crate) const ADMIN_CONNECTION: &str = "/etc/kat/admin.conf";
pub(crate) const STATE: &str = "/var/lib/kat";
/// The machine's identity ([`crate::cluster::identity::MachineIdentity`]).
pub(crate) const IDENTITY: &str = "/var/lib/kat/node.json";
/// The identity during a join: the cluster knows the machine already, but its setup is not
/// finished.
pub(crate) const JOINING: &str = "/var/lib/kat/joining.json";
/// The cluster cache ([`crate::cluster::cluster_cache::ClusterCache`]).
pub(crate) const KNOWN: &str = "/var/lib/kat/cluster.json";
/// etcd's id of this machine's member, hexadecimal.
pub(crate) const MEMBER: &str = "/var/lib/kat/member";
/// Mark of an unfinished recover or restore ([`crate::commands::recovery`]), 0600.
pub(crate) const RECOVERY: &str = "/var/lib/kat/recovery.json";
/// Mark of a machine whose place another one has taken ([`crate::commands::recovery`]), 0600.
pub(crate) const REPLACED: &str = "/var/lib/kat/replaced.json";
/// The last confirmed desired list, 0600.
pub(crate) const DESIRED: &str = "/var/lib/kat/desired.json";
/// Which instances this machine has had ([`crate::desired_state::instance_history`]), 0600.
pub(crate) const INSTANCE_HISTORY: &str = "/var/lib/kat/instance-history.json";
/// Epoch and revision of the last confirmed state of the cluster
/// ([`crate::desired_state::kept_position`]), 0600.
pub(crate) const POSITION: &str = "/var/lib/kat/position.json";
/// What workloads had before an owner's setting existed ([`crate::volumes::earlier_grants`]), 0600.
pub(crate) const GRANTED: &str = "/var/lib/kat/granted.json";
/// Host folders that KAT makes for workloads, with one folder for each namespace
/// ([`crate::volumes::host_paths`]).
pub(crate) const HOST: &str = "/var/lib/kat/host";
/// List of the volume folders that this machine has made ([`crate::volumes::Volumes`]), 0600.
pub(crate) const VOLUMES: &str = "/var/lib/kat/volumes.json";
/// How long images have been unused ([`crate::images::unused::ImageCare`]), 0600.
pub(crate) const IMAGES: &str = "/var/lib/kat/images.json";
/// Reserved disk space for Podman during an eviction ([`crate::disk::eviction`]), 0600.
pub(crate) const EVICTION_RESERVE: &str = "/var/lib/kat/eviction-reserve";
/// Authorities, certificates and keys, 0700.
pub(crate) const PKI: &str = "/var/lib/kat/pki";
/// Unit files of workload users, one folder for each uid.
pub(crate) const UNITS: &str = "/var/lib/kat/units";
/// Files from workloads' folders that containers mount ([`crate::volumes::carried_files`]), one
/// folder for each uid.
pub(crate) const FILES: &str = "/var/lib/kat/files";
/// Files of the runs that a machine begins by itself
/// ([`crate::worker::running::bound_files`]), one folder for each uid.
pub(crate) const JOB_RUNS: &str = "/var/lib/kat/job-runs";
/// Folder in which Podman's generator looks for quadlets, one folder for each uid, linked file by
/// file.
pub(crate) const QUADLETS: &str = "/etc/containers/systemd/users";
/// Folder of root's in which user managers find units that they have not loaded, besides their
/// generators' ([`crate::worker::unit_state::early_units`]).
pub(crate) const EARLY_UNITS: &str = "/run/systemd/user";
/// Root file system of the containers that hold networks ([`crate::worker::unit_state::network_holder`]).
pub(crate) const HOLDER: &str = "/var/lib/kat/holder";
/// Folder of run-time files.
pub(crate) const RUN: &str = "/run/kat";
/// When a leader was last reached: `BootTime`.
pub(crate) const REACHED: &str = "/run/kat/reached";
/// Instances that were stopped because a disk was nearly full ([`crate::disk::eviction`]), 0600.
pub(crate) const EVICTED: &str = "/run/kat/evicted.json";
/// The API's socket for members of the group `kat`.
pub(crate) const API_SOCKET: &str = "/run/kat/api.sock";
/// Users of the machine that KAT needs.
pub(crate) const SYSUSERS: &str = "/etc/sysusers.d/kat.conf";
/// Folder of the system manager's unit files and drop-ins.
pub(crate) const SYSTEM_UNITS: &str = "/etc/systemd/system";

#[derive(Debug, Clone)]
pub(crate) struct UserFolders {
    pub units: PathBuf,
    pub links: PathBuf,
    pub runs: PathBuf,
}

impl UserFolders {
    /// The folders of `uid` below `root`, which is `/` on a real machine.
    pub(crate) fn new(root: &Root, uid: u32) -> Self {
        let below = |folder: &str| root.below(folder).join(uid.to_string());
        Self {
            units: below(UNITS),
            links: below(QUADLETS),
            runs: below(JOB_RUNS),
        }
    }
}
