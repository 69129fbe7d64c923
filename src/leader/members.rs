//! etcd's members: while this machine leads, it brings them to what `plan` wants, one step at a
//! time, and writes down what it sees.
//!
//! Members are no keys, so no transaction can fence their changes. Before each step the election's
//! key is read again, and each step starts from what etcd says now: a deposed leader is stopped but
//! for the moment between the two, and a step that two leaders take is the same.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::LeaderHandle;
use crate::{
    api::types::ObjectReference,
    plan::{
        ClusterMembers, EventKind, EventLog, MemberStep, SeenMember, Snapshot, machine_at,
        next_step, node_address, wanted_members,
    },
    store::{
        Committed, Compare, Leadership, Operation, StoreError, etcd_admin::EtcdMember,
        etcd_admin::EtcdStatus, keys,
    },
};

/// Between two looks while something is to be done.
const BUSY: Duration = Duration::from_secs(1);
/// Between two looks while all is well.
const IDLE: Duration = Duration::from_secs(5);

/// What etcd lets its superuser do about members. URLs are those of one member's client port.
#[async_trait]
pub trait EtcdMembers: Send + Sync {
    /// The members.
    async fn list(&self) -> Result<Vec<EtcdMember>, StoreError>;
    /// What one member says of itself.
    async fn status(&self, url: &str) -> Result<EtcdStatus, StoreError>;
    /// Makes a machine's user and adds a member without a vote.
    async fn add(&self, node: &str, peer_url: &str) -> Result<(), StoreError>;
    /// Gives a member its vote; `url` is of the member that leads raft.
    async fn promote(&self, url: &str, id: u64) -> Result<(), StoreError>;
    /// Takes a member out, and its machine's user.
    async fn remove(&self, id: u64, node: Option<&str>) -> Result<(), StoreError>;
    /// Lets another member lead raft; `url` is of the one that leads it now.
    async fn move_raft(&self, url: &str, to: u64) -> Result<(), StoreError>;
}

/// What this machine needs to look after the members.
#[derive(Clone)]
pub struct MembersConfig {
    /// Its name.
    pub node: String,
    /// etcd's port for clients.
    pub client_port: u16,
    /// etcd's port for peers.
    pub peer_port: u16,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// etcd.
    pub etcd: Arc<dyn EtcdMembers>,
}

/// What etcd looked like.
struct Look {
    seen: Vec<SeenMember>,
    /// Id of the member that leads raft, and where clients reach it.
    raft_leader: u64,
    raft_url: Option<String>,
}

/// Looks after the members until `cancel`, whenever this machine leads.
pub async fn keep_members(handle: LeaderHandle, config: MembersConfig, cancel: CancellationToken) {
    let mut leadership = handle.leadership.clone();
    let work = async {
        let mut waits = String::new();
        loop {
            let now = leadership.borrow_and_update().clone();
            let Some(now) = now.filter(|now| !now.lost.is_cancelled()) else {
                if leadership.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let mut pause = IDLE;
            match round(&handle, &config, &now, &mut waits).await {
                Ok(false) => waits.clear(),
                Ok(true) => pause = BUSY,
                Err(error) => {
                    say_once(&mut waits, error.to_string());
                    pause = BUSY;
                }
            }
            tokio::select! {
                () = sleep(pause) => {}
                changed = leadership.changed() => if changed.is_err() { return },
            }
        }
    };
    cancel.run_until_cancelled(work).await;
}

/// One look and at most one step; true when there is more to do.
async fn round(
    handle: &LeaderHandle,
    config: &MembersConfig,
    leadership: &Leadership,
    waits: &mut String,
) -> Result<bool, StoreError> {
    let Some(snapshot) = handle.snapshot.borrow().clone() else {
        return Ok(true);
    };
    let look = look(config, &snapshot).await?;
    if write_down(handle, config, leadership, &snapshot, &look.seen).await? {
        // What is decided next stands on what was just written.
        return Ok(true);
    }
    let now = (config.clock)();
    let wanted = wanted_members(&snapshot, &look.seen, &config.node, now);
    let step = next_step(&wanted, &look.seen, &config.node, look.raft_leader);
    let message = match &step {
        MemberStep::Nothing => return Ok(false),
        MemberStep::Wait(reason) => {
            say_once(waits, reason.clone());
            return Ok(true);
        }
        MemberStep::Add { node } => format!("machine {node} becomes a member of etcd"),
        MemberStep::Promote { node, .. } => format!("etcd of machine {node} gets its vote"),
        MemberStep::Remove { node, .. } => {
            let node = node.as_deref().unwrap_or("a machine that is gone");
            format!("etcd of {node} is no member any more")
        }
        MemberStep::MoveRaft { to } => format!("the member {to:x} is to lead raft"),
    };
    tracing::info!(message, "a step towards etcd's members");
    still_leads(handle, leadership).await?;
    take(config, &snapshot, &look, &step).await?;
    tell(handle, config, leadership, &step, message).await?;
    Ok(true)
}

/// Tells why the members wait, when that changes.
fn say_once(waits: &mut String, reason: String) {
    if *waits != reason {
        tracing::info!(reason, "etcd's members are not as they should be yet");
        *waits = reason;
    }
}

async fn take(
    config: &MembersConfig,
    snapshot: &Snapshot,
    look: &Look,
    step: &MemberStep,
) -> Result<(), StoreError> {
    let etcd = &config.etcd;
    let raft = || {
        let url = look.raft_url.clone();
        url.ok_or_else(|| StoreError::Unavailable("no member leads raft".into()))
    };
    match step {
        MemberStep::Nothing | MemberStep::Wait(_) => Ok(()),
        MemberStep::Add { node } => {
            let entry = snapshot.nodes.get(node);
            let address = entry.and_then(|entry| entry.subnet).map(node_address);
            let address = address
                .ok_or_else(|| StoreError::Invalid(format!("machine {node} has no address")))?;
            let url = format!("https://{address}:{}", config.peer_port);
            etcd.add(node, &url).await
        }
        MemberStep::Promote { id, .. } => etcd.promote(&raft()?, *id).await,
        MemberStep::Remove { id, node } => etcd.remove(*id, node.as_deref()).await,
        MemberStep::MoveRaft { to } => etcd.move_raft(&raft()?, *to).await,
    }
}

/// Asks etcd for its members, and each of them how it is.
async fn look(config: &MembersConfig, snapshot: &Snapshot) -> Result<Look, StoreError> {
    let listed = config.etcd.list().await?;
    let asked = listed.iter().map(|member| async move {
        let address = address_of(member);
        let url = address.map(|address| format!("https://{address}:{}", config.client_port));
        let status = match &url {
            Some(url) => config.etcd.status(url).await.ok(),
            None => None,
        };
        (member, address, url, status)
    });
    let answers = futures_util::future::join_all(asked).await;
    let mut look = Look {
        seen: Vec::new(),
        raft_leader: 0,
        raft_url: None,
    };
    let mut newest = 0;
    for (member, address, _, status) in &answers {
        let has_leader = status.as_ref().filter(|status| status.leader != 0);
        if let Some(status) = has_leader.filter(|status| status.raft_term >= newest) {
            newest = status.raft_term;
            look.raft_leader = status.leader;
        }
        look.seen.push(SeenMember {
            id: member.id,
            node: address.and_then(|at| machine_at(snapshot, at).map(ToOwned::to_owned)),
            voting: !member.is_learner,
            healthy: has_leader.is_some(),
        });
    }
    let leads = answers.into_iter().find(|one| one.0.id == look.raft_leader);
    look.raft_url = leads.and_then(|(_, _, url, _)| url);
    Ok(look)
}

/// The address in a member's first URL for peers: known before it has started.
fn address_of(member: &EtcdMember) -> Option<Ipv4Addr> {
    let url = member.peer_urls.first()?;
    let (host, _) = url.strip_prefix("https://")?.rsplit_once(':')?;
    host.parse().ok()
}

/// Writes the members down where that differs from what is stored; true when it did.
async fn write_down(
    handle: &LeaderHandle,
    config: &MembersConfig,
    leadership: &Leadership,
    snapshot: &Snapshot,
    seen: &[SeenMember],
) -> Result<bool, StoreError> {
    let mut conditions = vec![leadership.fence()];
    let mut operations = Vec::new();
    let members = ClusterMembers::of(seen);
    let stored = snapshot.members.as_ref();
    if stored.is_none_or(|stored| stored.value != members) {
        let revision = stored.map_or(0, |stored| stored.revision);
        conditions.push(Compare::ModRevision(keys::MEMBERS.to_owned(), revision));
        operations.push(put(keys::MEMBERS.to_owned(), &members)?);
        let before = stored.map(|stored| &stored.value);
        operations.extend(health_events(config, snapshot, before, &members));
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
    if let Committed::Yes(revision) = committed {
        handle.wait_for_revision(revision, BUSY).await;
    }
    Ok(true)
}

/// A member that answers no more, or again, is told once.
fn health_events(
    config: &MembersConfig,
    snapshot: &Snapshot,
    before: Option<&ClusterMembers>,
    now: &ClusterMembers,
) -> Vec<Operation> {
    let mut log = EventLog::new(&snapshot.events, (config.clock)());
    let none = BTreeMap::new();
    let before = before.map_or(&none, |before| &before.members);
    let changed = now.members.iter().filter(|(name, member)| {
        let earlier = before.get(*name);
        member.voting && earlier.is_some_and(|one| one.voting && one.healthy != member.healthy)
    });
    let mut operations = Vec::new();
    for (name, member) in changed {
        let (kind, reason, message) = if member.healthy {
            let message = format!("etcd of machine {name} answers again");
            (EventKind::Normal, "MemberHealthy", message)
        } else {
            let message = format!("etcd of machine {name} does not answer");
            (EventKind::Warning, "MemberUnhealthy", message)
        };
        operations.extend(log.record(kind, reason, object(snapshot, name), message));
    }
    operations
}

fn object(snapshot: &Snapshot, node: &str) -> ObjectReference {
    let entry = snapshot.nodes.get(node);
    ObjectReference {
        kind: "Node".to_owned(),
        name: node.to_owned(),
        namespace: String::new(),
        uid: entry.map_or_else(String::new, |entry| entry.registration.value.uid.clone()),
    }
}

/// Reads the election's key anew.
async fn still_leads(handle: &LeaderHandle, leadership: &Leadership) -> Result<(), StoreError> {
    let held = handle.store.get(&leadership.key).await?;
    let held = held.is_some_and(|key| key.create_revision == leadership.create_revision);
    if held && !leadership.lost.is_cancelled() {
        return Ok(());
    }
    Err(StoreError::Denied("this machine no longer leads".into()))
}

async fn tell(
    handle: &LeaderHandle,
    config: &MembersConfig,
    leadership: &Leadership,
    step: &MemberStep,
    message: String,
) -> Result<(), StoreError> {
    let (node, reason) = match step {
        MemberStep::Add { node } => (Some(node), "MemberAdded"),
        MemberStep::Promote { node, .. } => (Some(node), "MemberVotes"),
        MemberStep::Remove { node, .. } => (node.as_ref(), "MemberRemoved"),
        _ => return Ok(()),
    };
    let Some(snapshot) = handle.snapshot.borrow().clone() else {
        return Ok(());
    };
    let object = object(&snapshot, node.map_or("", String::as_str));
    let mut log = EventLog::new(&snapshot.events, (config.clock)());
    let operations = log.record(EventKind::Normal, reason, object, message);
    let fence = [leadership.fence()];
    handle.store.transact(&fence, &operations).await.map(drop)
}

fn put<T: serde::Serialize>(key: String, value: &T) -> Result<Operation, StoreError> {
    match serde_json::to_vec(value) {
        Ok(value) => Ok(Operation::Put(key, value)),
        Err(error) => Err(StoreError::Invalid(format!("{key}: {error}"))),
    }
}
