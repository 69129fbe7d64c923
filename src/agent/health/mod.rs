//! Health checks: probes of the instances that run here, and their results.
//!
//! One task for each instance with a health check, for as long as its container runs; a new
//! container starts with no history. [`progress`] has the thresholds, [`probe`] and [`exec`] the
//! probes.

pub(crate) mod exec;
pub(crate) mod probe;
pub(crate) mod progress;
pub(crate) mod results;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use self::{
    probe::{ProbeCheck, ProbeNetwork},
    progress::HealthProgress,
    results::ProbeResults,
};
use crate::exec::cgroup::RunningContainer;
use kat_systemd::UnitManager;
use kat_types::{backoff::Backoff, resource::HealthCheck};

/// Pause after the first failed probe of a container that has just started; it doubles until the
/// next regular probe is due.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// An instance to probe.
pub(crate) struct ProbedInstance {
    /// Start of its container, microseconds of the monotonic clock: identifies the container.
    pub run: u64,
    /// How long the container has been running.
    pub up: Duration,
    pub check: HealthCheck,
    pub target: ProbeCheck,
    /// The container in which commands are run.
    pub inside: RunningContainer,
    /// The health that an earlier process of the agent saved for this container.
    pub known: Option<HealthProgress>,
}

/// What probes need.
#[derive(Clone)]
pub(crate) struct ProbeTools {
    /// For http and tcp probes.
    pub network: Arc<dyn ProbeNetwork>,
    /// The user manager, for exec probes.
    pub manager: Arc<dyn UnitManager>,
    /// `/` on a real machine.
    pub root: PathBuf,
    /// Microseconds of the monotonic clock.
    pub monotonic: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Where probes are counted.
    pub results: ProbeResults,
}

/// The probes of one user's instances.
pub(crate) struct Probes {
    means: ProbeTools,
    running: BTreeMap<String, RunningProbe>,
    /// The instances that may have counts in the results.
    probed: BTreeSet<String>,
    changed: Arc<Notify>,
}

struct RunningProbe {
    run: u64,
    progress: Arc<Mutex<HealthProgress>>,
    task: JoinHandle<()>,
}

impl Drop for RunningProbe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Probes {
    pub(crate) fn new(means: ProbeTools) -> Self {
        Self {
            means,
            running: BTreeMap::new(),
            probed: BTreeSet::new(),
            changed: Arc::default(),
        }
    }

    /// Starts to probe the container of this instance, unless that is being done.
    pub(crate) fn begin(&mut self, instance: &str, subject: ProbedInstance) {
        let present = self.running.get(instance);
        if present.is_some_and(|present| present.run == subject.run) {
            return;
        }
        let progress = Arc::new(Mutex::new(subject.known.clone().unwrap_or_default()));
        let run = subject.run;
        let prober = Prober {
            instance: instance.to_owned(),
            means: self.means.clone(),
            progress: Arc::clone(&progress),
            changed: Arc::clone(&self.changed),
            subject,
        };
        let running = RunningProbe {
            run,
            progress,
            task: tokio::spawn(prober.probe()),
        };
        self.running.insert(instance.to_owned(), running);
        self.probed.insert(instance.to_owned());
    }

    /// Stops to probe an instance.
    pub(crate) fn end(&mut self, instance: &str) {
        self.running.remove(instance);
    }

    /// Keeps the instances that `keep` accepts.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.running.retain(|instance, _| keep(instance));
        self.probed.retain(|instance| {
            let stays = keep(instance);
            if !stays {
                self.means.results.forget(instance);
            }
            stays
        });
    }

    /// The health of a probed instance.
    pub(crate) fn of(&self, instance: &str) -> Option<HealthProgress> {
        let running = self.running.get(instance)?;
        Some(running.progress.lock().clone())
    }

    /// Waits until a health has changed since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

struct Prober {
    instance: String,
    subject: ProbedInstance,
    means: ProbeTools,
    progress: Arc<Mutex<HealthProgress>>,
    changed: Arc<Notify>,
}

impl Prober {
    async fn probe(self) {
        let ProbedInstance { up, check, .. } = &self.subject;
        sleep(seconds(check.initial_delay_seconds).saturating_sub(*up)).await;
        let period = seconds(check.period_seconds.max(1));
        let mut turn = Instant::now();
        let mut pauses = Backoff::new(FIRST_PAUSE, period).pauses();
        loop {
            let in_turn = Instant::now() >= turn;
            if in_turn {
                turn = Instant::now() + period;
            }
            let began = Instant::now();
            let result = self.ask().await;
            let results = &self.means.results;
            results.count(&self.instance, result.is_ok(), began.elapsed());
            let pause = pauses.next_pause();
            let next = match self.record(result, in_turn) {
                // The container may become ready at any moment.
                true => (Instant::now() + pause).min(turn),
                false => turn,
            };
            sleep_until(next).await;
        }
    }

    /// Records the result of a probe. True where the next probe should be made before it is due.
    fn record(&self, result: Result<(), String>, in_turn: bool) -> bool {
        let mut progress = self.progress.lock();
        let before = progress.clone();
        progress.record(&self.subject.check, result, in_turn);
        if (before.health, &before.error) != (progress.health, &progress.error) {
            self.changed.notify_one();
        }
        progress.is_starting()
    }

    /// Makes one probe within its time limit.
    async fn ask(&self) -> Result<(), String> {
        let limit = seconds(self.subject.check.timeout_seconds.max(1));
        let ProbeTools {
            network,
            manager,
            root,
            monotonic,
            results: _,
        } = &self.means;
        let asked = async {
            match &self.subject.target {
                ProbeCheck::Http { address, path } => network
                    .get(*address, path)
                    .await
                    .and_then(probe::check_http_status),
                ProbeCheck::Tcp { address } => network.connect(*address).await,
                ProbeCheck::Exec { command } => {
                    let inside = &self.subject.inside;
                    let time = (monotonic(), limit);
                    return inside.probe(manager.as_ref(), root, command, time).await;
                }
            }
        };
        // systemd enforces a command's time limit, and reports the result a moment later.
        let patience = match self.subject.target {
            ProbeCheck::Exec { .. } => Duration::MAX,
            ProbeCheck::Http { .. } | ProbeCheck::Tcp { .. } => limit,
        };
        let asked = timeout(patience, asked).await;
        asked.unwrap_or_else(|_| Err(timed_out(limit)))
    }
}

fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

fn timed_out(limit: Duration) -> String {
    format!("timeout after {} s", limit.as_secs())
}
