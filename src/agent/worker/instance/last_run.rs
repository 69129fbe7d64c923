//! The last run of an instance's program: the cause of its end, and whether it counts as a restart.

use std::{borrow::Cow, time::Duration};

use crate::{
    images::pull as image,
    worker::{
        WorkerError,
        context::UserContext,
        ignore_missing,
        instance::Instance,
        reports::{
            log_tail,
            log_tail::{LogTail, UnitRuns},
        },
        running::restarts::RestartEvidence,
        unit_state::{
            instance_phase::{PODMANS, RunEnd, RunFault, exit_code},
            unit_files::UnitChanges,
        },
    },
};
use kat_render::{RenderError, UnitFile};
use kat_systemd::{ActiveState, ServiceResult, UnitStatus};
use kat_types::{
    assignment::Assignment,
    resource::{ImagePullPolicy, RestartCondition},
};

/// A program that has run for this long without an end begins the pauses between its restarts anew.
const RAN_WELL: Duration = Duration::from_secs(600);

/// How long after an end Podman's words may still be on their way into the journal, which systemd's
/// signal may overtake. Less than systemd's first pause before a restart, which is 1 s.
const WORDS_WITHIN: Duration = Duration::from_millis(800);
/// Pause before the journal is read again for them.
const WORDS_PAUSE: Duration = Duration::from_millis(100);

/// The end of the program's last run.
#[derive(Debug, Default)]
pub(super) struct LastRun {
    /// The unit ended successfully since its last start.
    pub ended: bool,
    /// The last judged end, microseconds of the monotonic clock.
    judged_exit: Option<u64>,
    /// The cause of the end, if it was not the program.
    pub fault: Option<RunFault>,
    /// How it ended, until the program runs again.
    pub end: Option<RunEnd>,
    /// The last log lines, or the error of Podman or of the container hook.
    pub trouble: String,
}

impl Instance {
    /// The unit files of an instance; `None` where its secrets are not ready, which its start
    /// reports. MaxCount is reduced by the restarts that its program spent before systemd's count
    /// was last reset.
    pub(crate) fn render(
        &mut self,
        context: &UserContext,
        assignment: &Assignment,
    ) -> Result<Option<Vec<UnitFile>>, RenderError> {
        self.secret_trouble = None;
        let mut filled = match context.tools.secrets.prepare(assignment) {
            Ok(filled) => filled.map_or(Cow::Borrowed(assignment), Cow::Owned),
            Err(trouble) => {
                self.secret_trouble = Some(trouble);
                return Ok(None);
            }
        };
        let (instance, window) = (&assignment.instance, window(assignment));
        let spent = context.restarts.spent(instance, context.now(), window);
        if spent > 0 {
            let policy = &mut filled.to_mut().restart_policy;
            policy.max_restarts = policy.max_restarts.saturating_sub(spent);
        }
        let (renderer, settings) = (&context.tools.renderer, &context.tools.settings);
        renderer.instance(&filled, settings).map(Some)
    }

    /// After a new end of the program, or restarts that were not judged yet: determines their
    /// cause, and reads the last log lines. False while the cause of an end is not known yet.
    pub(super) async fn look_at_runs(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> Result<bool, WorkerError> {
        if status.active_state == ActiveState::Deactivating {
            // systemd has not decided yet what follows the end.
            return Ok(true);
        }
        let ended = status.exec_main_exit_monotonic;
        let count = context.restarts.of(&assignment.instance);
        let runs = UnitRuns {
            started: status.exec_main_start_monotonic,
            ended,
            counted: count.counted(),
            judged_lost: count.judged_lost(),
            missed: count.missed(status),
        };
        let has_ended = ended != 0 && self.last_run.judged_exit != Some(ended);
        if !has_ended && runs.missed == 0 {
            return Ok(true);
        }
        let (logs, unit) = (context.tools.logs.as_ref(), assignment.unit());
        let tail = log_tail::read(logs, context.user.uid, &unit, runs).await;
        let is_silent = tail.podman_error.is_none() && tail.hook_error.is_none();
        if has_ended && is_silent && ended_by_podman(status) {
            let age = Duration::from_micros(context.now().saturating_sub(ended));
            if age < WORDS_WITHIN {
                context.wake_within(WORDS_PAUSE);
                return Ok(false);
            }
        }
        let fault = match has_ended {
            true => run_fault(context, assignment, status, &tail),
            false => None,
        };
        let lost = fault == Some(RunFault::LostStart);
        let lost_image = fault == Some(RunFault::LostImage);
        if lost_image && let Some(image) = context.images.get_mut(&assignment.image) {
            image.present = false;
        }
        let without_image = match may_pull(assignment) {
            true => tail.without_image,
            false => 0,
        };
        let evidence = RestartEvidence {
            status,
            is_ours: fault.is_some_and(RunFault::is_excused),
            lost,
            // The unit's state alone shows these.
            excused: tail
                .excused
                .saturating_add(without_image)
                .saturating_add(u32::from(lost || lost_image)),
            now: context.now(),
            window: window(assignment),
        };
        if has_ended {
            self.last_run = LastRun {
                ended: status.active_state == ActiveState::Inactive
                    && status.result == ServiceResult::Success,
                judged_exit: Some(ended),
                fault,
                end: Some(RunEnd::of(status)),
                trouble: run_trouble(fault, tail),
            };
        } else if let (0, Some(end)) = (tail.excused, &tail.run_before) {
            // systemd has started the program again before the agent saw its end.
            self.last_run.end = Some(RunEnd::logged(end));
        }
        if context.restarts.of(&assignment.instance).count(evidence) {
            self.make_good(context, assignment, status).await?;
        }
        Ok(true)
    }

    /// A start that failed by KAT's fault must not spend the program's restart budget: systemd's
    /// count is reset, and the unit is written with the budget that the program has left.
    async fn make_good(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> Result<(), WorkerError> {
        let files = self.render(context, assignment)?.unwrap_or_default();
        if context.folder.write(&files, false)? != UnitChanges::default() {
            context.reload().await?;
        }
        if status.active_state == ActiveState::Failed {
            // The start that follows resets systemd's count.
            return Ok(());
        }
        let unit = assignment.unit();
        match ignore_missing(context.manager.reset_failed(&unit).await) {
            Ok(()) => {
                let count = context.restarts.of(&assignment.instance);
                count.begun_anew(status.is_between_runs());
            }
            Err(error) => tracing::warn!(unit, "the count of restarts can't be reset: {error:#}"),
        }
        Ok(())
    }

    /// Resets systemd's count of restarts, which decides the length of the pause before the next
    /// one, where a program has run for long and serves. The number of restarts that users see
    /// stays.
    pub(super) async fn forgive(
        &self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
        now: u64,
    ) {
        if self.serves != Some(true) || !ran_well(assignment, status, now) {
            return;
        }
        let unit = assignment.unit();
        match ignore_missing(context.manager.reset_failed(&unit).await) {
            Ok(()) => context.restarts.of(&assignment.instance).begun_anew(false),
            // The next pass tries again.
            Err(error) => tracing::debug!(unit, "the count of restarts can't be reset: {error:#}"),
        }
    }
}

/// The cause of the end of a run, if it was not the program.
fn run_fault(
    context: &UserContext,
    assignment: &Assignment,
    status: &UnitStatus,
    tail: &LogTail,
) -> Option<RunFault> {
    if tail.hook_error.is_some() {
        return Some(match tail.fenced {
            true => RunFault::Fenced,
            false => RunFault::Hook,
        });
    }
    if status.result == ServiceResult::Protocol {
        return Some(RunFault::LostStart);
    }
    if tail.podman_error.is_none() || !ended_by_podman(status) {
        return None;
    }
    let main = assignment.only(&assignment.container);
    // A pull may put the image back between Podman's look for it and this one.
    let is_back = tail.image_unknown
        && may_pull(&main)
        && context.was_pulled_at(&main.image, status.exec_main_start_monotonic);
    match is_back || image::is_lost(&context.home(), &main) {
        true => Some(RunFault::LostImage),
        false => Some(RunFault::CannotStart),
    }
}

/// Whether the image of the main container is pulled where it is missing.
fn may_pull(assignment: &Assignment) -> bool {
    kat_render::pull_policy(assignment) != ImagePullPolicy::Never
}

fn run_trouble(fault: Option<RunFault>, tail: LogTail) -> String {
    match fault {
        // The program's output before that is not the cause.
        Some(RunFault::LostStart) => String::new(),
        Some(RunFault::LostImage | RunFault::CannotStart) => {
            not_started(&tail.podman_error.unwrap_or_default())
        }
        Some(RunFault::Hook | RunFault::Fenced) | None => tail.hook_error.unwrap_or(tail.lines),
    }
}

/// Whether a program that may always be restarted has run for so long that its earlier ends no
/// longer lengthen the pause before its next start.
fn ran_well(assignment: &Assignment, status: &UnitStatus, now: u64) -> bool {
    let started = status.exec_main_start_monotonic;
    let ran = Duration::from_micros(now.saturating_sub(started));
    assignment.restart_policy.condition == RestartCondition::Always
        && status.restarts > 0
        && status.active_state == ActiveState::Active
        && started != 0
        && ran >= RAN_WELL
}

/// Whether the unit ended with one of Podman's own exit codes.
pub(super) fn ended_by_podman(status: &UnitStatus) -> bool {
    exit_code(status).is_some_and(|code| PODMANS.contains(&code))
}

/// The message of a container that Podman did not start.
pub(super) fn not_started(words: &str) -> String {
    format!("Podman can't start its container: {words}")
}

/// The window in which restarts are limited, in microseconds, as in the unit.
pub(super) fn window(assignment: &Assignment) -> u64 {
    u64::from(assignment.restart_policy.reset_seconds.max(1)) * 1_000_000
}
