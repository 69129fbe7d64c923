//! One instance: what the worker remembers of it between passes, and how it is made as desired.
//!
//! Its methods get what it shares with the user's other instances as a [`UserContext`], and the
//! assignment as it is now.
//!
//! [`UserContext`]: crate::worker::context::UserContext

mod bound_schedule;
pub(crate) mod containers;
mod converging;
mod draining;
mod health;
mod images;
mod last_run;
mod mounts;
mod reports;
mod resting;
mod starting;
pub(crate) mod stopping;
mod usage;

use std::collections::BTreeSet;

use tokio::time::Instant;

use self::{
    containers::SidecarMemory,
    health::Healing,
    last_run::LastRun,
    resting::RestingInstance,
    starting::StartTrouble,
    stopping::{StopCourse, StopTrouble},
    usage::UsageReading,
};
use crate::{
    secrets::SecretUseTrouble,
    worker::{
        running::{preparation::MountPreparation, start_backoff::RetryDelay},
        unit_state::bound_times::LostStarts,
    },
};

/// An instance, as the worker knows it. All of it can be recomputed.
#[derive(Debug, Default)]
pub(crate) struct Instance {
    /// It has been reported.
    reported: bool,
    /// Whether the last report let traffic go to the instance; `None` before the first judgement.
    serves: Option<bool>,
    /// Since when the container runs without its network link.
    unlinked: Option<Instant>,
    start: StartTrouble,
    stop: StopTrouble,
    stop_course: StopCourse,
    last_run: LastRun,
    /// Backoff of reloads of the manager because of the instance's missing unit.
    reloads: RetryDelay,
    /// Images that were pulled for the instance.
    pulled: BTreeSet<String>,
    /// Why the credentials for its pulls could not be opened.
    sealed_logins: Option<String>,
    /// Why its secrets could not be prepared when its units were last rendered.
    secret_trouble: Option<SecretUseTrouble>,
    preparation: MountPreparation,
    /// Backoff of binds that are renewed while the instance runs.
    binds: RetryDelay,
    healing: Healing,
    sidecars: SidecarMemory,
    usage: Option<UsageReading>,
    /// Since when another process has the lock of its file of runs.
    locked_runs: Option<Instant>,
    /// Starts by its timer that began no run.
    lost_starts: LostStarts,
    /// Set where the last pass left it running with nothing to do.
    rest: Option<RestingInstance>,
}

impl Instance {
    pub(crate) fn is_reported(&self) -> bool {
        self.reported
    }

    /// Records that an image was pulled for the instance.
    pub(crate) fn record_pull(&mut self, image: String) {
        self.pulled.insert(image);
    }

    pub(crate) fn set_sealed_logins(&mut self, why: Option<String>) {
        self.sealed_logins = why;
    }
}
