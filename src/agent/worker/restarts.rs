//! How often programs were started again because of what they did themselves.
//!
//! systemd counts every start again, and begins anew with each `ResetFailed`, which follows a
//! failure of KAT's own. So the agent keeps the program's own count, and how much of MaxCount's
//! budget was spent when systemd last began anew: the unit is then written with what is left of it,
//! so that systemd gives up where it should, whether the agent runs or not.
//!
//! The counts lie below `/run`, and last as long as systemd's: until the machine boots.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::worker::{saved_state::Notes, unit_files::FilesError};
use kat_systemd::UnitStatus;

/// Folder of the counts; one file for each uid.
const FOLDER: &str = "restarts";

/// The count of one instance. Times are microseconds of the monotonic clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RestartCount {
    /// Restarts after the program's own ends.
    own: u32,
    /// systemd's count as far as it is in `own`, or known not to belong there.
    seen: u32,
    /// The last end that was looked at.
    judged: u64,
    /// Podman lost that start.
    judged_lost: bool,
    /// Begin of the window in which restarts are limited.
    window: u64,
    /// The program's own restarts in the window.
    in_window: u32,
    /// Of those, the ones from before systemd's count last began anew.
    spent: u32,
}

/// What happened since the last look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct News<'a> {
    /// The unit now.
    pub status: &'a UnitStatus,
    /// It was not the program that ended the last run.
    pub is_ours: bool,
    /// It was Podman, which lost the start.
    pub lost: bool,
    /// Such ends since the last one that was looked at, this one included.
    pub excused: u32,
    /// Now.
    pub now: u64,
    /// Length of the window.
    pub window: u64,
}

impl RestartCount {
    /// The program's own restarts, the one that systemd refused when it gave up included.
    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// The last end that was looked at; 0 if none was.
    pub(crate) fn judged(&self) -> u64 {
        self.judged
    }

    /// Podman lost the start whose end was looked at last.
    pub(crate) fn judged_lost(&self) -> bool {
        self.judged_lost
    }

    /// Restarts whose cause was not looked at yet.
    pub(crate) fn missed(&self, status: &UnitStatus) -> u32 {
        status.restarts.saturating_sub(self.seen)
    }

    /// What is gone of the budget beside what systemd counts itself.
    pub(crate) fn spent(&self, now: u64, window: u64) -> u32 {
        if self.is_over(now, window) {
            0
        } else {
            self.spent
        }
    }

    /// Counts what happened. True when some of it was KAT's fault, for which `ResetFailed` makes
    /// good.
    pub(crate) fn count(&mut self, news: News<'_>) -> bool {
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
        }
        let forgiven = (is_new && news.is_ours) || excused.min(missed) > 0;
        if forgiven {
            self.spent = self.in_window;
        }
        forgiven
    }

    /// The agent starts a program again that began at `started`. systemd counts its restarts anew then,
    /// and the starts that it allows go on.
    pub(crate) fn restarted(&mut self, started: u64, now: u64, window: u64) {
        self.add(1, started, now, window);
        self.begun_anew(false);
    }

    fn add(&mut self, own: u32, started: u64, now: u64, window: u64) {
        if self.window == 0 {
            self.window = started;
        }
        if self.is_over(now, window) {
            // systemd's window begins with a start, too, and this restart is its first.
            (self.window, self.in_window, self.spent) = (now, own.saturating_sub(1), 0);
        } else {
            self.in_window = self.in_window.saturating_add(own);
        }
        self.own = self.own.saturating_add(own);
    }

    /// systemd's count begins anew; a restart that is `pending` will be the first in it.
    pub(crate) fn begun_anew(&mut self, pending: bool) {
        self.seen = u32::from(pending);
    }

    fn is_over(&self, now: u64, window: u64) -> bool {
        now.saturating_sub(self.window) >= window
    }
}

/// The counts of one user's instances, and their file.
#[derive(Debug)]
pub(crate) struct RestartCounts {
    counts: Notes<RestartCount>,
}

impl RestartCounts {
    /// What an earlier process of the agent counted since the machine booted. Without a readable
    /// file it begins with what systemd says.
    pub(crate) fn read(root: &Path, uid: u32) -> Self {
        Self {
            counts: Notes::read(root, FOLDER, uid),
        }
    }

    /// The count of an instance.
    pub(crate) fn of(&mut self, instance: &str) -> &mut RestartCount {
        self.counts.of(instance)
    }

    /// [`RestartCount::own`] of an instance.
    pub(crate) fn own(&self, instance: &str) -> u32 {
        self.counts.get(instance).map_or(0, RestartCount::own)
    }

    /// [`RestartCount::spent`] of an instance.
    pub(crate) fn spent(&self, instance: &str, now: u64, window: u64) -> u32 {
        let count = self.counts.get(instance);
        count.map_or(0, |count| count.spent(now, window))
    }

    /// Forgets instances.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.counts.retain(keep);
    }

    /// Writes the file if anything changed, and removes it when nothing is counted.
    pub(crate) fn store(&mut self) -> Result<(), FilesError> {
        self.counts.store()
    }
}
