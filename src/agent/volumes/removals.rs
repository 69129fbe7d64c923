//! Removes the data of volumes that the leader has asked for, and says so.
//!
//! An entry of its own asks for each removal: nothing is removed because something is missing from a list
//! (ARCHITECTURE.md, invariant 4).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Statuses, service::supervisor::Listed, volumes::Volumes};
use kat_daemon::watchdog::Pulses;
use kat_types::volumes::{RemovalRecord, removal_id};

/// Pause after a removal that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Without anything to wait for.
const LONG: Duration = Duration::from_secs(3600);

/// Follows the list until `cancel`.
pub struct Removals {
    /// The list.
    pub lists: watch::Receiver<Listed>,
    /// The volumes of this machine.
    pub volumes: Arc<Volumes>,
    /// Where it says what is gone.
    pub statuses: Statuses,
    /// Where its loop is seen by the watchdog.
    pub pulses: Pulses,
}

impl Removals {
    /// Removes what is asked for.
    pub async fn run(mut self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("who removes volumes");
        let mut gone = BTreeSet::new();
        loop {
            let listed = self.lists.borrow_and_update().clone();
            let mut again = LONG;
            if listed.confirmed && listed.current {
                // What is asked for no more need not be said any longer.
                let asked = listed.desired.removals.iter();
                let asked = asked.map(|(name, wish)| removal_id(name, wish.asked));
                let asked: BTreeSet<_> = asked.collect();
                gone.retain(|id| asked.contains(id));
                let mut failures = Vec::new();
                for (volume, wish) in &listed.desired.removals {
                    let id = removal_id(volume, wish.asked);
                    if gone.contains(&id) {
                        continue;
                    }
                    if is_used(&listed, volume) {
                        tracing::error!(volume, "a volume is to be removed that an instance has");
                        continue;
                    }
                    match pulse.wait(self.remove(volume, *wish)).await {
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
            let news = async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => false,
                    changed = self.lists.changed() => changed.is_ok(),
                    () = tokio::time::sleep(again) => true,
                }
            };
            if !pulse.wait(news).await {
                return;
            }
        }
    }

    /// A large folder takes its time, on a thread of its own.
    async fn remove(&self, volume: &str, wish: RemovalRecord) -> Result<(), String> {
        let volumes = Arc::clone(&self.volumes);
        let volume = volume.to_owned();
        let removed = tokio::task::spawn_blocking(move || volumes.remove(&volume, wish)).await;
        match removed {
            Ok(removed) => removed.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn is_used(listed: &Listed, volume: &str) -> bool {
    let assignments = listed.desired.assignments.values();
    let mut folders = assignments.flat_map(|one| one.volumes.iter().flat_map(|one| &one.folder));
    folders.any(|folder| folder == volume)
}
