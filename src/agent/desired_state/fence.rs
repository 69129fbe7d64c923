//! `onPartition: stop`: what a machine that reaches no leader must not run any more, before the leader
//! may replace it. And, on a machine that has just started, what writes data: it may belong elsewhere by now, and
//! waits until the store has confirmed the list. Nobody takes it from there before this machine confirms its end.
//!
//! A leader moves what it has not heard of for `nodeLossTimeoutSeconds`, since a report arrived or
//! since it began to lead. This machine counts from before either, and ends the instance in time to
//! have stopped by then ([`fence_after`] has the arithmetic). It runs again when a leader
//! has taken a report and the store has confirmed the list after that; an agent that starts anew
//! meanwhile goes by the last report of before.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::service::supervisor::Listed;
use kat_host::files::{self, Access};
use kat_plan::fence_after;
use kat_types::resource::OnPartition;

/// Largest file of [`Memory`].
const LIMIT: u64 = 32;
/// Without anything to wait for.
const LONG: Duration = Duration::from_secs(3600);
/// A watch of the store that was cut off has ended after this (its keepalive: 2 s, and 2 s for the
/// answer). Until then a list that seems to be followed may be of before.
const WATCH_ENDS: Duration = Duration::from_secs(5);

/// Keeps over a restart of the agent, and not over one of the machine, when a leader was reached, and that the
/// list was confirmed.
pub struct Memory {
    /// The file of the first, at run time; that of the second lies beside it.
    pub path: PathBuf,
    /// Microseconds since the machine started.
    pub monotonic: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Memory {
    /// When a leader was last reached; nothing since the machine started.
    pub fn recall(&self) -> Option<Instant> {
        let text = files::read_text(&self.path, LIMIT).ok()?;
        let ago = (self.monotonic)().checked_sub(text.trim().parse().ok()?)?;
        Instant::now().checked_sub(Duration::from_micros(ago))
    }

    /// The store has confirmed the list since the machine started.
    fn is_confirmed(&self) -> bool {
        self.confirmed().exists()
    }

    fn keep_confirmed(&self) {
        if let Err(error) = files::write_atomic(&self.confirmed(), b"", Access::mode(0o600)) {
            tracing::warn!(
                "that the list is confirmed is not kept over a restart of the agent: {error:#}"
            );
        }
    }

    fn confirmed(&self) -> PathBuf {
        self.path.with_file_name("confirmed")
    }

    fn keep(&self, reached: Instant) {
        let ago = u64::try_from(reached.elapsed().as_micros()).unwrap_or(u64::MAX);
        let at = (self.monotonic)().saturating_sub(ago).to_string();
        if let Err(error) = files::write_atomic(&self.path, at.as_bytes(), Access::mode(0o600)) {
            tracing::warn!(
                "when the leader was reached is not kept over a restart of the agent: {error:#}"
            );
        }
    }
}

/// Hands the desired list on, with what must not run now.
pub struct Fence {
    /// After so long a silence the leader may replace what runs here.
    pub timeout: Duration,
    /// The list.
    pub lists: watch::Receiver<Listed>,
    /// When this machine last counted as there.
    pub reached: watch::Receiver<Option<Instant>>,
    /// Where the list goes.
    pub fenced: watch::Sender<Listed>,
    /// Keeps that over a restart of the agent.
    pub memory: Option<Memory>,
}

impl Fence {
    /// Runs until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut stopped = BTreeSet::new();
        let mut listed_at = Instant::now();
        let mut listed_anew = true;
        // Since when a leader takes reports again.
        let mut back = None;
        let mut confirmed = self.memory.as_ref().is_some_and(Memory::is_confirmed);
        loop {
            if listed_anew || self.lists.has_changed().unwrap_or(false) {
                listed_at = Instant::now();
            }
            let listed = self.lists.borrow_and_update().clone();
            let reached = *self.reached.borrow_and_update();
            if !confirmed && listed.confirmed && listed.current {
                confirmed = true;
                if let Some(memory) = &self.memory {
                    memory.keep_confirmed();
                }
            }
            let silence = Silence::of(&listed, reached, self.timeout);
            back = match silence.over.is_empty() {
                true => back.or_else(|| Some(Instant::now())),
                false => None,
            };
            let told = back.filter(|_| listed.current).map(|back| {
                let at = if listed_at > back {
                    listed_at
                } else {
                    back + WATCH_ENDS
                };
                at.saturating_duration_since(Instant::now())
            });
            let verdict = silence.judge(&stopped, told.unwrap_or(LONG));
            // What waits for the list must wait for it in the next agent too.
            let runs = verdict.any && verdict.stopped.is_empty();
            if let (Some(memory), Some(reached), true) = (&self.memory, reached, runs) {
                memory.keep(reached);
            }
            let mut held = verdict.stopped.clone();
            if !confirmed {
                let listed = listed.desired.assignments.iter();
                let writers = listed.filter(|(_, one)| one.writes_data());
                held.extend(writers.map(|(id, _)| id.clone()));
            }
            if verdict.stopped != stopped {
                tracing::warn!(
                    instances = ?verdict.stopped,
                    "these must not run while no leader is reached"
                );
                stopped.clone_from(&verdict.stopped);
            }
            let next = Listed {
                fenced: Arc::new(held),
                ..listed
            };
            self.fenced.send_if_modified(|present| {
                let differs = *present != next;
                *present = next;
                differs
            });
            listed_anew = false;
            let changed = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                changed = self.lists.changed() => {
                    listed_anew = true;
                    changed
                }
                changed = self.reached.changed() => changed,
                () = sleep(verdict.again) => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }
}

/// The instances that this is about, by whether the machine has been silent for too long for them.
struct Silence {
    over: BTreeSet<String>,
    /// With the time that is left.
    running: BTreeMap<String, Duration>,
}

impl Silence {
    /// `reached` is when a leader was last reached; nothing where that never was since the machine
    /// started.
    fn of(listed: &Listed, reached: Option<Instant>, timeout: Duration) -> Self {
        let mut silence = Self {
            over: BTreeSet::new(),
            running: BTreeMap::new(),
        };
        for (id, assignment) in &listed.desired.assignments {
            let asks = assignment.on_partition == OnPartition::Stop;
            if !asks {
                continue;
            }
            let grace = assignment.stop_seconds();
            // A grace that is too long is refused at apply.
            let after = fence_after(timeout, grace).unwrap_or(timeout / 2);
            let left = reached.and_then(|reached| after.checked_sub(reached.elapsed()));
            match left.filter(|left| !left.is_zero()) {
                Some(left) => drop(silence.running.insert(id.clone(), left)),
                None => drop(silence.over.insert(id.clone())),
            }
        }
        silence
    }

    /// What was stopped `before` stays so until the list is `told` anew, so long from now.
    fn judge(self, before: &BTreeSet<String>, told: Duration) -> Verdict {
        let mut verdict = Verdict {
            any: !self.over.is_empty() || !self.running.is_empty(),
            stopped: self.over,
            again: LONG,
        };
        for (id, left) in self.running {
            verdict.again = verdict.again.min(left);
            if before.contains(&id) && !told.is_zero() {
                verdict.again = verdict.again.min(told);
                verdict.stopped.insert(id);
            }
        }
        verdict
    }
}

struct Verdict {
    stopped: BTreeSet<String>,
    /// There are instances that this is about.
    any: bool,
    again: Duration,
}
