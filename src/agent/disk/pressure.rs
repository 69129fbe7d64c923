//! The condition `DiskPressure`: file systems of the machine are short of free space.

use std::{
    collections::BTreeMap,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{
    disk_child::MeasureFreeSpace,
    foreign_disks::{DiskTask, ForeignDisks},
};
use crate::{Statuses, service::paths};
use kat_daemon::watchdog::LoopPulses;
use kat_host::users::HOMES;
use kat_types::{
    api::{ApiTime, Condition, DISK_PRESSURE},
    machine::root::Root,
    reason::Reason,
    resource::{AgentConfig, Bytes},
};

/// Interval of the checks.
const EVERY: Duration = Duration::from_secs(10);
/// Shortest and longest pause between two looks at a disk that must not run full.
pub(crate) const SOONEST_LOOK: Duration = Duration::from_secs(2);
const LATEST_LOOK: Duration = Duration::from_secs(10);
/// Bytes in a second that programs write at most. A program that writes as fast as it can fills a
/// disk's last bytes within seconds.
const FASTEST_WRITES: u64 = 4 << 30;
/// Longest check: a network file system whose server is gone would block it forever.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// Largest default of the required free space in bytes; the default is a tenth of the file system.
const MOST: u64 = 10 << 30;
/// Minimum percentage of free inodes, where the file system counts inodes.
const INODES: u64 = 5;
/// Percentage of free inodes at which a pressure on inodes ends.
pub(crate) const INODES_THAT_CALM: u64 = INODES + INODES / 5;

/// The free space of one file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FreeSpace {
    /// Identifies the file system.
    pub device: u64,
    pub bytes: u64,
    /// Bytes that are free for every user.
    pub free_bytes: u64,
    /// All inodes; 0 where they are not counted.
    pub inodes: u64,
    /// Inodes that are free for every user.
    pub free_inodes: u64,
}

impl FreeSpace {
    /// Time until the next look at a file system of which `least` bytes must stay free: half of what
    /// programs need at least to use up the others, within limits.
    pub(crate) fn pause_above(&self, least: u64) -> Duration {
        let seconds = self.free_bytes.saturating_sub(least) / FASTEST_WRITES / 2;
        Duration::from_secs(seconds).clamp(SOONEST_LOOK, LATEST_LOOK)
    }
}

/// Reads the state of the file system that contains a path.
pub(crate) type ReadFreeSpace = Arc<dyn Fn(&Path) -> io::Result<FreeSpace> + Send + Sync>;

/// Reads the state with statvfs(3).
///
/// # Errors
/// The path does not exist, or statvfs(3) fails.
pub(crate) fn measure_free_space(path: &Path) -> io::Result<FreeSpace> {
    let device = std::fs::metadata(path)?.dev();
    let found = rustix::fs::statvfs(path)?;
    Ok(FreeSpace {
        device,
        bytes: found.f_blocks.saturating_mul(found.f_frsize),
        free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        inodes: found.f_files,
        free_inodes: found.f_favail,
    })
}

/// The file systems that KAT writes to, and those among them that are short of space.
pub(crate) struct DiskWatch {
    paths: Vec<PathBuf>,
    /// Folder with the images of workloads' users.
    homes: PathBuf,
    wanted: Option<Bytes>,
    look: ReadFreeSpace,
    /// By path: the device number of the file system, and the message.
    short: Mutex<ShortDisks>,
    /// The file system of `/var/lib/kat` when it was last measured.
    state: Mutex<Option<FreeSpace>>,
}

/// What was found out about the file system of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Measurement {
    Free(FreeSpace),
    /// The path does not exist.
    Missing,
    /// It can't be measured, or does not answer.
    Unknown,
}

type ShortDisks = BTreeMap<PathBuf, (u64, String)>;

impl DiskWatch {
    /// The file systems of `/var/lib/kat`, of the homes, and of the volumes unless these are on
    /// storage that machines share: pressure on shared storage is not a condition of one machine.
    pub(crate) fn new(
        root: &Root,
        volumes: &str,
        config: &AgentConfig,
        look: ReadFreeSpace,
    ) -> Self {
        let below = |path: &str| root.below(path);
        let homes = below(HOMES);
        let mut paths = vec![below(paths::STATE), homes.clone()];
        if !config.volume_shared {
            paths.push(below(volumes));
        }
        Self {
            paths,
            homes,
            wanted: config.disk_free,
            look,
            short: Mutex::default(),
            state: Mutex::default(),
        }
    }

    /// Checks periodically until `cancel`; a change is reported at once. A file system that hangs
    /// keeps its last result, and delays no other one.
    pub(crate) async fn run(
        self: Arc<Self>,
        disks: ForeignDisks,
        statuses: Statuses,
        pulses: LoopPulses,
        cancel: CancellationToken,
    ) {
        let pulse = pulses.watch("disk pressure");
        loop {
            let measured = self.measure_all(&disks);
            let Some(measured) = pulse.wait(cancel.run_until_cancelled(measured)).await else {
                return;
            };
            if self.judge(measured) {
                statuses.wake_reporter();
            }
            let rest = cancel.run_until_cancelled(tokio::time::sleep(EVERY));
            if pulse.wait(rest).await.is_none() {
                return;
            }
        }
    }

    /// Measures each file system: KAT's own on a thread, the others in children.
    async fn measure_all(self: &Arc<Self>, disks: &ForeignDisks) -> Vec<(PathBuf, Measurement)> {
        let (watch, all) = (Arc::clone(self), disks.clone());
        let own = tokio::task::spawn_blocking(move || watch.measure_own(&all));
        let mut measured = Vec::new();
        for (path, found) in own.await.unwrap_or_default() {
            let found = match found {
                Ok(found) => found,
                Err(mount) => measure_foreign(disks, &mount, &path).await,
            };
            measured.push((path, found));
        }
        measured
    }

    /// Measures KAT's own file systems; the others are named by their mounts.
    fn measure_own(&self, disks: &ForeignDisks) -> Vec<(PathBuf, Result<Measurement, PathBuf>)> {
        let mounts = disks.mounts_of(&self.paths);
        let paths = self.paths.iter().zip(mounts);
        let each = paths.map(|(path, mount)| match mount {
            Some(mount) => (path.clone(), Err(mount)),
            None => (path.clone(), Ok(self.measure(path))),
        });
        each.collect()
    }

    /// Blocks for as long as the file system does.
    fn measure(&self, path: &Path) -> Measurement {
        match (self.look)(path) {
            Ok(room) => Measurement::Free(room),
            Err(_) if path.exists() => Measurement::Unknown,
            Err(_) => Measurement::Missing,
        }
    }

    /// Checks all file systems once; true where the set of short ones has changed. Blocks for as
    /// long as they do.
    #[cfg(test)]
    pub(crate) fn check_all(&self) -> bool {
        let paths = self.paths.iter();
        self.judge(
            paths
                .map(|path| (path.clone(), self.measure(path)))
                .collect(),
        )
    }

    /// Records which file systems are short of space; true where that has changed.
    fn judge(&self, measured: Vec<(PathBuf, Measurement)>) -> bool {
        let before = self.short_disks();
        let mut now = ShortDisks::new();
        let mut devices = Vec::new();
        for (path, found) in measured {
            let was = before.get(&path);
            let room = match found {
                Measurement::Free(room) => room,
                // A missing path is not short of space; one that can't be checked keeps its last
                // result.
                Measurement::Missing => continue,
                Measurement::Unknown => {
                    now.extend(was.map(|why| (path, why.clone())));
                    continue;
                }
            };
            if self.paths.first() == Some(&path) {
                *self.state.lock() = Some(room);
            }
            if devices.contains(&room.device) {
                continue;
            }
            devices.push(room.device);
            if let Some(why) = self.why_short(room, was.is_some()) {
                // The message of the first check stays: it must not change with each byte.
                let why = was.map_or(why, |(_, before)| before.clone());
                now.insert(path, (room.device, why));
            }
        }
        let changed = now != before;
        if changed {
            for (path, (_, why)) in now.iter().filter(|(path, _)| !before.contains_key(*path)) {
                tracing::warn!(path = %path.display(), "{why}");
            }
            for path in before.keys().filter(|path| !now.contains_key(*path)) {
                tracing::info!(path = %path.display(), "there is enough room again");
            }
            *self.short.lock() = now;
        }
        changed
    }

    /// The file system of `/var/lib/kat` when it was last measured; `None` before that.
    pub(crate) fn state_space(&self) -> Option<FreeSpace> {
        *self.state.lock()
    }

    fn short_disks(&self) -> ShortDisks {
        self.short.lock().clone()
    }

    /// The message about too little free space. Pressure ends only with a fifth more than the limit
    /// at which it begins, so that it does not flap.
    fn why_short(&self, room: FreeSpace, was: bool) -> Option<String> {
        let enough = |least: u64| match was {
            true => least.saturating_add(least / 5),
            false => least,
        };
        let least = self.least(room);
        if room.free_bytes < enough(least) {
            return Some(format!(
                "{} of {} are free, less than {}",
                size(room.free_bytes),
                size(room.bytes),
                size(least)
            ));
        }
        let least = room.inodes / 100 * INODES;
        if self.wanted != Some(Bytes(0)) && room.free_inodes < enough(least) {
            return Some(format!(
                "{} of {} inodes are free, less than {INODES} %",
                room.free_inodes, room.inodes
            ));
        }
        None
    }

    fn least(&self, room: FreeSpace) -> u64 {
        least(self.wanted, room)
    }

    /// Whether the file system with the images is short of space, checked again now.
    pub(crate) fn images_are_short(&self) -> bool {
        let Ok(homes) = (self.look)(&self.homes) else {
            return false;
        };
        let short = self.short_disks();
        // A file system is recorded under its first path.
        let was = short.values().any(|(device, _)| *device == homes.device);
        was && self.why_short(homes, true).is_some()
    }

    /// The condition `DiskPressure`; `None` while no file system is short of space.
    pub(crate) fn condition(&self) -> Option<Condition> {
        let short = self.short_disks();
        let told: Vec<String> = short
            .iter()
            .map(|(path, (_, why))| format!("{}: {why}", path.display()))
            .collect();
        (!told.is_empty()).then(|| Condition {
            kind: DISK_PRESSURE.to_owned(),
            status: true,
            reason: Reason::DiskPressure.into(),
            message: told.join("; "),
            since: ApiTime::UNKNOWN,
        })
    }
}

/// Free bytes that are required: `wanted` by the machine's owner, or the default.
pub(crate) fn least(wanted: Option<Bytes>, room: FreeSpace) -> u64 {
    match wanted {
        Some(Bytes(wanted)) => wanted,
        None => (room.bytes / 10).min(MOST),
    }
}

/// Measures a file system that may hang, for [`LOOK_LIMIT`] at most.
async fn measure_foreign(disks: &ForeignDisks, mount: &Path, path: &Path) -> Measurement {
    if disks.silence(MeasureFreeSpace::LANE, mount).is_some() {
        return Measurement::Unknown;
    }
    let task = MeasureFreeSpace {
        path: path.to_owned(),
    };
    match tokio::time::timeout(LOOK_LIMIT, disks.run(mount, task)).await {
        Ok(Ok(Ok(Some(room)))) => Measurement::Free(room),
        Ok(Ok(Ok(None))) => Measurement::Missing,
        Ok(Ok(Err(_)) | Err(_)) | Err(_) => Measurement::Unknown,
    }
}

/// `812 MiB`, `1.5 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    match bytes / GIB {
        0 => format!("{} MiB", bytes >> 20),
        whole => format!("{whole}.{} GiB", (bytes % GIB) * 10 / GIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_looked_at_sooner_the_fewer_bytes_are_free_above_its_limit() {
        let pause = |free_bytes| {
            let room = FreeSpace {
                device: 1,
                bytes: 1 << 40,
                free_bytes,
                inodes: 0,
                free_inodes: 0,
            };
            room.pause_above(10 << 30).as_secs()
        };
        assert_eq!(pause(0), 2);
        assert_eq!(pause(26 << 30), 2);
        assert_eq!(pause(50 << 30), 5);
        assert_eq!(pause(1 << 40), 10);
    }

    const GIB: u64 = 1 << 30;

    /// Two disks with settable free space: one of `/var/lib/kat` with the homes, one of the
    /// volumes.
    fn disks(config: &AgentConfig) -> (DiskWatch, Arc<Mutex<[FreeSpace; 2]>>) {
        let room = |device| FreeSpace {
            device,
            bytes: 20 * GIB,
            free_bytes: 10 * GIB,
            inodes: 1000,
            free_inodes: 900,
        };
        let rooms = Arc::new(Mutex::new([room(1), room(2)]));
        let told = Arc::clone(&rooms);
        let look: ReadFreeSpace = Arc::new(move |path| {
            let rooms = told.lock();
            Ok(rooms[usize::from(path.ends_with("volumes"))])
        });
        let disks = DiskWatch::new(&Root::new("/"), "/srv/volumes", config, look);
        (disks, rooms)
    }

    #[test]
    fn pressure_begins_below_a_tenth_names_the_path_and_ends_with_a_fifth_more() {
        let (disks, rooms) = disks(&AgentConfig::default());
        assert!(!disks.check_all());
        assert_eq!(disks.condition(), None);
        rooms.lock()[0].free_bytes = 2 * GIB - 1;
        assert!(disks.check_all());
        let condition = disks.condition().unwrap();
        assert_eq!(
            condition.message,
            "/var/lib/kat: 1.9 GiB of 20.0 GiB are free, less than 2.0 GiB"
        );
        assert!(condition.status && disks.images_are_short());
        // The condition's message stays the same while the condition lasts.
        rooms.lock()[0].free_bytes = GIB;
        assert!(!disks.check_all());
        assert_eq!(disks.condition(), Some(condition));
        rooms.lock()[0].free_bytes = 2 * GIB + GIB / 3;
        assert!(!disks.check_all());
        rooms.lock()[0].free_bytes = 2 * GIB + GIB / 2;
        assert!(!disks.images_are_short(), "looked at anew");
        assert!(disks.check_all());
        assert_eq!(disks.condition(), None);
    }

    #[test]
    fn a_volume_disk_that_is_full_is_no_reason_to_remove_images() {
        let (disks, rooms) = disks(&AgentConfig::default());
        rooms.lock()[1].free_bytes = 0;
        assert!(disks.check_all());
        let message = disks.condition().unwrap().message;
        assert!(message.starts_with("/srv/volumes: 0 MiB of"), "{message}");
        assert!(!disks.images_are_short());
    }

    #[test]
    fn shared_volumes_are_no_matter_of_one_machine() {
        let shared = AgentConfig {
            volume_shared: true,
            ..AgentConfig::default()
        };
        let (disks, rooms) = disks(&shared);
        rooms.lock()[1].free_bytes = 0;
        assert!(!disks.check_all());
    }

    #[test]
    fn inodes_count_too_and_a_machine_may_say_what_is_enough() {
        let (disks, rooms) = disks(&AgentConfig::default());
        rooms.lock()[0].free_inodes = 49;
        assert!(disks.check_all());
        let message = disks.condition().unwrap().message;
        assert!(message.contains("49 of 1000 inodes"), "{message}");
        for (wanted, short) in [(0, false), (9 * GIB, false), (11 * GIB, true)] {
            let config = AgentConfig {
                disk_free: Some(Bytes(wanted)),
                ..AgentConfig::default()
            };
            let (disks, rooms) = self::disks(&config);
            rooms.lock()[0].free_inodes = if wanted == 0 { 0 } else { 900 };
            assert_eq!(disks.check_all(), short, "{wanted}");
        }
    }

    #[test]
    fn the_machine_has_disks() {
        let room = measure_free_space(Path::new("/")).unwrap();
        assert!(room.bytes > 0 && room.free_bytes <= room.bytes);
        assert!(measure_free_space(Path::new("/no/such/path")).is_err());
    }
}
