//! What a worker's instances share.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;

use super::{
    JOB_MARGIN, LONGEST_DUE, LONGEST_SLEEP, WorkerError, WorkerTools, ignore_missing,
    running::{
        jobs::Jobs,
        pulls::ImageMemory,
        restarts::RestartCounts,
        saved_state::{BegunNote, InstanceNote, SavedNotes},
    },
    unit_state::{early_units::ReloadDue, unit_files::UnitFolder},
};
use crate::{
    Statuses,
    health::{ProbeTools, Probes},
};
use kat_render::{RenderError, UnitFile};
use kat_systemd::{ActiveState, UnitManager, UnitStatus};
use kat_types::assignment::{Assignment, WorkloadUser};

/// What the instances of one workload user share, with the worker and with each other.
pub(crate) struct UserContext {
    pub tools: Arc<WorkerTools>,
    pub user: WorkloadUser,
    pub manager: Arc<dyn UnitManager>,
    pub folder: UnitFolder,
    pub statuses: Statuses,
    pub jobs: Jobs,
    /// By image.
    pub images: BTreeMap<String, ImageMemory>,
    /// The units' pulls name the file with registry credentials.
    pub has_logins: bool,
    pub restarts: RestartCounts,
    pub notes: SavedNotes<InstanceNote>,
    /// Instances of Jobs that have begun.
    pub begun: SavedNotes<BegunNote>,
    pub probes: Probes,
    pub reload_due: ReloadDue,
    /// Time until the next pass, where no event arrives earlier.
    pub wake: Duration,
}

impl UserContext {
    pub(crate) fn new(tools: Arc<WorkerTools>, user: WorkloadUser, statuses: Statuses) -> Self {
        let manager = tools.managers.user(user.uid);
        let root = tools.root.path();
        let probes = Probes::new(ProbeTools {
            network: Arc::clone(&tools.network),
            manager: Arc::clone(&manager),
            root: root.to_owned(),
            monotonic: Arc::clone(&tools.monotonic),
            results: statuses.probes().clone(),
        });
        let folder = UnitFolder::new(&tools.root, user.uid);
        Self {
            reload_due: Self::reload_left(&folder.early),
            folder,
            jobs: Jobs::default(),
            images: BTreeMap::new(),
            has_logins: false,
            restarts: RestartCounts::read(root, user.uid),
            notes: SavedNotes::read(root, "instances", user.uid),
            begun: SavedNotes::read_lasting(root, "job-starts", user.uid),
            probes,
            wake: LONGEST_SLEEP,
            manager,
            tools,
            user,
            statuses,
        }
    }

    /// Makes the next pass start after this time at the latest. A longer pause than [`LONGEST_SLEEP`]
    /// counts too: a user with anything due does not rest.
    pub(crate) fn wake_within(&mut self, pause: Duration) {
        self.wake = self.wake.min(pause).min(LONGEST_DUE);
    }

    /// Microseconds of the monotonic clock.
    pub(crate) fn now(&self) -> u64 {
        (self.tools.monotonic)()
    }

    pub(crate) fn wall_time(&self) -> Timestamp {
        (self.tools.clock)()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.tools.accounts.home(&self.user)
    }

    /// Longest start of a unit.
    pub(crate) fn start_limit(&self) -> Duration {
        Duration::from_secs(u64::from(self.tools.settings.hold_seconds) + 30) + JOB_MARGIN
    }

    pub(crate) fn render_images(
        &self,
        assignment: &Assignment,
    ) -> Result<Vec<UnitFile>, RenderError> {
        let (renderer, settings) = (&self.tools.renderer, &self.tools.settings);
        renderer.images(assignment, settings, self.has_logins)
    }

    /// Whether all other containers of the instance with this main unit have ended.
    pub(crate) async fn others_are_over(&self, unit: &str) -> Result<bool, WorkerError> {
        for other in self.folder.other_units(unit)? {
            let status = self.manager.status(&other).await?;
            if !self.folder.is_over(&status) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the files of an instance that has stopped.
    pub(crate) async fn remove_units(
        &self,
        unit: &str,
        status: &UnitStatus,
        keeps_table: bool,
    ) -> Result<(), WorkerError> {
        let (manager, folder) = (&self.manager, &self.folder);
        if status.active_state == ActiveState::Failed {
            ignore_missing(manager.reset_failed(unit).await)?;
        }
        for other in folder.other_units(unit)? {
            ignore_missing(manager.reset_failed(&other).await)?;
        }
        Ok(folder.remove(unit, keeps_table)?)
    }

    /// Saves what the next process of the agent needs to know of the instances.
    pub(crate) fn store(&mut self) {
        if let Err(error) = self.restarts.store() {
            tracing::warn!(
                user = self.user.name,
                "counts of restarts can't be kept: {error:#}"
            );
        }
        if let Err(error) = self.notes.store() {
            tracing::warn!(
                user = self.user.name,
                "what is known of instances can't be kept: {error:#}"
            );
        }
        if let Err(error) = self.begun.store() {
            tracing::warn!(
                user = self.user.name,
                "which instances of Jobs have begun can't be kept: {error:#}"
            );
        }
    }
}
