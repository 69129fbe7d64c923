//! What agents report to the leader (RFC001-KAT 4.1.3).

pub mod bounds;

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, Condition, ContainerStatus, Health, InstancePhase, newer};
use crate::resource::ResourceList;

/// An agent's report to the leader (RFC001-KAT 4.1.3); the wire keeps the RFC's names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeReport {
    /// Name of the machine.
    pub node_name: String,
    /// Identity of the machine.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Seconds since the epoch, by the machine's clock; for display only.
    pub timestamp: i64,
    /// Capacity and allocatable.
    pub resources: NodeResources,
    /// The instances on the machine, all of them.
    pub workload_instances: Vec<InstanceReport>,
    /// State of the overlay.
    pub overlay_network: OverlayReport,
    /// KAT's version.
    pub version: String,
    /// `amd64`, `arm64` ...
    pub architecture: String,
    /// Addresses of its links.
    pub addresses: Vec<String>,
    /// Addresses at which others reach it outside the overlay; none where that is not known.
    #[schemars(with = "Vec<String>")]
    pub advertise: Vec<IpAddr>,
    /// `host:port` of its WireGuard, in the order to try; none where that is not known.
    pub endpoints: Vec<String>,
    /// Revision of the desired list that the agent has acted on ([`crate::assignment::DesiredMeta`]); 0
    /// while it has confirmed none since it started, and may not know of every user yet.
    pub desired_revision: u64,
    /// Indexes of the workload users of which something is left on the machine.
    pub user_indexes: Vec<u32>,
    /// Conditions of the machine.
    pub conditions: Vec<Condition>,
    /// Highest schema of an assignment that the agent understands; agents of before this was said
    /// understand 1.
    pub assignment_schema: u32,
    /// Number of its `packaging/data-path`: what its `kat-net` does to packets. Agents of before this
    /// was said have 0.
    pub data_path: u32,
    /// Its volume base path is storage that it shares with all machines that say so.
    pub volume_shared: bool,
    /// Containers may share its network.
    pub host_network: bool,
    /// Folders of volumes that it has made and not removed, where these are not shared.
    pub made_volumes: Vec<String>,
    /// Volumes that it was to remove, and of which nothing is left on it ([`crate::volumes::removal_id`]).
    pub removed_volumes: Vec<String>,
    /// Volumes that it takes from other machines.
    pub volume_moves: Vec<VolumeMoveReport>,
    /// The images that it last removed because nothing used them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_removed: Option<ImagesRemoved>,
    /// The keys of its certificates as a machine that holds the store; empty where it does not.
    #[serde(skip_serializing_if = "MemberKeys::is_empty")]
    pub member_keys: MemberKeys,
}

/// SHA-256 of the public keys of the certificates that a machine has while it holds the store, each of
/// 64 hexadecimal digits. Empty where they are not known: 0.1.0 did not say them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberKeys {
    /// Of `leader:NAME`.
    pub leader: String,
    /// Of `admin:NAME`.
    pub admin: String,
}

impl MemberKeys {
    /// Neither is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Both are hashes.
    pub fn is_complete(&self) -> bool {
        let digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_hash = |text: &String| text.len() == 64 && text.bytes().all(digit);
        is_hash(&self.leader) && is_hash(&self.admin)
    }
}

/// Images that a machine has removed in one go, because nothing used them any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImagesRemoved {
    /// Tells this time from the one before.
    pub id: u64,
    /// How many.
    pub images: u32,
    /// Bytes of their layers that nothing else used.
    pub bytes: u64,
    /// Names of some of them.
    pub names: Vec<String>,
}

impl ImagesRemoved {
    /// Names that are told, and their longest.
    const NAMED: usize = 3;
    const LONGEST: usize = 200;

    /// The same with as much of it as is kept.
    pub fn bounded(&self) -> Self {
        let names = self.names.iter().take(Self::NAMED);
        Self {
            names: names
                .map(|name| name.chars().take(Self::LONGEST).collect())
                .collect(),
            ..self.clone()
        }
    }
}

impl std::fmt::Display for ImagesRemoved {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let images = match self.images {
            1 => "an image".to_owned(),
            count => format!("{count} images"),
        };
        let mebibytes = self.bytes >> 20;
        write!(
            formatter,
            "removed {images} that nothing used, {mebibytes} MiB: {}",
            self.names.join(", ")
        )?;
        match usize::try_from(self.images) {
            Ok(count) if count > self.names.len() => write!(formatter, " ..."),
            _ => Ok(()),
        }
    }
}

/// A volume that a machine takes from another, as that machine sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMoveReport {
    /// `NAMESPACE/WORKLOAD/VOLUME`.
    pub volume: String,
    /// Identity of the move.
    pub id: String,
    /// How far it is.
    #[serde(deserialize_with = "newer::word")]
    pub phase: VolumeMovePhase,
    /// Why the last try failed, for people; empty while none has. It is tried again.
    pub message: String,
    /// Files and links that have arrived, or have been compared while it verifies.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// All files and links; 0 while that is not known.
    pub total_files: u64,
    /// Their bytes, about.
    pub total_bytes: u64,
    /// Sockets and devices, which are not copied.
    pub skipped: u64,
    /// SHA-256 over names, attributes and contents, once both ends were compared.
    pub digest: String,
}

impl VolumeMoveReport {
    /// The same without what changes all the time.
    pub fn meaning(&self) -> Self {
        let whole = matches!(
            self.phase,
            VolumeMovePhase::Copied | VolumeMovePhase::Placed | VolumeMovePhase::Lost
        );
        if whole {
            return self.clone();
        }
        Self {
            volume: self.volume.clone(),
            id: self.id.clone(),
            phase: VolumeMovePhase::Copying,
            message: self.message.clone(),
            ..Self::default()
        }
    }
}

/// How far a machine is with a volume that it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeMovePhase {
    /// It begins, or waits to try again.
    #[default]
    Waiting,
    /// It reads it from the other machine.
    Copying,
    /// All has arrived, and is compared.
    Verifying,
    /// The copy is whole, on the disk, and lies beside its place.
    Copied,
    /// It is in its place.
    Placed,
    /// It is to be put in its place, and is not there any more.
    Lost,
}

/// Nothing follows from a word that is not known.
impl newer::Words for VolumeMovePhase {
    const NEWER: Self = Self::Waiting;
}

/// Capacity and allocatable of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeResources {
    /// All that it has.
    pub capacity: ResourceList,
    /// What workloads may use.
    pub allocatable: ResourceList,
}

/// State of the overlay on a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OverlayReport {
    /// `connected`, `degraded` or `down`.
    pub status: String,
    /// RFC 3339, UTC.
    pub last_peer_sync: ApiTime,
    /// The other machines, as this one's WireGuard has them.
    pub peers: Vec<OverlayPeer>,
}

/// Another machine on the overlay, as one machine's WireGuard has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OverlayPeer {
    /// Its name.
    pub name: String,
    /// `host:port` where it was seen last, or is looked for.
    pub endpoint: Option<String>,
    /// RFC 3339, UTC; nothing before the first handshake.
    pub last_handshake: Option<ApiTime>,
    /// There is a session with it. Without anything to send there need be none.
    pub connected: bool,
    /// Bytes sent to it since the link was made.
    pub sent: u64,
    /// Bytes received from it since then.
    pub received: u64,
    /// The machine that passes on what is between the two, where they can't reach each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// One instance in a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceReport {
    /// Its workload.
    pub workload_name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its id.
    #[serde(rename = "instanceID")]
    pub instance_id: String,
    /// Podman's container id, if one exists.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Podman's image id.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// `running`, `exited`, `paused` or `unknown`.
    pub state: String,
    /// Exit code of the program's last end.
    pub exit_code: Option<i32>,
    /// Health.
    #[serde(deserialize_with = "newer::word")]
    pub health_status: Health,
    /// Times that the program was started again.
    pub restarts: u32,
    /// Phase as the agent sees it.
    #[serde(deserialize_with = "newer::word")]
    pub phase: InstancePhase,
    /// One word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// RFC 3339, UTC.
    pub since: ApiTime,
    /// Template hash of what the unit was rendered from.
    pub template_hash: String,
    /// Memory now, bytes.
    pub memory: Option<u64>,
    /// Processor time so far, nanoseconds.
    pub cpu: Option<u64>,
    /// Conditions of the instance.
    pub conditions: Vec<Condition>,
    /// Its init containers and sidecars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerStatus>,
}
