//! The clock that counts since the machine started, and the time that this process has used.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine started, by CLOCK_BOOTTIME: the time in which the machine was
/// suspended counts.
pub fn since_boot() -> Duration {
    read(ClockId::Boottime)
}

/// The processor time that all threads of this process have used.
pub fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}
