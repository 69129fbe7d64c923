//! Instances with `onPartition: stop` on a machine that reaches no leader.

use jiff::Timestamp;

use super::*;
use crate::desired_state::{
    fence::{FenceMemory, LIST_AGE, PartitionFence},
    settings::FollowedSettings,
};
use kat_types::{
    assignment::{AssignedRun, BOUND_PER_NODE_SCHEMA, BoundSchedule},
    machine::fence::{BootClock, BootTime, JOB_START_CONTACT, RunDeadlines},
    resource::{ClusterSpec, OnPartition},
};

const TIMEOUT: Duration = Duration::from_secs(60);

fn fenced(index: u32, name: &str) -> Assignment {
    let container = Container {
        termination_grace_seconds: 10,
        ..Container::default()
    };
    Assignment {
        schema: 2,
        on_partition: OnPartition::Stop,
        container,
        ..assignment(index, name)
    }
}

fn settings(timeout: Duration) -> FollowedSettings {
    let spec = ClusterSpec {
        node_loss_timeout_seconds: timeout.as_secs().try_into().unwrap(),
        ..ClusterSpec::default()
    };
    FollowedSettings::new(&spec, BootTime(0))
}

/// A bench whose list passes through a `Fence`, as in the agent.
struct Cut {
    bench: Bench,
    lists: watch::Sender<DesiredList>,
    clock: BootClock,
    reached: watch::Sender<Option<BootTime>>,
    settings: FollowedSettings,
    fence: JoinHandle<()>,
}

impl Cut {
    /// A machine that reaches a leader now.
    fn reached() -> Self {
        let clock = boot_clock(Instant::now());
        Self::new(Some(clock()), None, clock)
    }

    fn new(reached: Option<BootTime>, memory: Option<FenceMemory>, clock: BootClock) -> Self {
        Self::with_settings(reached, memory, clock, settings(TIMEOUT))
    }

    fn with_settings(
        reached: Option<BootTime>,
        memory: Option<FenceMemory>,
        clock: BootClock,
        settings: FollowedSettings,
    ) -> Self {
        let bench = Bench::new();
        let lists = watch::Sender::new(DesiredList::default());
        let reached = watch::Sender::new(reached);
        let fence = PartitionFence {
            settings: settings.clone(),
            list_age: LIST_AGE,
            lists: lists.subscribe(),
            clock: Arc::clone(&clock),
            reached: reached.subscribe(),
            fenced: bench.lists.clone(),
            memory,
            job_starts: bench.tools.job_starts.clone(),
        };
        let fence = tokio::spawn(fence.run(bench.cancel.clone()));
        Self {
            bench,
            lists,
            clock,
            reached,
            settings,
            fence,
        }
    }

    fn list(&self, current: bool, assignments: &[Assignment]) {
        self.list_read_at(Instant::now(), current, assignments);
    }

    fn list_read_at(&self, read_at: Instant, current: bool, assignments: &[Assignment]) {
        let assignments = assignments.iter();
        let desired = DesiredState {
            schema: 1,
            revision: 1,
            assignments: assignments
                .map(|one| (one.instance.clone(), one.clone()))
                .collect(),
            ..DesiredState::default()
        };
        self.lists.send_replace(DesiredList {
            known: true,
            confirmed: true,
            current,
            read_at: Some(read_at),
            desired: Arc::new(desired),
            ..DesiredList::default()
        });
    }

    fn reach(&self) {
        self.reached.send_replace(Some((self.clock)()));
    }

    fn runs(&self, assignment: &Assignment) -> bool {
        let unit = format!("kat-default-{}.container", assignment.instance);
        let running = self.bench.said(&assignment.instance).0 == InstancePhase::Running;
        assert_eq!(running, self.bench.units(assignment).join(unit).exists());
        running
    }
}

fn memory_in(folder: &Path) -> FenceMemory {
    FenceMemory {
        path: folder.join("reached"),
        deadlines: folder.join("deadlines.json"),
    }
}

/// The deadline that `kat-net` reads for an instance.
fn deadline_in(folder: &Path, instance: &str) -> Option<BootTime> {
    let text = std::fs::read(folder.join("deadlines.json")).ok()?;
    let read: RunDeadlines = serde_json::from_slice(&text).unwrap();
    read.deadlines.get(instance).copied()
}

#[tokio::test(start_paused = true)]
async fn an_instance_with_on_partition_stop_ends_before_the_node_loss_timeout() {
    let cut = Cut::reached();
    let (web, plain) = (fenced(0, "web"), assignment(1, "plain"));
    cut.list(true, &[web.clone(), plain.clone()]);
    cut.bench.soon().await;
    assert!(cut.runs(&web) && cut.runs(&plain));
    // The instance runs while the leader accepts reports.
    for _ in 0..20 {
        cut.reach();
        cut.bench.later(Duration::from_secs(15)).await;
        assert!(cut.runs(&web));
    }
    cut.reach();
    cut.list(false, &[web.clone(), plain.clone()]);
    cut.bench.later(Duration::from_secs(47)).await;
    assert!(cut.runs(&web));
    // The fence is 12 s before the timeout: 10 s of grace period and 2 s of reserve.
    cut.bench.later(Duration::from_millis(1500)).await;
    assert!(!cut.runs(&web) && cut.runs(&plain));
    let (phase, reason, message) = cut.bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Scheduled, "CutOff")
    );
    assert!(message.contains("reaches no leader"), "{message}");
    assert_eq!(cut.bench.calls(&web, "stop"), 1);
    assert!(
        cut.bench.accounts.find(web.user.uid).is_some(),
        "its user stays"
    );
    cut.bench.later(Duration::from_secs(1000)).await;
    assert!(!cut.runs(&web));
    // A leader is reachable again, but the list may have changed meanwhile.
    cut.reach();
    cut.bench.soon().await;
    assert!(!cut.runs(&web));
    cut.list(true, &[web.clone(), plain.clone()]);
    cut.bench.soon().await;
    assert!(cut.runs(&web) && cut.runs(&plain));
    assert_eq!(cut.bench.calls(&plain, "stop"), 0);
    cut.bench.cancel.cancel();
    cut.fence.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_moved_meanwhile_does_not_start_again() {
    let cut = Cut::reached();
    let web = fenced(0, "web");
    cut.list(true, std::slice::from_ref(&web));
    cut.bench.soon().await;
    cut.list(false, std::slice::from_ref(&web));
    cut.bench.later(TIMEOUT).await;
    assert!(!cut.runs(&web));
    let starts = cut.bench.calls(&web, "start");
    cut.reach();
    cut.bench.soon().await;
    cut.list(true, &[stopped(&web)]);
    cut.bench.later(Duration::from_secs(100)).await;
    assert_eq!(cut.bench.calls(&web, "start"), starts);
    assert_eq!(
        cut.bench.said(&web.instance).1,
        "",
        "stopped as the leader asks"
    );
}

/// A restarted agent counts from the last contact of the process before it. A booted machine has no
/// last contact.
#[tokio::test(start_paused = true)]
async fn the_last_contact_survives_a_restart_of_the_agent_but_not_a_boot() {
    let folder = tempfile::tempdir().unwrap();
    let clock = boot_clock(Instant::now());
    let memory = || memory_in(folder.path());
    assert_eq!(memory().recall(clock()), None);
    let web = fenced(0, "web");
    let booted = Cut::new(memory().recall(clock()), Some(memory()), clock.clone());
    booted.list(true, std::slice::from_ref(&web));
    booted.bench.later(Duration::from_secs(5)).await;
    assert!(!booted.runs(&web));
    booted.reach();
    // The present list may be older than the report.
    booted.bench.later(Duration::from_secs(6)).await;
    assert!(!booted.runs(&web));
    booted.bench.later(Duration::from_millis(1500)).await;
    assert!(booted.runs(&web));
    booted.bench.later(Duration::from_secs(36)).await;
    booted.bench.cancel.cancel();
    booted.fence.await.unwrap();

    let again = Cut::new(memory().recall(clock()), Some(memory()), clock.clone());
    again.list(true, std::slice::from_ref(&web));
    again.bench.later(Duration::from_secs(3)).await;
    assert!(again.runs(&web));
    again.bench.later(Duration::from_secs(3)).await;
    assert!(!again.runs(&web), "48 s after the leader was reached");
}

/// The agent restarts after its first report since the cut, before the store has confirmed the
/// list. The list on the disk may still name instances that were moved meanwhile.
#[tokio::test(start_paused = true)]
async fn another_agent_waits_for_the_list_as_the_one_before_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let clock = boot_clock(Instant::now());
    let memory = || memory_in(folder.path());
    let web = fenced(0, "web");
    let cut = Cut::new(Some(clock()), Some(memory()), clock.clone());
    cut.list(true, std::slice::from_ref(&web));
    cut.bench.soon().await;
    assert!(cut.runs(&web));
    cut.list(false, std::slice::from_ref(&web));
    cut.bench.later(TIMEOUT).await;
    cut.reach();
    cut.bench.soon().await;
    assert!(!cut.runs(&web));
    cut.bench.cancel.cancel();
    cut.fence.await.unwrap();

    let again = Cut::new(memory().recall(clock()), Some(memory()), clock.clone());
    again.list(false, std::slice::from_ref(&web));
    again.bench.later(Duration::from_secs(3)).await;
    again.reach();
    again.bench.later(Duration::from_secs(30)).await;
    assert_eq!(again.bench.calls(&web, "start"), 0, "from the disk");
    again.list(true, &[stopped(&web)]);
    again.bench.later(Duration::from_secs(30)).await;
    assert_eq!(again.bench.calls(&web, "start"), 0);
}

/// The leader accepts reports again, while the watch of the store has not yet noticed the cut.
#[tokio::test(start_paused = true)]
async fn a_list_that_may_be_of_before_the_cut_starts_nothing() {
    let cut = Cut::reached();
    let (web, plain) = (fenced(0, "web"), assignment(1, "plain"));
    cut.list(true, std::slice::from_ref(&web));
    cut.bench.later(TIMEOUT).await;
    assert!(!cut.runs(&web));
    let starts = cut.bench.calls(&web, "start");
    cut.reach();
    cut.bench.later(Duration::from_secs(4)).await;
    cut.list(false, std::slice::from_ref(&web));
    cut.bench.later(Duration::from_secs(30)).await;
    assert_eq!(cut.bench.calls(&web, "start"), starts);
    cut.reach();
    cut.list(true, &[web.clone(), plain]);
    cut.bench.soon().await;
    assert!(cut.runs(&web), "the list came after a report");
}

/// The stream is slow: it delivers a list of before the report after it.
#[tokio::test(start_paused = true)]
async fn a_list_that_was_read_before_the_report_starts_nothing_at_once() {
    let cut = Cut::reached();
    let (web, plain) = (fenced(0, "web"), assignment(1, "plain"));
    cut.list(true, std::slice::from_ref(&web));
    cut.bench.later(TIMEOUT).await;
    assert!(!cut.runs(&web));
    let before = Instant::now();
    cut.bench.later(Duration::from_secs(1)).await;
    cut.reach();
    cut.bench.soon().await;
    cut.list_read_at(before, true, &[web.clone(), plain.clone()]);
    cut.bench.later(Duration::from_secs(5)).await;
    assert!(!cut.runs(&web) && cut.runs(&plain));
    cut.list_read_at(Instant::now(), true, &[web.clone(), plain]);
    cut.bench.soon().await;
    assert!(cut.runs(&web));
}

/// The fence also applies during a slow start.
#[tokio::test(start_paused = true)]
async fn what_is_still_starting_is_stopped_too() {
    let cut = Cut::reached();
    let web = fenced(0, "web");
    let slow = UnitBehaviour {
        start_takes: Duration::from_secs(75),
        ..UnitBehaviour::default()
    };
    cut.bench.behave(&web.unit(), Some(slow));
    cut.list(true, std::slice::from_ref(&web));
    cut.bench.later(Duration::from_secs(40)).await;
    assert_eq!(cut.bench.said(&web.instance).0, InstancePhase::Starting);
    cut.bench.later(Duration::from_secs(19)).await;
    assert!(
        cut.bench.manager(&web).live().is_empty(),
        "stopped before the timeout"
    );
    assert_eq!(cut.bench.calls(&web, "stop"), 1);
    // The fake's stop job takes as long as the start would have.
    cut.bench.later(Duration::from_secs(20)).await;
    assert_eq!(cut.bench.said(&web.instance).1, "CutOff");
}

#[tokio::test(start_paused = true)]
async fn kat_net_reads_a_deadline_that_each_report_renews_and_no_stopped_instance_gets_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let clock = boot_clock(Instant::now());
    let memory = || memory_in(folder.path());
    let cut = Cut::new(Some(clock()), Some(memory()), clock.clone());
    let (web, plain) = (fenced(0, "web"), assignment(1, "plain"));
    let deadline = || deadline_in(folder.path(), &web.instance);
    cut.list(true, &[web.clone(), plain.clone()]);
    cut.bench.later(Duration::from_secs(5)).await;
    cut.reach();
    let reached = clock();
    cut.bench.soon().await;
    // A second before the timeout, so 11 s after the agent's own stop.
    let end = reached.after(Duration::from_secs(59));
    assert_eq!(deadline(), Some(end));
    assert_eq!(deadline_in(folder.path(), &plain.instance), None);
    cut.bench.later(TIMEOUT).await;
    assert!(!cut.runs(&web));
    assert_eq!(deadline(), Some(end));
    // The leader is back, but the instance waits for the list.
    cut.list(false, std::slice::from_ref(&web));
    cut.reach();
    cut.bench.soon().await;
    assert_eq!(deadline(), Some(end));
    // So it does in the next process of the agent.
    cut.bench.cancel.cancel();
    cut.fence.await.unwrap();
    let again = Cut::new(memory().recall(clock()), Some(memory()), clock.clone());
    again.list(false, std::slice::from_ref(&web));
    again.reach();
    again.bench.soon().await;
    assert_eq!(deadline(), Some(end));
    again.list(true, std::slice::from_ref(&web));
    again.bench.soon().await;
    assert!(again.runs(&web));
    assert!(deadline() > Some(end));
    again.list(true, &[plain]);
    again.bench.soon().await;
    assert_eq!(deadline(), None, "it is not on this machine any more");
}

/// A signal stopped the agent, or the machine was suspended. The first thing that the agent notices
/// is that a leader accepts reports.
#[tokio::test(start_paused = true)]
async fn an_agent_that_slept_through_the_timeout_waits_for_the_list() {
    let folder = tempfile::tempdir().unwrap();
    let asleep = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (awake, slept) = (boot_clock(Instant::now()), Arc::clone(&asleep));
    let clock: BootClock = Arc::new(move || {
        awake().after(Duration::from_secs(
            slept.load(std::sync::atomic::Ordering::Relaxed),
        ))
    });
    let memory = memory_in(folder.path());
    let cut = Cut::new(Some(clock()), Some(memory), clock.clone());
    let (web, plain) = (fenced(0, "web"), assignment(1, "plain"));
    cut.list(true, &[web.clone(), plain.clone()]);
    cut.bench.soon().await;
    assert!(cut.runs(&web) && cut.runs(&plain));
    let before = deadline_in(folder.path(), &web.instance);
    asleep.store(600, std::sync::atomic::Ordering::Relaxed);
    cut.reach();
    cut.bench.soon().await;
    assert!(!cut.runs(&web) && cut.runs(&plain));
    assert_eq!(cut.bench.said(&web.instance).1, "CutOff");
    assert_eq!(deadline_in(folder.path(), &web.instance), before);
    cut.list(true, &[web.clone(), plain]);
    cut.bench.soon().await;
    assert!(cut.runs(&web));
    assert!(deadline_in(folder.path(), &web.instance) > Some(clock()));
}

/// The agent finds a killed unit, for example because it was dead and a leader answers at once.
#[tokio::test(start_paused = true)]
async fn a_program_that_kat_net_killed_starts_again_and_the_kill_is_not_its_own_restart() {
    for condition in [RestartCondition::Never, RestartCondition::MaxCount] {
        let bench = Bench::new();
        let web = with_policy(fenced(0, "web"), condition);
        let unit = web.unit();
        bench.list(true, std::slice::from_ref(&web));
        bench.later(Duration::from_secs(5)).await;
        assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
        bench.logs.say_fenced(&unit);
        bench.manager(&web).exits(&unit, 137);
        bench.soon().await;
        if condition != RestartCondition::Never {
            bench.manager(&web).restart_due(&unit);
        }
        bench.later(Duration::from_secs(120)).await;
        let report = bench.report(&web.instance).unwrap();
        let expected = (InstancePhase::Running, 0);
        assert_eq!((report.phase, report.restarts), expected, "{condition:?}");
    }
}

fn with_timeout(seconds: u32) -> ClusterSpec {
    ClusterSpec {
        node_loss_timeout_seconds: seconds,
        ..ClusterSpec::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_longer_time_holds_for_contacts_after_the_machine_has_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let clock = boot_clock(Instant::now());
    let cut = Cut::new(Some(clock()), Some(memory_in(folder.path())), clock);
    let web = fenced(0, "web");
    cut.reach();
    cut.list(true, std::slice::from_ref(&web));
    cut.bench.soon().await;
    let deadline = deadline_in(folder.path(), &web.instance).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let read_at = (cut.clock)();
    cut.settings.take(&with_timeout(120), "c1", &cut.clock);
    cut.bench.soon().await;
    // The last contact was of before, and leaders may have counted with the shorter time.
    assert_eq!(deadline_in(folder.path(), &web.instance), Some(deadline));
    assert!(!cut.settings.is_confirmed());
    assert_eq!(cut.settings.followed().node_loss_timeout_seconds, 120);
    tokio::time::sleep(Duration::from_secs(1)).await;
    cut.reach();
    cut.bench.soon().await;
    let renewed = deadline_in(folder.path(), &web.instance).unwrap();
    assert!(
        renewed.since(read_at) > Duration::from_secs(100),
        "{renewed:?}"
    );
    assert!(cut.settings.is_confirmed());
}

#[tokio::test(start_paused = true)]
async fn a_shorter_time_stops_nothing_and_is_confirmed_once_kat_net_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let clock = boot_clock(Instant::now());
    let cut = Cut::new(Some(clock()), Some(memory_in(folder.path())), clock);
    let web = fenced(0, "web");
    cut.reach();
    cut.list(true, std::slice::from_ref(&web));
    cut.bench.soon().await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    let read_at = (cut.clock)();
    cut.settings.take(&with_timeout(30), "c1", &cut.clock);
    cut.bench.soon().await;
    // The last contact is older than the whole of the new time.
    assert!(cut.runs(&web));
    assert_eq!(cut.settings.followed().change, "");
    cut.reach();
    cut.bench.soon().await;
    assert!(cut.runs(&web));
    let followed = cut.settings.followed();
    assert_eq!(
        (followed.change.as_str(), followed.node_loss_timeout_seconds),
        ("c1", 30)
    );
    let deadline = deadline_in(folder.path(), &web.instance).unwrap();
    assert!(
        deadline.since(read_at) < Duration::from_secs(30),
        "{deadline:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_restarts_counts_its_last_contact_with_the_time_of_that_contact() {
    let folder = tempfile::tempdir().unwrap();
    let clock = boot_clock(Instant::now());
    let web = fenced(0, "web");
    let first = Cut::new(
        Some(clock()),
        Some(memory_in(folder.path())),
        Arc::clone(&clock),
    );
    first.reach();
    first.list(true, std::slice::from_ref(&web));
    first.bench.soon().await;
    let deadline = deadline_in(folder.path(), &web.instance).unwrap();
    first.fence.abort();
    tokio::time::sleep(Duration::from_secs(5)).await;
    // The next process has read a longer time from its disk.
    let memory = memory_in(folder.path());
    let reached = memory.recall(clock());
    assert!(reached.is_some());
    let second = Cut::with_settings(
        reached,
        Some(memory),
        Arc::clone(&clock),
        FollowedSettings::new(&with_timeout(600), clock()),
    );
    second.list(true, std::slice::from_ref(&web));
    second.bench.soon().await;
    assert_eq!(deadline_in(folder.path(), &web.instance), Some(deadline));
}

/// An instance of a Job, whose run had 600 s left when it was placed.
fn dump(index: u32) -> Assignment {
    let dump = with_policy(assignment(index, "dump"), RestartCondition::Never);
    Assignment {
        schema: 9,
        workload_type: WorkloadType::Job,
        run: Some(AssignedRun {
            key: "manual-1".to_owned(),
            number: 1,
            seconds_left: Some(600),
        }),
        ..dump
    }
}

/// The machine lost its power after the placement and before the start. The list of before is on its
/// disk.
#[tokio::test(start_paused = true)]
async fn after_a_boot_an_instance_of_a_job_waits_for_a_leader_and_for_a_list_of_after_that() {
    let folder = tempfile::tempdir().unwrap();
    let clock = boot_clock(Instant::now());
    let memory = memory_in(folder.path());
    let booted = Cut::new(None, Some(memory), clock);
    let (dump, plain) = (dump(0), assignment(1, "plain"));
    let both = [dump.clone(), plain.clone()];
    booted.list(false, &both);
    booted.bench.later(Duration::from_secs(1000)).await;
    assert!(booted.runs(&plain), "a Service starts from the disk");
    let (phase, reason, message) = booted.bench.said(&dump.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Scheduled, "Unconfirmed")
    );
    assert!(message.contains("the run may be over"), "{message}");
    // The store answers before a leader has taken a report.
    booted.list(true, &both);
    booted.bench.later(Duration::from_secs(20)).await;
    assert_eq!(booted.bench.calls(&dump, "start kat-default-dump"), 0);
    // The leader has ended the run meanwhile, which the present list may not have yet.
    booted.reach();
    booted.bench.later(Duration::from_secs(6)).await;
    assert_eq!(booted.bench.calls(&dump, "start kat-default-dump"), 0);
    booted.list(true, &[stopped(&dump), plain]);
    booted.bench.later(Duration::from_secs(100)).await;
    assert_eq!(booted.bench.calls(&dump, "start kat-default-dump"), 0);
    assert_eq!(booted.bench.said(&dump.instance).0, InstancePhase::Stopped);
}

#[tokio::test(start_paused = true)]
async fn after_a_boot_an_instance_of_a_job_whose_run_continues_starts_once_that_is_confirmed() {
    let folder = tempfile::tempdir().unwrap();
    let clock = boot_clock(Instant::now());
    let booted = Cut::new(None, Some(memory_in(folder.path())), clock);
    let dump = dump(0);
    booted.list(false, std::slice::from_ref(&dump));
    booted.bench.later(Duration::from_secs(100)).await;
    assert_eq!(booted.bench.calls(&dump, "start kat-default-dump"), 0);
    booted.reach();
    booted.bench.soon().await;
    booted.list(true, std::slice::from_ref(&dump));
    booted.bench.later(Duration::from_secs(3)).await;
    assert_eq!(booted.bench.calls(&dump, "start kat-default-dump"), 1);
    // What runs is not stopped while the machine is cut off: its unit has its time.
    booted.list(false, std::slice::from_ref(&dump));
    booted.bench.later(Duration::from_secs(300)).await;
    assert_eq!(booted.bench.calls(&dump, "stop"), 0);
    assert_eq!(booted.bench.said(&dump.instance).0, InstancePhase::Running);
}

/// Its times may have been given to the leader since.
#[tokio::test(start_paused = true)]
async fn after_a_boot_a_schedule_without_data_has_no_timer_until_the_list_is_confirmed() {
    let folder = tempfile::tempdir().unwrap();
    let clock = boot_clock(Instant::now());
    let booted = Cut::new(None, Some(memory_in(folder.path())), clock);
    let job = with_policy(assignment(0, "each"), RestartCondition::Never);
    let each = Assignment {
        schema: BOUND_PER_NODE_SCHEMA,
        workload_type: WorkloadType::Job,
        bound: Some(BoundSchedule {
            schedule: "* * * * *".to_owned(),
            time_zone: "UTC".to_owned(),
            handled: Timestamp::now(),
            per_node: true,
            ..BoundSchedule::default()
        }),
        ..job
    };
    assert!(!each.writes_data());
    let timer = each.unit().replace(".service", ".timer");
    let start = format!("start {timer}");
    booted.list(false, std::slice::from_ref(&each));
    booted.bench.later(Duration::from_secs(100)).await;
    assert_eq!(booted.bench.calls(&each, &start), 0);
    let (phase, reason, message) = booted.bench.said(&each.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Scheduled, "Unconfirmed")
    );
    assert!(message.starts_with("it keeps a schedule: "), "{message}");
    booted.list(true, std::slice::from_ref(&each));
    booted.bench.later(Duration::from_secs(60)).await;
    assert_eq!(booted.bench.calls(&each, &start), 1);
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_a_job_starts_only_within_the_time_after_the_last_contact() {
    let cut = Cut::reached();
    let (dump, plain) = (dump(0), assignment(1, "plain"));
    cut.list(true, std::slice::from_ref(&plain));
    cut.bench.soon().await;
    assert!(cut.bench.tools.job_starts.are_allowed());
    tokio::time::sleep(JOB_START_CONTACT).await;
    assert!(!cut.bench.tools.job_starts.are_allowed());
    cut.list(true, &[dump.clone(), plain.clone()]);
    cut.bench.later(Duration::from_secs(5)).await;
    assert_eq!(cut.bench.calls(&dump, "start kat-default-dump"), 0);
    assert_eq!(cut.bench.said(&dump.instance).1, "Unconfirmed");
    // The machine was not lost between two contacts, so the list is new enough.
    cut.reach();
    cut.bench.later(Duration::from_secs(3)).await;
    assert_eq!(cut.bench.calls(&dump, "start kat-default-dump"), 1);
    // After a longer time without a leader the list has to be newer than the contact.
    tokio::time::sleep(TIMEOUT).await;
    cut.reach();
    cut.bench.soon().await;
    assert!(!cut.bench.tools.job_starts.are_allowed());
    cut.list(true, &[dump, plain]);
    cut.bench.soon().await;
    assert!(cut.bench.tools.job_starts.are_allowed());
}
