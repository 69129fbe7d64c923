//! What decides which workloads can run on this machine, and what others may change at any time:
//! the container runtime that Podman uses, ids of workloads' users that other accounts have, and GPUs.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::gpus::{GpuMemory, ReportedGpus};
use kat_host::{facts::runtime::container_runtime, users::Users};
use kat_types::machine::root::Root;

/// After this time the files are read again.
const OUTDATED: Duration = Duration::from_secs(5);
/// Pause before a second look at ids that nobody had before. KAT makes a user in several steps, and
/// after the first ones its group looks like somebody else's.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// Longest wait for the first look.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// The abilities of a machine at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineAbilities {
    /// Such as `crun`; empty if unknown.
    pub runtime: String,
    /// Indexes of workload users whose ids another account has.
    pub foreign_indexes: Vec<u32>,
    /// Its GPUs.
    pub gpus: ReportedGpus,
}

/// Reads the abilities on a thread of its own, so that a file system that hangs stops no report.
#[derive(Debug)]
pub(crate) struct AbilitiesReader {
    root: PathBuf,
    newest: Arc<Mutex<MachineAbilities>>,
    gpu_memory: Arc<Mutex<GpuMemory>>,
    /// All files were read once.
    looked: Arc<watch::Sender<bool>>,
    /// A thread reads.
    reading: Arc<AtomicBool>,
    began: Mutex<Option<Instant>>,
}

impl AbilitiesReader {
    /// Reads the files below `root` for the first time.
    pub(crate) fn new(root: PathBuf) -> Self {
        let reader = Self {
            root,
            newest: Arc::default(),
            gpu_memory: Arc::default(),
            looked: Arc::new(watch::channel(false).0),
            reading: Arc::default(),
            began: Mutex::default(),
        };
        reader.newest();
        reader
    }

    /// Waits until the files were read once, so that the first report says no less than the last one
    /// before the agent's restart. The memory of GPUs may follow later.
    pub(crate) async fn first_look(&self) {
        let mut looked = self.looked.subscribe();
        let first = looked.wait_for(|looked| *looked);
        if tokio::time::timeout(FIRST_LOOK, first).await.is_err() {
            tracing::warn!(
                "the machine's accounts and CDI specs were not read within {FIRST_LOOK:?}"
            );
        }
    }

    /// The abilities as last read. Begins to read them anew if that was some time ago.
    pub(crate) fn newest(&self) -> MachineAbilities {
        let mut began = self.began.lock();
        if began.is_none_or(|began| began.elapsed() >= OUTDATED)
            && !self.reading.swap(true, Ordering::AcqRel)
        {
            *began = Some(Instant::now());
            let (root, newest) = (self.root.clone(), Arc::clone(&self.newest));
            let reading = Arc::clone(&self.reading);
            let gpu_memory = Arc::clone(&self.gpu_memory);
            let looked = Arc::clone(&self.looked);
            let thread = std::thread::Builder::new().name("abilities".to_owned());
            let started = thread.spawn(move || {
                read(root, &newest, &mut gpu_memory.lock());
                looked.send_replace(true);
                reading.store(false, Ordering::Release);
            });
            if let Err(error) = started {
                self.reading.store(false, Ordering::Release);
                tracing::warn!(
                    "a thread that reads the machine's accounts and GPUs can't be started: {error:#}"
                );
            }
        }
        drop(began);
        self.newest.lock().clone()
    }
}

/// Reads what takes least time first. Accounts that can't be read are those of before.
fn read(root: PathBuf, newest: &Mutex<MachineAbilities>, gpu_memory: &mut GpuMemory) {
    let before = newest.lock().clone();
    let runtime = container_runtime(&root).unwrap_or_default();
    let users = Users::below(&Root::new(root.clone()));
    let look = || users.foreign_indexes();
    let foreign = looked_twice(&before.foreign_indexes, look, || {
        std::thread::sleep(SECOND_LOOK);
    });
    let read = MachineAbilities {
        runtime,
        foreign_indexes: foreign.unwrap_or_else(|error| {
            tracing::warn!("the machine's accounts can't be read: {error:#}");
            before.foreign_indexes
        }),
        gpus: before.gpus,
    };
    *newest.lock() = read;
    let gpus = gpu_memory.reported(&root);
    newest.lock().gpus = gpus;
}

/// What a look finds. If it finds anything that is not in `before`, only what a second look finds, too.
fn looked_twice<E>(
    before: &[u32],
    look: impl Fn() -> Result<Vec<u32>, E>,
    pause: impl FnOnce(),
) -> Result<Vec<u32>, E> {
    let mut found = look()?;
    if found.iter().any(|index| !before.contains(index)) {
        pause();
        let again = look()?;
        found.retain(|index| again.contains(index));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &std::path::Path, name: &str, text: &str) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Waits until the reader knows these abilities.
    async fn becomes(reader: &AbilitiesReader, runtime: &str, foreign: &[u32]) {
        let wanted = MachineAbilities {
            runtime: runtime.to_owned(),
            foreign_indexes: foreign.to_vec(),
            ..MachineAbilities::default()
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while reader.newest() != wanted {
            let found = reader.newest();
            assert!(std::time::Instant::now() < deadline, "{found:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn ids_that_nobody_had_before_count_after_a_second_look() {
        let looks = |all: [&[u32]; 2]| {
            let looks = all.map(<[u32]>::to_vec);
            let turn = std::cell::Cell::new(0);
            let found = looked_twice(
                &[7],
                || Ok::<_, ()>(looks[turn.get()].clone()),
                || turn.set(1),
            );
            (found.unwrap(), turn.get() == 1)
        };
        assert_eq!(looks([&[7], &[]]), (vec![7], false));
        assert_eq!(looks([&[], &[9]]), (vec![], false));
        assert_eq!(
            looks([&[1, 7], &[7]]),
            (vec![7], true),
            "a user was being made"
        );
        assert_eq!(looks([&[1, 7], &[1, 7, 9]]), (vec![1, 7], true));
    }

    #[tokio::test]
    async fn the_first_look_ends_with_the_gpus_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        put(root, "usr/bin/crun", "");
        let spec = r#"{"kind": "amd.com/gpu", "devices": [{"name": "0"}]}"#;
        put(root, "etc/cdi/amd.json", spec);
        let reader = AbilitiesReader::new(root.to_owned());
        reader.first_look().await;
        let found = reader.newest();
        assert_eq!(found.runtime, "crun");
        assert_eq!(found.gpus.devices[0].name, "amd.com/gpu=0");
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_made_by_hand_is_noticed_and_kats_own_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let own = "kat-a-b:x:20000:20000:KAT workload 0:/:/bin/false\n";
        put(root, "etc/passwd", own);
        put(root, "etc/group", "kat-a-b:x:20000:\n");
        put(root, "usr/bin/crun", "");
        let reader = AbilitiesReader::new(root.to_owned());
        becomes(&reader, "crun", &[]).await;

        put(
            root,
            "etc/passwd",
            &format!("{own}eve:x:20001:20001::/:/bin/sh\n"),
        );
        put(
            root,
            "etc/containers/containers.conf",
            "[engine]\nruntime = \"runc\"\n",
        );
        let early = reader.newest();
        assert!(
            early.foreign_indexes.is_empty(),
            "the files are read every {OUTDATED:?}"
        );
        tokio::time::advance(OUTDATED).await;
        becomes(&reader, "runc", &[1]).await;

        // A GPU is noticed when its CDI spec is written, and gone when the spec is.
        let spec = r#"{"kind": "amd.com/gpu", "devices": [{"name": "0"}]}"#;
        put(root, "etc/cdi/amd.json", spec);
        tokio::time::advance(OUTDATED).await;
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while reader.newest().gpus.devices.is_empty() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(reader.newest().gpus.devices[0].name, "amd.com/gpu=0");
        std::fs::remove_file(root.join("etc/cdi/amd.json")).unwrap();

        // Files that can't be read forget no account.
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        put(root, "etc/containers/containers.conf", "");
        tokio::time::advance(OUTDATED).await;
        becomes(&reader, "crun", &[1]).await;
    }
}
