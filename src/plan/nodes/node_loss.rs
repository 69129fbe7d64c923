//! Lost machines, and whether their instances are replaced (RFC001-KAT 4.1.4).
//!
//! A machine is lost when it has been silent for `nodeLossTimeoutSeconds` by this leader's own
//! clock. Reports that another leader received do not count, so a new leader grants every machine a
//! full timeout. When more than half of the machines vanish at once, the fault lies with the
//! network or the leader and not with the machines: nothing is moved then. Machines that return
//! while another one is still away count with it for one timeout more, since they do not all
//! return in the same moment.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use crate::Snapshot;
use kat_types::{
    api::{NodePhase, NodeReport},
    store::snapshot::{NodeEntry, ObservedReports, ReportedNode},
};

/// The largest `nodeLossTimeoutSeconds`.
const LONGEST_TIMEOUT: u32 = 86_400;

/// What the leader last heard of a machine.
#[derive(Clone, Copy)]
pub(crate) struct LastReport<'a> {
    /// Its last report; `None` if none counts.
    pub(crate) report: Option<&'a NodeReport>,
    /// For how long it has been silent.
    pub(crate) silent: Duration,
    /// For how long its reports have come without a gap.
    pub(crate) steady: Duration,
    /// The time with which the machine counts, by its last report to any leader; 0 if unknown.
    pub(crate) own_seconds: u32,
}

/// A machine is lost after this time of silence.
pub(crate) fn timeout(snapshot: &Snapshot) -> Duration {
    Duration::from_secs(u64::from(snapshot.cluster.spec.node_loss_timeout_seconds))
}

impl LastReport<'_> {
    /// The machine is lost after this time of silence: the leader's, or a longer one that the machine
    /// has reported, as after a restore from a backup with earlier settings.
    pub(crate) fn timeout(&self, snapshot: &Snapshot) -> Duration {
        let own = self.own_seconds.min(LONGEST_TIMEOUT);
        timeout(snapshot).max(Duration::from_secs(own.into()))
    }

    fn is_silent(&self, snapshot: &Snapshot) -> bool {
        self.silent >= self.timeout(snapshot)
    }
}

/// What the leader last heard of every machine.
///
/// A report of a machine with the same name and another identity does not count. Nor does a report
/// from before this leadership: another leader may have decided by newer ones. A machine that has
/// just joined has been silent since then at most.
pub(crate) fn last_reports<'a>(
    snapshot: &'a Snapshot,
    observed: &'a ObservedReports,
    now: Timestamp,
) -> BTreeMap<&'a str, LastReport<'a>> {
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
        let stored = node.status.as_ref();
        let stored = stored.map_or(0, |status| status.value.loss_timeout_seconds);
        let own_seconds = reported.map_or(stored, |reported| {
            let followed = reported.report.configuration.as_ref();
            followed.map_or(0, |followed| followed.node_loss_timeout_seconds)
        });
        let heard = LastReport {
            own_seconds,
            report: reported.map(|reported| reported.report.as_ref()),
            silent: reported.map_or(observed.leading_for.min(known), |reported| reported.age),
            steady: reported.map_or(Duration::ZERO, |reported| reported.steady),
        };
        (name.as_str(), heard)
    });
    machines.collect()
}

/// The last contact with a machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastContact {
    /// When it last reported to this leader; if it has not, when this leadership began.
    pub(crate) at: Timestamp,
    /// After this time of silence it is lost.
    pub(crate) loss_timeout: Duration,
}

/// The lost machines.
#[derive(Debug, Default)]
pub(crate) struct LostMachines {
    /// By name; with the reason if its instances are not replaced.
    lost: BTreeMap<String, Option<String>>,
    contacts: BTreeMap<String, LastContact>,
    /// After this time one machine less counts as just returned; `None` where nothing is lost.
    pub(crate) settles_in: Option<Duration>,
}

impl LostMachines {
    /// Judges each lost machine by the machines that vanished with it.
    pub(crate) fn of(
        snapshot: &Snapshot,
        heard: &BTreeMap<&str, LastReport<'_>>,
        now: Timestamp,
    ) -> Self {
        let timeout = timeout(snapshot);
        let mut gone: BTreeMap<&str, Timestamp> = BTreeMap::new();
        // Machines vanish together and yet not in the same moment: their last reports lie up to a
        // tick, a third of the timeout, apart.
        let mut fading = 0;
        // They do not return in the same moment either: when each one came back.
        let mut back: Vec<Timestamp> = Vec::new();
        for (name, heard) in heard {
            let since = not_ready_since(snapshot, name);
            if heard.is_silent(snapshot) || (heard.report.is_none() && since.is_some()) {
                gone.insert(*name, since.unwrap_or(now));
            } else if heard.silent >= timeout / 2 {
                fading += 1;
            } else {
                let since = since.map(|_| now).or_else(|| ready_since(snapshot, name));
                back.extend(since.filter(|at| time_between(now, *at) < timeout));
            }
        }
        let lost = heard
            .iter()
            .filter(|(_, heard)| heard.is_silent(snapshot))
            .filter_map(|(name, _)| Some((*name, *gone.get(name)?)))
            .map(|(name, since)| {
                let at_once = |other: &&Timestamp| time_between(**other, since) <= timeout;
                let fading = if time_between(now, since) <= timeout { fading } else { 0 };
                // Machines that returned while this one was still silent may have failed for the same
                // cause.
                let back = back.iter().filter(|at| **at >= since).count();
                let together = gone.values().filter(at_once).count() + fading + back;
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
        let lost: BTreeMap<_, _> = lost.collect();
        let settles = back
            .iter()
            .map(|at| timeout.saturating_sub(time_between(now, *at)));
        let contacts = heard.iter().filter_map(|(name, heard)| {
            let silent = SignedDuration::try_from(heard.silent).ok()?;
            let contact = LastContact {
                at: now.checked_sub(silent).ok()?,
                loss_timeout: heard.timeout(snapshot),
            };
            Some(((*name).to_owned(), contact))
        });
        Self {
            settles_in: settles.min().filter(|_| !lost.is_empty()),
            lost,
            contacts: contacts.collect(),
        }
    }

    /// The last contact with a machine.
    pub(crate) fn last_contact(&self, node: &str) -> Option<LastContact> {
        self.contacts.get(node).copied()
    }

    /// The instances of this machine are replaced elsewhere.
    pub(crate) fn is_replaced(&self, node: &str) -> bool {
        self.lost.get(node).is_some_and(Option::is_none)
    }

    /// Why the instances of this lost machine are not replaced.
    pub(crate) fn why_not(&self, node: &str) -> Option<&str> {
        self.lost.get(node)?.as_deref()
    }

    /// Why the instances of any lost machine are not replaced.
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

/// Since when a machine has been Ready, as it is stored.
fn ready_since(snapshot: &Snapshot, name: &str) -> Option<Timestamp> {
    let status = &snapshot.nodes.get(name)?.status.as_ref()?.value;
    status.since.filter(|_| status.phase == NodePhase::Ready)
}

fn time_between(one: Timestamp, other: Timestamp) -> Duration {
    one.duration_since(other).unsigned_abs()
}
