//! The [`UnitManager`] of the fake.

use super::*;
use kat_systemd::{LoadState, ServiceResult, SubState, UnitUsage};

#[async_trait]
impl UnitManager for FakeManager {
    async fn reload(&self) -> Result<(), SystemdError> {
        self.enter("reload", "", true)?;
        if let Some(loader) = &self.loader {
            let mut found = loader();
            // These outrank the generators' units.
            found.extend(self.finder.iter().flat_map(|finder| finder()));
            self.with(|state| {
                state.units.retain(|name, unit| {
                    found.contains_key(name)
                        || matches!(
                            unit.status.active_state,
                            ActiveState::Active
                                | ActiveState::Activating
                                | ActiveState::Deactivating
                        )
                });
                for (name, behaviour) in found {
                    state.load(&name, behaviour);
                }
            });
        }
        self.listeners().event(&UnitEvent::All);
        Ok(())
    }

    async fn start(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        self.enter("start", unit, true)?;
        self.begin(unit, limit).await
    }

    async fn stop(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        self.enter("stop", unit, true)?;
        if self.commands.stop(unit).await {
            return Ok(JobResult::Done);
        }
        let takes = self.with(|state| state.stopping(unit));
        if !takes.is_zero() {
            self.changed(unit);
            sleep(takes).await;
        }
        if self.with(|state| state.stop_hangs(unit)) {
            self.changed(unit);
            sleep(limit).await;
            return Err(SystemdError::JobTimeout {
                unit: unit.to_owned(),
                limit,
            });
        }
        let result = self.end(unit);
        self.changed(unit);
        result
    }

    async fn restart(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        self.enter("restart", unit, true)?;
        self.end(unit)?;
        self.with(|state| {
            if let Some(entry) = state.units.get_mut(unit) {
                entry.status.restarts = 0;
            }
        });
        self.begin(unit, limit).await
    }

    async fn run_transient(
        &self,
        unit: &TransientUnit,
        limit: Duration,
    ) -> Result<TransientEnd, SystemdError> {
        self.enter("run_transient", &unit.name, true)?;
        let program = unit.command.first().map(String::as_str).unwrap_or_default();
        let ended = |result, exit_status| {
            Ok(TransientEnd {
                result,
                exit_status,
            })
        };
        match program.rsplit('/').next() {
            Some("false") => ended(JobResult::Failed, Some(1)),
            Some("sleep") if unit.limit <= limit => {
                sleep(unit.limit).await;
                ended(JobResult::Failed, None)
            }
            Some("sleep") => {
                sleep(limit).await;
                Err(SystemdError::JobTimeout {
                    unit: unit.name.clone(),
                    limit,
                })
            }
            _ => ended(JobResult::Done, None),
        }
    }

    async fn run_with(
        &self,
        unit: &TransientUnit,
        streams: CommandStreams,
    ) -> Result<ProcessEnd, SystemdError> {
        self.enter("run_with", &unit.name, true)?;
        self.commands.run(unit, streams).await
    }

    async fn kill(&self, unit: &str, signal: i32) -> Result<(), SystemdError> {
        self.enter("kill", unit, true)?;
        if self.commands.kill(unit, signal) {
            return Ok(());
        }
        let now = self.now();
        self.with(|state| {
            let running = state
                .units
                .get(unit)
                .map(|entry| entry.status.main_pid != 0)
                .ok_or_else(|| SystemdError::NoSuchUnit(unit.to_owned()))?;
            if running && (signal == SIGKILL || signal == SIGTERM) {
                state.ended(unit, 2, signal, now);
            }
            Ok(())
        })?;
        self.changed(unit);
        Ok(())
    }

    async fn reset_failed(&self, unit: &str) -> Result<(), SystemdError> {
        self.enter("reset_failed", unit, true)?;
        self.with(|state| {
            let entry = state
                .units
                .get_mut(unit)
                .ok_or_else(|| SystemdError::NoSuchUnit(unit.to_owned()))?;
            entry.starts = 0;
            entry.status.restarts = 0;
            if entry.status.active_state == ActiveState::Failed {
                entry.status.result = ServiceResult::Success;
                entry.rest(ActiveState::Inactive, "dead");
            }
            Ok(())
        })?;
        self.changed(unit);
        Ok(())
    }

    async fn status(&self, unit: &str) -> Result<UnitStatus, SystemdError> {
        self.enter("status", unit, false)?;
        if self.with(|state| state.hangs) {
            return std::future::pending().await;
        }
        self.find(unit);
        Ok(self.with(|state| match state.units.get(unit) {
            Some(entry) => entry.status.clone(),
            None => UnitStatus {
                load_state: LoadState::NotFound,
                active_state: ActiveState::Inactive,
                sub_state: SubState::Dead,
                result: ServiceResult::Success,
                ..UnitStatus::default()
            },
        }))
    }

    /// Nothing is counted.
    async fn usage(&self, unit: &str) -> Result<UnitUsage, SystemdError> {
        self.enter("usage", unit, false)?;
        Ok(UnitUsage::default())
    }

    async fn invocation_id(&self, unit: &str) -> Result<String, SystemdError> {
        self.enter("invocation_id", unit, false)?;
        Ok(self.with(|state| {
            let entry = state.units.get(unit);
            entry.map_or_else(String::new, |entry| entry.invocation_id.clone())
        }))
    }

    async fn needs_reload(&self, unit: &str) -> Result<bool, SystemdError> {
        self.enter("needs_reload", unit, false)?;
        self.find(unit);
        let on_disk = self
            .loader
            .as_ref()
            .and_then(|loader| loader().remove(unit));
        Ok(self.with(|state| match (state.units.get(unit), on_disk) {
            (Some(entry), Some(behaviour)) => behaviour.text != entry.behaviour.text,
            _ => false,
        }))
    }

    async fn list(&self, pattern: &str) -> Result<Vec<String>, SystemdError> {
        self.enter("list", pattern, false)?;
        Ok(self.with(|state| {
            state
                .units
                .keys()
                .filter(|name| matches_pattern(name, pattern))
                .cloned()
                .collect()
        }))
    }

    async fn enable(&self, unit: &str) -> Result<(), SystemdError> {
        self.enter("enable", unit, true)?;
        self.with(|state| {
            if !state.units.contains_key(unit) {
                return Err(SystemdError::NoSuchUnit(unit.to_owned()));
            }
            state.enabled.insert(unit.to_owned());
            Ok(())
        })
    }

    async fn disable(&self, unit: &str) -> Result<(), SystemdError> {
        self.enter("disable", unit, true)?;
        self.with(|state| state.enabled.remove(unit));
        Ok(())
    }

    async fn events(&self) -> Result<UnitEvents, SystemdError> {
        self.enter("events", "", false)?;
        Ok(self.listeners().events())
    }
}
