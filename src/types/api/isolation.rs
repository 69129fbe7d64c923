//! Isolation of namespaces: what a machine reports, and what users see of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, newer};
use crate::resource::{Isolation, Protocol};

/// Most kinds of refused connections in a machine's report.
pub const MOST_REFUSED: usize = 256;

/// How a machine isolates namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IsolationReport {
    /// The mode that `kat-net` has in force; empty if none is, or if it is one of a newer version.
    #[serde(with = "newer::word_or_empty")]
    #[schemars(with = "String")]
    pub mode: Option<Isolation>,
    /// Revision of the store whose rules `kat-net` has in force.
    pub revision: i64,
    /// Why newer rules are not in force; null if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What isolation refused within the last hour, or would have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedReport>,
}

/// Connections from one instance to one port of another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedReport {
    /// The instance that called.
    pub from: ConnectionEnd,
    /// The instance that was called.
    pub to: ConnectionEnd,
    /// Transport protocol; null for one without ports, such as ICMP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Port of the container that was called; 0 without ports.
    pub port: u16,
    /// Number of packets, or fewer.
    pub packets: u64,
    /// When the last one came; RFC 3339, UTC, by the machine's clock.
    pub last: ApiTime,
    /// Whether they passed, because the cluster only lists them.
    pub passed: bool,
}

/// One end of a connection.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectionEnd {
    /// Namespace of the workload.
    pub namespace: String,
    /// Name of the workload.
    pub workload: String,
    /// Id of the instance; empty for all instances of the workload.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance: String,
}

/// Isolation of namespaces in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IsolationView {
    /// The setting of the cluster.
    pub mode: Isolation,
    /// Machines that do not have this setting in force, for callers that may read machines.
    pub machines: Vec<UnisolatedMachine>,
    /// Connections that isolation refused within the last hour, or would have refused, by workload;
    /// those of the caller's namespace if it may read that one alone. The newest come first.
    pub refused: Vec<RefusedConnections>,
    /// Number of entries that are left out of `refused`.
    pub left_out: u64,
}

/// A machine that does not isolate namespaces as the cluster wants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnisolatedMachine {
    /// Name of the machine.
    pub name: String,
    /// Why, for users.
    pub message: String,
}

/// Connections from a workload to a port of a workload of another namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedConnections {
    /// The workload that called.
    pub from: ConnectionEnd,
    /// The workload that was called.
    pub to: ConnectionEnd,
    /// Transport protocol; null for one without ports, such as ICMP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Port of the container that was called; 0 without ports.
    pub port: u16,
    /// Number of packets that one machine counted, or fewer.
    pub packets: u64,
    /// When the last one came; RFC 3339, UTC.
    pub last: ApiTime,
    /// Whether they passed, because the cluster only lists them.
    pub passed: bool,
    /// Names of the machines that saw them.
    pub machines: Vec<String>,
}
