//! A machine of the test world, with a model of the agent in `src/agent`.
//!
//! As in the agent, a new process starts with the list on its disk, looks at every instance before
//! its first report, and reports revision 0 until the store has confirmed a list. From then on it
//! also reports earlier accounts. A stopped instance is reported as stopped while it is assigned,
//! and a user's account is removed last, a while after its units.

use super::*;
use kat_agent::{DesiredState, desired};
use kat_types::{
    api::{
        BoundReport, BoundRun, Condition, FollowedConfiguration, ImagesRemoved, IngressReport,
        IsolationReport, MemberKeys, OverlayPeer, OverlayReport, OverlayStatus,
        VirtualAddressReport,
    },
    machine::gpu::GpuDevice,
    reason::Reason,
};

/// The progress of the agent's process after its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The workers have no list yet.
    Begun,
    /// The workers have the list on the disk.
    Alone,
    /// The workers have a list that the store confirmed.
    Confirmed,
}

/// Images with which no instance works.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BadImages<'i> {
    /// Their programs end with an error.
    pub(crate) failing: &'i BTreeSet<String>,
    /// They cannot be pulled.
    pub(crate) missing: &'i BTreeSet<String>,
    /// The programs of Jobs with them do not end.
    pub(crate) lasting: &'i BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Unit {
    index: u32,
    phase: InstancePhase,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Machine {
    pub(crate) uid: String,
    pub(crate) resources: ResourceList,
    /// The last report that the leader received, and its age.
    pub(crate) heard: Option<Arc<NodeReport>>,
    pub(crate) age: Duration,
    /// For how long its reports have come without a gap.
    pub(crate) steady: Duration,
    /// Whether reports reach the leader.
    pub(crate) speaks: bool,
    /// Whether the agent works.
    pub(crate) obeys: bool,
    /// Highest schema of an assignment that the agent understands; 0 if the agent does not report
    /// it.
    pub(crate) schema: u32,
    /// The number in the machine's `packaging/data-path`.
    pub(crate) data_path: u32,
    /// What the agent reports of isolation; its revision follows the store with the agent.
    pub(crate) isolation: Option<IsolationReport>,
    /// What its `kat-net` says of virtual addresses.
    pub(crate) virtual_addresses: Vec<VirtualAddressReport>,
    pub(crate) ingress: Option<IngressReport>,

    /// Whether the base path of volumes is shared storage.
    pub(crate) shared: bool,
    /// Whether containers may use the host network.
    pub(crate) host_network: bool,
    /// The container runtime that the agent reports.
    pub(crate) runtime: String,
    /// Indexes whose ids are another account's.
    pub(crate) foreign: BTreeSet<u32>,
    /// The GPUs that the agent reports.
    pub(crate) gpus: Vec<GpuDevice>,
    /// The agent's reports on the machine and on removed images.
    pub(crate) conditions: Vec<Condition>,
    pub(crate) images_removed: Option<ImagesRemoved>,
    /// Whether the machine's data path runs.
    pub(crate) overlay_status: OverlayStatus,
    /// Machines that have not answered this one over the overlay, each for so many seconds.
    pub(crate) unanswered: BTreeMap<String, u32>,
    /// Machines that this one has not asked, and whether it has a session with each.
    pub(crate) unasked: BTreeMap<String, bool>,
    /// Runs that the machine has begun by itself, and until when it has decided its times.
    pub(crate) bound_runs: Vec<BoundRun>,
    pub(crate) bound_handled: Option<Timestamp>,
    /// Instances that the agent has evicted because the disk ran full.
    pub(crate) evicted: BTreeSet<String>,
    /// Folders of volumes with data on the machine.
    pub(crate) data: BTreeSet<String>,
    /// A model of that data.
    pub(crate) carrying: volume_data_model::Carrying,
    /// Whether the disk of volumes is missing: the agent finds no data that it is to remove.
    pub(crate) lacks_disk: bool,
    /// Ids of the removals that the agent has performed, and of those whose data it does not find.
    removed: Vec<String>,
    missing: Vec<String>,

    /// Addresses and endpoints that the agent reports.
    pub(crate) advertise: Vec<IpAddr>,
    pub(crate) endpoints: Vec<String>,
    pub(crate) member_keys: MemberKeys,
    /// `None` in version 0.1.0.
    pub(crate) state_stream: Option<bool>,
    /// The cluster's configuration that the agent follows; `None` in earlier versions.
    pub(crate) configuration: Option<FollowedConfiguration>,

    /// The agent's reports on instances, and the indexes of users that still exist.
    pub(crate) instances: BTreeMap<String, InstanceReport>,
    pub(crate) users: BTreeSet<u32>,
    /// The revision of the confirmed list on which the agent acted.
    acted: u64,
    stage: Stage,
    /// The first report waits until the workers have looked at every instance.
    held: bool,
    /// Rounds until the first pass of the workers.
    late: u8,
    /// Users whose removal has begun.
    leaving: BTreeSet<u32>,

    /// State that outlives the agent's process: `desired.json`, units, and accounts with the uid of
    /// the workload for which they were created.
    disk: DesiredState,
    units: BTreeMap<String, Unit>,
    pub(crate) accounts: BTreeMap<u32, String>,
}

impl Machine {
    /// A machine after `init`, whose agent has confirmed an empty list.
    pub(crate) fn new(uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            resources: ResourceList {
                cpu: Some(MilliCpu(4000)),
                memory: Some(Bytes(8 * GIB)),
                storage: None,
            },
            heard: None,
            age: Duration::ZERO,
            steady: Duration::from_secs(3600),
            speaks: true,
            obeys: true,
            shared: false,
            host_network: false,
            runtime: String::new(),
            foreign: BTreeSet::new(),
            gpus: Vec::new(),
            conditions: Vec::new(),
            images_removed: None,
            overlay_status: OverlayStatus::Connected,
            unanswered: BTreeMap::new(),
            unasked: BTreeMap::new(),
            bound_runs: Vec::new(),
            bound_handled: None,
            evicted: BTreeSet::new(),
            data: BTreeSet::new(),
            carrying: volume_data_model::Carrying::default(),
            lacks_disk: false,
            removed: Vec::new(),
            missing: Vec::new(),
            advertise: Vec::new(),
            endpoints: Vec::new(),
            member_keys: MemberKeys::default(),
            state_stream: Some(true),
            configuration: None,
            schema: ASSIGNMENT_SCHEMA,
            data_path: HOST_PORT_DATA_PATH,
            isolation: None,
            virtual_addresses: Vec::new(),
            ingress: None,
            instances: BTreeMap::new(),
            users: BTreeSet::new(),
            acted: 1,
            stage: Stage::Confirmed,
            held: false,
            late: 0,
            leaving: BTreeSet::new(),
            disk: DesiredState {
                schema: 1,
                revision: 1,
                ..DesiredState::default()
            },
            units: BTreeMap::new(),
            accounts: BTreeMap::new(),
        }
    }

    /// Starts a new agent process. With `late` above 0, it sends its first report before its
    /// workers look at the instances, which they do that many rounds later.
    pub(crate) fn restart(&mut self, late: u8) {
        self.instances.clear();
        self.users.clear();
        self.carrying.said.clear();
        self.acted = 0;
        self.stage = Stage::Begun;
        self.held = late == 0;
        self.late = late;
        self.leaving.clear();
    }

    /// Running instances, whether or not the leader knows them.
    pub(crate) fn running(&self) -> Vec<String> {
        let units = self.units.iter();
        units
            .filter(|(_, unit)| unit.phase == InstancePhase::Running)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Ends instances with `onPartition: stop`, as the agent does after a time without a leader.
    pub(crate) fn fence(&mut self) {
        let assigned = &self.disk.assignments;
        self.units.retain(|id, _| {
            let assignment = assigned.get(id);
            assignment.is_none_or(|one| one.on_partition != OnPartition::Stop)
        });
    }

    /// The folders to which running instances may write, each with the instance's id.
    pub(crate) fn written(&self) -> Vec<(String, String)> {
        let units = self.units.keys();
        let assigned = units.filter_map(|id| self.disk.assignments.get(id));
        let written = assigned.flat_map(|one| {
            let volumes = one.volumes.iter();
            let written = volumes.filter(|volume| one.container.writes_to(&volume.definition.name));
            let folders = written.filter_map(|volume| volume.folder.clone());
            folders.map(|folder| (folder, one.instance.clone()))
        });
        written.collect()
    }

    /// The copies that the machine currently offers, each with its target machine and rows.
    pub(crate) fn offers(&self, name: &str) -> Vec<(String, (String, String), u64)> {
        let wishes = self.disk.moves.iter();
        let sent = wishes.filter(|(volume, wish)| {
            let mut assignments = self.disk.assignments.values();
            let used = assignments.any(|one| is_assigned(one, volume));
            wish.from == name && !wish.place && !used && self.stage == Stage::Confirmed
        });
        let rows = |volume: &String| self.carrying.rows.get(volume).copied().unwrap_or_default();
        sent.map(|(volume, wish)| {
            let copy = (wish.id.clone(), volume.clone());
            (wish.to.clone(), copy, rows(volume))
        })
        .collect()
    }

    /// The present report, or none while it waits for the first look.
    pub(crate) fn report(&self, name: &str) -> Option<NodeReport> {
        (!self.held).then(|| NodeReport {
            node_name: name.to_owned(),
            node_uid: self.uid.clone(),
            resources: NodeResources {
                capacity: self.resources,
                allocatable: self.resources,
            },
            workload_instances: self.instances.values().cloned().collect(),
            desired_revision: self.acted,
            assignment_schema: self.schema,
            data_path: self.data_path,
            isolation: self.isolation.clone(),
            virtual_addresses: self.virtual_addresses.clone(),
            ingress: self.ingress.clone(),
            user_indexes: self.users.iter().copied().collect(),
            volume_shared: self.shared,
            host_network: self.host_network,
            runtime: self.runtime.clone(),
            foreign_indexes: self.foreign.iter().copied().collect(),
            gpus: self.gpus.clone(),
            made_volumes: match self.shared {
                true => Vec::new(),
                false => self.data.iter().cloned().collect(),
            },
            removed_volumes: self.removed.clone(),
            missing_volumes: self.missing.clone(),
            volume_moves: self.carrying.said.clone(),
            advertise: self.advertise.clone(),
            endpoints: self.endpoints.clone(),
            member_keys: self.member_keys.clone(),
            state_stream: self.state_stream,
            configuration: self.configuration.clone(),
            conditions: self.conditions.clone(),
            images_removed: self.images_removed.clone(),
            overlay_network: self.overlay(),
            ..NodeReport::default()
        })
    }

    fn overlay(&self) -> OverlayReport {
        let peers = self.unanswered.iter().map(|(name, seconds)| OverlayPeer {
            name: name.clone(),
            unanswered_seconds: Some(*seconds),
            ..OverlayPeer::default()
        });
        let unasked = self.unasked.iter().map(|(name, connected)| OverlayPeer {
            name: name.clone(),
            connected: *connected,
            ..OverlayPeer::default()
        });
        OverlayReport {
            status: self.overlay_status,
            peers: peers.chain(unasked).collect(),
            ..OverlayReport::default()
        }
    }

    /// The agent reads the list for its stage, and every worker makes a pass.
    pub(crate) fn step(&mut self, name: &str, entries: &MirrorEntries, images: BadImages<'_>) {
        if self.stage == Stage::Begun {
            self.stage = Stage::Alone;
        } else if let Ok(list) = desired::read(entries, name) {
            self.stage = Stage::Confirmed;
            self.disk = list;
        }
        let confirmed = self.stage == Stage::Confirmed;
        if let Some(isolation) = &mut self.isolation {
            let revisions = entries.values().map(|entry| entry.mod_revision);
            isolation.revision = revisions.max().unwrap_or_default();
        }
        let list = self.disk.clone();
        let listed = list.assignments.values();
        self.users.extend(listed.map(|one| one.user.index));
        if confirmed {
            self.users.extend(self.accounts.keys());
            self.acted = list.revision;
            let lacks_disk = self.lacks_disk;
            let finds = |wish: &RemovalRecord| wish.forget || !lacks_disk;
            for (volume, wish) in list.removals.iter().filter(|(_, wish)| finds(wish)) {
                if wish.unsure && !self.carrying.unused.contains(volume) {
                    continue;
                }
                self.carrying.unused.remove(volume);
                self.data.remove(volume);
                self.carrying.rows.remove(volume);
            }
            self.carrying.act(name, &list, &mut self.data);
            let (removed, missing): (Vec<_>, Vec<_>) =
                list.removals.iter().partition(|(_, wish)| finds(wish));
            let ids = |removals: Vec<(&String, &RemovalRecord)>| {
                let removals = removals.into_iter();
                removals
                    .map(|(name, wish)| removal_id(name, wish.asked))
                    .collect()
            };
            (self.removed, self.missing) = (ids(removed), ids(missing));
        }
        if self.late > 0 {
            self.late -= 1;
            return;
        }
        for assignment in list.assignments.values() {
            self.advance_instance(assignment, images);
        }
        if confirmed {
            self.take_away(&list);
        }
        self.held = false;
    }

    /// Advances one instance by one phase.
    fn advance_instance(&mut self, assignment: &Assignment, images: BadImages<'_>) {
        let id = &assignment.instance;
        let index = assignment.user.index;
        let before = self
            .units
            .get(id)
            .map_or(InstancePhase::Pending, |unit| unit.phase);
        let reported = self.instances.get(id).map(|report| report.phase);
        let is_missing = images.missing.contains(&assignment.image);
        let phase = match (assignment.wanted, before) {
            (DesiredRun::Prepared | DesiredRun::Running, InstancePhase::Pending) if is_missing => {
                InstancePhase::Pulling
            }
            (DesiredRun::Prepared, InstancePhase::Pending) => match reported {
                Some(InstancePhase::Pulling | InstancePhase::Prepared) => InstancePhase::Prepared,
                _ => InstancePhase::Pulling,
            },
            (DesiredRun::Prepared, _) => panic!("{id} runs, and is only to be prepared"),
            (
                DesiredRun::Stopped,
                InstancePhase::Stopping | InstancePhase::Pending | InstancePhase::Stopped,
            ) => InstancePhase::Stopped,
            (DesiredRun::Stopped, _) => InstancePhase::Stopping,
            (DesiredRun::Running, _) if self.evicted.contains(id) => InstancePhase::Scheduled,
            // It runs at its times alone.
            (DesiredRun::Running, _) if assignment.bound.is_some() => InstancePhase::Scheduled,
            (DesiredRun::Running, InstancePhase::Pending) => InstancePhase::Starting,
            (DesiredRun::Running, _) if images.failing.contains(&assignment.image) => {
                InstancePhase::Failed
            }
            // The program of a Job ends one step after it has begun.
            (DesiredRun::Running, InstancePhase::Running | InstancePhase::Succeeded)
                if assignment.runs_once() && !images.lasting.contains(&assignment.image) =>
            {
                InstancePhase::Succeeded
            }
            (DesiredRun::Running, _) => InstancePhase::Running,
        };
        let has_unit = !matches!(phase, InstancePhase::Pulling | InstancePhase::Prepared);
        if phase == InstancePhase::Stopped {
            self.units.remove(id);
        } else if has_unit {
            if before == InstancePhase::Pending {
                for volume in &assignment.volumes {
                    let Some(folder) = &volume.folder else {
                        continue;
                    };
                    let empty = self.data.insert(folder.clone()) && !self.shared;
                    assert!(
                        !(volume.made && empty),
                        "{id} starts with nothing in {folder}"
                    );
                    if assignment.container.writes_to(&volume.definition.name) {
                        self.carrying.start(folder);
                    }
                }
            }
            self.units.insert(id.clone(), Unit { index, phase });
        }
        if phase != InstancePhase::Stopped {
            let owner = self
                .accounts
                .entry(index)
                .or_insert_with(|| assignment.workload_uid.clone());
            assert_eq!(*owner, assignment.workload_uid, "the user of {id}");
            self.leaving.remove(&index);
        }
        let bound = assignment.bound.as_ref();
        let bound = bound.map(|bound| self.bound_report(bound, assignment.wanted));
        let report = self
            .instances
            .entry(id.clone())
            .or_insert_with(|| InstanceReport {
                instance_id: id.clone(),
                health_status: Health::NotApplicable,
                ..InstanceReport::default()
            });
        report.phase = phase;
        report.bound = bound;
        report.reason = match phase {
            InstancePhase::Failed => Reason::RestartsExhausted.into(),
            InstancePhase::Scheduled if assignment.bound.is_none() => Reason::Evicted.into(),
            InstancePhase::Pulling if is_missing => Reason::ImagePullFailed.into(),
            _ => String::new(),
        };
    }

    /// As of an agent: its runs until `handled`, the active one, and idle only where no run is later. A
    /// schedule that is taken back has the times before its last run as decided.
    fn bound_report(&self, bound: &BoundSchedule, wanted: DesiredRun) -> BoundReport {
        let is_withdrawn = bound.closed || wanted == DesiredRun::Stopped;
        let runs = self.bound_runs.iter();
        let runs: Vec<&BoundRun> = runs.filter(|run| run.scheduled > bound.handled).collect();
        let mut handled = self.bound_handled.max(Some(bound.handled)).unwrap();
        let active = runs.iter().find(|run| run.end.is_none()).copied();
        if is_withdrawn {
            let ended = runs.iter().filter(|run| run.end.is_some());
            let ended = ended.filter(|run| active.is_none_or(|one| run.scheduled < one.scheduled));
            handled = handled.max(ended.map(|run| run.scheduled).max().unwrap_or(handled));
        }
        let told = runs.iter().filter(|run| run.scheduled <= handled);
        let told = told.copied().chain(active).cloned().collect();
        BoundReport {
            from: bound.handled,
            handled,
            idle: is_withdrawn && runs.iter().all(|run| run.scheduled <= handled),
            runs: told,
            ..BoundReport::default()
        }
    }

    /// Removes instances that are missing in a confirmed list. Their users follow one round after
    /// their units.
    fn take_away(&mut self, list: &DesiredState) {
        self.instances
            .retain(|id, _| list.assignments.contains_key(id));
        self.units.retain(|id, _| list.assignments.contains_key(id));
        let listed: BTreeSet<u32> = list
            .assignments
            .values()
            .map(|one| one.user.index)
            .chain(self.units.values().map(|unit| unit.index))
            .collect();
        let unlisted: Vec<u32> = self.users.difference(&listed).copied().collect();
        for index in unlisted {
            if !self.leaving.insert(index) {
                self.leaving.remove(&index);
                self.accounts.remove(&index);
                self.users.remove(&index);
            }
        }
    }
}
