//! Files that follow the store: a failed write is kept and retried until the file is on the disk.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Statuses;
use kat_daemon::watchdog::LoopPulses;
use kat_types::backoff::Backoff;

/// Pauses before failed writes are retried.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), LONGEST_PAUSE);
/// Longest pause: the most by which a file lags behind the store after its disk has free space
/// again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Writes the last state of one file.
type FileWrite = Arc<dyn Fn() -> anyhow::Result<()> + Send + Sync>;

/// Writes files, and remembers those whose last state is not on the disk yet. Cheap to clone.
#[derive(Clone)]
pub struct WatchedWrites {
    inner: Arc<WatchedWritesInner>,
}

struct WatchedWritesInner {
    /// Held during every write, so that a retry never replaces a newer state.
    unwritten: Mutex<BTreeMap<PathBuf, UnwrittenFile>>,
    failed: Notify,
    statuses: Statuses,
}

struct UnwrittenFile {
    write: FileWrite,
    error: String,
}

impl fmt::Debug for WatchedWrites {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("WatchedWrites")
    }
}

impl WatchedWrites {
    /// Failed writes are reported through `statuses`.
    pub fn new(statuses: Statuses) -> Self {
        Self {
            inner: Arc::new(WatchedWritesInner {
                unwritten: Mutex::default(),
                failed: Notify::new(),
                statuses,
            }),
        }
    }

    /// Writes the file at `path` with `write`, which replaces an earlier failed write of that file.
    /// An error names the path; it has been logged and reported, and [`Self::run`] retries the
    /// write.
    ///
    /// # Errors
    /// The error of `write`.
    pub fn write(
        &self,
        path: &Path,
        write: impl Fn() -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> Result<(), String> {
        let mut unwritten = self.unwritten();
        let before = unwritten.remove(path).map(|one| one.error);
        let written = write().map_err(|error| format!("{error:#}"));
        if let Err(error) = &written {
            let one = UnwrittenFile {
                write: Arc::new(write),
                error: error.clone(),
            };
            unwritten.insert(path.to_owned(), one);
            self.inner.failed.notify_one();
        }
        log(path, before.as_deref(), &written);
        self.report(&unwritten);
        written
    }

    /// Retries failed writes until `cancel`.
    pub async fn run(self, pulses: LoopPulses, cancel: CancellationToken) {
        let pulse = pulses.watch("retries of failed writes");
        let mut failures: u32 = 0;
        loop {
            let writes = self.clone();
            let retried = tokio::task::spawn_blocking(move || writes.retry());
            let all_written = pulse.wait(retried).await.unwrap_or(false);
            let next = async {
                if all_written {
                    self.inner.failed.notified().await;
                    failures = 0;
                } else {
                    failures = failures.saturating_add(1);
                }
                tokio::time::sleep(PAUSES.after(failures)).await;
            };
            let next = cancel.run_until_cancelled(next);
            if pulse.wait(next).await.is_none() {
                return;
            }
        }
    }

    /// Retries each failed write once; true where none is left.
    fn retry(&self) -> bool {
        let mut unwritten = self.unwritten();
        let begun = unwritten.len();
        unwritten.retain(|path, one| {
            let written = (one.write)().map_err(|error| format!("{error:#}"));
            log(path, Some(&one.error), &written);
            match written {
                Ok(()) => false,
                Err(error) => {
                    one.error = error;
                    true
                }
            }
        });
        if begun > 0 {
            self.report(&unwritten);
        }
        unwritten.is_empty()
    }

    fn report(&self, unwritten: &BTreeMap<PathBuf, UnwrittenFile>) {
        let errors = unwritten.values().map(|one| one.error.clone());
        self.inner.statuses.set_unwritten(errors.collect());
    }

    fn unwritten(&self) -> MutexGuard<'_, BTreeMap<PathBuf, UnwrittenFile>> {
        self.inner.unwritten.lock()
    }
}

/// Logs each error once, and the first success after it.
fn log(path: &Path, before: Option<&str>, written: &Result<(), String>) {
    match (before, written) {
        (None, Ok(())) => {}
        (Some(_), Ok(())) => tracing::info!(path = %path.display(), "the file is written now"),
        (Some(before), Err(error)) if before == error => {}
        (_, Err(error)) => tracing::error!("a file is not written, and is tried again: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    /// A disk with one file that can be out of space.
    #[derive(Default)]
    struct Disk {
        full: AtomicBool,
        file: Mutex<String>,
        tries: AtomicU32,
    }

    fn writer(disk: &Arc<Disk>, text: &str) -> impl Fn() -> anyhow::Result<()> + use<> {
        let (disk, text) = (Arc::clone(disk), text.to_owned());
        move || {
            disk.tries.fetch_add(1, Ordering::Relaxed);
            anyhow::ensure!(
                !disk.full.load(Ordering::Relaxed),
                "/a: no space left on device"
            );
            text.clone_into(&mut disk.file.lock());
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_whose_disk_was_full_is_written_without_another_change_of_the_store() {
        let (disk, statuses) = (Arc::new(Disk::default()), Statuses::default());
        let writes = WatchedWrites::new(statuses.clone());
        let cancel = CancellationToken::new();
        let task = tokio::spawn(writes.clone().run(LoopPulses::default(), cancel.clone()));
        let path = Path::new("/a");
        writes.write(path, writer(&disk, "one")).unwrap();
        assert_eq!(statuses.unwritten(), Vec::<String>::new());
        disk.full.store(true, Ordering::Relaxed);
        writes.write(path, writer(&disk, "two")).unwrap_err();
        writes.write(path, writer(&disk, "three")).unwrap_err();
        assert_eq!(statuses.unwritten(), ["/a: no space left on device"]);
        // The agent makes one attempt in 10 s for 5 minutes, and the first few at shorter
        // intervals.
        tokio::time::sleep(Duration::from_secs(300)).await;
        let tries = disk.tries.load(Ordering::Relaxed);
        assert!((30..45).contains(&tries), "{tries}");
        assert_eq!(*disk.file.lock(), "one");
        disk.full.store(false, Ordering::Relaxed);
        tokio::time::sleep(LONGEST_PAUSE).await;
        assert_eq!(*disk.file.lock(), "three", "the last state alone");
        assert_eq!(statuses.unwritten(), Vec::<String>::new());
        let tries = disk.tries.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(disk.tries.load(Ordering::Relaxed), tries);
        cancel.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_newer_state_takes_the_place_of_a_write_that_failed() {
        let (disk, statuses) = (Arc::new(Disk::default()), Statuses::default());
        let writes = WatchedWrites::new(statuses.clone());
        let path = Path::new("/a");
        disk.full.store(true, Ordering::Relaxed);
        writes.write(path, writer(&disk, "old")).unwrap_err();
        disk.full.store(false, Ordering::Relaxed);
        writes.write(path, writer(&disk, "new")).unwrap();
        assert_eq!(statuses.unwritten(), Vec::<String>::new());
        assert!(writes.retry());
        assert_eq!(*disk.file.lock(), "new");
    }
}
