//! The invariants: those checked at every moment, and those checked once all faults are repaired.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use serde::de::DeserializeOwned;
use tokio::time::{Duration, Instant};

use crate::{
    faults::forged_reports,
    load::user::{FENCED, FENCED_WRITER, NAMESPACE, Wish},
    world::{LOST_AFTER, Machine, World},
};
use kat_agent::DesiredList;
use kat_types::{
    api::{Condition, DRAIN_BLOCKED, NodePhase, WorkloadPhase},
    assignment::{Assignment, DesiredMeta, DesiredRun, replica_name},
    images::KeptImages,
    reason::Reason,
    store::{
        keys,
        members::ClusterMembers,
        records::{NodeStatusRecord, VolumeRecord, WorkloadMeta, WorkloadStatusRecord},
        transaction::KeyValue,
    },
    volumes::{VolumeKey, VolumeMove},
};

/// How long a slot may have too many instances after a machine is back, in addition to the time of
/// the leader's messages. Only time with a leader that can write counts.
const CROWDED: Duration = Duration::from_secs(2);
/// Messages between the leader and the store from observation to write: the previous plan is
/// written, the copy of the store shows it, and the next plan is written.
const TRIPS: u32 = 3;
/// Upper limit, however long the leader's messages take.
const MOST_CROWDED: Duration = Duration::from_secs(6);

fn read<T: DeserializeOwned>(item: &KeyValue) -> T {
    serde_json::from_slice(&item.value).unwrap()
}

/// Whether a name below a workload is that of a replica, such as `db-0`, and not of an instance, whose last
/// part has five characters.
pub(crate) fn is_replica_name(name: &str) -> bool {
    let last = name.rsplit_once('-').map(|(_, last)| last);
    last.is_some_and(|last| last.len() < 5 && last.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Assignments in the store by unit, each with its machine.
pub(crate) fn assigned(world: &World) -> BTreeMap<String, (String, Assignment)> {
    let items = world.store.peek(keys::NODE_DESIRED).items;
    let entries = items.iter().filter_map(|item| {
        let (node, _) = item
            .key
            .strip_prefix(keys::NODE_DESIRED)?
            .split_once("/instances/")?;
        let assignment: Assignment = read(item);
        Some((assignment.unit(), (node.to_owned(), assignment)))
    });
    entries.collect()
}

impl World {
    /// Checks the invariants that hold at every moment.
    pub(crate) fn check(&mut self) {
        let leaders: Vec<&str> = self
            .machines
            .iter()
            .filter(|machine| machine.process.as_ref().is_some_and(|one| one.leads()))
            .map(|machine| machine.name.as_str())
            .collect();
        if leaders.len() > 1 {
            self.monitor.violated(format!("{leaders:?} lead at once"));
        }
        self.note_dead_overlays();
        self.check_epochs();
        self.check_copies();
        let live = self.live();
        self.check_cut(&live);
        self.check_claims(&live);
        self.check_added(&live);
        self.check_routes();
        self.check_outside_routes();
        self.check_virtual_addresses();
        self.check_orders();
        let now = (self.store.revision(), self.person.answers(), live.clone());
        if self.checked.as_ref() == Some(&now) {
            return;
        }
        self.checked = Some(now);
        self.person.check();
        let assigned = assigned(self);
        self.note_its_hands(&assigned);
        self.check_live(&live, &assigned);
        self.write_rows(&live);
        self.check_lists(&assigned);
    }

    /// Only a machine whose overlay is dead may be judged unreachable over the overlay, see
    /// [`Monitor::decided`](crate::checks::monitor::Monitor::decided).
    fn note_dead_overlays(&self) {
        let dead = self.joined().filter(|one| one.way.now().overlay_cut);
        dead.for_each(|machine| self.monitor.record_dead_overlay(&machine.name));
    }

    /// Instances with `onPartition: stop` do not run on a machine that has been silent for so long
    /// that a leader may replace them. Holds where the agent works and programs end within their
    /// grace period.
    fn check_cut(&self, live: &BTreeMap<String, String>) {
        let lost = Duration::from_secs(LOST_AFTER.into());
        for machine in self
            .machines
            .iter()
            .filter(|machine| machine.ends_in_time())
        {
            let silent = self.monitor.silent(&machine.name).unwrap_or_default();
            // The agent waits for a start in progress before it stops the unit.
            if silent <= lost + machine.longest_start() {
                continue;
            }
            let begins = [FENCED, FENCED_WRITER].map(|name| format!("kat-{NAMESPACE}-{name}-"));
            let fenced = |(unit, on): &(&String, &String)| {
                let mut begins = begins.iter();
                **on == machine.name && begins.any(|begin| unit.starts_with(begin))
            };
            if let Some((unit, _)) = live.iter().find(fenced) {
                self.monitor.violated(format!(
                    "{unit} must not run on {}, of which no leader has heard for {silent:?}",
                    machine.name
                ));
            }
        }
    }

    /// Collects the volumes that were ever on the machine that forges reports. Its word alone
    /// counts for them, so they are not checked.
    fn note_its_hands(&mut self, assigned: &BTreeMap<String, (String, Assignment)>) {
        if self.forger.is_none() {
            return;
        }
        let name = forged_reports::NAME;
        for (volume, record) in self.volumes() {
            let moving = record.moving.as_ref();
            let moves = moving.is_some_and(|moving| moving.from == name || moving.to == name);
            if moves || record.node.as_deref() == Some(name) {
                self.in_its_hands.insert(volume);
            }
        }
        // The record of a volume on shared storage names no machine.
        for (unit, (node, _)) in assigned {
            if node == name
                && let Some(known) = self.monitor.assigned(unit)
            {
                self.in_its_hands.extend(known.writes.iter().cloned());
            }
        }
    }

    /// No address is used twice or released while a container may have it, and no volume has two
    /// writers.
    fn check_live(
        &self,
        live: &BTreeMap<String, String>,
        assigned: &BTreeMap<String, (String, Assignment)>,
    ) {
        let allocations = self.store.peek(keys::ALLOCATIONS).items;
        let allocated: BTreeSet<&str> = allocations.iter().map(|item| item.key.as_str()).collect();
        let mut addresses: BTreeMap<Ipv4Addr, &str> = BTreeMap::new();
        let mut writers: BTreeMap<String, (&str, bool)> = BTreeMap::new();
        for (unit, machine) in live {
            let Some(known) = self.monitor.assigned(unit) else {
                self.monitor
                    .violated(format!("{unit} on {machine} was never assigned"));
                continue;
            };
            for folder in &known.writes {
                // A machine stops the instance in time only if its agent works and its programs end
                // in time.
                let mut on = self.machines.iter().filter(|one| one.name == *machine);
                let may_stay = known.stops && !on.any(Machine::ends_in_time);
                // The machine that forges reports harms only its own instances this way.
                let may_stay = may_stay || self.forges(machine);
                let before = writers.insert(folder.clone(), (unit, may_stay));
                if let Some((other, stays)) = before
                    && !may_stay
                    && !stays
                {
                    self.monitor.violated(format!(
                        "{unit} on {machine} and {other} both write to {folder}"
                    ));
                }
            }
            if let Some(other) = addresses.insert(known.address, unit)
                && !self.forges(machine)
            {
                self.monitor.violated(format!(
                    "{} is twice: {unit} and {other}, the first on {machine}",
                    known.address
                ));
            }
            let is_held = assigned.get(unit).is_some_and(|(node, _)| node == machine)
                && allocated.contains(keys::allocation(&known.instance).as_str());
            if !is_held && !self.addresses_only && !self.forges(machine) {
                self.monitor.violated(format!(
                    "{unit} may run on {machine}, and its address {} is given back",
                    known.address
                ));
            }
        }
    }

    /// Every list is complete, and a slot has one instance and at most its successor. Instances on
    /// a lost machine are kept in addition, also for the short time that the leader needs after the
    /// machine is back.
    fn check_lists(&mut self, assigned: &BTreeMap<String, (String, Assignment)>) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut slots: BTreeMap<(&str, u32), Vec<&str>> = BTreeMap::new();
        let lost = self.lost();
        for (unit, (node, assignment)) in assigned {
            *counts.entry(node).or_default() += 1;
            if assignment.wanted == DesiredRun::Running && !lost.contains(node) {
                let slot = (assignment.workload_uid.as_str(), assignment.slot);
                slots.entry(slot).or_default().push(unit);
            }
        }
        let mut crowded = BTreeMap::new();
        let decides = self.leader_can_write();
        for ((workload, slot), units) in slots {
            if units.len() <= 2 || self.is_frozen(units[0], assigned) {
                continue;
            }
            let key = (workload.to_owned(), slot);
            let known = self.crowded.get(&key).copied().filter(|_| decides);
            let (since, allowed) = known.unwrap_or_else(|| (Instant::now(), CROWDED));
            let allowed = allowed.max(CROWDED + self.leader_latency() * TRIPS);
            let allowed = allowed.min(MOST_CROWDED);
            if since.elapsed() > allowed {
                self.monitor
                    .violated(format!("slot {slot} of {workload} has {units:?}"));
            }
            crowded.insert(key, (since, allowed));
        }
        self.crowded = crowded;
        for machine in self.joined() {
            let meta = self.store.peek(&keys::desired_meta(&machine.name)).items;
            let count: usize = meta
                .iter()
                .map(|meta| read::<DesiredMeta>(meta).count)
                .sum();
            let found = counts.get(machine.name.as_str()).copied().unwrap_or(0);
            if found != count {
                self.monitor.violated(format!(
                    "the list of {} has {found} of {count} entries",
                    machine.name
                ));
            }
        }
    }

    /// Whether the unit belongs to the workload that cannot be written. Nothing of such a workload
    /// is stopped.
    fn is_frozen(&self, unit: &str, assigned: &BTreeMap<String, (String, Assignment)>) -> bool {
        let grown = self.large.as_ref();
        let grown = grown.filter(|large| large.is_grown(&self.store));
        grown.is_some_and(|large| assigned[unit].1.workload == large.workload)
    }

    /// Machines that the leader calls NotReady.
    fn lost(&self) -> BTreeSet<String> {
        let names = self.joined().map(|machine| machine.name.clone());
        names
            .filter(|name| {
                let status = self.store.peek(&keys::node_status(name)).items;
                status
                    .first()
                    .map(read::<NodeStatusRecord>)
                    .is_some_and(|status| status.phase == NodePhase::NotReady)
            })
            .collect()
    }

    /// Why the cluster is not in its desired state once all faults are repaired. The status of the
    /// workload `frozen`, which cannot be written, has to say so.
    pub(crate) fn missing(&self, frozen: Option<&str>) -> Option<String> {
        let live = self.live();
        let assigned = assigned(self);
        if let Some(missing) = self.etcd.missing() {
            return Some(missing);
        }
        let known = self.store.peek(keys::MEMBERS).items;
        let known: Option<ClusterMembers> = known.first().map(read);
        let known = known.map(|known| known.members).unwrap_or_default();
        let members = self.etcd.members();
        let well = |name: &String| known.get(name).is_some_and(|one| one.voting && one.healthy);
        if known.len() != members.len() || !members.iter().all(well) {
            return Some(format!(
                "{known:?} are written down, and {members:?} are members"
            ));
        }
        let join = self.person.join_state();
        if join.begun && !join.done {
            return Some("n5 has not joined".to_owned());
        }
        for machine in self.joined() {
            let status = self.store.peek(&keys::node_status(&machine.name)).items;
            let status = status.first().map(read::<NodeStatusRecord>);
            let drain = self.person.drains().get(&machine.name).copied();
            let may_stay = |one: &Assignment| {
                Some(&*one.workload) == frozen || self.drain_waits_for_forged_data(&one.workload)
            };
            let stays = assigned
                .values()
                .any(|(node, one)| *node == machine.name && may_stay(one));
            let (wanted, word) = match drain.is_some_and(|drain| drain.promised) {
                true if stays => (NodePhase::Draining, "draining"),
                true => (NodePhase::Drained, "drained"),
                false => (NodePhase::Ready, "ready"),
            };
            let judged = status.as_ref().is_some_and(|status| {
                let mut conditions = status.conditions.iter();
                conditions.any(|one| one.reason == Reason::OverlayDown)
            });
            if judged {
                return Some(format!(
                    "the overlay of {} is said to be dead",
                    machine.name
                ));
            }
            if status.is_none_or(|status| status.phase != wanted) {
                let there = assigned.values().filter(|(node, _)| *node == machine.name);
                let there: BTreeMap<&str, Vec<Condition>> = there
                    .map(|(_, one)| (one.workload.as_str(), self.conditions_of(&one.workload)))
                    .collect();
                return Some(format!("{} is not {word}; it has {there:?}", machine.name));
            }
            let mut given = assigned
                .values()
                .filter(|(node, one)| *node == machine.name && !may_stay(one));
            if wanted == NodePhase::Drained && given.next().is_some() {
                return Some(format!("{} is not empty", machine.name));
            }
        }
        let mut volumes = self.volumes().into_iter();
        let of_frozen = |volume: &str| {
            frozen.is_some_and(|frozen| volume.starts_with(&format!("{NAMESPACE}/{frozen}/")))
        };
        let moves = |volume: &str, record: &VolumeRecord| {
            let Some(moving) = record.moving.as_ref().filter(|_| !of_frozen(volume)) else {
                return false;
            };
            !self.moves_forged_data(volume, record) || self.tries_again(volume, moving)
        };
        if let Some((volume, _)) = volumes.find(|(volume, record)| moves(volume, record)) {
            return Some(format!("{volume} is on its way"));
        }
        let mut wanted = BTreeSet::new();
        let mut indexes = BTreeSet::new();
        for workload in self.person.workloads() {
            let (promised, _) = self.person.promised(&workload);
            let Wish::Present { version, replicas } = promised else {
                let left = self.store.peek(&keys::workload(NAMESPACE, &workload)).items;
                if !left.is_empty() {
                    return Some(format!("{workload} is not gone"));
                }
                continue;
            };
            let one = |key: &str| self.store.peek(key).items.into_iter().next();
            let Some(meta) = one(&keys::workload_meta(NAMESPACE, &workload)) else {
                return Some(format!("{workload} is not there"));
            };
            let meta: WorkloadMeta = read(&meta);
            indexes.insert(meta.index);
            let status = one(&keys::workload_status(NAMESPACE, &workload));
            let status = status.map(|item| read::<WorkloadStatusRecord>(&item).status);
            if Some(&*workload) == frozen {
                let status = status.unwrap_or_default();
                let mut said = status.conditions.iter();
                if !said.any(|one| one.reason == Reason::NotWritable) {
                    return Some(format!(
                        "{workload} is not said to be what cannot be written"
                    ));
                }
                let own = assigned.iter().filter(|(_, (node, one))| {
                    one.workload == workload
                        && one.wanted == DesiredRun::Running
                        && !self.lacks_forged_data(node, one)
                });
                wanted.extend(own.map(|(unit, _)| unit.clone()));
                continue;
            }
            let healthy = status.as_ref().is_some_and(|status| {
                status.phase == WorkloadPhase::Running
                    && status.ready == replicas
                    && status.observed_generation == meta.generation
            });
            if !healthy {
                let conditions = status.map(|status| status.conditions);
                let conditions = conditions.unwrap_or_default();
                if self.waits_for_forged_data(&workload, &conditions) {
                    let own = live.keys().filter(|unit| {
                        let assigned = assigned.get(*unit);
                        assigned.is_some_and(|(_, one)| one.workload == workload)
                    });
                    wanted.extend(own.cloned());
                    continue;
                }
                return Some(format!("{workload} is not healthy: {conditions:?}"));
            }
            let image = format!("registry.example/{workload}:{version}");
            let own: Vec<_> = assigned
                .iter()
                .filter(|(_, (_, one))| one.workload == workload)
                .collect();
            let slots: BTreeSet<u32> = own.iter().map(|(_, (_, one))| one.slot).collect();
            let as_wished = own
                .iter()
                .all(|(_, (_, one))| one.image == image && one.wanted == DesiredRun::Running);
            if own.len() != replicas as usize || slots.len() != own.len() || !as_wished {
                return Some(format!("{workload} has not one instance for each slot"));
            }
            wanted.extend(own.into_iter().map(|(unit, _)| unit.clone()));
        }
        if live.keys().cloned().collect::<BTreeSet<_>>() != wanted {
            return Some(format!("{:?} run instead of {wanted:?}", live.keys()));
        }
        self.list_behind(&assigned)
            .or_else(|| self.leftovers(&assigned, &indexes, frozen))
    }

    /// Why the list on a machine's disk, from which the machine starts alone, is not its list.
    fn list_behind(&self, assigned: &BTreeMap<String, (String, Assignment)>) -> Option<String> {
        self.joined().find_map(|machine| {
            let stored = DesiredList::stored(&machine.root.join("desired.json"));
            let stored = stored.desired.assignments.values();
            let stored: BTreeMap<&String, &Assignment> =
                stored.map(|one| (&one.instance, one)).collect();
            let own = assigned.values().filter(|(on, _)| *on == machine.name);
            let own: BTreeMap<&String, &Assignment> =
                own.map(|(_, one)| (&one.instance, one)).collect();
            let names = || (stored.keys(), own.keys());
            (stored != own).then(|| {
                format!(
                    "the disk of {} has another list: {:?}",
                    machine.name,
                    names()
                )
            })
        })
    }

    /// Whether the workload waits for data that the machine with forged reports claimed to have and
    /// never had. The leader does not replace such data with an empty volume.
    fn waits_for_forged_data(&self, workload: &str, conditions: &[Condition]) -> bool {
        let own = format!("{NAMESPACE}/{workload}/");
        let mut volumes = self.in_its_hands.iter().filter(|one| one.starts_with(&own));
        let mut moving = self.volumes().into_iter();
        let is_moved = |(volume, record): (String, VolumeRecord)| {
            volume.starts_with(&own) && self.moves_forged_data(&volume, &record)
        };
        if moving.any(is_moved) {
            return true;
        }
        volumes.any(|volume| {
            conditions.iter().any(|one| {
                // The condition's reason is VolumeMissing and its message has the volume, or the
                // message contains the reason's name.
                let named = one.reason == Reason::VolumeMissing && one.message.contains(volume);
                // The removal of a volume that was never made, or that the forger does not confirm,
                // stays pending as for a missing disk.
                let name = VolumeKey::parse(volume).map(|key| key.name().to_owned());
                let removed = name.is_some_and(|name| {
                    let said = format!(
                        "volume {name} is being removed from {}",
                        forged_reports::NAME
                    );
                    one.message.contains(&said)
                });
                // On shared storage any machine is asked to remove it.
                let missed = self.shared
                    && one
                        .message
                        .contains(&format!("`katcall volume forget {volume} --on "));
                named || removed || missed || one.message.contains(Reason::VolumeMissing.word())
            })
        })
    }

    /// Whether the instance waits on the machine with forged reports for data that the machine claimed
    /// to have and never had.
    fn lacks_forged_data(&self, node: &str, instance: &Assignment) -> bool {
        let own = format!("{NAMESPACE}/{}/", instance.workload);
        let status = self.store.peek(&keys::node_status(node)).items;
        let status = status.first().map(read::<NodeStatusRecord>);
        let said = status.as_ref();
        let said = said.and_then(|status| status.instances.get(&instance.instance));
        let Some(said) = said.filter(|said| said.reason == Reason::VolumeMissing) else {
            return false;
        };
        let volumes = self.in_its_hands.iter().filter(|one| one.starts_with(&own));
        self.forges(node)
            && volumes.filter_map(|one| VolumeKey::parse(one)).any(|key| {
                let missing = format!("the data of volume {} has been in", key.name());
                said.message.contains(&missing)
            })
    }

    /// Whether the machine with forged reports is to send data that it claimed to have and never had.
    /// The receiver says so until a person cancels the move.
    fn moves_forged_data(&self, volume: &str, record: &VolumeRecord) -> bool {
        let from_forger = |moving: &&VolumeMove| moving.from == forged_reports::NAME;
        let Some(moving) = record.moving.as_ref().filter(from_forger) else {
            return false;
        };
        self.forger.is_some() && !self.has_folder(&moving.from, volume)
    }

    /// Whether the receiver has not said yet that the data is not there: its last attempt failed for
    /// another cause or named another folder, or it has made none.
    fn tries_again(&self, volume: &str, moving: &VolumeMove) -> bool {
        let status = self.store.peek(&keys::node_status(&moving.to)).items;
        let status = status.first().map(read::<NodeStatusRecord>);
        let reports = status.into_iter().flat_map(|status| status.volume_moves);
        let mut reports = reports.filter(|one| one.volume == volume && one.id == moving.id);
        let missing = self.missing_folder(&moving.from, volume);
        !reports.any(|one| missing.iter().any(|said| one.message.contains(said)))
    }

    /// A healthy instance of such a workload is not stopped for a move, and its status says that it
    /// blocks the drain.
    fn drain_waits_for_forged_data(&self, workload: &str) -> bool {
        let conditions = self.conditions_of(workload);
        let mut said = conditions.iter();
        said.any(|one| one.kind == DRAIN_BLOCKED)
            && self.waits_for_forged_data(workload, &conditions)
    }

    fn conditions_of(&self, workload: &str) -> Vec<Condition> {
        let status = self.store.peek(&keys::workload_status(NAMESPACE, workload));
        let status = status.items.first().map(read::<WorkloadStatusRecord>);
        status.map_or_else(Vec::new, |status| status.status.conditions)
    }

    /// Why a new workload does not run on the machines that do not forge reports; `None` when it
    /// does.
    pub(crate) fn stands_still(&self, workload: &str, replicas: usize) -> Option<String> {
        let lost = self.lost();
        if let Some(machine) = lost.iter().find(|machine| !self.forges(machine)) {
            return Some(format!("{machine} is lost"));
        }
        let (live, assigned) = (self.live(), assigned(self));
        let own = assigned
            .iter()
            .filter(|(_, (_, one))| one.workload == workload);
        let slots: BTreeSet<u32> = own.clone().map(|(_, (_, one))| one.slot).collect();
        if slots.len() < replicas {
            return Some(format!("{workload} has an instance in {slots:?} alone"));
        }
        let mut own = own.filter(|(_, (node, _))| !self.forges(node));
        let down = own.find(|(unit, (_, one))| {
            one.wanted != DesiredRun::Running || !live.contains_key(*unit)
        });
        down.map(|(unit, (node, _))| format!("{unit} does not run on {node}"))
    }

    /// All stored keys of a workload except its status and events, with their revisions.
    pub(crate) fn keys_of(&self, workload: &str) -> BTreeMap<String, i64> {
        let (folder, instance) = (format!("/{NAMESPACE}/{workload}/"), format!("/{workload}-"));
        let items = self.store.peek(keys::ROOT).items.into_iter();
        let own = items.filter(|item| {
            let own = item.key.contains(&folder) || item.key.contains(&instance);
            own && !item.key.starts_with(keys::EVENTS)
        });
        own.map(|item| (item.key, item.mod_revision)).collect()
    }

    /// Stored objects and users that are no longer needed; `None` when there are none.
    fn leftovers(
        &self,
        assigned: &BTreeMap<String, (String, Assignment)>,
        indexes: &BTreeSet<u32>,
        frozen: Option<&str>,
    ) -> Option<String> {
        let count = |prefix: &str| self.store.peek(prefix).items.len();
        if count(keys::ALLOCATIONS) != assigned.len() {
            return Some("addresses are left over".to_owned());
        }
        let owned = self.store.peek(keys::INDEXES).items;
        let owned: BTreeSet<u32> = owned
            .iter()
            .filter_map(|item| item.key.strip_prefix(keys::INDEXES)?.parse().ok())
            .collect();
        let volumes = self.store.peek(keys::VOLUMES).items;
        let gone = format!("{}{NAMESPACE}/{FENCED_WRITER}/", keys::VOLUMES);
        let absent = self.person.promised(FENCED_WRITER).0 == Wish::Absent;
        // On shared storage, a volume that only the forger claims to have made exists nowhere, and
        // its removal stays pending.
        let forged = |volume: &str| self.shared && self.in_its_hands.contains(volume);
        // So does that of a volume that the forger claimed to have made on its own disk.
        let forged_there = |volume: &str, record: &VolumeRecord| {
            record.node.as_deref() == Some(forged_reports::NAME)
                && self.in_its_hands.contains(volume)
                && !self.has_folder(forged_reports::NAME, volume)
        };
        let mut left = volumes.iter();
        if absent
            && left.any(|item| {
                let volume = item.key.strip_prefix(keys::VOLUMES).unwrap_or_default();
                item.key.starts_with(&gone) && !forged(volume) && !forged_there(volume, &read(item))
            })
        {
            return Some("data is left over".to_owned());
        }
        // Pending moves and removals of a workload that cannot be written wait with it.
        let own = frozen.map(|frozen| format!("/{NAMESPACE}/{frozen}/"));
        let waits = |key: &str| own.as_ref().is_some_and(|own| key.contains(own));
        let mut forged_moves = BTreeSet::new();
        for (volume, record) in self.volumes() {
            if self.moves_forged_data(&volume, &record) {
                forged_moves.insert(volume);
            }
        }
        let mut desired = self.store.peek(keys::NODE_DESIRED).items;
        desired.retain(|item| {
            let moved = item.key.split_once("/moves/");
            if moved.is_some_and(|(_, volume)| forged_moves.contains(volume)) {
                return false;
            }
            let removal = item.key.split_once("/removals/");
            // Only the forger can confirm that its own data is gone.
            let own = format!("{}{}", keys::NODE_DESIRED, forged_reports::NAME);
            let in_its_hands = removal.is_some_and(|(node, volume)| {
                forged(volume) || node == own && self.in_its_hands.contains(volume)
            });
            !waits(&item.key) && !in_its_hands
        });
        let (images, desired): (Vec<_>, Vec<_>) = desired
            .iter()
            .partition(|item| item.key.ends_with("/images"));
        let mut kept = images.iter().map(|item| read::<KeptImages>(item).users);
        if !kept.all(|users| users.keys().all(|index| indexes.contains(index))) {
            return Some("machines keep images of what is gone".to_owned());
        }
        if desired.len() != assigned.len() + self.joined().count() {
            return Some("removals of data are left over".to_owned());
        }
        let kept = volumes.iter().map(|item| read::<VolumeRecord>(item).index);
        let kept: BTreeSet<u32> = kept.chain(indexes.iter().copied()).collect();
        if owned != kept {
            return Some("indexes are left over".to_owned());
        }
        let named = self.store.peek(&format!("{}{NAMESPACE}/", keys::DNS)).items;
        let own = frozen.map(|frozen| format!("{}{NAMESPACE}/{frozen}/", keys::DNS));
        let is_own = |key: &str| own.as_ref().is_some_and(|own| key.starts_with(own));
        let named = named.iter().filter(|item| !is_own(&item.key));
        let (replicas, named): (Vec<_>, Vec<_>) = named.partition(|item| {
            let value = item.key.rsplit('/').next().unwrap_or_default();
            value
                .split_once('=')
                .is_some_and(|(name, _)| is_replica_name(name))
        });
        // An instance that waits for its data has no names.
        let live = self.live();
        let others = assigned
            .iter()
            .filter(|(unit, (_, one))| Some(&*one.workload) != frozen && live.contains_key(*unit));
        if named.len() != 2 * others.clone().count() {
            return Some("the names are not those of the instances".to_owned());
        }
        // One that waits for its data may have its replica's name, since it is Starting.
        let with_data = assigned.iter().filter(|(_, (_, one))| {
            one.has_replica_name()
                && one.wanted == DesiredRun::Running
                && Some(&*one.workload) != frozen
        });
        let record = |one: &Assignment| {
            let name = replica_name(&one.workload, one.slot);
            let value = format!("{name}={}", one.address);
            keys::dns_record(NAMESPACE, &one.workload, "A", &value)
        };
        let possible: BTreeSet<String> =
            with_data.clone().map(|(_, (_, one))| record(one)).collect();
        let needed = with_data.filter(|(unit, _)| live.contains_key(*unit));
        let needed: BTreeSet<String> = needed.map(|(_, (_, one))| record(one)).collect();
        let present: BTreeSet<String> = replicas.iter().map(|item| item.key.clone()).collect();
        if !present.is_subset(&possible) || !needed.is_subset(&present) {
            return Some(format!(
                "the names of replicas are {present:?}, and not {needed:?} or more of {possible:?}"
            ));
        }
        let users = self.machines.iter().flat_map(|machine| machine.users());
        let left: BTreeSet<u32> = users
            .map(|uid| uid - kat_types::assignment::USER_BASE)
            .filter(|index| !indexes.contains(index))
            .collect();
        (!left.is_empty()).then(|| format!("users {left:?} are left over"))
    }
}
