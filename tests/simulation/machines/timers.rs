//! The timers of a machine's users, and the gates of the units that they start.
//!
//! A timer that was started begins its unit at its times by the machine's wall clock, as systemd 257
//! does (docs/decisions/2026-11-30-schedules-bound-to-a-machine.md, "Measured"): a time that passes while
//! the unit runs begins it once as soon as it has ended, and a clock that is set back lets times come
//! again. Nothing of a timer outlives its manager. The gate is the one of `kat-net run-gate`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::{
    checks::{kept_schedules::KeptStart, monitor::Monitor},
    faults::network_faults::Way,
    machines::machine::{LIMIT, attend},
};
use kat_network::run_gate::{UnitWords, try_begin, try_end};
use kat_systemd::{JobResult, SystemdError, UnitManager};
use kat_testing::systemd::fake::{FakeManager, UnitBehaviour};
use kat_types::machine::bound_runs::{GateVerdict, RunLine, RunTable, gate_verdict, run_lines};

/// Folder of the timers below a machine's root.
const TIMERS: &str = "run/systemd/user";
/// Longest time until a timer notices that the clock was set or that its unit has ended: its
/// `AccuracySec=`.
const ACCURACY: Duration = Duration::from_secs(1);
/// Shortest pause between two looks at a timer.
const SHORTEST: Duration = Duration::from_millis(1);

/// A machine's wall clock.
pub(crate) type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

pub(crate) fn is_timer(unit: &str) -> bool {
    Path::new(unit)
        .extension()
        .is_some_and(|extension| extension == "timer")
}

pub(crate) fn timer(text: String) -> UnitBehaviour {
    UnitBehaviour {
        text,
        ..UnitBehaviour::default()
    }
}

/// Whether the unit asks a gate before each of its runs.
pub(crate) fn has_gate(text: &str) -> bool {
    text.contains(" run-gate begin ")
}

/// The table of times and the file of runs of a unit with a gate.
fn gate_files(root: &Path, text: &str) -> Option<(PathBuf, PathBuf)> {
    let mut lines = text.lines();
    let (_, paths) = lines.find_map(|line| line.split_once(" run-gate begin "))?;
    let (times, runs) = paths.split_once(' ')?;
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    Some((below(times), below(runs)))
}

/// What a timer says, as far as KAT writes it.
#[derive(Debug, PartialEq, Eq)]
struct TimerSpec {
    unit: String,
    times: Vec<Timestamp>,
}

impl TimerSpec {
    /// The error names a line that the fake does not know.
    fn parse(text: &str) -> Result<Self, String> {
        let (mut section, mut unit, mut times) = ("", None, Vec::new());
        for line in text.lines() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line.starts_with('[') {
                section = line;
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            let unknown = || format!("the fake of systemd knows no line {line:?} in {section}");
            match (section, key) {
                ("[X-KAT]", _) | ("[Unit]", "Description") => {}
                ("[Timer]", "AccuracySec") if value == "1s" => {}
                ("[Timer]", "Unit") => unit = Some(value.to_owned()),
                ("[Timer]", "OnCalendar") => {
                    times.push(calendar_time(value).ok_or_else(unknown)?);
                }
                _ => return Err(unknown()),
            }
        }
        let unit = unit.ok_or("the fake of systemd knows no timer without Unit=")?;
        Ok(Self { unit, times })
    }
}

/// A time such as `2026-11-30 12:00:00 UTC`.
fn calendar_time(text: &str) -> Option<Timestamp> {
    let (day, time) = text.strip_suffix(" UTC")?.split_once(' ')?;
    format!("{day}T{time}Z").parse().ok()
}

/// How a program ended, in systemd's words (systemd.exec(5)).
#[derive(Debug)]
pub(crate) struct ProgramEnd {
    result: &'static str,
    code: &'static str,
    status: String,
}

impl ProgramEnd {
    pub(crate) fn exited(code: i32) -> Self {
        Self {
            result: if code == 0 { "success" } else { "exit-code" },
            code: "exited",
            status: code.to_string(),
        }
    }

    /// By a stop.
    pub(crate) fn stopped() -> Self {
        Self {
            result: "success",
            code: "killed",
            status: "TERM".to_owned(),
        }
    }

    /// At `RuntimeMaxSec=`.
    pub(crate) fn timed_out() -> Self {
        Self {
            result: "timeout",
            ..Self::stopped()
        }
    }

    fn succeeded(&self) -> bool {
        self.result == "success" && self.code == "exited"
    }
}

/// A start that its gate let begin.
#[derive(Debug)]
struct GatedStart {
    invocation: String,
    runs: PathBuf,
    /// A run that fails is tried again.
    has_retries: bool,
}

/// The timers and the gates of one boot of a machine.
pub(crate) struct RunGates {
    machine: String,
    root: PathBuf,
    clock: WallClock,
    way: Arc<Way>,
    monitor: Arc<Monitor>,
    /// Gates let each time begin, whatever is written of it.
    forget: bool,
    power: u64,
    starts: AtomicU64,
    /// By unit.
    running: Mutex<BTreeMap<String, GatedStart>>,
}

impl RunGates {
    pub(crate) fn new(
        machine: &str,
        root: &Path,
        clock: WallClock,
        way: &Arc<Way>,
        monitor: &Arc<Monitor>,
        forget: bool,
    ) -> Self {
        Self {
            machine: machine.to_owned(),
            root: root.to_owned(),
            clock,
            way: Arc::clone(way),
            monitor: Arc::clone(monitor),
            forget,
            power: way.now().power,
            starts: AtomicU64::new(1),
            running: Mutex::default(),
        }
    }

    /// The machine has not lost its power since this boot.
    fn is_on(&self) -> bool {
        let now = self.way.now();
        !now.off && now.power == self.power
    }

    fn seconds(&self) -> i64 {
        (self.clock)().as_second()
    }

    /// The id of the unit's present run.
    pub(crate) fn invocation(&self, unit: &str) -> Option<String> {
        let running = self.running.lock();
        running.get(unit).map(|start| start.invocation.clone())
    }

    /// Whether the unit's present run is tried again if it fails.
    pub(crate) fn has_retries(&self, unit: &str) -> bool {
        let running = self.running.lock();
        running.get(unit).is_some_and(|start| start.has_retries)
    }

    /// `ExecCondition=` of a unit: whether its gate lets a run begin, and has written that.
    fn begins(&self, unit: &str, text: &str) -> bool {
        let files = gate_files(&self.root, text).filter(|_| self.is_on());
        let Some((times, runs)) = files else {
            return false;
        };
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let invocation = format!("{:016x}{number:016x}", self.power);
        let words = UnitWords {
            invocation: invocation.clone(),
            ..UnitWords::default()
        };
        let now = self.seconds();
        let answer = match self.forget {
            true => begin_whatever_is_written(&times, &runs, &words, now),
            false => match try_begin(&times, &runs, &words, now) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(why)) => Err(why.to_owned()),
                Err(error) => Err(error.to_string()),
            },
        };
        let machine = &self.machine;
        if let Err(why) = answer {
            let note = format!("the gate of {unit} on {machine} begins nothing: {why}");
            self.monitor.note(&note);
            return false;
        }
        let text = std::fs::read_to_string(&runs).unwrap_or_default();
        let mut lines = run_lines(&text).into_iter();
        let written = lines.find_map(|line| match line {
            RunLine::Begin {
                scheduled,
                invocation: own,
                ..
            } if own == invocation => Some((scheduled, false)),
            RunLine::Again {
                scheduled,
                invocation: own,
                ..
            } if own == invocation => Some((scheduled, true)),
            _ => None,
        });
        let Some((scheduled, is_further)) = written else {
            let text = format!("the gate of {unit} on {machine} begins what it does not write");
            self.monitor.violated(text);
            return false;
        };
        let start = GatedStart {
            invocation: invocation.clone(),
            runs,
            has_retries: has_retries(&times),
        };
        if self.running.lock().insert(unit.to_owned(), start).is_some() {
            let text = format!("a run of {unit} on {machine} begins beside another one");
            self.monitor.violated(text);
        }
        let start = KeptStart {
            machine: machine.clone(),
            scheduled,
            is_further,
            invocation,
            began: now,
        };
        self.monitor.record_kept_start(unit, start);
        true
    }

    /// `ExecStopPost=` of a unit that a gate let begin; nothing for another one.
    pub(crate) fn ended(&self, unit: &str, end: &ProgramEnd) {
        let Some(start) = self.running.lock().remove(unit) else {
            return;
        };
        if !self.is_on() {
            return;
        }
        let words = UnitWords {
            invocation: start.invocation.clone(),
            result: end.result.to_owned(),
            code: end.code.to_owned(),
            status: end.status.clone(),
        };
        let now = self.seconds();
        match try_end(&start.runs, &words, now) {
            Ok(()) => {
                let invocation = &start.invocation;
                let succeeded = end.succeeded();
                self.monitor
                    .record_kept_end(&self.machine, invocation, now, succeeded);
            }
            Err(error) => {
                let note = format!("the end of {unit} is not written down: {error}");
                self.monitor.note(&note);
            }
        }
    }

    /// Units that were killed with their manager: nothing runs after them.
    pub(crate) fn cut(&self, units: &[String]) {
        let mut running = self.running.lock();
        for unit in units {
            running.remove(unit);
        }
    }

    /// Starts a timer as its user's manager does.
    pub(crate) async fn start_timer(
        self: Arc<Self>,
        fake: Arc<FakeManager>,
        unit: String,
        limit: Duration,
    ) -> Result<JobResult, SystemdError> {
        let is_up = fake.status(&unit).await?.active_state.is_up();
        let text = std::fs::read_to_string(self.root.join(TIMERS).join(&unit));
        // A timer that is not active is not kept loaded.
        if let (false, Ok(text)) = (is_up, text) {
            fake.define(&unit, timer(text));
        }
        let result = fake.start(&unit, limit).await;
        if !is_up && matches!(result, Ok(JobResult::Done)) {
            tokio::spawn(self.run_timer(fake, unit));
        }
        result
    }

    /// Starts the unit of a timer at its times, until the timer is stopped, or its manager or the machine
    /// has ended.
    async fn run_timer(self: Arc<Self>, fake: Arc<FakeManager>, unit: String) {
        let Ok(own) = fake.invocation_id(&unit).await else {
            return;
        };
        // When it began its unit last, and before that its own start.
        let mut last = (self.clock)();
        loop {
            let is_same = fake.invocation_id(&unit).await.is_ok_and(|id| id == own);
            let status = fake.status(&unit).await;
            let is_up = status.is_ok_and(|status| status.active_state.is_up());
            let behaviour = fake.behaviour(&unit).filter(|_| is_same && is_up);
            let Some(behaviour) = behaviour.filter(|_| self.is_on()) else {
                return;
            };
            let spec = match TimerSpec::parse(&behaviour.text) {
                Ok(spec) => spec,
                Err(why) => {
                    self.monitor.violated(format!("{unit}: {why}"));
                    return;
                }
            };
            let now = (self.clock)();
            last = last.min(now);
            let next = spec.times.into_iter().filter(|time| *time > last).min();
            let Some(next) = next else {
                let machine = &self.machine;
                let text = format!("{unit} on {machine} has no times left, and nobody renews it");
                self.monitor.violated(text);
                return;
            };
            let mut pause = next.duration_since(now).unsigned_abs();
            if next <= now {
                pause = ACCURACY;
                let status = fake.status(&spec.unit).await;
                if status.is_ok_and(|status| status.active_state.is_down()) {
                    last = now;
                    tokio::spawn(Arc::clone(&self).start_unit(Arc::clone(&fake), spec.unit));
                }
            }
            sleep(pause.clamp(SHORTEST, ACCURACY)).await;
        }
    }

    /// Starts the unit of a timer if its gate lets it.
    async fn start_unit(self: Arc<Self>, fake: Arc<FakeManager>, unit: String) {
        // The manager looks for a unit that it has not loaded.
        if fake.status(&unit).await.is_err() {
            return;
        }
        let Some(behaviour) = fake.behaviour(&unit) else {
            return;
        };
        // Nothing else happens between the gate's line and the begin of the start.
        if !self.begins(&unit, &behaviour.text) {
            return;
        }
        let started = fake.start(&unit, LIMIT).await;
        match started {
            Ok(JobResult::Done) => attend(self, fake, unit).await,
            _ => self.ended(&unit, &ProgramEnd::stopped()),
        }
    }
}

fn has_retries(times: &Path) -> bool {
    let text = std::fs::read_to_string(times).unwrap_or_default();
    RunTable::parse(&text).is_some_and(|table| table.retries > 0)
}

/// A gate that looks neither at `handled` nor at the lines of earlier runs.
fn begin_whatever_is_written(
    times: &Path,
    runs: &Path,
    words: &UnitWords,
    now: i64,
) -> Result<(), String> {
    let text = std::fs::read_to_string(times).map_err(|error| error.to_string())?;
    let table = RunTable::parse(&text).ok_or("the scheduled times are malformed")?;
    let table = RunTable {
        handled: i64::MIN,
        ..table
    };
    let scheduled = match gate_verdict(&table, &[], now) {
        GateVerdict::Begin(scheduled) => scheduled,
        GateVerdict::Again(_) | GateVerdict::Skip(_) => return Err("it is skipped".to_owned()),
        GateVerdict::Refuse(why) => return Err(why.to_owned()),
    };
    let line = RunLine::Begin {
        scheduled,
        at: now,
        invocation: words.invocation.clone(),
    };
    let before = std::fs::read_to_string(runs).map_err(|error| error.to_string())?;
    std::fs::write(runs, before + &line.text()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_with_a_line_that_the_fake_does_not_know_is_refused() {
        let text = "# Written by KAT\n[Unit]\nDescription=x\n\n[X-KAT]\nSchema=1\n\n[Timer]\nUnit=kat-a.service\nAccuracySec=1s\nOnCalendar=2026-01-01 00:01:00 UTC\n";
        let spec = TimerSpec::parse(text).unwrap();
        let time: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(spec.unit, "kat-a.service");
        assert_eq!(spec.times, [time]);
        for line in [
            "Persistent=yes",
            "AccuracySec=1min",
            "OnCalendar=hourly",
            "OnBootSec=1",
        ] {
            let error = TimerSpec::parse(&format!("{text}{line}\n")).unwrap_err();
            assert!(error.contains(line), "{error}");
        }
    }

    #[test]
    fn the_gate_of_a_unit_has_its_files_below_the_root_of_its_machine() {
        let text = "[Service]\nExecCondition=/usr/libexec/kat/kat-net run-gate begin /var/a.times /var/runs/a\nRestart=no\n";
        let (times, runs) = gate_files(Path::new("/tmp/n1"), text).unwrap();
        assert_eq!(times, Path::new("/tmp/n1/var/a.times"));
        assert_eq!(runs, Path::new("/tmp/n1/var/runs/a"));
        assert!(has_gate(text));
    }
}
