//! A systemd manager and a logind in memory, for tests and the simulation.
//!
//! The fake behaves as `systemd::conformance` demands; the same suite runs against a real systemd.

mod commands;
mod files;
mod machine;
mod manager;
mod state;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use self::{
    commands::FakeCommands,
    files::{matches_pattern, read_folder},
    state::{FakeManagerState, FakeUnit},
};
use kat_systemd::{
    ActiveState, CommandStreams, JobResult, ProcessEnd, ServiceResult, SubState, SystemdError,
    TransientEnd, TransientUnit, UnitEvent, UnitEvents, UnitManager, UnitStatus, error,
    listeners::BusListeners,
};

pub use self::{
    machine::{FakeMachine, ManagerAbsence},
    state::UnitBehaviour,
};

/// Most calls that a fake remembers; older ones are forgotten.
const CALLS_KEPT: usize = 10_000;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Returns a fake's units; called at each reload.
pub type UnitLoader = Box<dyn Fn() -> BTreeMap<String, UnitBehaviour> + Send + Sync>;

/// A manager in memory.
pub struct FakeManager {
    name: String,
    loader: Option<UnitLoader>,
    finder: Option<UnitLoader>,
    listeners: Mutex<Arc<BusListeners>>,
    state: Mutex<FakeManagerState>,
    commands: FakeCommands,
    started: Instant,
}

impl Default for FakeManager {
    fn default() -> Self {
        Self::new("the system")
    }
}

impl FakeManager {
    /// A manager without units. `name` appears in its errors: `the system` or `user UID`.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            loader: None,
            finder: None,
            listeners: Mutex::default(),
            state: Mutex::default(),
            commands: FakeCommands::default(),
            started: Instant::now(),
        }
    }

    /// A manager whose units come from `loader` at each reload.
    pub fn with_loader(name: &str, loader: UnitLoader) -> Self {
        Self {
            loader: Some(loader),
            ..Self::new(name)
        }
    }

    /// A manager whose units are the `*.service` files of a folder. It understands `Type=`,
    /// `ExecStart=` (`true`, `false`; anything else keeps running), `ExecStartPre=` (hangs),
    /// `Restart=`, `RemainAfterExit=`, `StartLimitBurst=` and links to `/dev/null`.
    pub fn with_folder(name: &str, folder: &Path) -> Self {
        let folder = folder.to_owned();
        let found = folder.clone();
        Self::with_loader(name, Box::new(move || read_folder(&folder)))
            .finding(Box::new(move || read_folder(&found)))
    }

    /// The manager finds the units of `finder` when it is asked for one that it has not loaded,
    /// without a reload. Those of the loader alone are a generator's, which it does not find.
    #[must_use]
    pub fn finding(mut self, finder: UnitLoader) -> Self {
        self.finder = Some(finder);
        self
    }

    /// Loads a unit that is not loaded, if there is a file of it now.
    fn find(&self, unit: &str) {
        let is_loaded = self.with(|state| state.units.contains_key(unit));
        let found = self.finder.as_ref().filter(|_| !is_loaded);
        if let Some(behaviour) = found.and_then(|finder| finder().remove(unit)) {
            self.with(|state| state.load(unit, behaviour));
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut FakeManagerState) -> T) -> T {
        change(&mut self.state.lock())
    }

    fn listeners(&self) -> Arc<BusListeners> {
        Arc::clone(&self.listeners.lock())
    }

    /// Adds or replaces a unit, like a reload.
    pub fn define(&self, unit: &str, behaviour: UnitBehaviour) {
        self.with(|state| state.load(unit, behaviour));
        self.changed(unit);
    }

    /// The unit's program exits with `code`.
    pub fn exits(&self, unit: &str, code: i32) {
        let now = self.now();
        self.with(|state| state.ended(unit, 1, code, now));
        self.changed(unit);
    }

    /// The unit's program exited with `code`, and the unit is in `stop-post`.
    /// [`FakeManager::exits`] with the same code ends that.
    pub fn clears_up(&self, unit: &str, code: i32) {
        let now = self.now();
        self.with(|state| {
            if let Some(entry) = state.units.get_mut(unit) {
                entry.status.exec_main_code = 1;
                entry.status.exec_main_status = code;
                entry.status.exec_main_exit_monotonic = now;
                entry.rest(ActiveState::Deactivating, "stop-post");
            }
        });
        self.changed(unit);
    }

    /// Podman loses the unit's container at its start: the main process exited with 0 before it
    /// reported that the container runs.
    pub fn loses_start(&self, unit: &str) {
        let now = self.now();
        self.with(|state| {
            if let Some(entry) = state.units.get_mut(unit) {
                entry.status.exec_main_code = 1;
                entry.status.exec_main_status = 0;
                entry.status.exec_main_exit_monotonic = now;
                entry.status.result = ServiceResult::Protocol;
                match entry.behaviour.rests {
                    true => entry.rest(ActiveState::Activating, "auto-restart"),
                    false => entry.rest(ActiveState::Failed, "failed"),
                }
            }
        });
        self.changed(unit);
    }

    /// The unit has run for longer than `RuntimeMaxSec=`, and systemd has ended its program.
    pub fn exceeds_runtime(&self, unit: &str) {
        let now = self.now();
        self.with(|state| {
            if let Some(entry) = state.units.get_mut(unit) {
                entry.status.exec_main_code = 2;
                entry.status.exec_main_status = SIGTERM;
                entry.status.exec_main_exit_monotonic = now;
                entry.status.result = ServiceResult::Timeout;
                entry.rest(ActiveState::Failed, "failed");
            }
        });
        self.changed(unit);
    }

    /// The behaviour of a loaded unit.
    pub fn behaviour(&self, unit: &str) -> Option<UnitBehaviour> {
        self.with(|state| state.units.get(unit).map(|entry| entry.behaviour.clone()))
    }

    /// The unit's program is killed by a signal.
    pub fn killed(&self, unit: &str, signal: i32) {
        let now = self.now();
        self.with(|state| state.ended(unit, 2, signal, now));
        self.changed(unit);
    }

    /// Ends the delay before the unit's restart.
    pub fn restart_due(&self, unit: &str) {
        let now = self.now();
        self.with(|state| {
            let rests = |unit: &&mut FakeUnit| unit.status.is_between_runs();
            if state.units.get_mut(unit).filter(rests).is_some() {
                state.restart(unit, now);
            }
        });
        self.changed(unit);
    }

    /// The next `call` (`start`, `reload`, ...) fails with `error`.
    pub fn fail_next(&self, call: &str, error: SystemdError) {
        self.with(|state| state.failures.insert(call.to_owned(), error));
    }

    /// Makes the manager unreachable for this reason, or reachable again. When it becomes
    /// unreachable, streams and waits end.
    pub fn set_unreachable(&self, reason: Option<&str>) {
        self.with(|state| state.unreachable = reason.map(str::to_owned));
        if reason.is_some() {
            self.commands.lose();
            self.listeners().close();
            *self.listeners.lock() = Arc::new(BusListeners::default());
        }
    }

    /// The manager's service was restarted, and none of its units runs any more.
    pub fn begin_anew(&self) {
        self.set_unreachable(Some("it begins anew"));
        self.with(|state| {
            let text = "restart user@".to_owned();
            state.calls.push(text);
            state.units.clear();
        });
        self.set_unreachable(None);
        if let Some(loader) = &self.loader {
            let found = loader();
            self.with(|state| {
                for (name, behaviour) in found {
                    state.load(&name, behaviour);
                }
            });
        }
    }

    /// From now on the manager hangs: it no longer reports the status of units.
    pub fn hang(&self) {
        self.with(|state| state.hangs = true);
    }

    /// Every call so far that changes something, such as `start kat-a.service`.
    pub fn calls(&self) -> Vec<String> {
        self.with(|state| state.calls.clone())
    }

    /// Forgets the calls so far.
    pub fn clear_calls(&self) {
        self.with(|state| state.calls.clear());
    }

    /// Units that are active, starting or stopping, even while the manager is unreachable; without
    /// those whose program has exited.
    pub fn live(&self) -> Vec<String> {
        let lives = |unit: &FakeUnit| {
            let state = unit.status.active_state;
            let is_up = matches!(
                state,
                ActiveState::Active | ActiveState::Activating | ActiveState::Deactivating
            );
            is_up && unit.status.sub_state != SubState::Exited
        };
        self.with(|state| {
            let units = state.units.iter().filter(|(_, unit)| lives(unit));
            units.map(|(name, _)| name.clone()).collect()
        })
    }

    pub fn enabled(&self) -> Vec<String> {
        self.with(|state| state.enabled.iter().cloned().collect())
    }

    fn now(&self) -> u64 {
        // The clock starts at one second, because 0 means "never".
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX) + 1_000_000
    }

    fn changed(&self, unit: &str) {
        if unit.starts_with("kat-") {
            self.listeners().event(&UnitEvent::Changed(unit.to_owned()));
        }
    }

    fn enter(&self, call: &str, unit: &str, note: bool) -> Result<(), SystemdError> {
        self.with(|state| {
            if note {
                if state.calls.len() >= CALLS_KEPT {
                    state.calls.remove(0);
                }
                state
                    .calls
                    .push(format!("{call} {unit}").trim_end().to_owned());
            }
            if let Some(reason) = &state.unreachable {
                return Err(error::unreachable(&self.name, reason));
            }
            state.failures.remove(call).map_or(Ok(()), Err)
        })
    }

    async fn begin(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        self.find(unit);
        let behaviour = self.with(|state| {
            let Some(entry) = state.units.get_mut(unit) else {
                return Err(SystemdError::NoSuchUnit(unit.to_owned()));
            };
            if entry.behaviour.masked {
                return Err(SystemdError::Masked(unit.to_owned()));
            }
            if entry.status.active_state == ActiveState::Active {
                return Ok(None);
            }
            entry.status.active_state = ActiveState::Activating;
            entry.status.sub_state = "start".into();
            Ok(Some(entry.behaviour.clone()))
        })?;
        let Some(behaviour) = behaviour else {
            return Ok(JobResult::Done);
        };
        self.changed(unit);
        if behaviour.start_hangs || behaviour.start_takes > limit {
            sleep(limit).await;
            return Err(SystemdError::JobTimeout {
                unit: unit.to_owned(),
                limit,
            });
        }
        sleep(behaviour.start_takes).await;
        let now = self.now();
        let result = self.with(|state| {
            state.next += 1;
            let number = state.next;
            let Some(entry) = state.units.get_mut(unit) else {
                return JobResult::Canceled;
            };
            if entry.status.active_state != ActiveState::Activating {
                return JobResult::Canceled;
            }
            entry.run(number, now);
            match behaviour.exits {
                None => JobResult::Done,
                Some(code) => {
                    state.ended(unit, 1, code, now);
                    if behaviour.oneshot && code != 0 {
                        JobResult::Failed
                    } else {
                        JobResult::Done
                    }
                }
            }
        });
        self.changed(unit);
        Ok(result)
    }

    fn end(&self, unit: &str) -> Result<JobResult, SystemdError> {
        let now = self.now();
        self.with(|state| {
            let Some(entry) = state.units.get_mut(unit) else {
                return Err(SystemdError::NoSuchUnit(unit.to_owned()));
            };
            if entry.status.main_pid != 0 {
                entry.status.exec_main_code = 2;
                entry.status.exec_main_status = SIGTERM;
                entry.status.exec_main_exit_monotonic = now;
            }
            if entry.status.active_state != ActiveState::Failed {
                entry.rest(ActiveState::Inactive, "dead");
            }
            Ok(JobResult::Done)
        })
    }
}
