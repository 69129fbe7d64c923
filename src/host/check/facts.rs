//! What the check saw of the machine.

use std::collections::BTreeSet;

use super::{boot::BootLoader, packages::Family};
use crate::{
    facts::{
        Version,
        network::{Address, Listener, Route},
    },
    users::Taken,
};

/// Whether the clock follows a time server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockState {
    /// It does.
    Synchronised,
    /// It does not, though there is a program that could set it.
    Alone,
    /// There is no such program.
    Unkept,
    /// Nobody can say.
    Unknown,
}

/// A unit file and its unit, as systemctl says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitFileState {
    /// There is such a unit.
    pub exists: bool,
    /// It runs.
    pub active: bool,
    /// It would be started at boot.
    pub enabled: bool,
}

/// What was seen. What could not be seen has the value that means least.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The host's name, up to the first dot.
    pub hostname: String,
    /// How its distribution installs packages, where that is known.
    pub family: Option<Family>,
    /// Whether pid 1 is systemd.
    pub runs_systemd: bool,
    /// systemd's version.
    pub systemd: Option<Version>,
    /// Podman's version.
    pub podman: Option<Version>,
    /// Version of the etcd server.
    pub etcd: Option<Version>,
    /// Programs that are there and did not tell their version.
    pub silent: Vec<&'static str>,
    /// etcdutl is there.
    pub has_etcdutl: bool,
    /// Version of nft.
    pub nft: Option<Version>,
    /// newuidmap and newgidmap are there.
    pub has_newuidmap: bool,
    /// useradd, usermod and userdel are there.
    pub has_shadow: bool,
    /// Users' managers have a message bus.
    pub has_user_bus: bool,
    /// PAM can register a user's session with logind, which users' managers need.
    pub has_pam_systemd: bool,
    /// `crun` or `runc`, whichever is there.
    pub runtime: Option<String>,
    /// The unified control group hierarchy is mounted, and nothing else.
    pub cgroup_v2: bool,
    /// Controllers that the machine has.
    pub controllers: Vec<String>,
    /// Controllers that users' managers get.
    pub delegated: Vec<String>,
    /// What passes the kernel its command line.
    pub boot_loader: BootLoader,
    /// The journal is kept over a reboot.
    pub journal_kept: bool,
    /// The clock.
    pub clock: ClockState,
    /// Who listens on ports that KAT needs.
    pub listeners: Vec<Listener>,
    /// Those of their units that start at boot.
    pub enabled: BTreeSet<String>,
    /// The distribution's `etcd.service`.
    pub etcd_unit: UnitFileState,
    /// `systemd-resolved.service`.
    pub resolved: UnitFileState,
    /// Routes.
    pub routes: Vec<Route>,
    /// Addresses.
    pub addresses: Vec<Address>,
    /// Link of the default route, and its MTU.
    pub default_link: Option<(String, u32)>,
    /// SELinux enforces.
    pub selinux_enforcing: bool,
    /// The kernel has WireGuard, loaded or to load.
    pub kernel_wireguard: bool,
    /// /dev/net/tun is there.
    pub has_tun: bool,
    /// Who has the ids of workloads' users.
    pub taken_ids: Vec<Taken>,
    /// Why the accounts could not be read.
    pub accounts_error: Option<String>,
    /// Free space below /var/lib, bytes.
    pub disk_available_bytes: u64,
    /// The data of etcd lies, or is to lie, on the file system of the workloads' users.
    pub etcd_shares_disk: bool,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// This is root.
    pub is_root: bool,
}

impl Default for Facts {
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
