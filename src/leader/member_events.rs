//! Events of etcd's members, from the difference between the stored and the present members.
//!
//! The transaction that stores the members writes the events. So each is written once, also if the
//! answer to a step was lost or another machine leads by then.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::members::object;
use kat_plan::{EventLog, Snapshot};
use kat_types::{
    api::EventKind,
    reason::EventReason,
    store::{
        members::{ClusterMembers, MemberRecord},
        transaction::WriteOperation,
    },
};

/// Events for the change from `before` to `now`. `why` gives the reasons why members were removed,
/// by machine, if this leader removed them.
pub(super) fn member_events(
    snapshot: &Snapshot,
    clock: Timestamp,
    (before, now): (&ClusterMembers, &ClusterMembers),
    why: &BTreeMap<String, String>,
) -> Vec<WriteOperation> {
    let mut log = EventLog::new(&snapshot.events, clock);
    let mut operations = Vec::new();
    let mut tell = |kind, reason, name: &String, message| {
        operations.extend(log.record(kind, reason, object(snapshot, name), message));
    };
    let same = |name: &String, one: &MemberRecord, other: &ClusterMembers| {
        let other = other.members.get(name);
        other.is_some_and(|other| other.id == one.id)
    };
    for (name, member) in &before.members {
        if !same(name, member, now) {
            let why = why.get(name).map_or("", String::as_str);
            let message = format!("etcd of {name} is no member any more{why}");
            tell(EventKind::Normal, EventReason::MemberRemoved, name, message);
        }
    }
    for (name, member) in &now.members {
        let known = before.members.get(name).filter(|one| one.id == member.id);
        if known.is_none() {
            let message = format!("machine {name} becomes a member of etcd");
            tell(EventKind::Normal, EventReason::MemberAdded, name, message);
        }
        if member.voting && !known.is_some_and(|one| one.voting) {
            let message = format!("etcd of machine {name} gets its vote");
            tell(EventKind::Normal, EventReason::MemberVotes, name, message);
        }
        match known.filter(|one| one.voting && member.voting) {
            Some(one) if one.healthy && !member.healthy => {
                let message = format!("etcd of machine {name} does not answer");
                tell(
                    EventKind::Warning,
                    EventReason::MemberUnhealthy,
                    name,
                    message,
                );
            }
            Some(one) if !one.healthy && member.healthy => {
                let message = format!("etcd of machine {name} answers again");
                tell(EventKind::Normal, EventReason::MemberHealthy, name, message);
            }
            _ => {}
        }
    }
    operations
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::api::Event;

    fn members(listed: &[(&str, &str, bool, bool)]) -> ClusterMembers {
        let member = |(name, id, voting, healthy): &(&str, &str, bool, bool)| {
            let record = MemberRecord {
                id: (*id).to_owned(),
                voting: *voting,
                healthy: *healthy,
            };
            ((*name).to_owned(), record)
        };
        ClusterMembers {
            schema: 1,
            members: listed.iter().map(member).collect(),
            ..ClusterMembers::default()
        }
    }

    fn messages_of(before: &ClusterMembers, now: &ClusterMembers) -> Vec<String> {
        let why = BTreeMap::from([("n2".to_owned(), ": its data is gone".to_owned())]);
        let snapshot = Snapshot::default();
        let operations = member_events(&snapshot, Timestamp::UNIX_EPOCH, (before, now), &why);
        let event = |operation: &WriteOperation| match operation {
            WriteOperation::Put(_, value) => {
                let event: Event = serde_json::from_slice(value).unwrap();
                format!("{}: {}", event.reason, event.message)
            }
            other => panic!("{other:?}"),
        };
        operations.iter().map(event).collect()
    }

    #[test]
    fn what_became_of_members_is_told_once() {
        let one = members(&[("n1", "a", true, true)]);
        assert!(messages_of(&one, &one).is_empty());
        let added = members(&[("n1", "a", true, true), ("n2", "b", false, false)]);
        assert_eq!(
            messages_of(&one, &added),
            ["MemberAdded: machine n2 becomes a member of etcd"]
        );
        let votes = members(&[("n1", "a", true, true), ("n2", "b", true, true)]);
        assert_eq!(
            messages_of(&added, &votes),
            ["MemberVotes: etcd of machine n2 gets its vote"]
        );
        let silent = members(&[("n1", "a", true, true), ("n2", "b", true, false)]);
        assert_eq!(
            messages_of(&votes, &silent),
            ["MemberUnhealthy: etcd of machine n2 does not answer"]
        );
        assert_eq!(
            messages_of(&silent, &votes),
            ["MemberHealthy: etcd of machine n2 answers again"]
        );
        assert_eq!(
            messages_of(&silent, &one),
            ["MemberRemoved: etcd of n2 is no member any more: its data is gone"]
        );
    }

    /// Several steps may have happened between two looks.
    #[test]
    fn steps_that_nobody_saw_are_told_too() {
        let before = members(&[("n1", "a", true, true), ("n2", "b", true, false)]);
        let now = members(&[("n1", "a", true, true), ("n2", "c", true, true)]);
        assert_eq!(
            messages_of(&before, &now),
            [
                "MemberRemoved: etcd of n2 is no member any more: its data is gone",
                "MemberAdded: machine n2 becomes a member of etcd",
                "MemberVotes: etcd of machine n2 gets its vote",
            ]
        );
    }
}
