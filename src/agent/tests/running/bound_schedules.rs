//! Schedules that the machine keeps by itself.

use jiff::{SignedDuration, Timestamp};

use rustix::fs::FlockOperation;

use super::*;
use crate::{tests::hung_disk::HungDisk, worker::unit_state::unit_files::UnitFolder};
use kat_systemd::UnitManager;
use kat_types::{
    api::BoundReport,
    assignment::{AssignedVolume, BoundSchedule},
    machine::bound_runs::{RUNS_LIMIT, RunTable},
    resource::{CatchUp, VolumeMount},
};

/// A Job with a time each minute, all of which until ten minutes ago are decided.
fn kept() -> Assignment {
    let mut job = with_policy(assignment(0, "dump"), RestartCondition::Never);
    job.workload_type = WorkloadType::Job;
    job.bound = Some(BoundSchedule {
        schedule: "* * * * *".to_owned(),
        time_zone: "UTC".to_owned(),
        handled: minutes_ago(10),
        ..BoundSchedule::default()
    });
    job
}

/// The full minute so many minutes ago.
fn minutes_ago(minutes: i64) -> Timestamp {
    let now = Timestamp::now().as_second();
    let minute = Timestamp::from_second(now - now % 60).unwrap();
    minute - SignedDuration::from_mins(minutes)
}

fn closed(job: &Assignment) -> Assignment {
    let mut closed = job.clone();
    closed.bound.as_mut().unwrap().closed = true;
    closed
}

impl Bench {
    fn timer(&self, job: &Assignment) -> PathBuf {
        let timer = job.unit().replace(".service", ".timer");
        self.root.path().join("run/systemd/user").join(timer)
    }

    fn bound_report(&self, job: &Assignment) -> BoundReport {
        self.report(&job.instance).unwrap().bound.unwrap()
    }

    /// Writes the file in which the gate writes the runs.
    fn write_runs(&self, job: &Assignment, text: &str) {
        let path = self.runs_file(job);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn runs_file(&self, job: &Assignment) -> PathBuf {
        let folder = self.root.path().join("var/lib/kat/job-runs");
        folder.join(job.user.uid.to_string()).join(&job.instance)
    }

    fn table(&self, job: &Assignment) -> RunTable {
        let name = job.unit().replace(".service", ".times");
        let text = std::fs::read_to_string(self.units(job).join(name)).unwrap();
        RunTable::parse(&text).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_keeps_a_schedule_starts_its_timer_and_not_its_program() {
    let bench = Bench::new();
    let job = kept();
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    let (phase, reason, message) = bench.said(&job.instance);
    assert_eq!((phase, reason.as_str()), (InstancePhase::Scheduled, ""));
    assert!(message.starts_with("the next run is at "), "{message}");
    let timer = job.unit().replace(".service", ".timer");
    assert_eq!(bench.calls(&job, &format!("start {timer}")), 1);
    assert_eq!(bench.calls(&job, &format!("start {}", job.unit())), 0);
    let text = std::fs::read_to_string(bench.timer(&job)).unwrap();
    assert!(text.matches("OnCalendar=").count() >= 64, "{text}");
    let table = job.unit().replace(".service", ".times");
    assert!(bench.units(&job).join(table).exists());
    assert!(!bench.bound_report(&job).idle);
}

#[tokio::test(start_paused = true)]
async fn a_schedule_that_is_taken_back_loses_its_timer_before_it_is_idle() {
    let bench = Bench::new();
    let job = kept();
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    bench.list(true, &[closed(&job)]);
    bench.later(Duration::from_secs(60)).await;
    assert!(!bench.timer(&job).exists());
    assert!(bench.bound_report(&job).idle);
    bench.list(true, &[stopped(&closed(&job))]);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&job.instance).0, InstancePhase::Stopped);
    assert!(bench.bound_report(&job).idle);
    let table = job.unit().replace(".service", ".times");
    assert!(!bench.units(&job).join(table).exists());
    bench.list(true, &[]);
    bench.later(Duration::from_secs(60)).await;
    assert!(
        !bench
            .root
            .path()
            .join("var/lib/kat/job-runs/20000/dump-aaaaa")
            .exists()
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_gate_wrote_is_reported_and_a_run_that_was_cut_is_ended() {
    let bench = Bench::new();
    let job = kept();
    let (first, second) = (minutes_ago(8), minutes_ago(6));
    let text = format!(
        "begin {0} {0} a\nend a {0} exit-code exited 3\nbegin {1} {1} b\n",
        first.as_second(),
        second.as_second()
    );
    bench.write_runs(&job, &text);
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    let report = bench.bound_report(&job);
    let runs: Vec<_> = report.runs.iter().map(|run| run.scheduled).collect();
    assert_eq!(runs, [first, second]);
    let ends = report.runs.iter().filter_map(|run| run.end.as_ref());
    let ends: Vec<_> = ends
        .map(|end| (end.exit_code, end.reason.as_str()))
        .collect();
    assert_eq!(ends, [(Some(3), "ProgramFailed"), (None, "Interrupted")]);
    // The others were missed, until those that may still begin.
    assert!(report.handled >= minutes_ago(5), "{report:?}");
    assert!(report.skips >= 3, "{report:?}");
    assert_eq!(report.from, job.bound.as_ref().unwrap().handled);
}

/// Such a Job with two retries, and the lines of a run of it that has just failed.
fn with_failed_run() -> (Assignment, String, Timestamp) {
    let mut job = kept();
    job.bound.as_mut().unwrap().backoff_limit = 2;
    let scheduled = minutes_ago(1);
    let text = format!(
        "begin {0} {0} a\nend a {1} exit-code exited 3\n",
        scheduled.as_second(),
        Timestamp::now().as_second()
    );
    (job, text, scheduled)
}

#[tokio::test(start_paused = true)]
async fn the_timer_starts_a_run_again_that_failed_and_the_leader_learns_that_it_is_not_over() {
    let bench = Bench::new();
    let (job, text, scheduled) = with_failed_run();
    bench.write_runs(&job, &text);
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    let table = bench.table(&job);
    assert!(table.handled < scheduled.as_second());
    let retry = Timestamp::from_second(table.extra_start.unwrap()).unwrap();
    assert!(retry >= scheduled + SignedDuration::from_secs(10));
    let line = retry
        .strftime("OnCalendar=%Y-%m-%d %H:%M:%S UTC")
        .to_string();
    let timer = std::fs::read_to_string(bench.timer(&job)).unwrap();
    assert!(timer.contains(&line), "{timer}");
    let message = bench.said(&job.instance).2;
    let expected = "its last run failed and is tried again at ";
    assert!(message.starts_with(expected), "{message}");
    let report = bench.bound_report(&job);
    let last = report.runs.last().unwrap();
    assert_eq!((last.scheduled, last.failed.len()), (scheduled, 1));
    assert!(last.paused && last.end.is_none());
    // Taken back, it has no further attempt.
    bench.list(true, &[closed(&job)]);
    bench.later(Duration::from_secs(60)).await;
    let report = bench.bound_report(&job);
    assert!(report.idle);
    let last = report.runs.last().unwrap();
    assert!(last.failed.is_empty() && last.end.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_further_attempt_is_stopped_at_the_deadline_of_its_run_and_the_first_by_systemd() {
    let bench = Bench::new();
    let (mut job, text, scheduled) = with_failed_run();
    job.bound.as_mut().unwrap().deadline_seconds = Some(30);
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    let first = format!("begin {0} {0} a\n", scheduled.as_second());
    bench.write_runs(&job, &first);
    let manager = bench.manager(&job);
    let started = manager.start(&job.unit(), Duration::from_secs(10)).await;
    started.unwrap();
    bench.later(Duration::from_secs(60)).await;
    let stop = format!("stop {}", job.unit());
    assert_eq!(bench.calls(&job, &stop), 0);
    bench.write_runs(
        &job,
        &format!("{text}again {0} {0} b\n", scheduled.as_second()),
    );
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.calls(&job, &stop), 1);
    assert_eq!(bench.said(&job.instance).0, InstancePhase::Scheduled);
}

#[tokio::test(start_paused = true)]
async fn the_timer_starts_the_newest_of_the_times_that_passed_while_the_machine_was_off() {
    let bench = Bench::new();
    let mut job = kept();
    let newest = minutes_ago(10);
    let bound = job.bound.as_mut().unwrap();
    bound.schedule = format!("{} * * * *", newest.as_second() / 60 % 60);
    bound.catch_up = Some(CatchUp::Last);
    bound.handled = newest - SignedDuration::from_hours(24);
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    // As of a machine that was off for a day.
    let before = RunTable {
        handled: newest.as_second() - 24 * 3600,
        late: 120,
        ..RunTable::default()
    };
    let name = job.unit().replace(".service", ".times");
    std::fs::write(bench.units(&job).join(name), before.text()).unwrap();
    bench.later(Duration::from_secs(60)).await;
    let table = bench.table(&job);
    let missed: Vec<_> = table.missed.iter().map(|one| one.scheduled).collect();
    assert_eq!(missed, [newest.as_second()]);
    let start = Timestamp::from_second(table.extra_start.unwrap()).unwrap();
    let line = start
        .strftime("OnCalendar=%Y-%m-%d %H:%M:%S UTC")
        .to_string();
    let timer = std::fs::read_to_string(bench.timer(&job)).unwrap();
    assert!(timer.contains(&line), "{timer}");
    let message = bench.said(&job.instance).2;
    let expected = "a run that was missed begins at ";
    assert!(message.starts_with(expected), "{message}");
    let report = bench.bound_report(&job);
    assert_eq!((report.skips, report.runs.len()), (23, 0));
    assert!(report.handled < newest);
}

/// After a boot the instance is held back until the store has confirmed the list.
#[tokio::test(start_paused = true)]
async fn a_machine_that_first_waits_for_its_list_makes_up_for_the_time_that_it_missed() {
    let bench = Bench::new();
    let mut job = kept();
    let newest = minutes_ago(10);
    let before = newest - SignedDuration::from_hours(24);
    let bound = job.bound.as_mut().unwrap();
    bound.schedule = format!("{} * * * *", newest.as_second() / 60 % 60);
    bound.catch_up = Some(CatchUp::Last);
    bound.handled = before;
    let run = format!(
        "begin {0} {0} a\nend a {0} success exited 0\n",
        before.as_second()
    );
    bench.write_runs(&job, &run);
    // As of a machine that was off for a day.
    let table = RunTable {
        handled: before.as_second(),
        late: 120,
        ..RunTable::default()
    };
    let file = |kind: &str| bench.units(&job).join(job.unit().replace("service", kind));
    std::fs::create_dir_all(bench.units(&job)).unwrap();
    std::fs::write(file("times"), table.text()).unwrap();
    bench.list(true, std::slice::from_ref(&job));
    bench.lists.send_modify(|list| {
        list.fenced = Arc::new(BTreeSet::from([job.instance.clone()]));
    });
    bench.later(Duration::from_secs(60)).await;
    assert!(!file("container").exists() && !bench.timer(&job).exists());
    assert_eq!(bench.bound_report(&job).handled, before);
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    let missed = bench.table(&job).missed;
    let missed: Vec<_> = missed.iter().map(|one| one.scheduled).collect();
    assert_eq!(missed, [newest.as_second()]);
    assert!(bench.timer(&job).exists());
}

#[test]
fn the_table_of_an_instance_that_is_gone_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let units = folder.path().join("var/lib/kat/units/20000");
    std::fs::create_dir_all(&units).unwrap();
    let [kept, gone, other] = ["kat-default-a.times", "kat-default-b.times", "b.times"];
    for name in [kept, gone, other] {
        std::fs::write(units.join(name), "").unwrap();
    }
    let here = BTreeSet::from(["kat-default-a.service".to_owned()]);
    let unit_folder = UnitFolder::new(&Root::new(folder.path()), 20_000);
    unit_folder.keep_tables(&here).unwrap();
    let left = [kept, gone, other].map(|name| units.join(name).exists());
    assert_eq!(left, [true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_schedule_is_given_back_with_a_run_after_a_time_that_nothing_began() {
    let bench = Bench::new();
    let job = kept();
    let newest = minutes_ago(0);
    // The minute before has no line, and may still begin.
    let text = format!(
        "begin {0} {0} a\nend a {0} success exited 0\n",
        newest.as_second()
    );
    bench.write_runs(&job, &text);
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    bench.list(true, &[closed(&job)]);
    bench.later(Duration::from_secs(60)).await;
    let report = bench.bound_report(&job);
    let runs: Vec<_> = report.runs.iter().map(|run| run.scheduled).collect();
    assert_eq!(runs, [newest]);
    assert!(report.handled >= newest, "{report:?}");
    assert!(report.idle);
}

#[tokio::test(start_paused = true)]
async fn a_file_of_runs_that_is_too_large_is_replaced_and_the_schedule_continues() {
    let bench = Bench::new();
    let job = kept();
    let length = usize::try_from(RUNS_LIMIT).unwrap() + 1;
    let before = minutes_ago(0);
    bench.write_runs(&job, &"\n".repeat(length));
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&job.instance).0, InstancePhase::Scheduled);
    assert_eq!(std::fs::read(bench.runs_file(&job)).unwrap(), b"");
    // Its times may have had a run.
    assert!(bench.table(&job).handled >= before.as_second());
    assert!(bench.bound_report(&job).handled >= before);
    bench.list(true, &[closed(&job)]);
    bench.later(Duration::from_secs(60)).await;
    assert!(bench.bound_report(&job).idle);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_its_user_has_filled_with_times_to_come_is_replaced() {
    let bench = Bench::new();
    let job = kept();
    let first = minutes_ago(-600).as_second();
    let mut text = String::new();
    for minute in 0.. {
        let scheduled = first + 60 * minute;
        let lines = format!("begin {scheduled} 1 a{minute}\nend a{minute} 1 success exited 0\n");
        if u64::try_from(text.len() + lines.len()).unwrap() > RUNS_LIMIT {
            break;
        }
        text.push_str(&lines);
    }
    bench.write_runs(&job, &text);
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(120)).await;
    assert_eq!(std::fs::read(bench.runs_file(&job)).unwrap(), b"");
    let table = bench.table(&job);
    assert!(table.handled >= minutes_ago(1).as_second());
    assert!(
        table
            .times
            .iter()
            .any(|time| time.scheduled > table.handled)
    );
}

#[tokio::test(start_paused = true)]
async fn no_run_begins_beside_processes_of_the_last_one() {
    let bench = Bench::new();
    let job = kept();
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    assert!(!bench.table(&job).times.is_empty());
    let uid = job.user.uid;
    let group = format!("user.slice/user-{uid}.slice/user@{uid}.service/app.slice");
    let events = bench.root.path().join("sys/fs/cgroup").join(group);
    let events = events.join(job.unit()).join("cgroup.events");
    std::fs::create_dir_all(events.parent().unwrap()).unwrap();
    std::fs::write(&events, "populated 1\nfrozen 0\n").unwrap();
    bench.later(Duration::from_secs(60)).await;
    assert!(bench.table(&job).times.is_empty());
    assert_eq!(bench.said(&job.instance).1, "StopNotEnding");
    std::fs::write(&events, "populated 0\nfrozen 0\n").unwrap();
    bench.later(Duration::from_secs(60)).await;
    assert!(!bench.table(&job).times.is_empty());
    assert_eq!(bench.said(&job.instance).1, "");
}

#[tokio::test(start_paused = true)]
async fn times_stay_while_a_disk_is_asked_and_go_when_it_does_not_answer() {
    let bench = Bench::new();
    let mut job = kept();
    job.container.volume_mounts = vec![VolumeMount {
        name: "data".to_owned(),
        mount_path: "/data".to_owned(),
        sub_path: None,
        read_only: false,
    }];
    let definition = serde_json::json!({"name": "data", "simpleClusterStorage": {}});
    job.volumes = vec![AssignedVolume {
        definition: serde_json::from_value(definition).unwrap(),
        folder: Some("default/dump/data".to_owned()),
        made: false,
    }];
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    assert!(!bench.table(&job).times.is_empty());
    let point = bench.root.path().join("var/lib/kat/volumes/default/dump");
    let disk = HungDisk::mount(&point);
    let mut is_told = false;
    for _ in 0..120 {
        bench.later(Duration::from_millis(500)).await;
        is_told = bench.said(&job.instance).1 == "DiskNotAnswering";
        if is_told {
            break;
        }
        assert!(!bench.table(&job).times.is_empty());
    }
    assert!(is_told);
    assert!(bench.table(&job).times.is_empty());
    drop(disk);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_holds_the_lock_of_the_runs_keeps_no_machine_from_giving_the_schedule_back()
{
    let bench = Bench::new();
    let job = kept();
    let text = format!("begin {0} {0} a\n", minutes_ago(8).as_second());
    bench.write_runs(&job, &text);
    let held = std::fs::File::open(bench.runs_file(&job)).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(5)).await;
    assert_ne!(bench.said(&job.instance).1, "StartFailed");
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&job.instance).1, "StartFailed");
    bench.list(true, &[stopped(&closed(&job))]);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&job.instance).0, InstancePhase::Stopped);
    let report = bench.bound_report(&job);
    assert!(report.idle, "{report:?}");
    let end = report.runs[0].end.as_ref().unwrap();
    assert_eq!(end.reason, "Interrupted");
}

#[tokio::test(start_paused = true)]
async fn a_schedule_whose_times_systemd_does_not_have_gets_no_timer() {
    let bench = Bench::new();
    let mut job = kept();
    // The last of its next 64 times are after 2199.
    job.bound.as_mut().unwrap().schedule = "0 0 29 2 *".to_owned();
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&job.instance).0, InstancePhase::Scheduled);
    let text = std::fs::read_to_string(bench.timer(&job)).unwrap();
    assert!(text.contains("OnCalendar=2028-02-29"), "{text}");
    assert!(!text.contains("OnCalendar=22"), "{text}");
    job.bound.as_mut().unwrap().schedule = "0 0 30 2 *".to_owned();
    bench.list(true, std::slice::from_ref(&job));
    bench.later(Duration::from_secs(60)).await;
    assert!(!bench.timer(&job).exists());
    assert_eq!(bench.said(&job.instance).1, "");
}
