//! The assignment: one instance's complete desired state on one machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

mod bound_paths;
mod units;
mod words;

pub use bound_paths::*;
pub use units::main_unit;
pub use words::*;

use crate::{
    encoding::digest::sha256_prefix_hex,
    resource::{
        CatchUp, Container, HealthCheck, OnPartition, Port, RestartPolicy, Volume, WorkloadType,
    },
    secrets::AssignedSecrets,
};

/// Everything an agent needs to run one instance; it reads no other key for it.
///
/// Stored as JSON under `/kat/nodes/desired/{node}/instances/{instance}`
/// (docs/internals/etcd-keys.md). Readers ignore fields that they do not know; of
/// words that they do not know see [`Self::not_understood`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Assignment {
    /// Lowest version of this object's schema that an agent must know to run the instance
    /// correctly: see [`needed_schema`].
    pub schema: u32,
    /// `<workload>-<5 base32>`, never used again.
    pub instance: String,
    /// Namespace of the workload.
    pub namespace: String,
    /// Name of the workload.
    pub workload: String,
    /// Identity of the workload: a new one after it was deleted and created again.
    pub workload_uid: String,
    /// Type of the workload.
    pub workload_type: WorkloadType,
    /// Labels of the workload.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Place among the replicas, from 0.
    pub slot: u32,
    /// Generation of the workload's files that this came from.
    pub generation: u64,
    /// Hash of everything that decides about the units; an instance with the same hash is not
    /// replaced.
    pub template_hash: String,
    /// The host user that runs the instance.
    pub user: WorkloadUser,
    /// Its address on the overlay.
    pub address: Ipv4Addr,
    /// The image, pinned where a digest is known.
    pub image: String,
    /// The main container.
    pub container: Container,
    /// Containers that run before the main one, in this order, each with its image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    /// Containers that run beside the main one, each with its image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sidecars: Vec<Container>,
    /// Ports that the workload declares.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// Health check; without one the instance counts as healthy while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// What systemd does when the program ends.
    pub restart_policy: RestartPolicy,
    /// When it was placed.
    #[serde(default)]
    pub created: Option<Timestamp>,
    /// What the machine does with the instance while the machine reaches no leader.
    #[serde(default, skip_serializing_if = "runs_on")]
    pub on_partition: OnPartition,
    /// What of its machine the containers ask: `api`, `metadata`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machine_access: Vec<String>,
    /// The volumes that its container mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<AssignedVolume>,
    /// The files of the workload's folder that its volumes mount, as one text: a tar.gz in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Arc<str>>,
    /// The used values of secrets, sealed for its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<AssignedSecrets>,
    /// Credentials for the pulls of its images, by the keys of Podman's file, sealed for its
    /// machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logins: Option<AssignedSecrets>,
    /// The run that it is an instance of, for a Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<AssignedRun>,
    /// CDI name of the machine's GPU that the instance has alone, such as `nvidia.com/gpu=0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The schedule of a Job that the machine keeps by itself. It is no part of the template's hash. An
    /// assignment has this or `run`, and with this at least [`BOUND_SCHEMA`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<BoundSchedule>,
    /// Whether the instance has to run or stop.
    #[serde(default)]
    pub wanted: DesiredRun,
    /// Why this version does not understand the assignment, if a newer version wrote it: the
    /// instance is left as it is, and can be stopped. Fields that could not be read have their
    /// defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_understood: Option<String>,
}

fn runs_on(on_partition: &OnPartition) -> bool {
    *on_partition == OnPartition::Keep
}

/// A volume of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedVolume {
    /// The definition in `workload.kat`.
    pub definition: Volume,
    /// For simple cluster storage: its folder below the machine's volume base path,
    /// `<namespace>/<workload>/<volume>`, with `.<slot>` if each replica has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The data has existed: an empty folder must not take its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub made: bool,
}

/// The run of a Job that an instance belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedRun {
    /// The last part of the run's key.
    pub key: String,
    /// Number of the run.
    pub number: u64,
    /// Seconds that the run had left when the instance was placed; `None` without a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u32>,
}

/// A schedule whose runs the machine begins by itself, whether or not a leader answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BoundSchedule {
    /// Cron expression of five fields.
    pub schedule: String,
    /// Time zone of the schedule.
    pub time_zone: String,
    /// Longest delay of a run's start, in seconds.
    pub jitter_seconds: u32,
    /// Seconds after which a run no longer begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting_deadline_seconds: Option<u32>,
    /// Seconds after which a run is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u32>,
    /// Further attempts of a run that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub backoff_limit: u32,
    /// Which missed times get a run; absent for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
    /// Scheduled times until this one are none of the machine's: the leader has taken them over.
    pub handled: Timestamp,
    /// No further run begins; a present one ends by itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// Each machine of the Job has such a schedule, and begins its own part of each run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub per_node: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Whether an instance has to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DesiredRun {
    /// The instance has to run.
    #[default]
    Running,
    /// The instance must not run yet: its machine makes sure that it can start once its predecessor
    /// has ended. Such an assignment has at least [`PREPARED_SCHEMA`].
    Prepared,
    /// The instance has to stop. Once its machine confirms that, the leader deletes the assignment.
    Stopped,
}

/// The host user of a workload, the same on every machine
/// (docs/internals/files-on-a-machine.md, Users and indexes).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadUser {
    /// The workload's index in the whole cluster.
    pub index: u32,
    /// Login name, at most 31 characters.
    pub name: String,
    /// Uid, and gid of the group of the same name.
    pub uid: u32,
    /// First subordinate uid and gid.
    pub subordinate_start: u32,
    /// Number of subordinate ids.
    pub subordinate_count: u32,
}

/// First uid of workload users (docs/internals/files-on-a-machine.md, Users and indexes).
pub const USER_BASE: u32 = 20_000;
/// First subordinate id of workload users.
pub const SUBORDINATE_BASE: u32 = 1_879_048_192;
/// Subordinate ids of each workload user.
pub const SUBORDINATE_COUNT: u32 = 65_536;
/// Number of indexes, so that ids keep clear of systemd's ranges.
pub const INDEX_LIMIT: u32 = 4094;

impl WorkloadUser {
    /// The user that follows from an index; `None` past the last index.
    ///
    /// The login name is `kat-NAMESPACE-WORKLOAD` where that fits in 31 characters, else a
    /// shortened form with the index, which keeps it unique: no name of a namespace or a workload
    /// has an underscore.
    pub fn from_index(index: u32, namespace: &str, workload: &str) -> Option<Self> {
        if index >= INDEX_LIMIT {
            return None;
        }
        let full = format!("kat-{namespace}-{workload}");
        let clash_free = !namespace.contains('-');
        let name = if full.len() <= 31 && clash_free {
            full
        } else {
            let head: String = workload.chars().take(18).collect();
            format!("kat-{}_i{index}", head.trim_end_matches('-'))
        };
        Some(Self {
            index,
            name,
            uid: USER_BASE + index,
            subordinate_start: SUBORDINATE_BASE + SUBORDINATE_COUNT * index,
            subordinate_count: SUBORDINATE_COUNT,
        })
    }
}

/// The slots of DaemonServices begin here, each bound to a machine. A Service has at most 1000 slots,
/// and a run of a Job 10000.
pub const FIRST_MACHINE_SLOT: u32 = 10_000;

/// The name of a replica that has volumes of its own, below the name of its workload.
pub fn replica_name(workload: &str, slot: u32) -> String {
    format!("{workload}-{slot}")
}

/// Whether a slot is bound to a machine. Its volumes are those of that machine.
pub fn is_machine_slot(slot: u32) -> bool {
    slot >= FIRST_MACHINE_SLOT
}

impl Assignment {
    /// Whether its replica has a name that stays, [`replica_name`]: it has volumes of its own, and is not
    /// bound to a machine, by whose name it would be found.
    pub fn has_replica_name(&self) -> bool {
        let mut volumes = self.volumes.iter();
        !is_machine_slot(self.slot) && volumes.any(|volume| volume.definition.per_replica)
    }

    /// Name of the quadlet's service, `kat-<namespace>-<instance>.service`.
    pub fn unit(&self) -> String {
        unit_name(&self.namespace, &self.instance)
    }

    /// Time for which it is out of DNS and service addresses before its stop signal; zero for a
    /// Job, which has no callers.
    pub fn drain(&self) -> Duration {
        let seconds = match self.workload_type {
            WorkloadType::Service | WorkloadType::DaemonService => self.container.drain_seconds,
            WorkloadType::Job => 0,
        };
        Duration::from_secs(seconds.into())
    }

    /// Whether it may change data that outlives it. No other instance may have that data meanwhile,
    /// and after a boot its machine waits until the store has confirmed the list before it starts
    /// the instance (ARCHITECTURE.md, invariant 11).
    pub fn writes_data(&self) -> bool {
        let mut volumes = self.volumes.iter().map(|volume| &volume.definition);
        volumes.any(|volume| volume.keeps_data() && self.together().writes_to(&volume.name))
    }

    /// Whether it is an instance of a Job, which runs once: an end of it is an end for good, and it is
    /// never started again after the machine or its user's manager ended it.
    pub fn runs_once(&self) -> bool {
        self.workload_type == WorkloadType::Job
    }

    /// Whether it has to end before its successor starts.
    pub fn stops_first(&self) -> bool {
        self.writes_data() || self.together().has_machine_things()
    }

    /// Whether its machine checks before each start after a boot that the instance's place is
    /// confirmed, and that it may use what belongs to the machine: mounted paths, devices, groups,
    /// the network, less confinement.
    pub fn asks_first(&self) -> bool {
        let mut volumes = self.volumes.iter();
        self.stops_first()
            || volumes.any(|volume| volume.definition.host_mount.is_some())
            || !self.security_wants().is_empty()
    }

    /// What its containers need beyond Podman's own confinement: see [`Container::security_wants`].
    pub fn security_wants(&self) -> BTreeSet<String> {
        let others = self.others().map(|(_, one)| one);
        let all = std::iter::once(&self.container).chain(others);
        all.flat_map(Container::security_wants).collect()
    }

    /// Identifies the carried files: 32 hexadecimal digits of the text's hash.
    pub fn carried_digest(&self) -> Option<String> {
        let carried = self.carried.as_ref()?;
        Some(sha256_prefix_hex(carried.as_bytes(), 16))
    }

    /// Whether it has to run here, and this version understands it.
    pub fn is_run(&self) -> bool {
        self.wanted == DesiredRun::Running && self.not_understood.is_none()
    }

    /// Whether it has to run here, now or once its predecessor has ended, and this version
    /// understands it.
    pub fn will_run(&self) -> bool {
        self.wanted != DesiredRun::Stopped && self.not_understood.is_none()
    }
}

/// Name of the service that runs an instance.
pub fn unit_name(namespace: &str, instance: &str) -> String {
    format!("kat-{namespace}-{instance}.service")
}

/// `/kat/nodes/desired/{node}/meta`: confirms a list of assignments, an empty one too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredMeta {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Counts every change of the list.
    pub revision: u64,
    /// Number of assignments in the list.
    pub count: usize,
    /// When the list was last changed, by the clock of the machine that led; `None` in a list that an
    /// older version wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<Timestamp>,
}

/// Whether a volume of the assignment lies in `volume`, which a machine sends or receives.
pub fn is_assigned(assignment: &Assignment, volume: &str) -> bool {
    let mut folders = assignment.volumes.iter().flat_map(|one| &one.folder);
    folders.any(|folder| folder == volume)
}
