//! The conformance suite of a [`UnitManager`], for the fake and for a real systemd.

mod commands;
mod transient;

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::StreamExt;
use tokio::time::{Instant, sleep, timeout};

use kat_systemd::{
    ActiveState, JobResult, SubState, SystemdError, UnitEvent, UnitEvents, UnitManager, UnitStatus,
};

pub use commands::run_commands;

const LIMIT: Duration = Duration::from_secs(20);
const RUN: &str = "kat-conformance-run.service";
const FAIL: &str = "kat-conformance-fail.service";
const AGAIN: &str = "kat-conformance-again.service";
const SLOW: &str = "kat-conformance-slow.service";
const MASKED: &str = "kat-conformance-masked.service";
const FOUND: &str = "kat-conformance-found.service";
const REMAINS: &str = "kat-conformance-remains.service";
const PROBE: &str = "kat-conformance-probe.service";
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const BURST: u32 = 3;

/// A requirement that does not hold.
#[derive(Debug, thiserror::Error)]
pub enum ConformanceError {
    /// A call failed that must succeed.
    #[error("{step}: {error}")]
    Call {
        /// The call, such as `stop kat-conformance-run.service`.
        step: String,
        error: SystemdError,
    },
    /// The manager behaved differently.
    #[error("{step}: expected {expected}, found {found}")]
    Unlike {
        /// The property that was checked, such as `its restarts`.
        step: String,
        expected: String,
        found: String,
    },
    /// A unit file could not be written or removed.
    #[error("{}: {error}", path.display())]
    File {
        /// The unit file.
        path: PathBuf,
        error: io::Error,
    },
}

type ConformanceResult = Result<(), ConformanceError>;

/// Runs the suite. The manager reads units from `unit_dir` at a reload. The suite writes units
/// `kat-conformance-*` there and removes them again.
///
/// # Errors
///
/// The first requirement that does not hold.
pub async fn run(manager: &dyn UnitManager, unit_dir: &Path) -> ConformanceResult {
    let suite = ConformanceSuite {
        manager,
        folder: unit_dir,
    };
    let outcome = suite.all().await;
    let cleaned = suite.clean().await;
    outcome.and(cleaned)
}

struct ConformanceSuite<'a> {
    manager: &'a dyn UnitManager,
    folder: &'a Path,
}

impl ConformanceSuite<'_> {
    async fn all(&self) -> ConformanceResult {
        self.clean().await?;
        self.nothing_there().await?;
        self.runs_and_stops().await?;
        self.is_killed().await?;
        self.fails().await?;
        self.remains_after_success().await?;
        self.gives_up().await?;
        self.counts_anew_after_a_restart_by_hand().await?;
        self.knows_old_text().await?;
        self.finds_a_new_file().await?;
        self.hangs().await?;
        self.is_masked().await?;
        self.runs_transient_units().await?;
        self.is_enabled().await
    }

    async fn nothing_there(&self) -> ConformanceResult {
        let status = self.status(RUN).await?;
        equal("status of no unit", "not-found", status.load_state.word())?;
        equal(
            "state of no unit",
            &ActiveState::Inactive,
            &status.active_state,
        )?;
        for (step, result) in [
            ("start of no unit", self.manager.start(RUN, LIMIT).await),
            ("stop of no unit", self.manager.stop(RUN, LIMIT).await),
        ] {
            if !matches!(&result, Err(SystemdError::NoSuchUnit(unit)) if unit == RUN) {
                return Err(unlike(step, "NoSuchUnit", &result));
            }
        }
        Ok(())
    }

    async fn runs_and_stops(&self) -> ConformanceResult {
        let mut events = called("events", self.manager.events().await)?;
        let first = timeout(LIMIT, events.next()).await.ok().flatten();
        if first != Some(UnitEvent::All) {
            return Err(unlike("first event", "All", &first));
        }
        self.write(RUN, "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n")
            .await?;
        let status = self.status(RUN).await?;
        equal("a new unit", "loaded", status.load_state.word())?;
        equal("a new unit", &ActiveState::Inactive, &status.active_state)?;
        equal("a new unit's main process", &0, &status.main_pid)?;
        drain(&mut events).await;

        self.job(
            "start",
            self.manager.start(RUN, LIMIT).await,
            JobResult::Done,
        )?;
        wait_for_change(&mut events, RUN).await?;
        let first = self.status(RUN).await?;
        equal("a started unit", &ActiveState::Active, &first.active_state)?;
        equal("a started unit", "running", first.sub_state.word())?;
        equal("a started unit", "success", first.result.word())?;
        equal("its restarts", &0, &first.restarts)?;
        holds("its main process", first.main_pid != 0, &first)?;
        holds("its start", first.exec_main_start_monotonic != 0, &first)?;
        let state = called("active state", self.manager.active_state(RUN).await)?;
        equal("its active state alone", &ActiveState::Active, &state)?;
        called("usage", self.manager.usage(RUN).await)?;
        let invocation = called("invocation", self.manager.invocation_id(RUN).await)?;
        let hexadecimal = invocation.bytes().all(|b| b.is_ascii_hexdigit());
        holds(
            "its invocation",
            invocation.len() == 32 && hexadecimal,
            &invocation,
        )?;
        let listed = called("list", self.manager.list("kat-conformance-*.service").await)?;
        equal("listed units", &vec![RUN.to_owned()], &listed)?;

        self.job(
            "start again",
            self.manager.start(RUN, LIMIT).await,
            JobResult::Done,
        )?;
        let same = self.status(RUN).await?;
        equal(
            "main process after a second start",
            &first.main_pid,
            &same.main_pid,
        )?;
        self.job(
            "restart",
            self.manager.restart(RUN, LIMIT).await,
            JobResult::Done,
        )?;
        let other = self.status(RUN).await?;
        holds(
            "main process after a restart",
            other.main_pid != first.main_pid,
            &other,
        )?;
        let later = called("invocation", self.manager.invocation_id(RUN).await)?;
        holds("invocation after a restart", later != invocation, &later)?;
        equal("restarts after one by hand", &0, &other.restarts)?;

        drain(&mut events).await;
        self.job("stop", self.manager.stop(RUN, LIMIT).await, JobResult::Done)?;
        wait_for_change(&mut events, RUN).await?;
        let status = self.status(RUN).await?;
        equal(
            "a stopped unit",
            &ActiveState::Inactive,
            &status.active_state,
        )?;
        equal("a stopped unit", "success", status.result.word())?;
        // systemd forgets an inactive unit that nothing needs, and its result with it.
        let end = (status.exec_main_code, status.exec_main_status);
        holds(
            "how it ended",
            end == (2, SIGTERM) || end == (0, 0),
            &status,
        )?;
        self.job(
            "stop again",
            self.manager.stop(RUN, LIMIT).await,
            JobResult::Done,
        )
    }

    async fn is_killed(&self) -> ConformanceResult {
        self.job(
            "start",
            self.manager.start(RUN, LIMIT).await,
            JobResult::Done,
        )?;
        called("kill", self.manager.kill(RUN, SIGKILL).await)?;
        let status = self.until(RUN, "failed").await?;
        equal("a killed unit", "signal", status.result.word())?;
        equal("how it ended", &2, &status.exec_main_code)?;
        equal("its last signal", &SIGKILL, &status.exec_main_status)?;
        called("reset_failed", self.manager.reset_failed(RUN).await)?;
        let status = self.status(RUN).await?;
        equal(
            "after reset_failed",
            &ActiveState::Inactive,
            &status.active_state,
        )
    }

    async fn fails(&self) -> ConformanceResult {
        self.write(FAIL, "[Service]\nType=oneshot\nExecStart=/bin/false\n")
            .await?;
        self.job(
            "start",
            self.manager.start(FAIL, LIMIT).await,
            JobResult::Failed,
        )?;
        let status = self.until(FAIL, "failed").await?;
        equal("a failed unit", "exit-code", status.result.word())?;
        equal("how it ended", &1, &status.exec_main_code)?;
        equal("its status", &1, &status.exec_main_status)?;
        holds("its end", status.exec_main_exit_monotonic != 0, &status)?;
        called("reset_failed", self.manager.reset_failed(FAIL).await)
    }

    async fn remains_after_success(&self) -> ConformanceResult {
        let text = "[Service]\nType=exec\nExecStart=/bin/true\nRemainAfterExit=yes\n";
        self.write(REMAINS, text).await?;
        self.job(
            "start",
            self.manager.start(REMAINS, LIMIT).await,
            JobResult::Done,
        )?;
        let deadline = Instant::now() + LIMIT;
        let mut status = self.status(REMAINS).await?;
        while status.sub_state != SubState::Exited {
            holds("its program's end", Instant::now() < deadline, &status)?;
            sleep(Duration::from_millis(20)).await;
            status = self.status(REMAINS).await?;
        }
        equal(
            "a unit that remains",
            &ActiveState::Active,
            &status.active_state,
        )?;
        equal("a unit that remains", "success", status.result.word())?;
        equal("its main process", &0, &status.main_pid)?;
        let end = (status.exec_main_code, status.exec_main_status);
        equal("how its program ended", &(1, 0), &end)?;
        self.job(
            "stop",
            self.manager.stop(REMAINS, LIMIT).await,
            JobResult::Done,
        )?;
        let status = self.status(REMAINS).await?;
        equal(
            "a stopped unit",
            &ActiveState::Inactive,
            &status.active_state,
        )
    }

    async fn gives_up(&self) -> ConformanceResult {
        let text = format!(
            "[Unit]\nStartLimitIntervalSec=600\nStartLimitBurst={BURST}\n[Service]\nType=exec\n\
             ExecStart=/bin/false\nRestart=on-failure\nRestartSec=20ms\n"
        );
        self.write(AGAIN, &text).await?;
        // The start itself succeeds, because the program could be executed.
        self.job(
            "start",
            self.manager.start(AGAIN, LIMIT).await,
            JobResult::Done,
        )?;
        let status = self.until(AGAIN, "failed").await?;
        equal("why it gave up", "exit-code", status.result.word())?;
        // systemd also counts the start that the limit refuses.
        equal("its restarts", &BURST, &status.restarts)?;
        called("reload", self.manager.reload().await)?;
        let status = self.status(AGAIN).await?;
        equal("restarts after a reload", &BURST, &status.restarts)?;
        called("reset_failed", self.manager.reset_failed(AGAIN).await)?;
        let status = self.status(AGAIN).await?;
        equal("restarts after reset_failed", &0, &status.restarts)
    }

    async fn counts_anew_after_a_restart_by_hand(&self) -> ConformanceResult {
        let status = self.restarted_by_systemd().await?;
        // The agent does this to programs that ran well for long: the length of systemd's pauses
        // depends on the count (`RestartSteps=`).
        called("reset_failed", self.manager.reset_failed(AGAIN).await)?;
        let reset = self.status(AGAIN).await?;
        equal(
            "restarts of a running unit after reset_failed",
            &0,
            &reset.restarts,
        )?;
        equal("its state", &ActiveState::Active, &reset.active_state)?;
        equal("its process", &status.main_pid, &reset.main_pid)?;
        called("stop", self.manager.stop(AGAIN, LIMIT).await.map(drop))?;

        let status = self.restarted_by_systemd().await?;
        let restarted = self.manager.restart(AGAIN, LIMIT).await;
        self.job("restart", restarted, JobResult::Done)?;
        let after = self.status(AGAIN).await?;
        equal("restarts after one by hand", &0, &after.restarts)?;
        let later = after.exec_main_start_monotonic >= status.exec_main_start_monotonic;
        let another = later && after.main_pid != status.main_pid;
        holds("its program is another", another, &after)
    }

    /// Starts a unit, and kills its program once: returns its state when it runs again.
    async fn restarted_by_systemd(&self) -> Result<UnitStatus, ConformanceError> {
        let text = "[Service]\nType=exec\nExecStart=/bin/sleep 1000\nRestart=on-failure\nRestartSec=20ms\n";
        self.write(AGAIN, text).await?;
        let started = self.manager.start(AGAIN, LIMIT).await;
        self.job("start", started, JobResult::Done)?;
        called("kill", self.manager.kill(AGAIN, SIGKILL).await)?;
        let deadline = Instant::now() + LIMIT;
        let mut status = self.status(AGAIN).await?;
        while status.restarts == 0 || status.sub_state != SubState::Running {
            holds("a restart", Instant::now() < deadline, &status)?;
            sleep(Duration::from_millis(20)).await;
            status = self.status(AGAIN).await?;
        }
        Ok(status)
    }

    async fn knows_old_text(&self) -> ConformanceResult {
        // The unit must be running: one between two restarts may be unloaded and read again when
        // queried.
        self.job(
            "start",
            self.manager.start(RUN, LIMIT).await,
            JobResult::Done,
        )?;
        let needed = called("needs reload", self.manager.needs_reload(RUN).await)?;
        equal("a loaded file", &false, &needed)?;
        let text = "[Unit]\nDescription=changed\n[Service]\nType=exec\nExecStart=/bin/sleep 1000\n";
        self.put(RUN, text)?;
        let needed = called("needs reload", self.manager.needs_reload(RUN).await)?;
        equal("a changed file", &true, &needed)?;
        called("reload", self.manager.reload().await)?;
        let needed = called("needs reload", self.manager.needs_reload(RUN).await)?;
        equal("after a reload", &false, &needed)?;
        let after = self.status(RUN).await?;
        equal("after a reload", &ActiveState::Active, &after.active_state)
    }

    /// A unit that was never loaded needs no reload.
    async fn finds_a_new_file(&self) -> ConformanceResult {
        let before = self.status(FOUND).await?;
        equal("no file", "not-found", before.load_state.word())?;
        self.put(FOUND, "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n")?;
        let found = self.status(FOUND).await?;
        equal("a new file", "loaded", found.load_state.word())?;
        self.job(
            "start",
            self.manager.start(FOUND, LIMIT).await,
            JobResult::Done,
        )
    }

    async fn hangs(&self) -> ConformanceResult {
        self.write(
            SLOW,
            "[Service]\nType=exec\nExecStartPre=/bin/sleep 1000\nExecStart=/bin/sleep 1000\n",
        )
        .await?;
        let limit = Duration::from_millis(300);
        let result = self.manager.start(SLOW, limit).await;
        if !matches!(&result, Err(SystemdError::JobTimeout { unit, .. }) if unit == SLOW) {
            return Err(unlike("start of a slow unit", "JobTimeout", &result));
        }
        let status = self.status(SLOW).await?;
        equal(
            "a slow unit",
            &ActiveState::Activating,
            &status.active_state,
        )?;
        self.job(
            "stop",
            self.manager.stop(SLOW, LIMIT).await,
            JobResult::Done,
        )
    }

    async fn is_masked(&self) -> ConformanceResult {
        let path = self.folder.join(MASKED);
        symlink("/dev/null", &path).map_err(|error| ConformanceError::File { path, error })?;
        called("reload", self.manager.reload().await)?;
        let result = self.manager.start(MASKED, LIMIT).await;
        if !matches!(&result, Err(SystemdError::Masked(unit)) if unit == MASKED) {
            return Err(unlike("start of a masked unit", "Masked", &result));
        }
        equal(
            "a masked unit",
            "masked",
            self.status(MASKED).await?.load_state.word(),
        )
    }

    async fn is_enabled(&self) -> ConformanceResult {
        self.write(
            RUN,
            "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=default.target\n",
        )
        .await?;
        called("enable", self.manager.enable(RUN).await)?;
        called("enable again", self.manager.enable(RUN).await)?;
        called("disable", self.manager.disable(RUN).await)?;
        called("disable again", self.manager.disable(RUN).await)
    }

    /// Stops the units that the suite started, and removes its files.
    async fn clean(&self) -> ConformanceResult {
        for unit in [RUN, FAIL, AGAIN, SLOW, MASKED, FOUND, REMAINS] {
            match self.manager.stop(unit, LIMIT).await {
                Ok(_) | Err(SystemdError::NoSuchUnit(_) | SystemdError::Masked(_)) => {}
                Err(error) => return called(&format!("stop {unit}"), Err(error)),
            }
            match self.manager.reset_failed(unit).await {
                Ok(()) | Err(SystemdError::NoSuchUnit(_)) => {}
                Err(error) => return called(&format!("reset_failed {unit}"), Err(error)),
            }
            let path = self.folder.join(unit);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(ConformanceError::File { path, error });
                }
                _ => {}
            }
        }
        called("reload", self.manager.reload().await)?;
        for unit in [RUN, FAIL, AGAIN, SLOW, MASKED, FOUND, REMAINS] {
            let status = self.status(unit).await?;
            equal(
                "a unit whose file is gone",
                "not-found",
                status.load_state.word(),
            )?;
        }
        Ok(())
    }

    fn put(&self, unit: &str, text: &str) -> ConformanceResult {
        let path = self.folder.join(unit);
        fs::write(&path, text).map_err(|error| ConformanceError::File { path, error })
    }

    async fn write(&self, unit: &str, text: &str) -> ConformanceResult {
        self.put(unit, text)?;
        called("reload", self.manager.reload().await)
    }

    async fn status(&self, unit: &str) -> Result<UnitStatus, ConformanceError> {
        called(
            &format!("status of {unit}"),
            self.manager.status(unit).await,
        )
    }

    async fn until(&self, unit: &str, state: &str) -> Result<UnitStatus, ConformanceError> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let status = self.status(unit).await?;
            // Between two restarts a unit is briefly in other states.
            if status.active_state == ActiveState::from_word(state)
                && status.sub_state.word() == state
            {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(unlike(unit, state, &status));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn job(
        &self,
        step: &str,
        result: Result<JobResult, SystemdError>,
        expected: JobResult,
    ) -> ConformanceResult {
        equal(step, &expected, &called(step, result)?)
    }
}

fn called<T>(step: &str, result: Result<T, SystemdError>) -> Result<T, ConformanceError> {
    result.map_err(|error| ConformanceError::Call {
        step: step.to_owned(),
        error,
    })
}

fn unlike(step: &str, expected: &str, found: &dyn std::fmt::Debug) -> ConformanceError {
    ConformanceError::Unlike {
        step: step.to_owned(),
        expected: expected.to_owned(),
        found: format!("{found:?}"),
    }
}

fn equal<A, B>(step: &str, expected: &A, found: &B) -> ConformanceResult
where
    A: std::fmt::Debug + ?Sized,
    B: PartialEq<A> + std::fmt::Debug + ?Sized,
{
    if found == expected {
        Ok(())
    } else {
        Err(unlike(step, &format!("{expected:?}"), &found))
    }
}

fn holds(step: &str, condition: bool, found: &dyn std::fmt::Debug) -> ConformanceResult {
    if condition {
        Ok(())
    } else {
        Err(unlike(step, "a sensible value", found))
    }
}

/// Discards the events so far.
async fn drain(events: &mut UnitEvents) {
    while timeout(Duration::from_millis(200), events.next())
        .await
        .is_ok_and(|event| event.is_some())
    {}
}

async fn wait_for_change(events: &mut UnitEvents, unit: &str) -> ConformanceResult {
    let deadline = Instant::now() + LIMIT;
    loop {
        match tokio::time::timeout_at(deadline, events.next()).await {
            Ok(Some(UnitEvent::Changed(name))) if name == unit => return Ok(()),
            Ok(Some(_)) => {}
            other => return Err(unlike(&format!("events of {unit}"), "a change", &other)),
        }
    }
}
