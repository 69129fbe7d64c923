//! Objects that the leader stores, each with the version of its schema.
//!
//! Readers ignore fields that they do not know (ARCHITECTURE.md, invariant 10). Times are RFC 3339, UTC.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

mod image;

use crate::api::{
    Condition, ContainerStatus, Health, ImagesRemoved, InstancePhase, MemberKeys, NodePhase, Scope,
    Taint, VolumeMoveReport, WorkloadStatus, newer,
};
use crate::resource::{Amounts, ReclaimPolicy, ResourceList};
use crate::volumes::{KeptCopy, VolumeMove};

/// `/kat/namespaces/{ns}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Generated once.
    pub uid: String,
    /// Free labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When it was made.
    pub created: Timestamp,
    /// It goes as soon as its workloads are gone.
    #[serde(default)]
    pub deleting: bool,
    /// What it may have.
    #[serde(default, skip_serializing_if = "Amounts::is_empty")]
    pub quota: Amounts,
}

/// `/kat/nodes/registration/{node}`: what was fixed or decided about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRegistration {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Generated at init or join.
    pub uid: String,
    /// SHA-256 of the machine's public key, hexadecimal: proves a machine whose leaf expired.
    pub identity_key: String,
    /// The keys of its certificates as a machine that holds the store, from its join or a later report.
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
    /// While it is drained, what no other machine takes is stopped too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain_forced: bool,
    /// `amd64`, `arm64` ...
    pub architecture: String,
    /// It holds etcd.
    #[serde(default)]
    pub etcd: bool,
    /// It never is to hold etcd.
    #[serde(default)]
    pub no_etcd: bool,
    /// It asks to hold etcd: it goes before others that could.
    #[serde(default)]
    pub etcd_peer: bool,
    /// Addresses at which others reach it outside the overlay.
    #[serde(default)]
    pub advertise: Vec<IpAddr>,
    /// It is to go, with all that was written for it.
    #[serde(default)]
    pub deleting: bool,
    /// When it joined.
    pub created: Timestamp,
}

impl NodeRegistration {
    /// A machine of which nothing else is known or decided.
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
    /// In one word.
    #[serde(deserialize_with = "newer::word")]
    pub phase: NodePhase,
    /// One word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// Since when it is in this phase.
    pub since: Option<Timestamp>,
    /// All that it has.
    pub capacity: ResourceList,
    /// What workloads may use.
    pub allocatable: ResourceList,
    /// Addresses of its links.
    pub addresses: Vec<String>,
    /// KAT's version.
    pub version: String,
    /// Its instances, each as last reported while it is assigned.
    pub instances: BTreeMap<String, InstanceRecord>,
    /// Revision of the desired list that the agent has acted on; 0 while it has confirmed none
    /// since it started.
    pub desired_revision: u64,
    /// Indexes of the workload users of which something is, or may be, left on the machine.
    pub user_indexes: Vec<u32>,
    /// Indexes that the machine names without ever having had an instance of their user: nothing waits for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unexplained_indexes: Vec<u32>,
    /// Conditions of the machine.
    pub conditions: Vec<Condition>,
    /// Highest schema of an assignment that its agent understands; 0 is 1.
    pub assignment_schema: u32,
    /// Number of its `packaging/data-path`; 0 is one from before this was said.
    pub data_path: u32,
    /// Its volume base path is storage that it shares with all machines that say so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub volume_shared: bool,
    /// Containers may share its network.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// Folders of volumes that it has made and not removed, where these are not shared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub made_volumes: Vec<String>,
    /// Volumes that it was to remove, and of which nothing is left on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed_volumes: Vec<String>,
    /// Volumes that it takes from other machines; their progress is not kept.
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
    /// In one word.
    #[serde(deserialize_with = "newer::word")]
    pub phase: InstancePhase,
    /// One word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// Health.
    #[serde(deserialize_with = "newer::word")]
    pub health: Health,
    /// Times that the program was started again.
    pub restarts: u32,
    /// Since when it is in this phase.
    pub since: Option<Timestamp>,
    /// Exit code of the program's last end.
    pub exit_code: Option<i32>,
    /// `sha256:...` of what runs.
    pub image_digest: Option<String>,
    /// Podman's container id.
    pub container_id: String,
    /// Template hash of what the unit was rendered from.
    pub template_hash: String,
    /// Conditions of the instance.
    pub conditions: Vec<Condition>,
    /// Its init containers and sidecars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerStatus>,
}

/// `/kat/workloads/desired/{ns}/{workload}/meta`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadMeta {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Generated when the workload is created.
    pub uid: String,
    /// Counts changes of the files' meaning.
    pub generation: u64,
    /// Hash of the whole bundle: the same means that an apply changes nothing.
    pub spec_hash: String,
    /// Hash of what decides about the units.
    pub template_hash: String,
    /// The workload's index: its uid and subordinate ids follow from it.
    pub index: u32,
    /// When it was created.
    pub created: Timestamp,
    /// When the present generation was applied.
    pub updated: Timestamp,
    /// It goes as soon as the agents confirm that nothing of it is left.
    #[serde(default)]
    pub deleting: bool,
    /// And the data of its volumes goes with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletes_volumes: bool,
    /// Its rollout moves nothing new.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// When somebody last asked that its instances be replaced by others like them: part of the
    /// template's hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<Timestamp>,
    /// What the registry said of its image.
    #[serde(default, skip_serializing_if = "ImageRecord::is_empty")]
    pub image: ImageRecord,
}

/// What a registry said of a version's image, when that version was applied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageRecord {
    /// The image as the file names it, for which this was asked; empty where nobody was asked.
    pub reference: String,
    /// The same by its digest, `registry.example/web@sha256:...`; empty where that is not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pinned: String,
    /// The architectures that it is made for (`amd64`, `arm64` ...); empty where that is not known, and
    /// any machine may try.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
    /// Why the digest is not known; empty where it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// The version has images besides, of which nothing was learned: none was asked for that is never pulled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// The same of other images of the version: those of its init containers and sidecars. They have no others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ImageRecord>,
}

/// `/kat/workloads/status/{ns}/{workload}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadStatusRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// What users see.
    pub status: WorkloadStatus,
    /// Instances made so far: their ids follow from this count.
    pub instances_made: u32,
    /// Failed instances in a row, for the growing delay before the next one.
    pub failures: u32,
    /// When the last instance failed.
    pub last_failure: Option<Timestamp>,
    /// How far the present generation is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutRecord>,
    /// Kept generations that were wholly healthy once, oldest first; the last one is `lastGood`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub good: Vec<u64>,
    /// The workload's keys are being deleted in the same plan; never stored.
    #[serde(skip)]
    pub gone: bool,
}

/// How far a generation is. It is stored, so that another leader goes on counting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutRecord {
    /// The generation.
    pub generation: u64,
    /// When the leader first saw it.
    pub started: Option<Timestamp>,
    /// When it last came nearer to its end; nothing while it is paused.
    pub progressed: Option<Timestamp>,
    /// Instances of another version that ran when it began.
    pub replaces: u32,
    /// Most instances of it that were healthy at once.
    pub updated: u32,
    /// Fewest instances of another version.
    pub old: u32,
    /// It was wholly healthy once: what comes later is no rollout.
    pub done: bool,
    /// It made no progress for too long.
    pub stalled: bool,
}

/// Generations that are kept, with the present one.
pub const GENERATIONS: u64 = 10;

/// `/kat/workloads/archive/{ns}/{workload}/{generation}/meta`: how a generation came to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// When it was written.
    pub applied: Timestamp,
    /// Who asked for it.
    #[serde(default)]
    pub by: String,
    /// What was asked for.
    #[serde(default, deserialize_with = "newer::word")]
    pub origin: Origin,
    /// The generation that it goes back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// Why, where nobody asked for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Hash of the whole bundle.
    pub spec_hash: String,
    /// Hash of what decides about the units.
    pub template_hash: String,
    /// The restart that is part of the template's hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<Timestamp>,
    /// What the registry said of its image.
    #[serde(default, skip_serializing_if = "ImageRecord::is_empty")]
    pub image: ImageRecord,
}

impl GenerationRecord {
    /// It ran something else than what is wanted now: other files, or another image under the same name.
    pub fn is_another(&self, meta: &WorkloadMeta) -> bool {
        self.spec_hash != meta.spec_hash || self.image.pins() != meta.image.pins()
    }
}

/// What made a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// An apply.
    #[default]
    Applied,
    /// A rollback that somebody asked for.
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
}

/// No generation of an unknown origin is gone back from by itself.
impl newer::Words for Origin {
    const NEWER: Self = Self::RolledBack;
}

/// The template's hash of a workload whose files say `files`, after a restart was asked for.
pub fn with_restart(files: &str, restarted: Option<Timestamp>) -> String {
    match restarted {
        None => files.to_owned(),
        Some(at) => format!("{files}-{:x}", at.as_millisecond()),
    }
}

/// `/kat/volumes/{ns}/{workload}/{volume}`: where the data of a volume lies, from the first placement on,
/// and after its workload is gone (RFC001-KAT 4.7). See [`super::VolumeKey`] for the last part of the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Index of the workload user that owns the data: nobody else gets it meanwhile.
    pub index: u32,
    /// The machine; nothing where the data is on storage that machines share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Of a path of the machine: the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// An instance has run with it.
    #[serde(default)]
    pub made: bool,
    /// What becomes of the data when the workload is deleted.
    #[serde(default, deserialize_with = "newer::word")]
    pub reclaim: ReclaimPolicy,
    /// The data is to be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// When it was placed.
    pub created: Timestamp,
    /// It is on its way to another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<VolumeMove>,
    /// Copies that are left where it was before it moved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptCopy>,
}

/// `/kat/indexes/{index}`: who has a workload index.
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

/// `/kat/indexes/last`: where the indexes that are handed out have come round to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastIndex {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The index that was handed out last; its workload may be gone.
    pub index: u32,
}

/// `/kat/network/allocations/{instance}/ip`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The machine whose subnet it is of.
    pub node: String,
    /// The address.
    pub address: Ipv4Addr,
}

/// `/kat/backup`: what became of the leader's backups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The machine on which the last one lies.
    pub node: String,
    /// When the last one was made.
    pub last: Option<Timestamp>,
    /// Why there is none since; empty while all is well.
    pub failure: String,
    /// Since when that is so.
    pub failing_since: Option<Timestamp>,
}

/// `/kat/tokens/{id}`: the secret is stored hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// SHA-256 of the secret, hexadecimal.
    pub hash: String,
    /// What it may do.
    pub scope: Scope,
    /// A name for people.
    #[serde(default)]
    pub name: String,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends.
    #[serde(default)]
    pub expires: Option<Timestamp>,
    /// How many more machines may join with it; any number without it. Nothing else uses tokens up.
    #[serde(default)]
    pub uses: Option<u32>,
    /// Whoever reaches the API may join with it, without its secret.
    #[serde(default)]
    pub insecure_trust_network: bool,
}
