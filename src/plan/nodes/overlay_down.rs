//! Machines whose overlay is dead while they report: new connections are kept from them.
//!
//! A machine reports to the leader over its own network, and its health checks run on the machine
//! itself, so neither shows that nothing arrives over the overlay. `kat-net` of each machine probes
//! its peers and says for how long one has not answered. A machine counts as unreachable when the
//! leader's own machine says so, and with it more than half of the other machines, at least two. No
//! report can bring that about alone. What they say counts for the time in which the machine
//! reported without a gap: one that was off has answered nobody either.
//!
//! Callers are sent elsewhere where another instance serves; nothing is stopped or replaced. One
//! machine is judged at a time, and each judgement lasts for a while.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use crate::{
    Snapshot,
    draft::{Draft, OperationGroup},
    nodes::node_loss::{self as loss, LastReport},
};
use kat_types::{
    api::{ApiTime, Condition, EventKind, NodePhase, ObjectKind, ObjectReference, OverlayStatus},
    reason::{EventReason, Reason},
    store::records::NodeStatusRecord,
};

/// Condition of a machine: other machines reach it over the overlay.
const OVERLAY_CONDITION: &str = "OverlayReachable";
/// A machine that has not answered another one for this long is unreachable for that one.
const UNANSWERED: Duration = Duration::from_secs(15);
/// Shortest time between two judgements, and of each.
const PAUSE: Duration = Duration::from_secs(30);
/// Most machines that the message names.
const NAMED: usize = 5;

/// Whether the leader has judged the machine unreachable over the overlay.
pub(crate) fn is_down(status: &NodeStatusRecord) -> bool {
    judged(status).is_some()
}

fn judged(status: &NodeStatusRecord) -> Option<&Condition> {
    let mut conditions = status.conditions.iter();
    conditions.find(|one| one.kind == OVERLAY_CONDITION && one.reason == Reason::OverlayDown)
}

/// Replaces what the machine itself says of this condition.
pub(crate) fn set_condition(status: &mut NodeStatusRecord, condition: Option<Condition>) {
    status
        .conditions
        .retain(|one| one.kind != OVERLAY_CONDITION);
    status.conditions.extend(condition);
}

/// The conditions of the machines that are unreachable over the overlay, by name.
pub(crate) fn conditions(
    draft: &mut Draft<'_>,
    heard: &BTreeMap<&str, LastReport<'_>>,
) -> BTreeMap<String, Condition> {
    let (snapshot, now) = (draft.snapshot, draft.now);
    let before = |name: &str| {
        let status = snapshot.nodes.get(name)?.status.as_ref()?;
        judged(&status.value)
    };
    let lasts = |condition: &Condition| {
        let since = condition.since.get();
        since.map_or(Duration::ZERO, |since| left_of_pause(since, now))
    };
    let mut found = BTreeMap::new();
    let mut waits: Option<Duration> = None;
    let pause = snapshot.nodes.keys().filter_map(|name| before(name));
    let mut pause = pause.map(lasts).max().unwrap_or_default();
    for (name, last) in heard {
        let earlier = before(name);
        // Without a report the machine is judged by its silence.
        if last.report.is_none() || last.silent >= loss::timeout(snapshot) {
            continue;
        }
        // A gap in the machine's reports delays a judgement and ends none: its agent may have
        // restarted.
        let judged = LastReport {
            steady: earlier.map_or(last.steady, |_| Duration::MAX),
            ..*last
        };
        let witnesses = witnesses_against(snapshot, heard, (name, &judged));
        let condition = match (witnesses, earlier) {
            (Some(names), Some(earlier)) => condition(&names, earlier.since),
            (None, Some(earlier)) => {
                let left = lasts(earlier);
                if left.is_zero() {
                    continue;
                }
                waits = Some(waits.map_or(left, |waits| waits.min(left)));
                earlier.clone()
            }
            (Some(names), None) if pause.is_zero() => {
                pause = PAUSE;
                condition(&names, now.into())
            }
            (Some(_), None) => {
                waits = Some(waits.map_or(pause, |waits| waits.min(pause)));
                continue;
            }
            (None, None) => continue,
        };
        found.insert((*name).to_owned(), condition);
    }
    if let Some(left) = waits {
        draft.wake(left);
    }
    found
}

/// The machines that do not reach this one, if they are enough to judge it: the leader's machine,
/// and more than half of those that can say so.
fn witnesses_against<'a>(
    snapshot: &Snapshot,
    heard: &BTreeMap<&'a str, LastReport<'_>>,
    (name, judged): (&str, &LastReport<'_>),
) -> Option<Vec<&'a str>> {
    let leader = snapshot.leader_name.as_deref()?;
    let timeout = loss::timeout(snapshot);
    // A machine that is unreachable itself reaches nobody, and says so of all.
    let is_down = |other: &str| {
        let status = snapshot
            .nodes
            .get(other)
            .and_then(|node| node.status.as_ref());
        status.is_some_and(|status| self::is_down(&status.value))
    };
    let others = heard.iter().filter(|(other, last)| {
        **other != name && last.report.is_some() && last.silent < timeout && !is_down(other)
    });
    let mut count = 0;
    let mut against = Vec::new();
    for (other, last) in others {
        count += 1;
        let unanswered = unanswered(last, name);
        if unanswered.is_some_and(|unanswered| last_while_steady(unanswered, last, judged)) {
            against.push(*other);
        }
    }
    let enough = against.len() >= 2 && against.len() * 2 > count && against.contains(&leader);
    enough.then_some(against)
}

/// For how long a machine whose data path runs had had no answer from this one when it reported.
fn unanswered(last: &LastReport<'_>, name: &str) -> Option<Duration> {
    let overlay = &last.report?.overlay_network;
    let mut peers = overlay.peers.iter();
    let seconds = peers.find(|peer| peer.name == name)?.unanswered_seconds?;
    let connected = overlay.status == OverlayStatus::Connected;
    connected.then(|| Duration::from_secs(u64::from(seconds)))
}

/// Whether enough of the time without an answer lies between the first and the last report that the
/// judged machine has sent without a gap.
fn last_while_steady(
    unanswered: Duration,
    witness: &LastReport<'_>,
    judged: &LastReport<'_>,
) -> bool {
    // All three are ages.
    let began = (witness.silent + unanswered).min(judged.steady);
    let ended = witness.silent.max(judged.silent);
    began.saturating_sub(ended) >= UNANSWERED
}

fn condition(names: &[&str], since: ApiTime) -> Condition {
    let named = names.iter().take(NAMED).copied().collect::<Vec<_>>();
    let mut said = named.join(", ");
    if names.len() > NAMED {
        said.push_str(&format!(" and {} others", names.len() - NAMED));
    }
    Condition {
        kind: OVERLAY_CONDITION.to_owned(),
        status: false,
        reason: Reason::OverlayDown.into(),
        message: format!(
            "it reports, and does not answer over the overlay, say {said}; new connections go to other machines where any serves"
        ),
        since,
    }
}

fn left_of_pause(since: Timestamp, now: Timestamp) -> Duration {
    let passed = now.duration_since(since);
    PAUSE.saturating_sub(passed.try_into().unwrap_or(Duration::ZERO))
}

/// Writes an event when the machine is judged, and when the judgement ends.
pub(crate) fn event(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    name: &str,
    (before, status): (&NodeStatusRecord, &NodeStatusRecord),
) {
    let (kind, reason, message) = match (judged(before), judged(status)) {
        (None, Some(condition)) => (
            EventKind::Warning,
            EventReason::OverlayDown,
            format!(
                "machine {name} is unreachable over the overlay: {}",
                condition.message
            ),
        ),
        (Some(_), None) if status.phase != NodePhase::NotReady => (
            EventKind::Normal,
            EventReason::OverlayUp,
            format!("machine {name} answers over the overlay again"),
        ),
        _ => return,
    };
    let node = draft.snapshot.nodes.get(name);
    let object = ObjectReference {
        kind: ObjectKind::Node,
        name: name.to_owned(),
        namespace: String::new(),
        uid: node.map_or_else(String::new, |node| node.registration.value.uid.clone()),
    };
    draft.event(group, kind, reason, object, message);
}
