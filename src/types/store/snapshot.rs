//! The stored state at one revision, and the agents' reports: the input of the leader's decisions,
//! and what the API's answers are made from.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use ipnet::Ipv4Net;

use crate::{
    api::{Event, NodeReport, Reach, StoreEpoch},
    assignment::{Assignment, DesiredMeta},
    encoding::json::NotEncoded,
    images::KeptImages,
    registry::{LoginPlace, LoginRecord, RegistrySettings},
    resource::{ClusterConfiguration, JobSpec, VirtualLoadBalancer, Workload},
    secrets::{SealingKeyRecord, SecretKey, SecretRecord},
    services::{HostPortNumbers, NamespaceNetwork, ServiceAccess, ServiceAddress, ServiceBalance},
    store::{
        acme::{
            AcmeAccountRecord, AcmeChallengeRecord, AcmeDnsRecord, AcmeNewOrdersRecord,
            AcmeOrderRecord,
        },
        authorities::AuthorityRecord,
        configuration::ConfigurationRecord,
        ingress::{
            AssignedRoutes, IngressAuthorityRecord, IngressCertificateRecord, IngressRenewalRecord,
            IngressStickyRecord, OutsideRoute,
        },
        jobs::{JobRunRecord, JobStateRecord},
        members::{ClusterEndpoints, ClusterMembers},
        records::{
            Allocation, BackupRecord, GenerationRecord, ImageRecord, IndexRecord, LastIndex,
            NamespaceRecord, NodeRegistration, NodeStatusRecord, TokenRecord, VolumeRecord,
            WorkloadMeta, WorkloadStatusRecord,
        },
        revisions::{Stored, WorkloadKey},
        transaction::KeyValue,
        visibility::VisibleBytes,
    },
    virtual_addresses::VirtualAddressRecord,
    volumes::{MoveRecord, RemovalRecord, VolumeKey},
};

/// A workload as stored.
#[derive(Debug, Clone)]
pub struct WorkloadEntry {
    /// Generation, hashes, index.
    pub meta: Stored<WorkloadMeta>,
    /// The parsed files; the error says why a stored file can't be read any more.
    pub parsed: Result<Arc<ParsedWorkload>, String>,
    /// The files as written, by name, each with its revision.
    pub files: BTreeMap<String, Stored<Arc<str>>>,
    /// Status as the leader last wrote it.
    pub status: Option<Stored<WorkloadStatusRecord>>,
    /// The kept generations, including the present one.
    pub archive: BTreeMap<u64, ArchivedGeneration>,
    /// The last version that was wholly healthy, for a workload that is paused and whose present
    /// version never was.
    pub earlier: Option<EarlierVersion>,
}

/// A version that is not the present one.
#[derive(Debug, Clone)]
pub struct EarlierVersion {
    /// The generation that has it.
    pub generation: u64,
    /// Hash of everything that decides about the units.
    pub template_hash: String,
    /// Its parsed files.
    pub parsed: Arc<ParsedWorkload>,
    /// What the registry answered about its image.
    pub image: ImageRecord,
}

/// One kept generation of a workload.
#[derive(Debug, Clone, Default)]
pub struct ArchivedGeneration {
    /// How the generation came to be; `None` for one that was kept before this record existed.
    pub record: Option<GenerationRecord>,
    /// The files as they were written, by name; shared with the store's copy.
    pub files: BTreeMap<String, Arc<KeyValue>>,
    /// The version of the reader of stored files that the files need for what the workload's present
    /// files do not need already. Known of the generation alone to which an automatic rollback
    /// returns.
    pub needed_reader: Option<u32>,
}

/// The parsed files of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedWorkload {
    /// `workload.kat`.
    pub workload: Workload,
    /// `VirtualLoadBalancer.kat`, with the ports that `workload.kat` may have.
    pub load_balancer: Option<VirtualLoadBalancer>,
    /// `spec` of `job.kat`.
    pub job: Option<JobSpec>,
    /// The ports are written in `workload.kat`.
    pub ports_in_workload: bool,
    /// The version of the reader of stored files that the files need, 1 at least.
    pub needed_reader: u32,
    /// The files that its volumes mount, as one text.
    pub carried: Option<Arc<str>>,
    /// Bytes of the least assignment of it, computed on first use: files of a mebibyte take
    /// milliseconds.
    pub least_assignment: EncodedSize,
}

impl ParsedWorkload {
    /// The files, not measured yet.
    pub fn new(
        workload: Workload,
        load_balancer: Option<VirtualLoadBalancer>,
        carried: Option<Arc<str>>,
    ) -> Self {
        Self {
            workload,
            load_balancer,
            job: None,
            ports_in_workload: false,
            needed_reader: 1,
            carried,
            least_assignment: EncodedSize::default(),
        }
    }

    /// The file that has the ports.
    pub fn ports_file(&self) -> &'static str {
        match self.ports_in_workload {
            true => "workload.kat",
            false => "VirtualLoadBalancer.kat",
        }
    }
}

/// A value that is derived from the fields beside it, and so makes no difference between two of
/// them.
#[derive(Debug, Default)]
pub struct EncodedSize(OnceLock<Result<usize, NotEncoded>>);

impl EncodedSize {
    /// The bytes, measured by `measure` on the first call.
    pub fn get_or_measure(
        &self,
        measure: impl FnOnce() -> Result<usize, NotEncoded>,
    ) -> Result<usize, NotEncoded> {
        self.0.get_or_init(measure).clone()
    }
}

impl Clone for EncodedSize {
    /// The copy may be changed, so it measures anew.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for EncodedSize {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for EncodedSize {}

/// A machine as stored.
#[derive(Debug, Clone)]
pub struct NodeEntry {
    /// Identity, addresses, labels and decisions of users.
    pub registration: Stored<NodeRegistration>,
    /// Status as the leader last wrote it.
    pub status: Option<Stored<NodeStatusRecord>>,
    /// Its subnet of the overlay.
    pub subnet: Option<Ipv4Net>,
    /// WireGuard's public key, base64.
    pub public_key: Option<String>,
    /// `host:port` of its WireGuard.
    pub endpoints: Vec<String>,
    /// How it is reached besides its addresses.
    pub reach: Reach,
    /// Meta of its list of assignments, which the agent confirms.
    pub desired: Stored<DesiredMeta>,
}

/// An assignment as stored.
#[derive(Debug, Clone)]
pub struct InstanceEntry {
    /// Name of its machine.
    pub node: String,
    /// Revision of the store at which the entry was created.
    pub created_revision: i64,
    /// The desired state of one instance.
    pub assignment: Stored<Arc<Assignment>>,
}

/// What is stored of a service.
#[derive(Debug, Clone, Default)]
pub struct ServiceEntry {
    /// Its address.
    pub address: Option<Stored<ServiceAddress>>,
    /// Its ports and the instances behind them.
    pub balance: Option<Stored<ServiceBalance>>,
    /// The numbers assigned for `hostPort: auto`.
    pub numbers: Option<Stored<HostPortNumbers>>,
    /// The other namespaces that may reach it.
    pub access: Option<Stored<ServiceAccess>>,
}

/// What is stored of a Job's schedule and runs.
#[derive(Debug, Clone, Default)]
pub struct JobEntry {
    /// What of its schedule is decided.
    pub state: Option<Stored<JobStateRecord>>,
    /// Its runs by the last part of their keys.
    pub runs: BTreeMap<String, Stored<Arc<JobRunRecord>>>,
}

/// A candidate of the leaders' election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectionCandidate {
    /// Its key in the store.
    pub key: String,
    /// Revision at which the key was created.
    pub create_revision: i64,
    /// Name of its machine.
    pub candidate: String,
}

/// The stored state at one revision.
#[derive(Debug, Clone, Default)]
pub struct StoredState {
    /// Revision of the store that this shows.
    pub revision: i64,
    /// Revision at which a leader's plan was last written; 0 before the first.
    pub planned: i64,
    /// Generated at init.
    pub cluster_uid: String,
    /// The configuration by which leaders go. Its `nodeLossTimeoutSeconds` is never less than that of
    /// any machine: a lower one is taken over when every machine has confirmed it.
    pub cluster: ClusterConfiguration,
    /// Revision at which `cluster` was last written.
    pub cluster_revision: i64,
    /// The configuration that users want and machines follow; `None` while it is that of init, and if
    /// this version can't read it.
    pub wanted: Option<Stored<ConfigurationRecord>>,
    /// Revision at which the key of `wanted` was last written; 0 while it is that of init.
    pub wanted_revision: i64,
    /// The configurations before the present one, by number.
    pub earlier_configurations: BTreeMap<u64, ConfigurationRecord>,
    /// `host:port` of the leader's API.
    pub leader_endpoint: Option<String>,
    /// Name of the leading machine; `None` if a leader of version 0.1.0 wrote the endpoint.
    pub leader_name: Option<String>,
    /// Endpoints of machines, as last written.
    pub endpoints: Option<Stored<ClusterEndpoints>>,
    /// etcd's members, as the leader last saw them.
    pub members: Option<Stored<ClusterMembers>>,
    /// How often the store was started anew.
    pub store_epoch: Option<Stored<StoreEpoch>>,
    /// Records of etcd's authorities, by the names of the authorities' files.
    pub authorities: BTreeMap<String, Stored<AuthorityRecord>>,
    /// Names of authorities whose record this version can't read.
    pub unread_authorities: BTreeSet<String>,
    /// Status of the leader's backups.
    pub backup: Option<Stored<BackupRecord>>,
    /// Candidates of the election; the leader comes first.
    pub election: Vec<ElectionCandidate>,
    /// Revision at which a subnet was last assigned.
    pub overlay_revision: i64,
    /// Namespaces by name.
    pub namespaces: BTreeMap<String, Stored<NamespaceRecord>>,
    /// Machines by name.
    pub nodes: BTreeMap<String, NodeEntry>,
    /// Workloads by namespace and name.
    pub workloads: BTreeMap<WorkloadKey, Arc<WorkloadEntry>>,
    /// Assignments by instance.
    pub instances: BTreeMap<String, InstanceEntry>,
    /// What machines know of namespaces, by name.
    pub network_namespaces: BTreeMap<String, Stored<NamespaceNetwork>>,
    /// Addresses by instance, also of instances that are gone.
    pub allocations: BTreeMap<String, Stored<Allocation>>,
    /// Service addresses, what is behind them, and host port numbers.
    pub services: BTreeMap<WorkloadKey, ServiceEntry>,
    /// Which machine is to hold each virtual address.
    pub virtual_addresses: BTreeMap<IpAddr, Stored<VirtualAddressRecord>>,
    /// Where the data of volumes lies.
    pub volumes: BTreeMap<VolumeKey, Stored<VolumeRecord>>,
    /// By machine, the volumes whose data it has to remove.
    pub removals: BTreeMap<String, BTreeMap<VolumeKey, RemovalRecord>>,
    /// Secrets, sealed.
    pub secrets: BTreeMap<SecretKey, Stored<Arc<SecretRecord>>>,
    /// Credentials for registries, by namespace and what they are for.
    pub logins: BTreeMap<String, BTreeMap<LoginPlace, Stored<LoginRecord>>>,
    /// Number of secrets, credentials and data keys that this version can't read; no data key is
    /// deleted, and no recovery key forgotten, while there are any.
    pub unread_secrets: usize,
    /// The data keys that seal secrets and credentials, by number.
    pub sealing_keys: BTreeMap<u64, Stored<SealingKeyRecord>>,
    /// By machine, the volumes that it has to send or receive.
    pub moves: BTreeMap<String, BTreeMap<VolumeKey, MoveRecord>>,
    /// By machine, the images that it has to keep besides those of its instances.
    pub kept_images: BTreeMap<String, Stored<KeptImages>>,
    /// By machine, the routes that it serves, by workload.
    pub routes: BTreeMap<String, BTreeMap<WorkloadKey, Stored<Arc<AssignedRoutes>>>>,
    /// KAT's own authority for ingress; `None` before the first certificate of it.
    pub ingress_authority: Option<Stored<Arc<IngressAuthorityRecord>>>,
    /// Certificates that the leader issued or ordered, by host.
    pub ingress_certificates: BTreeMap<String, Stored<Arc<IngressCertificateRecord>>>,
    /// The round that certificates of that authority have to be of.
    pub ingress_renewal: Option<Stored<IngressRenewalRecord>>,
    /// The key of the cookies of sticky routes; `None` before the first such route.
    pub ingress_sticky: Option<Stored<Arc<IngressStickyRecord>>>,
    /// Routes to something outside KAT, by host and path.
    pub outside_routes: BTreeMap<String, Stored<Arc<OutsideRoute>>>,
    /// Number of those that can't be read: what machines serve of them stays.
    pub unread_outside_routes: usize,
    /// Accounts at ACME servers, by id.
    pub acme_accounts: BTreeMap<String, Stored<Arc<AcmeAccountRecord>>>,
    /// Orders of certificates by ACME, by host.
    pub acme_orders: BTreeMap<String, Stored<Arc<AcmeOrderRecord>>>,
    /// Hosts whose order, and ids of accounts that this version can't read.
    pub unread_acme: BTreeSet<String>,
    /// Answers to challenges, by token.
    pub acme_challenges: BTreeMap<String, Stored<AcmeChallengeRecord>>,
    /// Records of DNS that answer challenges, by their text.
    pub acme_dns: BTreeMap<String, Stored<AcmeDnsRecord>>,
    /// How many new certificates were ordered lately, by namespace.
    pub acme_new_orders: BTreeMap<String, Stored<AcmeNewOrdersRecord>>,
    /// Revision at which somebody last got or gave up a host, an alias, or ports 80 and 443; 0 before the
    /// first time.
    pub claims_revision: i64,
    /// Schedules and runs of Jobs.
    pub jobs: BTreeMap<WorkloadKey, JobEntry>,
    /// Owners of workload indexes.
    pub indexes: BTreeMap<u32, Stored<IndexRecord>>,
    /// The index that was assigned last.
    pub last_index: Option<Stored<LastIndex>>,
    /// DNS keys (whole paths), each with its revision.
    pub dns: BTreeMap<String, i64>,
    /// How registries are reached.
    pub registries: Option<Stored<RegistrySettings>>,
    /// Tokens by id.
    pub tokens: BTreeMap<String, Stored<TokenRecord>>,
    /// Sizes of what machines see of the store.
    pub visible: VisibleBytes,
    /// Events by id, oldest first.
    pub events: BTreeMap<String, Stored<Arc<Event>>>,
}

impl StoredState {
    /// Whether a later version has written a wanted configuration that this one can't read.
    pub fn wanted_is_unread(&self) -> bool {
        self.wanted.is_none() && self.wanted_revision != 0
    }

    /// The configuration that users want and machines follow; that of leaders, whose
    /// `nodeLossTimeoutSeconds` may be higher, where it can't be read.
    pub fn wanted_cluster(&self) -> &ClusterConfiguration {
        let wanted = self.wanted.as_ref();
        wanted.map_or(&self.cluster, |stored| &stored.value.configuration)
    }

    /// The assignments of one workload, in the order of their ids.
    pub fn instances_of<'a>(
        &'a self,
        key: &'a WorkloadKey,
    ) -> impl Iterator<Item = (&'a String, &'a InstanceEntry)> {
        self.instances.iter().filter(move |(_, entry)| {
            entry.assignment.value.namespace == key.namespace
                && entry.assignment.value.workload == key.name
        })
    }

    /// The instance that the address is allocated to.
    pub fn owner_of(&self, address: Ipv4Addr) -> Option<&str> {
        self.allocations
            .iter()
            .find(|(_, stored)| stored.value.address == address && !stored.value.released)
            .map(|(instance, _)| instance.as_str())
    }
}

/// What the agents last reported; in the leader's memory only (ARCHITECTURE.md, invariant 3).
#[derive(Debug, Clone, Default)]
pub struct ObservedReports {
    /// How long this leader has led: a machine that has not reported to it yet gets a full timeout.
    pub leading_for: Duration,
    /// Reports by machine, without those from before this leadership: another leader may have had
    /// newer ones.
    pub reports: BTreeMap<String, ReportedNode>,
}

/// The last report of a machine.
#[derive(Debug, Clone)]
pub struct ReportedNode {
    /// Time since it arrived, by the leader's monotonic clock.
    pub age: Duration,
    /// For how long the machine's reports have come without a gap: at least `age`.
    pub steady: Duration,
    /// The report.
    pub report: Arc<NodeReport>,
}
