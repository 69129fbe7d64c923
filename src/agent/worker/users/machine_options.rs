//! Checks before a start which devices, groups, networks and services of the machine an instance may use. The
//! machine's owner allows them in `/etc/kat/agent.yaml`.

use std::{
    collections::BTreeSet,
    fs::Metadata,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::accounts::MachineGroups;
use crate::{
    gpus::MachineGpus,
    volumes::earlier_grants::{EarlierGrants, OwnersSetting},
};
use kat_types::{
    assignment::{Assignment, WorkloadUser},
    machine::{isolation::MachineAccess, root::Root},
    reason::Reason,
    resource::{
        AgentConfig, DeviceMapping, PortRange, Protocol,
        security::{
            CAPABILITIES, NEW_PRIVILEGES, PROFILES, SECCOMP, SECURITY_WORDS, SELINUX, UNMASK,
        },
    },
    services::host_port_statuses,
};

/// Folders of `/dev` in which users other than root can create names.
const OPEN_TO_ALL: [&str; 3] = ["/dev/shm", "/dev/mqueue", "/dev/pts"];

/// Why an instance can't use something of the machine, for its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionTrouble {
    pub reason: Reason,
    /// A sentence for users.
    pub message: String,
}

/// What the machine's owner allows.
#[derive(Debug)]
pub struct MachineOptions {
    /// `/` on a real machine.
    root: Root,
    devices: Vec<PathBuf>,
    groups: BTreeSet<String>,
    host_network: bool,
    security: BTreeSet<String>,
    host_ports: Vec<PortRange>,
    host_port_loopback: bool,
    machine_access: BTreeSet<String>,
    earlier: EarlierGrants,
}

impl MachineOptions {
    /// The options of a machine whose files lie below `root`.
    pub fn new(root: &Root, config: &AgentConfig) -> Self {
        Self {
            root: root.clone(),
            devices: config
                .devices_allow
                .iter()
                .flatten()
                .map(PathBuf::from)
                .collect(),
            groups: config.groups_allow.iter().flatten().cloned().collect(),
            host_network: config.host_network_allow,
            security: config.security_allow.iter().flatten().cloned().collect(),
            host_ports: match &config.host_ports_allow {
                Some(ranges) => ranges.clone(),
                None => PortRange::DEFAULT.to_vec(),
            },
            host_port_loopback: config.host_port_loopback.unwrap_or_default(),
            machine_access: config.machine_access_allow.iter().cloned().collect(),
            earlier: EarlierGrants::read(root, config),
        }
    }

    /// The groups that the user of these assignments has to join: those that the assignments ask
    /// for, as far as they are allowed and exist.
    pub fn groups_of<'a>(
        &self,
        assignments: impl Iterator<Item = &'a Assignment>,
        groups: &MachineGroups,
    ) -> BTreeSet<String> {
        let asked = assignments.flat_map(|one| {
            let mut groups = one.together().into_owned().groups;
            groups.retain(|name| self.allows_group(one, name));
            groups
        });
        asked.filter(|name| groups.all.contains_key(name)).collect()
    }

    fn allows_group(&self, assignment: &Assignment, name: &str) -> bool {
        self.groups.contains(name) || self.earlier.has(OwnersSetting::Groups, assignment, name)
    }

    /// Checks that everything an instance asks for is allowed and exists.
    ///
    /// # Errors
    /// The first thing that the instance can't have, and why.
    pub fn check(
        &self,
        assignment: &Assignment,
        groups: &MachineGroups,
    ) -> Result<(), OptionTrouble> {
        if let Some(message) = self.forbidden_host_port(assignment) {
            return Err(option_trouble(Reason::HostPortNotAllowed, message));
        }
        let mut asked = assignment.machine_access.iter();
        if let Some(word) = asked.find(|word| !self.machine_access.contains(*word)) {
            return Err(option_trouble(
                Reason::MachineAccessNotAllowed,
                format!(
                    "machineAccess {word}: this machine does not let containers ask it for that; machineAccessAllow in /etc/kat/agent.yaml does not have {word}"
                ),
            ));
        }
        for one in assignment.each() {
            self.check_security(&one)?;
            self.check_one(&one, groups)?;
        }
        Ok(())
    }

    /// Why a host port is not forwarded to an instance, whether it runs or not.
    pub fn forbidden_host_port(&self, assignment: &Assignment) -> Option<String> {
        let mut ports = host_port_statuses(&assignment.ports).into_iter();
        let forbidden = ports.find(|one| !self.allows_host_port(assignment, one.port))?;
        Some(self.why_forbidden(forbidden.port, forbidden.protocol))
    }

    /// Why a host port is not forwarded to a workload that has it on each machine that serves routes.
    pub fn forbidden_port(&self, port: u16, protocol: Protocol) -> Option<String> {
        (!self.allows_port(port)).then(|| self.why_forbidden(port, protocol))
    }

    fn why_forbidden(&self, port: u16, protocol: Protocol) -> String {
        let ranges: Vec<String> = self.host_ports.iter().map(ToString::to_string).collect();
        format!(
            "host port {port}/{}: this machine forwards {} to workloads; hostPortsAllow in /etc/kat/agent.yaml says which",
            protocol.word(),
            match ranges.is_empty() {
                true => "no port".to_owned(),
                false => format!("only ports {}", ranges.join(", ")),
            }
        )
    }

    fn allows_port(&self, port: u16) -> bool {
        let mut ranges = self.host_ports.iter();
        ranges.any(|range| range.has(port))
    }

    /// Whether a host port may be forwarded to the instance.
    pub fn allows_host_port(&self, assignment: &Assignment, port: u16) -> bool {
        self.allows_port(port)
            || self
                .earlier
                .has(OwnersSetting::HostPorts, assignment, &port.to_string())
    }

    /// Whether the host port may also be forwarded for the machine's own programs that connect to
    /// 127.0.0.1.
    pub fn allows_loopback(&self, assignment: &Assignment, port: u16) -> bool {
        let port = port.to_string();
        let loopback = OwnersSetting::HostPortLoopback;
        self.host_port_loopback || self.earlier.has(loopback, assignment, &port)
    }

    /// What of the machine the instance may ask, as far as the machine's owner allows it.
    pub fn machine_access(&self, assignment: &Assignment) -> BTreeSet<MachineAccess> {
        let asked = assignment.machine_access.iter();
        let allowed = asked.filter(|word| self.machine_access.contains(*word));
        allowed
            .filter_map(|word| MachineAccess::of_word(word))
            .collect()
    }

    fn check_security(&self, assignment: &Assignment) -> Result<(), OptionTrouble> {
        let wants = assignment.container.security_wants();
        let had = |word: &str| self.earlier.has(OwnersSetting::Security, assignment, word);
        for word in wants.iter().filter(|word| !had(word)) {
            let is_word = SECURITY_WORDS.contains(&word.as_str());
            if word == SECCOMP
                && let Some(profile) = assignment.container.foreign_profile()
            {
                return Err(option_trouble(
                    Reason::SecurityNotAllowed,
                    format!(
                        "seccomp profile {profile}: this machine takes profiles below {PROFILES} only, and unconfined where securityAllow in /etc/kat/agent.yaml has it"
                    ),
                ));
            }
            let all_capabilities = !is_word && self.security.contains(CAPABILITIES);
            if self.security.contains(word) || all_capabilities {
                continue;
            }
            let what = match is_word {
                true => security_words(word),
                false => format!("capability {word}"),
            };
            return Err(option_trouble(
                Reason::SecurityNotAllowed,
                format!(
                    "{what}: this machine does not let containers have it; securityAllow in /etc/kat/agent.yaml does not have {word}"
                ),
            ));
        }
        Ok(())
    }

    fn check_one(
        &self,
        assignment: &Assignment,
        groups: &MachineGroups,
    ) -> Result<(), OptionTrouble> {
        let container = &assignment.container;
        if container.host_network && !self.host_network {
            return Err(option_trouble(
                Reason::HostNetworkNotAllowed,
                "this machine does not let containers share its network: hostNetworkAllow in /etc/kat/agent.yaml is not true".to_owned(),
            ));
        }
        for name in &container.groups {
            self.check_group(name, assignment, groups)?;
        }
        for entry in &container.devices {
            self.check_device(entry, assignment, groups)?;
        }
        if container.resources.gpu.is_some()
            && let Some(gpu) = &assignment.gpu
        {
            self.check_gpu(gpu, assignment, groups)?;
        }
        Ok(())
    }

    /// Checks that a CDI spec has the GPU and that its device nodes exist and can be opened. The spec
    /// is the owner's permission: only root of the machine writes it.
    fn check_gpu(
        &self,
        gpu: &str,
        assignment: &Assignment,
        groups: &MachineGroups,
    ) -> Result<(), OptionTrouble> {
        let machine = MachineGpus::read(self.root.path());
        let Some(found) = machine.find(gpu) else {
            let broken = machine.troubles.first();
            let broken = broken.map_or_else(String::new, |why| format!(" ({why})"));
            return Err(option_trouble(
                Reason::GpuMissing,
                format!(
                    "GPU {gpu}: no CDI spec in /etc/cdi or /run/cdi of this machine has it{broken}"
                ),
            ));
        };
        let device = DeviceMapping {
            host: gpu,
            container: gpu,
            reads: true,
            writes: true,
        };
        for path in &found.nodes {
            let named = format!("GPU {gpu}: {}", path.display());
            let real = self.root.below(path);
            let Ok(metadata) = real.metadata() else {
                return Err(option_trouble(
                    Reason::GpuDriverMissing,
                    format!(
                        "{named} of its CDI spec does not exist: its driver is not loaded, or the spec is outdated"
                    ),
                ));
            };
            let node = DeviceNode::of(&metadata);
            let joined = &assignment.container.groups;
            let opens = node.opens_to(device, &assignment.user, joined, groups);
            if !opens && !has_access_list(&real) {
                let message = node.closed_text(&named, assignment, groups);
                return Err(option_trouble(Reason::DeviceNotOpen, message));
            }
        }
        Ok(())
    }

    fn check_group(
        &self,
        name: &str,
        assignment: &Assignment,
        groups: &MachineGroups,
    ) -> Result<(), OptionTrouble> {
        if !self.allows_group(assignment, name) {
            let allowed: Vec<&str> = self.groups.iter().map(String::as_str).collect();
            return Err(option_trouble(
                Reason::GroupNotAllowed,
                format!(
                    "group {name}: this machine lets workloads join {} only; groupsAllow in /etc/kat/agent.yaml says which",
                    match allowed.is_empty() {
                        true => "no group".to_owned(),
                        false => allowed.join(", "),
                    }
                ),
            ));
        }
        if !groups.all.contains_key(name) {
            let message = format!("group {name}: this machine has no such group");
            return Err(option_trouble(Reason::GroupMissing, message));
        }
        Ok(())
    }

    fn check_device(
        &self,
        entry: &str,
        assignment: &Assignment,
        groups: &MachineGroups,
    ) -> Result<(), OptionTrouble> {
        let Some(device) = DeviceMapping::parse(entry) else {
            let message = format!("device {entry}: this version does not understand it");
            return Err(option_trouble(Reason::DeviceMissing, message));
        };
        let named = device.host;
        let missing = |what: &str| {
            let message = format!("device {named}: {what}");
            option_trouble(Reason::DeviceMissing, message)
        };
        // Names such as those below /dev/serial/by-id are symbolic links.
        let found = self
            .root
            .below(named)
            .canonicalize()
            .map_err(|_| missing("this machine has no such device"))?;
        let metadata = found
            .metadata()
            .map_err(|_| missing("this machine has no such device"))?;
        let kind = metadata.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            return Err(missing("it is no device"));
        }
        let root = self.root.path().canonicalize().unwrap_or_default();
        let found = found.strip_prefix(&root).unwrap_or(&found);
        let real = Path::new("/").join(found);
        let mut allowed = self.devices.iter().map(|path| path.components().collect());
        let had =
            kind.is_char_device() && self.earlier.has(OwnersSetting::Devices, assignment, named);
        let is_allowed = had
            || allowed.any(|one: PathBuf| {
                let is_it = real == one || Path::new(named) == one;
                is_it || (kind.is_char_device() && real.starts_with(&one))
            });
        let anyones = OPEN_TO_ALL.iter().any(|folder| real.starts_with(folder));
        if !is_allowed || anyones || !real.starts_with("/dev") {
            let what = match kind.is_block_device() {
                true => "block device",
                false => "device",
            };
            return Err(option_trouble(
                Reason::DeviceNotAllowed,
                format!(
                    "{what} {named}: this machine does not let containers have it; devicesAllow in /etc/kat/agent.yaml says which, block devices each by name"
                ),
            ));
        }
        let node = DeviceNode::of(&metadata);
        let listed = has_access_list(&self.root.below(named));
        if listed
            || node.opens_to(
                device,
                &assignment.user,
                &assignment.container.groups,
                groups,
            )
        {
            return Ok(());
        }
        let message = node.closed_text(&format!("device {named}"), assignment, groups);
        Err(option_trouble(Reason::DeviceNotOpen, message))
    }
}

/// Owner, group and mode of a device.
#[derive(Debug, Clone, Copy)]
struct DeviceNode {
    owner: u32,
    group: u32,
    mode: u32,
}

impl DeviceNode {
    fn of(metadata: &Metadata) -> Self {
        Self {
            owner: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode(),
        }
    }

    /// Why the instance's user may not open it.
    fn closed_text(self, named: &str, assignment: &Assignment, groups: &MachineGroups) -> String {
        let group = groups.all.iter().find(|(_, gid)| **gid == self.group);
        let group = group.map_or_else(|| self.group.to_string(), |(name, _)| name.clone());
        format!(
            "{named}: its group {group} and its mode {:04o} do not let {} open it; `groups: [{group}]` lets it, where the group may",
            self.mode & 0o7777,
            assignment.user.name
        )
    }

    fn opens_to(
        self,
        device: DeviceMapping<'_>,
        user: &WorkloadUser,
        joined: &[String],
        groups: &MachineGroups,
    ) -> bool {
        let mut gids = joined.iter().filter_map(|name| groups.all.get(name));
        let bits = if self.owner == user.uid {
            self.mode >> 6
        } else if self.group == user.uid || gids.any(|gid| *gid == self.group) {
            self.mode >> 3
        } else {
            self.mode
        };
        (!device.reads || bits & 0o4 != 0) && (!device.writes || bits & 0o2 != 0)
    }
}

/// Whether the device has an access control list (acl(5)): the rights in it are only known when the
/// program opens the device.
fn has_access_list(path: &Path) -> bool {
    rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0u8; 0][..]).is_ok()
}

/// The name of a security option, as `agent.yaml` allows it.
fn security_words(word: &str) -> String {
    match word {
        SECCOMP => "seccomp profile unconfined",
        UNMASK => "Unmask",
        NEW_PRIVILEGES => "NoNewPrivileges other than true",
        SELINUX => "another label of SELinux, or none",
        other => other,
    }
    .to_owned()
}

fn option_trouble(reason: Reason, message: String) -> OptionTrouble {
    OptionTrouble { reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_opens_to_its_group_and_to_all() {
        let user = WorkloadUser::from_index(0, "default", "stick").unwrap();
        let groups = MachineGroups {
            all: [("dialout".to_owned(), 20), ("tape".to_owned(), 26)].into(),
            ..MachineGroups::default()
        };
        let opens = |owner, group, mode, joined: &[&str], entry: &str| {
            let node = DeviceNode { owner, group, mode };
            let joined: Vec<String> = joined.iter().map(|name| (*name).to_owned()).collect();
            node.opens_to(
                DeviceMapping::parse(entry).unwrap(),
                &user,
                &joined,
                &groups,
            )
        };
        let tty = "/dev/ttyUSB0";
        assert!(opens(0, 20, 0o660, &["dialout"], tty));
        assert!(!opens(0, 20, 0o660, &["tape"], tty));
        assert!(!opens(0, 20, 0o660, &[], tty));
        assert!(opens(0, 0, 0o666, &[], tty));
        assert!(opens(user.uid, 0, 0o600, &[], tty));
        assert!(opens(0, user.uid, 0o660, &[], tty));
        assert!(!opens(0, 20, 0o640, &["dialout"], tty));
        assert!(opens(0, 20, 0o640, &["dialout"], "/dev/a:/dev/a:r"));
        assert!(
            !opens(0, 20, 0o626, &["dialout"], tty),
            "the group's bits count for its members"
        );
    }
}
