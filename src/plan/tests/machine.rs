//! A machine of the world, with an agent that does what `src/agent` does.
//!
//! As there: a process begins with the list of its disk, looks at every instance before its first
//! report, and says that it acted on revision 0 until the store confirmed a list; accounts from
//! before count as left from that moment on; a stopped instance is said to be stopped for as long
//! as it is assigned; and a user's account goes last, a while after its units.

use super::*;
use kat_agent::desired_state::desired::{self, Desired};
use kat_types::{
    api::{Condition, ImagesRemoved, MemberKeys},
    reason::Reason,
};

/// How far the agent's process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its workers have no list yet.
    Begun,
    /// They have the list of the disk.
    Alone,
    /// They have one that the store confirmed.
    Confirmed,
}

/// A unit on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unit {
    index: u32,
    phase: InstancePhase,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Machine {
    pub(crate) uid: String,
    pub(crate) resources: ResourceList,
    /// The last report that the leader has, and how old it is.
    pub(crate) heard: Option<Arc<NodeReport>>,
    pub(crate) age: Duration,
    /// Its reports reach the leader.
    pub(crate) speaks: bool,
    /// Its agent works.
    pub(crate) obeys: bool,
    /// Highest schema of an assignment that its agent understands; 0 where it does not say.
    pub(crate) schema: u32,
    /// Number of its `packaging/data-path`.
    pub(crate) data_path: u32,

    /// Its volume base path is storage that it shares.
    pub(crate) shared: bool,
    /// Containers may share its network.
    pub(crate) host_network: bool,
    /// What its agent says of the machine, and of images that it removed.
    pub(crate) conditions: Vec<Condition>,
    pub(crate) images_removed: Option<ImagesRemoved>,
    /// Instances that it has stopped because its disk ran full.
    pub(crate) evicted: BTreeSet<String>,
    /// Folders of volumes that have data on it.
    pub(crate) data: BTreeSet<String>,
    /// What becomes of that data.
    pub(crate) carrying: carrying::Carrying,
    /// Removals that it was asked for and has done.
    removed: Vec<String>,

    /// Where its agent says that others reach it.
    pub(crate) advertise: Vec<IpAddr>,
    pub(crate) endpoints: Vec<String>,
    pub(crate) member_keys: MemberKeys,

    /// What its agent says of its instances, and of which users something is left.
    pub(crate) instances: BTreeMap<String, InstanceReport>,
    pub(crate) users: BTreeSet<u32>,
    /// The revision that the agent acted on.
    acted: u64,
    stage: Stage,
    /// The first report waits for the first look.
    held: bool,
    /// Rounds until the workers make their first pass.
    late: u8,
    /// Users that were told to go.
    leaving: BTreeSet<u32>,

    /// What outlives the agent's process: `desired.json`, units, and accounts with the identity of
    /// the workload that they were made for.
    disk: Desired,
    units: BTreeMap<String, Unit>,
    pub(crate) accounts: BTreeMap<u32, String>,
}

impl Machine {
    /// A machine after `init`: its agent has confirmed an empty list.
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
            speaks: true,
            obeys: true,
            shared: false,
            host_network: false,
            conditions: Vec::new(),
            images_removed: None,
            evicted: BTreeSet::new(),
            data: BTreeSet::new(),
            carrying: carrying::Carrying::default(),
            removed: Vec::new(),
            advertise: Vec::new(),
            endpoints: Vec::new(),
            member_keys: MemberKeys::default(),
            schema: 0,
            data_path: HOST_PORT_DATA_PATH,
            instances: BTreeMap::new(),
            users: BTreeSet::new(),
            acted: 1,
            stage: Stage::Confirmed,
            held: false,
            late: 0,
            leaving: BTreeSet::new(),
            disk: Desired {
                schema: 1,
                revision: 1,
                ..Desired::default()
            },
            units: BTreeMap::new(),
            accounts: BTreeMap::new(),
        }
    }

    /// Another process of the agent. One that is `late` sends its first report before its workers
    /// have looked, and they look so many rounds later.
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

    /// What runs on it, whoever knows of it.
    pub(crate) fn running(&self) -> Vec<String> {
        let units = self.units.iter();
        units
            .filter(|(_, unit)| unit.phase == InstancePhase::Running)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Its agent has reached no leader for so long that it has ended what asks for that.
    pub(crate) fn fence(&mut self) {
        let assigned = &self.disk.assignments;
        self.units.retain(|id, _| {
            let assignment = assigned.get(id);
            assignment.is_none_or(|one| one.on_partition != OnPartition::Stop)
        });
    }

    /// The folders to which what runs on it may write, with who that is.
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

    /// What it would send to whom now.
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

    /// The report as it goes out now, unless it still waits for the first look.
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
            user_indexes: self.users.iter().copied().collect(),
            volume_shared: self.shared,
            host_network: self.host_network,
            made_volumes: match self.shared {
                true => Vec::new(),
                false => self.data.iter().cloned().collect(),
            },
            removed_volumes: self.removed.clone(),
            volume_moves: self.carrying.said.clone(),
            advertise: self.advertise.clone(),
            endpoints: self.endpoints.clone(),
            member_keys: self.member_keys.clone(),
            conditions: self.conditions.clone(),
            images_removed: self.images_removed.clone(),
            ..NodeReport::default()
        })
    }

    /// The agent takes the list of its stage, and every worker makes a pass.
    pub(crate) fn step(&mut self, name: &str, entries: &Entries, failing: &BTreeSet<String>) {
        if self.stage == Stage::Begun {
            self.stage = Stage::Alone;
        } else if let Ok(list) = desired::read(entries, name) {
            self.stage = Stage::Confirmed;
            self.disk = list;
        }
        let confirmed = self.stage == Stage::Confirmed;
        let list = self.disk.clone();
        let listed = list.assignments.values();
        self.users.extend(listed.map(|one| one.user.index));
        if confirmed {
            self.users.extend(self.accounts.keys());
            self.acted = list.revision;
            for (volume, wish) in &list.removals {
                if wish.unsure && !self.carrying.unused.contains(volume) {
                    continue;
                }
                self.carrying.unused.remove(volume);
                self.data.remove(volume);
                self.carrying.rows.remove(volume);
            }
            self.carrying.act(name, &list, &mut self.data);
            let removals = list.removals.iter();
            self.removed = removals
                .map(|(name, wish)| removal_id(name, wish.asked))
                .collect();
        }
        if self.late > 0 {
            self.late -= 1;
            return;
        }
        for assignment in list.assignments.values() {
            self.look(assignment, failing);
        }
        if confirmed {
            self.take_away(&list);
        }
        self.held = false;
    }

    /// Goes one phase on with one instance.
    fn look(&mut self, assignment: &Assignment, failing: &BTreeSet<String>) {
        let id = &assignment.instance;
        let index = assignment.user.index;
        let before = self
            .units
            .get(id)
            .map_or(InstancePhase::Pending, |unit| unit.phase);
        let phase = match (assignment.wanted, before) {
            (
                Wanted::Stopped,
                InstancePhase::Stopping | InstancePhase::Pending | InstancePhase::Stopped,
            ) => InstancePhase::Stopped,
            (Wanted::Stopped, _) => InstancePhase::Stopping,
            (Wanted::Running, _) if self.evicted.contains(id) => InstancePhase::Scheduled,
            (Wanted::Running, InstancePhase::Pending) => InstancePhase::Starting,
            (Wanted::Running, _) if failing.contains(&assignment.image) => InstancePhase::Failed,
            (Wanted::Running, _) => InstancePhase::Running,
        };
        if phase == InstancePhase::Stopped {
            self.units.remove(id);
        } else {
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
            let owner = self
                .accounts
                .entry(index)
                .or_insert_with(|| assignment.workload_uid.clone());
            assert_eq!(*owner, assignment.workload_uid, "the user of {id}");
            self.leaving.remove(&index);
            self.units.insert(id.clone(), Unit { index, phase });
        }
        let report = self
            .instances
            .entry(id.clone())
            .or_insert_with(|| InstanceReport {
                instance_id: id.clone(),
                health_status: Health::NotApplicable,
                ..InstanceReport::default()
            });
        report.phase = phase;
        report.reason = match phase {
            InstancePhase::Failed => Reason::RestartsExhausted.into(),
            InstancePhase::Scheduled => Reason::Evicted.into(),
            _ => String::new(),
        };
    }

    /// Stops and forgets what a confirmed list lacks; its users go one round after their units.
    fn take_away(&mut self, list: &Desired) {
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
