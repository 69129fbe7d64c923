//! The clock that counts since the machine started.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine started, by CLOCK_BOOTTIME: the time in which the machine was
/// suspended counts.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}
