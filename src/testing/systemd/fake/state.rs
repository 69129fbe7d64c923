//! Units of the fake and their state changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::SIGTERM;
use kat_systemd::{ActiveState, LoadState, ServiceResult, SubState, SystemdError, UnitStatus};

/// The behaviour of a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitBehaviour {
    pub masked: bool,
    /// The start ends when the program has exited (`Type=oneshot`).
    pub oneshot: bool,
    /// Exit code of the program, which exits at once; `None` if it keeps running.
    pub exits: Option<i32>,
    pub start_takes: Duration,
    /// The start never ends.
    pub start_hangs: bool,
    pub stop_takes: Duration,
    /// The stop never ends.
    pub stop_hangs: bool,
    /// The control group, which the unit keeps after its end as if processes were left in it; empty
    /// for none.
    pub control_group: String,
    /// The unit is restarted at once after a failure (`Restart=on-failure`).
    pub restarts: bool,
    /// The unit stays active when its program has exited with 0 (`RemainAfterExit=yes`).
    pub remains: bool,
    /// After a failure the unit waits for [`FakeManager::restart_due`] before it is restarted.
    pub rests: bool,
    /// Starts before the unit fails for good (`StartLimitBurst=`); 0 means no limit.
    pub start_limit: u32,
    /// Text of the unit file. If it differs when the unit is loaded again, the unit needs a reload.
    pub text: String,
}

#[derive(Default)]
pub(super) struct FakeManagerState {
    pub(super) units: BTreeMap<String, FakeUnit>,
    pub(super) calls: Vec<String>,
    pub(super) failures: BTreeMap<String, SystemdError>,
    pub(super) unreachable: Option<String>,
    pub(super) hangs: bool,
    pub(super) enabled: BTreeSet<String>,
    pub(super) next: u32,
}

#[derive(Debug, Clone, Default)]
pub(super) struct FakeUnit {
    pub(super) behaviour: UnitBehaviour,
    pub(super) status: UnitStatus,
    pub(super) invocation_id: String,
    pub(super) starts: u32,
}

impl FakeUnit {
    pub(super) fn run(&mut self, number: u32, now: u64) {
        self.starts += 1;
        let status = &mut self.status;
        status.active_state = ActiveState::Active;
        status.sub_state = SubState::Running;
        status.result = ServiceResult::Success;
        status.main_pid = 1000 + number;
        status.exec_main_code = 0;
        status.exec_main_status = 0;
        status.exec_main_start_monotonic = now;
        status.exec_main_exit_monotonic = 0;
        status
            .control_group
            .clone_from(&self.behaviour.control_group);
        self.invocation_id = format!("{number:032x}");
    }

    pub(super) fn rest(&mut self, active: ActiveState, sub: &str) {
        self.status.active_state = active;
        self.status.sub_state = sub.into();
        self.status.main_pid = 0;
    }
}

impl FakeManagerState {
    pub(super) fn load(&mut self, name: &str, behaviour: UnitBehaviour) {
        let unit = self
            .units
            .entry(name.to_owned())
            .or_insert_with(|| FakeUnit {
                status: UnitStatus {
                    active_state: ActiveState::Inactive,
                    sub_state: SubState::Dead,
                    result: ServiceResult::Success,
                    ..UnitStatus::default()
                },
                ..FakeUnit::default()
            });
        unit.status.load_state = if behaviour.masked {
            LoadState::Masked
        } else {
            LoadState::Loaded
        };
        unit.behaviour = behaviour;
    }

    /// Begins to stop the unit; returns how long that takes.
    pub(super) fn stopping(&mut self, name: &str) -> Duration {
        let running = |unit: &&mut FakeUnit| unit.status.active_state == ActiveState::Active;
        let Some(unit) = self.units.get_mut(name).filter(running) else {
            return Duration::ZERO;
        };
        if unit.status.sub_state == SubState::Exited {
            return Duration::ZERO;
        }
        let takes = unit.behaviour.stop_takes;
        if !takes.is_zero() || unit.behaviour.stop_hangs {
            unit.status.active_state = ActiveState::Deactivating;
            unit.status.sub_state = "stop-sigterm".into();
        }
        takes
    }

    /// Whether the unit is being stopped and never ends.
    pub(super) fn stop_hangs(&self, name: &str) -> bool {
        self.units.get(name).is_some_and(|unit| {
            unit.behaviour.stop_hangs && unit.status.active_state == ActiveState::Deactivating
        })
    }

    /// The main process ended: `code` is 1 for an exit and 2 for a signal, as in `ExecMainCode`.
    /// Restarts the unit as often as its limit allows.
    pub(super) fn ended(&mut self, name: &str, code: i32, status: i32, now: u64) {
        loop {
            let Some(unit) = self.units.get_mut(name) else {
                return;
            };
            let failed = status != 0 && !(code == 2 && status == SIGTERM);
            unit.status.exec_main_code = code;
            unit.status.exec_main_status = status;
            if unit.status.active_state != ActiveState::Deactivating {
                unit.status.exec_main_exit_monotonic = now;
            }
            if !failed {
                match unit.behaviour.remains && code == 1 {
                    true => unit.rest(ActiveState::Active, "exited"),
                    false => unit.rest(ActiveState::Inactive, "dead"),
                }
                return;
            }
            unit.status.result = if code == 1 {
                ServiceResult::ExitCode
            } else {
                ServiceResult::Signal
            };
            unit.rest(ActiveState::Failed, "failed");
            if unit.behaviour.rests {
                unit.rest(ActiveState::Activating, "auto-restart");
                return;
            }
            let again = unit.behaviour.restarts && unit.behaviour.exits.is_some();
            if !unit.behaviour.restarts || !self.restart(name, now) || !again {
                return;
            }
        }
    }

    /// Restarts a unit whose program failed; false if the limit refuses.
    pub(super) fn restart(&mut self, name: &str, now: u64) -> bool {
        self.next += 1;
        let number = self.next;
        let Some(unit) = self.units.get_mut(name) else {
            return false;
        };
        // systemd also counts the start that the limit refuses.
        unit.status.restarts += 1;
        if unit.behaviour.start_limit > 0 && unit.starts >= unit.behaviour.start_limit {
            unit.rest(ActiveState::Failed, "failed");
            return false;
        }
        unit.run(number, now);
        true
    }
}
