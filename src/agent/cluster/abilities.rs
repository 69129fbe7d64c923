//! What decides which workloads can run on this machine, and what others may change at any time:
//! the container runtime that Podman uses, and ids of workloads' users that other accounts have.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use kat_host::{facts::runtime::container_runtime, users::Users};
use kat_types::machine::root::Root;

/// After this time the files are read again.
const OUTDATED: Duration = Duration::from_secs(5);
/// Pause before a second look at ids that nobody had before. KAT makes a user in several steps, and
/// after the first ones its group looks like somebody else's.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// The abilities of a machine at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineAbilities {
    /// Such as `crun`; empty if unknown.
    pub runtime: String,
    /// Indexes of workload users whose ids another account has.
    pub foreign_indexes: Vec<u32>,
}

/// Reads the abilities on a thread of its own, so that a file system that hangs stops no report.
#[derive(Debug)]
pub(crate) struct AbilitiesReader {
    root: PathBuf,
    newest: Arc<Mutex<MachineAbilities>>,
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
            reading: Arc::default(),
            began: Mutex::default(),
        };
        reader.newest();
        reader
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
            let thread = std::thread::Builder::new().name("abilities".to_owned());
            let started = thread.spawn(move || {
                let before = newest.lock().clone();
                let read = read(root, before);
                *newest.lock() = read;
                reading.store(false, Ordering::Release);
            });
            if let Err(error) = started {
                self.reading.store(false, Ordering::Release);
                tracing::warn!(
                    "a thread that reads the machine's accounts can't be started: {error:#}"
                );
            }
        }
        drop(began);
        self.newest.lock().clone()
    }
}

/// Accounts that can't be read are those of before.
fn read(root: PathBuf, before: MachineAbilities) -> MachineAbilities {
    let runtime = container_runtime(&root).unwrap_or_default();
    let users = Users::below(&Root::new(root));
    let look = || users.foreign_indexes();
    let foreign = looked_twice(&before.foreign_indexes, look, || {
        std::thread::sleep(SECOND_LOOK);
    });
    MachineAbilities {
        runtime,
        foreign_indexes: foreign.unwrap_or_else(|error| {
            tracing::warn!("the machine's accounts can't be read: {error:#}");
            before.foreign_indexes
        }),
    }
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

        // Files that can't be read forget no account.
        std::fs::remove_file(root.join("etc/passwd")).unwrap();
        put(root, "etc/containers/containers.conf", "");
        tokio::time::advance(OUTDATED).await;
        becomes(&reader, "crun", &[1]).await;
    }
}
