//! The steps of a pass for an instance whose machine keeps its schedule by itself: its timer, the table
//! of its times, and what its gate wrote of runs.
//!
//! The timer is started here alone, in a pass for an instance that should run: after a boot only once
//! the store has confirmed the list, as for every instance that writes data.

use std::{io, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::worker::{
    WorkerError,
    context::UserContext,
    instance::{Instance, starting::RunReadiness},
    running::bound_files::{BoundFiles, with_cut_ends},
    unit_state::{bound_times::BoundTimes, early_units::timer_of},
};
use kat_host::files;
use kat_systemd::{JobResult, SystemdError, UnitStatus};
use kat_types::{
    api::{BoundReport, InstancePhase},
    assignment::{Assignment, BoundSchedule, DesiredRun},
    machine::bound_runs::{RunLine, RunTable, file_time, gate_runs},
    reason::Reason,
};

/// Longest time between two passes.
const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// Longest start or stop of a timer, for which a pass waits.
const TIMER_LIMIT: Duration = Duration::from_secs(10);
/// `SubState` of a timer none of whose times is to come: only a restart makes it look for new ones.
const RAN_OUT: &str = "elapsed";
/// The first second that systemd's calendar does not have: its last year is 2199 (systemd.time(7)).
const CALENDAR_END: i64 = 7_258_118_400;
/// Time until another look at a file of runs whose lock another process has.
const LOOK_AT_LOCK: Duration = Duration::from_secs(1);
/// A gate has the lock for less: beyond this a process of the user holds it.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

impl Instance {
    /// Keeps the timer and the table of an instance with a schedule, and reports its runs.
    pub(super) async fn converge_bound(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        bound: &BoundSchedule,
    ) -> Result<(), WorkerError> {
        context.wake_within(LOOK_AGAIN);
        let unit = assignment.unit();
        let files = context.folder.bound_files(&unit, &assignment.instance);
        files.make_runs()?;
        let mut cleared = Ok(());
        if bound.closed {
            context.remove_timer(&unit).await?;
            // Before all that may fail: whoever starts the unit by hand begins no run.
            cleared = files.clear_table();
        }
        // Read before the unit's state: one that has no end now and whose unit is down then was cut.
        let open = files.open_runs();
        let status = self.load(context, assignment).await?;
        self.read_usage(context, &unit, &status).await?;
        let is_down = status.active_state.is_down();
        let now = context.wall_time();
        let times = match BoundTimes::new(bound, &assignment.workload_uid) {
            Ok(times) => times,
            Err(error) => {
                let reason = Reason::ScheduleUnreadable;
                self.report_waiting(context, assignment, &status, reason, error.to_string());
                return Ok(());
            }
        };
        let cut = is_down.then_some(open.as_slice());
        let lines = match cleared.and_then(|()| read_runs(&files, &times, cut, now)) {
            Ok(lines) => lines,
            Err(error) => {
                self.report_unusable(context, assignment, &status, &error);
                return Ok(());
            }
        };
        if status.active_state.is_up() {
            end_at_deadline(context, &unit, times.seconds_left(&lines, now)).await?;
        }
        let present = files.table();
        self.lost_starts.note(present.as_ref(), &lines, now);
        let times = times.after_lost_starts(self.lost_starts);
        let decided_before = present.as_ref().map(|table| table.handled);
        let mut table = times.table(present.as_ref(), &lines, now);
        let readiness = match bound.closed {
            true => RunReadiness::NotReady,
            false => self.readiness(context, assignment, &status).await?,
        };
        let keeps_times = match readiness {
            RunReadiness::Ready => true,
            RunReadiness::NotReady => false,
            // A time that comes before the answer would be missed otherwise.
            RunReadiness::NotKnown => present.is_some_and(|table| !table.times.is_empty()),
        };
        if !keeps_times {
            // The timer may be there: the gate refuses its times.
            table.times.clear();
            table.extra_start = None;
        }
        if let Err(error) = files.write_table(&table) {
            self.report_unusable(context, assignment, &status, &error);
            return Ok(());
        }
        self.locked_runs = None;
        if is_down {
            files.remove_taken(bound.handled.as_second(), table.handled)?;
            if decided_before == Some(table.handled) {
                make_room(&files, &times, now);
            }
        }
        if readiness == RunReadiness::Ready {
            if let Some(why) = keep_timer(context, assignment, &table).await? {
                let reason = Reason::StartFailed;
                self.report_waiting(context, assignment, &status, reason, why);
                return Ok(());
            }
        } else if !bound.closed {
            return Ok(());
        }
        let (phase, message) = match (is_down, status.active_state.is_up()) {
            (false, true) => (InstancePhase::Running, String::new()),
            (false, false) => (InstancePhase::Starting, String::new()),
            (true, _) if bound.closed => {
                let message = "its leader takes the schedule over";
                (InstancePhase::Scheduled, message.to_owned())
            }
            (true, _) => {
                let message = next_in_words(&times, &table, &lines, now);
                (InstancePhase::Scheduled, message)
            }
        };
        self.report(context, assignment, &status, phase, None, message);
        Ok(())
    }

    /// Whether a run may begin now; reports what keeps it from that. An active one keeps its times: the
    /// gate skips them.
    async fn readiness(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) -> Result<RunReadiness, WorkerError> {
        if !status.active_state.is_down() {
            return Ok(RunReadiness::Ready);
        }
        // Processes of its last run may still write to its data.
        if self.outlives(context, &assignment.unit(), status).await? {
            self.report_outlived(context, assignment, status);
            return Ok(RunReadiness::NotReady);
        }
        self.readiness_of_run(context, assignment, status)
    }

    /// Reports that the file of runs can't be used. A gate that writes into it keeps it for a moment.
    fn report_unusable(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
        error: &io::Error,
    ) {
        if error.kind() == io::ErrorKind::WouldBlock {
            context.wake_within(LOOK_AT_LOCK);
            let since = self.locked_runs.get_or_insert_with(Instant::now);
            if since.elapsed() < LOCK_PATIENCE {
                return;
            }
        }
        let message = format!("the file in which its unit writes its runs can't be used: {error}");
        self.report_waiting(context, assignment, status, Reason::StartFailed, message);
    }
}

/// The lines of the file of runs. `cut` are the runs without an end of a unit that is down: they get one,
/// and a file that is too large is replaced by an empty one.
fn read_runs(
    files: &BoundFiles,
    times: &BoundTimes<'_>,
    cut: Option<&[String]>,
    now: Timestamp,
) -> io::Result<Vec<RunLine>> {
    let Some(cut) = cut else {
        return files.lines();
    };
    let read = files.close(cut, now.as_second());
    match read.and_then(|()| files.lines()) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            start_over(files, times, now, &error.to_string())?;
            Ok(Vec::new())
        }
        read => read,
    }
}

/// Replaces a file of runs that is full although all that is decided has left it, as of lines of its user's
/// own about times to come: no run would begin any more. The unit must be down.
fn make_room(files: &BoundFiles, times: &BoundTimes<'_>, now: Timestamp) {
    if !files.is_full() {
        return;
    }
    if let Err(error) = start_over(files, times, now, "it is full") {
        tracing::warn!("{} can't be replaced: {error}", files.runs.display());
    }
}

/// Puts an empty file in the place of the file of runs, once the table has all times until now as decided.
fn start_over(
    files: &BoundFiles,
    times: &BoundTimes<'_>,
    now: Timestamp,
    why: &str,
) -> io::Result<()> {
    files.write_table(&times.without_runs(files.table().as_ref(), now))?;
    files.start_over().map_err(io::Error::other)?;
    tracing::warn!(
        "{} is replaced by an empty file: {why}; which of its runs have been until now is not known",
        files.runs.display()
    );
    Ok(())
}

/// What the timer begins next.
fn next_in_words(
    times: &BoundTimes<'_>,
    table: &RunTable,
    lines: &[RunLine],
    now: Timestamp,
) -> String {
    if let Some(start) = table.extra_start.and_then(file_time) {
        let next = table.next_attempt(&gate_runs(lines), now.as_second());
        return match next {
            Some(_) => format!("its last run failed and is tried again at {start}"),
            None => format!("a run that was missed begins at {start}"),
        };
    }
    let next = times.next(now);
    next.map_or_else(String::new, |next| format!("the next run is at {next}"))
}

/// Stops the unit once no seconds are left.
async fn end_at_deadline(
    context: &mut UserContext,
    unit: &str,
    left: Option<i64>,
) -> Result<(), WorkerError> {
    let Some(left) = left else {
        return Ok(());
    };
    if left > 0 {
        context.wake_within(Duration::from_secs(left.unsigned_abs()));
        return Ok(());
    }
    match context.manager.stop(unit, TIMER_LIMIT).await {
        Ok(_) | Err(SystemdError::NoSuchUnit(_)) => Ok(()),
        Err(error @ SystemdError::Unreachable { .. }) => Err(error.into()),
        // A program may take longer to end. systemd ends it.
        Err(error) => {
            tracing::warn!("a run is at its deadline: {error}");
            Ok(())
        }
    }
}

/// Makes the timer that of the table, and starts it; the error of a start in words.
async fn keep_timer(
    context: &mut UserContext,
    assignment: &Assignment,
    table: &RunTable,
) -> Result<Option<String>, WorkerError> {
    let unit = assignment.unit();
    let times = table.times.iter().map(|time| time.start);
    let mut starts: Vec<i64> = times.chain(table.extra_start).collect();
    starts.sort_unstable();
    starts.dedup();
    let starts = starts.into_iter().filter(|start| *start < CALENDAR_END);
    let starts = starts.filter_map(file_time);
    let starts = starts.map(|start| start.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    let starts: Vec<String> = starts.collect();
    if starts.is_empty() {
        // systemd starts no timer without times.
        context.remove_timer(&unit).await?;
        return Ok(None);
    }
    let text = context.tools.renderer.timer(assignment, starts)?;
    let is_new = !context.folder.early.timer(&unit).exists();
    let differs = context.folder.early.write_timer(&unit, &text)?;
    if differs && !is_new {
        context.reload().await?;
    }
    let timer = timer_of(&unit);
    let status = context.manager.status(&timer).await?;
    let started = if status.sub_state.word() == RAN_OUT {
        context.manager.restart(&timer, TIMER_LIMIT).await
    } else if status.active_state.is_up() {
        return Ok(None);
    } else {
        context.manager.start(&timer, TIMER_LIMIT).await
    };
    match started {
        Ok(JobResult::Done) => Ok(None),
        Ok(other) => Ok(Some(format!(
            "its timer {timer} did not start: systemd says {other:?}"
        ))),
        Err(error @ SystemdError::Unreachable { .. }) => Err(error.into()),
        Err(error) => Ok(Some(format!("its timer {timer} did not start: {error}"))),
    }
}

/// What of the runs of an instance is reported; `None` for an instance without a schedule of its own.
pub(super) fn bound_report(
    context: &UserContext,
    assignment: &Assignment,
    status: &UnitStatus,
) -> Option<BoundReport> {
    let bound = assignment.bound.as_ref()?;
    let unit = assignment.unit();
    let files = context.folder.bound_files(&unit, &assignment.instance);
    let has_unit = context.folder.has(&unit);
    let is_over = status.active_state.is_down() || !has_unit;
    let may_begin = !bound.closed && assignment.wanted == DesiredRun::Running;
    let idle = is_over && !may_begin && !context.folder.early.timer(&unit).exists();
    let Ok(times) = BoundTimes::new(bound, &assignment.workload_uid) else {
        return Some(BoundReport {
            from: bound.handled,
            handled: bound.handled,
            idle,
            ..BoundReport::default()
        });
    };
    let now = context.wall_time();
    // The gate reads the table: until there is one, nothing is decided, and without the unit nothing
    // begins any more.
    let table = files.table();
    let has_times = table.as_ref().is_some_and(|table| !table.times.is_empty());
    let idle = idle && !(has_unit && has_times);
    // After the table: a run that it let begin has its line.
    let lines = match files.lines() {
        Ok(lines) if has_unit => lines,
        // A process of the user that holds the lock keeps `settle_bound` from writing these ends.
        Ok(lines) => with_cut_ends(lines, now.as_second()),
        Err(error) if idle && !has_unit && error.kind() == io::ErrorKind::FileTooLarge => {
            return Some(times.lost_report(now));
        }
        // Runs that are not known are not missed.
        Err(_) => return Some(times.empty_report()),
    };
    let decided = match has_unit || may_begin {
        true => times.handled(table.as_ref(), now.as_second()),
        false => times.decided_without_unit(table.as_ref(), &lines, now),
    };
    Some(times.report(decided, &lines, now, idle))
}

impl UserContext {
    /// Ends, in the file of runs, those that were cut by the stop of an instance whose unit is gone.
    pub(crate) fn settle_bound(&self, assignment: &Assignment) {
        if assignment.bound.is_none() {
            return;
        }
        let unit = assignment.unit();
        let files = self.folder.bound_files(&unit, &assignment.instance);
        let open = files.open_runs();
        if let Err(error) = files.close(&open, self.wall_time().as_second()) {
            tracing::warn!(
                instance = assignment.instance,
                "the runs of an instance can't be ended: {error:#}"
            );
        }
    }

    /// Stops the timer of the instance with this main unit, and removes it: no run begins after that.
    pub(crate) async fn remove_timer(&mut self, unit: &str) -> Result<(), WorkerError> {
        let path = self.folder.early.timer(unit);
        if !path.exists() {
            return Ok(());
        }
        match self.manager.stop(&timer_of(unit), TIMER_LIMIT).await {
            Ok(_) | Err(SystemdError::NoSuchUnit(_)) => {}
            Err(error) => return Err(error.into()),
        }
        files::remove(&path)?;
        Ok(())
    }
}
