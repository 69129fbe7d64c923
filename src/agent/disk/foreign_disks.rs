//! File systems that may hang: the disks of the machine that are not KAT's own, such as network file
//! systems, FUSE and disks of volumes.
//!
//! A call on a file system that hangs never returns, and its thread cannot be ended. A thread of the
//! agent in such a call would also keep the agent's process, with its ports, from ending. So work
//! on these file systems runs in a child process ([`super::disk_child`]), one for each mount and
//! [`DiskLane`] at a time. A child that hangs is abandoned: it is killed when nobody waits for its
//! answer any more, ends when its call returns, and no other one is started beside it.
//! At most [`MOST_CHILDREN`] run at once.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::{Child, Command},
    sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};

use super::disk_child::{AnyDiskTask, COMMAND, LARGEST, MeasureFreeSpace};
use crate::service::paths;
use kat_host::{mounts::MountTable, users::HOMES};
use kat_types::{encoding::json, machine::root::Root};

/// Most children at once, hanging ones included.
const MOST_CHILDREN: usize = 32;
/// Most threads that copy volumes at once, hanging ones included.
const MOST_THREADS: usize = 32;
/// A file system that has not answered for this time is reported.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kinds of work that do not wait for each other on the same mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DiskLane {
    /// Before a start.
    Prepare,
    /// The removal of a volume, which may take long.
    Remove,
    /// Free space.
    Measure,
    /// The folder of backups.
    Backup,
}

/// Work on one file system, and the type of its answer.
pub(crate) trait DiskTask: Into<AnyDiskTask> + Send {
    const LANE: DiskLane;
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Does the work in the child. Blocks for as long as the file system does.
    fn run(self) -> Self::Answer;
}

/// Why a task has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForeignDiskError {
    #[error("too many file systems of the machine do not answer")]
    Full,
    #[error("a thread for a disk can't be started: {0}")]
    Thread(String),
    #[error("the process that looks at {} has failed: {why}", mount.display())]
    Child { mount: PathBuf, why: String },
}

/// A file system that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SilentMount {
    pub mount: PathBuf,
    /// When it was asked what it has not answered yet.
    pub since: Timestamp,
}

impl std::fmt::Display for SilentMount {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = self.since.strftime("%Y-%m-%dT%H:%M:%SZ");
        let mount = self.mount.display();
        write!(
            formatter,
            "the file system at {mount} has not answered since {since}"
        )
    }
}

/// The command of a child.
#[derive(Debug, Clone)]
pub(crate) struct ChildCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    pub variables: Vec<(OsString, OsString)>,
}

impl ChildCommand {
    /// This program, also after an upgrade has replaced its file.
    fn own() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            arguments: vec![COMMAND.into()],
            variables: Vec::new(),
        }
    }
}

/// The file systems of a machine that are not KAT's own. Clones share their children.
#[derive(Debug, Clone)]
pub(crate) struct ForeignDisks {
    own: Arc<Vec<PathBuf>>,
    /// The kernel's text of the mounts, and what it says.
    table: Arc<Mutex<(Vec<u8>, Arc<MountTable>)>>,
    command: Arc<ChildCommand>,
    lanes: Arc<Mutex<MountLanes>>,
    children: Arc<Semaphore>,
    threads: Arc<Semaphore>,
}

type MountLanes = BTreeMap<(DiskLane, PathBuf), Arc<MountLane>>;

/// The children of one mount and lane; one runs at a time.
#[derive(Debug, Default)]
struct MountLane {
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Start of the child that runs.
    running: Mutex<Option<(Instant, Timestamp)>>,
}

/// What a child holds until it has ended.
struct ChildTurn {
    lane: Arc<MountLane>,
    _turn: OwnedMutexGuard<()>,
    _place: OwnedSemaphorePermit,
}

impl Drop for ChildTurn {
    fn drop(&mut self) {
        *self.lane.running.lock() = None;
    }
}

impl ForeignDisks {
    /// For the machine whose files lie below `root`. KAT's own disks are those of `/`, of its state
    /// and of its users' homes: if one of them hangs, nothing of KAT works anyway.
    pub(crate) fn new(root: &Root) -> Self {
        let own = [paths::STATE, HOMES].map(|path| {
            let path = root.below(path);
            path.canonicalize().unwrap_or(path)
        });
        Self {
            own: Arc::new(own.into()),
            table: Arc::default(),
            command: Arc::new(ChildCommand::own()),
            lanes: Arc::default(),
            children: Arc::new(Semaphore::new(MOST_CHILDREN)),
            threads: Arc::new(Semaphore::new(MOST_THREADS)),
        }
    }

    /// Runs another program as the child.
    #[cfg(test)]
    pub(crate) fn with_command(mut self, command: ChildCommand) -> Self {
        self.command = Arc::new(command);
        self
    }

    /// The mount point on the way to a path whose file system is not KAT's own; `None` where the
    /// path can be looked at without a child. Touches no file system that may hang.
    pub(crate) fn mount_of(&self, path: &Path) -> Option<PathBuf> {
        self.table().foreign(&self.own, path)
    }

    /// [`Self::mount_of`] for several paths.
    pub(crate) fn mounts_of(&self, paths: &[PathBuf]) -> Vec<Option<PathBuf>> {
        let table = self.table();
        let each = paths.iter().map(|path| table.foreign(&self.own, path));
        each.collect()
    }

    /// The present mounts, read anew only if they have changed.
    fn table(&self) -> Arc<MountTable> {
        let text = MountTable::text();
        let mut known = self.table.lock();
        if known.0 != text {
            let table = Arc::new(MountTable::parse(&text));
            *known = (text, table);
        }
        Arc::clone(&known.1)
    }

    /// Does a task in a child, after the earlier ones of its lane. Waits for as long as the file
    /// system does; a caller that stops waiting ends the child as soon as that is possible.
    pub(crate) async fn run<T: DiskTask>(
        &self,
        mount: &Path,
        task: T,
    ) -> Result<T::Answer, ForeignDiskError> {
        let failed = |why: String| ForeignDiskError::Child {
            mount: mount.to_owned(),
            why,
        };
        let lane = self.lane(T::LANE, mount);
        let turn = Arc::clone(&lane.turn).lock_owned().await;
        let place = Arc::clone(&self.children).try_acquire_owned();
        let place = place.map_err(|_| ForeignDiskError::Full)?;
        *lane.running.lock() = Some((Instant::now(), Timestamp::now()));
        let turn = ChildTurn {
            lane,
            _turn: turn,
            _place: place,
        };
        let task: AnyDiskTask = task.into();
        let (answer, answered) = oneshot::channel();
        let task =
            json::bytes("a task of a disk", &task).map_err(|error| failed(error.to_string()))?;
        let (child, socket) = self.start().map_err(|error| failed(error.to_string()))?;
        tokio::spawn(follow(child, socket, task, answer, turn));
        let answer = match answered.await {
            Ok(answer) => answer.map_err(|error| failed(error.to_string()))?,
            Err(_) => return Err(failed("it was not waited for".to_owned())),
        };
        serde_json::from_slice(&answer).map_err(|error| failed(error.to_string()))
    }

    /// Runs long work on a thread of its own: threads that hang must not use up the runtime's pool,
    /// on which reports depend. The thread continues where the receiver is dropped.
    ///
    /// # Errors
    /// [`MOST_THREADS`] run, or no thread can be started.
    pub(crate) fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, ForeignDiskError> {
        let (work, result) = self.counted(work)?;
        let thread = std::thread::Builder::new().name("disk".to_owned());
        let started = thread.spawn(work);
        started.map_err(|error| ForeignDiskError::Thread(error.to_string()))?;
        Ok(result)
    }

    /// As [`Self::on_thread`], on a thread of the runtime: tokio's paused clock does not advance
    /// meanwhile. For simulations.
    pub(crate) fn on_thread_of_runtime<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, ForeignDiskError> {
        let (work, result) = self.counted(work)?;
        tokio::task::spawn_blocking(work);
        Ok(result)
    }

    /// The work with a place among [`MOST_THREADS`], and what gets its result.
    fn counted<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(impl FnOnce() + Send + 'static, oneshot::Receiver<T>), ForeignDiskError> {
        let place = Arc::clone(&self.threads).try_acquire_owned();
        let place = place.map_err(|_| ForeignDiskError::Full)?;
        let (done, result) = oneshot::channel();
        let work = move || {
            let found = work();
            drop(place);
            // The caller may have stopped waiting.
            let _ = done.send(found);
        };
        Ok((work, result))
    }

    /// Number of threads that work on disks now.
    pub(crate) fn busy_threads(&self) -> usize {
        MOST_THREADS - self.threads.available_permits()
    }

    /// The mount, if its child in this lane has hung for [`PATIENCE`].
    pub(crate) fn silence(&self, lane: DiskLane, mount: &Path) -> Option<SilentMount> {
        let (started, since) = (*self.lane(lane, mount).running.lock())?;
        (started.elapsed() >= PATIENCE).then(|| SilentMount {
            mount: mount.to_owned(),
            since,
        })
    }

    /// As [`Self::silence`] for work that may take long although its file system answers: this asks
    /// for the free space too, and is `None` until that has hung for as long.
    pub(crate) fn confirmed_silence(&self, lane: DiskLane, mount: &Path) -> Option<SilentMount> {
        self.silence(lane, mount)?;
        self.ask(mount)
    }

    /// Asks a file system for its free space, without waiting for the answer; it is not asked again
    /// before it has answered. The silence about the earlier question.
    pub(crate) fn ask(&self, mount: &Path) -> Option<SilentMount> {
        if self.is_busy(DiskLane::Measure, mount) {
            return self.silence(DiskLane::Measure, mount);
        }
        let (disks, mount) = (self.clone(), mount.to_owned());
        tokio::spawn(async move {
            let path = mount.clone();
            // An error is an answer.
            let _ = disks.run(&mount, MeasureFreeSpace { path }).await;
        });
        None
    }

    /// Whether a child runs in this lane.
    pub(crate) fn is_busy(&self, lane: DiskLane, mount: &Path) -> bool {
        self.lane(lane, mount).running.lock().is_some()
    }

    fn lane(&self, lane: DiskLane, mount: &Path) -> Arc<MountLane> {
        let mut lanes = self.lanes.lock();
        Arc::clone(lanes.entry((lane, mount.to_owned())).or_default())
    }

    /// Starts a child whose standard input is the other end of the socket.
    fn start(&self) -> std::io::Result<(Child, UnixStream)> {
        let (own, childs) = StdUnixStream::pair()?;
        own.set_nonblocking(true)?;
        let command = &self.command;
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .envs(command.variables.iter().cloned())
            .stdin(Stdio::from(OwnedFd::from(childs)))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok((child, UnixStream::from_std(own)?))
    }
}

/// Passes a task to a child and its answer on, and keeps the child's turn until it has ended. A
/// child whose answer nobody waits for is killed, which ends it when its call returns.
async fn follow(
    mut child: Child,
    mut socket: UnixStream,
    task: Vec<u8>,
    mut answer: oneshot::Sender<std::io::Result<Vec<u8>>>,
    turn: ChildTurn,
) {
    let answered = {
        let conversation = converse(&mut socket, &task);
        tokio::select! {
            answered = conversation => Some(answered),
            () = answer.closed() => None,
        }
    };
    match answered {
        Some(answered) => drop(answer.send(answered)),
        None => drop(child.start_kill()),
    }
    // The child also ends when this end of the socket is closed.
    drop(socket);
    if let Err(error) = child.wait().await {
        tracing::warn!("a process that looks at a disk can't be waited for: {error:#}");
    }
    drop(turn);
}

/// Sends a task and reads the answer, each with its length before it.
async fn converse(socket: &mut UnixStream, task: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = u32::try_from(task.len()).map_err(std::io::Error::other)?;
    socket.write_u32(length).await?;
    socket.write_all(task).await?;
    let length = socket.read_u32().await?;
    if length > LARGEST {
        return Err(std::io::Error::other("its answer is too long"));
    }
    let mut answer = vec![0; usize::try_from(length).map_err(std::io::Error::other)?];
    socket.read_exact(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hung_disk::{HungDisk, child_command};

    fn disks(root: &Path) -> ForeignDisks {
        ForeignDisks::new(&Root::new(root)).with_command(child_command())
    }

    fn measure(path: &Path) -> MeasureFreeSpace {
        MeasureFreeSpace {
            path: path.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_child_answers_and_leaves_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let disks = disks(folder.path());
        for _ in 0..2 {
            let room = disks.run(folder.path(), measure(folder.path())).await;
            assert!(room.unwrap().unwrap().unwrap().bytes > 0);
        }
        let missing = measure(&folder.path().join("missing"));
        assert_eq!(disks.run(folder.path(), missing).await, Ok(Ok(None)));
        let lane = disks.lane(DiskLane::Measure, folder.path());
        drop(lane.turn.lock().await);
        assert!(!disks.is_busy(DiskLane::Measure, folder.path()));
        assert_eq!(disks.children.available_permits(), MOST_CHILDREN);
    }

    #[tokio::test]
    async fn a_child_that_fails_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let disks = disks(folder.path()).with_command(ChildCommand {
            program: "/bin/false".into(),
            arguments: Vec::new(),
            variables: Vec::new(),
        });
        let failed = disks.run(folder.path(), measure(folder.path())).await;
        let failed = failed.unwrap_err().to_string();
        assert!(failed.contains("has failed"), "{failed}");
    }

    /// Lets children work, which the virtual clock does not wait for.
    async fn nap() {
        let nap = || std::thread::sleep(Duration::from_millis(5));
        tokio::task::spawn_blocking(nap).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_mount_that_hangs_holds_one_child_until_it_answers() {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().join("nas");
        let disk = HungDisk::mount(&point);
        let disks = disks(folder.path());
        assert_eq!(disks.mount_of(&point.join("x/y")), Some(point.clone()));
        assert_eq!(disks.mount_of(folder.path()), None);
        let (same, path) = (disks.clone(), point.clone());
        let first = tokio::spawn(async move { same.run(&path, measure(&path)).await });
        while disk.asked() == 0 {
            nap().await;
        }
        // Nobody waits for it any more: it is killed, which does not end it.
        first.abort();
        for _ in 0..3 {
            let waited = disks.run(&point, measure(&point));
            let limit = Duration::from_secs(60);
            assert!(tokio::time::timeout(limit, waited).await.is_err());
            nap().await;
            assert_eq!(disks.children.available_permits(), MOST_CHILDREN - 1);
        }
        assert_eq!(disk.asked(), 1);
        let silent = disks.silence(DiskLane::Measure, &point).unwrap();
        assert_eq!(silent.mount, point);
        assert_eq!(disks.silence(DiskLane::Prepare, &point), None);
        // Another mount is not held up.
        let (same, path) = (disks.clone(), folder.path().to_owned());
        let other = tokio::spawn(async move { same.run(&path, measure(&path)).await });
        while !other.is_finished() {
            nap().await;
        }
        assert!(other.await.unwrap().unwrap().is_ok());
        drop(disk);
        // Now the child ends.
        let lane = disks.lane(DiskLane::Measure, &point);
        while disks.is_busy(DiskLane::Measure, &point) {
            nap().await;
        }
        drop(lane.turn.lock().await);
        assert_eq!(disks.silence(DiskLane::Measure, &point), None);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_takes_long_is_silent_only_if_its_mount_answers_nothing_else_either() {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().join("nas");
        let disk = HungDisk::mount(&point);
        let disks = disks(folder.path());
        for (mount, hangs) in [(folder.path(), false), (point.as_path(), true)] {
            let lane = disks.lane(DiskLane::Remove, mount);
            *lane.running.lock() = Some((Instant::now(), Timestamp::now()));
            assert_eq!(disks.confirmed_silence(DiskLane::Remove, mount), None);
            assert!(!disks.is_busy(DiskLane::Measure, mount), "too early");
            tokio::time::advance(PATIENCE).await;
            let asked = || {
                let silent = disks.confirmed_silence(DiskLane::Remove, mount);
                assert_eq!(silent, None);
            };
            asked();
            while !disks.is_busy(DiskLane::Measure, mount) {
                tokio::task::yield_now().await;
            }
            while disks.is_busy(DiskLane::Measure, mount) && !(hangs && disk.asked() > 0) {
                nap().await;
            }
            tokio::time::advance(PATIENCE).await;
            let silent = disks.confirmed_silence(DiskLane::Remove, mount);
            assert_eq!(silent.is_some(), hangs, "{}", mount.display());
        }
        drop(disk);
    }

    #[tokio::test]
    async fn threads_that_hang_are_counted_and_the_runtimes_pool_stays_free() {
        let folder = tempfile::tempdir().unwrap();
        let disks = disks(folder.path());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let hanging: Vec<_> = (0..MOST_THREADS)
            .map(|_| {
                let ended = Arc::clone(&ended);
                disks.on_thread(move || ended.lock().recv().is_err())
            })
            .collect();
        assert_eq!(disks.on_thread(|| ()).err(), Some(ForeignDiskError::Full));
        drop(end);
        for one in hanging {
            assert!(one.unwrap().await.unwrap());
        }
        disks.on_thread(|| ()).unwrap().await.unwrap();
    }
}
