//! Backups: while this machine leads, it makes one every `backupIntervalMinutes`, and keeps the
//! newest `backupRetention` of them (RFC001-KAT 5.4).
//!
//! The backups in the folder decide when the next one is due, so that an agent that restarts makes
//! none too many. A machine that begins to lead and has no backup makes one soon.

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::{Timestamp, ToSpan};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::LeaderHandle;
use kat_plan::{EventLog, Snapshot};
use kat_store::Leadership;
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference},
    backoff::Backoff,
    encoding::json,
    reason::EventReason,
    store::{keys, records::BackupRecord, transaction::WriteOperation},
};

/// A machine without a backup makes its first one this long after it began to lead.
const FIRST: Duration = Duration::from_secs(300);
/// Longest time between two rounds: settings may have changed.
const LOOK: Duration = Duration::from_secs(300);
/// Pause while there is no snapshot of the store yet.
const SOON: Duration = Duration::from_secs(1);
/// First pause after a failure; it doubles up to the interval.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// The folder of backups, and how a backup is made.
#[async_trait]
pub trait Backups: Send + Sync {
    /// Times of the backups in the folder, oldest first; empty if the folder does not exist.
    async fn kept_backups(&self, folder: &Path) -> Result<Vec<Timestamp>, String>;
    /// Makes a backup, whole or not at all.
    async fn take(&self, folder: &Path, now: Timestamp) -> Result<(), String>;
    /// Removes a backup.
    async fn remove(&self, folder: &Path, made: Timestamp) -> Result<(), String>;
}

/// Settings of the backups on this machine.
#[derive(Clone)]
pub struct BackupsConfig {
    /// Name of this machine.
    pub node: String,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Access to the folder and etcd.
    pub backups: Arc<dyn Backups>,
}

/// Makes backups until `cancel`, whenever this machine leads.
pub async fn keep_backups(handle: LeaderHandle, config: BackupsConfig, cancel: CancellationToken) {
    let mut leadership = handle.leadership.clone();
    let work = async {
        loop {
            let now = leadership.borrow_and_update().clone();
            let now = now.filter(|now| !now.lost.is_cancelled());
            let led = async {
                match &now {
                    Some(now) => lead(&handle, &config, now).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = leadership.changed() => if changed.is_err() { return },
                () = led => {}
            }
        }
    };
    cancel.run_until_cancelled(work).await;
}

/// Makes backups during one leadership.
async fn lead(handle: &LeaderHandle, config: &BackupsConfig, leadership: &Leadership) {
    let began = Instant::now();
    let mut failures = 0_u32;
    while !leadership.lost.is_cancelled() {
        let Some(snapshot) = handle.snapshot.borrow().clone() else {
            sleep(SOON).await;
            continue;
        };
        let round = BackupRound {
            handle,
            config,
            leadership,
            snapshot: &snapshot,
        };
        let pause = match round.run(began.elapsed()).await {
            Ok(pause) => {
                failures = 0;
                pause
            }
            Err(reason) => {
                let pause = Backoff::new(AFTER_FAILURE, round.interval()).after(failures);
                failures = failures.saturating_add(1);
                tracing::error!(reason, "no backup was made");
                round.store_outcome(Err(&reason), None).await;
                pause
            }
        };
        sleep(pause).await;
    }
    // The next change of the leadership ends the wait.
    std::future::pending::<()>().await;
}

struct BackupRound<'a> {
    handle: &'a LeaderHandle,
    config: &'a BackupsConfig,
    leadership: &'a Leadership,
    snapshot: &'a Snapshot,
}

impl BackupRound<'_> {
    /// Makes a backup if one is due. Returns the time until the next round, or why the backup
    /// failed.
    async fn run(&self, led_for: Duration) -> Result<Duration, String> {
        let spec = &self.snapshot.cluster.spec;
        let folder = Path::new(&spec.backup_path);
        let now = (self.config.clock)();
        let kept = self.config.backups.kept_backups(folder).await?;
        // After the clock was set back, some backups have times in the future.
        let newest = kept.iter().rev().find(|made| **made <= now + 1.minute());
        let newest = newest.copied();
        let due = due_in(newest, now, self.interval(), led_for);
        if due.is_zero() {
            self.config.backups.take(folder, now).await?;
            tracing::info!(folder = spec.backup_path, "a backup was made");
            // The oldest backups are removed only now that the newest is whole.
            let surplus = (kept.len() + 1).saturating_sub(at_least_one(spec.backup_retention));
            let mut stays = None;
            for made in kept.into_iter().take(surplus) {
                if let Err(reason) = self.config.backups.remove(folder, made).await {
                    tracing::warn!(reason, "an old backup can't be removed");
                    stays.get_or_insert(reason);
                }
            }
            self.store_outcome(Ok(now), stays).await;
            return Ok(self.interval().min(LOOK));
        }
        if let Some(made) = newest {
            self.store_outcome(Ok(made), None).await;
        }
        Ok(due.min(LOOK))
    }

    fn interval(&self) -> Duration {
        let minutes = self.snapshot.cluster.spec.backup_interval_minutes.max(1);
        Duration::from_secs(60 * u64::from(minutes))
    }

    /// Stores the outcome if it changed. A failure, its end, and an old backup that `stays`, with
    /// the reason, are events as well.
    async fn store_outcome(&self, outcome: Result<Timestamp, &str>, stays: Option<String>) {
        let before = self.snapshot.backup.as_ref().map(|stored| &stored.value);
        let node = &self.config.node;
        let now = (self.config.clock)();
        let (record, event) = record(before, node, outcome, now).unzip();
        let stays = stays.map(|reason| {
            let message = format!("an old backup on machine {node} can't be removed: {reason}");
            (EventKind::Warning, EventReason::OldBackupStays, message)
        });
        let mut operations = Vec::new();
        for (kind, reason, message) in event.flatten().into_iter().chain(stays) {
            let cluster = ObjectReference {
                kind: ObjectKind::Cluster,
                name: self.snapshot.cluster.metadata.name.clone(),
                namespace: String::new(),
                uid: self.snapshot.cluster_uid.clone(),
            };
            let mut log = EventLog::new(&self.snapshot.events, now);
            operations.extend(log.record(kind, reason, cluster, message));
        }
        if let Some(record) = record {
            match json::bytes(keys::BACKUP, &record) {
                Ok(value) => operations.push(WriteOperation::Put(keys::BACKUP.to_owned(), value)),
                Err(error) => {
                    tracing::error!("what became of a backup is not written down: {error}");
                }
            }
        }
        if operations.is_empty() {
            return;
        }
        let fence = [self.leadership.fence()];
        if let Err(error) = self.handle.store.transact(&fence, &operations).await {
            tracing::warn!("what became of a backup is not written down: {error:#}");
        }
    }
}

fn at_least_one(retention: u32) -> usize {
    usize::try_from(retention).unwrap_or(usize::MAX).max(1)
}

/// Time until the next backup is due; zero if it is due now.
fn due_in(
    newest: Option<Timestamp>,
    now: Timestamp,
    interval: Duration,
    led_for: Duration,
) -> Duration {
    match newest {
        Some(newest) => {
            let age = Duration::try_from(now.duration_since(newest)).unwrap_or_default();
            interval.saturating_sub(age)
        }
        None => interval.min(FIRST).saturating_sub(led_for),
    }
}

type BackupEvent = (EventKind, EventReason, String);

/// The record after this outcome, and its event; `None` if nothing changed.
fn record(
    before: Option<&BackupRecord>,
    node: &str,
    outcome: Result<Timestamp, &str>,
    now: Timestamp,
) -> Option<(BackupRecord, Option<BackupEvent>)> {
    let earlier = before.cloned().unwrap_or_default();
    match outcome {
        Ok(made) => {
            let failed = !earlier.failure.is_empty();
            // The last backup of another leader may be newer than the one made here.
            if earlier.last.is_some_and(|last| last >= made) {
                return None;
            }
            let record = BackupRecord {
                schema: 1,
                node: node.to_owned(),
                last: Some(made),
                failure: String::new(),
                failing_since: None,
            };
            let message = format!("a backup was made on machine {node} again");
            let event = failed.then_some((EventKind::Normal, EventReason::BackupMade, message));
            Some((record, event))
        }
        Err(reason) => {
            let record = BackupRecord {
                schema: 1,
                failure: format!("machine {node}: {reason}"),
                failing_since: earlier.failing_since.or(Some(now)),
                ..earlier
            };
            let message = format!("no backup was made on machine {node}: {reason}");
            Some((
                record,
                Some((EventKind::Warning, EventReason::BackupFailed, message)),
            ))
        }
    }
}

#[cfg(test)]
mod tests;
