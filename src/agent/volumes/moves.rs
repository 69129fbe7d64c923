//! Moves volumes between machines: receives the volumes that the leader moves to this machine, and
//! sends those that it moves away.
//!
//! This module does not decide which data is valid: a complete copy lies beside its destination
//! until the leader has written that it is the volume's data (`plan/volumes/moves.rs`).

pub(crate) mod transfer_ends;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::copies::{MoveError, copy_name, owners_of};
use crate::{Statuses, service::supervisor::DesiredList, volumes::Volumes};
use kat_daemon::watchdog::LoopPulses;
use kat_host::copy::{self, CopyError, CopyProgress, Summary};
use kat_types::{
    api::{VolumeMovePhase as Phase, VolumeMoveReport},
    backoff::Backoff,
    volumes::MoveRecord,
};

pub(crate) use crate::volumes::moves::transfer_ends::OtherMachines;
pub use crate::volumes::moves::transfer_ends::OwnVolumes;

/// Pieces that are buffered between the network and the disk.
const BUFFER: usize = 8;
/// A stream without data for this time is broken; the sender sends something every 10 s.
const IDLE: Duration = Duration::from_secs(45);
/// Interval of progress reports.
const LOOK: Duration = Duration::from_secs(1);
/// Pauses after failures.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(2), LONGEST_PAUSE);
/// Longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Most copies at once.
const AT_ONCE: usize = 2;
/// Sleep where nothing is scheduled.
const LONG: Duration = Duration::from_secs(3600);

/// The data that another machine sends.
#[async_trait]
pub trait IncomingPieces: Send {
    /// The next piece; `None` at the end. An error is a sentence.
    async fn next(&mut self) -> Result<Option<Bytes>, String>;
}

/// Connections to the sending machines.
#[async_trait]
pub trait CopySource: Send + Sync {
    /// Requests the volume from the source machine of the move. An error is a sentence.
    async fn open(
        &self,
        volume: &str,
        desired: &MoveRecord,
    ) -> Result<Box<dyn IncomingPieces>, String>;
}

pub struct VolumeMoves {
    /// Name of this machine.
    pub node: String,
    pub lists: watch::Receiver<DesiredList>,
    pub volumes: Arc<Volumes>,
    /// Receiver of the progress.
    pub statuses: Statuses,
    pub source: Arc<dyn CopySource>,
    /// Reports the loop's liveness to the watchdog.
    pub pulses: LoopPulses,
}

/// A volume that this machine is to receive.
#[derive(Clone)]
struct IncomingCopy {
    volume: String,
    desired: MoveRecord,
    name: String,
    volumes: Arc<Volumes>,
    statuses: Statuses,
    source: Arc<dyn CopySource>,
    room: Arc<Semaphore>,
}

/// A running copy.
struct CopyTask {
    desired: MoveRecord,
    end: CancellationToken,
    ended: JoinHandle<()>,
}

async fn end_all(tasks: Vec<CopyTask>) {
    for task in &tasks {
        task.end.cancel();
    }
    for task in tasks {
        if let Err(error) = task.ended.await {
            tracing::error!("what took a volume ended early: {error:#}");
        }
    }
}

impl VolumeMoves {
    /// Receives the volumes of the list until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("volume moves");
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let mut running: BTreeMap<String, CopyTask> = BTreeMap::new();
        // True once the remains of all moves are removed.
        let mut clean = false;
        loop {
            let listed = self.lists.borrow_and_update().clone();
            let mut again = LONG;
            if listed.confirmed && listed.current {
                let wanted = self.volumes_to_receive(&listed);
                let has_changed = |name: &String, task: &mut CopyTask| {
                    let desired = wanted.get(name).map(|(_, desired)| desired);
                    desired != Some(&task.desired)
                };
                let changed: Vec<CopyTask> = running
                    .extract_if(.., has_changed)
                    .map(|(_, task)| task)
                    .collect();
                // A changed move starts, and copies are removed, only after the previous task has
                // ended.
                pulse.wait(end_all(changed)).await;
                let volumes = wanted
                    .values()
                    .map(|(volume, desired)| (volume.clone(), desired.id.clone()));
                self.statuses.retain_moves(&volumes.collect());
                if !(clean && wanted.is_empty()) {
                    let names: BTreeSet<String> = wanted.keys().cloned().collect();
                    let forgotten = pulse.wait(self.forget(names)).await;
                    clean = forgotten && wanted.is_empty();
                    if !forgotten {
                        again = LONGEST_PAUSE;
                    }
                }
                for (name, (volume, desired)) in wanted {
                    if running.contains_key(&name) {
                        continue;
                    }
                    let end = cancel.child_token();
                    let taking = IncomingCopy {
                        volume,
                        desired: desired.clone(),
                        name: name.clone(),
                        volumes: Arc::clone(&self.volumes),
                        statuses: self.statuses.clone(),
                        source: Arc::clone(&self.source),
                        room: Arc::clone(&room),
                    };
                    let ended = tokio::spawn(taking.run(end.clone()));
                    running.insert(
                        name,
                        CopyTask {
                            desired,
                            end,
                            ended,
                        },
                    );
                }
            }
            let changed = self.lists.changed();
            if !pulse.next_round(cancel.cancelled(), changed, again).await {
                break;
            }
        }
        drop(pulse);
        end_all(running.into_values().collect()).await;
    }

    /// The volumes that this machine is to receive, by the name of their copy.
    fn volumes_to_receive(&self, listed: &DesiredList) -> BTreeMap<String, (String, MoveRecord)> {
        let all = listed.desired.moves.iter();
        let taken = all.filter(|(_, desired)| desired.to == self.node && desired.from != self.node);
        let named = taken.filter_map(|(volume, desired)| {
            let name = copy_name(volume, &desired.id)
                .inspect_err(|error| tracing::error!("volume {volume} is not taken: {error:#}"))
                .ok()?;
            Some((name, (volume.clone(), desired.clone())))
        });
        named.collect()
    }

    /// Removes unwanted copies; false where one could not be removed.
    async fn forget(&self, wanted: BTreeSet<String>) -> bool {
        let volumes = Arc::clone(&self.volumes);
        let work = move || volumes.forget_copies(&wanted);
        let failures = blocking(&self.volumes, work).await;
        let failures = failures.unwrap_or_else(|error| vec![error]);
        for failure in &failures {
            tracing::error!(failure, "a copy that is not wanted can't be removed");
        }
        failures.is_empty()
    }
}

impl IncomingCopy {
    async fn run(self, end: CancellationToken) {
        let mut pauses = PAUSES.pauses();
        let mut report = VolumeMoveReport {
            volume: self.volume.clone(),
            id: self.desired.id.clone(),
            ..VolumeMoveReport::default()
        };
        loop {
            let tried = match self.desired.place {
                true => self
                    .place_received_copy()
                    .await
                    .map(|summary| (summary, Phase::Placed)),
                false => {
                    let copied = self.copy(&mut report, &end).await;
                    let copied = copied.map(|summary| (summary, Phase::Copied));
                    copied.map_err(|message| (Phase::Waiting, message))
                }
            };
            if end.is_cancelled() {
                return;
            }
            match tried {
                Ok((summary, phase)) => {
                    let Summary {
                        files,
                        bytes,
                        skipped,
                        digest,
                    } = summary;
                    let volume = &self.volume;
                    tracing::info!(volume, ?phase, files, bytes, digest, "a volume has come");
                    self.statuses.set_move(VolumeMoveReport {
                        phase,
                        message: String::new(),
                        files,
                        bytes,
                        total_files: files,
                        total_bytes: bytes,
                        skipped,
                        digest,
                        ..report
                    });
                    return;
                }
                Err((phase, message)) => {
                    tracing::warn!(
                        "volume {} does not come, and is tried again: {message}",
                        self.volume
                    );
                    report = VolumeMoveReport {
                        volume: report.volume,
                        id: report.id,
                        phase,
                        message,
                        ..VolumeMoveReport::default()
                    };
                    self.statuses.set_move(report.clone());
                }
            }
            if end
                .run_until_cancelled(tokio::time::sleep(pauses.next_pause()))
                .await
                .is_none()
            {
                return;
            }
        }
    }

    async fn place_received_copy(&self) -> Result<Summary, (Phase, String)> {
        let (taking, to) = (self.clone(), &self.desired.to);
        let placed = blocking(&self.volumes, move || {
            let Self {
                volume,
                desired,
                name,
                ..
            } = &taking;
            taking.volumes.place_copy(volume, desired, name)
        });
        let placed = placed.await.map_err(|error| (Phase::Waiting, error))?;
        placed.map_err(|error| {
            let phase = match error {
                MoveError::Lost(_) => Phase::Lost,
                _ => Phase::Waiting,
            };
            (phase, format!("on {to}: {error}"))
        })
    }

    /// Fails if data lies at the destination that must not be replaced.
    async fn is_free(&self) -> Result<(), String> {
        let taking = self.clone();
        let free = blocking(&self.volumes, move || {
            taking.volumes.check_place(&taking.volume, &taking.desired)
        });
        let to = &self.desired.to;
        free.await?.map_err(|error| format!("on {to}: {error}"))
    }

    /// Makes a complete copy, or takes one that exists already.
    async fn copy(
        &self,
        report: &mut VolumeMoveReport,
        end: &CancellationToken,
    ) -> Result<Summary, String> {
        self.statuses.set_move(report.clone());
        self.is_free().await?;
        let whole = {
            let taking = self.clone();
            blocking(&self.volumes, move || {
                taking.volumes.whole_copy(&taking.name)
            })
            .await?
        };
        if let Some(summary) = whole {
            return Ok(summary);
        }
        let Some(Ok(_room)) = end.run_until_cancelled(self.room.acquire()).await else {
            return Err("it was interrupted".to_owned());
        };
        let opened = end.run_until_cancelled(self.source.open(&self.volume, &self.desired));
        let pieces = opened
            .await
            .unwrap_or_else(|| Err("it was interrupted".to_owned()))?;
        let copied = self.pump(pieces, report, end).await;
        if copied.is_err() {
            // The partial copy is removed: others may need its space meanwhile.
            let taking = self.clone();
            let _ = blocking(&self.volumes, move || {
                taking.volumes.begin_copy(&taking.name)
            })
            .await;
        }
        let summary = copied?;
        // After the report the leader may declare the copy to be the data.
        self.is_free().await?;
        Ok(summary)
    }

    /// Copies from the network to the disk.
    async fn pump(
        &self,
        mut pieces: Box<dyn IncomingPieces>,
        report: &mut VolumeMoveReport,
        end: &CancellationToken,
    ) -> Result<Summary, String> {
        let progress = Arc::new(CopyProgress::default());
        let (sender, receiver) = mpsc::channel(BUFFER);
        let (taking, seen) = (self.clone(), Arc::clone(&progress));
        let work = move || taking.write(receiver, &seen);
        let disk = self.volumes.disks().on_thread(work);
        let disk = disk.map_err(|error| error.to_string())?;
        let (from, to) = (&self.desired.from, &self.desired.to);
        // Dropping the sender ends the thread after the data that has arrived.
        let fed = async move {
            loop {
                let piece = match tokio::time::timeout(IDLE, pieces.next()).await {
                    Ok(Ok(Some(piece))) => piece,
                    Ok(Ok(None)) => return None,
                    Ok(Err(error)) => return Some(error),
                    Err(_) => {
                        return Some(format!("{from} has sent nothing for {} s", IDLE.as_secs()));
                    }
                };
                if sender.send(piece).await.is_err() {
                    // The writing end reports the error.
                    return None;
                }
            }
        };
        let look = async {
            loop {
                tokio::time::sleep(LOOK).await;
                self.report_progress(report, &progress);
            }
        };
        tokio::pin!(disk);
        tokio::pin!(look);
        let broken = tokio::select! {
            biased;
            () = end.cancelled() => Some("it was interrupted".to_owned()),
            broken = fed => broken,
            () = &mut look => None,
        };
        if broken.is_some() {
            progress.end();
        }
        let written = loop {
            tokio::select! {
                biased;
                written = &mut disk => break written,
                () = end.cancelled(), if !end.is_cancelled() => progress.end(),
                () = &mut look => {}
            }
        };
        let written = written.map_err(|error| error.to_string())?;
        match (written, broken) {
            (Ok(summary), None) => Ok(summary),
            (_, Some(broken)) => Err(broken),
            (Err(CopyFailure::Copy(CopyError::Other(reason))), _) => {
                Err(format!("on {from}: {reason}"))
            }
            (Err(CopyFailure::Copy(CopyError::Ended)), _) => {
                Err(format!("{from} has broken it off"))
            }
            (Err(error), _) => Err(format!("on {to}: {error}")),
        }
    }

    fn report_progress(&self, report: &mut VolumeMoveReport, progress: &CopyProgress) {
        let counts = progress.read_counts();
        report.phase = match counts.verifying {
            true => Phase::Verifying,
            false => Phase::Copying,
        };
        report.files = counts.files;
        report.bytes = counts.bytes;
        report.total_files = counts.total_files;
        report.total_bytes = counts.total_bytes;
        self.statuses.set_move(report.clone());
    }

    /// Blocks until all data has arrived and was verified.
    fn write(
        &self,
        pieces: mpsc::Receiver<Bytes>,
        progress: &CopyProgress,
    ) -> Result<Summary, CopyFailure> {
        let (_, owners) = owners_of(self.desired.index)?;
        let into = self.volumes.begin_copy(&self.name)?;
        let mut from = IncomingCopyReader {
            pieces,
            rest: Bytes::new(),
        };
        let summary = copy::receive(&mut from, &into, &owners, progress)?;
        self.volumes.end_copy(&self.name, &summary)?;
        Ok(summary)
    }
}

#[derive(Debug, thiserror::Error)]
enum CopyFailure {
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Folder(#[from] MoveError),
}

async fn blocking<T: Send + 'static>(
    volumes: &Volumes,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let done = volumes.disks().on_thread(work);
    let done = done.map_err(|error| error.to_string())?;
    done.await.map_err(|error| error.to_string())
}

/// The pieces as a blocking reader.
struct IncomingCopyReader {
    pieces: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for IncomingCopyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let count = self.rest.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), self.rest.get(..count)) {
            to.copy_from_slice(from);
        }
        self.rest.advance(count);
        Ok(count)
    }
}
