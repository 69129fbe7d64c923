//! The ballast: a file beside etcd's data that reserves disk space and is removed when the disk is
//! full.
//!
//! Without space for its log etcd exits, and then no change of the cluster is possible, not even
//! one that would free space. A program that fills the disk uses up the ballast's space as well in
//! the end; until then etcd starts again and accepts changes, so that a workload can be deleted.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    disk::pressure::{FreeSpace, ReadFreeSpace, SOONEST_LOOK},
    service::paths,
};
use kat_daemon::watchdog::LoopPulses;
use kat_types::machine::root::Root;

/// Name of the file in KAT's folder, which only root can write to.
pub(crate) const FILE: &str = "ballast";

/// Largest ballast in bytes: several segments of etcd's log (64 MiB each).
const MOST: u64 = 256 << 20;
/// The ballast is at most this part of the file system.
const PART: u64 = 16;

pub(crate) struct Ballast {
    file: PathBuf,
    etcd: PathBuf,
    look: ReadFreeSpace,
}

/// What a check of the ballast did.
#[derive(Debug, PartialEq, Eq)]
enum BallastAction {
    Nothing,
    Made,
    Released,
}

impl Ballast {
    /// The ballast below `root`; `look` reads the state of file systems.
    pub(crate) fn new(root: &Root, look: ReadFreeSpace) -> Self {
        let state = root.below(paths::STATE);
        Self {
            file: state.join(FILE),
            etcd: state.join("etcd"),
            look,
        }
    }

    /// Makes and removes the ballast as the free space requires, until `cancel`.
    pub(crate) async fn run(self, pulses: LoopPulses, cancel: CancellationToken) {
        let pulse = pulses.watch("disk space for etcd");
        let ballast = std::sync::Arc::new(self);
        let mut failed = false;
        loop {
            let now = std::sync::Arc::clone(&ballast);
            let kept = tokio::task::spawn_blocking(move || (now.adjust(), now.pause()));
            let (kept, pause) = match pulse.wait(kept).await {
                Ok(kept) => kept,
                Err(error) => {
                    tracing::error!("the look at etcd's room ended early: {error:#}");
                    (Ok(BallastAction::Nothing), SOONEST_LOOK)
                }
            };
            match kept {
                Ok(BallastAction::Nothing) => {}
                Ok(BallastAction::Made) => failed = false,
                Ok(BallastAction::Released) => tracing::warn!(
                    path = %ballast.file.display(),
                    "the disk of etcd's data is full: the room that was kept for etcd is given up"
                ),
                Err(error) if !failed => {
                    failed = true;
                    tracing::warn!(path = %ballast.file.display(), "no room is kept for etcd: {error:#}");
                }
                Err(_) => {}
            }
            let rest = cancel.run_until_cancelled(tokio::time::sleep(pause));
            if pulse.wait(rest).await.is_none() {
                return;
            }
        }
    }

    /// Time until the next check.
    fn pause(&self) -> Duration {
        let folder = self.file.parent().unwrap_or(&self.etcd);
        let room = (self.look)(folder);
        room.map_or(SOONEST_LOOK, |room| room.pause_above(release_limit(room)))
    }

    /// Checks the free space once.
    fn adjust(&self) -> io::Result<BallastAction> {
        let Ok(etcd) = (self.look)(&self.etcd) else {
            return Ok(BallastAction::Nothing);
        };
        let folder = self.file.parent().unwrap_or(&self.etcd);
        let room = (self.look)(folder)?;
        let there = fs::symlink_metadata(&self.file).ok();
        // On a file system of its own etcd competes with no other program for space.
        if etcd.device != room.device {
            if there.is_some() {
                fs::remove_file(&self.file)?;
            }
            return Ok(BallastAction::Nothing);
        }
        match there {
            Some(_) if room.free_bytes < release_limit(room) => {
                fs::remove_file(&self.file)?;
                Ok(BallastAction::Released)
            }
            // A ballast that a power loss cut short is made anew.
            Some(there) if there.blocks().saturating_mul(512) < ballast_size(room) => {
                fs::remove_file(&self.file)?;
                Ok(BallastAction::Nothing)
            }
            None if room.free_bytes
                >= ballast_size(room).saturating_mul(2) + release_limit(room) =>
            {
                allocate(&self.file, ballast_size(room))?;
                Ok(BallastAction::Made)
            }
            _ => Ok(BallastAction::Nothing),
        }
    }
}

/// Makes a file that occupies `size` bytes, mode 0600.
///
/// # Errors
/// The file exists, or there is not enough space.
pub(crate) fn allocate(path: &Path, size: u64) -> io::Result<()> {
    let mut options = File::options();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let flags = rustix::fs::FallocateFlags::empty();
    let made = rustix::fs::fallocate(&file, flags, 0, size).map_err(io::Error::from);
    if let Err(error) = made {
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(())
}

/// Size of the ballast on this file system, in bytes.
fn ballast_size(room: FreeSpace) -> u64 {
    // Rounded down to whole MiB, so that the allocated blocks are never fewer.
    (room.bytes / PART).min(MOST) >> 20 << 20
}

/// Free bytes below which the ballast is removed: half of its size.
pub(crate) fn release_limit(room: FreeSpace) -> u64 {
    ballast_size(room) / 2
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A disk of 64 MiB with 4 MiB of ballast. The returned values set its free space and the
    /// device number of etcd's folder.
    fn ballast(root: &Path) -> (Ballast, Arc<Mutex<FreeSpace>>, Arc<Mutex<u64>>) {
        fs::create_dir_all(root.join("var/lib/kat/etcd")).unwrap();
        let room = Arc::new(Mutex::new(FreeSpace {
            device: 1,
            bytes: 64 * MIB,
            free_bytes: 32 * MIB,
            inodes: 0,
            free_inodes: 0,
        }));
        let own = Arc::new(Mutex::new(1));
        let (told, device) = (Arc::clone(&room), Arc::clone(&own));
        let look: ReadFreeSpace = Arc::new(move |path| {
            let room = *told.lock();
            let device = match path.ends_with("etcd") {
                true => *device.lock(),
                false => room.device,
            };
            Ok(FreeSpace { device, ..room })
        });
        (Ballast::new(&Root::new(root), look), room, own)
    }

    #[test]
    fn a_full_disk_gets_the_ballasts_room_and_gives_it_back_when_there_is_plenty() {
        let root = tempfile::tempdir().unwrap();
        let (ballast, room, _) = ballast(root.path());
        let free = |mib| room.lock().free_bytes = mib * MIB;
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Made);
        let there = fs::metadata(&ballast.file).unwrap();
        assert_eq!(
            (there.len(), there.mode() & 0o777, there.uid()),
            (4 * MIB, 0o600, rustix::process::getuid().as_raw())
        );
        assert!(there.blocks() * 512 >= 4 * MIB, "it takes its room");
        free(2);
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Nothing);
        free(1);
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Released);
        assert!(!ballast.file.exists());
        // The space that the release itself freed does not cause the ballast to be created again.
        free(9);
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Nothing);
        free(10);
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Made);
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Nothing);
    }

    #[test]
    fn etcd_on_a_file_system_of_its_own_needs_no_ballast() {
        let root = tempfile::tempdir().unwrap();
        let (ballast, _, own) = ballast(root.path());
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Made);
        *own.lock() = 2;
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Nothing);
        assert!(!ballast.file.exists());
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Nothing);
        assert!(!ballast.file.exists());
    }

    #[test]
    fn a_ballast_that_was_cut_off_is_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let (ballast, ..) = ballast(root.path());
        fs::write(&ballast.file, "short").unwrap();
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Nothing);
        assert_eq!(ballast.adjust().unwrap(), BallastAction::Made);
        assert_eq!(fs::metadata(&ballast.file).unwrap().len(), 4 * MIB);
    }
}
