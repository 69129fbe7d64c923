//! Objects that the leader stores, each with the version of its schema.
//!
//! Readers ignore fields that they do not know (ARCHITECTURE.md, invariant 10). Times are RFC 3339,
//! UTC.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

mod image;
mod node_status;

use crate::{
    api::{
        BoundReport, Condition, ContainerStatus, Health, ImagesRemoved, InstancePhase, MemberKeys,
        NodePhase, Scope, Taint, VolumeMoveReport, WorkloadStatus, newer,
    },
    machine::gpu::GpuDevice,
    resource::{Amounts, NamespaceAccess, NamespaceDefaults, ReclaimPolicy, ResourceList},
    volumes::{KeptCopy, VolumeMove},
};

/// `/kat/namespaces/{ns}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Generated when the namespace is created.
    pub uid: String,
    /// Labels of the namespace.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When the namespace was created.
    pub created: Timestamp,
    /// It is being deleted: its key is deleted as soon as it has no workloads.
    #[serde(default)]
    pub deleting: bool,
    /// Quotas of the namespace.
    #[serde(default, skip_serializing_if = "Amounts::is_empty")]
    pub quota: Amounts,
    /// Which other namespaces may reach its workloads.
    #[serde(default, skip_serializing_if = "NamespaceAccess::is_closed")]
    pub access: NamespaceAccess,
    /// Hosts that its routes may have, exact or with `*.` for one label; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_hosts: Option<Vec<String>>,
    /// Values that new instances get where their workload does not have them.
    #[serde(default, skip_serializing_if = "NamespaceDefaults::is_empty")]
    pub defaults: NamespaceDefaults,
}

/// `/kat/nodes/registration/{node}`: identity, addresses and settings of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRegistration {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Generated at init or join.
    pub uid: String,
    /// SHA-256 of the machine's public key, hexadecimal: proves a machine whose leaf expired.
    pub identity_key: String,
    /// The keys of its certificates as a member of etcd, from its join or a later report.
    #[serde(default, skip_serializing_if = "MemberKeys::is_empty")]
    pub member_keys: MemberKeys,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Taints.
    #[serde(default, deserialize_with = "newer::taints")]
    pub taints: Vec<Taint>,
    /// It is being drained.
    #[serde(default)]
    pub draining: bool,
    /// While it is drained, instances that no other machine can take are stopped too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain_forced: bool,
    /// `amd64`, `arm64` ...
    pub architecture: String,
    /// It holds etcd.
    #[serde(default)]
    pub etcd: bool,
    /// It must never hold etcd.
    #[serde(default)]
    pub no_etcd: bool,
    /// It asks to hold etcd: it is preferred to other candidates.
    #[serde(default)]
    pub etcd_peer: bool,
    /// It reads the state stream: it never gets a certificate of etcd.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub state_stream: bool,
    /// The migration from version 0.1.0 does not wait for it, although it may read etcd.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub migration_ended: bool,
    /// Addresses at which others reach it outside the overlay.
    #[serde(default)]
    pub advertise: Vec<IpAddr>,
    /// It is being deleted, with everything stored for it.
    #[serde(default)]
    pub deleting: bool,
    /// When it joined.
    pub created: Timestamp,
}

impl NodeRegistration {
    /// The registration of a machine of which nothing else is known.
    pub fn new(uid: &str, created: Timestamp) -> Self {
        Self {
            schema: 1,
            uid: uid.to_owned(),
            identity_key: String::new(),
            member_keys: MemberKeys::default(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            draining: false,
            drain_forced: false,
            architecture: String::new(),
            etcd: false,
            no_etcd: false,
            etcd_peer: false,
            state_stream: false,
            migration_ended: false,
            advertise: Vec::new(),
            deleting: false,
            created,
        }
    }
}

/// `/kat/nodes/status/{node}`: written when its meaning changes, never for a heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Phase of the machine; an unknown word is read as [`NodePhase::Joining`].
    #[serde(deserialize_with = "newer::word")]
    pub phase: NodePhase,
    /// Reason of the phase, in one word for programs.
    pub reason: String,
    /// Reason of the phase, in a sentence for users.
    pub message: String,
    /// Since when it is in this phase.
    pub since: Option<Timestamp>,
    /// All resources of the machine.
    pub capacity: ResourceList,
    /// Resources that workloads may use.
    pub allocatable: ResourceList,
    /// Addresses of its network interfaces.
    pub addresses: Vec<String>,
    /// KAT's version.
    pub version: String,
    /// Its instances by id, each as last reported while it is assigned.
    pub instances: BTreeMap<String, InstanceRecord>,
    /// Revision of the desired list that the agent has acted on; 0 while it has confirmed none
    /// since it started.
    pub desired_revision: u64,
    /// Indexes of workload users of which something is, or may be, left on the machine.
    pub user_indexes: Vec<u32>,
    /// Indexes that the machine reports without ever having had an instance of their user: nothing
    /// waits for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unexplained_indexes: Vec<u32>,
    /// Conditions of the machine.
    pub conditions: Vec<Condition>,
    /// Highest assignment schema that its agent understands; 0 counts as 1.
    pub assignment_schema: u32,
    /// Version of its agent's reader of stored `*.kat` files; 0 counts as 1.
    pub manifest_reader: u32,
    /// `nodeLossTimeoutSeconds` by which its last report counted for it; 0 if it reported none. A
    /// leader that has not heard the machine yet waits that long for it.
    pub loss_timeout_seconds: u32,
    /// Version of its data path, `packaging/data-path`; 0 for one from before it was reported.
    pub data_path: u32,
    /// Its volume base path is storage that it shares with all machines that report the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub volume_shared: bool,
    /// Containers may use its network.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// The container runtime that Podman uses there; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub runtime: String,
    /// Indexes of workload users whose ids another account of the machine has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub foreign_indexes: Vec<u32>,
    /// GPUs of the machine, from its CDI specs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuDevice>,
    /// Folders of volumes that it has created and not removed, if these are not shared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub made_volumes: Vec<String>,
    /// Volumes that it had to remove, and of which nothing is left on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed_volumes: Vec<String>,
    /// Volumes that it had to remove and did not find.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_volumes: Vec<String>,
    /// Volumes that it receives from other machines; their progress is not stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_moves: Vec<VolumeMoveReport>,
    /// The images that it last removed because nothing used them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images_removed: Option<ImagesRemoved>,
}

/// One instance within a [`NodeStatusRecord`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceRecord {
    /// Phase of the instance.
    #[serde(deserialize_with = "newer::word")]
    pub phase: InstancePhase,
    /// Reason of the phase, in one word for programs; empty for none.
    pub reason: String,
    /// Reason of the phase, in a sentence for users.
    pub message: String,
    /// Result of its health check.
    #[serde(deserialize_with = "newer::word")]
    pub health: Health,
    /// Number of restarts of the program.
    pub restarts: u32,
    /// Since when it is in this phase.
    pub since: Option<Timestamp>,
    /// Exit code of the program's last end.
    pub exit_code: Option<i32>,
    /// `sha256:...` of the running image.
    pub image_digest: Option<String>,
    /// Podman's container id.
    pub container_id: String,
    /// Template hash of the assignment from which the unit was rendered.
    pub template_hash: String,
    /// Conditions of the instance.
    pub conditions: Vec<Condition>,
    /// Its init containers and sidecars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerStatus>,
    /// The runs of a schedule that its machine keeps by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<BoundReport>,
}

/// `/kat/workloads/desired/{ns}/{workload}/meta`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadMeta {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Generated when the workload is created.
    pub uid: String,
    /// Counts changes of what runs: of the files' content, restarts, and changed secrets. Comments
    /// and layout do not count.
    pub generation: u64,
    /// Hash of the whole bundle: with an equal hash an apply changes nothing.
    pub spec_hash: String,
    /// Hash of everything that decides about the units.
    pub template_hash: String,
    /// The workload's index: its uid and subordinate ids follow from it.
    pub index: u32,
    /// When it was created.
    pub created: Timestamp,
    /// When the present generation was applied.
    pub updated: Timestamp,
    /// It is being deleted: its keys are deleted as soon as the agents confirm that nothing of it
    /// is left.
    #[serde(default)]
    pub deleting: bool,
    /// The data of its volumes is deleted with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletes_volumes: bool,
    /// Its rollout is paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// When a user last requested that its instances be replaced by new ones: part of the
    /// template's hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<Timestamp>,
    /// What the registry answered about its image.
    #[serde(default, skip_serializing_if = "ImageRecord::is_empty")]
    pub image: ImageRecord,
    /// A user stopped it, and it has 0 replicas since. A leader that does not know this field runs
    /// no instance either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<StopRecord>,
}

/// That a user stopped a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StopRecord {
    /// The number of replicas before, which a start restores; 0 counts as 1.
    pub replicas: u32,
    /// The caller who stopped it.
    pub by: String,
    /// When it was stopped.
    pub at: Timestamp,
}

/// What a registry answered about a version's image when that version was applied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageRecord {
    /// The image in the file's words, for which the registry was queried; empty if none was
    /// queried.
    pub reference: String,
    /// The image by its digest, `registry.example/web@sha256:...`; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pinned: String,
    /// The architectures of the image (`amd64`, `arm64` ...); empty if unknown, so that any machine
    /// may try.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
    /// Why the digest is unknown; empty if it is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// The version has further images that were not looked up, such as images that are never
    /// pulled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Records of the version's other images: those of its init containers and sidecars. Their own
    /// lists are empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ImageRecord>,
}

/// `/kat/workloads/status/{ns}/{workload}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadStatusRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The status that users see.
    pub status: WorkloadStatus,
    /// Number of instances made so far, from which their ids derive.
    pub instances_made: u32,
    /// Failed instances in a row, for the growing delay before the next one.
    pub failures: u32,
    /// When the last instance failed.
    pub last_failure: Option<Timestamp>,
    /// Progress of the present generation's rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutRecord>,
    /// Kept generations that were wholly healthy once, oldest first; the last one is `lastGood`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub good: Vec<u64>,
    /// How far the start after other workloads is; `None` without `startAfter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StartRecord>,
}

/// What `startAfter` of a workload has let through, and what it holds back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StartRecord {
    /// The workload was started: Started and Healthy hold nothing back until it has no replicas.
    pub started: bool,
    /// Hash of the template of the version that Completed has let through.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// What is held back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<StartWaitRecord>,
}

/// Something that waits for other workloads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StartWaitRecord {
    /// Hash of the template of a version, or the last part of the key of a Job's run.
    pub version: String,
    /// When it began to wait.
    pub since: Timestamp,
}

/// Progress of a generation's rollout. It is stored, so that another leader continues it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutRecord {
    /// Number of the generation.
    pub generation: u64,
    /// When the leader first saw it.
    pub started: Option<Timestamp>,
    /// When it last progressed; `None` while it is paused.
    pub progressed: Option<Timestamp>,
    /// Number of instances of another version when it began.
    pub replaces: u32,
    /// Highest number of its instances that were healthy at once.
    pub updated: u32,
    /// Lowest number of instances of another version.
    pub old: u32,
    /// All of its instances were healthy once: later changes are no rollout.
    pub done: bool,
    /// It made no progress within `progressDeadlineSeconds`.
    pub stalled: bool,
}

/// Number of generations that are kept, including the present one.
pub const GENERATIONS: u64 = 10;

/// `/kat/workloads/archive/{ns}/{workload}/{generation}/meta`: how a generation came to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// When it was written.
    pub applied: Timestamp,
    /// The caller who requested the generation; empty for KAT itself.
    #[serde(default)]
    pub by: String,
    /// The kind of request.
    #[serde(default, deserialize_with = "newer::word")]
    pub origin: Origin,
    /// The generation whose content it restores, for a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// Why KAT made it by itself; empty for a request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Hash of the whole bundle.
    pub spec_hash: String,
    /// Hash of what decides about the units.
    pub template_hash: String,
    /// The restart that is part of the template's hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<Timestamp>,
    /// What the registry answered about its image.
    #[serde(default, skip_serializing_if = "ImageRecord::is_empty")]
    pub image: ImageRecord,
}

impl GenerationRecord {
    /// Whether it ran something else than is wanted now: other files, or another image under the
    /// same name.
    pub fn is_another(&self, meta: &WorkloadMeta) -> bool {
        self.spec_hash != meta.spec_hash || self.image.pins() != meta.image.pins()
    }
}

/// The origin of a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// An apply.
    #[default]
    Applied,
    /// A rollback that a user requested.
    RolledBack,
    /// A rollback by `autoRollback`.
    RolledBackItself,
    /// Another number of replicas.
    Scaled,
    /// A restart.
    Restarted,
    /// Another image.
    ImageSet,
    /// A secret that changed.
    SecretChanged,
    /// A stop: no replicas.
    Stopped,
    /// A start, with the replicas of before the stop.
    Started,
}

/// `autoRollback` never leaves a generation of an unknown origin.
impl newer::ExtensibleEnum for Origin {
    const NEWER: Self = Self::RolledBack;
}

/// The template's hash of a workload with the hash `files`, after a restart was requested.
pub fn with_restart(files: &str, restarted: Option<Timestamp>) -> String {
    match restarted {
        None => files.to_owned(),
        Some(at) => format!("{files}-{:x}", at.as_millisecond()),
    }
}

/// `/kat/volumes/{ns}/{workload}/{volume}`: where the data of a volume lies, from its first
/// placement on and after its workload is deleted (RFC001-KAT 4.7). See
/// [`crate::volumes::VolumeKey`] for the last part of the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Index of the workload user that owns the data: no other workload gets it meanwhile.
    pub index: u32,
    /// Name of the machine with the data; `None` for storage that machines share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Path on the machine, for a host path that KAT creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// An instance has run with the volume.
    #[serde(default)]
    pub made: bool,
    /// What happens to the data when the workload is deleted.
    #[serde(default, deserialize_with = "newer::word")]
    pub reclaim: ReclaimPolicy,
    /// The data is to be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// When the volume was first placed.
    pub created: Timestamp,
    /// The move of the data to another machine, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<VolumeMove>,
    /// Copies kept on machines that had the data before a move.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptCopy>,
    /// Removals whose data a person gave up because its disk is missing: the machine, and
    /// `asked` of its desired removal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub forgotten: BTreeMap<String, Timestamp>,
}

/// `/kat/indexes/{index}`: the workload that owns an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Namespace of the workload.
    pub namespace: String,
    /// Name of the workload.
    pub workload: String,
    /// Identity of the workload.
    pub workload_uid: String,
}

/// `/kat/indexes/last`: how far the assignment of indexes has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastIndex {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The index that was assigned last; its workload may be deleted.
    pub index: u32,
}

/// `/kat/network/allocations/{instance}/ip`: the address of an instance. Every machine reads it, to
/// know which namespace an address belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Name of the machine whose subnet contains the address.
    pub node: String,
    /// Overlay address of the instance.
    pub address: Ipv4Addr,
    /// Namespace of the workload; empty for one that an earlier version wrote, until the leader has
    /// added it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the workload; empty as the namespace is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub workload: String,
    /// The instance is gone. Until no machine counts the address to this namespace any more, only
    /// instances of the same namespace get it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// `/kat/backup`: status of the leader's backups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Name of the machine with the last backup.
    pub node: String,
    /// When the last one was made.
    pub last: Option<Timestamp>,
    /// Why backups have failed since; empty if they succeed.
    pub failure: String,
    /// When the failures began.
    pub failing_since: Option<Timestamp>,
}

/// `/kat/tokens/{id}`: a token, with a hash of its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// SHA-256 of the secret, hexadecimal.
    pub hash: String,
    /// What the token allows.
    pub scope: Scope,
    /// A name for users.
    #[serde(default)]
    pub name: String,
    /// When the token was created.
    pub created: Timestamp,
    /// When the token expires; `None` for never.
    #[serde(default)]
    pub expires: Option<Timestamp>,
    /// Number of further machines that may join with it; `None` for any number. Nothing else uses
    /// tokens up.
    #[serde(default)]
    pub uses: Option<u32>,
    /// Anybody who reaches the API may join with it, without its secret.
    #[serde(default)]
    pub insecure_trust_network: bool,
}
