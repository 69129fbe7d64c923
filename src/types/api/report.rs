//! Reports of agents to the leader (RFC001-KAT 4.1.3).

pub mod bounds;

use std::net::IpAddr;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, Condition, ContainerStatus, Health, InstancePhase, IsolationReport, newer};
use crate::{
    machine::{fence::BootTime, gpu::GpuDevice},
    resource::ResourceList,
    store::{
        authorities::MemberSignature,
        jobs::{AttemptEnd, SkippedRun},
    },
    virtual_addresses::AddressStateWord,
};

/// An agent's report to the leader (RFC001-KAT 4.1.3). The JSON fields have the RFC's names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeReport {
    /// Name of the machine.
    pub node_name: String,
    /// Uid of the machine.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// When the report was made: seconds since 1970-01-01 UTC, by the machine's clock; for display
    /// only.
    pub timestamp: i64,
    /// Resources of the machine.
    pub resources: NodeResources,
    /// All instances on the machine.
    pub workload_instances: Vec<InstanceReport>,
    /// State of the overlay.
    pub overlay_network: OverlayReport,
    /// Version of KAT on the machine.
    pub version: String,
    /// Architecture of the machine: `amd64`, `arm64` ...
    pub architecture: String,
    /// Addresses of the machine's network interfaces.
    pub addresses: Vec<String>,
    /// Addresses outside the overlay at which other machines reach the machine; empty if unknown.
    #[schemars(with = "Vec<String>")]
    pub advertise: Vec<IpAddr>,
    /// `host:port` of the machine's WireGuard, in the order in which they are tried; empty if
    /// unknown.
    pub endpoints: Vec<String>,
    /// Revision of the list of assignments that the agent has acted on. 0 until the agent has
    /// confirmed a list since its start; until then `userIndexes` may be incomplete.
    pub desired_revision: u64,
    /// Indexes of workload users of which something is left on the machine.
    pub user_indexes: Vec<u32>,
    /// Conditions of the machine.
    pub conditions: Vec<Condition>,
    /// Highest schema of an assignment that the agent understands; missing in reports of older
    /// agents, which understand 1.
    pub assignment_schema: u32,
    /// Version of the agent's reader of stored `*.kat` files, which it needs when it leads; missing
    /// in reports of older agents, which have 1.
    pub manifest_reader: u32,
    /// Version of the data path, `packaging/data-path`: how `kat-net` handles packets. 0 for older
    /// agents, which do not report it.
    pub data_path: u32,
    /// The volume base path is storage that the machine shares with all machines that report the
    /// same.
    pub volume_shared: bool,
    /// Containers may use the machine's network.
    pub host_network: bool,
    /// The container runtime that Podman uses, such as `crun`; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub runtime: String,
    /// Indexes of workload users whose uid, gid or subordinate ids another account of the machine
    /// has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub foreign_indexes: Vec<u32>,
    /// Folders of volumes that the machine has created and not removed, if these are not shared.
    pub made_volumes: Vec<String>,
    /// Volumes that the machine had to remove, and of which nothing is left on it:
    /// `NAMESPACE/WORKLOAD/VOLUME`, followed by a space and the time of the request.
    pub removed_volumes: Vec<String>,
    /// Volumes that the machine had to remove and did not find, because a disk may be missing; in
    /// the form of `removedVolumes`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_volumes: Vec<String>,
    /// Volumes that the machine receives from other machines.
    pub volume_moves: Vec<VolumeMoveReport>,
    /// The images that the machine last removed because nothing used them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_removed: Option<ImagesRemoved>,
    /// Hashes of the keys of the certificates that the machine uses while it holds the store; empty
    /// if it does not.
    #[serde(skip_serializing_if = "MemberKeys::is_empty")]
    pub member_keys: MemberKeys,
    /// The cluster's authorities as this machine uses them; empty in reports of version 0.1.0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<AuthorityReport>,
    /// Whether a machine without the store reads the state stream now; missing in reports of version
    /// 0.1.0, which reads etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_stream: Option<bool>,
    /// Whether the machine has prepared to become a member of etcd: its etcd waits for its
    /// membership. Missing in reports of earlier versions, which can't prepare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_waits: Option<bool>,
    /// The configuration of the cluster that the machine follows. Missing in reports of earlier
    /// versions, which keep that of their join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<FollowedConfiguration>,
    /// How the machine isolates namespaces; missing if its `kat-net` has not said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationReport>,
    /// How the machine serves routes. Missing where it has none to serve, and in reports of earlier
    /// versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressReport>,
    /// What the machine's `kat-net` does with the cluster's virtual addresses. Missing where there are
    /// none, and in reports of earlier versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub virtual_addresses: Vec<VirtualAddressReport>,
    /// Which of the machine's reports this is. Missing in reports of earlier versions, of which a
    /// leader believes the one that arrives last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<ReportOrder>,
    /// GPUs of the machine, from its CDI specs. Missing where there are none, and in reports of earlier
    /// versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuDevice>,
}

/// The place of a report among those of its machine: a report that was under way when the machine
/// was cut off may arrive after newer ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportOrder {
    /// The kernel's id of the boot in which the report was made.
    pub boot_id: String,
    /// Microseconds from that boot to the report, by CLOCK_BOOTTIME. The clock needs no file to
    /// count on when the agent restarts.
    #[schemars(with = "u64")]
    pub since_boot: BootTime,
}

/// A virtual address on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualAddressReport {
    /// The address.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// What the machine does with it. In an object of a newer version, an unknown word is read as
    /// `Unknown`.
    #[serde(default, deserialize_with = "newer::word")]
    pub state: AddressStateWord,
    /// The machine's interface for it; empty if it has none.
    #[serde(default)]
    pub interface: String,
    /// More about it, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How a machine serves the routes that it was given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressReport {
    /// What `kat-ingress` does on the machine. In an object of a newer version, an unknown state is
    /// read as `Starting`.
    #[serde(deserialize_with = "newer::word")]
    pub state: IngressState,
    /// Why it does not serve, one word for programs.
    pub reason: String,
    /// Why it does not serve, in a sentence.
    pub message: String,
    /// Routes and certificates that it does not serve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedRoute>,
    /// Revision of the store of the newest challenge of ACME that it answers; it answers the others that
    /// the store had then, too. 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub challenges: i64,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// What `kat-ingress` does on a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IngressState {
    /// It is being started.
    #[default]
    Starting,
    /// It serves the machine's routes.
    Serving,
    /// A program of the machine holds port 80 or 443.
    PortInUse,
    /// It does not run, or its files can't be written.
    Failed,
}

/// A route or a certificate that a machine does not serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedRoute {
    /// Name of the file of `kat-ingress`, such as `routes.json`.
    pub file: String,
    /// `NAMESPACE/WORKLOAD/HOST/PATH` of a route, or the name of a certificate.
    pub name: String,
    /// The cause, in a sentence.
    pub message: String,
}

/// The configuration of the cluster that a machine follows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FollowedConfiguration {
    /// The change that made it; empty for the configuration that the machine read from its disk.
    pub change: String,
    /// `nodeLossTimeoutSeconds` by which the machine's reports count for it, or a lower one.
    pub node_loss_timeout_seconds: u32,
}

impl NodeReport {
    /// Whether the report differs from an earlier one of the same machine in nothing but its order
    /// and measurements for display: times, bytes sent and received, memory, processor time, progress
    /// of a move, refused connections; nor in the revision of the rules of isolation, for which the
    /// leader waits now and then.
    pub fn repeats(&self, earlier: &Self) -> bool {
        let mut same = self.clone();
        same.timestamp = earlier.timestamp;
        same.order.clone_from(&earlier.order);
        same.overlay_network.last_peer_sync = earlier.overlay_network.last_peer_sync;
        let peers = same.overlay_network.peers.iter_mut();
        for (peer, before) in peers.zip(&earlier.overlay_network.peers) {
            peer.last_handshake = before.last_handshake;
            (peer.sent, peer.received) = (before.sent, before.received);
        }
        let instances = same.workload_instances.iter_mut();
        for (instance, before) in instances.zip(&earlier.workload_instances) {
            (instance.memory, instance.cpu) = (before.memory, before.cpu);
        }
        let moves = same.volume_moves.iter_mut();
        for (progress, before) in moves.zip(&earlier.volume_moves) {
            if progress.meaning() == before.meaning() {
                progress.clone_from(before);
            }
        }
        if let (Some(isolation), Some(before)) = (&mut same.isolation, &earlier.isolation) {
            isolation.refused.clone_from(&before.refused);
            isolation.revision = before.revision;
        }
        same == *earlier
    }

    /// Revision of the store whose rules of isolation the machine has in force; 0 if none.
    pub fn isolation_revision(&self) -> i64 {
        let isolation = self.isolation.as_ref();
        isolation.map_or(0, |isolation| isolation.revision)
    }
}

/// How a machine uses an authority of the cluster. Each machine reports `cluster-ca`, and one that
/// holds the store those of etcd too. Hashes are the SHA-256 of the authorities' certificates, each
/// 64 hexadecimal digits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorityReport {
    /// Name of the authority, such as `etcd-client-ca`.
    pub name: String,
    /// The authority that signed the certificates in use.
    pub issues: String,
    /// The new authority that the machine holds during a replacement.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub holds_next: String,
    /// Authorities whose certificates the machine's running etcd accepted when the machine tried
    /// one; for `cluster-ca`, those that the machine's own servers accept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<String>,
    /// Authorities whose certificates the machine's running etcd refused when the machine tried
    /// one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// When certificates of that authority expire next.
    pub expires: ApiTime,
    /// `cluster-ca`: this machine's signature that the new authority replaces the present one;
    /// absent without a replacement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub successor_signature: Option<MemberSignature>,
}

/// SHA-256 of the public keys of the certificates that a machine uses while it holds the store,
/// each 64 hexadecimal digits. Empty if unknown: version 0.1.0 did not report them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberKeys {
    /// Hash of the key of `leader:NAME`.
    pub leader: String,
    /// Hash of the key of `admin:NAME`.
    pub admin: String,
    /// Hash of the key of `api:NAME`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api: String,
}

impl MemberKeys {
    /// Whether no hash is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether all values are well-formed hashes; that of the API may be unknown.
    pub fn is_complete(&self) -> bool {
        let digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_hash = |text: &String| text.len() == 64 && text.bytes().all(digit);
        let is_api_key = self.api.is_empty() || is_hash(&self.api);
        is_hash(&self.leader) && is_hash(&self.admin) && is_api_key
    }
}

/// Images that a machine has removed in one cleanup, because nothing used them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImagesRemoved {
    /// Distinguishes this cleanup from the previous one.
    pub id: u64,
    /// Number of removed images.
    pub images: u32,
    /// Bytes of the images' layers that no other image used.
    pub bytes: u64,
    /// Names of some of the images.
    pub names: Vec<String>,
}

impl ImagesRemoved {
    /// Maximum number of names, and maximum characters of each.
    const NAMED: usize = 3;
    const LONGEST: usize = 200;

    /// A copy with at most `NAMED` names of at most `LONGEST` characters.
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

/// Progress of a volume that the reporting machine receives from another machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMoveReport {
    /// `NAMESPACE/WORKLOAD/VOLUME`.
    pub volume: String,
    /// Id of the move.
    pub id: String,
    /// Phase of the transfer. In an object of a newer version, an unknown phase is read as
    /// `Waiting`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: VolumeMovePhase,
    /// Why the last attempt failed, for users; empty if none has failed. The machine retries.
    pub message: String,
    /// Number of files and links received so far; while verifying, number of those compared.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Number of all files and links; 0 while unknown.
    pub total_files: u64,
    /// Approximate bytes of all files.
    pub total_bytes: u64,
    /// Number of sockets and devices, which are not copied.
    pub skipped: u64,
    /// SHA-256 of names, attributes and contents; empty until both copies have been compared.
    pub digest: String,
}

impl VolumeMoveReport {
    /// The report without its progress, so that only changes of its meaning are stored.
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

/// Phase of the transfer of a volume, on the receiving machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeMovePhase {
    /// The transfer is starting, or waits for a retry.
    #[default]
    Waiting,
    /// The machine is reading the data from the other machine.
    Copying,
    /// All data has arrived, and is being compared.
    Verifying,
    /// The copy is complete on the disk, next to the volume's place.
    Copied,
    /// The copy is in the volume's place.
    Placed,
    /// The copy has to be put in the volume's place, but no longer exists.
    Lost,
}

/// An unknown phase has no effect.
impl newer::ExtensibleEnum for VolumeMovePhase {
    const NEWER: Self = Self::Waiting;
}

/// Resources of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeResources {
    /// All resources of the machine.
    pub capacity: ResourceList,
    /// Resources that workloads may use.
    pub allocatable: ResourceList,
}

/// Whether the data path of a machine runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OverlayStatus {
    /// `kat-net` runs.
    Connected,
    /// Not reported by this version.
    Degraded,
    /// `kat-net` does not run, or does not answer.
    Down,
    /// The agent cannot find out the state of `kat-net`.
    #[default]
    Unknown,
}

impl newer::ExtensibleEnum for OverlayStatus {
    const NEWER: Self = Self::Unknown;
}

/// State of the overlay on a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OverlayReport {
    /// Whether the data path of the machine runs. In an object of a newer version, an unknown
    /// status is read as `unknown`.
    #[serde(deserialize_with = "newer::word")]
    pub status: OverlayStatus,
    /// When the peers were last updated; RFC 3339, UTC.
    pub last_peer_sync: ApiTime,
    /// The other machines as the machine's WireGuard sees them.
    pub peers: Vec<OverlayPeer>,
}

/// Another machine of the overlay, as one machine's WireGuard sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OverlayPeer {
    /// Name of the other machine.
    pub name: String,
    /// `host:port` from which the other machine last sent, or at which it is tried; null if
    /// unknown.
    pub endpoint: Option<String>,
    /// When the last handshake took place; RFC 3339, UTC; null before the first.
    pub last_handshake: Option<ApiTime>,
    /// Whether there is a WireGuard session with the other machine. Without traffic there may be
    /// none.
    pub connected: bool,
    /// Bytes sent to the other machine since the interface was created.
    pub sent: u64,
    /// Bytes received from the other machine since the interface was created.
    pub received: u64,
    /// Seconds since the other machine was first asked in vain whether it answers over the overlay;
    /// null if it answered the last question, or was asked none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered_seconds: Option<u32>,
    /// Name of the machine that relays between the two, if they cannot reach each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// State of an instance's main container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MainContainerState {
    /// The program runs.
    Running,
    /// The program has ended.
    Exited,
    /// The program is paused. Not reported by this version.
    Paused,
    /// The container is being created or stopped, or nothing is known of it.
    #[default]
    Unknown,
}

impl newer::ExtensibleEnum for MainContainerState {
    const NEWER: Self = Self::Unknown;
}

/// One instance in a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceReport {
    /// Name of the workload.
    pub workload_name: String,
    /// Namespace of the workload.
    pub namespace: String,
    /// Id of the instance.
    #[serde(rename = "instanceID")]
    pub instance_id: String,
    /// Podman's id of the container; empty if there is none.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Podman's id of the image.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// State of the container. In an object of a newer version, an unknown state is read as
    /// `unknown`.
    #[serde(deserialize_with = "newer::word")]
    pub state: MainContainerState,
    /// Exit code with which the program last ended; null if it has not ended.
    pub exit_code: Option<i32>,
    /// Result of the health check. In an object of a newer version, an unknown result is read as
    /// `pending_check`.
    #[serde(deserialize_with = "newer::word")]
    pub health_status: Health,
    /// Number of restarts of the program.
    pub restarts: u32,
    /// Phase of the instance. In an object of a newer version, an unknown phase is read as
    /// `Unknown`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: InstancePhase,
    /// Reason of the phase, one word for programs.
    pub reason: String,
    /// Reason of the phase for users, in a sentence.
    pub message: String,
    /// When the instance entered this phase; RFC 3339, UTC.
    pub since: ApiTime,
    /// Template hash of the assignment from which the unit was rendered.
    pub template_hash: String,
    /// Memory in use, bytes; null if not measured.
    pub memory: Option<u64>,
    /// CPU time used since the last start, nanoseconds; null if not measured.
    pub cpu: Option<u64>,
    /// Conditions of the instance.
    pub conditions: Vec<Condition>,
    /// Status of the init containers and sidecars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerStatus>,
    /// The runs of a schedule that the machine keeps by itself; absent for any other instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<BoundReport>,
}

/// Most runs in a [`BoundReport`].
pub const MOST_BOUND_RUNS: usize = 20;

/// What a machine has decided about the times of a schedule that it keeps by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BoundReport {
    /// `handled` of the assignment that the report is about: the times of the report are later.
    #[schemars(with = "String")]
    pub from: Timestamp,
    /// All times until this one are decided, and their runs are over.
    #[schemars(with = "String")]
    pub handled: Timestamp,
    /// The oldest runs after `from`, and the one that is active. At most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<BoundRun>,
    /// Number of the times until `handled` that had no run.
    pub skips: u32,
    /// The last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<SkippedRun>,
    /// The timer is gone and nothing runs: no run begins any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
}

/// A run that a machine began by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BoundRun {
    /// Its scheduled time.
    #[schemars(with = "String")]
    pub scheduled: Timestamp,
    /// When it began.
    #[schemars(with = "String")]
    pub started: Timestamp,
    /// How its attempts before the last one ended. At most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<AttemptEnd>,
    /// Its next attempt has not begun; `failed` has all attempts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// How its last attempt ended; absent while the run is not over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<AttemptEnd>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Isolation;

    #[test]
    fn a_report_with_other_measurements_repeats_the_one_before() {
        let earlier = NodeReport {
            node_name: "n1".to_owned(),
            workload_instances: vec![InstanceReport::default(); 2],
            volume_moves: vec![VolumeMoveReport::default()],
            isolation: Some(IsolationReport {
                refused: vec![Default::default()],
                ..IsolationReport::default()
            }),
            overlay_network: OverlayReport {
                peers: vec![OverlayPeer::default()],
                ..OverlayReport::default()
            },
            ..NodeReport::default()
        };
        let mut later = earlier.clone();
        later.timestamp = 15;
        later.order = Some(ReportOrder {
            boot_id: "boot".to_owned(),
            since_boot: BootTime(15),
        });
        if let Some(isolation) = &mut later.isolation {
            isolation.refused[0].packets = 7;
            isolation.refused.push(Default::default());
            isolation.revision = 1;
        }
        let now = ApiTime::from(jiff::Timestamp::UNIX_EPOCH);
        later.overlay_network.last_peer_sync = now;
        later.overlay_network.peers[0].last_handshake = Some(now);
        later.overlay_network.peers[0].sent = 7;
        later.overlay_network.peers[0].received = 7;
        later.workload_instances[1].memory = Some(7);
        later.workload_instances[1].cpu = Some(7);
        later.volume_moves[0].files = 7;
        assert!(later.repeats(&earlier));

        type Change = fn(&mut NodeReport);
        let changes: [(&str, Change); 7] = [
            ("rules in force", |report| {
                report.isolation.as_mut().unwrap().mode = Some(Isolation::Audit);
            }),
            ("a list", |report| report.desired_revision = 1),
            ("an instance", |report| {
                report.workload_instances[1].restarts = 1;
            }),
            ("another instance", |report| {
                report.workload_instances.push(InstanceReport::default());
            }),
            ("one less", |report| {
                report.workload_instances.pop();
            }),
            ("a move", |report| {
                report.volume_moves[0].phase = VolumeMovePhase::Copied;
            }),
            ("a peer", |report| {
                report.overlay_network.peers[0].unanswered_seconds = Some(1);
            }),
        ];
        for (what, change) in changes {
            let mut other = later.clone();
            change(&mut other);
            assert!(!other.repeats(&earlier), "{what}");
        }
    }
}
