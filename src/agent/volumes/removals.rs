//! Removes the data of volumes at the leader's request, and reports that.
//!
//! Each removal has an entry of its own: nothing is removed because it is missing from a list
//! (ARCHITECTURE.md, invariant 4).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    Statuses,
    service::supervisor::DesiredList,
    volumes::{RemovalFailure, RemovalFailureKind, Volumes},
    worker::reports::statuses::RemovalResults,
};
use kat_daemon::watchdog::LoopPulses;
use kat_types::volumes::{RemovalRecord, removal_id};

/// Pause after a failed removal.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// Interval of the looks at removals that take long.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
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

/// A removal that failed, by its id.
struct FailedRemoval {
    /// What was asked for: something else is tried at once.
    record: RemovalRecord,
    failure: RemovalFailure,
    /// When it is retried.
    again: Instant,
}

/// The end of one try.
struct RemovalEnd {
    id: String,
    record: RemovalRecord,
    removed: Result<(), RemovalFailure>,
}

impl VolumeRemovals {
    /// Removes the volumes of the list's removal entries until `cancel`. Removals do not wait for
    /// each other, since the file system of one may hang.
    pub async fn run(mut self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("volume removals");
        let mut removals = KnownRemovals::default();
        loop {
            let listed = self.lists.borrow_and_update().clone();
            let mut again = LONG;
            if listed.confirmed && listed.current {
                removals.forget_unlisted(&listed, &self.volumes);
                removals.start(&listed, &self.volumes);
                self.statuses.set_removals(removals.results(&self.volumes));
                again = removals.next_look();
            }
            let news = async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => ControlFlow::Break(()),
                    Some(ended) = removals.tasks.join_next() => ControlFlow::Continue(Some(ended)),
                    changed = self.lists.changed() => match changed {
                        Ok(()) => ControlFlow::Continue(None),
                        Err(_) => ControlFlow::Break(()),
                    },
                    () = tokio::time::sleep(again) => ControlFlow::Continue(None),
                }
            };
            let news = pulse.wait(news).await;
            match news {
                ControlFlow::Break(()) => return,
                ControlFlow::Continue(None) => {}
                ControlFlow::Continue(Some(Ok(end))) => removals.note_end(end),
                ControlFlow::Continue(Some(Err(error))) => {
                    tracing::error!("a removal ended early: {error:#}");
                    // Which one is not known: the ids of the others are only there to not start
                    // them twice, and a removal that is done twice finds nothing.
                    removals.running.clear();
                }
            }
        }
    }
}

/// The removals that this process has started, by their ids.
#[derive(Default)]
struct KnownRemovals {
    gone: BTreeSet<String>,
    failed: BTreeMap<String, FailedRemoval>,
    /// The volume of each.
    running: BTreeMap<String, String>,
    tasks: JoinSet<RemovalEnd>,
}

impl KnownRemovals {
    /// A removal that is no longer in the list needs no report.
    fn forget_unlisted(&mut self, listed: &DesiredList, volumes: &Volumes) {
        let removals = &listed.desired.removals;
        let asked = removals.iter();
        let asked = asked.map(|(name, record)| removal_id(name, record.asked));
        let asked: BTreeSet<_> = asked.collect();
        self.gone.retain(|id| asked.contains(id));
        self.failed.retain(|id, _| asked.contains(id));
        let runs = |folder: &str| self.running.values().any(|one| one == folder);
        volumes.forget_removals(|folder| removals.contains_key(folder) || runs(folder));
    }

    /// Starts what the list asks for, unless it is done, runs, or rests after a failure.
    fn start(&mut self, listed: &DesiredList, volumes: &Arc<Volumes>) {
        for (volume, record) in &listed.desired.removals {
            let id = removal_id(volume, record.asked);
            let is_resting =
                |one: &FailedRemoval| one.again > Instant::now() && one.record == *record;
            let rests = self.failed.get(&id).is_some_and(is_resting);
            let runs = self.running.values().any(|one| one == volume);
            if self.gone.contains(&id) || rests || runs {
                continue;
            }
            if is_used(listed, volume) {
                tracing::error!(volume, "a volume is to be removed that an instance has");
                continue;
            }
            self.running.insert(id.clone(), volume.clone());
            let (volumes, record) = (Arc::clone(volumes), *record);
            let volume = volume.clone();
            self.tasks.spawn(async move {
                let removed = volumes.remove_apart(volume, record).await;
                RemovalEnd {
                    id,
                    record,
                    removed,
                }
            });
        }
    }

    fn results(&self, volumes: &Volumes) -> RemovalResults {
        let silent = self.running.values().filter_map(|volume| {
            let silent = volumes.silent_removal(volume)?;
            Some(format!("{volume}: {silent}"))
        });
        let failures = self.failed.values().map(|one| one.failure.message.clone());
        let missing = self
            .failed
            .iter()
            .filter(|(_, one)| one.failure.kind == RemovalFailureKind::Missing);
        RemovalResults {
            removed: self.gone.clone(),
            missing: missing.map(|(id, _)| id.clone()).collect(),
            failures: failures.chain(silent).collect(),
        }
    }

    /// The time until a removal is retried, or a running one looked at.
    fn next_look(&self) -> Duration {
        let retries = self.failed.values().map(|one| one.again);
        let next = retries
            .min()
            .map(|next| next.saturating_duration_since(Instant::now()));
        let again = next.unwrap_or(LONG);
        if self.running.is_empty() {
            return again;
        }
        again.min(LOOK_AGAIN)
    }

    fn note_end(&mut self, end: RemovalEnd) {
        let RemovalEnd {
            id,
            record,
            removed,
        } = end;
        let volume = self.running.remove(&id).unwrap_or_default();
        self.failed.remove(&id);
        match removed {
            Ok(()) => {
                tracing::info!(volume, "the data of a volume was removed, as asked");
                self.gone.insert(id);
            }
            Err(RemovalFailure { kind, message }) => {
                tracing::error!(
                    volume,
                    error = message,
                    "the data of a volume can't be removed"
                );
                let message = format!("{volume}: {message}");
                let failure = FailedRemoval {
                    record,
                    failure: RemovalFailure { kind, message },
                    again: Instant::now() + AFTER_FAILURE,
                };
                self.failed.insert(id, failure);
            }
        }
    }
}

fn is_used(listed: &DesiredList, volume: &str) -> bool {
    let assignments = listed.desired.assignments.values();
    let mut folders = assignments.flat_map(|one| one.volumes.iter().flat_map(|one| &one.folder));
    folders.any(|folder| folder == volume)
}
