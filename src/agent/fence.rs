//! `onPartition: stop`: what a machine that reaches no leader must not run any more, before the leader
//! may replace it.
//!
//! A leader moves what it has not heard of for `nodeLossTimeoutSeconds` since a report arrived.
//! This machine counts from when it sent its last report that was taken, which was earlier, and
//! ends the instance in time to have stopped by then ([`fence_after`]). It runs again when a leader
//! has taken a report and the store has confirmed the list.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::supervisor::Listed;
use crate::{
    host::files::{self, Access},
    plan::{Wanted, fence_after},
    resource::OnPartition,
};

/// Largest file of [`Memory`].
const LIMIT: u64 = 32;
/// Without anything to wait for.
const LONG: Duration = Duration::from_secs(3600);

/// Keeps over a restart of the agent, and not over one of the machine, when a leader was reached.
pub struct Memory {
    /// The file, at run time.
    pub path: PathBuf,
    /// Microseconds since the machine started.
    pub monotonic: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Memory {
    /// When a leader was last reached; nothing since the machine started.
    pub fn recall(&self) -> Option<Instant> {
        let text = files::read_text(&self.path, LIMIT).ok()?;
        let ago = (self.monotonic)().checked_sub(text.trim().parse().ok()?)?;
        Instant::now().checked_sub(Duration::from_micros(ago))
    }

    fn keep(&self, reached: Instant) {
        let ago = u64::try_from(reached.elapsed().as_micros()).unwrap_or(u64::MAX);
        let at = (self.monotonic)().saturating_sub(ago).to_string();
        if let Err(error) = files::write_atomic(&self.path, at.as_bytes(), Access::mode(0o600)) {
            tracing::warn!(%error, "when the leader was reached is not kept over a restart of the agent");
        }
    }
}

/// Hands the desired list on, with what must not run now.
pub struct Fence {
    /// After so long a silence the leader may replace what runs here.
    pub timeout: Duration,
    /// The list.
    pub lists: watch::Receiver<Listed>,
    /// When the last report that a leader took was sent.
    pub reached: watch::Receiver<Option<Instant>>,
    /// Where the list goes.
    pub fenced: watch::Sender<Listed>,
    /// Keeps that over a restart of the agent.
    pub memory: Option<Memory>,
}

impl Fence {
    /// Runs until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut stopped = BTreeSet::new();
        loop {
            let listed = self.lists.borrow_and_update().clone();
            let reached = *self.reached.borrow_and_update();
            let silent = reached.map(|reached| reached.elapsed());
            let verdict = judge(&listed, silent, self.timeout, &stopped);
            if let (Some(memory), Some(reached), true) = (&self.memory, reached, verdict.any) {
                memory.keep(reached);
            }
            if verdict.stopped != stopped {
                tracing::warn!(
                    instances = ?verdict.stopped,
                    "these must not run while no leader is reached"
                );
                stopped.clone_from(&verdict.stopped);
            }
            let next = Listed {
                fenced: Arc::new(verdict.stopped),
                ..listed
            };
            self.fenced.send_if_modified(|present| {
                let differs = *present != next;
                *present = next;
                differs
            });
            let changed = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                changed = self.lists.changed() => changed,
                changed = self.reached.changed() => changed,
                () = sleep(verdict.again) => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }
}

struct Verdict {
    stopped: BTreeSet<String>,
    /// There are instances that this is about.
    any: bool,
    again: Duration,
}

/// `silent` is how long ago a leader was reached; nothing where that never was since the machine
/// started. What is stopped stays so until the list is confirmed again.
fn judge(
    listed: &Listed,
    silent: Option<Duration>,
    timeout: Duration,
    before: &BTreeSet<String>,
) -> Verdict {
    let mut verdict = Verdict {
        stopped: BTreeSet::new(),
        any: false,
        again: LONG,
    };
    for (id, assignment) in &listed.desired.assignments {
        let asks = assignment.on_partition == OnPartition::Stop;
        if !asks || assignment.wanted == Wanted::Stopped {
            continue;
        }
        verdict.any = true;
        let grace = assignment.container.termination_grace_seconds;
        // A grace that is too long is refused at apply.
        let after = fence_after(timeout, grace).unwrap_or(timeout / 2);
        let left = silent.and_then(|silent| after.checked_sub(silent));
        match left.filter(|left| !left.is_zero()) {
            Some(_) if before.contains(id) && !listed.current => {
                verdict.stopped.insert(id.clone());
            }
            Some(left) => verdict.again = verdict.again.min(left),
            None => {
                verdict.stopped.insert(id.clone());
            }
        }
    }
    verdict
}
