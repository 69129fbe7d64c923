//! How far a move is, by the records of its volumes and the reports of the receiving machine.

use std::collections::BTreeMap;

use super::{
    answers,
    early_end::{given_up, is_used_meanwhile, nothing_left},
    is_placed, report_of,
};
use crate::{draft::Draft, users_of};
use kat_types::{
    api::{VolumeMovePhase, VolumeMoveReport},
    store::records::NodeStatusRecord,
    volumes::{VolumeKey, VolumeMove},
};

/// Volumes that move together, each with its part of the move. There is at least one.
pub(crate) struct MovingVolumes<'v> {
    pub(crate) volumes: &'v [(VolumeKey, VolumeMove)],
    /// The part of the first one. Id, machines and phase are the same in all of them.
    pub(crate) moving: &'v VolumeMove,
}

/// Phase of a move.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MovePhase {
    /// An instance uses the data that is being copied, so the copy lacks what it has written: a
    /// leader that knows no moves has started it.
    Overtaken,
    /// The copy is the data, and neither machine is left.
    Stranded(String),
    /// The data stays where it was, because of the reason.
    GivenUp(String),
    /// An instance that has the data has not ended yet, or this plan has just placed one.
    Stopping,
    /// The receiving machine makes a copy, which is not the data.
    Copying,
    /// The copy is the data, and the receiving machine puts it in its place.
    Placing,
}

impl MovePhase {
    pub(crate) fn of(
        draft: &Draft<'_>,
        statuses: &BTreeMap<String, NodeStatusRecord>,
        group: &MovingVolumes<'_>,
    ) -> Self {
        let MovingVolumes { volumes, moving } = *group;
        let snapshot = draft.snapshot;
        let mut parts = volumes.iter();
        let used = parts.any(|(key, one)| is_used_meanwhile(snapshot, key, one));
        if used && !moving.placing {
            return Self::Overtaken;
        }
        if let Some(why) = nothing_left(snapshot, moving) {
            return Self::Stranded(why);
        }
        if !used && let Some(why) = given_up(draft, statuses, volumes, moving) {
            return Self::GivenUp(why);
        }
        // If the copy is the data already, an instance that an older leader placed waits for it, so
        // the move continues.
        let waits = |key| !used && users_of(snapshot, key).next().is_some();
        let mut keys = volumes.iter().map(|(key, _)| key);
        if keys.any(|key| waits(key) || is_placed(draft, key)) {
            Self::Stopping
        } else if moving.placing {
            Self::Placing
        } else {
            Self::Copying
        }
    }
}

/// What the receiving machine reports of all volumes of a move.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CopyReports {
    /// A copy is not complete, or the machine does not answer.
    Incomplete,
    /// All copies are complete; some may be in their places.
    Copied,
    /// All copies are in their places.
    Placed(CopyTotals),
}

/// Sums over the copies of a move.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyTotals {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Sockets and devices that were left out.
    pub(crate) skipped: u64,
}

impl CopyReports {
    pub(crate) fn of(
        statuses: &BTreeMap<String, NodeStatusRecord>,
        group: &MovingVolumes<'_>,
    ) -> Self {
        let MovingVolumes { volumes, moving } = *group;
        let parts = volumes.iter();
        let reports = parts.map(|(key, one)| report_of(statuses, key, Some(one)));
        let reports: Option<Vec<&VolumeMoveReport>> = reports.collect();
        let ready = statuses.get(&moving.to).is_some_and(answers);
        let Some(reports) = reports.filter(|_| ready) else {
            return Self::Incomplete;
        };
        let all = |phases: &[VolumeMovePhase]| {
            let mut reports = reports.iter();
            reports.all(|report| phases.contains(&report.phase))
        };
        if all(&[VolumeMovePhase::Placed]) {
            Self::Placed(CopyTotals::of(&reports))
        } else if all(&[VolumeMovePhase::Copied, VolumeMovePhase::Placed]) {
            Self::Copied
        } else {
            Self::Incomplete
        }
    }
}

impl CopyTotals {
    /// A machine may report any number.
    fn of(reports: &[&VolumeMoveReport]) -> Self {
        let add = |sums: Self, report: &&VolumeMoveReport| Self {
            files: sums.files.saturating_add(report.files),
            bytes: sums.bytes.saturating_add(report.bytes),
            skipped: sums.skipped.saturating_add(report.skipped),
        };
        reports.iter().fold(Self::default(), add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_reports_do_not_overflow() {
        let report = VolumeMoveReport {
            files: u64::MAX,
            bytes: u64::MAX,
            skipped: u64::MAX,
            ..VolumeMoveReport::default()
        };
        let totals = CopyTotals::of(&[&report, &report]);
        assert_eq!(
            (totals.files, totals.bytes, totals.skipped),
            (u64::MAX, u64::MAX, u64::MAX)
        );
    }
}
