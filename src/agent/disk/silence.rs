//! The condition `DisksAnswer`: of the file systems that are not KAT's own, those that instances use
//! are asked for their free space, since a program that runs says nothing of a disk that hangs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::foreign_disks::SilentMount;
use crate::{DesiredList, Statuses, volumes::Volumes};
use kat_daemon::watchdog::LoopPulses;

/// Pause between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// Largest number of workloads that a message names.
const NAMED: usize = 5;

/// The watch over the file systems that instances use.
pub(crate) struct DiskSilence {
    /// The instances of this machine.
    pub lists: watch::Receiver<DesiredList>,
    pub volumes: Arc<Volumes>,
    /// Receiver of the messages.
    pub statuses: Statuses,
    /// Reports the loop's liveness to the watchdog.
    pub pulses: LoopPulses,
}

impl DiskSilence {
    /// Looks periodically until `cancel`.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("silent disks");
        let mut before = BTreeSet::new();
        loop {
            let silent = self.look();
            let now: BTreeSet<PathBuf> = silent.keys().cloned().collect();
            for mount in now.difference(&before) {
                tracing::warn!("the file system at {} does not answer", mount.display());
            }
            for mount in before.difference(&now) {
                tracing::info!("the file system at {} answers again", mount.display());
            }
            before = now;
            self.statuses
                .set_silent_disks(silent.into_values().collect());
            let rest = cancel.run_until_cancelled(tokio::time::sleep(EVERY));
            if pulse.wait(rest).await.is_none() {
                return;
            }
        }
    }

    /// A message for each mount that does not answer.
    fn look(&self) -> BTreeMap<PathBuf, String> {
        let desired = Arc::clone(&self.lists.borrow().desired);
        let users = self.volumes.foreign_users(desired.assignments.values());
        let asked = users.into_iter().filter_map(|(mount, users)| {
            let silent = self.volumes.disks().ask(&mount)?;
            Some((mount, message(&silent, &users)))
        });
        asked.collect()
    }
}

fn message(silent: &SilentMount, users: &BTreeSet<String>) -> String {
    let mut named: Vec<String> = users.iter().take(NAMED).cloned().collect();
    if let more @ 1.. = users.len().saturating_sub(NAMED) {
        named.push(format!("{more} more"));
    }
    match named.as_slice() {
        [] => silent.to_string(),
        named => format!("{silent}; it is used by {}", named.join(", ")),
    }
}
