//! What workloads of this machine had before an owner's setting existed.
//!
//! A new version of KAT may require the machine owner's permission for something that every
//! workload had before: `agent.yaml` gets a new setting, or the default of a setting becomes
//! smaller ([`OwnersSetting`]). The first run of such a version records what the present instances
//! ask for (`/var/lib/kat/granted.json`), and their workloads keep it on this machine. Nothing is
//! added later, so later requests need the owner's permission. `kat-agent check` prints the line
//! for `agent.yaml`; once the setting is written there, only the setting counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::host_paths;
use crate::{
    desired_state::desired::DesiredState, service::paths,
    worker::unit_state::unit_files::UnitFolder,
};
use kat_host::{
    check::Finding,
    files::{self, FileAccess, FileError},
};
use kat_types::{
    assignment::{Assignment, DesiredRun},
    machine::root::Root,
    resource::{AgentConfig, DEVICE_GROUPS, DeviceMapping, PortRange},
    services::host_port_statuses,
};

/// Largest file in bytes.
const LIMIT: u64 = 8 << 20;

/// A setting of `agent.yaml` whose default withdraws what workloads had in an earlier version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OwnersSetting {
    /// `securityAllow`.
    Security,
    /// `hostMountCreate`: earlier versions made paths wherever host mounts were allowed.
    HostMountCreate,
    /// `hostPortsAllow`.
    HostPorts,
    /// `hostPortLoopback`.
    HostPortLoopback,
    /// `groupsAllow`.
    Groups,
    /// `devicesAllow`.
    Devices,
}

impl OwnersSetting {
    const ALL: [Self; 6] = [
        Self::Security,
        Self::HostMountCreate,
        Self::HostPorts,
        Self::HostPortLoopback,
        Self::Groups,
        Self::Devices,
    ];

    /// The name in `agent.yaml`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Security => "securityAllow",
            Self::HostMountCreate => "hostMountCreate",
            Self::HostPorts => "hostPortsAllow",
            Self::HostPortLoopback => "hostPortLoopback",
            Self::Groups => "groupsAllow",
            Self::Devices => "devicesAllow",
        }
    }

    /// Whether `agent.yaml` has the setting.
    fn is_written(self, config: &AgentConfig) -> bool {
        match self {
            Self::Security => config.security_allow.is_some(),
            Self::HostMountCreate => config.host_mount_create.is_some(),
            Self::HostPorts => config.host_ports_allow.is_some(),
            Self::HostPortLoopback => config.host_port_loopback.is_some(),
            Self::Groups => config.groups_allow.is_some(),
            Self::Devices => config.devices_allow.is_some(),
        }
    }

    /// The values of the setting that an instance asks for and that earlier versions allowed for
    /// all.
    fn values(self, assignment: &Assignment) -> BTreeSet<String> {
        match self {
            Self::Security => assignment.security_wants(),
            Self::HostMountCreate => host_paths::made_elsewhere(assignment).collect(),
            Self::HostPorts => {
                let ports = host_port_statuses(&assignment.ports).into_iter();
                let asking = ports.filter(|one| {
                    let mut allowed = PortRange::DEFAULT.iter();
                    !allowed.any(|range| range.has(one.port))
                });
                asking.map(|one| one.port.to_string()).collect()
            }
            Self::HostPortLoopback => {
                let ports = host_port_statuses(&assignment.ports).into_iter();
                ports.map(|one| one.port.to_string()).collect()
            }
            Self::Groups => {
                let mut groups = assignment.together().into_owned().groups;
                groups.retain(|name| DEVICE_GROUPS.contains(&name.as_str()));
                groups.into_iter().collect()
            }
            Self::Devices => {
                let devices = assignment.together().into_owned().devices;
                let named = devices
                    .iter()
                    .filter_map(|entry| DeviceMapping::parse(entry));
                named.map(|device| device.host.to_owned()).collect()
            }
        }
    }

    /// The line of `agent.yaml` that keeps these values allowed. JSON's quoting is valid in YAML.
    fn line(self, values: Vec<&str>) -> String {
        let value = match self {
            Self::Security | Self::HostMountCreate | Self::Groups | Self::Devices => {
                serde_json::json!(values)
            }
            Self::HostPorts => {
                let usual = PortRange::DEFAULT.iter().map(ToString::to_string);
                let had = values.into_iter().map(str::to_owned);
                serde_json::json!(usual.chain(had).collect::<Vec<String>>())
            }
            Self::HostPortLoopback => serde_json::json!(true),
        };
        format!("{}: {value}", self.name())
    }
}

/// The content of `/var/lib/kat/granted.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RecordedGrants {
    /// Version of this object's schema, now 1.
    schema: u32,
    /// By [`OwnersSetting::name`]; a setting that is here is not recorded again.
    settings: BTreeMap<String, GrantsByWorkload>,
}

/// By the workload's uid.
type GrantsByWorkload = BTreeMap<String, WorkloadGrants>;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadGrants {
    /// `NAMESPACE/NAME`, for messages.
    workload: String,
    values: BTreeSet<String>,
}

impl RecordedGrants {
    fn has(&self, setting: OwnersSetting, assignment: &Assignment, value: &str) -> bool {
        let by_workload = self.settings.get(setting.name());
        let granted = by_workload.and_then(|all| all.get(&assignment.workload_uid));
        granted.is_some_and(|granted| granted.values.contains(value))
    }
}

/// What workloads may keep on this machine.
#[derive(Debug, Default)]
pub(crate) struct EarlierGrants {
    /// Only the settings that `agent.yaml` does not have.
    recorded: RecordedGrants,
    /// All settings.
    before: RecordedGrants,
}

impl EarlierGrants {
    /// Reads the grants of the machine whose files lie below `root`; those of settings that
    /// `agent.yaml` has do not count.
    pub(crate) fn read(root: &Root, config: &AgentConfig) -> Self {
        let mut recorded = read(&file(root)).unwrap_or_else(|error| {
            tracing::error!("what workloads had before the owner was asked is not known; they need the owner's word now: {error:#}");
            RecordedGrants::default()
        });
        let before = recorded.clone();
        for setting in OwnersSetting::ALL {
            if setting.is_written(config) {
                recorded.settings.remove(setting.name());
            }
        }
        Self { recorded, before }
    }

    /// Whether the instance's workload had this here and may keep it.
    pub(crate) fn has(&self, setting: OwnersSetting, assignment: &Assignment, value: &str) -> bool {
        self.recorded.has(setting, assignment, value)
    }

    /// Whether the instance's workload had this here, whatever `agent.yaml` has now.
    pub(crate) fn had(&self, setting: OwnersSetting, assignment: &Assignment, value: &str) -> bool {
        self.before.has(setting, assignment, value)
    }

    /// Whether any workload had this here, whatever `agent.yaml` has now.
    pub(crate) fn anybody_had(&self, setting: OwnersSetting, value: &str) -> bool {
        let by_workload = self.before.settings.get(setting.name());
        let mut granted = by_workload.into_iter().flat_map(BTreeMap::values);
        granted.any(|granted| granted.values.contains(value))
    }

    /// The findings of `kat-agent check` about the workloads on this machine.
    fn findings(&self, desired: &DesiredState) -> Vec<Finding> {
        let here: BTreeSet<&str> = desired
            .assignments
            .values()
            .map(|one| one.workload_uid.as_str())
            .collect();
        let found = OwnersSetting::ALL.into_iter().filter_map(|setting| {
            let by_workload = self.recorded.settings.get(setting.name())?;
            let here = by_workload
                .iter()
                .filter(|(uid, granted)| here.contains(uid.as_str()) && !granted.values.is_empty());
            let granted: Vec<&WorkloadGrants> = here.map(|(_, granted)| granted).collect();
            (!granted.is_empty()).then(|| finding(setting, &granted))
        });
        found.collect()
    }
}

fn finding(setting: OwnersSetting, granted: &[&WorkloadGrants]) -> Finding {
    let name = setting.name();
    let each: Vec<String> = granted
        .iter()
        .map(|one| {
            let values: Vec<&str> = one.values.iter().map(String::as_str).collect();
            format!("{} has {}", one.workload, values.join(", "))
        })
        .collect();
    let mut values: Vec<&str> = Vec::new();
    for value in granted.iter().flat_map(|one| &one.values) {
        if !values.contains(&value.as_str()) {
            values.push(value);
        }
    }
    let line = setting.line(values);
    Finding::warning(format!(
        "{name} of {} is not written, so these workloads keep what they had before it was asked for: {}",
        paths::AGENT_CONFIG,
        each.join("; ")
    ))
    .mended_by(format!(
        "write the line `{line}` into {}, or one that allows less, and sudo systemctl restart kat-agent",
        paths::AGENT_CONFIG
    ))
}

/// Records what the present instances have, for each setting that was not recorded yet. Has to run
/// before any instance starts. `desired` is the list from before the agent's last end, if there is
/// one.
///
/// # Errors
/// [`FileError`]: without the record the next process of the agent would record later requests as
/// earlier grants.
pub(crate) fn record(
    root: &Root,
    config: &AgentConfig,
    desired: &DesiredState,
) -> Result<(), FileError> {
    let path = file(root);
    let mut recorded = match read(&path) {
        Ok(recorded) => recorded,
        Err(error) => {
            // A file that can't be read is not extended.
            tracing::error!(
                "what workloads had before the owner was asked can't be read, and is not recorded again: {error:#}"
            );
            return Ok(());
        }
    };
    for setting in OwnersSetting::ALL {
        if recorded.settings.contains_key(setting.name()) {
            continue;
        }
        let by_workload = match setting.is_written(config) {
            true => GrantsByWorkload::new(),
            false => had_by(root, setting, desired),
        };
        for granted in by_workload.values() {
            tracing::info!(
                setting = setting.name(),
                workload = granted.workload,
                values = ?granted.values,
                "a workload keeps what it had before the owner was asked for it"
            );
        }
        recorded
            .settings
            .insert(setting.name().to_owned(), by_workload);
    }
    recorded.schema = 1;
    let content = files::json_of(&path, &recorded)?;
    files::write_if_changed(&path, &content, FileAccess::mode(0o600)).map(drop)
}

fn had_by(root: &Root, setting: OwnersSetting, desired: &DesiredState) -> GrantsByWorkload {
    let mut found = GrantsByWorkload::new();
    let has_unit = |one: &Assignment| UnitFolder::new(root, one.user.uid).has(&one.unit());
    for assignment in desired.assignments.values() {
        let values = setting.values(assignment);
        if values.is_empty() || assignment.wanted == DesiredRun::Stopped || !has_unit(assignment) {
            continue;
        }
        let granted = found.entry(assignment.workload_uid.clone()).or_default();
        granted.workload = format!("{}/{}", assignment.namespace, assignment.workload);
        granted.values.extend(values);
    }
    found
}

/// The findings of `kat-agent check`.
pub(crate) fn findings(root: &Root, config: &AgentConfig) -> Vec<Finding> {
    let path = file(root);
    if let Err(error) = read(&path) {
        let unseen = format!("could not look at what workloads had in earlier versions: {error}");
        return vec![Finding::warning(unseen).mended_by("sudo kat-agent check")];
    }
    let desired = DesiredState::stored(&root.below(paths::DESIRED));
    EarlierGrants::read(root, config).findings(&desired.unwrap_or_default())
}

fn file(root: &Root) -> PathBuf {
    root.below(paths::GRANTED)
}

fn read(path: &Path) -> Result<RecordedGrants, FileError> {
    match files::read_bounded(path, LIMIT) {
        Ok(content) => serde_json::from_slice(&content).map_err(|error| FileError::System {
            verb: "read",
            path: path.to_owned(),
            error: error.into(),
        }),
        Err(error) if error.is_not_found() => Ok(RecordedGrants::default()),
        Err(error) => Err(error),
    }
}
