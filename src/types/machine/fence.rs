//! The fence of `onPartition: stop`: when a machine that reaches no leader stops an instance, and
//! when `kat-net` kills it because the agent did not. An apply is checked with the same computation.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

/// Seconds that the start of an instance may take beyond the time for which its network may be held
/// back: `nodeLossTimeoutSeconds`.
pub const START_MARGIN_SECONDS: u32 = 30;

/// Longest time that systemd and Podman need to end a container, beyond its program's grace.
const ENDING: Duration = Duration::from_secs(2);

/// A machine starts an instance of a Job only within this time after it last counted as present for
/// every leader. A leader counts with such a start: an instance that it does not know to run has until
/// then, its start, its run's time and its stop, before the next run may begin.
///
/// Each side measures with its own clock. With s, a and u as in [`fence_after`], the machine starts the
/// instance before min(s, u) + this time. The leader counts from a, or from the start of its leadership,
/// and neither is before min(s, u). So the start is before the leader's count + this time, and what
/// systemd ends some seconds later than asked is covered by the leader's margin.
pub const JOB_START_CONTACT: Duration = Duration::from_secs(30);

/// Microseconds since the machine started, by CLOCK_BOOTTIME: the time in which the machine was
/// suspended counts. Two programs of one machine can compare it, and it does not jump with the date.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootTime(pub u64);

impl BootTime {
    /// The time `later` than this one.
    pub fn after(self, later: Duration) -> Self {
        Self(self.0.saturating_add(microseconds(later)))
    }

    /// The time `earlier` than this one; `None` for a time before the machine started.
    pub fn before(self, earlier: Duration) -> Option<Self> {
        self.0.checked_sub(microseconds(earlier)).map(Self)
    }

    /// The time that has passed since `earlier`; zero where that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl From<Duration> for BootTime {
    fn from(since_boot: Duration) -> Self {
        Self(microseconds(since_boot))
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the present time.
pub type BootClock = Arc<dyn Fn() -> BootTime + Send + Sync>;

/// Until when the instances with `onPartition: stop` may run on this machine. The agent writes it
/// to [`super::network::DEADLINES_FILE`], and `kat-net` obeys it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunDeadlines {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By instance id.
    pub deadlines: BTreeMap<String, BootTime>,
}

/// How long after a machine last counted as present an instance with `onPartition: stop` is
/// stopped, so that it has ended when a leader may replace it. `None` if that is less than half of
/// the timeout: too soon to tell a network partition from a lost report.
///
/// The machine sends a report at s, a leader receives it at a >= s, and says that it was sure at u
/// that it leads. This leader replaces instances at a + timeout at the earliest. Another leader
/// begins after u, knows no report, and replaces instances at u + timeout at the earliest, even if
/// the first leader continued to take reports because it had not noticed yet. So the machine counts
/// as present from s - (a - u), which is not after s and not after u, and an instance that ends by
/// then + timeout has ended before either leader replaces it. The program's grace and the end of
/// the container are subtracted from the timeout; nothing else has to be.
pub fn fence_after(timeout: Duration, grace_seconds: u32) -> Option<Duration> {
    let after = timeout.checked_sub(ending(timeout) + Duration::from_secs(grace_seconds.into()))?;
    (after >= timeout / 2).then_some(after)
}

/// How long after a machine last counted as present `kat-net` kills an instance with `onPartition:
/// stop` that still runs. It is halfway between the end that the agent's stop has at the latest and
/// the timeout: later than the agent, whose stop lets a program end by itself, and earlier than a
/// leader's replacement.
pub fn kill_after(timeout: Duration) -> Duration {
    timeout.saturating_sub(ending(timeout) / 2)
}

fn ending(timeout: Duration) -> Duration {
    ENDING.min(timeout / 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kill_is_after_the_agents_stop_and_before_the_timeout() {
        for timeout in [3, 5, 10, 20, 60, 3600].map(Duration::from_secs) {
            let killed = kill_after(timeout);
            assert!(killed < timeout, "{timeout:?}");
            for grace in 0..60 {
                let Some(stopped) = fence_after(timeout, grace) else {
                    continue;
                };
                let ended = stopped + Duration::from_secs(grace.into());
                assert!(ended < killed, "{timeout:?} {grace}");
            }
        }
        assert_eq!(kill_after(Duration::from_secs(60)), Duration::from_secs(59));
        assert_eq!(
            kill_after(Duration::from_secs(5)),
            Duration::from_millis(4500)
        );
    }

    #[test]
    fn times_since_the_boot_are_numbers_in_json() {
        let deadlines = RunDeadlines {
            schema: 1,
            deadlines: BTreeMap::from([("web-ab12c".to_owned(), BootTime(7))]),
        };
        let text = serde_json::to_string(&deadlines).unwrap();
        assert_eq!(text, r#"{"schema":1,"deadlines":{"web-ab12c":7}}"#);
        assert_eq!(
            serde_json::from_str::<RunDeadlines>(&text).unwrap(),
            deadlines
        );
        assert_eq!(BootTime(5).before(Duration::from_micros(6)), None);
        assert_eq!(BootTime(5).since(BootTime(9)), Duration::ZERO);
    }

    #[test]
    fn the_fence_is_before_the_timeout_and_not_too_soon() {
        let after = |timeout, grace| fence_after(Duration::from_secs(timeout), grace);
        // The reserve for the container's end is 2 s, or a fifth of a timeout below 10 s.
        assert_eq!(after(60, 10), Some(Duration::from_secs(48)));
        assert_eq!(after(60, 28), Some(Duration::from_secs(30)));
        assert_eq!(after(60, 29), None);
        assert_eq!(after(10, 2), Some(Duration::from_secs(6)));
        assert_eq!(after(10, 3), Some(Duration::from_secs(5)));
        assert_eq!(after(10, 4), None);
        assert_eq!(after(3, 0), Some(Duration::from_millis(2400)));
        assert_eq!(after(10, 10), None);
        assert_eq!(after(10, 1000), None);
    }
}
