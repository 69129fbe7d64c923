//! Isolation of namespaces: what the agent tells `kat-net`, and what `kat-net` tells the agent.
//!
//! The agent writes [`IsolationRules`] whole into [`ISOLATION_FILE`] in the folder of the other
//! files, before it starts an instance that is new in it, and before it writes names and service
//! addresses that show one. `kat-net` applies it in one transaction of nftables, deletes the tracked
//! connections that it does not allow, and then writes [`IsolationState`] into
//! [`ISOLATION_STATE_FILE`].
//!
//! Without the file, as agents of earlier versions leave it, nothing is isolated.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use serde::{Deserialize, Serialize};

use super::network::Transport;
use crate::resource::Isolation;

/// Name of the file of [`IsolationRules`], in [`FOLDER`](super::network::FOLDER).
pub const ISOLATION_FILE: &str = "isolation.json";
/// The state of isolation: [`IsolationState`]; written by `kat-net` (0600), read by the agent. It
/// lies in memory, so that a machine that has booted has none.
pub const ISOLATION_STATE_FILE: &str = "/run/kat/isolation.json";
/// Stands for all namespaces among those that may reach something.
pub const EVERY_NAMESPACE: &str = "*";
/// Most entries of [`IsolationState::refused`].
pub const REFUSED_LIMIT: usize = 256;
/// The number in `packaging/data-path` from which `kat-net` enforces isolation.
pub const ENFORCING_DATA_PATH: u32 = 9;

/// What becomes of connections between namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IsolationMode {
    /// They pass.
    #[default]
    None,
    /// They pass, and those that [`Namespaces`](Self::Namespaces) would refuse are listed.
    Audit,
    /// They are refused, unless they are allowed. Also stands for unknown values of newer versions.
    #[serde(other)]
    Namespaces,
}

impl From<Isolation> for IsolationMode {
    fn from(setting: Isolation) -> Self {
        match setting {
            Isolation::None => Self::None,
            Isolation::Audit => Self::Audit,
            Isolation::Namespaces => Self::Namespaces,
        }
    }
}

/// Who may reach whom, for all instances of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IsolationRules {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The setting of the cluster.
    pub mode: IsolationMode,
    /// Revision of the store that the file shows. It falls when the store is restored a second time
    /// from the same backup, and the leader takes one that its store has not reached for none.
    /// `kat-net` reports it back as soon as the file is in force. A change of the revision alone costs `kat-net` no run of `nft`, but
    /// the file is large: the agent does not write it for revisions that change nothing else, unless
    /// the leader waits for this machine to follow (address reuse does).
    pub revision: i64,
    /// All namespaces with an instance, or that another object allows, by name. The names that
    /// `allow` lists need not be here.
    pub namespaces: BTreeMap<String, IsolatedNamespace>,
}

/// A namespace and its workloads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IsolatedNamespace {
    /// Other namespaces whose instances may reach all instances of this one. [`EVERY_NAMESPACE`]
    /// allows all, and is written for `isolation: Shared`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub allow: BTreeSet<String>,
    /// Its workloads with an instance, by name.
    pub workloads: BTreeMap<String, IsolatedWorkload>,
}

/// A workload and its instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IsolatedWorkload {
    /// Namespaces that may reach this workload, in addition to those of its namespace: the
    /// `allowNamespaces` of its load balancer.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub allow: BTreeSet<String>,
    /// The ids of its instances on all machines, by overlay address: those that run, are prepared or
    /// are being stopped. Those with `hostNetwork` have no address of their own, and are left out.
    ///
    /// An address belongs to one instance; where two have it, `kat-net` treats it as unknown. What
    /// `instances.json` says of this machine's own instances has precedence.
    pub instances: BTreeMap<Ipv4Addr, String>,
}

/// What of the machine an instance may reach, in
/// [`InstanceNetwork::machine_access`](super::network::InstanceNetwork::machine_access).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MachineAccess {
    /// The API, at this machine's overlay address and
    /// [`NodeNetwork::api_port`](super::network::NodeNetwork::api_port).
    Api,
    /// The link-local addresses by which clouds tell machines about themselves.
    Metadata,
    /// A value of a newer version: nothing.
    #[serde(other)]
    Unknown,
}

impl MachineAccess {
    /// The access with this name in `machineAccess` of `*.kat` files.
    pub fn of_word(word: &str) -> Option<Self> {
        match word {
            "api" => Some(Self::Api),
            "metadata" => Some(Self::Metadata),
            _ => None,
        }
    }
}

/// The state of isolation on a machine.
///
/// A machine enforces what [`IsolationRules`] says if `mode` is that of the cluster. If the file is
/// missing, `kat-net` does not run or has just started. The reason `IsolationNotEnforced` stands for
/// a machine whose `mode` is not the cluster's for longer than a file takes to be applied, or that has
/// a `problem`; `problem` is its message, if there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IsolationState {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The mode in force; absent until a file was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<IsolationMode>,
    /// Revision of the newest file in force: its rules are in place, and connections that it does not
    /// allow are forgotten. In the mode [`IsolationMode::None`] too, so that a later change of the mode
    /// finds no address of another namespace.
    pub revision: i64,
    /// Why no file could be put in force for half a minute; one line of at most 512 bytes, made of the
    /// messages of `nft` and the kernel. The rules of `revision` stay in force meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What was refused in the last hour, or would have been with [`IsolationMode::Audit`]: at most
    /// [`REFUSED_LIMIT`] entries, and at most [`REFUSED_OF_NAMESPACE`] of one calling namespace, the
    /// newest ones. A machine lists what its own containers tried, and what it refused from others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedTraffic>,
}

/// Most entries of one calling namespace in [`IsolationState::refused`].
pub const REFUSED_OF_NAMESPACE: usize = 32;

/// Connections of one instance to one port of another, refused by isolation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedTraffic {
    /// The instance that called.
    pub from: TrafficEnd,
    /// The instance that was called, behind a service address too.
    pub to: TrafficEnd,
    /// Absent for a protocol without ports, such as ICMP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Transport>,
    /// Port of the container that was called; 0 without ports.
    #[serde(default)]
    pub port: u16,
    /// Packets, including repeated ones; a lower bound, because an instance that calls without end is
    /// not counted completely.
    pub packets: u64,
    /// Seconds since the epoch of the last one.
    pub last: u64,
    /// It passed, and the mode [`IsolationMode::Namespaces`] would refuse it.
    #[serde(default)]
    pub passed: bool,
}

/// One end of refused traffic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficEnd {
    /// Namespace of its workload.
    pub namespace: String,
    /// Its workload.
    pub workload: String,
    /// Id of the instance.
    pub instance: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_mode_isolates_and_an_unknown_access_opens_nothing() {
        let mode: IsolationMode = serde_json::from_str("\"zones\"").unwrap();
        assert_eq!(mode, IsolationMode::Namespaces);
        let access: MachineAccess = serde_json::from_str("\"disks\"").unwrap();
        assert_eq!(access, MachineAccess::Unknown);
    }

    #[test]
    fn the_words_of_files_are_those_of_modes_and_accesses() {
        for (setting, word) in [
            (Isolation::None, "\"none\""),
            (Isolation::Audit, "\"audit\""),
            (Isolation::Namespaces, "\"namespaces\""),
        ] {
            let mode = IsolationMode::from(setting);
            assert_eq!(serde_json::to_string(&mode).unwrap(), word);
            assert_eq!(serde_json::from_str::<IsolationMode>(word).unwrap(), mode);
        }
        for word in ["api", "metadata"] {
            let access = MachineAccess::of_word(word).unwrap();
            assert_eq!(
                serde_json::to_string(&access).unwrap(),
                format!("\"{word}\"")
            );
        }
        assert_eq!(MachineAccess::of_word("unknown"), None);
    }

    #[test]
    fn rules_of_a_file_survive_and_unknown_fields_are_ignored() {
        let text = r#"{"schema":9,"mode":"audit","revision":7,"later":1,"namespaces":{
            "shop":{"allow":["*"],"workloads":{"web":{"allow":["ops"],
            "instances":{"10.100.0.2":"web-ab12c"},"later":true}}}}}"#;
        let rules: IsolationRules = serde_json::from_str(text).unwrap();
        let web = &rules.namespaces["shop"].workloads["web"];
        assert_eq!(web.instances[&Ipv4Addr::new(10, 100, 0, 2)], "web-ab12c");
        let again: IsolationRules =
            serde_json::from_str(&serde_json::to_string(&rules).unwrap()).unwrap();
        assert_eq!(again, rules);
    }
}
