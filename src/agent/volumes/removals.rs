//! Removes the data of volumes at the leader's request, and reports that.
//!
//! Each removal has an entry of its own: nothing is removed because it is missing from a list
//! (ARCHITECTURE.md, invariant 4).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Statuses, service::supervisor::DesiredList, volumes::Volumes};
use kat_daemon::watchdog::LoopPulses;
use kat_types::volumes::{RemovalRecord, removal_id};

/// Pause after a failed removal.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Sleep where nothing is scheduled.
const LONG: Duration = Duration::from_secs(3600);

pub struct VolumeRemovals {
    pub lists: watch::Receiver<DesiredList>,
    pub volumes: Arc<Volumes>,
    /// Receiver of the removed volumes.
    pub statuses: Statuses,
    /// Reports the loop's liveness to the watchdog.
    pub pulses: LoopPulses,
}

impl VolumeRemovals {
    /// Removes the volumes of the list's removal entries until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("volume removals");
        let mut gone = BTreeSet::new();
        loop {
            let listed = self.lists.borrow_and_update().clone();
            let mut again = LONG;
            if listed.confirmed && listed.current {
                // A removal that is no longer in the list needs no report.
                let asked = listed.desired.removals.iter();
                let asked = asked.map(|(name, record)| removal_id(name, record.asked));
                let asked: BTreeSet<_> = asked.collect();
                gone.retain(|id| asked.contains(id));
                let mut failures = Vec::new();
                for (volume, record) in &listed.desired.removals {
                    let id = removal_id(volume, record.asked);
                    if gone.contains(&id) {
                        continue;
                    }
                    if is_used(&listed, volume) {
                        tracing::error!(volume, "a volume is to be removed that an instance has");
                        continue;
                    }
                    match pulse.wait(self.remove(volume, *record)).await {
                        Ok(()) => {
                            tracing::info!(volume, "the data of a volume was removed, as asked");
                            gone.insert(id);
                        }
                        Err(error) => {
                            tracing::error!(volume, error, "the data of a volume can't be removed");
                            failures.push(format!("{volume}: {error}"));
                            again = AFTER_FAILURE;
                        }
                    }
                }
                self.statuses.set_removed(gone.clone(), failures);
            }
            let changed = self.lists.changed();
            if !pulse.next_round(cancel.cancelled(), changed, again).await {
                return;
            }
        }
    }

    /// Runs on a thread of its own, since a large folder takes long.
    async fn remove(&self, volume: &str, record: RemovalRecord) -> Result<(), String> {
        let volumes = Arc::clone(&self.volumes);
        let volume = volume.to_owned();
        let removed = tokio::task::spawn_blocking(move || volumes.remove(&volume, record)).await;
        match removed {
            Ok(removed) => removed.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn is_used(listed: &DesiredList, volume: &str) -> bool {
    let assignments = listed.desired.assignments.values();
    let mut folders = assignments.flat_map(|one| one.volumes.iter().flat_map(|one| &one.folder));
    folders.any(|folder| folder == volume)
}
