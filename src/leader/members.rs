//! etcd's members: while this machine leads, it changes them to what `plan` wants, one step at a
//! time, and stores the members that it sees.
//!
//! Members are no keys of the store, so no transaction can fence their changes. Before each step
//! the election key is read again, and each step starts from what etcd reports now. So a deposed
//! leader is stopped except in the moment between the two, and if two leaders take a step, it is
//! the same one.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    LeaderHandle,
    member_events::member_events,
    upkeep::{EtcdUpkeep, Upkeep},
};
use crate::etcd_status::{EtcdObservation, MemberMemory, note_lost_data, observe_etcd};
use kat_daemon::watchdog::LoopPulses;
use kat_plan::{
    MemberStep, PreparingMachines, RemovedMember, SeenMember, Snapshot, StepView, cluster_members,
    is_migrating, lost_members, next_step, preparing_machine, voteless_since, wanted_members,
};
use kat_store::{
    Leadership, StoreError, TransactionResult,
    etcd_admin::{EtcdMember, EtcdStatus},
    etcd_maintenance::speaks_of_alarms,
};
use kat_types::{
    api::{ObjectKind, ObjectReference},
    encoding::json,
    machine::network::node_address,
    store::{
        keys,
        transaction::{Compare, WriteOperation},
    },
};

/// Time between two rounds while there is something to do.
const BUSY: Duration = Duration::from_secs(1);
/// Time between two rounds while the members are as wanted.
const IDLE: Duration = Duration::from_secs(5);
/// Pause before etcd is asked again to add a member with a vote.
const ADD_AGAIN: Duration = Duration::from_millis(50);

/// What etcd's superuser can do with members. URLs are those of one member's client port.
#[async_trait]
pub trait EtcdMembers: Send + Sync {
    /// Lists the members.
    async fn list(&self) -> Result<Vec<EtcdMember>, StoreError>;
    /// Status that one member reports.
    async fn status(&self, url: &str) -> Result<EtcdStatus, StoreError>;
    /// Creates the user of a machine that becomes a member.
    async fn add_user(&self, node: &str) -> Result<(), StoreError>;
    /// Creates a machine's user and adds a member without a vote.
    async fn add(&self, node: &str, peer_url: &str) -> Result<(), StoreError>;
    /// Adds a member that has a vote, and whose machine has its user.
    async fn add_voting(&self, peer_url: &str) -> Result<(), StoreError>;
    /// Gives a member its vote; `url` is that of the member that leads raft.
    async fn promote(&self, url: &str, id: u64) -> Result<(), StoreError>;
    /// Removes a machine's user and its member.
    async fn remove(&self, id: u64, node: Option<&str>) -> Result<(), StoreError>;
    /// Makes these the only machines with a user that may write everything.
    async fn set_users(&self, nodes: &BTreeSet<String>) -> Result<(), StoreError>;
    /// Removes the users by which machines of version 0.1.0 read etcd.
    async fn remove_readers(&self) -> Result<(), StoreError>;
    /// Moves the leadership of raft to another member; `url` is that of the present leader.
    async fn move_raft(&self, url: &str, to: u64) -> Result<(), StoreError>;
}

/// Settings of the member loop on this machine.
#[derive(Clone)]
pub struct MembersConfig {
    /// Name of this machine.
    pub node: String,
    /// etcd's port for clients.
    pub client_port: u16,
    /// etcd's port for peers.
    pub peer_port: u16,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Access to etcd's members.
    pub etcd: Arc<dyn EtcdMembers>,
    /// Access to etcd's data.
    pub upkeep: Arc<dyn EtcdUpkeep>,
    /// File size in bytes at which a member takes no more writes, unless somebody changed it.
    pub quota: u64,
    /// The steps for a full store are repeated after this time: more history may have gathered, or
    /// somebody gave etcd more room.
    pub retry: Duration,
    /// Reports the loop to the watchdog.
    pub pulses: LoopPulses,
}

/// Looks after the members and their data until `cancel`, whenever this machine leads.
pub async fn keep_members(handle: LeaderHandle, config: MembersConfig, cancel: CancellationToken) {
    let pulse = config.pulses.watch("etcd's members");
    let mut leadership = handle.leadership.clone();
    let work = async {
        let mut waits = String::new();
        let mut upkeep = Upkeep::default();
        let mut memory = MemberMemory::default();
        loop {
            let now = leadership.borrow_and_update().clone();
            let now = now.filter(|now| !now.lost.is_cancelled());
            let looked = match &now {
                Some(now) => {
                    let keeper = (&mut upkeep, &mut memory, &mut waits);
                    round(&handle, &config, now, keeper).await
                }
                None => {
                    memory = MemberMemory::default();
                    relieve(&handle, &config, &mut upkeep).await
                }
            };
            let mut pause = IDLE;
            match looked {
                Ok(false) => waits.clear(),
                Ok(true) => pause = BUSY,
                Err(error) => {
                    // Without the leadership the error concerns another machine.
                    if now.is_some() {
                        say_once(&mut waits, error.to_string());
                    }
                    pause = BUSY;
                }
            }
            let end = std::future::pending();
            if !pulse.next_round(end, leadership.changed(), pause).await {
                return;
            }
        }
    };
    cancel.run_until_cancelled(work).await;
}

/// With a full store nobody can be elected. If nobody leads, the machine whose etcd leads raft
/// makes room.
async fn relieve(
    handle: &LeaderHandle,
    config: &MembersConfig,
    upkeep: &mut Upkeep,
) -> Result<bool, StoreError> {
    let snapshot = handle.snapshot.borrow().clone();
    let Some(snapshot) = snapshot.filter(|snapshot| snapshot.election.is_empty()) else {
        handle.store_health.show(None);
        return Ok(false);
    };
    let own = snapshot.nodes.get(&config.node);
    let Some(address) = own.and_then(|node| node.subnet).map(node_address) else {
        return Ok(false);
    };
    let url = format!("https://{address}:{}", config.client_port);
    let status = config.etcd.status(&url).await?;
    let leads_raft = status.leader != 0 && status.leader == status.member;
    if !leads_raft || !speaks_of_alarms(&status.errors) {
        return Ok(false);
    }
    let observation = observe_etcd(config, &snapshot).await?;
    if !observation.alarms.is_full() {
        return Ok(false);
    }
    upkeep.round(handle, config, None, &observation).await
}

/// One round: reads the members' state and takes at most one step. Returns true if there is more to
/// do.
async fn round(
    handle: &LeaderHandle,
    config: &MembersConfig,
    leadership: &Leadership,
    (upkeep, memory, waits): (&mut Upkeep, &mut MemberMemory, &mut String),
) -> Result<bool, StoreError> {
    let Some(snapshot) = handle.snapshot.borrow().clone() else {
        return Ok(true);
    };
    let mut observation = observe_etcd(config, &snapshot).await?;
    memory.note(&mut observation.seen);
    note_lost_data(handle, leadership, &mut observation.seen);
    let preparing = preparing_machines(handle, leadership);
    if observation.alarms.is_full() {
        // Nothing can be stored before there is room.
        return upkeep
            .round(handle, config, Some(leadership), &observation)
            .await;
    }
    let now = (config.clock)();
    let lost = lost_members(&snapshot, &observation.seen);
    let given_up = (&lost, &memory.given_up);
    let wanted = wanted_members(&snapshot, &observation.seen, given_up, &config.node, now);
    let next = preparing_machine(&wanted, &observation.seen, &preparing);
    if let Some(machine) = memory.note_preparing(next.as_deref(), &preparing) {
        tracing::warn!(machine, "this machine does not prepare to hold etcd");
        return Ok(true);
    }
    let found = (&*snapshot, observation.seen.as_slice());
    if write_down(handle, config, leadership, (found, next), &wanted, memory).await? {
        // The next decision is based on what was just stored.
        return Ok(true);
    }
    let view = StepView {
        own: &config.node,
        raft_leader: observation.raft_leader,
        preparing: &preparing,
    };
    let step = next_step(&wanted, &observation.seen, &lost, view);
    let message = match &step {
        MemberStep::Nothing => {
            settle_users(handle, config, leadership, (memory, &observation.seen)).await?;
            if !memory.no_readers && !is_migrating(&snapshot) {
                still_leads(handle, leadership).await?;
                config.etcd.remove_readers().await?;
                memory.no_readers = true;
            }
            return upkeep
                .round(handle, config, Some(leadership), &observation)
                .await;
        }
        MemberStep::Wait(reason) => {
            say_once(waits, reason.clone());
            upkeep
                .round(handle, config, Some(leadership), &observation)
                .await?;
            return Ok(true);
        }
        MemberStep::Add { node, .. } => format!("machine {node} becomes a member of etcd"),
        MemberStep::Promote { node, with, .. } => match with {
            Some(second) => {
                format!("etcd of machine {node} gets its vote, and that of {second} with it")
            }
            None => format!("etcd of machine {node} gets its vote"),
        },
        MemberStep::Remove { member, also } => {
            let removed = std::iter::once(member).chain(also);
            let removed = removed.map(|one| note_removal(memory, one, &observation.seen, &lost));
            removed.collect::<Vec<_>>().join("; ")
        }
        MemberStep::HandOver => "another machine is to lead: etcd of this one goes".to_owned(),
        MemberStep::MoveRaft { to } => format!("the member {to:x} is to lead raft"),
    };
    tracing::info!(message, "a step towards etcd's members");
    if step == MemberStep::HandOver {
        handle.store.resign(leadership).await?;
        return Ok(true);
    }
    still_leads(handle, leadership).await?;
    memory.users.clear();
    take_step(config, &snapshot, &observation, &step).await?;
    Ok(true)
}

/// Remembers that a member is removed, and why; returns that as a sentence.
fn note_removal(
    memory: &mut MemberMemory,
    RemovedMember { id, node }: &RemovedMember,
    seen: &[SeenMember],
    lost: &BTreeSet<u64>,
) -> String {
    let mut seen = seen.iter();
    let data_lost = seen.any(|member| member.id == *id && member.data_lost);
    let is_lost = lost.contains(id);
    let why = match (is_lost && node.is_some(), data_lost) {
        (false, _) => "",
        (true, true) => ": its data is gone",
        (true, false) => ": it does not answer, although its machine does",
    };
    if let Some(node) = node {
        memory.why.insert(node.clone(), why.to_owned());
        if is_lost {
            memory.given_up.insert(node.clone());
        }
    }
    let node = node.as_deref().unwrap_or("a machine that is gone");
    format!("etcd of {node} is no member any more{why}")
}

/// Repairs what an interrupted step may have left: a machine's user without its member, or a member
/// without its machine's user. Runs once for each leader, and after each step.
async fn settle_users(
    handle: &LeaderHandle,
    config: &MembersConfig,
    leadership: &Leadership,
    (memory, seen): (&mut MemberMemory, &[SeenMember]),
) -> Result<(), StoreError> {
    let machines: Option<BTreeSet<String>> = seen.iter().map(|one| one.node.clone()).collect();
    // A member without a known machine is removed first.
    let Some(machines) = machines.filter(|machines| *machines != memory.users) else {
        return Ok(());
    };
    still_leads(handle, leadership).await?;
    config.etcd.set_users(&machines).await?;
    memory.users = machines;
    Ok(())
}

/// Logs why something waits, if the reason changed.
pub(super) fn say_once(waits: &mut String, reason: String) {
    if *waits != reason {
        tracing::info!(reason, "the store is not as it should be yet");
        *waits = reason;
    }
}

async fn take_step(
    config: &MembersConfig,
    snapshot: &Snapshot,
    observation: &EtcdObservation,
    step: &MemberStep,
) -> Result<(), StoreError> {
    let etcd = &config.etcd;
    let peer_url = |node: &str| {
        let entry = snapshot.nodes.get(node);
        let address = entry.and_then(|entry| entry.subnet).map(node_address);
        let address =
            address.ok_or_else(|| StoreError::Invalid(format!("machine {node} has no address")))?;
        Ok::<_, StoreError>(format!("https://{address}:{}", config.peer_port))
    };
    match step {
        MemberStep::Nothing | MemberStep::Wait(_) | MemberStep::HandOver => Ok(()),
        MemberStep::Add { node, voting } => {
            let url = peer_url(node)?;
            match voting {
                true => add_voting(config, &url).await,
                false => etcd.add(node, &url).await,
            }
        }
        MemberStep::Promote { id, with, .. } => {
            let second = with.as_deref().map(peer_url).transpose()?;
            if let Some(node) = with {
                etcd.add_user(node).await?;
            }
            etcd.promote(observation.raft_url()?, *id).await?;
            match &second {
                Some(url) => add_voting(config, url).await,
                None => Ok(()),
            }
        }
        MemberStep::Remove { member, also } => {
            for one in std::iter::once(member).chain(also) {
                etcd.remove(one.id, one.node.as_deref()).await?;
            }
            Ok(())
        }
        MemberStep::MoveRaft { to } => etcd.move_raft(observation.raft_url()?, *to).await,
    }
}

/// Adds a member with a vote. etcd refuses that while it takes another member for disconnected,
/// which it may do for a moment.
async fn add_voting(config: &MembersConfig, peer_url: &str) -> Result<(), StoreError> {
    let deadline = tokio::time::Instant::now() + BUSY;
    loop {
        let added = config.etcd.add_voting(peer_url).await;
        if added.is_ok() || tokio::time::Instant::now() >= deadline {
            return added;
        }
        tokio::time::sleep(ADD_AGAIN).await;
    }
}

/// What the machines report about preparing to become members.
fn preparing_machines(handle: &LeaderHandle, leadership: &Leadership) -> PreparingMachines {
    let observed = handle.reports.observed(leadership.since.elapsed());
    let mut preparing = PreparingMachines::default();
    for (name, reported) in &observed.reports {
        if let Some(waits) = reported.report.etcd_waits {
            preparing.able.insert(name.clone());
            if waits {
                preparing.waiting.insert(name.clone());
            }
        }
    }
    preparing
}

/// Stores the members, and the machine that prepares to become one, if they differ from the stored
/// ones. Returns true if it did.
async fn write_down(
    handle: &LeaderHandle,
    config: &MembersConfig,
    leadership: &Leadership,
    ((snapshot, seen), next): ((&Snapshot, &[SeenMember]), Option<String>),
    wanted: &BTreeSet<String>,
    memory: &mut MemberMemory,
) -> Result<bool, StoreError> {
    let mut conditions = vec![leadership.fence()];
    let mut operations = Vec::new();
    let stored = snapshot.members.as_ref();
    let before = stored.map(|stored| &stored.value);
    let mut members = cluster_members(seen, before);
    members.next.extend(next);
    members.voteless_since = voteless_since(&members, before, wanted, (config.clock)());
    if stored.is_none_or(|stored| stored.value != members) {
        let revision = stored.map_or(0, |stored| stored.revision);
        conditions.push(Compare::ModRevision(keys::MEMBERS.to_owned(), revision));
        operations.push(put(keys::MEMBERS.to_owned(), &members)?);
        if let Some(before) = before {
            let ways = (before, &members);
            operations.extend(member_events(snapshot, (config.clock)(), ways, &memory.why));
        }
    }
    for (name, node) in &snapshot.nodes {
        let voting = members.members.get(name).is_some_and(|one| one.voting);
        if node.registration.value.etcd != voting {
            let mut registration = node.registration.value.clone();
            registration.etcd = voting;
            let key = keys::registration(name);
            conditions.push(Compare::ModRevision(
                key.clone(),
                node.registration.revision,
            ));
            operations.push(put(key, &registration)?);
        }
    }
    if operations.is_empty() {
        return Ok(false);
    }
    let committed = handle.store.transact(&conditions, &operations).await?;
    if let TransactionResult::Yes(revision) = committed {
        memory
            .why
            .retain(|name, _| members.members.contains_key(name));
        handle.wait_for_revision(revision, BUSY).await;
    }
    Ok(true)
}

pub(super) fn object(snapshot: &Snapshot, node: &str) -> ObjectReference {
    let entry = snapshot.nodes.get(node);
    ObjectReference {
        kind: ObjectKind::Node,
        name: node.to_owned(),
        namespace: String::new(),
        uid: entry.map_or_else(String::new, |entry| entry.registration.value.uid.clone()),
    }
}

/// Reads the election key again; an error if this machine no longer leads.
pub(super) async fn still_leads(
    handle: &LeaderHandle,
    leadership: &Leadership,
) -> Result<(), StoreError> {
    let held = handle.store.get(&leadership.key).await?;
    let held = held.is_some_and(|key| key.create_revision == leadership.create_revision);
    if held && !leadership.lost.is_cancelled() {
        return Ok(());
    }
    Err(StoreError::Denied("this machine no longer leads".into()))
}

fn put<T: serde::Serialize>(key: String, value: &T) -> Result<WriteOperation, StoreError> {
    match json::bytes(&key, value) {
        Ok(value) => Ok(WriteOperation::Put(key, value)),
        Err(error) => Err(StoreError::Invalid(error.to_string())),
    }
}
