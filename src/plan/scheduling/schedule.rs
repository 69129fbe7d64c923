//! Choice of a machine for an instance (RFC001-KAT 4.4): filters, scores, ties broken by a seed.

use std::collections::{BTreeMap, BTreeSet};

use super::{gpus, host_ports, spread::SpreadDomains};
use crate::{
    HOST_PORT_DATA_PATH, SOURCES_DATA_PATH, VolumePlacement,
    rollout::{Strategy, in_place, replicas},
};
use kat_types::{
    api::{NodePhase, Taint},
    assignment::{needed_schema, needs_crun},
    encoding::state_frames::MOST_LIST,
    machine::gpu::GpuDevice,
    resource::{
        Bytes, MilliCpu, Port, Protocol, ResourceList, Resources, TaintEffect, Toleration,
        TolerationOperator, WorkloadSpec, WorkloadType,
    },
    store::{records::ImageRecord, revisions::WorkloadKey},
};

/// A machine as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineCandidate<'a> {
    pub name: &'a str,
    /// Only Ready machines are considered.
    pub phase: NodePhase,
    /// It is being drained.
    pub draining: bool,
    pub labels: &'a BTreeMap<String, String>,
    pub taints: &'a [Taint],
    /// Resources that workloads may use.
    pub allocatable: ResourceList,
    /// Sum of the requests of live instances on it.
    pub requested: RequestedResources,
    /// Host ports of the machine, and ports of instances on its network, each with its workload.
    pub host_ports: BTreeMap<(u16, Protocol), WorkloadKey>,
    /// Instances of the same workload on it that are not being stopped.
    pub staying: u32,
    /// It has an instance of a workload that must not share a machine with this one.
    pub repelled: bool,
    /// It has no instance of a workload that must share a machine with this one.
    pub lonely: bool,
    /// Its subnet has a free address.
    pub has_address: bool,
    /// Highest schema of an assignment that its agent understands.
    pub assignment_schema: u32,
    /// Version of its data path, `packaging/data-path`.
    pub data_path: u32,
    /// `amd64`, `arm64` ...
    pub architecture: &'a str,
    /// It has the shared volume base path.
    pub volume_shared: bool,
    /// Containers may use its network.
    pub host_network: bool,
    /// Podman uses another container runtime than crun there.
    pub lacks_crun: bool,
    /// Indexes of workload users whose ids another account has there.
    pub foreign_indexes: Vec<u32>,
    /// It does not answer most other machines over the overlay.
    pub unreachable: bool,
    /// It says that it starts nothing at present, or does not follow the cluster.
    pub cannot_start: bool,
    /// It is short of disk space.
    pub disk_pressure: bool,
    /// Bytes of what it sees of the store, with its assignments.
    pub visible_bytes: usize,
    /// Its GPUs, as it reports them.
    pub gpus: Vec<GpuDevice>,
    /// Ids of the instances that have each of its GPUs, by the GPU's name. A prepared instance may be a
    /// second one.
    pub gpu_holders: BTreeMap<String, BTreeSet<String>>,
}

/// What an instance needs from its machine.
#[derive(Debug, Clone, Copy)]
pub struct InstanceDemand<'a> {
    /// Spec of its workload.
    pub spec: &'a WorkloadSpec,
    /// Requests of its containers without their own.
    pub default_requests: ResourceList,
    /// Its ports, with numbers; no other workload may have its host ports on the machine.
    pub ports: &'a [Port],
    /// The present files open a host port of its workload to some addresses alone. They hold for an
    /// instance of an earlier version too, whose own ports do not say so.
    pub restricted: bool,
    /// Its workload.
    pub workload: Option<&'a WorkloadKey>,
    /// Index of its workload's user.
    pub index: Option<u32>,
    /// It runs with crun only.
    pub needs_crun: bool,
    /// Machines of instances that it replaces, and of instances that are being stopped: these do
    /// not count as staying.
    pub replaces: &'a [&'a str],
    /// What is known of its images; used for their architectures.
    pub images: Option<&'a ImageRecord>,
    /// Lowest assignment schema that the agent must understand.
    pub schema: u32,
    /// Machines that the data of its volumes allows.
    pub held: VolumePlacement<'a>,
    /// The machine that its slot is bound to, which matches its workload. Without one, any machine
    /// that matches will do.
    pub bound: Option<&'a str>,
    /// The instance that it replaces failed or lost its machine: it may go to a machine that is
    /// short of disk space if no other one is left.
    pub last_resort: bool,
}

impl<'a> InstanceDemand<'a> {
    /// The demand of a workload without ports, for an instance that replaces none.
    pub fn of(spec: &'a WorkloadSpec) -> Self {
        Self {
            spec,
            default_requests: ResourceList::default(),
            ports: &[],
            restricted: false,
            workload: None,
            index: None,
            needs_crun: needs_crun(spec, None),
            replaces: &[],
            images: None,
            schema: needed_schema(spec, None),
            held: VolumePlacement::default(),
            bound: None,
            last_resort: false,
        }
    }

    /// Number of instances of the same workload that stay on a machine beside this one.
    pub(crate) fn staying(&self, candidate: &MachineCandidate<'_>) -> u32 {
        let leaving = self.replaces.iter();
        let leaving = leaving.filter(|node| **node == candidate.name).count();
        let leaving = u32::try_from(leaving).unwrap_or(u32::MAX);
        candidate.staying.saturating_sub(leaving)
    }
}

/// A sum of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestedResources {
    pub cpu: MilliCpu,
    pub memory: Bytes,
}

impl RequestedResources {
    /// Adds the CPU and memory requests of one more instance.
    pub fn add(&mut self, requests: ResourceList) {
        self.cpu.0 = self
            .cpu
            .0
            .saturating_add(requests.cpu.unwrap_or_default().0);
        self.memory.0 = self
            .memory
            .0
            .saturating_add(requests.memory.unwrap_or_default().0);
    }

    /// Adds the requests of one more instance. Its GPU is assigned by name
    /// ([`MachineCandidate::gpu_holders`]).
    pub fn add_all(&mut self, resources: &Resources) {
        self.add(resources.effective_requests());
    }

    /// The requests of one instance.
    pub fn of(resources: &Resources) -> Self {
        let mut sum = Self::default();
        sum.add_all(resources);
        sum
    }

    /// Each sum of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// What each sum exceeds the other's by.
    pub(crate) fn beyond(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            cpu: MilliCpu(join(self.cpu.0, other.cpu.0)),
            memory: Bytes(join(self.memory.0, other.memory.0)),
        }
    }
}

/// Maximum number of host ports, and of machines for each port, in the message.
const NAMED: usize = 3;

/// Why no machine was found: how many machines each filter excluded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unschedulable {
    /// The only machine that the instance may run on.
    pub bound: Option<String>,
    /// Number of the machines that it may run on.
    pub machines: usize,
    /// Excluded machines by reason; each counts for the first filter that excluded it.
    pub excluded: BTreeMap<&'static str, usize>,
    /// Taken host ports with their workloads, and the machines where they are taken.
    pub taken: BTreeMap<String, Vec<String>>,
    /// Resources of which machines have less left than is asked for.
    pub short: BTreeMap<ShortResource, ResourceShortage>,
}

/// A resource of which a machine may have too little left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShortResource {
    /// Amounts are thousandths of a processor.
    Processor,
    /// Amounts are bytes.
    Memory,
}

/// Amounts of a resource of which machines have too little left. What is free is not among them: the
/// message is stored, and would be written anew with each placement of any workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceShortage {
    /// What one instance asks for.
    pub asked: u64,
    /// The most that any machine has for workloads, without the requests of instances on it.
    pub largest: u64,
}

impl ShortResource {
    fn word(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::Memory => "memory",
        }
    }

    /// As a user writes it.
    fn exact(self, amount: u64) -> String {
        match self {
            Self::Processor => MilliCpu(amount).to_string(),
            Self::Memory => Bytes(amount).to_string(),
        }
    }

    fn rounded(self, amount: u64) -> String {
        match self {
            Self::Processor => MilliCpu(amount).to_string(),
            Self::Memory => Bytes(amount).rounded(),
        }
    }

    fn asked(self, requests: ResourceList) -> u64 {
        match self {
            Self::Processor => requests.cpu.unwrap_or_default().0,
            Self::Memory => requests.memory.unwrap_or_default().0,
        }
    }

    fn allocatable(self, candidate: &MachineCandidate<'_>) -> u64 {
        match self {
            Self::Processor => candidate.allocatable.cpu.unwrap_or_default().0,
            Self::Memory => candidate.allocatable.memory.unwrap_or_default().0,
        }
    }

    /// What no instance has requested of the machine.
    fn free(self, candidate: &MachineCandidate<'_>) -> u64 {
        let requested = match self {
            Self::Processor => candidate.requested.cpu.0,
            Self::Memory => candidate.requested.memory.0,
        };
        self.allocatable(candidate).saturating_sub(requested)
    }
}

impl Unschedulable {
    /// Notes the amounts of each resource of which machines have too little left.
    fn add_shortages(&mut self, requests: ResourceList, candidates: &[MachineCandidate<'_>]) {
        let resources = [
            (NO_PROCESSOR, ShortResource::Processor),
            (NO_MEMORY, ShortResource::Memory),
        ];
        for (reason, resource) in resources {
            if self.excluded.contains_key(reason) {
                let all = candidates.iter();
                let largest = all.map(|candidate| resource.allocatable(candidate)).max();
                let shortage = ResourceShortage {
                    asked: resource.asked(requests),
                    largest: largest.unwrap_or(0),
                };
                self.short.insert(resource, shortage);
            }
        }
    }
}

/// The reason where there is no machine that a filter could exclude.
const NO_MACHINE: &str = "no machine yet";

impl Unschedulable {
    /// What excluded at least one machine.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = &'static str> {
        let none = self.excluded.is_empty().then_some(NO_MACHINE);
        self.excluded.keys().copied().chain(none)
    }
}

impl std::fmt::Display for Unschedulable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.bound {
            Some(node) => write!(formatter, "{node} does not fit: ")?,
            None if self.machines == 0 => {
                return write!(formatter, "the cluster has no machine yet");
            }
            None => write!(formatter, "0 of {} machines fit: ", self.machines)?,
        }
        let parts: Vec<_> = self
            .excluded
            .iter()
            .map(|(reason, count)| match self.bound {
                Some(_) => (*reason).to_owned(),
                None => format!("{count} {reason}"),
            })
            .collect();
        write!(formatter, "{}", parts.join(", "))?;
        for (what, nodes) in self.taken.iter().take(NAMED) {
            let named: Vec<&str> = nodes.iter().take(NAMED).map(String::as_str).collect();
            write!(formatter, "; {what} on {}", named.join(", "))?;
            match nodes.len().saturating_sub(NAMED) {
                0 => {}
                more => write!(formatter, " and {more} more")?,
            }
        }
        for (resource, ResourceShortage { asked, largest }) in &self.short {
            let exact = resource.exact(*asked);
            write!(formatter, "; {}: asks {exact}", resource.word())?;
            if largest < asked {
                let largest = resource.rounded(*largest);
                write!(formatter, ", the largest machine has {largest} in all")?;
            }
        }
        Ok(())
    }
}

/// Bytes of what a machine sees of the store above which no more instances come to it, so that its
/// list fits into its state stream. The difference is for one more assignment
/// ([`crate::MAX_ASSIGNMENT`]), and for what grows without a placement: names and services of
/// instances elsewhere, and new values of secrets.
const MOST_VISIBLE: usize = MOST_LIST - (8 << 20);

/// Another workload has the host port on the machine.
const PORT_TAKEN: &str = "with a host port that is taken";
/// The machine has no address for an instance of the namespace.
pub(crate) const NO_ADDRESS: &str = "without a free address";
const NO_PROCESSOR: &str = "without enough processor left";
const NO_MEMORY: &str = "without enough memory left";

/// Chooses a machine and returns its name. The same input and seed give the same machine.
pub fn choose<'a>(
    demand: InstanceDemand<'_>,
    candidates: &[MachineCandidate<'a>],
    seed: u64,
) -> Result<&'a str, Unschedulable> {
    let spec = demand.spec;
    let filled = spec.with_default_requests(demand.default_requests);
    let requests = filled.together().resources.effective_requests();
    // A slot that is bound to a machine is not distributed.
    let domains = match demand.bound {
        Some(_) => None,
        None => SpreadDomains::new(demand, candidates),
    };
    let is_possible =
        |candidate: &&MachineCandidate<'_>| demand.bound.is_none_or(|node| node == candidate.name);
    let possible = || candidates.iter().filter(is_possible);
    let mut failure = Unschedulable {
        bound: demand.bound.map(str::to_owned),
        machines: possible().count(),
        ..Unschedulable::default()
    };
    let mut fitting = Vec::new();
    for candidate in possible() {
        let excluded = unsuitable(demand, candidate)
            .or_else(|| foreign(demand, candidate))
            .or_else(|| short_of_disk(demand, candidate))
            .or_else(|| full(demand, requests, candidate))
            .or_else(|| domains.as_ref()?.exclusion(candidate));
        match excluded {
            Some(reason) => {
                *failure.excluded.entry(reason).or_default() += 1;
                if reason == PORT_TAKEN
                    && let Some(what) = host_ports::taken(demand, candidate)
                {
                    let nodes = failure.taken.entry(what).or_default();
                    nodes.push(candidate.name.to_owned());
                }
            }
            None => fitting.push(candidate),
        }
    }
    let best = fitting.into_iter().min_by_key(|candidate| {
        (
            candidate.unreachable || candidate.cannot_start,
            candidate.disk_pressure,
            dislikes(spec, candidate),
            domains.as_ref().map(|domains| domains.count(candidate)),
            // The loss of one machine is to cost as few replicas as possible, so they spread even
            // where one machine is emptier than all others.
            demand.staying(candidate),
            std::cmp::Reverse(score(candidate, requests)),
            tie_break(seed, candidate.name),
        )
    });
    best.map(|candidate| candidate.name).ok_or_else(|| {
        failure.add_shortages(requests, candidates);
        failure
    })
}

/// Why an instance of this workload must not run on a machine, however empty it is.
pub(crate) fn unsuitable(
    demand: InstanceDemand<'_>,
    candidate: &MachineCandidate<'_>,
) -> Option<&'static str> {
    let spec = demand.spec;
    if candidate.draining {
        return Some("being drained");
    }
    if candidate.phase != NodePhase::Ready {
        return Some("not ready");
    }
    if demand.held.on.is_some_and(|node| node != candidate.name) {
        return Some("without its data");
    }
    if demand.held.shared && !candidate.volume_shared {
        return Some("without the shared volumes");
    }
    if candidate.assignment_schema < demand.schema {
        return Some("with a version of KAT that is too old for it");
    }
    if candidate.data_path < HOST_PORT_DATA_PATH && host_ports::has_host_ports(demand.ports) {
        return Some("whose kat-net is too old for host ports");
    }
    let restricted = match demand.restricted {
        true => host_ports::has_host_ports(demand.ports),
        false => host_ports::has_allowed_sources(demand.ports),
    };
    if candidate.data_path < SOURCES_DATA_PATH && restricted {
        return Some("whose kat-net is too old for allowSources of host ports");
    }
    if demand.needs_crun && candidate.lacks_crun {
        return Some("without crun, which its groups or its health check by a command need");
    }
    let taken = |index: u32| candidate.foreign_indexes.contains(&index);
    if demand.index.is_some_and(taken) {
        return Some("with an account of its own that has the ids of the workload's user");
    }
    if spec.container.host_network && !candidate.host_network {
        return Some("without hostNetworkAllow in /etc/kat/agent.yaml");
    }
    if !has_labels(spec, candidate.labels) {
        return Some("without the labels of nodeSelector");
    }
    // The taints of the machine of a bound slot are considered with the slot.
    if demand.bound.is_none() && !is_tolerated(spec, candidate.taints) {
        return Some("with a taint that is not tolerated");
    }
    gpus::missing(&spec.gpu()?, candidate)
}

/// Why a machine can't run one of the images.
pub(crate) fn foreign(
    demand: InstanceDemand<'_>,
    candidate: &MachineCandidate<'_>,
) -> Option<&'static str> {
    let known = demand.images?;
    let mut images = demand.spec.images();
    let foreign = images.any(|(image, _)| {
        let made_for = known.architectures_of(image);
        let any = made_for.is_empty() || candidate.architecture.is_empty();
        !any && !made_for.iter().any(|one| one == candidate.architecture)
    });
    foreign.then_some("of an architecture that the image is not made for")
}

/// Why no new instance comes to a machine that is short of disk space. As with a `NoSchedule`
/// taint, instances on it stay. Some instances come all the same: those of a DaemonService, those
/// whose data is there, those whose predecessor stops first, which else might have no place, and
/// those of lost predecessors. Other machines are preferred.
fn short_of_disk(
    demand: InstanceDemand<'_>,
    candidate: &MachineCandidate<'_>,
) -> Option<&'static str> {
    let spec = demand.spec;
    let has_to = spec.kind == WorkloadType::DaemonService
        || demand.held.on.is_some()
        || demand.last_resort
        || Strategy::of(spec, replicas(spec), in_place(spec)).stops_first;
    (candidate.disk_pressure && !has_to).then_some("short of disk space (DiskPressure)")
}

/// Why a machine has no room for one more instance.
fn full(
    demand: InstanceDemand<'_>,
    requests: ResourceList,
    candidate: &MachineCandidate<'_>,
) -> Option<&'static str> {
    let lacks = |resource: ShortResource| resource.free(candidate) < resource.asked(requests);
    if lacks(ShortResource::Processor) {
        return Some(NO_PROCESSOR);
    }
    if lacks(ShortResource::Memory) {
        return Some(NO_MEMORY);
    }
    if let Some(gpu) = demand.spec.gpu()
        && let Some(why) = gpus::none_free(&gpu, candidate)
    {
        return Some(why);
    }
    if candidate.visible_bytes > MOST_VISIBLE {
        return Some("whose list of assignments is full (64 MiB)");
    }
    let on_host = demand.spec.container.host_network;
    if !candidate.host_ports.is_empty() && host_ports::taken(demand, candidate).is_some() {
        return Some(PORT_TAKEN);
    }
    if on_host && demand.staying(candidate) > 0 {
        return Some("with another of its instances on the machine's network");
    }
    if candidate.lonely {
        return Some("without a workload of affinity");
    }
    if candidate.repelled {
        return Some("with a workload of antiAffinity");
    }
    if !candidate.has_address && !on_host {
        return Some(NO_ADDRESS);
    }
    None
}

/// Whether a machine with these labels matches the workload's nodeSelector.
pub(crate) fn has_labels(spec: &WorkloadSpec, labels: &BTreeMap<String, String>) -> bool {
    let mut wanted = spec.node_selector.iter();
    wanted.all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether new instances of the workload may be placed on a machine with these taints.
pub(crate) fn is_tolerated(spec: &WorkloadSpec, taints: &[Taint]) -> bool {
    untolerated(spec, taints, TaintEffect::NoSchedule) == 0
}

fn untolerated(spec: &WorkloadSpec, taints: &[Taint], effect: TaintEffect) -> usize {
    taints
        .iter()
        .filter(|taint| taint.effect == effect)
        .filter(|taint| {
            !spec
                .tolerations
                .iter()
                .any(|toleration| tolerates(toleration, taint))
        })
        .count()
}

/// Whether a toleration covers a taint (RFC001-KAT 3.2).
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration
        .effect
        .is_none_or(|effect| effect == taint.effect);
    let value = match toleration.operator {
        TolerationOperator::Exists => true,
        TolerationOperator::Equal => toleration.value.as_deref().unwrap_or_default() == taint.value,
    };
    toleration.key == taint.key && effect && value
}

fn dislikes(spec: &WorkloadSpec, candidate: &MachineCandidate<'_>) -> usize {
    untolerated(spec, candidate.taints, TaintEffect::PreferNoSchedule)
}

/// `(100 - cpu%) + (100 - memory%)` after placing, in thousandths (RFC001-KAT 4.4.5, the sum).
fn score(candidate: &MachineCandidate<'_>, requests: ResourceList) -> u64 {
    let mut after = candidate.requested;
    after.add(requests);
    free_share(candidate.allocatable.cpu.map(|cpu| cpu.0), after.cpu.0)
        + free_share(
            candidate.allocatable.memory.map(|memory| memory.0),
            after.memory.0,
        )
}

fn free_share(allocatable: Option<u64>, used: u64) -> u64 {
    let allocatable = allocatable.unwrap_or(0);
    let free = u128::from(allocatable.saturating_sub(used)) * 100_000;
    free.checked_div(u128::from(allocatable))
        .and_then(|share| u64::try_from(share).ok())
        .unwrap_or(0)
}

/// The seed of the choice for a slot: among equal machines, different slots and workloads prefer
/// different ones, and each slot always the same one, which has its image.
pub fn seed_of(seed: u64, workload_uid: &str, slot: u32) -> u64 {
    tie_break(seed ^ u64::from(slot), workload_uid)
}

/// A number that depends on seed and name only (splitmix64 over FNV-1a).
fn tie_break(seed: u64, name: &str) -> u64 {
    let hash = name
        .bytes()
        .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}
