//! Stops that do not end: systemd does not end the unit, or the unit has ended and its processes have
//! not. A process that waits for a file system that does not answer cannot be killed.

use std::{
    fs,
    path::{Component, Path},
    time::Duration,
};

use tokio::time::Instant;

use crate::worker::{
    WorkerError, context::UserContext, instance::Instance, unit_state::instance_phase::exit_code,
};
use kat_systemd::{JobResult, ServiceResult, SystemdError, UnitStatus};
use kat_types::{api::InstancePhase, assignment::Assignment, machine::root::Root, reason::Reason};

/// Pause between two looks at the processes that a unit has left.
const LOOK: Duration = Duration::from_secs(2);
/// Processes that a unit has left are reported after this time: some take a moment to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Mount point of the control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// What is known of a stop that has not ended.
#[derive(Debug, Default)]
pub(super) struct StopTrouble {
    /// Why the last stop of the unit did not end it.
    failed: Option<String>,
    /// Since when processes have outlived the instance's units, and the control group of the first.
    outlived: Option<(Instant, String)>,
}

/// Exit code of a program that SIGKILL ended: 128 and the signal's number.
const KILLED: i32 = 137;

/// How the stop of an instance that has to end goes.
#[derive(Debug, Default)]
pub(super) struct StopCourse {
    /// Begin of the last stop, microseconds of the monotonic clock; `None` where an earlier agent
    /// began it.
    began: Option<u64>,
    /// How it ended, where the program had to be killed.
    killed: Option<String>,
}

impl StopCourse {
    /// Takes the state of the unit that has ended.
    fn end(&mut self, assignment: &Assignment, status: &UnitStatus) {
        let Some(began) = self.began.take() else {
            return;
        };
        let container = &assignment.container;
        let grace = container.termination_grace_seconds;
        let took = status.exec_main_exit_monotonic.saturating_sub(began);
        let waited = took >= u64::from(grace) * 1_000_000;
        let killed = exit_code(status) == Some(KILLED) && status.result != ServiceResult::OomKill;
        if !waited || !killed {
            return;
        }
        let signal = container.stop_signal.as_deref().unwrap_or("SIGTERM");
        let hint = match container.init {
            true => "set stopSignal to one that it obeys",
            false => "set stopSignal to one that it obeys, or init: true",
        };
        self.killed = Some(format!(
            "killed after {grace} s: it ignored {signal} ({hint})"
        ));
    }
}

impl Instance {
    /// Records the begin of a stop, at this time of the monotonic clock.
    pub(crate) fn record_stop_begin(&mut self, now: u64) {
        self.stop_course.began = Some(now);
    }

    /// Records how the unit of a stopped instance ended.
    pub(crate) fn record_stopped_unit(&mut self, assignment: &Assignment, status: &UnitStatus) {
        self.stop_course.end(assignment, status);
    }

    /// How the stop ended, where the program had to be killed.
    pub(crate) fn why_killed(&self) -> Option<&str> {
        self.stop_course.killed.as_deref()
    }

    /// Records the end of a stop.
    pub(super) fn record_stop(&mut self, instance: &str, result: Result<JobResult, SystemdError>) {
        let why = match &result {
            Ok(JobResult::Done) | Err(SystemdError::NoSuchUnit(_)) => return,
            Ok(result) => format!("the job of its stop ended as {result:?}"),
            Err(error) => error.to_string(),
        };
        tracing::warn!(instance, ?result, "an instance did not stop");
        self.stop.failed = Some(why);
    }

    /// Forgets earlier stops.
    pub(super) fn forget_stop(&mut self) {
        self.stop = StopTrouble::default();
    }

    /// Reports that an instance is stopped, and why that has not ended yet if it should have.
    pub(crate) fn report_stopping(
        &mut self,
        context: &UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) {
        let message = self.why_not_ended(status);
        let reason = message.as_ref().map(|_| Reason::StopNotEnding);
        let (phase, message) = (InstancePhase::Stopping, message.unwrap_or_default());
        self.report(context, assignment, status, phase, reason, message);
    }

    /// Reports that an instance does not start while processes of its last run are there.
    pub(super) fn report_outlived(
        &mut self,
        context: &UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) {
        // Most end at once: until then the last report stays.
        if let Some(message) = self.why_not_ended(status) {
            self.report_waiting(context, assignment, status, Reason::StopNotEnding, message);
        }
    }

    fn why_not_ended(&self, status: &UnitStatus) -> Option<String> {
        let outlived = self.stop.outlived.as_ref();
        let outlived = outlived.filter(|(since, _)| since.elapsed() >= PATIENCE);
        let (what, group) = match (outlived, &self.stop.failed) {
            (Some((_, group)), _) if status.active_state.is_down() => (
                "its unit has ended, and processes of it have not".to_owned(),
                group,
            ),
            (_, Some(why)) => (
                format!("its unit has not stopped: {why}"),
                &status.control_group,
            ),
            (_, None) => return None,
        };
        Some(match group.is_empty() {
            true => what,
            false => format!("{what}; `systemd-cgls {group}` shows its processes"),
        })
    }

    /// Whether processes of units of the instance that have ended are still there. They may write
    /// to its data, so that the instance has not stopped and does not start.
    pub(crate) async fn outlives(
        &mut self,
        context: &mut UserContext,
        unit: &str,
        status: &UnitStatus,
    ) -> Result<bool, WorkerError> {
        let uid = context.user.uid;
        let mut left = group_with_processes(&context.tools.root, uid, unit, status);
        for other in context.folder.other_units(unit)? {
            if left.is_none() {
                let status = context.manager.status(&other).await?;
                // One that runs is no remainder: a sidecar starts before the main container.
                if status.active_state.is_down() {
                    left = group_with_processes(&context.tools.root, uid, &other, &status);
                }
            }
        }
        let Some(group) = left else {
            self.forget_stop();
            return Ok(false);
        };
        let since = self.stop.outlived.take();
        let since = since.map_or_else(Instant::now, |(since, _)| since);
        self.stop.outlived = Some((since, group));
        context.wake_within(LOOK);
        Ok(true)
    }
}

/// The control group of a user's unit, if processes are in it or below it (cgroups(7)). systemd keeps
/// the group of a unit that has ended only while it has some. A manager that was started anew
/// does not know it any more: then it is where KAT's units are.
fn group_with_processes(root: &Root, uid: u32, unit: &str, status: &UnitStatus) -> Option<String> {
    let manager = format!("/user.slice/user-{uid}.slice/user@{uid}.service");
    let usual = format!("{manager}/app.slice/{unit}");
    [status.control_group.clone(), usual]
        .into_iter()
        .find(|group| {
            let path = Path::new(group);
            // The user's manager says the name: it leads nowhere else.
            let plain = |part| matches!(part, Component::Normal(_));
            path.starts_with(&manager)
                && path.components().skip(1).all(plain)
                && is_populated(root, path)
        })
}

/// The control group of a user with its manager and sessions, if processes are in it or below it.
pub(crate) fn user_group_with_processes(root: &Root, uid: u32) -> Option<String> {
    let group = format!("/user.slice/user-{uid}.slice");
    is_populated(root, Path::new(&group)).then_some(group)
}

fn is_populated(root: &Root, group: &Path) -> bool {
    let folder = root
        .below(GROUPS)
        .join(group.strip_prefix("/").unwrap_or(group));
    fs::read_to_string(folder.join("cgroup.events"))
        .is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_outlasts_its_grace_and_is_killed_is_told_from_one_that_ends() {
        let text = include_str!("../../../../tests/render/every-field/assignment.json");
        let mut assignment: Assignment = serde_json::from_str(text).unwrap();
        assignment.container.termination_grace_seconds = 10;
        assignment.container.stop_signal = None;
        assignment.container.init = false;
        let said = |assignment: &Assignment, began: Option<u64>, seconds: u64, exit: i32| {
            let mut course = StopCourse {
                began,
                killed: None,
            };
            let status = UnitStatus {
                exec_main_code: 1,
                exec_main_status: exit,
                exec_main_exit_monotonic: 5_000_000 + seconds * 1_000_000,
                ..UnitStatus::default()
            };
            course.end(assignment, &status);
            course.killed
        };
        let began = Some(5_000_000);
        assert_eq!(
            said(&assignment, began, 10, KILLED).as_deref(),
            Some(
                "killed after 10 s: it ignored SIGTERM (set stopSignal to one that it obeys, or init: true)"
            )
        );
        for (began, seconds, exit) in [
            (began, 9, KILLED),
            (began, 10, 143),
            (began, 10, 0),
            // An earlier agent began the stop: nobody knows for how long.
            (None, 10, KILLED),
        ] {
            assert_eq!(
                said(&assignment, began, seconds, exit),
                None,
                "{seconds} {exit}"
            );
        }
        assignment.container.stop_signal = Some("SIGQUIT".to_owned());
        assignment.container.init = true;
        assert_eq!(
            said(&assignment, began, 30, KILLED).as_deref(),
            Some("killed after 10 s: it ignored SIGQUIT (set stopSignal to one that it obeys)")
        );
    }

    #[test]
    fn only_groups_of_the_user_are_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        let manager = "/user.slice/user-20003.slice/user@20003.service";
        let unit = "kat-default-web-aaaaa.service";
        let write = |group: &str, text: &str| {
            let at = folder
                .path()
                .join("sys/fs/cgroup")
                .join(group.trim_start_matches('/'));
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("cgroup.events"), text).unwrap();
        };
        let found = |uid: u32, group: &str| {
            let status = UnitStatus {
                control_group: group.to_owned(),
                ..UnitStatus::default()
            };
            group_with_processes(&root, uid, unit, &status)
        };
        let group = format!("{manager}/own.slice/{unit}");
        assert_eq!(found(20_003, ""), None);
        assert_eq!(found(20_003, &group), None, "it is gone");
        write(&group, "populated 1\nfrozen 0\n");
        assert_eq!(found(20_003, &group), Some(group.clone()));
        assert_eq!(found(20_004, &group), None, "another user's");
        let around = format!("{manager}/../user@20003.service/own.slice/{unit}");
        assert_eq!(found(20_003, &around), None);
        write(&group, "populated 0\nfrozen 0\n");
        assert_eq!(found(20_003, &group), None);
        // A manager that was started anew knows no group.
        let usual = format!("{manager}/app.slice/{unit}");
        write(&usual, "populated 1\nfrozen 0\n");
        assert_eq!(found(20_003, ""), Some(usual));
    }
}
