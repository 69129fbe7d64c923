//! Health checks: probes of the instances that run here, and what follows from them.
//!
//! One task for each instance with a health check, for as long as its container runs; with the next
//! container all begins anew. [`progress`] has the thresholds, [`probe`] and [`exec`] the asking.

pub mod exec;
pub mod probe;
pub mod progress;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use self::{
    probe::{Network, Target},
    progress::Progress,
};
use crate::exec::cgroup::Inside;
use kat_systemd::UnitManager;
use kat_types::{backoff::Backoff, resource::HealthCheck};

/// Pause after the first failed probe of a container that has just begun; it doubles, until the next
/// probe is due anyway.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// What is to be probed.
pub struct Subject {
    /// When its container began, microseconds of the monotonic clock: tells one from the next.
    pub run: u64,
    /// For how long it has run.
    pub up: Duration,
    /// How and when.
    pub check: HealthCheck,
    /// What is asked.
    pub target: Target,
    /// Where commands are run.
    pub inside: Inside,
    /// What an earlier process of the agent knew of this very container.
    pub known: Option<Progress>,
}

/// The means of probing.
#[derive(Clone)]
pub struct Means {
    /// For http and tcp.
    pub network: Arc<dyn Network>,
    /// The user's manager, for commands.
    pub manager: Arc<dyn UnitManager>,
    /// `/` on a real machine.
    pub root: PathBuf,
    /// Microseconds of the monotonic clock.
    pub monotonic: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// The probes of one user's instances.
pub struct Probes {
    means: Means,
    running: BTreeMap<String, Running>,
    changed: Arc<Notify>,
}

struct Running {
    run: u64,
    progress: Arc<Mutex<Progress>>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Probes {
    /// Nothing is probed yet.
    pub fn new(means: Means) -> Self {
        Self {
            means,
            running: BTreeMap::new(),
            changed: Arc::default(),
        }
    }

    /// The container of this instance is probed from now on, if it is not yet.
    pub fn begin(&mut self, instance: &str, subject: Subject) {
        let present = self.running.get(instance);
        if present.is_some_and(|present| present.run == subject.run) {
            return;
        }
        let progress = Arc::new(Mutex::new(subject.known.clone().unwrap_or_default()));
        let run = subject.run;
        let prober = Prober {
            means: self.means.clone(),
            progress: Arc::clone(&progress),
            changed: Arc::clone(&self.changed),
            subject,
        };
        let running = Running {
            run,
            progress,
            task: tokio::spawn(prober.probe()),
        };
        self.running.insert(instance.to_owned(), running);
    }

    /// It runs no more, or is no more to be probed.
    pub fn end(&mut self, instance: &str) {
        self.running.remove(instance);
    }

    /// Keeps the instances that `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.running.retain(|instance, _| keep(instance));
    }

    /// How it is with an instance that is probed.
    pub fn of(&self, instance: &str) -> Option<Progress> {
        let running = self.running.get(instance)?;
        Some(running.progress.lock().clone())
    }

    /// Waits until something is otherwise than at the last wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// One container's probes.
struct Prober {
    subject: Subject,
    means: Means,
    progress: Arc<Mutex<Progress>>,
    changed: Arc<Notify>,
}

impl Prober {
    async fn probe(self) {
        let Subject { up, check, .. } = &self.subject;
        sleep(seconds(check.initial_delay_seconds).saturating_sub(*up)).await;
        let period = seconds(check.period_seconds.max(1));
        let mut turn = Instant::now();
        let mut pauses = Backoff::new(FIRST_PAUSE, period).pauses();
        loop {
            let in_turn = Instant::now() >= turn;
            if in_turn {
                turn = Instant::now() + period;
            }
            let result = self.ask().await;
            let pause = pauses.next_pause();
            let next = match self.record(result, in_turn) {
                // It may be ready any moment.
                true => (Instant::now() + pause).min(turn),
                false => turn,
            };
            sleep_until(next).await;
        }
    }

    /// Takes the result of a probe in. True where the next one is worth making before its turn.
    fn record(&self, result: Result<(), String>, in_turn: bool) -> bool {
        let mut progress = self.progress.lock();
        let before = progress.clone();
        progress.record(&self.subject.check, result, in_turn);
        if (before.health, &before.error) != (progress.health, &progress.error) {
            self.changed.notify_one();
        }
        progress.is_starting()
    }

    /// One probe, in its time.
    async fn ask(&self) -> Result<(), String> {
        let limit = seconds(self.subject.check.timeout_seconds.max(1));
        let Means {
            network,
            manager,
            root,
            monotonic,
        } = &self.means;
        let asked = async {
            match &self.subject.target {
                Target::Http { address, path } => {
                    network.get(*address, path).await.and_then(probe::judge)
                }
                Target::Tcp { address } => network.connect(*address).await,
                Target::Exec { command } => {
                    let inside = &self.subject.inside;
                    let time = (monotonic(), limit);
                    return inside.probe(manager.as_ref(), root, command, time).await;
                }
            }
        };
        // systemd ends a command, and says what became of it a moment later.
        let patience = match self.subject.target {
            Target::Exec { .. } => Duration::MAX,
            Target::Http { .. } | Target::Tcp { .. } => limit,
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
