//! Which machines hold etcd, and the next step of the way there.
//!
//! One member, three or five, as many as there are machines for. Each step is safe alone and starts
//! from what etcd says of itself, so a step that failed halfway is decided anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{NodeEntry, Snapshot, node_address};
use crate::api::types::NodePhase;

/// A member whose machine is away is replaced after so many of the times after which a machine
/// counts as lost, where another machine can take its place.
const REPLACED_AFTER: u32 = 5;

/// `/kat/config/members`: etcd's members as the leader last saw them. Every machine may read it:
/// one that finds itself in it starts its etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterMembers {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By machine.
    pub members: BTreeMap<String, MemberRecord>,
}

/// One member within [`ClusterMembers`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberRecord {
    /// etcd's id of it, hexadecimal. A machine that was removed and added again has another one.
    pub id: String,
    /// It has a vote. A member begins without one and gets it when it has caught up.
    pub voting: bool,
    /// It answers the leader.
    pub healthy: bool,
}

/// A member as etcd lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenMember {
    /// etcd's id of it.
    pub id: u64,
    /// Its machine; nothing where no machine has the address.
    pub node: Option<String>,
    /// It has a vote.
    pub voting: bool,
    /// It answers.
    pub healthy: bool,
}

/// What is to be done about the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberStep {
    /// All is as it should be.
    Nothing,
    /// Something is to be done, and can't be now: why.
    Wait(String),
    /// A machine becomes a member without a vote.
    Add {
        /// The machine.
        node: String,
    },
    /// A member gets its vote, if it has caught up.
    Promote {
        /// etcd's id of it.
        id: u64,
        /// Its machine.
        node: String,
    },
    /// A member is taken out.
    Remove {
        /// etcd's id of it.
        id: u64,
        /// Its machine, if it still is one.
        node: Option<String>,
    },
    /// Another member is to lead raft than the one on the machine that leads KAT, so that losing
    /// that machine does not cost both.
    MoveRaft {
        /// etcd's id of the other.
        to: u64,
    },
}

impl ClusterMembers {
    /// As etcd lists them. Members whose machine is gone are left out.
    pub fn of(seen: &[SeenMember]) -> Self {
        let members = seen.iter().filter_map(|member| {
            let record = MemberRecord {
                id: format!("{:x}", member.id),
                voting: member.voting,
                healthy: member.healthy,
            };
            Some((member.node.clone()?, record))
        });
        Self {
            schema: 1,
            members: members.collect(),
        }
    }
}

/// The machine with this address on the overlay.
pub fn machine_at(snapshot: &Snapshot, address: Ipv4Addr) -> Option<&str> {
    let mut nodes = snapshot.nodes.iter();
    nodes
        .find(|(_, node)| node.subnet.map(node_address) == Some(address))
        .map(|(name, _)| name.as_str())
}

/// The machines that are to hold etcd.
///
/// Members stay members: the leading machine first, then the oldest; then others that are Ready,
/// those first that ask for it, then the oldest; a member comes last whose machine has been away for long, so that it is
/// replaced as soon as there is another machine and not before.
pub fn wanted_members(
    snapshot: &Snapshot,
    seen: &[SeenMember],
    leading: &str,
    now: Timestamp,
) -> BTreeSet<String> {
    let timeout = Duration::from_secs(snapshot.cluster.spec.node_loss_timeout_seconds.into());
    let mut ranked = Vec::new();
    for (name, node) in &snapshot.nodes {
        let registration = &node.registration.value;
        if registration.deleting || registration.no_etcd {
            continue;
        }
        let member = seen.iter().find(|one| one.node.as_ref() == Some(name));
        let rank = match member {
            Some(_) if name == leading => 0,
            Some(member) if !is_away(node, member.voting, timeout, now) => 1,
            Some(member) if member.voting => 3,
            None if is_ready(node) && !registration.draining => 2,
            // One without a vote whose machine is away only stands in the way.
            _ => continue,
        };
        let asks = rank == 2 && registration.etcd_peer;
        ranked.push((rank, !asks, registration.created, name));
    }
    ranked.sort();
    let there = ranked.iter().filter(|(rank, ..)| *rank < 3).count();
    let members = ranked.iter().filter(|(rank, ..)| *rank != 2).count();
    let size = size_for(there).max(size_for(members));
    let chosen = ranked.into_iter().take(size);
    chosen.map(|(.., name)| name.clone()).collect()
}

/// An even number loses as many as the odd one below it, and costs more.
fn size_for(machines: usize) -> usize {
    match machines {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

fn is_ready(node: &NodeEntry) -> bool {
    let status = node.status.as_ref();
    status.is_some_and(|status| status.value.phase == NodePhase::Ready)
}

/// A voting member is given time to come back.
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

/// The next step from the members that there are to those that are wanted: what is not wanted goes
/// first, then who has caught up gets a vote, then the next one enters. `raft_leader` is the id of
/// the member that leads raft, 0 if none does; `own` the machine that decides this.
pub fn next_step(
    wanted: &BTreeSet<String>,
    seen: &[SeenMember],
    own: &str,
    raft_leader: u64,
) -> MemberStep {
    let is_wanted = |member: &SeenMember| member.node.as_ref().is_some_and(|n| wanted.contains(n));
    let voters = seen.iter().filter(|member| member.voting).count();
    let healthy = |besides: u64| {
        let members = seen.iter().filter(|member| member.voting && member.healthy);
        members.filter(|member| member.id != besides).count()
    };
    // A member without a vote can be taken out at any time.
    let mut unwanted: Vec<_> = seen.iter().filter(|member| !is_wanted(member)).collect();
    unwanted.sort_by_key(|member| (member.voting, member.healthy, member.id));
    if let Some(member) = unwanted.first() {
        let left = voters.saturating_sub(1);
        let agreed = healthy(0) > voters / 2 && left > 0 && healthy(member.id) > left / 2;
        if member.voting && !agreed {
            let name = member.node.as_deref().unwrap_or("a machine that is gone");
            return MemberStep::Wait(format!(
                "the member of {name} can't be taken out: too few of the others answer"
            ));
        }
        return MemberStep::Remove {
            id: member.id,
            node: member.node.clone(),
        };
    }
    if let Some(learner) = seen.iter().find(|member| !member.voting) {
        let node = learner.node.clone().unwrap_or_default();
        if !learner.healthy {
            return MemberStep::Wait(format!("etcd of {node} does not answer yet"));
        }
        if healthy(0) < voters {
            return MemberStep::Wait(format!("{node} gets its vote when all others answer"));
        }
        return MemberStep::Promote {
            id: learner.id,
            node,
        };
    }
    let members: BTreeSet<_> = seen.iter().filter_map(|one| one.node.as_ref()).collect();
    if let Some(node) = wanted.iter().find(|name| !members.contains(name)) {
        if healthy(0) < voters {
            return MemberStep::Wait(format!("{node} becomes a member when all others answer"));
        }
        return MemberStep::Add { node: node.clone() };
    }
    if voters >= 3 {
        let is_own = |member: &&SeenMember| member.node.as_deref() == Some(own);
        let leads = seen.iter().find(|member| member.id == raft_leader);
        let mut others = seen.iter().filter(|one| !is_own(one) && one.healthy);
        if let (Some(_), Some(other)) = (leads.filter(is_own), others.next()) {
            return MemberStep::MoveRaft { to: other.id };
        }
    }
    MemberStep::Nothing
}

/// Whether a machine that holds etcd may be taken out now: the others keep the quorum.
pub fn may_lose_member(snapshot: &Snapshot, node: &str) -> bool {
    let members = || {
        let nodes = snapshot.nodes.iter();
        nodes.filter(|(_, entry)| entry.registration.value.etcd)
    };
    let ready = members().filter(|(name, entry)| *name != node && is_ready(entry));
    ready.count() > members().count() / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{DesiredMeta, NodeRegistration, NodeStatusRecord, Stored};

    const NOW: i64 = 1_000_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn stored<T>(value: T) -> Stored<T> {
        Stored { revision: 1, value }
    }

    /// A machine for each phase, the oldest first; with how long it has been so.
    fn snapshot(phases: &[(NodePhase, i64)]) -> Snapshot {
        let nodes = (1..).zip(phases).map(|(number, (phase, seconds))| {
            let name = format!("n{number}");
            let registration = NodeRegistration {
                schema: 1,
                uid: name.clone(),
                identity_key: name.clone(),
                labels: BTreeMap::new(),
                taints: Vec::new(),
                draining: false,
                architecture: "amd64".to_owned(),
                etcd: false,
                no_etcd: false,
                etcd_peer: false,
                advertise: Vec::new(),
                reach: Default::default(),
                deleting: false,
                created: at(number.into()),
            };
            let status = NodeStatusRecord {
                phase: *phase,
                since: Some(at(NOW - seconds)),
                ..NodeStatusRecord::default()
            };
            let entry = NodeEntry {
                registration: stored(registration),
                status: Some(stored(status)),
                subnet: Some(format!("10.0.{number}.0/24").parse().unwrap()),
                public_key: None,
                endpoints: Vec::new(),
                desired: stored(DesiredMeta::default()),
            };
            (name, entry)
        });
        Snapshot {
            nodes: nodes.collect(),
            ..Snapshot::default()
        }
    }

    fn ready(count: usize) -> Snapshot {
        snapshot(&vec![(NodePhase::Ready, 0); count])
    }

    fn member(number: u64, voting: bool, healthy: bool) -> SeenMember {
        SeenMember {
            id: number,
            node: Some(format!("n{number}")),
            voting,
            healthy,
        }
    }

    fn voters(count: u64) -> Vec<SeenMember> {
        (1..=count).map(|n| member(n, true, true)).collect()
    }

    fn wanted(snapshot: &Snapshot, seen: &[SeenMember], leading: &str) -> Vec<String> {
        let wanted = wanted_members(snapshot, seen, leading, at(NOW));
        wanted.into_iter().collect()
    }

    fn step(snapshot: &Snapshot, seen: &[SeenMember]) -> MemberStep {
        let wanted = wanted_members(snapshot, seen, "n1", at(NOW));
        next_step(&wanted, seen, "n1", 0)
    }

    #[test]
    fn one_three_or_five_as_machines_are_there() {
        let sizes: Vec<usize> = (1..=7)
            .map(|count| wanted(&ready(count), &voters(1), "n1").len())
            .collect();
        assert_eq!(sizes, [1, 1, 3, 3, 5, 5, 5]);
        assert_eq!(wanted(&ready(4), &voters(1), "n1"), ["n1", "n2", "n3"]);
        // Who is a member stays one, though older machines are there.
        let seen = [1, 3, 4].map(|n| member(n, true, true));
        assert_eq!(wanted(&ready(4), &seen, "n1"), ["n1", "n3", "n4"]);
        // Of two that are left the leading one keeps the store.
        assert_eq!(wanted(&ready(2), &voters(2), "n2"), ["n2"]);
    }

    #[test]
    fn machines_that_may_not_are_passed_over() {
        let mut machines = ready(4);
        let set = |machines: &mut Snapshot, name: &str, change: fn(&mut NodeRegistration)| {
            change(&mut machines.nodes.get_mut(name).unwrap().registration.value);
        };
        set(&mut machines, "n2", |one| one.no_etcd = true);
        assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1", "n3", "n4"]);
        // Who asks goes before older ones, but not before who is a member, and does not make it two.
        set(&mut machines, "n4", |one| one.etcd_peer = true);
        let seen = [1, 3].map(|n| member(n, true, true));
        assert_eq!(wanted(&machines, &seen, "n1"), ["n1", "n3", "n4"]);
        let seen = [1, 2, 3].map(|n| member(n, true, true));
        assert_eq!(wanted(&ready(4), &seen, "n1"), ["n1", "n2", "n3"]);
        let mut two = ready(2);
        set(&mut two, "n2", |one| one.etcd_peer = true);
        assert_eq!(wanted(&two, &voters(1), "n1"), ["n1"]);
        set(&mut machines, "n3", |one| one.draining = true);
        assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1"]);
        set(&mut machines, "n1", |one| one.deleting = true);
        assert_eq!(wanted(&machines, &voters(1), "n1"), ["n4"]);
        let joining = snapshot(&[
            (NodePhase::Ready, 0),
            (NodePhase::Joining, 0),
            (NodePhase::Ready, 0),
        ]);
        assert_eq!(wanted(&joining, &voters(1), "n1"), ["n1"]);
    }

    #[test]
    fn a_lost_member_is_replaced_when_there_is_another_machine() {
        let lost = |seconds, others: usize| {
            let mut phases = vec![(NodePhase::Ready, 0), (NodePhase::NotReady, seconds)];
            phases.extend(vec![(NodePhase::Ready, 0); others]);
            snapshot(&phases)
        };
        let seen = [
            member(1, true, true),
            member(2, true, false),
            member(3, true, true),
        ];
        assert_eq!(wanted(&lost(9999, 1), &seen, "n1"), ["n1", "n2", "n3"]);
        assert_eq!(wanted(&lost(200, 2), &seen, "n1"), ["n1", "n2", "n3"]);
        assert_eq!(wanted(&lost(300, 2), &seen, "n1"), ["n1", "n3", "n4"]);
        let more = wanted(&lost(300, 3), &seen, "n1");
        assert_eq!(more, ["n1", "n3", "n4"], "not five with one that is away");
        // Out first, then in.
        assert_eq!(
            step(&lost(300, 2), &seen),
            MemberStep::Remove {
                id: 2,
                node: Some("n2".to_owned())
            }
        );
        // One without a vote that is away stands in the way at once.
        let seen = [member(1, true, true), member(2, false, false)];
        assert_eq!(wanted(&lost(1, 3), &seen, "n1"), ["n1", "n3", "n4"]);
    }

    #[test]
    fn members_enter_one_by_one_without_a_vote() {
        let three = ready(3);
        let add = |node: &str| MemberStep::Add { node: node.into() };
        let promote = |id| MemberStep::Promote {
            id,
            node: format!("n{id}"),
        };
        assert_eq!(step(&ready(2), &voters(1)), MemberStep::Nothing);
        assert_eq!(step(&three, &voters(1)), add("n2"));
        let mut seen = vec![member(1, true, true), member(2, false, false)];
        assert!(matches!(step(&three, &seen), MemberStep::Wait(_)));
        seen[1].healthy = true;
        assert_eq!(step(&three, &seen), promote(2));
        assert_eq!(step(&three, &voters(2)), add("n3"));
        seen = vec![
            member(1, true, true),
            member(2, true, false),
            member(3, false, true),
        ];
        assert!(matches!(step(&three, &seen), MemberStep::Wait(_)));
        assert_eq!(step(&three, &voters(3)), MemberStep::Nothing);
    }

    #[test]
    fn a_removal_never_costs_the_quorum() {
        let gone = |id, healthy| SeenMember {
            node: None,
            ..member(id, true, healthy)
        };
        let machines = ready(3);
        let remove = |id| MemberStep::Remove { id, node: None };
        // Of three the one that is away may go while both others answer.
        let seen = [member(1, true, true), member(2, true, true), gone(3, false)];
        assert_eq!(step(&machines, &seen), remove(3));
        let seen = [member(1, true, true), member(2, true, false), gone(3, true)];
        assert!(matches!(step(&machines, &seen), MemberStep::Wait(_)));
        let seen = [member(1, true, true), gone(2, false)];
        assert!(matches!(step(&machines, &seen), MemberStep::Wait(_)));
        assert!(matches!(
            step(&machines, &[gone(9, true)]),
            MemberStep::Wait(_)
        ));
        // Without a vote it may go at any time.
        let learner = SeenMember {
            node: None,
            ..member(3, false, false)
        };
        let seen = [member(1, true, true), member(2, true, false), learner];
        assert_eq!(step(&machines, &seen), remove(3));
    }

    #[test]
    fn raft_is_led_elsewhere_from_three_members_on() {
        let names = |count: usize| {
            (1..=count)
                .map(|n| format!("n{n}"))
                .collect::<BTreeSet<_>>()
        };
        let next = |seen: &[SeenMember], leader| next_step(&names(seen.len()), seen, "n1", leader);
        assert_eq!(next(&voters(3), 1), MemberStep::MoveRaft { to: 2 });
        assert_eq!(next(&voters(3), 2), MemberStep::Nothing);
        assert_eq!(next(&voters(3), 0), MemberStep::Nothing);
        assert_eq!(next(&voters(1), 1), MemberStep::Nothing);
        let seen = [
            member(1, true, true),
            member(2, true, false),
            member(3, true, true),
        ];
        assert_eq!(next(&seen, 1), MemberStep::MoveRaft { to: 3 });
    }

    #[test]
    fn a_member_may_go_while_the_others_keep_the_quorum() {
        let members = |phases: &[NodePhase]| {
            let phases: Vec<_> = phases.iter().map(|phase| (*phase, 0)).collect();
            let mut snapshot = snapshot(&phases);
            for node in snapshot.nodes.values_mut() {
                node.registration.value.etcd = true;
            }
            snapshot
        };
        let (up, down) = (NodePhase::Ready, NodePhase::NotReady);
        assert!(may_lose_member(&members(&[up, up, up]), "n3"));
        assert!(may_lose_member(&members(&[up, up, down]), "n3"));
        assert!(!may_lose_member(&members(&[up, down, up]), "n3"));
        assert!(!may_lose_member(&members(&[up, up]), "n2"));
        assert!(!may_lose_member(&members(&[up]), "n1"));
    }
}
