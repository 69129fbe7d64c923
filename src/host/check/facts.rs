//! The facts that the check gathers about the machine.

use std::collections::BTreeSet;

use super::{boot::BootLoader, packages::Family};
use crate::{
    facts::{
        ProgramVersion,
        network::{Address, KernelRoute, Listener},
    },
    users::AccountConflict,
};

/// Whether the clock follows a time server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockState {
    Synchronised,
    /// The clock is not synchronised, although a program for that is installed.
    Alone,
    /// No program that synchronises the clock is installed.
    Unkept,
    Unknown,
}

/// State of a unit from systemctl.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitFileState {
    /// The unit exists.
    pub exists: bool,
    /// The unit runs.
    pub active: bool,
    /// The unit is started at boot.
    pub enabled: bool,
}

/// The gathered facts. A fact that could not be read has its most harmless value.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckFacts {
    /// The host's name, up to the first dot.
    pub hostname: String,
    /// Package family of the distribution, where it is known.
    pub family: Option<Family>,
    /// Whether pid 1 is systemd.
    pub(crate) runs_systemd: bool,
    /// systemd's version.
    pub systemd: Option<ProgramVersion>,
    /// Podman's version.
    pub podman: Option<ProgramVersion>,
    /// Version of the etcd server.
    pub etcd: Option<ProgramVersion>,
    /// Programs that are installed but printed no version.
    pub silent: Vec<&'static str>,
    /// Whether etcdutl is installed.
    pub(crate) has_etcdutl: bool,
    /// Version of nft.
    pub nft: Option<ProgramVersion>,
    /// Whether newuidmap and newgidmap are installed.
    pub(crate) has_newuidmap: bool,
    /// Whether useradd, usermod and userdel are installed.
    pub(crate) has_shadow: bool,
    /// Whether user managers have a message bus.
    pub(crate) has_user_bus: bool,
    /// Whether PAM can register user sessions with logind, which user managers need.
    pub(crate) has_pam_systemd: bool,
    /// The container runtime that Podman uses, such as `crun` or `runc`.
    pub runtime: Option<String>,
    /// Whether only the unified control group hierarchy is mounted.
    pub(crate) cgroup_v2: bool,
    /// Controllers that the machine has.
    pub controllers: Vec<String>,
    /// Controllers that are delegated to user managers.
    pub(crate) delegated: Vec<String>,
    pub(crate) boot_loader: BootLoader,
    /// Whether the journal is kept across a reboot.
    pub(crate) journal_kept: bool,
    pub clock: ClockState,
    /// Programs that listen on ports that KAT needs.
    pub listeners: Vec<Listener>,
    /// Units of `listeners` that start at boot.
    pub enabled: BTreeSet<String>,
    /// State of the distribution's `etcd.service`.
    pub etcd_unit: UnitFileState,
    /// State of `kat-agent.service`.
    pub agent: UnitFileState,
    /// State of `systemd-resolved.service`.
    pub resolved: UnitFileState,
    pub routes: Vec<KernelRoute>,
    pub addresses: Vec<Address>,
    /// Link of the default route, and its MTU.
    pub(crate) default_link: Option<(String, u32)>,
    /// Whether SELinux is enforcing.
    pub(crate) selinux_enforcing: bool,
    /// Whether the kernel has WireGuard, loaded or loadable.
    pub(crate) kernel_wireguard: bool,
    /// Whether /dev/net/tun exists.
    pub(crate) has_tun: bool,
    /// Accounts with ids that workloads' users need.
    pub(crate) taken_ids: Vec<AccountConflict>,
    /// Why the accounts could not be read.
    pub(crate) accounts_error: Option<String>,
    /// Free space below /var/lib, bytes.
    pub(crate) disk_available_bytes: u64,
    /// Whether etcd's data lies on the file system of the workloads' users.
    pub(crate) etcd_shares_disk: bool,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Whether the check runs as root.
    pub is_root: bool,
}

impl Default for CheckFacts {
    fn default() -> Self {
        Self {
            hostname: String::new(),
            family: None,
            runs_systemd: false,
            systemd: None,
            podman: None,
            etcd: None,
            silent: Vec::new(),
            has_etcdutl: false,
            nft: None,
            has_newuidmap: false,
            has_shadow: false,
            has_user_bus: false,
            has_pam_systemd: false,
            runtime: None,
            cgroup_v2: false,
            controllers: Vec::new(),
            delegated: Vec::new(),
            boot_loader: BootLoader::Unknown,
            journal_kept: false,
            clock: ClockState::Unknown,
            listeners: Vec::new(),
            enabled: BTreeSet::new(),
            etcd_unit: UnitFileState::default(),
            agent: UnitFileState::default(),
            resolved: UnitFileState::default(),
            routes: Vec::new(),
            addresses: Vec::new(),
            default_link: None,
            selinux_enforcing: false,
            kernel_wireguard: false,
            has_tun: false,
            taken_ids: Vec::new(),
            accounts_error: None,
            disk_available_bytes: 0,
            etcd_shares_disk: false,
            memory_bytes: 0,
            is_root: false,
        }
    }
}
