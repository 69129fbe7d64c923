//! What containers may have of this machine, looked at before they start: devices, groups, the network. Its owner
//! says what in `/etc/kat/agent.yaml`.

use std::{
    collections::BTreeSet,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::accounts::MachineGroups;
use crate::{
    plan::{Assignment, WorkloadUser},
    resource::{AgentConfig, Device},
};

/// Folders of `/dev` in which not only root makes names.
const OPEN_TO_ALL: [&str; 3] = ["/dev/shm", "/dev/mqueue", "/dev/pts"];

/// Why an instance can't have something of the machine, for its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionTrouble {
    /// One word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// What this machine's owner allows.
#[derive(Debug)]
pub struct MachineOptions {
    /// `/` on a real machine.
    root: PathBuf,
    devices: Vec<PathBuf>,
    groups: BTreeSet<String>,
    host_network: bool,
}

impl MachineOptions {
    /// Of a machine whose files lie below `root`.
    pub fn new(root: &Path, config: &AgentConfig) -> Self {
        Self {
            root: root.to_owned(),
            devices: config.devices_allow.iter().map(PathBuf::from).collect(),
            groups: config.groups_allow.iter().cloned().collect(),
            host_network: config.host_network_allow,
        }
    }

    /// The groups that the user of these assignments is to be a member of: those that they ask for, as far as
    /// they are allowed and there.
    pub fn groups_of<'a>(
        &self,
        assignments: impl Iterator<Item = &'a Assignment>,
        groups: &MachineGroups,
    ) -> BTreeSet<String> {
        let asked = assignments.flat_map(|one| one.together().into_owned().groups);
        asked
            .filter(|name| self.groups.contains(name) && groups.all.contains_key(name))
            .collect()
    }

    /// Whether an instance may start with what it asks for, and all of it is there.
    ///
    /// # Errors
    /// The first thing that it can't have, and why.
    pub fn check(
        &self,
        assignment: &Assignment,
        groups: &MachineGroups,
    ) -> Result<(), OptionTrouble> {
        for one in assignment.each() {
            self.check_one(&one, groups)?;
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
            return Err(trouble(
                "HostNetworkNotAllowed",
                "this machine does not let containers share its network: hostNetworkAllow in /etc/kat/agent.yaml is not true".to_owned(),
            ));
        }
        for name in &container.groups {
            self.check_group(name, groups)?;
        }
        for entry in &container.devices {
            self.check_device(entry, assignment, groups)?;
        }
        Ok(())
    }

    fn check_group(&self, name: &str, groups: &MachineGroups) -> Result<(), OptionTrouble> {
        if !self.groups.contains(name) {
            let allowed: Vec<&str> = self.groups.iter().map(String::as_str).collect();
            return Err(trouble(
                "GroupNotAllowed",
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
            return Err(trouble("GroupMissing", message));
        }
        Ok(())
    }

    fn check_device(
        &self,
        entry: &str,
        assignment: &Assignment,
        groups: &MachineGroups,
    ) -> Result<(), OptionTrouble> {
        let Some(device) = Device::parse(entry) else {
            let message = format!("device {entry}: this version does not understand it");
            return Err(trouble("DeviceMissing", message));
        };
        let named = device.host;
        let missing = |what: &str| {
            let message = format!("device {named}: {what}");
            trouble("DeviceMissing", message)
        };
        let below = |path: &str| self.root.join(path.trim_start_matches('/'));
        // Names such as those below /dev/serial/by-id are links.
        let found = below(named)
            .canonicalize()
            .map_err(|_| missing("this machine has no such device"))?;
        let metadata = found
            .metadata()
            .map_err(|_| missing("this machine has no such device"))?;
        let kind = metadata.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            return Err(missing("it is no device"));
        }
        let root = self.root.canonicalize().unwrap_or_default();
        let found = found.strip_prefix(&root).unwrap_or(&found);
        let real = Path::new("/").join(found);
        let mut allowed = self.devices.iter().map(|path| path.components().collect());
        let is_allowed = allowed.any(|one: PathBuf| {
            let is_it = real == one || Path::new(named) == one;
            is_it || (kind.is_char_device() && real.starts_with(&one))
        });
        let anyones = OPEN_TO_ALL.iter().any(|folder| real.starts_with(folder));
        if !is_allowed || anyones || !real.starts_with("/dev") {
            let what = match kind.is_block_device() {
                true => "block device",
                false => "device",
            };
            return Err(trouble(
                "DeviceNotAllowed",
                format!(
                    "{what} {named}: this machine does not let containers have it; devicesAllow in /etc/kat/agent.yaml says which, block devices each by name"
                ),
            ));
        }
        let node = Node {
            owner: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode(),
        };
        let listed = has_access_list(&below(named));
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
        let group = groups.all.iter().find(|(_, gid)| **gid == node.group);
        let group = group.map_or_else(|| node.group.to_string(), |(name, _)| name.clone());
        Err(trouble(
            "DeviceNotOpen",
            format!(
                "device {named}: its group {group} and its mode {:04o} do not let {} open it; `groups: [{group}]` lets it, where the group may",
                node.mode & 0o7777,
                assignment.user.name
            ),
        ))
    }
}

/// Who may open a device.
#[derive(Debug, Clone, Copy)]
struct Node {
    owner: u32,
    group: u32,
    mode: u32,
}

impl Node {
    fn opens_to(
        self,
        device: Device<'_>,
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

/// Somebody gave rights by an access list (acl(5)): what they come to shows when it starts.
fn has_access_list(path: &Path) -> bool {
    rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0u8; 0][..]).is_ok()
}

fn trouble(reason: &'static str, message: String) -> OptionTrouble {
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
            let node = Node { owner, group, mode };
            let joined: Vec<String> = joined.iter().map(|name| (*name).to_owned()).collect();
            node.opens_to(Device::parse(entry).unwrap(), &user, &joined, &groups)
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
