//! The fence of instances with `onPartition: stop` where the agent does not stop them.
//!
//! The agent renews each instance's deadline while a leader counts this machine as present
//! ([`kat_types::machine::fence`]). After the deadline the hook's server lets the instance not
//! start, and [`DeadlineFence::watch`] kills the first process of each of its containers, with which
//! the kernel ends the others. So a machine whose agent is dead, masked or stopped by a signal runs no
//! such instance when a leader replaces it.
//!
//! A file of deadlines that is missing or broken when `kat-net` starts means that all of them have
//! passed. Later the last deadlines that could be read count: they pass by themselves, and a read
//! that fails for a moment kills nothing.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    unit_processes::UnitProcesses,
    verify::{CgroupReader, VerifyError, kill},
};
use crate::{
    containers::journal_budget::LineBudget,
    hook::journal,
    state_files::{self, StateFiles},
};
use kat_daemon::watchdog::LoopPulse;
use kat_types::machine::{
    fence::{BootClock, RunDeadlines},
    network::FencedInstance,
};

/// Longest interval between two looks at the deadlines. A container that slipped through, or a
/// machine that was suspended, is noticed after this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// An instance whose deadline has passed.
#[derive(Debug, thiserror::Error)]
#[error(
    "instance {0} must not start: kat-agent has not confirmed to a leader that it may run here (onPartition: stop), and it may run on another machine"
)]
pub struct DeadlinePassed(String);

/// What the fence reads and asks.
pub struct FenceSources {
    /// The list of the instances.
    pub files: Arc<StateFiles>,
    /// File with their deadlines.
    pub deadlines: PathBuf,
    /// journald's socket.
    pub journal: PathBuf,
    pub clock: BootClock,
    /// Finds the control group of a process.
    pub cgroups: CgroupReader,
    /// Finds the containers of a unit.
    pub processes: UnitProcesses,
}

/// Kills the instances whose deadline has passed, and refuses their starts.
pub struct DeadlineFence {
    sources: FenceSources,
    /// The last deadlines that could be read.
    known: Mutex<Option<Arc<RunDeadlines>>>,
    lines: LineBudget,
}

impl DeadlineFence {
    pub fn new(sources: FenceSources) -> Arc<Self> {
        Arc::new(Self {
            sources,
            known: Mutex::default(),
            lines: LineBudget::default(),
        })
    }

    /// Whether an instance may start now.
    ///
    /// # Errors
    /// It has `onPartition: stop`, and its deadline has passed, or it has none.
    pub(crate) fn check_start(&self, id: &str) -> Result<(), DeadlinePassed> {
        if self.fenced().is_none_or(|fenced| !fenced.contains_key(id)) {
            return Ok(());
        }
        let deadlines = self.deadlines();
        let deadline = deadlines.and_then(|known| known.deadlines.get(id).copied());
        match deadline.is_some_and(|deadline| (self.sources.clock)() < deadline) {
            true => Ok(()),
            false => Err(DeadlinePassed(id.to_owned())),
        }
    }

    /// Kills instances at their deadlines, until cancelled.
    pub async fn watch(self: Arc<Self>, pulse: LoopPulse, cancel: CancellationToken) {
        let mut changes = self.sources.files.subscribe();
        loop {
            changes.mark_unchanged();
            pulse.beat();
            let next = self.end_overdue().await;
            let news = async {
                tokio::select! {
                    () = cancel.cancelled() => false,
                    changed = changes.changed() => changed.is_ok(),
                    () = wait(next) => true,
                }
            };
            if !pulse.wait(news).await {
                return;
            }
        }
    }

    /// Kills the containers of all instances whose deadline has passed. Returns the time until the
    /// next look, `None` where no instance has a deadline.
    ///
    /// An instance without a deadline is not killed where others have one: the agent has dropped it
    /// from its list, and stops it in order.
    pub async fn end_overdue(&self) -> Option<Duration> {
        let fenced = self.fenced().filter(|fenced| !fenced.is_empty())?;
        let deadlines = self.deadlines();
        let now = (self.sources.clock)();
        let mut next = INTERVAL;
        // At once: a user with many processes delays no other's end.
        let mut ends = JoinSet::new();
        for (id, instance) in fenced {
            let deadline = match &deadlines {
                Some(known) => known.deadlines.get(&id).copied(),
                None => Some(now),
            };
            match deadline.map(|deadline| deadline.since(now)) {
                Some(Duration::ZERO) => {
                    let (cgroups, processes) =
                        (self.sources.cgroups.clone(), self.sources.processes.clone());
                    ends.spawn_blocking(move || {
                        let killed = kill_containers(&instance, &cgroups, &processes);
                        (id, instance, killed)
                    });
                }
                Some(left) => next = next.min(left),
                None => {}
            }
        }
        while let Some(ended) = ends.join_next().await {
            match ended {
                Ok((id, instance, killed)) => self.log(&id, &instance, &killed),
                Err(error) => tracing::error!("the end of an instance broke: {error}"),
            }
        }
        Some(next)
    }

    fn log(&self, instance: &str, fenced: &FencedInstance, killed: &KilledContainers) {
        if killed.count == 0 && killed.error.is_none() {
            return;
        }
        if self.lines.take(fenced.uid).is_none() {
            return;
        }
        if killed.count > 0 {
            // The agent reads it when it is back: the end was not the program's.
            if let Some(unit) = fenced.units.first() {
                let entry = journal::fenced_entry(instance, unit);
                journal::report(&self.sources.journal, &entry);
            }
            tracing::warn!(
                instance,
                containers = killed.count,
                "killed an instance with onPartition: stop: kat-agent has not confirmed to a leader that it may run here"
            );
        }
        if let Some(error) = &killed.error {
            tracing::error!(
                instance,
                "an instance with onPartition: stop may run although its deadline has passed: {error}"
            );
        }
    }

    fn fenced(&self) -> Option<BTreeMap<String, FencedInstance>> {
        let snapshot = self.sources.files.current();
        Some(snapshot.instances.as_ref()?.fenced.clone())
    }

    /// The deadlines, read now if possible.
    fn deadlines(&self) -> Option<Arc<RunDeadlines>> {
        let mut known = self.known.lock();
        match state_files::read(&self.sources.deadlines) {
            Ok(read) => *known = Some(Arc::new(read)),
            Err(error) => tracing::debug!("{error}; the earlier deadlines still hold"),
        }
        known.clone()
    }
}

async fn wait(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// The result of killing an instance's containers.
#[derive(Debug, Default)]
struct KilledContainers {
    count: usize,
    /// The first error.
    error: Option<String>,
}

impl KilledContainers {
    fn failed(&mut self, error: String) {
        self.error.get_or_insert(error);
    }
}

fn kill_containers(
    instance: &FencedInstance,
    cgroups: &CgroupReader,
    processes: &UnitProcesses,
) -> KilledContainers {
    let mut killed = KilledContainers::default();
    for unit in &instance.units {
        let pids = match processes(instance.uid, unit) {
            Ok(pids) => pids,
            Err(error) => {
                let told = format!("the processes of unit {unit} can't be listed: {error}");
                killed.failed(told);
                continue;
            }
        };
        for pid in pids {
            match kill(pid, instance.uid, unit, cgroups) {
                Ok(()) => killed.count += 1,
                Err(VerifyError::Ended(_)) => {}
                Err(VerifyError::Process { source, .. }) if is_gone(&source) => {}
                Err(error) => killed.failed(error.to_string()),
            }
        }
    }
    killed
}

/// Whether a process ended after it was listed.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests;
