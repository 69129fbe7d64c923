//! Collects the workers' reports about their instances for the reporter.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{health::results::ProbeResults, network::ingress_ports::WantedIngressPort};
use kat_types::api::{ImagesRemoved, IngressReport, InstanceReport, VolumeMoveReport};

/// Shared by the workers and the reporter. Cheap to clone.
#[derive(Clone, Default)]
pub struct Statuses {
    inner: Arc<StatusesInner>,
}

#[derive(Default)]
struct StatusesInner {
    probes: ProbeResults,
    state: Mutex<CollectedReports>,
    changed: Notify,
}

#[derive(Default)]
struct CollectedReports {
    instances: BTreeMap<String, InstanceReport>,
    users: BTreeSet<u32>,
    acted: u64,
    removals: RemovalResults,
    moves: BTreeMap<String, VolumeMoveReport>,
    images_removed: Option<ImagesRemoved>,
    unwritten: Vec<String>,
    silent_disks: Vec<String>,
    ingress: Option<IngressReport>,
    ingress_ports: Vec<WantedIngressPort>,
}

/// What became of the removals of volumes, by their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemovalResults {
    /// Removals that are done.
    pub removed: BTreeSet<String>,
    /// Removals whose data is not found.
    pub missing: BTreeSet<String>,
    /// A message for each removal that is not done.
    pub failures: Vec<String>,
}

impl Statuses {
    /// The counts of probes.
    pub(crate) fn probes(&self) -> &ProbeResults {
        &self.inner.probes
    }

    /// Sets the report of an instance; wakes the reporter when its meaning changed.
    pub fn set(&self, report: InstanceReport) {
        let mut state = self.inner.state.lock();
        let before = state.instances.get(&report.instance_id);
        let same = before.is_some_and(|before| meaning(before) == meaning(&report));
        state.instances.insert(report.instance_id.clone(), report);
        drop(state);
        if !same {
            self.inner.changed.notify_one();
        }
    }

    /// Keeps the instances that `keep` accepts.
    pub fn retain(&self, mut keep: impl FnMut(&InstanceReport) -> bool) {
        let mut state = self.inner.state.lock();
        let before = state.instances.len();
        state.instances.retain(|_, report| keep(report));
        let changed = before != state.instances.len();
        drop(state);
        if changed {
            self.inner.changed.notify_one();
        }
    }

    /// Records whether anything of the workload user `index` is on the machine.
    pub fn set_user(&self, index: u32, present: bool) {
        let mut state = self.inner.state.lock();
        let changed = if present {
            state.users.insert(index)
        } else {
            state.users.remove(&index)
        };
        drop(state);
        if changed {
            self.inner.changed.notify_one();
        }
    }

    /// Records that the workers have the confirmed list of this revision, and that every user with
    /// anything left on the machine has its worker.
    pub fn set_acted(&self, revision: u64) {
        let mut state = self.inner.state.lock();
        let changed = std::mem::replace(&mut state.acted, revision) != revision;
        drop(state);
        if changed {
            self.inner.changed.notify_one();
        }
    }

    /// The last revision given to [`Self::set_acted`]; 0 before the first.
    pub fn acted(&self) -> u64 {
        let state = self.inner.state.lock();
        state.acted
    }

    /// Records what became of the removals of volumes.
    pub fn set_removals(&self, removals: RemovalResults) {
        let mut state = self.inner.state.lock();
        let changed = state.removals != removals;
        state.removals = removals;
        drop(state);
        if changed {
            self.inner.changed.notify_one();
        }
    }

    /// Errors of volumes that could not be removed.
    pub fn not_removed(&self) -> Vec<String> {
        let state = self.inner.state.lock();
        state.removals.failures.clone()
    }

    /// Ids of removals whose data is not found.
    pub fn missing(&self) -> Vec<String> {
        let state = self.inner.state.lock();
        state.removals.missing.iter().cloned().collect()
    }

    /// Records how the machine serves routes; `None` where it has none to serve.
    pub fn set_ingress(&self, report: Option<IngressReport>) {
        let mut state = self.inner.state.lock();
        let changed = state.ingress != report;
        state.ingress = report;
        drop(state);
        if changed {
            self.wake_reporter();
        }
    }

    /// What was last given to [`Self::set_ingress`].
    pub fn ingress(&self) -> Option<IngressReport> {
        let state = self.inner.state.lock();
        state.ingress.clone()
    }

    /// Records the host ports that the machine is to have because it serves routes.
    pub(crate) fn set_ingress_ports(&self, ports: Vec<WantedIngressPort>) {
        let mut state = self.inner.state.lock();
        let changed = state.ingress_ports != ports;
        state.ingress_ports = ports;
        drop(state);
        if changed {
            self.wake_reporter();
        }
    }

    /// What was last given to [`Self::set_ingress_ports`].
    pub(crate) fn ingress_ports(&self) -> Vec<WantedIngressPort> {
        let state = self.inner.state.lock();
        state.ingress_ports.clone()
    }

    /// Records the errors of files that follow the store and could not be written.
    pub fn set_unwritten(&self, errors: Vec<String>) {
        let mut state = self.inner.state.lock();
        let changed = state.unwritten != errors;
        state.unwritten = errors;
        drop(state);
        if changed {
            self.wake_reporter();
        }
    }

    /// The errors last given to [`Self::set_unwritten`].
    pub fn unwritten(&self) -> Vec<String> {
        let state = self.inner.state.lock();
        state.unwritten.clone()
    }

    /// Records a message for each file system in use that does not answer.
    pub fn set_silent_disks(&self, messages: Vec<String>) {
        let mut state = self.inner.state.lock();
        let changed = state.silent_disks != messages;
        state.silent_disks = messages;
        drop(state);
        if changed {
            self.wake_reporter();
        }
    }

    /// The messages last given to [`Self::set_silent_disks`].
    pub fn silent_disks(&self) -> Vec<String> {
        let state = self.inner.state.lock();
        state.silent_disks.clone()
    }

    /// Ids of removals that are done.
    pub fn removed(&self) -> Vec<String> {
        let state = self.inner.state.lock();
        state.removals.removed.iter().cloned().collect()
    }

    /// Records the progress of a volume that this machine receives.
    pub fn set_move(&self, report: VolumeMoveReport) {
        let mut state = self.inner.state.lock();
        let before = state.moves.insert(report.volume.clone(), report.clone());
        drop(state);
        if before.as_ref() != Some(&report) {
            self.inner.changed.notify_one();
        }
    }

    /// Keeps the reports of these moves, given as volume and identity of the move.
    pub fn retain_moves(&self, wanted: &BTreeSet<(String, String)>) {
        let mut state = self.inner.state.lock();
        let before = state.moves.len();
        let keep = |report: &VolumeMoveReport| {
            wanted.contains(&(report.volume.clone(), report.id.clone()))
        };
        state.moves.retain(|_, report| keep(report));
        let changed = before != state.moves.len();
        drop(state);
        if changed {
            self.inner.changed.notify_one();
        }
    }

    /// Reports of the volumes that this machine receives.
    pub fn moves(&self) -> Vec<VolumeMoveReport> {
        let state = self.inner.state.lock();
        state.moves.values().cloned().collect()
    }

    /// Records the images that were last removed because nothing used them.
    pub fn set_images_removed(&self, removed: Option<ImagesRemoved>) {
        let mut state = self.inner.state.lock();
        let changed = state.images_removed != removed;
        state.images_removed = removed;
        drop(state);
        if changed {
            self.wake_reporter();
        }
    }

    /// The images last given to [`Self::set_images_removed`].
    pub fn images_removed(&self) -> Option<ImagesRemoved> {
        let state = self.inner.state.lock();
        state.images_removed.clone()
    }

    /// Wakes the reporter because a fact of the machine changed.
    pub fn wake_reporter(&self) {
        self.inner.changed.notify_one();
    }

    /// The present reports of the instances, and the indexes of the users.
    pub fn all(&self) -> (Vec<InstanceReport>, Vec<u32>) {
        let state = self.inner.state.lock();
        (
            state.instances.values().cloned().collect(),
            state.users.iter().copied().collect(),
        )
    }

    /// Waits until something has changed since the last call.
    pub async fn changed(&self) {
        self.inner.changed.notified().await;
    }
}

/// The report without values that change all the time.
fn meaning(report: &InstanceReport) -> InstanceReport {
    InstanceReport {
        memory: None,
        cpu: None,
        ..report.clone()
    }
}
