//! Counts the restarts that programs caused themselves.
//!
//! systemd counts every restart, and its count starts again at 0 with each `ResetFailed`, which
//! follows a failure of KAT's own. So the agent keeps the program's own count, and how much of
//! MaxCount's budget was spent when systemd's count was last reset: the unit is then written with
//! the remaining budget, so that systemd gives up at the right restart, whether the agent runs or
//! not.
//!
//! The counts lie below `/run` and live as long as systemd's: until the next boot.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::worker::{running::saved_state::SavedNotes, unit_state::unit_files::FilesError};
use kat_systemd::UnitStatus;

/// Folder of the counts; one file for each uid.
const FOLDER: &str = "restarts";

/// The count of one instance. Times are microseconds of the monotonic clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RestartCount {
    /// Restarts that the program itself caused.
    own: u32,
    /// The part of systemd's count that `own` already includes or that does not belong there.
    seen: u32,
    /// The last judged end.
    judged: u64,
    /// Start of the last run before which restarts were counted without the judgement of an end.
    counted: u64,
    /// Whether Podman lost the start that led to the judged end.
    judged_lost: bool,
    /// Start of the window in which restarts are limited.
    window: u64,
    /// The program's own restarts in the window.
    in_window: u32,
    /// Restarts of `in_window` from before systemd's count was last reset.
    spent: u32,
}

/// What is known since the last judged end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RestartEvidence<'a> {
    /// The unit's present state.
    pub status: &'a UnitStatus,
    /// The program was not the cause of the last run's end.
    pub is_ours: bool,
    /// The cause was Podman, which lost the start.
    pub lost: bool,
    /// Ends since the last judged one that were not the program's fault, including this one.
    pub excused: u32,
    /// Present time.
    pub now: u64,
    /// Length of the window.
    pub window: u64,
}

impl RestartCount {
    /// Restarts that the program itself caused, including the one that systemd refused when it gave
    /// up.
    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Until when restarts were counted: the last judged end, or the start of a later run; 0 if
    /// none was counted.
    pub(crate) fn counted(&self) -> u64 {
        self.judged.max(self.counted)
    }

    /// Whether Podman lost the start that led to the last judged end, and nothing was counted since.
    pub(crate) fn judged_lost(&self) -> bool {
        self.judged_lost && self.counted <= self.judged
    }

    /// Restarts whose cause was not judged yet.
    pub(crate) fn missed(&self, status: &UnitStatus) -> u32 {
        status.restarts.saturating_sub(self.seen)
    }

    /// The spent part of the budget that systemd's own count does not include.
    pub(crate) fn spent(&self, now: u64, window: u64) -> u32 {
        if self.is_over(now, window) {
            0
        } else {
            self.spent
        }
    }

    /// Counts the restarts since the last judged end. True when some of them were KAT's fault, so
    /// that the caller has to call `ResetFailed`.
    pub(crate) fn count(&mut self, news: RestartEvidence<'_>) -> bool {
        let status = news.status;
        let ended = status.exec_main_exit_monotonic;
        let is_new = ended != 0 && ended != self.judged;
        // systemd counts a restart when its delay is over.
        let is_pending = is_new && status.is_between_runs();
        let excused = news
            .excused
            .saturating_sub(u32::from(news.is_ours && is_pending));
        let missed = self.missed(status);
        let mut own = missed.saturating_sub(excused);
        if is_pending && !news.is_ours {
            own += 1;
        }
        if own > 0 {
            self.add(own, status.exec_main_start_monotonic, news.now, news.window);
        }
        if is_new {
            self.judged = ended;
            self.judged_lost = news.lost;
            self.seen = status.restarts + u32::from(is_pending);
        } else {
            self.seen = self.seen.max(status.restarts);
            self.counted = status.exec_main_start_monotonic;
        }
        let forgiven = (is_new && news.is_ours) || excused.min(missed) > 0;
        if forgiven {
            self.spent = self.in_window;
        }
        forgiven
    }

    /// Counts a restart by the agent of a program that began at `started`. systemd's count of
    /// restarts begins at 0 with it; its start limit counts on, so `spent` stays.
    pub(crate) fn restarted(&mut self, started: u64, now: u64, window: u64) {
        self.add(1, started, now, window);
        self.begun_anew(false);
    }

    fn add(&mut self, own: u32, started: u64, now: u64, window: u64) {
        if self.window == 0 {
            self.window = started;
        }
        if self.is_over(now, window) {
            // systemd's window begins with a start, too, and this restart is the first in it.
            (self.window, self.in_window, self.spent) = (now, own.saturating_sub(1), 0);
        } else {
            self.in_window = self.in_window.saturating_add(own);
        }
        self.own = self.own.saturating_add(own);
    }

    /// systemd's count was reset; a `pending` restart will be the first in it.
    pub(crate) fn begun_anew(&mut self, pending: bool) {
        self.seen = u32::from(pending);
    }

    fn is_over(&self, now: u64, window: u64) -> bool {
        now.saturating_sub(self.window) >= window
    }
}

/// The counts of one user's instances, with their file.
#[derive(Debug)]
pub(crate) struct RestartCounts {
    counts: SavedNotes<RestartCount>,
}

impl RestartCounts {
    /// Reads the counts that earlier processes of the agent made since the boot. Without a readable
    /// file the counts start from systemd's.
    pub(crate) fn read(root: &Path, uid: u32) -> Self {
        Self {
            counts: SavedNotes::read(root, FOLDER, uid),
        }
    }

    pub(crate) fn of(&mut self, instance: &str) -> &mut RestartCount {
        self.counts.of(instance)
    }

    pub(crate) fn own(&self, instance: &str) -> u32 {
        self.counts.get(instance).map_or(0, RestartCount::own)
    }

    pub(crate) fn spent(&self, instance: &str, now: u64, window: u64) -> u32 {
        let count = self.counts.get(instance);
        count.map_or(0, |count| count.spent(now, window))
    }

    /// Drops the counts of instances that `keep` does not accept.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.counts.retain(keep);
    }

    /// Writes the file if a count changed; removes it when there are no counts.
    pub(crate) fn store(&mut self) -> Result<(), FilesError> {
        self.counts.store()
    }
}
