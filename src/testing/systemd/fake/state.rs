//! Units of the fake, and what becomes of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::SIGTERM;
use kat_systemd::{ActiveState, SystemdError, UnitStatus};

/// What a unit does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// The unit is masked.
    pub masked: bool,
    /// Its start is done when its program has ended (`Type=oneshot`).
    pub oneshot: bool,
    /// Status with which its program ends at once; it runs on when there is none.
    pub exits: Option<i32>,
    /// Time that its start takes.
    pub start_takes: Duration,
    /// Its start never ends.
    pub start_hangs: bool,
    /// Time that its stop takes.
    pub stop_takes: Duration,
    /// It is started again after a failure (`Restart=on-failure`), at once.
    pub restarts: bool,
    /// Before that, it rests until [`FakeManager::restart_due`].
    pub rests: bool,
    /// Starts until it gives up (`StartLimitBurst=`); never when 0.
    pub start_limit: u32,
    /// Text of its file; another text on a reload needs a reload.
    pub text: String,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) units: BTreeMap<String, Unit>,
    pub(super) calls: Vec<String>,
    pub(super) failures: BTreeMap<String, SystemdError>,
    pub(super) unreachable: Option<String>,
    pub(super) hangs: bool,
    pub(super) enabled: BTreeSet<String>,
    pub(super) next: u32,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Unit {
    pub(super) behaviour: Behaviour,
    pub(super) status: UnitStatus,
    pub(super) starts: u32,
}

impl Unit {
    pub(super) fn run(&mut self, number: u32, now: u64) {
        self.starts += 1;
        let status = &mut self.status;
        status.active_state = ActiveState::Active;
        status.sub_state = "running".to_owned();
        status.result = "success".to_owned();
        status.main_pid = 1000 + number;
        status.exec_main_code = 0;
        status.exec_main_status = 0;
        status.exec_main_start_monotonic = now;
        status.exec_main_exit_monotonic = 0;
        status.state_changed = now;
        status.invocation_id = format!("{number:032x}");
    }

    pub(super) fn rest(&mut self, active: ActiveState, sub: &str, now: u64) {
        self.status.active_state = active;
        self.status.sub_state = sub.to_owned();
        self.status.main_pid = 0;
        self.status.state_changed = now;
    }
}

impl State {
    pub(super) fn load(&mut self, name: &str, behaviour: Behaviour) {
        let unit = self.units.entry(name.to_owned()).or_insert_with(|| Unit {
            status: UnitStatus {
                active_state: ActiveState::Inactive,
                sub_state: "dead".to_owned(),
                result: "success".to_owned(),
                ..UnitStatus::default()
            },
            ..Unit::default()
        });
        unit.status.load_state = if behaviour.masked { "masked" } else { "loaded" }.to_owned();
        unit.behaviour = behaviour;
    }

    /// The unit is being stopped; how long that takes.
    pub(super) fn stopping(&mut self, name: &str) -> Duration {
        let running = |unit: &&mut Unit| unit.status.active_state == ActiveState::Active;
        let Some(unit) = self.units.get_mut(name).filter(running) else {
            return Duration::ZERO;
        };
        let takes = unit.behaviour.stop_takes;
        if !takes.is_zero() {
            unit.status.active_state = ActiveState::Deactivating;
            unit.status.sub_state = "stop-sigterm".to_owned();
        }
        takes
    }

    /// The main process ended: 1 by itself, 2 by a signal. Restarts as often as the limit allows.
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
                unit.rest(ActiveState::Inactive, "dead", now);
                return;
            }
            unit.status.result = if code == 1 { "exit-code" } else { "signal" }.to_owned();
            unit.rest(ActiveState::Failed, "failed", now);
            if unit.behaviour.rests {
                unit.rest(ActiveState::Activating, "auto-restart", now);
                return;
            }
            let again = unit.behaviour.restarts && unit.behaviour.exits.is_some();
            if !unit.behaviour.restarts || !self.restart(name, now) || !again {
                return;
            }
        }
    }

    /// Starts a unit again whose program failed. False when the limit refuses.
    pub(super) fn restart(&mut self, name: &str, now: u64) -> bool {
        self.next += 1;
        let number = self.next;
        let Some(unit) = self.units.get_mut(name) else {
            return false;
        };
        // systemd counts the start that the limit refuses, too.
        unit.status.restarts += 1;
        if unit.behaviour.start_limit > 0 && unit.starts >= unit.behaviour.start_limit {
            unit.rest(ActiveState::Failed, "failed", now);
            return false;
        }
        unit.run(number, now);
        true
    }
}
