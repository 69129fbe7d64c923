//! What must hold at every moment, and what must hold when all is healed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use serde::de::DeserializeOwned;
use tokio::time::{Duration, Instant};

use crate::{
    forger,
    person::{FENCED, FENCED_WRITER, NAMESPACE, Wish},
    world::{LOST_AFTER, Machine, World},
};
use kat_types::{
    api::{Condition, DRAIN_BLOCKED, NodePhase, WorkloadPhase},
    assignment::{Assignment, DesiredMeta, Wanted},
    cluster::ClusterMembers,
    images::KeptImages,
    keys,
    reason::Reason,
    records::{NodeStatusRecord, VolumeRecord, WorkloadMeta, WorkloadStatusRecord},
    transaction::KeyValue,
    volumes::VolumeKey,
};

/// For so long a slot may have more instances than it should, when a machine is back, and for as long as the leader's
/// messages take. It counts while a leader can write.
const CROWDED: Duration = Duration::from_secs(2);
/// Messages between the leader and the store from what it sees to what it writes: the plan before is written, the
/// copy of the store shows it, the next one is written.
const TRIPS: u32 = 3;
/// However long these take.
const MOST_CROWDED: Duration = Duration::from_secs(6);

fn read<T: DeserializeOwned>(item: &KeyValue) -> T {
    serde_json::from_slice(&item.value).unwrap()
}

/// Assignments of the store by unit, each with its machine.
fn assigned(world: &World) -> BTreeMap<String, (String, Assignment)> {
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
    /// At every moment.
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
        let live = self.live();
        self.check_cut(&live);
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

    /// Where a leader may replace it, what has `onPartition: stop` runs no more: on a machine whose
    /// agent works, and where programs end within their grace.
    fn check_cut(&self, live: &BTreeMap<String, String>) {
        let lost = Duration::from_secs(LOST_AFTER.into());
        for machine in self
            .machines
            .iter()
            .filter(|machine| machine.ends_in_time())
        {
            let silent = self.monitor.silent(&machine.name).unwrap_or_default();
            // The agent waits for a start that is under way.
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

    /// What was ever on the machine that forges is as it says, whatever is so.
    fn note_its_hands(&mut self, assigned: &BTreeMap<String, (String, Assignment)>) {
        if self.forger.is_none() {
            return;
        }
        let name = forger::NAME;
        for (volume, record) in self.volumes() {
            let moving = record.moving.as_ref();
            let moves = moving.is_some_and(|moving| moving.from == name || moving.to == name);
            if moves || record.node.as_deref() == Some(name) {
                self.in_its_hands.insert(volume);
            }
        }
        // On storage that machines share the record names none.
        for (unit, (node, _)) in assigned {
            if node == name
                && let Some(known) = self.monitor.assigned(unit)
            {
                self.in_its_hands.extend(known.writes.iter().cloned());
            }
        }
    }

    /// No address twice, and none given back while a container may have it.
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
                // That a machine ends it holds where its agent works, and programs end in their time.
                let mut on = self.machines.iter().filter(|one| one.name == *machine);
                let may_stay = known.stops && !on.any(Machine::ends_in_time);
                // One that says what is not so has its own to blame.
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

    /// Every list is whole; a slot has one instance, and its successor at most. What is on a lost
    /// machine is kept beside them, and for the moment that the leader needs when that one is back.
    fn check_lists(&mut self, assigned: &BTreeMap<String, (String, Assignment)>) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut slots: BTreeMap<(&str, u32), Vec<&str>> = BTreeMap::new();
        let lost = self.lost();
        for (unit, (node, assignment)) in assigned {
            *counts.entry(node).or_default() += 1;
            if assignment.wanted == Wanted::Running && !lost.contains(node) {
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

    /// An instance of the workload that cannot be written: nothing of it is stopped until it can be.
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

    /// Why the cluster is not yet as it was asked to be, once nothing is broken any more.
    /// Of a workload that cannot be written, the status has to say so.
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
        let moves =
            |volume: &str, record: &VolumeRecord| record.moving.is_some() && !of_frozen(volume);
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
                let own = assigned.iter().filter(|(_, (_, one))| {
                    one.workload == workload && one.wanted == Wanted::Running
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
                .all(|(_, (_, one))| one.image == image && one.wanted == Wanted::Running);
            if own.len() != replicas as usize || slots.len() != own.len() || !as_wished {
                return Some(format!("{workload} has not one instance for each slot"));
            }
            wanted.extend(own.into_iter().map(|(unit, _)| unit.clone()));
        }
        if live.keys().cloned().collect::<BTreeSet<_>>() != wanted {
            return Some(format!("{:?} run instead of {wanted:?}", live.keys()));
        }
        self.leftovers(&assigned, &indexes, frozen)
    }

    /// The machine that forges said that it had data of the workload, and never had it: nothing empty takes its place.
    fn waits_for_forged_data(&self, workload: &str, conditions: &[Condition]) -> bool {
        let own = format!("{NAMESPACE}/{workload}/");
        let mut volumes = self.in_its_hands.iter().filter(|one| one.starts_with(&own));
        volumes.any(|volume| {
            conditions.iter().any(|one| {
                // As the reason, beside the path of the very volume; or within a sentence that names none.
                let named = one.reason == Reason::VolumeMissing && one.message.contains(volume);
                // Its removal waits for the forger as for a missing disk: it was never made, or the forger says no word.
                let name = VolumeKey::parse(volume).map(|key| key.name().to_owned());
                let removed = name.is_some_and(|name| {
                    let said = format!("volume {name} is being removed from {}", forger::NAME);
                    one.message.contains(&said)
                });
                named || removed || one.message.contains(Reason::VolumeMissing.word())
            })
        })
    }

    /// What serves of such a workload is not stopped to be moved, and its status says so.
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

    /// Why a new workload does not run where it is not in the hands of who forges, if it does not.
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
        let down =
            own.find(|(unit, (_, one))| one.wanted != Wanted::Running || !live.contains_key(*unit));
        down.map(|(unit, (node, _))| format!("{unit} does not run on {node}"))
    }

    /// All that is stored of a workload but its status, with revisions.
    pub(crate) fn keys_of(&self, workload: &str) -> BTreeMap<String, i64> {
        let (folder, instance) = (format!("/{NAMESPACE}/{workload}/"), format!("/{workload}-"));
        let items = self.store.peek(keys::ROOT).items.into_iter();
        let own = items.filter(|item| {
            let own = item.key.contains(&folder) || item.key.contains(&instance);
            own && !item.key.starts_with(keys::EVENTS)
        });
        own.map(|item| (item.key, item.mod_revision)).collect()
    }

    /// What nobody needs any more.
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
        // Data on shared storage that the forging machine said it had made is found nowhere, and its removal waits.
        let forged = |volume: &str| self.shared && self.in_its_hands.contains(volume);
        let mut left = volumes.iter();
        if absent
            && left.any(|item| {
                let volume = item.key.strip_prefix(keys::VOLUMES).unwrap_or_default();
                item.key.starts_with(&gone) && !forged(volume)
            })
        {
            return Some("data is left over".to_owned());
        }
        // What a workload that cannot be written was about to have moved or removed waits with it.
        let own = frozen.map(|frozen| format!("/{NAMESPACE}/{frozen}/"));
        let waits = |key: &str| own.as_ref().is_some_and(|own| key.contains(own));
        let mut desired = self.store.peek(keys::NODE_DESIRED).items;
        desired.retain(|item| {
            let removal = item.key.split_once("/removals/");
            // The forger alone confirms that its own data is gone.
            let own = format!("{}{}", keys::NODE_DESIRED, forger::NAME);
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
        let named = named.iter().filter(|item| !is_own(&item.key)).count();
        // One that waits for its data has none.
        let live = self.live();
        let others = assigned
            .iter()
            .filter(|(unit, (_, one))| Some(&*one.workload) != frozen && live.contains_key(*unit));
        if named != 2 * others.count() {
            return Some("the names are not those of the instances".to_owned());
        }
        let users = self.machines.iter().flat_map(|machine| machine.users());
        let left: BTreeSet<u32> = users
            .map(|uid| uid - kat_types::assignment::USER_BASE)
            .filter(|index| !indexes.contains(index))
            .collect();
        (!left.is_empty()).then(|| format!("users {left:?} are left over"))
    }
}
