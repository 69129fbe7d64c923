//! Until when this machine may start instances of Jobs.
//!
//! A leader begins the next run of a Job although a machine does not answer, once systemd has ended the
//! instance there for certain ([`JOB_START_CONTACT`]). The time of an instance counts from its start. So
//! a machine that was off or cut off must not start an instance of before: its run may be over. The
//! fence decides from the last contact with a leader, and the time ends by itself while the agent hangs.
//!
//! [`JOB_START_CONTACT`]: kat_types::machine::fence::JOB_START_CONTACT

use std::sync::Arc;

use parking_lot::Mutex;

use kat_types::machine::fence::{BootClock, BootTime};

/// Whether instances of Jobs may be started now. At first none may.
#[derive(Clone, Default)]
pub struct JobStarts(Arc<Mutex<Option<StartsUntil>>>);

struct StartsUntil {
    end: BootTime,
    clock: BootClock,
}

impl JobStarts {
    /// Allows starts before `end`, by this clock.
    pub fn allow_until(&self, end: BootTime, clock: &BootClock) {
        let clock = Arc::clone(clock);
        *self.0.lock() = Some(StartsUntil { end, clock });
    }

    /// Allows none from now on.
    pub fn forbid(&self) {
        *self.0.lock() = None;
    }

    pub fn are_allowed(&self) -> bool {
        let until = self.0.lock();
        until
            .as_ref()
            .is_some_and(|until| (until.clock)() < until.end)
    }
}
