//! Scheduled backups over virtual hours, with a disk that can fail.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::*;
use crate::{LeaderConfig, start};
use kat_daemon::watchdog::LoopPulses;
use kat_store::StateStore;
use kat_testing::MemoryStore;

/// The backup folder: its backups, and the operations on it.
#[derive(Default)]
struct Disk {
    kept: Mutex<Vec<Timestamp>>,
    done: Mutex<Vec<String>>,
    full: AtomicBool,
    /// Whether removals fail.
    sticky: AtomicBool,
}

#[async_trait]
impl Backups for Disk {
    async fn kept_backups(&self, _: &Path) -> Result<Vec<Timestamp>, String> {
        Ok(self.kept.lock().clone())
    }

    async fn take(&self, folder: &Path, now: Timestamp) -> Result<(), String> {
        assert_eq!(folder, Path::new("/var/lib/kat/backups"));
        sleep(Duration::from_secs(3)).await;
        if self.full.load(Ordering::Relaxed) {
            self.done.lock().push("failed".to_owned());
            return Err("no space left".to_owned());
        }
        let mut kept = self.kept.lock();
        kept.push(now);
        kept.sort_unstable();
        self.done.lock().push("taken".to_owned());
        Ok(())
    }

    async fn remove(&self, _: &Path, made: Timestamp) -> Result<(), String> {
        if self.sticky.load(Ordering::Relaxed) {
            self.done.lock().push("stays".to_owned());
            return Err("not permitted".to_owned());
        }
        self.kept.lock().retain(|one| *one != made);
        self.done.lock().push("removed".to_owned());
        Ok(())
    }
}

struct Cluster {
    store: MemoryStore,
    disk: Arc<Disk>,
    began: Instant,
    cancel: CancellationToken,
    running: JoinHandle<()>,
}

fn epoch() -> Timestamp {
    "2026-11-22T00:00:00Z".parse().unwrap()
}

impl Cluster {
    /// A leader with the default settings: a backup every 30 minutes, of which 5 are kept.
    async fn begin(kept: &[Timestamp]) -> Self {
        let began = Instant::now();
        let disk = Arc::new(Disk::default());
        disk.kept.lock().extend(kept);
        let store = MemoryStore::new();
        let clock: Arc<dyn Fn() -> Timestamp + Send + Sync> =
            Arc::new(move || epoch() + began.elapsed());
        let cancel = CancellationToken::new();
        let leader = LeaderConfig {
            candidate: "n1".to_owned(),
            lease: Duration::from_secs(600),
            endpoint: Arc::new(|| "192.0.2.1:9115".to_owned()),
            clock: Arc::clone(&clock),
            pulses: LoopPulses::default(),
            sealing: tokio::sync::watch::Sender::new(kat_plan::SnapshotSealing::None).subscribe(),
        };
        let handle = start(Arc::new(store.clone()), leader, cancel.clone());
        let config = BackupsConfig {
            node: "n1".to_owned(),
            clock,
            backups: Arc::clone(&disk) as Arc<dyn Backups>,
        };
        let running = tokio::spawn(keep_backups(handle, config, cancel.clone()));
        Self {
            store,
            disk,
            began,
            cancel,
            running,
        }
    }

    /// Advances the clock to this many minutes after the start.
    async fn until(&self, minutes: u64) {
        tokio::time::sleep_until(self.began + Duration::from_secs(60 * minutes)).await;
    }

    fn kept(&self) -> Vec<Timestamp> {
        self.disk.kept.lock().clone()
    }

    fn done(&self) -> Vec<String> {
        std::mem::take(&mut *self.disk.done.lock())
    }

    async fn record(&self) -> BackupRecord {
        let stored = self.store.get(keys::BACKUP).await.unwrap();
        stored.map_or_else(BackupRecord::default, |stored| {
            serde_json::from_slice(&stored.value).unwrap()
        })
    }

    async fn events(&self) -> Vec<String> {
        let stored = self.store.list(keys::EVENTS).await.unwrap().items;
        let events = stored.iter().map(|item| {
            let event: kat_types::api::Event = serde_json::from_slice(&item.value).unwrap();
            format!("{} x{}", event.reason, event.count)
        });
        events.collect()
    }

    async fn end(self) {
        self.cancel.cancel();
        self.running.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_is_made_in_each_interval_and_the_oldest_go_after_it() {
    let cluster = Cluster::begin(&[]).await;
    cluster.until(4).await;
    assert_eq!(cluster.done(), Vec::<String>::new());
    cluster.until(6).await;
    assert_eq!(cluster.done(), ["taken"]);
    cluster.until(34).await;
    assert_eq!(cluster.done(), Vec::<String>::new());
    cluster.until(36).await;
    assert_eq!(cluster.done(), ["taken"]);
    cluster.until(130).await;
    assert_eq!(cluster.done(), ["taken"; 3]);
    assert_eq!(cluster.kept().len(), 5);
    cluster.until(190).await;
    assert_eq!(cluster.done(), ["taken", "removed", "taken", "removed"]);
    let kept = cluster.kept();
    assert_eq!(kept.len(), 5);
    for pair in kept.windows(2) {
        let apart = pair[1].duration_since(pair[0]).as_secs();
        assert!((1800..1820).contains(&apart), "{kept:?}");
    }
    let record = cluster.record().await;
    assert_eq!(
        (record.last, record.node.as_str()),
        (kept.last().copied(), "n1")
    );
    assert_eq!(cluster.events().await, Vec::<String>::new());
    cluster.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_and_costs_no_backup_that_is_there() {
    let old: Vec<_> = (1..=6).map(|hour| epoch() - hour.hours()).rev().collect();
    let cluster = Cluster::begin(&old).await;
    cluster.disk.full.store(true, Ordering::Relaxed);
    cluster.until(20).await;
    // The first attempt is due immediately; the retries follow after 1, 2, 4 and 8 minutes.
    assert_eq!(cluster.done(), ["failed"; 5]);
    assert_eq!(cluster.kept(), old);
    let record = cluster.record().await;
    assert!(record.failure.contains("no space left"), "{record:?}");
    assert!(record.failing_since.is_some(), "{record:?}");
    assert_eq!(cluster.events().await, ["BackupFailed x5"]);
    cluster.disk.full.store(false, Ordering::Relaxed);
    cluster.until(60).await;
    assert_eq!(cluster.done(), ["taken", "removed", "removed"]);
    let record = cluster.record().await;
    assert_eq!((record.failure.as_str(), record.failing_since), ("", None));
    assert_eq!(cluster.events().await, ["BackupFailed x5", "BackupMade x1"]);
    cluster.end().await;
}

/// A successful backup counts, whether or not the old ones can be removed.
#[tokio::test(start_paused = true)]
async fn an_old_one_that_stays_is_told_as_that() {
    let old: Vec<_> = (1..=5).map(|hour| epoch() - hour.hours()).rev().collect();
    let cluster = Cluster::begin(&old).await;
    cluster.disk.sticky.store(true, Ordering::Relaxed);
    cluster.until(29).await;
    assert_eq!(cluster.done(), ["taken", "stays"]);
    let record = cluster.record().await;
    assert_eq!((record.failure.as_str(), record.failing_since), ("", None));
    assert!(
        record.last.is_some_and(|last| last >= epoch()),
        "{record:?}"
    );
    assert_eq!(cluster.events().await, ["OldBackupStays x1"]);
    // At the next backup, the removal of each old one is tried again.
    cluster.until(35).await;
    assert_eq!(cluster.done(), ["taken", "stays", "stays"]);
    assert_eq!(cluster.events().await, ["OldBackupStays x2"]);
    cluster.disk.sticky.store(false, Ordering::Relaxed);
    cluster.until(65).await;
    assert_eq!(cluster.done(), ["taken", "removed", "removed", "removed"]);
    assert_eq!(cluster.kept().len(), 5);
    cluster.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_starts_anew_goes_on_from_what_lies_there() {
    // One backup is ten minutes old, and the date of the other is a year ahead because of a wrong
    // clock.
    let future = epoch() + (24 * 365).hours();
    let cluster = Cluster::begin(&[epoch() - 10.minutes(), future]).await;
    cluster.until(19).await;
    assert_eq!(cluster.done(), Vec::<String>::new());
    cluster.until(22).await;
    assert_eq!(cluster.done(), ["taken"]);
    cluster.end().await;
}

#[test]
fn what_another_leader_made_later_stays_known() {
    let at = |hour: i64| epoch() + hour.hours();
    let before = BackupRecord {
        schema: 1,
        node: "n2".to_owned(),
        last: Some(at(5)),
        ..BackupRecord::default()
    };
    assert!(record(Some(&before), "n1", Ok(at(4)), at(6)).is_none());
    let (after, event) = record(Some(&before), "n1", Ok(at(6)), at(6)).unwrap();
    assert_eq!((after.node.as_str(), after.last), ("n1", Some(at(6))));
    assert!(event.is_none());
}
