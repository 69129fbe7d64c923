//! Which machines hold etcd, and the next step towards that.
//!
//! The cluster has one, three or five members, as many as there are machines for. Each step is safe
//! alone and starts from what etcd reports, so an incomplete step is decided again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

use jiff::Timestamp;

use crate::{SeenStore, Snapshot, cluster_endpoints, highest_needed_reader, reader_of};
use kat_types::{
    api::NodePhase,
    machine::{
        network::node_address,
        node_labels::{ETCD_LABEL, NEVER},
    },
    store::{
        members::{ClusterMembers, MemberRecord},
        snapshot::NodeEntry,
    },
};

/// A member whose machine does not answer is replaced after this many node loss timeouts, if
/// another machine can take its place.
const REPLACED_AFTER: u32 = 5;
/// A member without a vote has at least this long for its first start.
const FIRST_START: Duration = Duration::from_secs(60);
/// etcd adds a voting member only after the others have been connected for 5 s.
const CONNECTED: Duration = Duration::from_secs(6);
/// A machine that has not prepared after this time is passed over if there is another one.
pub const PREPARED_WITHIN: Duration = Duration::from_secs(60);

/// A member as etcd lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenMember {
    /// etcd's member id.
    pub id: u64,
    /// Its machine; `None` if no machine has the address.
    pub node: Option<String>,
    /// Its machine leaves the cluster, or has left it: it may stop at any moment, for good.
    pub leaving: bool,
    /// It has a vote.
    pub voting: bool,
    /// It answers.
    pub healthy: bool,
    /// Time for which it has not answered this leader.
    pub silent: Duration,
    /// Time for which it has answered this leader without a break.
    pub steady: Duration,
    /// Its machine reports that the data of this very member is gone.
    pub data_lost: bool,
    /// What it reports of its database file, if it answers.
    pub store: Option<SeenStore>,
}

/// Machines that prepare to become members, as their reports say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreparingMachines {
    /// Machines that can prepare; those of earlier versions can't.
    pub able: BTreeSet<String>,
    /// Machines that have prepared: their etcd waits for its membership.
    pub waiting: BTreeSet<String>,
}

/// What [`next_step`] has to know besides the members.
#[derive(Debug, Clone, Copy)]
pub struct StepView<'a> {
    /// The machine that decides.
    pub own: &'a str,
    /// Id of the member that leads raft, 0 if none does.
    pub raft_leader: u64,
    /// Machines that prepare to become members.
    pub preparing: &'a PreparingMachines,
}

/// A member to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedMember {
    /// etcd's member id.
    pub id: u64,
    /// Its machine, if it is in the cluster and has no other member.
    pub node: Option<String>,
}

/// The next change of etcd's members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberStep {
    /// The members are as wanted.
    Nothing,
    /// A change is needed that is not possible now, with the reason.
    Wait(String),
    /// Add a machine as a member.
    Add {
        /// Name of the machine.
        node: String,
        /// With a vote from the start: the machine has prepared, and makes the number of voting
        /// members odd.
        voting: bool,
    },
    /// Give a member its vote, if it has caught up.
    Promote {
        /// etcd's member id.
        id: u64,
        node: String,
        /// A machine that has prepared, to be added with a vote at once: an even number of voting
        /// members tolerates no more losses than the odd one below it.
        with: Option<String>,
    },
    /// Remove a member, and at once another one, so that the number of voting members stays odd.
    Remove {
        member: RemovedMember,
        also: Option<RemovedMember>,
    },
    /// Another machine has to lead KAT first: a leader that removes its own member can write no
    /// more.
    HandOver,
    /// Move the leadership of raft from the machine that leads KAT to another member, so that the
    /// loss of that machine does not cost both.
    MoveRaft {
        /// etcd's id of the other member.
        to: u64,
    },
}

/// The member list to store. Members whose machine has left the cluster are only named. Of two
/// members at one machine, the one in `before` is kept, else the one that answers: a machine that
/// finds itself under another id removes its data.
///
/// A member that was added with a vote counts as voting once it has answered: until then it has to
/// start without data, which a member that has voted must not.
pub fn cluster_members(seen: &[SeenMember], before: Option<&ClusterMembers>) -> ClusterMembers {
    let same = |member: &SeenMember| {
        let known = member.node.as_ref().zip(before);
        let known = known.and_then(|(node, before)| before.members.get(node));
        known.is_some_and(|record| record.id == format!("{:x}", member.id))
    };
    let mut seen: Vec<_> = seen.iter().collect();
    // The last of a machine is kept.
    seen.sort_by_key(|member| (same(member), member.healthy, member.id));
    let members = seen.iter().filter_map(|member| {
        let node = member.node.clone()?;
        let id = format!("{:x}", member.id);
        let has_voted = before.is_none_or(|before| {
            let record = before.members.get(&node);
            record.is_some_and(|record| record.id == id && record.voting)
        });
        let record = MemberRecord {
            id,
            voting: member.voting && (member.healthy || has_voted),
            healthy: member.healthy,
        };
        Some((node, record))
    });
    let left = seen.iter().filter(|member| member.node.is_none());
    ClusterMembers {
        schema: 1,
        left: left.map(|member| format!("{:x}", member.id)).collect(),
        members: members.collect(),
        next: BTreeSet::new(),
        voteless_since: BTreeMap::new(),
    }
}

/// Since when each machine has been a member without a vote, for the list to store. A machine whose member was removed
/// keeps its time while it is wanted: an etcd that never starts is removed and added again for ever, and each time is
/// no new beginning. A time after `now` was written by a leader whose clock is ahead.
pub fn voteless_since(
    members: &ClusterMembers,
    before: Option<&ClusterMembers>,
    wanted: &BTreeSet<String>,
    now: Timestamp,
) -> BTreeMap<String, Timestamp> {
    let mut since = before.map_or_else(BTreeMap::new, |before| before.voteless_since.clone());
    since.retain(|name, _| match members.members.get(name) {
        Some(member) => !member.voting,
        None => wanted.contains(name),
    });
    for one in since.values_mut() {
        *one = now.min(*one);
    }
    for (name, member) in &members.members {
        if !member.voting {
            since.entry(name.clone()).or_insert(now);
        }
    }
    since
}

/// The machine that prepares to become a member while another one catches up, so that both get
/// their votes at the same moment.
pub fn preparing_machine(
    wanted: &BTreeSet<String>,
    seen: &[SeenMember],
    preparing: &PreparingMachines,
) -> Option<String> {
    let is_learner = |member: &SeenMember| {
        !member.voting && member.node.as_ref().is_some_and(|n| wanted.contains(n))
    };
    let odd = seen.iter().filter(|member| member.voting).count() % 2 == 1;
    let within = |candidates: &BTreeSet<String>| {
        let mut open = open_places(wanted, seen);
        open.find(|name| candidates.contains(*name)).cloned()
    };
    match (odd, seen.iter().any(is_learner)) {
        (true, true) => within(&preparing.waiting).or_else(|| within(&preparing.able)),
        // Only the first of two steps was taken.
        (false, false) => within(&preparing.waiting),
        _ => None,
    }
}

/// The wanted machines that are no members yet.
fn open_places<'a>(
    wanted: &'a BTreeSet<String>,
    seen: &'a [SeenMember],
) -> impl Iterator<Item = &'a String> {
    let is_member = |name: &String| seen.iter().any(|one| one.node.as_ref() == Some(name));
    wanted.iter().filter(move |name| !is_member(name))
}

/// The machine with this overlay address.
pub fn machine_at(snapshot: &Snapshot, address: Ipv4Addr) -> Option<&str> {
    let mut nodes = snapshot.nodes.iter();
    nodes
        .find(|(_, node)| node.subnet.map(node_address) == Some(address))
        .map(|(name, _)| name.as_str())
}

/// The members that will not come back as they are, although their machines are present: their data
/// is gone, they have not answered for as long as a machine is waited for, or another member
/// answers in their place. Such a member is removed; its machine may become another member, with
/// new data.
///
/// The last case may occur with an etcd that was upgraded to 3.6: members that were removed long
/// ago come back (etcd issue 20967).
pub fn lost_members(snapshot: &Snapshot, seen: &[SeenMember]) -> BTreeSet<u64> {
    let timeout = loss_timeout(snapshot) * REPLACED_AFTER;
    let lost = seen.iter().filter(|member| {
        let Some(name) = &member.node else {
            return false;
        };
        let is_there = snapshot.nodes.get(name).is_some_and(reports);
        let patience = if member.voting {
            timeout
        } else {
            timeout.max(FIRST_START)
        };
        let silent = !member.healthy && member.silent >= patience;
        let data_lost = member.voting && member.data_lost;
        let mut others = seen.iter().filter(|other| other.id != member.id);
        let twice =
            !member.healthy && others.any(|other| other.node == member.node && other.healthy);
        twice || is_there && (silent || data_lost)
    });
    lost.map(|member| member.id).collect()
}

/// The machines that are to hold etcd.
///
/// Members stay members. The order of preference is: the leading machine; the oldest member; other
/// Ready machines, first those that ask for it, then those not behind NAT, which all others reach
/// without a relay, then the oldest; then machines whose member is lost or was `given_up` lately;
/// last a member whose machine has been away for long, so that it is replaced as soon as there is
/// another machine and not before. Two voting members stay two while the machines that would make them
/// three are away for a short time.
///
/// A machine with the label [`ETCD_LABEL`] becomes no member. Nor does one that has not reported since
/// the store was begun anew.
///
/// Once every member has a certificate of the API, a machine of version 0.1.0, which makes none,
/// becomes no member: callers would not accept it.
///
/// A machine that does not read the files of every workload becomes no member, and gets no vote:
/// it could lead.
pub fn wanted_members(
    snapshot: &Snapshot,
    seen: &[SeenMember],
    (lost, given_up): (&BTreeSet<u64>, &BTreeSet<String>),
    leading: &str,
    now: Timestamp,
) -> BTreeSet<String> {
    let timeout = loss_timeout(snapshot);
    let api_named = cluster_endpoints(snapshot).is_api_named();
    let needed = highest_needed_reader(snapshot);
    let mut ranked = Vec::new();
    // Machines that are away only for now, and would be members otherwise.
    let mut expected = 0;
    for (name, node) in &snapshot.nodes {
        let registration = &node.registration.value;
        if registration.deleting || registration.no_etcd {
            continue;
        }
        let mut members = seen.iter().filter(|one| one.node.as_ref() == Some(name));
        let member = members.clone().find(|one| !lost.contains(&one.id));
        let failed = given_up.contains(name) || members.any(|one| lost.contains(&one.id));
        let label = registration.labels.get(ETCD_LABEL);
        let is_never = label.is_some_and(|value| value == NEVER);
        let rank = match member {
            Some(_) if name == leading => 0,
            Some(member) if !member.voting && reader_of(node) < needed => continue,
            Some(member) if !is_away(node, member.voting, timeout, now) => 1,
            Some(member) if member.voting => AWAY,
            None if is_never || reader_of(node) < needed => continue,
            None if api_named && registration.member_keys.api.is_empty() => continue,
            None if is_ready(node) && !registration.draining => OTHER + u8::from(failed),
            // A member without a vote whose machine is away only blocks others.
            _ => {
                let is_back_soon = !is_away(node, true, timeout, now);
                expected += usize::from(is_back_soon && !registration.draining);
                continue;
            }
        };
        let asks = rank == OTHER && registration.etcd_peer;
        // Only for machines that could become members: members stay members.
        let hidden = (OTHER..AWAY).contains(&rank) && node.reach.behind_nat;
        ranked.push((rank, !asks, hidden, registration.created, name));
    }
    ranked.sort();
    let there = ranked.iter().filter(|(rank, ..)| *rank < AWAY).count();
    let is_member = |rank: u8| rank < OTHER || rank == AWAY;
    let members = ranked.iter().filter(|(rank, ..)| is_member(*rank)).count();
    let size = size_for(there).max(size_for(members));
    // Voting members stay while the other machines are away only for now: one alone would have the only copy.
    let voting = seen.iter().filter(|one| one.voting).count();
    let size = size.max(voting.min(size_for(there + expected)));
    let chosen = ranked.into_iter().take(size);
    chosen.map(|(.., name)| name.clone()).collect()
}

/// Rank of a machine that could become a member; the next rank is that of a machine whose member
/// was lost.
const OTHER: u8 = 2;
/// Rank of a member whose machine has been away for long.
const AWAY: u8 = 4;

fn loss_timeout(snapshot: &Snapshot) -> Duration {
    Duration::from_secs(snapshot.cluster.spec.node_loss_timeout_seconds.into())
}

/// An even number of members tolerates no more losses than the odd one below it, and costs more.
fn size_for(machines: usize) -> usize {
    match machines {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

/// Whether the machine reports; a drained machine does as well.
fn reports(node: &NodeEntry) -> bool {
    let drained = [NodePhase::Draining, NodePhase::Drained];
    let status = node.status.as_ref();
    is_ready(node) || status.is_some_and(|status| drained.contains(&status.value.shown_phase()))
}

fn is_ready(node: &NodeEntry) -> bool {
    let status = node.status.as_ref();
    status.is_some_and(|status| status.value.shown_phase() == NodePhase::Ready)
}

/// Whether the machine is away; a voting member is given time to come back.
fn is_away(node: &NodeEntry, voting: bool, timeout: Duration, now: Timestamp) -> bool {
    let Some(status) = node.status.as_ref().map(|stored| &stored.value) else {
        return false;
    };
    let away = match status.since.filter(|_| status.phase == NodePhase::NotReady) {
        Some(since) => Duration::try_from(now.duration_since(since)).unwrap_or_default(),
        None => return false,
    };
    !voting || away >= timeout * REPLACED_AFTER
}

/// The next step from the present members to the wanted ones. First unwanted and lost members are
/// removed, then a member that has caught up gets its vote, then the next one is added.
///
/// From an odd number of voting members two get their votes at the same moment: a member that has
/// caught up, and a machine whose etcd waits for its membership. etcd 3.5 allows one member without
/// a vote at a time, so the second one is added with its vote. The first one and the earlier
/// members are the quorum until it has started.
pub fn next_step(
    wanted: &BTreeSet<String>,
    seen: &[SeenMember],
    lost: &BTreeSet<u64>,
    view: StepView<'_>,
) -> MemberStep {
    let is_wanted = |member: &SeenMember| {
        let wanted = member.node.as_ref().is_some_and(|n| wanted.contains(n));
        wanted && !lost.contains(&member.id)
    };
    // A member without a vote can be removed at any time.
    let mut unwanted: Vec<_> = seen.iter().filter(|member| !is_wanted(member)).collect();
    // One that leaves goes before one that stays: if it stopped after the other was removed, the rest might have no quorum.
    unwanted.sort_by_key(|one| (one.voting, one.healthy, !one.leaving, one.id));
    if let Some((member, more)) = unwanted.split_first() {
        return removal(member, more, seen, view.own);
    }
    if let Some(learner) = seen.iter().find(|member| !member.voting) {
        let second = preparing_machine(wanted, seen, view.preparing);
        return promotion(learner, second, seen, view.preparing);
    }
    let voters = count_voters(seen);
    let prepared = preparing_machine(wanted, seen, view.preparing);
    let voting = prepared.is_some();
    if let Some(node) = prepared.or_else(|| open_places(wanted, seen).next().cloned()) {
        if healthy_voters(seen, &[]) < voters {
            return MemberStep::Wait(format!("{node} becomes a member when all others answer"));
        }
        return MemberStep::Add { node, voting };
    }
    if voters >= 3 {
        let is_own = |member: &&SeenMember| member.node.as_deref() == Some(view.own);
        let leads = seen.iter().find(|member| member.id == view.raft_leader);
        let mut others = seen.iter().filter(|one| !is_own(one) && one.healthy);
        if let (Some(_), Some(other)) = (leads.filter(is_own), others.next()) {
            return MemberStep::MoveRaft { to: other.id };
        }
    }
    MemberStep::Nothing
}

fn count_voters(seen: &[SeenMember]) -> usize {
    seen.iter().filter(|member| member.voting).count()
}

/// Number of the voting members that answer, without those with these ids.
fn healthy_voters(seen: &[SeenMember], without: &[u64]) -> usize {
    let members = seen.iter().filter(|member| member.voting && member.healthy);
    members
        .filter(|member| !without.contains(&member.id))
        .count()
}

/// The removal of a member, and of one of the `more` unwanted ones if the number of voting members
/// stays odd by that. The rest has to keep the quorum.
fn removal(
    member: &SeenMember,
    more: &[&SeenMember],
    seen: &[SeenMember],
    own: &str,
) -> MemberStep {
    let voters = count_voters(seen);
    let left = voters.saturating_sub(1);
    let rest_agrees = left > 0 && healthy_voters(seen, &[member.id]) > left / 2;
    let agreed = healthy_voters(seen, &[]) > voters / 2 && rest_agrees;
    if member.voting && !agreed {
        let name = member.node.as_deref().unwrap_or("a machine that is gone");
        return MemberStep::Wait(format!(
            "the member of {name} can't be taken out: too few of the others answer"
        ));
    }
    if member.node.as_deref() == Some(own) {
        return MemberStep::HandOver;
    }
    let removed = |member: &SeenMember| {
        // If the machine has another member, the user of etcd there stays.
        let mut others = seen.iter().filter(|other| other.id != member.id);
        let alone = !others.any(|other| other.node == member.node);
        RemovedMember {
            id: member.id,
            node: member.node.clone().filter(|_| alone),
        }
    };
    let also = more.iter().find(|other| {
        let left = voters.saturating_sub(2);
        let there = healthy_voters(seen, &[member.id, other.id]);
        let odd = member.voting && other.voting && voters % 2 == 1;
        odd && other.node.as_deref() != Some(own) && left > 0 && there > left / 2
    });
    MemberStep::Remove {
        member: removed(member),
        also: also.map(|other| removed(other)),
    }
}

/// The vote of a member that has caught up, together with the membership of the `second` machine, if
/// there is one.
fn promotion(
    learner: &SeenMember,
    second: Option<String>,
    seen: &[SeenMember],
    preparing: &PreparingMachines,
) -> MemberStep {
    let node = learner.node.clone().unwrap_or_default();
    if !learner.healthy {
        return MemberStep::Wait(format!("etcd of {node} does not answer yet"));
    }
    if healthy_voters(seen, &[]) < count_voters(seen) {
        return MemberStep::Wait(format!("{node} gets its vote when all others answer"));
    }
    if let Some(second) = &second {
        if !preparing.waiting.contains(second) {
            return MemberStep::Wait(format!(
                "{node} gets its vote together with {second}, whose etcd is not prepared yet"
            ));
        }
        if learner.steady < CONNECTED {
            return MemberStep::Wait(format!(
                "etcd of {node} has not been connected for {} s yet",
                CONNECTED.as_secs()
            ));
        }
    }
    MemberStep::Promote {
        id: learner.id,
        node,
        with: second,
    }
}

/// Whether a machine that holds etcd may be removed now: the others keep the quorum. Their etcd has to
/// answer, and not only their agent: the machine that leaves is cut off before its member is removed.
pub fn may_lose_member(snapshot: &Snapshot, node: &str) -> bool {
    let members = members_of(snapshot).count();
    let others = members_of(snapshot).filter(|(name, _)| *name != node);
    let troubled = member_troubles(snapshot, node).len();
    others.count().saturating_sub(troubled) > members / 2
}

/// Why machines that hold etcd, other than `node`, do not count for a quorum without it; a sentence
/// for each.
pub fn member_troubles(snapshot: &Snapshot, node: &str) -> Vec<String> {
    let seen = snapshot.members.as_ref().map(|stored| &stored.value);
    let answers = |name: &String| {
        seen.is_none_or(|seen| seen.members.get(name).is_some_and(|one| one.healthy))
    };
    let others = members_of(snapshot).filter(|(name, _)| *name != node);
    others
        .filter_map(|(name, entry)| match &entry.status {
            None => Some(format!("{name} has not reported yet")),
            // The variants of a phase are called as the API writes them.
            Some(status) if !is_ready(entry) => {
                Some(format!("{name} is {:?}", status.value.shown_phase()))
            }
            Some(_) if !answers(name) => Some(format!("etcd on {name} does not answer")),
            Some(_) => None,
        })
        .collect()
}

/// The machines that hold etcd.
fn members_of(snapshot: &Snapshot) -> impl Iterator<Item = (&String, &NodeEntry)> {
    let nodes = snapshot.nodes.iter();
    nodes.filter(|(_, entry)| entry.registration.value.etcd)
}

#[cfg(test)]
mod tests;
