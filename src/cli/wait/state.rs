//! Derives the state of a wait from the followed lists. No input or output.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::AwaitedWorkload;
use crate::{
    commands::{
        changing::rollout,
        reading::{get::rows::workload_reason, status::urgency::Urgency},
    },
    output::{one_line, word},
};
use kat_client::ListChange;
use kat_types::{
    api::{Health, InstanceItem, InstancePhase, ROLLED_BACK, WorkloadItem, WorkloadPhase},
    reason::Reason,
};

/// A situation that passes by itself within this time is not printed.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// Time after which the wait ends early where only a person can help: the leader may be about to
/// notice that somebody did.
const FOR_PERSON: Duration = Duration::from_secs(3);
/// The same where no machine fits: another instance may be about to leave one.
const NO_PLACE: Duration = Duration::from_secs(10);
/// Time that programs mostly take to end; one that takes longer is named.
const SLOW_STOP: Duration = Duration::from_secs(3);
/// What the messages of instances have before the lines of a program.
const LAST_LINES: &str = "; last lines: ";

/// An instance, empty for the workload itself, and the reason of its state.
type Situation = (String, String);

/// The present state of the lists.
#[derive(Debug)]
pub(super) struct RolloutWait {
    target: AwaitedWorkload,
    workload: Option<WorkloadItem>,
    /// The list of workloads has arrived.
    workload_known: bool,
    instances: BTreeMap<String, InstanceItem>,
    instances_known: bool,
    /// There was an instance at some time of the wait.
    had_instances: bool,
    /// Since when each situation lasts.
    lasting: BTreeMap<Situation, Instant>,
    /// The situations that were printed.
    told: BTreeSet<Situation>,
    /// The last problem of each instance; an instance that restarts repeatedly may be running at
    /// this moment.
    last_trouble: BTreeMap<String, String>,
    /// Exit code of each instance's last end.
    exit_codes: BTreeMap<String, i32>,
}

/// The state of the wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WaitVerdict {
    Waiting,
    Done,
    /// Deleted, or created again by another client.
    Gone,
    /// Failed permanently, with the reason.
    Failed(String),
}

impl RolloutWait {
    pub(super) fn new(target: AwaitedWorkload) -> Self {
        Self {
            target,
            workload: None,
            workload_known: false,
            instances: BTreeMap::new(),
            instances_known: false,
            had_instances: false,
            lasting: BTreeMap::new(),
            told: BTreeSet::new(),
            last_trouble: BTreeMap::new(),
            exit_codes: BTreeMap::new(),
        }
    }

    pub(super) fn target(&self) -> &AwaitedWorkload {
        &self.target
    }

    pub(super) fn workload(&mut self, change: ListChange<WorkloadItem>) {
        let wanted = |item: &WorkloadItem| item.metadata.name == self.target.name;
        match change {
            ListChange::Listed(items) => {
                self.workload = items.into_iter().find(wanted);
                self.workload_known = true;
            }
            ListChange::Changed(item) if wanted(&item) => self.workload = Some(item),
            ListChange::Deleted(item) if wanted(&item) => self.workload = None,
            _ => {}
        }
    }

    pub(super) fn instances(&mut self, change: ListChange<InstanceItem>) {
        match change {
            ListChange::Listed(items) => {
                self.instances = items
                    .into_iter()
                    .map(|item| (item.metadata.name.clone(), item))
                    .collect();
                self.instances_known = true;
            }
            ListChange::Changed(item) => {
                self.instances.insert(item.metadata.name.clone(), item);
            }
            ListChange::Deleted(item) => {
                self.instances.remove(&item.metadata.name);
            }
            ListChange::Interrupted(_) => {}
        }
        self.had_instances |= !self.instances.is_empty();
        let unwell = self.current().filter(|item| !is_fine(item));
        let troubles = unwell
            .filter(|item| !item.status.reason.is_empty())
            .map(|item| (item.metadata.name.clone(), instance_in_words(item)));
        let troubles: Vec<(String, String)> = troubles.collect();
        self.last_trouble.extend(troubles);
        let ended = self.instances.values();
        let ended =
            ended.filter_map(|item| Some((item.metadata.name.clone(), item.status.exit_code?)));
        self.exit_codes.extend(ended);
    }

    /// Whether both lists have arrived.
    pub(super) fn is_known(&self) -> bool {
        self.workload_known && self.instances_known
    }

    /// Whether it is not the applied workload but a later one with the same name.
    fn is_other(&self, item: &WorkloadItem) -> bool {
        let (wanted, found) = (&self.target.uid, &item.metadata.uid);
        !wanted.is_empty() && !found.is_empty() && wanted != found
    }

    pub(super) fn verdict(&self) -> WaitVerdict {
        let Some(item) = &self.workload else {
            return if self.workload_known {
                WaitVerdict::Gone
            } else {
                WaitVerdict::Waiting
            };
        };
        let status = &item.status;
        if self.is_other(item) || status.phase == WorkloadPhase::Deleting {
            return WaitVerdict::Gone;
        }
        if status.observed_generation < self.target.generation {
            return WaitVerdict::Waiting;
        }
        let newer = item.metadata.generation > self.target.generation;
        if newer && let Some(why) = rolled_back(item, self.target.generation) {
            return WaitVerdict::Failed(format!("went back to what ran before: {why}"));
        }
        match status.phase {
            WorkloadPhase::Running
                if status.ready == status.replicas && status.updated == status.replicas =>
            {
                WaitVerdict::Done
            }
            // The generation that is waited for does not run: a later one was stopped.
            WorkloadPhase::Stopped if status.observed_generation > self.target.generation => {
                WaitVerdict::Failed("was stopped meanwhile".to_owned())
            }
            WorkloadPhase::Succeeded | WorkloadPhase::Scheduled | WorkloadPhase::Stopped => {
                WaitVerdict::Done
            }
            WorkloadPhase::Stalled => WaitVerdict::Failed(self.with_reason("has stalled", item)),
            WorkloadPhase::Failed => WaitVerdict::Failed(self.with_reason("has failed", item)),
            _ => WaitVerdict::Waiting,
        }
    }

    fn with_reason(&self, what: &str, item: &WorkloadItem) -> String {
        match workload_reason(item) {
            None => what.to_owned(),
            Some(reason) => format!(
                "{what}: {}",
                reason_and_message(&reason.reason, &reason.message)
            ),
        }
    }

    /// Whether no workload of this name and no instance is left.
    pub(super) fn is_gone(&self) -> bool {
        let other = self
            .workload
            .as_ref()
            .is_some_and(|item| self.is_other(item));
        let gone = self.workload.is_none() && self.instances.is_empty();
        self.workload_known && (other || (gone && self.instances_known))
    }

    /// What a deletion still waits for.
    pub(super) fn remaining_in_words(&self) -> String {
        match self.instances.len() {
            0 if self.had_instances => "no instance left".to_owned(),
            0 => "deleting".to_owned(),
            1 => "1 instance left".to_owned(),
            count => format!("{count} instances left"),
        }
    }

    /// Instances of the applied generation.
    fn current(&self) -> impl Iterator<Item = &InstanceItem> {
        self.instances.values().filter(|item| {
            item.status.generation >= self.target.generation
                && !matches!(
                    item.status.phase,
                    InstancePhase::Stopping | InstancePhase::Stopped
                )
        })
    }

    /// Such as ``workload `web` in namespace `default` ``.
    pub(super) fn title(&self) -> String {
        format!(
            "workload `{}` in namespace `{}`",
            self.target.name, self.target.namespace
        )
    }

    /// Such as `web: 1 of 3 healthy, 1 starting, 1 pulling`.
    pub(super) fn summary(&self) -> String {
        format!("{}: {}", self.target.name, self.counts())
    }

    /// Number of instances by state.
    pub(super) fn counts(&self) -> String {
        let observed = self
            .workload
            .as_ref()
            .filter(|item| item.status.observed_generation >= self.target.generation);
        let Some(item) = observed else {
            return "waiting for the leader".to_owned();
        };
        match item.status.phase {
            WorkloadPhase::Succeeded => return "succeeded".to_owned(),
            WorkloadPhase::Scheduled => return "scheduled".to_owned(),
            WorkloadPhase::Stopped => return "stopped".to_owned(),
            _ => {}
        }
        let mut running = 0_usize;
        let mut counts: [(&str, usize); 6] = [
            ("waiting for a machine", 0),
            ("pulling", 0),
            ("starting", 0),
            ("not healthy yet", 0),
            ("restarting", 0),
            ("failed", 0),
        ];
        for instance in self.current() {
            let step = match instance.status.phase {
                InstancePhase::Pending => 0,
                InstancePhase::Prepared | InstancePhase::Scheduled | InstancePhase::Starting => 2,
                InstancePhase::Pulling | InstancePhase::Building => 1,
                InstancePhase::Running if is_healthy(instance) => {
                    running += 1;
                    continue;
                }
                InstancePhase::Running => 3,
                InstancePhase::Restarting => 4,
                InstancePhase::Failed | InstancePhase::Unknown => 5,
                InstancePhase::Stopping | InstancePhase::Stopped | InstancePhase::Succeeded => {
                    continue;
                }
            };
            if let Some((_, count)) = counts.get_mut(step) {
                *count += 1;
            }
        }
        let status = &item.status;
        let healthy = status.ready.min(status.updated);
        let mut text = format!("{healthy} of {} healthy", status.replicas);
        if healthy >= status.replicas {
            // The list of instances may be older than the workload's status, which counts them too: those
            // of an earlier generation with the same template stay after a rollback.
            if self.verdict() != WaitVerdict::Done {
                text.push_str(&self.old_in_words());
            }
            return text;
        }
        let began = running.saturating_sub(usize::try_from(healthy).unwrap_or(usize::MAX));
        let counts = std::iter::once(("running for a moment", began)).chain(counts);
        for (word, count) in counts.filter(|(_, count)| *count > 0) {
            text.push_str(&format!(", {count} {word}"));
        }
        // During an update the earlier version serves until its successors are healthy.
        let serving = status.ready.saturating_sub(status.updated);
        let serving = usize::try_from(serving).unwrap_or(usize::MAX);
        text.push_str(&old_ones(serving, "serving"));
        text.push_str(&self.stopping_in_words());
        let waits = workload_reason(item).filter(|condition| {
            condition.reason == Reason::WaitsForDependency
                || condition.reason == Reason::DependencyTimedOut
        });
        if let Some(condition) = waits {
            text.push_str(&format!("; {}", one_line(&condition.message)));
        }
        if status.phase == WorkloadPhase::Paused {
            text.push_str("; its rollout is paused, `katcall rollout resume` continues it");
        }
        text
    }

    /// Takes the time: since when the present situations last.
    pub(super) fn look(&mut self, now: Instant) {
        let present: BTreeSet<Situation> = self.situations().map(|(key, _)| key).collect();
        self.lasting.retain(|key, _| present.contains(key));
        for key in present {
            self.lasting.entry(key).or_insert(now);
        }
    }

    /// The situations that hold the rollout up, each with the line that says it.
    fn situations(&self) -> impl Iterator<Item = (Situation, String)> {
        let workload = self
            .workload
            .as_ref()
            .filter(|item| item.status.observed_generation >= self.target.generation);
        let own = workload.and_then(workload_reason).map(|condition| {
            let said = reason_and_message(&condition.reason, &condition.message);
            let line = format!("{}: {said}", self.target.name);
            ((String::new(), condition.reason.clone()), line)
        });
        let unwell = self.current().filter(|item| !is_fine(item));
        let unwell = unwell.filter(|item| !item.status.reason.is_empty());
        let unwell = unwell.map(|item| {
            let key = (item.metadata.name.clone(), item.status.reason.clone());
            (key, instance_in_words(item))
        });
        let ending = self.old().filter(|item| {
            item.status.phase == InstancePhase::Stopping
                && item.status.reason != Reason::ConnectionDraining
        });
        let ending = ending.map(|item| {
            let key = (item.metadata.name.clone(), word(&item.status.phase));
            (key, ending_in_words(item, self.is_over(item)))
        });
        unwell.chain(own).chain(ending)
    }

    fn lasts(&self, key: &Situation, now: Instant) -> Duration {
        let since = self.lasting.get(key);
        since.map_or(Duration::ZERO, |since| {
            now.saturating_duration_since(*since)
        })
    }

    /// Situations of instances that have lasted and were not printed yet. A step that is normal is
    /// none: the counts say it.
    pub(super) fn news(&mut self, now: Instant) -> Vec<String> {
        let mut fresh = Vec::new();
        for (key, line) in self.situations() {
            let (instance, reason) = &key;
            let patience = match reason == &word(&InstancePhase::Stopping) {
                true => SLOW_STOP,
                false if Urgency::of_word(reason, Urgency::Problem) == Urgency::Calm => continue,
                false => QUIET,
            };
            let is_news = !instance.is_empty() && !self.told.contains(&key);
            if is_news && self.lasts(&key, now) >= patience {
                fresh.push((key, without_lines(&line).to_owned()));
            }
        }
        fresh
            .into_iter()
            .map(|(key, line)| {
                self.told.insert(key);
                line
            })
            .collect()
    }

    /// What only a person can end, once that has lasted; shortened where it was printed.
    pub(super) fn in_vain(&self, now: Instant) -> Option<String> {
        let place_may_come = self.old().next().is_some();
        let stuck = self.situations().find(|(key, _)| {
            let (_, reason) = key;
            let patience = match Urgency::of_word(reason, Urgency::Problem) {
                Urgency::ForPerson => FOR_PERSON,
                _ if reason == Reason::Unschedulable.word() && !place_may_come => NO_PLACE,
                _ => return false,
            };
            self.lasts(key, now) >= patience
        });
        let (key, line) = stuck?;
        let (instance, reason) = &key;
        Some(match self.told.contains(&key) {
            true => one_line(&format!("{instance}: {reason}")),
            false => without_lines(&line).to_owned(),
        })
    }

    /// Instances of earlier generations that have not ended, and others that stop.
    fn old(&self) -> impl Iterator<Item = &InstanceItem> {
        self.instances.values().filter(|item| {
            let earlier = item.status.generation < self.target.generation;
            match item.status.phase {
                InstancePhase::Stopping => true,
                InstancePhase::Stopped | InstancePhase::Succeeded => false,
                _ => earlier,
            }
        })
    }

    /// Whether the program of a run's instance has ended; that of a Service starts again. After a restart the
    /// code may be of an earlier end.
    fn is_over(&self, item: &InstanceItem) -> bool {
        let is_job = |workload: &WorkloadItem| workload.spec.job.is_some();
        self.workload.as_ref().is_some_and(is_job)
            && item.status.restarts == 0
            && self.exit_codes.contains_key(&item.metadata.name)
    }

    /// Such as `, 1 old one stopping`; empty where none stops.
    fn stopping_in_words(&self) -> String {
        let stops = |item: &&InstanceItem| item.status.phase == InstancePhase::Stopping;
        old_ones(self.old().filter(stops).count(), "stopping")
    }

    /// The old instances that stop, and those that are still to stop.
    fn old_in_words(&self) -> String {
        let stays = |item: &&InstanceItem| item.status.phase != InstancePhase::Stopping;
        let left = old_ones(self.old().filter(stays).count(), "left");
        self.stopping_in_words() + &left
    }

    /// The instance of the applied generation whose program's last lines tell most: one that ended,
    /// else one that runs and is not healthy.
    pub(super) fn speaker(&self) -> Option<&str> {
        let unwell = |item: &&InstanceItem| !is_fine(item);
        let ended = |item: &&InstanceItem| {
            item.status.restarts > 0 || self.exit_codes.contains_key(&item.metadata.name)
        };
        let runs = |item: &&InstanceItem| item.status.phase == InstancePhase::Running;
        let found = self.current().find(ended);
        let found = found.or_else(|| self.current().filter(unwell).find(runs));
        found.map(|item| item.metadata.name.as_str())
    }

    /// The workload's own reason for not being as wanted, unless an instance's says the same.
    pub(super) fn reason(&self) -> Option<String> {
        let reason = self.workload.as_ref().and_then(workload_reason)?;
        let of_instance = |item: &InstanceItem| {
            !item.status.reason.is_empty() && reason.message.contains(&item.status.message)
        };
        if self.current().any(of_instance) {
            return None;
        }
        let said = reason_and_message(&reason.reason, &reason.message);
        Some(format!("{}: {said}", self.target.name))
    }

    /// The problems that were not printed yet, of instances that are there and of those of the applied
    /// generation that are gone; `lines` where the last lines of a program are to be in them.
    pub(super) fn troubles(&self, lines: bool) -> Vec<String> {
        let status = self.workload.as_ref().map(|item| &item.status);
        let all_ready = status.is_some_and(|status| status.ready >= status.replicas);
        let unwell = self.current().filter_map(|item| match is_fine(item) {
            false => Some((item, instance_in_words(item))),
            true if all_ready => None,
            true => Some((item, self.last_trouble.get(&item.metadata.name)?.clone())),
        });
        let untold = unwell.filter(|(item, _)| {
            let key = (item.metadata.name.clone(), item.status.reason.clone());
            !self.told.contains(&key)
        });
        let of_present = untold.map(|(item, line)| self.with_exit_code(item, line));
        let of_present = of_present.map(|line| match lines {
            true => line,
            false => without_lines(&line).to_owned(),
        });
        // The journal of its machine has its lines; this list does not have it any more.
        let is_gone = |id: &&String| !self.instances.contains_key(*id);
        let gone = self.last_trouble.iter().filter(|(id, _)| is_gone(id));
        of_present
            .chain(gone.map(|(_, line)| line.clone()))
            .collect()
    }

    fn with_exit_code(&self, item: &InstanceItem, line: String) -> String {
        match self.exit_codes.get(&item.metadata.name) {
            Some(code) if !line.contains("exit code") => {
                format!("{line}; the program last ended with exit code {code}")
            }
            _ => line,
        }
    }

    /// The command to run next.
    pub(super) fn next_command(&self) -> String {
        let AwaitedWorkload {
            namespace, name, ..
        } = &self.target;
        let place = if namespace == "default" {
            String::new()
        } else {
            format!(" -n {namespace}")
        };
        let stalled = |item: &&WorkloadItem| item.status.phase == WorkloadPhase::Stalled;
        if let Some(item) = self.workload.as_ref().filter(stalled) {
            if !rollout::has_earlier_good(item) {
                return format!("`katcall why workload {name}{place}` says why");
            }
            return format!(
                "`katcall why workload {name}{place}` says why, `katcall rollback workload {name}{place}` goes back"
            );
        }
        format!("`katcall why workload {name}{place}` says why")
    }
}

/// Why the workload was rolled back automatically from this generation.
fn rolled_back(item: &WorkloadItem, from: u64) -> Option<String> {
    let mut conditions = item.status.conditions.iter();
    let condition = conditions.find(|one| one.kind == ROLLED_BACK)?;
    let own = item.metadata.generation == from + 1;
    (from > 0 && own).then(|| one_line(&condition.message))
}

fn is_healthy(item: &InstanceItem) -> bool {
    matches!(item.status.health, Health::Healthy | Health::NotApplicable)
}

fn is_fine(item: &InstanceItem) -> bool {
    item.status.phase == InstancePhase::Running && is_healthy(item)
}

/// Such as `, 2 old ones left`; empty for none.
fn old_ones(count: usize, what: &str) -> String {
    match count {
        0 => String::new(),
        1 => format!(", 1 old one {what}"),
        count => format!(", {count} old ones {what}"),
    }
}

/// The line without a program's own lines at its end.
fn without_lines(line: &str) -> &str {
    line.split_once(LAST_LINES)
        .map_or(line, |(before, _)| before)
}

/// Such as `web-abcde on a is stopping: ...`.
fn ending_in_words(item: &InstanceItem, is_over: bool) -> String {
    let status = &item.status;
    let place = match &status.node {
        Some(node) => format!(" on {node}"),
        None => String::new(),
    };
    let said = match status.reason.is_empty() {
        true if is_over => "its program has ended; its machine removes what it used".to_owned(),
        true => "its program has not ended on its stop signal yet (stopSignal, or init: true); its machine kills it when terminationGraceSeconds are over".to_owned(),
        false => reason_and_message(&status.reason, &status.message),
    };
    one_line(&format!(
        "{}{place} is stopping: {said}",
        item.metadata.name
    ))
}

/// Such as `web-abcde on a: Pulling: ImagePullFailed: no such image`.
fn instance_in_words(item: &InstanceItem) -> String {
    let status = &item.status;
    let place = match &status.node {
        Some(node) => format!(" on {node}"),
        None => String::new(),
    };
    let phase = word(&status.phase);
    let said = reason_and_message(&status.reason, &status.message);
    let said = if said.is_empty() {
        String::new()
    } else {
        format!(": {said}")
    };
    one_line(&format!("{}{place}: {phase}{said}", item.metadata.name))
}

fn reason_and_message(reason: &str, message: &str) -> String {
    let parts: Vec<String> = [reason, message]
        .into_iter()
        .filter(|part| !part.is_empty())
        .map(one_line)
        .collect();
    parts.join(": ")
}

#[cfg(test)]
mod tests;
