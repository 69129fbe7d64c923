//! The fence of `onPartition: stop`: when a machine that reaches no leader stops an instance. An
//! apply is checked with the same computation.

use std::time::Duration;

/// Longest time that systemd and Podman need to end a container, beyond its program's grace.
const ENDING: Duration = Duration::from_secs(2);

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
    let ending = ENDING.min(timeout / 5);
    let after = timeout.checked_sub(ending + Duration::from_secs(grace_seconds.into()))?;
    (after >= timeout / 2).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

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
