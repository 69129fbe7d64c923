//! Eviction: stops instances when the disk with etcd and the containers is nearly full.
//!
//! The disk is checked every 2 s, as for the ballast: a program that writes as fast as it can fills
//! the remaining space within seconds. Far from that, up to 10 s pass between two checks. Eviction begins when less than half of the free space that
//! `DiskPressure` requires is left ([`FreeSpaceThresholds`]). The instance with the largest use above its
//! storage request is stopped ([`decide`]), one after the other, until there is enough space. The
//! data that it wrote into its container is removed; the data of volumes stays. The instance starts
//! again here when there is space and its pause is over, which doubles from 1 to 10 minutes, unless
//! the leader has placed it elsewhere meanwhile.
//!
//! A restarted agent reads the evicted instances from a file below `/run`; a machine that boots
//! starts everything again.

mod decide;
mod measure;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{
    decide::{DiskShortage, EvictionBasis, InstanceDiskUse, MeasuredSize, ShortageKind, decide},
    measure::{InstanceFolders, MachineFolders},
};
use super::ballast;
use crate::{
    Statuses,
    disk::{
        foreign_disks::ForeignDisks,
        pressure as disks,
        pressure::{FreeSpace, ReadFreeSpace, SOONEST_LOOK},
    },
    service::{paths, supervisor::DesiredList},
};
use kat_daemon::watchdog::LoopPulses;
use kat_host::{
    files,
    users::{HOMES, home_of},
};
use kat_types::{
    assignment::Assignment, backoff::Backoff, machine::root::Root, reason::Reason,
    resource::AgentConfig,
};

/// Longest measurement of all instances; an instance that is not measured by then counts as 0
/// bytes, unfinished.
const MEASURE_LIMIT: Duration = Duration::from_secs(10);
/// Most hanging measurements; no other one is started beside so many.
const MOST_HUNG: usize = 4;
/// Longest wait for the end of a stopped instance; one that has not ended by then may hang.
const ENDS_WITHIN: u64 = 40 * SECOND;
/// Pause between two evictions that free no space, while the free space does not shrink.
const BETWEEN: u64 = 60 * SECOND;
/// Pauses of an instance after its evictions.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(600));
/// After running for this long, an eviction counts as the instance's first again.
const FORGIVEN: u64 = 3600 * SECOND;
/// Microseconds in a second.
const SECOND: u64 = 1_000_000;
/// Minimum percentage of free inodes, where the file system counts inodes.
const INODES: u64 = 1;
/// Largest file of evicted instances in bytes.
const LIMIT: u64 = 1 << 20;
/// Space reserved for Podman, in bytes. Podman writes a little while it removes a container. It
/// runs as the workload's user, for whom a full disk has no space left.
const RESERVE: u64 = 16 << 20;
/// The reserve is at most this part of the file system.
const RESERVE_PART: u64 = 64;
/// Longest read of the file systems' state.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Instances that must not run now, each with its message.
pub(crate) type EvictedInstances = Arc<BTreeMap<String, String>>;

/// Thresholds of free space on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FreeSpaceThresholds {
    /// Below this an instance is evicted.
    least: u64,
    /// Below this an instance is evicted even where that frees no space: etcd is about to run out
    /// of it.
    urgent: u64,
    /// From this on no further instance is evicted.
    enough: u64,
    /// From this on evicted instances start again.
    calm: u64,
}

impl FreeSpaceThresholds {
    /// The thresholds in bytes. `pressure` is the free space that `DiskPressure` requires.
    fn of(room: FreeSpace, pressure: u64) -> Self {
        let urgent = ballast::release_limit(room);
        let least = (pressure / 2).max(urgent);
        let enough = least.saturating_add(least / 2);
        let pressure_ends = pressure.saturating_add(pressure / 5);
        Self {
            least,
            urgent,
            enough,
            calm: pressure_ends.max(enough),
        }
    }

    /// The thresholds in inodes.
    fn of_inodes(room: FreeSpace) -> Self {
        let least = room.inodes / 100 * INODES;
        Self {
            least,
            urgent: least / 2,
            enough: least * 2,
            calm: room.inodes / 100 * disks::INODES_THAT_CALM,
        }
    }
}

/// An instance that was evicted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EvictionRecord {
    /// The instance must not run now.
    is_stopped: bool,
    /// Time of the eviction, microseconds of the monotonic clock.
    since: u64,
    /// Earliest start of the instance, microseconds of the monotonic clock.
    until: u64,
    /// Number of evictions in succession.
    times: u32,
    /// The message for users.
    message: String,
}

impl EvictionRecord {
    fn stop(&mut self, now: u64, message: String) {
        if now.saturating_sub(self.until) >= FORGIVEN {
            self.times = 0;
        }
        let pause = PAUSES.after(self.times).as_micros();
        *self = Self {
            is_stopped: true,
            since: now,
            until: now.saturating_add(u64::try_from(pause).unwrap_or(u64::MAX)),
            times: self.times.saturating_add(1),
            message,
        };
    }
}

/// Measures what an instance uses of a file system: with `true` the data that stays after its stop,
/// with `false` the data that is removed with its containers.
type MeasureUsage = Arc<dyn Fn(&InstanceFolders, u64, bool) -> MeasuredSize + Send + Sync>;

/// Evicts instances of a machine, and lets them start again.
pub(crate) struct Evictor {
    machine: MachineFolders,
    homes: PathBuf,
    /// The paths `/var/lib/kat` and the homes.
    guarded: [PathBuf; 2],
    config: AgentConfig,
    look: ReadFreeSpace,
    measure: MeasureUsage,
    monotonic: Arc<dyn Fn() -> u64 + Send + Sync>,
    statuses: Statuses,
    file: PathBuf,
    reserve: PathBuf,
    records: BTreeMap<String, EvictionRecord>,
    hung: Arc<AtomicUsize>,
    /// Free bytes after the last eviction that freed no space.
    free_then: Option<u64>,
}

impl Evictor {
    /// The evictor of the machine whose files lie below `root`.
    pub(crate) fn new(
        root: &Root,
        volumes: &str,
        config: &AgentConfig,
        look: ReadFreeSpace,
        (statuses, monotonic): (Statuses, Arc<dyn Fn() -> u64 + Send + Sync>),
    ) -> Self {
        let below = |path: &str| root.below(path);
        let file = below(paths::EVICTED);
        let records = match files::read_bounded(&file, LIMIT) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!(path = %file.display(), "the list of evicted instances can't be read: {error:#}");
                BTreeMap::new()
            }),
            Err(error) => {
                if !error.is_not_found() {
                    tracing::warn!("the list of evicted instances can't be read: {error:#}");
                }
                BTreeMap::new()
            }
        };
        Self {
            machine: MachineFolders {
                root: root.path().to_owned(),
                volumes: (!config.volume_shared).then(|| below(volumes)),
                disks: ForeignDisks::new(root),
            },
            homes: below(HOMES),
            guarded: [below(paths::STATE), below(HOMES)],
            config: config.clone(),
            look,
            measure: Arc::new(|places, device, data| match data {
                true => places.data(device),
                false => places.layers(device),
            }),
            monotonic,
            statuses,
            file,
            reserve: below(paths::EVICTION_RESERVE),
            records,
            hung: Arc::default(),
            free_then: None,
        }
    }

    /// The instances that must not run now.
    pub(crate) fn evicted(&self) -> EvictedInstances {
        let stopped = self.records.iter().filter(|(_, one)| one.is_stopped);
        let told = stopped.map(|(instance, one)| (instance.clone(), one.message.clone()));
        Arc::new(told.collect())
    }

    /// Checks the file systems periodically until `cancel`.
    pub(crate) async fn run(
        self,
        lists: watch::Receiver<DesiredList>,
        evicted: watch::Sender<EvictedInstances>,
        pulses: LoopPulses,
        cancel: CancellationToken,
    ) {
        let pulse = pulses.watch("eviction");
        let mut evictor = self;
        loop {
            let listed = lists.borrow().clone();
            let step = tokio::task::spawn_blocking(move || {
                let pause = evictor.step(&listed);
                (evictor, pause)
            });
            let pause;
            (evictor, pause) = match pulse.wait(step).await {
                Ok(done) => done,
                Err(error) => {
                    tracing::error!("the look at the disks ended early: {error:#}");
                    return;
                }
            };
            let now = evictor.evicted();
            evicted.send_if_modified(|present| {
                let differs = *present != now;
                *present = now;
                differs
            });
            let rest = cancel.run_until_cancelled(tokio::time::sleep(pause));
            if pulse.wait(rest).await.is_none() {
                return;
            }
        }
    }

    /// Checks once, and changes the set of evicted instances; returns the time until the next check.
    /// Blocks for as long as the disks do, within limits.
    fn step(&mut self, listed: &DesiredList) -> Duration {
        let now = (self.monotonic)();
        let before = self.records.clone();
        if listed.known {
            let assignments = &listed.desired.assignments;
            self.records.retain(|instance, _| {
                let assigned = assignments.get(instance);
                assigned.is_some_and(Assignment::is_run)
            });
        }
        let rooms = self.rooms();
        if let Some(rooms) = &rooms {
            self.release(rooms, now);
            for (path, room) in rooms {
                if let Some((lack, margin)) = self.lack(*room) {
                    self.make_room(listed, (path, *room), (lack, margin), now);
                }
            }
        }
        if self.records != before
            && let Err(error) = files::write_json(&self.file, &self.records)
        {
            tracing::warn!(
                "which instances are evicted is not kept over a restart of the agent: {error:#}"
            );
        }
        self.pause(&rooms.unwrap_or_default())
    }

    /// Time until the next check. While an instance is evicted, or inodes get scarce, it is short.
    fn pause(&self, rooms: &[(PathBuf, FreeSpace)]) -> Duration {
        let is_stopped = self.records.values().any(|one| one.is_stopped);
        let lacks_inodes = |room: &FreeSpace| {
            room.inodes > 0 && room.free_inodes < FreeSpaceThresholds::of_inodes(*room).calm
        };
        if is_stopped || rooms.iter().any(|(_, room)| lacks_inodes(room)) {
            return SOONEST_LOOK;
        }
        let pauses = rooms
            .iter()
            .map(|(_, room)| room.pause_above(self.margin(*room).least));
        pauses.min().unwrap_or(SOONEST_LOOK)
    }

    /// The guarded file systems without duplicates; `None` where their state can't be read.
    fn rooms(&self) -> Option<Vec<(PathBuf, FreeSpace)>> {
        let (look, paths) = (Arc::clone(&self.look), self.guarded.clone());
        let looked = bounded(&self.hung, LOOK_LIMIT, move || {
            let mut rooms: Vec<(PathBuf, FreeSpace)> = Vec::new();
            for path in paths {
                // A missing path has no space to be short of.
                if let Ok(room) = look(&path)
                    && rooms.iter().all(|(_, other)| other.device != room.device)
                {
                    rooms.push((path, room));
                }
            }
            rooms
        });
        looked.filter(|rooms| !rooms.is_empty())
    }

    fn margin(&self, room: FreeSpace) -> FreeSpaceThresholds {
        FreeSpaceThresholds::of(room, disks::least(self.config.disk_free, room))
    }

    fn lack(&self, room: FreeSpace) -> Option<(DiskShortage, FreeSpaceThresholds)> {
        let lacks = |kind, free: u64, margin: FreeSpaceThresholds| {
            let lack = DiskShortage {
                kind,
                missing: margin.enough.saturating_sub(free),
                urgent: free < margin.urgent,
            };
            (free < margin.least).then_some((lack, margin))
        };
        let bytes = lacks(ShortageKind::Bytes, room.free_bytes, self.margin(room));
        let inodes = || {
            lacks(
                ShortageKind::Files,
                room.free_inodes,
                FreeSpaceThresholds::of_inodes(room),
            )
        };
        bytes.or_else(|| inodes().filter(|_| room.inodes > 0))
    }

    /// Lets instances start again whose pause is over, once every file system has enough space.
    fn release(&mut self, rooms: &[(PathBuf, FreeSpace)], now: u64) {
        let calm = rooms.iter().all(|(_, room)| {
            let inodes =
                room.inodes == 0 || room.free_inodes >= FreeSpaceThresholds::of_inodes(*room).calm;
            room.free_bytes >= self.margin(*room).calm && inodes
        });
        if !calm {
            return;
        }
        self.free_then = None;
        self.keep_reserve(rooms);
        for (instance, record) in &mut self.records {
            if record.is_stopped && now >= record.until {
                record.is_stopped = false;
                // From here on `until` is the begin of the instance's new run.
                record.until = now;
                tracing::info!(instance, "there is room on the disk again: it may start");
            }
        }
    }

    /// Reserves the space for Podman, where the homes lie on the file system of `/var/lib/kat`.
    fn keep_reserve(&self, rooms: &[(PathBuf, FreeSpace)]) {
        let [(_, room)] = rooms else { return };
        let size = (room.bytes / RESERVE_PART).min(RESERVE) >> 12 << 12;
        if size == 0 || self.reserve.exists() {
            return;
        }
        if let Err(error) = ballast::allocate(&self.reserve, size) {
            tracing::warn!(path = %self.reserve.display(), "no room is kept for Podman: {error:#}");
        }
    }

    /// Evicts one instance, where that is necessary.
    fn make_room(
        &mut self,
        listed: &DesiredList,
        (path, room): (&Path, FreeSpace),
        (lack, margin): (DiskShortage, FreeSpaceThresholds),
        now: u64,
    ) {
        if !listed.known || self.is_ending(now) {
            return;
        }
        let running = listed.desired.assignments.values().filter(|one| {
            let evicted = self.records.get(&one.instance);
            one.is_run()
                && !listed.fenced.contains(&one.instance)
                && !evicted.is_some_and(|record| record.is_stopped)
        });
        let places: Vec<InstanceFolders> = running
            .map(|one| InstanceFolders::of(&self.machine, home_of(&self.homes, &one.user), one))
            .collect();
        if places.is_empty() {
            return;
        }
        let mut uses = self.measure(&places, room.device, false);
        let calm = DiskShortage {
            urgent: false,
            ..lack
        };
        let mut chosen = decide(&uses, calm).map(|(one, basis)| (one.clone(), basis));
        if chosen.is_none() && lack.urgent && self.may_end_growth(room, now) {
            let of_data = self.measure(&places, room.device, true);
            for (one, data) in uses.iter_mut().zip(of_data) {
                one.data = data.data;
            }
            chosen = decide(&uses, lack).map(|(one, basis)| (one.clone(), basis));
            if chosen.is_none() {
                tracing::warn!(
                    path = %path.display(),
                    "the disk runs full, and no instance uses more than its request of storage"
                );
            }
        }
        let Some((victim, basis)) = chosen else {
            return;
        };
        self.free_then = (basis == EvictionBasis::Data).then_some(room.free_bytes);
        let message = eviction_message(&victim, basis, (path, room), (lack, margin));
        tracing::warn!(
            instance = victim.instance,
            why = message,
            "an instance is evicted"
        );
        let record = self.records.entry(victim.instance).or_default();
        record.stop(now, message);
    }

    /// Whether the last evicted instance has not ended yet.
    fn is_ending(&self, now: u64) -> bool {
        let (reports, _) = self.statuses.all();
        let has_ended = |instance: &String| {
            let mut reports = reports.iter();
            let report = reports.find(|report| report.instance_id == *instance);
            report.is_none_or(|report| report.reason == Reason::Evicted)
        };
        self.records.iter().any(|(instance, record)| {
            record.is_stopped
                && now.saturating_sub(record.since) < ENDS_WITHIN
                && !has_ended(instance)
        })
    }

    /// Whether an instance may be evicted only to end its growth. Such an eviction frees no space,
    /// so the next one waits until the free space shrinks further or [`BETWEEN`] is over.
    fn may_end_growth(&self, room: FreeSpace, now: u64) -> bool {
        let stopped = self.records.values().filter(|one| one.is_stopped);
        let last = stopped.map(|one| one.since).max();
        let waited = last.is_none_or(|last| now.saturating_sub(last) >= BETWEEN);
        waited || self.free_then.is_none_or(|then| room.free_bytes < then)
    }

    /// The use of each instance on the file system, in the order of `places`: with `data` the data
    /// that stays after its stop, otherwise the data that is removed with its containers.
    fn measure(&self, places: &[InstanceFolders], device: u64, data: bool) -> Vec<InstanceDiskUse> {
        let of = |places: &InstanceFolders, taken: MeasuredSize| {
            let (layers, data) = match data {
                true => (MeasuredSize::NONE, taken),
                false => (taken, MeasuredSize::NONE),
            };
            InstanceDiskUse {
                instance: places.instance.clone(),
                request: places.request,
                layers,
                data,
            }
        };
        let unfinished = MeasuredSize {
            whole: false,
            ..MeasuredSize::NONE
        };
        let found: Arc<Mutex<Vec<MeasuredSize>>> = Arc::default();
        let (filled, measure) = (Arc::clone(&found), Arc::clone(&self.measure));
        let all = places.to_vec();
        let done = bounded(&self.hung, MEASURE_LIMIT, move || {
            for one in &all {
                let taken = measure(one, device, data);
                let mut filled = filled.lock();
                filled.push(taken);
            }
        });
        if done.is_none() {
            tracing::warn!("not all of what instances use of the disk could be measured in time");
        }
        let found = found.lock();
        let taken = found.iter().copied().chain(std::iter::repeat(unfinished));
        places
            .iter()
            .zip(taken)
            .map(|(one, taken)| of(one, taken))
            .collect()
    }
}

/// Frees the space that is reserved for Podman.
pub(crate) fn give_up_reserve(root: &Root) {
    let path = root.below(paths::EVICTION_RESERVE);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), "the room for Podman is not given up: {error:#}");
        }
        _ => {}
    }
}

/// Runs `work`, which may hang, on a thread of its own. `None` where it takes longer than `limit`:
/// the thread continues and is counted in `hung`.
fn bounded<T: Send + 'static>(
    hung: &Arc<AtomicUsize>,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if hung.load(Ordering::Relaxed) >= MOST_HUNG {
        return None;
    }
    hung.fetch_add(1, Ordering::Relaxed);
    let counted = Arc::clone(hung);
    let (done, result) = mpsc::channel();
    let thread = std::thread::Builder::new().name("disk".to_owned());
    let started = thread.spawn(move || {
        let found = work();
        counted.fetch_sub(1, Ordering::Relaxed);
        // The caller may have stopped waiting.
        let _ = done.send(found);
    });
    if let Err(error) = started {
        hung.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!("a thread that looks at disks can't be started: {error:#}");
        return None;
    }
    result.recv_timeout(limit).ok()
}

/// The message about an evicted instance.
fn eviction_message(
    victim: &InstanceDiskUse,
    basis: EvictionBasis,
    (path, room): (&Path, FreeSpace),
    (lack, margin): (DiskShortage, FreeSpaceThresholds),
) -> String {
    let size = disks::size;
    let path = path.display();
    let (full, used) = match lack.kind {
        ShortageKind::Bytes => {
            let least = |taken: MeasuredSize| match taken.whole {
                true => size(taken.bytes),
                false => format!("at least {}", size(taken.bytes)),
            };
            let used = match basis {
                EvictionBasis::Layers => format!(
                    "it had written {} into its containers",
                    least(victim.layers)
                ),
                EvictionBasis::Data => format!(
                    "it had written {} into its containers and its volumes, whose data stays",
                    least(victim.layers.and(victim.data))
                ),
            };
            let request = match victim.request {
                0 => "requests no storage".to_owned(),
                request => format!("requests {} of storage", size(request)),
            };
            let full = format!(
                "{} of {} were free, less than {}",
                size(room.free_bytes),
                size(room.bytes),
                size(margin.least)
            );
            (full, format!("{used}, more than others, and {request}"))
        }
        ShortageKind::Files => {
            let files = victim.layers.and(victim.data).files;
            let full = format!(
                "{} of {} inodes were free, less than {INODES} %",
                room.free_inodes, room.inodes
            );
            (full, format!("it had made {files} files, more than others"))
        }
    };
    format!("stopped, because {path} ran full ({full}): {used}; it starts again when there is room")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::{desired_state::desired::DesiredState, tests::assignment};
    use kat_types::{
        api::{InstancePhase, InstanceReport},
        resource::Bytes,
    };

    const MIB: u64 = 1 << 20;

    /// A machine with a disk of 2000 MiB that holds etcd, the homes and the volumes.
    struct Bench {
        _root: tempfile::TempDir,
        evictor: Evictor,
        room: Arc<Mutex<FreeSpace>>,
        /// By instance, the size of its containers and of its volumes in MiB.
        uses: Arc<Mutex<BTreeMap<String, (u64, u64)>>>,
        clock: Arc<AtomicU64>,
        statuses: Statuses,
        listed: DesiredList,
    }

    impl Bench {
        fn new(names: &[(&str, u64)]) -> Self {
            let root = tempfile::tempdir().unwrap();
            let room = Arc::new(Mutex::new(FreeSpace {
                device: 1,
                bytes: 2000 * MIB,
                free_bytes: 1000 * MIB,
                inodes: 1000,
                free_inodes: 900,
            }));
            let clock = Arc::new(AtomicU64::new(7200 * SECOND));
            let assignments = names.iter().enumerate().map(|(index, (name, request))| {
                let mut one = assignment(u32::try_from(index).unwrap(), name);
                one.container.resources.requests.storage =
                    (*request > 0).then_some(Bytes(request * MIB));
                (one.instance.clone(), one)
            });
            let listed = DesiredList {
                known: true,
                confirmed: true,
                desired: Arc::new(DesiredState {
                    assignments: assignments.collect(),
                    ..DesiredState::default()
                }),
                ..DesiredList::default()
            };
            let (statuses, uses) = (Statuses::default(), Arc::default());
            let evictor = Self::agent(root.path(), &room, &clock, &statuses, &uses);
            Self {
                _root: root,
                evictor,
                room,
                uses,
                clock,
                statuses,
                listed,
            }
        }

        fn agent(
            root: &Path,
            room: &Arc<Mutex<FreeSpace>>,
            clock: &Arc<AtomicU64>,
            statuses: &Statuses,
            uses: &Arc<Mutex<BTreeMap<String, (u64, u64)>>>,
        ) -> Evictor {
            std::fs::create_dir_all(root.join("run/kat")).unwrap();
            let (room, clock, uses) = (Arc::clone(room), Arc::clone(clock), Arc::clone(uses));
            let look: ReadFreeSpace = Arc::new(move |_| Ok(*room.lock()));
            let monotonic: Arc<dyn Fn() -> u64 + Send + Sync> =
                Arc::new(move || clock.load(Ordering::Relaxed));
            let config = AgentConfig::default();
            let parts = (statuses.clone(), monotonic);
            let mut evictor = Evictor::new(&Root::new(root), "/srv/volumes", &config, look, parts);
            evictor.measure = Arc::new(move |places, _, data| {
                let uses = uses.lock();
                let (layers, volumes) = uses.get(&places.instance).copied().unwrap_or_default();
                MeasuredSize {
                    bytes: MIB * if data { volumes } else { layers },
                    ..MeasuredSize::NONE
                }
            });
            evictor
        }

        /// Starts a new agent process on the same machine.
        fn restart(&mut self) {
            let Self {
                _root: root,
                room,
                uses,
                clock,
                statuses,
                ..
            } = self;
            self.evictor = Self::agent(root.path(), room, clock, statuses, uses);
        }

        fn free(&self, mib: u64) {
            self.room.lock().free_bytes = mib * MIB;
        }

        fn uses(&self, name: &str, layers: u64, volumes: u64) {
            let mut uses = self.uses.lock();
            uses.insert(format!("{name}-aaaaa"), (layers, volumes));
        }

        /// The instance's unit has ended and its container's layer is removed.
        fn ended(&self, name: &str) {
            self.statuses.set(InstanceReport {
                instance_id: format!("{name}-aaaaa"),
                phase: InstancePhase::Scheduled,
                reason: Reason::Evicted.into(),
                ..InstanceReport::default()
            });
            let mut uses = self.uses.lock();
            uses.get_mut(&format!("{name}-aaaaa")).unwrap().0 = 0;
        }

        fn runs(&self, name: &str) {
            self.statuses.set(InstanceReport {
                instance_id: format!("{name}-aaaaa"),
                phase: InstancePhase::Running,
                ..InstanceReport::default()
            });
        }

        /// Advances the clock and returns the names of the evicted instances.
        fn step(&mut self, seconds: u64) -> Vec<String> {
            self.clock.fetch_add(seconds * SECOND, Ordering::Relaxed);
            self.evictor.step(&self.listed);
            let evicted = self.evictor.evicted();
            let names = evicted.keys().map(|id| id.trim_end_matches("-aaaaa"));
            names.map(str::to_owned).collect()
        }
    }

    const NOBODY: Vec<String> = Vec::new();

    #[test]
    fn who_fills_the_disk_with_its_container_is_stopped_and_comes_back_after_its_pause() {
        let mut bench = Bench::new(&[("filler", 0), ("web", 0), ("db", 4000)]);
        bench.uses("filler", 700, 0);
        bench.uses("web", 20, 0);
        bench.uses("db", 800, 300);
        for name in ["filler", "web", "db"] {
            bench.runs(name);
        }
        // Nothing is evicted at DiskPressure alone.
        bench.free(150);
        assert_eq!(bench.step(2), NOBODY);
        bench.free(90);
        assert_eq!(bench.step(2), ["filler"]);
        let why = bench.evictor.evicted()["filler-aaaaa"].clone();
        assert!(
            why.contains("90 MiB of 1.9 GiB were free, less than 100 MiB")
                && why.contains("it had written 700 MiB into its containers")
                && why.contains("requests no storage"),
            "{why}"
        );
        // Nothing else is evicted while an evicted instance is still stopping.
        bench.free(0);
        assert_eq!(bench.step(2), ["filler"]);
        bench.ended("filler");
        bench.free(750);
        assert_eq!(bench.step(2), ["filler"]);
        assert_eq!(bench.step(50), ["filler"]);
        assert_eq!(bench.step(10), NOBODY);
    }

    #[test]
    fn a_pause_doubles_to_ten_minutes_and_is_forgiven_after_an_hour() {
        let mut bench = Bench::new(&[("filler", 0)]);
        let mut pauses = Vec::new();
        for round in 0..6 {
            if round == 5 {
                // The instance has run without an eviction for an hour.
                bench.step(3600);
            }
            bench.uses("filler", 900, 0);
            bench.runs("filler");
            bench.free(10);
            assert_eq!(bench.step(2), ["filler"]);
            bench.ended("filler");
            bench.free(900);
            let mut pause = 0;
            while !bench.step(10).is_empty() {
                pause += 10;
            }
            pauses.push((pause + 10) / 60);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 1]);
    }

    #[test]
    fn an_evicted_instance_stays_stopped_while_the_disk_is_short() {
        let mut bench = Bench::new(&[("filler", 0)]);
        bench.uses("filler", 900, 0);
        bench.runs("filler");
        bench.free(10);
        assert_eq!(bench.step(2), ["filler"]);
        bench.ended("filler");
        // The pressure ends at 120 % of its threshold, which is a tenth of the disk.
        bench.free(239);
        assert_eq!(bench.step(700), ["filler"]);
        bench.free(241);
        assert_eq!(bench.step(2), NOBODY);
    }

    #[test]
    fn volumes_count_when_hardly_anything_is_left_and_the_next_one_goes_only_where_it_gets_less() {
        let mut bench = Bench::new(&[("filler", 0), ("db", 0)]);
        bench.uses("filler", 0, 600);
        bench.uses("db", 0, 900);
        for name in ["filler", "db"] {
            bench.runs(name);
        }
        bench.free(90);
        assert_eq!(bench.step(2), NOBODY);
        bench.free(50);
        assert_eq!(bench.step(2), ["db"]);
        let why = bench.evictor.evicted()["db-aaaaa"].clone();
        assert!(why.contains("its volumes, whose data stays"), "{why}");
        bench.ended("db");
        assert_eq!(bench.step(2), ["db"]);
        bench.free(49);
        assert_eq!(bench.step(2), ["db", "filler"]);
    }

    #[test]
    fn a_restarted_agent_remembers_evicted_instances() {
        let mut bench = Bench::new(&[("filler", 0)]);
        bench.uses("filler", 900, 0);
        bench.runs("filler");
        bench.free(10);
        assert_eq!(bench.step(2), ["filler"]);
        let told = bench.evictor.evicted();
        bench.restart();
        assert_eq!(bench.evictor.evicted(), told);
        bench.ended("filler");
        bench.free(900);
        assert_eq!(bench.step(30), ["filler"]);
        bench.restart();
        assert_eq!(bench.step(30), NOBODY);
        // Instances that leave the machine are forgotten.
        bench.free(10);
        bench.uses("filler", 900, 0);
        bench.runs("filler");
        assert_eq!(bench.step(2), ["filler"]);
        bench.listed.desired = Arc::default();
        assert_eq!(bench.step(2), NOBODY);
        assert!(bench.evictor.records.is_empty());
    }

    #[test]
    fn without_a_list_nobody_is_stopped_or_forgotten() {
        let mut bench = Bench::new(&[("filler", 0)]);
        bench.uses("filler", 900, 0);
        bench.free(10);
        let listed = std::mem::take(&mut bench.listed);
        assert_eq!(bench.step(2), NOBODY);
        bench.listed = listed;
        assert_eq!(bench.step(2), ["filler"]);
        bench.listed = DesiredList::default();
        assert_eq!(bench.step(2), ["filler"]);
    }

    #[test]
    fn inodes_run_out_too() {
        let mut bench = Bench::new(&[("filler", 0)]);
        bench.runs("filler");
        bench.evictor.measure = Arc::new(|_, _, data| MeasuredSize {
            files: if data { 0 } else { 800 },
            ..MeasuredSize::NONE
        });
        bench.room.lock().free_inodes = 11;
        assert_eq!(bench.step(2), NOBODY);
        bench.room.lock().free_inodes = 9;
        assert_eq!(bench.step(2), ["filler"]);
        let why = bench.evictor.evicted()["filler-aaaaa"].clone();
        assert!(
            why.contains("9 of 1000 inodes were free") && why.contains("800 files"),
            "{why}"
        );
    }

    #[test]
    fn a_measure_that_hangs_is_left_alone_and_counted() {
        let hung = Arc::new(AtomicUsize::new(0));
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..MOST_HUNG {
            let ended = Arc::clone(&ended);
            let found = bounded(&hung, Duration::from_millis(20), move || {
                let _ = ended.lock().recv();
            });
            assert_eq!(found, None);
        }
        assert_eq!(hung.load(Ordering::Relaxed), MOST_HUNG);
        assert_eq!(bounded(&hung, Duration::from_secs(5), || 1), None);
        drop(end);
        while hung.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        assert_eq!(bounded(&hung, Duration::from_secs(5), || 1), Some(1));
    }
}
