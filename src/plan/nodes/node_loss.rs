//! Machines that are lost, and whether what ran on them is replaced (RFC001-KAT 4.1.4).
//!
//! A machine is lost when it has been silent for `nodeLossTimeoutSeconds` by this leader's own
//! clock: what another leader had heard does not count, so a new one grants everybody a full
//! timeout. When more than half of the machines vanish at once, it is the network or the leader
//! that is ill, and not they: nothing is moved then.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use crate::{NodeEntry, Observed, ReportedNode, Snapshot};
use kat_types::api::{NodePhase, NodeReport};

/// Longest end of a container beside its program's grace: what systemd and Podman take for it.
const ENDING: Duration = Duration::from_secs(2);

/// What the leader last heard of a machine.
pub(crate) struct Heard<'a> {
    /// Its last report, if one counts.
    pub(crate) report: Option<&'a NodeReport>,
    /// For how long it has been silent.
    pub(crate) silent: Duration,
}

/// After so long a silence a machine is lost.
pub(crate) fn timeout(snapshot: &Snapshot) -> Duration {
    Duration::from_secs(u64::from(snapshot.cluster.spec.node_loss_timeout_seconds))
}

/// How long after a machine is known to have counted as there an instance with `onPartition: stop`
/// is told to end, so that it has ended when a leader may replace it. Nothing where that would be
/// before half of the timeout: too soon to tell a cut from a report that was lost.
///
/// The machine sends a report at s, a leader takes it at a >= s, and says that it was sure at u to
/// lead. This leader replaces at a + timeout at the earliest. Another one begins after u, knows no
/// report, and replaces at u + timeout at the earliest, even where the first one went on taking
/// reports because it had not noticed yet. So the machine counts from s - (a - u), which is not
/// after s and not after u, and what ends by then + timeout has ended before either. The program's
/// grace and the end of the container come out of it; nothing else has to.
pub fn fence_after(timeout: Duration, grace_seconds: u32) -> Option<Duration> {
    let ending = ENDING.min(timeout / 5);
    let after = timeout.checked_sub(ending + Duration::from_secs(grace_seconds.into()))?;
    (after >= timeout / 2).then_some(after)
}

/// What was heard of every machine.
///
/// A machine of the same name with another identity says nothing about this one. Nor does a report
/// from before this leadership: another leader may have decided by newer ones. One that has just
/// joined was silent since then at most.
pub(crate) fn heard<'a>(
    snapshot: &'a Snapshot,
    observed: &'a Observed,
    now: Timestamp,
) -> BTreeMap<&'a str, Heard<'a>> {
    let counts = |node: &NodeEntry, reported: &ReportedNode| {
        reported.report.node_uid == node.registration.value.uid
            && reported.age <= observed.leading_for
    };
    let machines = snapshot.nodes.iter().map(|(name, node)| {
        let reported = observed
            .reports
            .get(name)
            .filter(|reported| counts(node, reported));
        let known = now.duration_since(node.registration.value.created);
        let known = known.try_into().unwrap_or(Duration::ZERO);
        let heard = Heard {
            report: reported.map(|reported| reported.report.as_ref()),
            silent: reported.map_or(observed.leading_for.min(known), |reported| reported.age),
        };
        (name.as_str(), heard)
    });
    machines.collect()
}

/// The lost machines.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// By name; with the reason where what ran there is not replaced.
    lost: BTreeMap<String, Option<String>>,
}

impl Losses {
    /// Judges every machine that is lost by those that vanished with it.
    pub(crate) fn of(
        snapshot: &Snapshot,
        heard: &BTreeMap<&str, Heard<'_>>,
        now: Timestamp,
    ) -> Self {
        let timeout = timeout(snapshot);
        let mut gone: BTreeMap<&str, Timestamp> = BTreeMap::new();
        // Machines vanish together and yet not in the same moment: their last reports lie up to a
        // tick, a third of the timeout, apart.
        let mut fading = 0;
        for (name, heard) in heard {
            let since = not_ready_since(snapshot, name);
            if heard.silent >= timeout || (heard.report.is_none() && since.is_some()) {
                gone.insert(*name, since.unwrap_or(now));
            } else if heard.silent >= timeout / 2 {
                fading += 1;
            }
        }
        let lost = heard
            .iter()
            .filter(|(_, heard)| heard.silent >= timeout)
            .filter_map(|(name, _)| Some((*name, *gone.get(name)?)))
            .map(|(name, since)| {
                let at_once = |other: &&Timestamp| apart(**other, since) <= timeout;
                let fading = if apart(now, since) <= timeout { fading } else { 0 };
                let together = gone.values().filter(at_once).count() + fading;
                let earlier = gone.values().filter(|other| **other < since);
                let earlier = earlier.filter(|other| !at_once(other)).count();
                let there = heard.len() - earlier;
                let waits = together * 2 > there;
                let reason = waits.then(|| {
                    format!(
                        "{together} of {there} machines vanished at once: nothing is moved until enough of them are back, or were deleted"
                    )
                });
                (name.to_owned(), reason)
            });
        Self {
            lost: lost.collect(),
        }
    }

    /// What ran on this machine is replaced elsewhere.
    pub(crate) fn is_replaced(&self, node: &str) -> bool {
        self.lost.get(node).is_some_and(Option::is_none)
    }

    /// Why what ran on this lost machine is not replaced.
    pub(crate) fn why_not(&self, node: &str) -> Option<&str> {
        self.lost.get(node)?.as_deref()
    }

    /// Why nothing is moved, where that is so for any machine.
    pub(crate) fn waiting(&self) -> Option<&str> {
        self.lost.values().find_map(Option::as_deref)
    }
}

/// Since when a machine has been NotReady, as it is stored.
fn not_ready_since(snapshot: &Snapshot, name: &str) -> Option<Timestamp> {
    let status = &snapshot.nodes.get(name)?.status.as_ref()?.value;
    let since = status.since.unwrap_or(Timestamp::UNIX_EPOCH);
    (status.phase == NodePhase::NotReady).then_some(since)
}

fn apart(one: Timestamp, other: Timestamp) -> Duration {
    one.duration_since(other).unsigned_abs()
}
