//! Derives the state of a wait from the followed lists. No input or output.

use std::collections::{BTreeMap, BTreeSet};

use super::AwaitedWorkload;
use crate::{
    commands::{changing::rollout, reading::get::rows::workload_reason},
    output::{one_line, word},
};
use kat_client::ListChange;
use kat_types::api::{
    Health, InstanceItem, InstancePhase, ROLLED_BACK, WorkloadItem, WorkloadPhase,
};

/// The present state of the lists.
#[derive(Debug)]
pub(super) struct RolloutWait {
    target: AwaitedWorkload,
    workload: Option<WorkloadItem>,
    /// The list of workloads has arrived.
    workload_known: bool,
    instances: BTreeMap<String, InstanceItem>,
    instances_known: bool,
    /// Instance and reason of the reports that were printed.
    told: BTreeSet<(String, String)>,
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
            told: BTreeSet::new(),
            last_trouble: BTreeMap::new(),
            exit_codes: BTreeMap::new(),
        }
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
        let unwell = self.instances.values().filter(|item| !is_fine(item));
        let troubles = unwell
            .filter(|item| !item.status.reason.is_empty())
            .map(|item| (item.metadata.name.clone(), instance_in_words(item)));
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
            WorkloadPhase::Succeeded | WorkloadPhase::Scheduled => WaitVerdict::Done,
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
            // The list of instances is older than the workload's status.
            return text;
        }
        let began = running.saturating_sub(usize::try_from(healthy).unwrap_or(usize::MAX));
        let counts = std::iter::once(("running for a moment", began)).chain(counts);
        for (word, count) in counts.filter(|(_, count)| *count > 0) {
            text.push_str(&format!(", {count} {word}"));
        }
        if status.phase == WorkloadPhase::Paused {
            text.push_str("; its rollout is paused, `katcall rollout resume` continues it");
        }
        text
    }

    /// Reasons that were not printed yet, once for each instance.
    pub(super) fn news(&mut self) -> Vec<String> {
        let mut fresh = Vec::new();
        for item in self.current() {
            let reason = &item.status.reason;
            let key = (item.metadata.name.clone(), reason.clone());
            if !reason.is_empty() && !is_fine(item) && !self.told.contains(&key) {
                fresh.push((key, instance_in_words(item)));
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

    /// The workload's own reason for not being as wanted.
    pub(super) fn reason(&self) -> Option<String> {
        let reason = self.workload.as_ref().and_then(workload_reason)?;
        let said = reason_and_message(&reason.reason, &reason.message);
        Some(format!("{}: {said}", self.target.name))
    }

    /// The instances with a problem at present.
    pub(super) fn troubles(&self) -> Vec<String> {
        let status = self.workload.as_ref().map(|item| &item.status);
        let all_ready = status.is_some_and(|status| status.ready >= status.replicas);
        let unwell = self.current().filter_map(|item| match is_fine(item) {
            false => Some((item, instance_in_words(item))),
            true if all_ready => None,
            true => Some((item, self.last_trouble.get(&item.metadata.name)?.clone())),
        });
        unwell
            .map(|(item, line)| self.with_exit_code(item, line))
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
        format!(
            "`katcall describe workload {name}{place}` says more, `katcall logs {name}{place}` shows what it prints"
        )
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
