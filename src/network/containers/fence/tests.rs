//! The fence against real processes.

use std::{
    os::unix::net::UnixDatagram,
    process::{Child, Command},
    sync::atomic::{AtomicU64, Ordering},
};

use super::*;
use kat_daemon::watchdog::LoopPulses;
use kat_types::machine::{
    fence::BootTime,
    network::{INSTANCES_FILE, Instances},
};

const UID: u32 = 20001;
const UNIT: &str = "kat-default-web-ab12c.service";
const SIDECAR: &str = "kat-default-web-ab12c_side-log.service";
const OTHER: &str = "kat-default-web-zz999.service";

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn start() -> Self {
        Self(Command::new("sleep").arg("300").spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().try_into().unwrap()
    }

    /// Waits until it was killed.
    fn ends_killed(mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        self.0.wait().unwrap().signal() == Some(9)
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A machine with a clock of its own, and a table of the processes in each unit.
struct Bench {
    folder: tempfile::TempDir,
    now: Arc<AtomicU64>,
    /// The unit that lists each process, and the one in whose control group it is.
    listed: Arc<Mutex<BTreeMap<i32, (&'static str, &'static str)>>>,
    journal: UnixDatagram,
    files: Arc<StateFiles>,
    fence: Arc<DeadlineFence>,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journal = UnixDatagram::bind(folder.path().join("journal")).unwrap();
        journal.set_nonblocking(true).unwrap();
        let files = StateFiles::open(folder.path());
        let (now, listed) = (Arc::default(), Arc::default());
        let fence = fence(folder.path(), &files, &now, &listed);
        Self {
            folder,
            now,
            listed,
            journal,
            files,
            fence,
        }
    }

    /// The fence of the next process of `kat-net`.
    fn restart(&mut self) {
        self.fence = fence(self.folder.path(), &self.files, &self.now, &self.listed);
    }

    fn list(&self, instances: &[(&str, &[&str])]) {
        let fenced = instances.iter().map(|(id, units)| {
            let units = units.iter().map(|unit| (*unit).to_owned()).collect();
            ((*id).to_owned(), FencedInstance { uid: UID, units })
        });
        let list = Instances {
            schema: 1,
            fenced: fenced.collect(),
            ..Instances::default()
        };
        self.write(INSTANCES_FILE, &serde_json::to_string(&list).unwrap());
        self.files.refresh();
    }

    fn allow(&self, deadlines: &[(&str, u64)]) {
        let deadlines = deadlines.iter();
        let deadlines = RunDeadlines {
            schema: 1,
            deadlines: deadlines
                .map(|(id, at)| ((*id).to_owned(), BootTime(*at)))
                .collect(),
        };
        self.write(
            "deadlines.json",
            &serde_json::to_string(&deadlines).unwrap(),
        );
    }

    fn write(&self, name: &str, text: &str) {
        let partial = self.folder.path().join("partial");
        std::fs::write(&partial, text).unwrap();
        std::fs::rename(partial, self.folder.path().join(name)).unwrap();
    }

    fn at(&self, now: u64) {
        self.now.store(now, Ordering::Relaxed);
    }

    fn put(&self, process: &Process, listed: &'static str, within: &'static str) {
        self.listed.lock().insert(process.pid(), (listed, within));
    }

    /// A container in a unit.
    fn container(&self, unit: &'static str) -> Process {
        let process = Process::start();
        self.put(&process, unit, unit);
        process
    }

    fn said(&self) -> String {
        let mut text = [0; 4096];
        let length = self.journal.recv(&mut text).unwrap_or(0);
        String::from_utf8_lossy(&text[..length]).into_owned()
    }
}

fn fence(
    folder: &std::path::Path,
    files: &Arc<StateFiles>,
    now: &Arc<AtomicU64>,
    listed: &Arc<Mutex<BTreeMap<i32, (&'static str, &'static str)>>>,
) -> Arc<DeadlineFence> {
    let (now, table, within) = (Arc::clone(now), Arc::clone(listed), Arc::clone(listed));
    DeadlineFence::new(FenceSources {
        files: Arc::clone(files),
        deadlines: folder.join("deadlines.json"),
        journal: folder.join("journal"),
        clock: Arc::new(move || BootTime(now.load(Ordering::Relaxed))),
        cgroups: Arc::new(move |pid| {
            let unit = within
                .lock()
                .get(&pid)
                .map_or("init.scope", |(_, unit)| unit);
            Ok(format!(
                "/user.slice/user-{UID}.slice/user@{UID}.service/app.slice/{unit}/libpod-payload-0"
            ))
        }),
        processes: Arc::new(move |_, unit| {
            let table = table.lock();
            let listed = table.iter().filter(|(_, (listed, _))| *listed == unit);
            Ok(listed.map(|(pid, _)| *pid).collect())
        }),
    })
}

#[tokio::test]
async fn all_containers_of_an_instance_are_killed_at_its_deadline_and_no_others() {
    let bench = Bench::new();
    bench.list(&[("web-ab12c", &[UNIT, SIDECAR]), ("web-zz999", &[OTHER])]);
    bench.allow(&[("web-ab12c", 5_000_000), ("web-zz999", 5_500_000)]);
    let (mut main, sidecar) = (bench.container(UNIT), bench.container(SIDECAR));
    let mut other = bench.container(OTHER);
    assert_eq!(bench.fence.end_overdue().await, Some(INTERVAL));
    bench.at(4_999_000);
    let next = bench.fence.end_overdue().await;
    assert_eq!(next, Some(Duration::from_millis(1)), "at the deadline");
    assert!(main.runs());
    assert!(bench.fence.check_start("web-ab12c").is_ok());
    bench.at(5_000_000);
    let next = bench.fence.end_overdue().await;
    assert_eq!(next, Some(Duration::from_millis(500)));
    assert!(main.ends_killed() && sidecar.ends_killed());
    assert!(other.runs());
    let said = bench.said();
    assert!(said.contains("KAT_HOOK_ERROR=fenced\n"), "{said}");
    assert!(said.contains(&format!("USER_UNIT={UNIT}\n")), "{said}");
    let refusal = bench
        .fence
        .check_start("web-ab12c")
        .unwrap_err()
        .to_string();
    assert!(refusal.contains("kat-agent has not confirmed"), "{refusal}");
    // The agent is back.
    bench.allow(&[("web-ab12c", 65_000_000), ("web-zz999", 65_000_000)]);
    assert!(bench.fence.check_start("web-ab12c").is_ok());
    let mut again = bench.container(UNIT);
    bench.fence.end_overdue().await;
    assert!(again.runs() && other.runs());
    assert_eq!(bench.said(), "");
}

#[tokio::test]
async fn a_container_that_starts_after_the_deadline_is_killed_too() {
    let bench = Bench::new();
    bench.list(&[("web-ab12c", &[UNIT])]);
    bench.allow(&[("web-ab12c", 5)]);
    bench.at(6);
    bench.fence.end_overdue().await;
    let late = bench.container(UNIT);
    bench.fence.end_overdue().await;
    assert!(late.ends_killed());
}

/// A user named a process of another unit, or a number that was used again.
#[tokio::test]
async fn a_process_outside_of_the_instances_units_is_not_killed() {
    let bench = Bench::new();
    bench.list(&[("web-ab12c", &[UNIT])]);
    bench.allow(&[("web-ab12c", 5)]);
    bench.at(6);
    let (mut foreign, own) = (Process::start(), bench.container(UNIT));
    bench.put(&foreign, UNIT, OTHER);
    bench.fence.end_overdue().await;
    assert!(own.ends_killed());
    assert!(foreign.runs());
}

#[tokio::test]
async fn deadlines_that_can_not_be_read_pass_by_themselves() {
    let mut bench = Bench::new();
    bench.list(&[("web-ab12c", &[UNIT])]);
    bench.allow(&[("web-ab12c", 5)]);
    let mut web = bench.container(UNIT);
    bench.fence.end_overdue().await;
    for broken in ["", "{\"schema\":1", "[]"] {
        bench.write("deadlines.json", broken);
        bench.fence.end_overdue().await;
        assert!(web.runs() && bench.fence.check_start("web-ab12c").is_ok());
    }
    // The next process of kat-net knows none.
    bench.restart();
    assert!(bench.fence.check_start("web-ab12c").is_err());
    bench.fence.end_overdue().await;
    assert!(web.ends_killed());
}

#[tokio::test]
async fn a_restarted_kat_net_keeps_the_deadlines() {
    let mut bench = Bench::new();
    bench.list(&[("web-ab12c", &[UNIT])]);
    bench.allow(&[("web-ab12c", 5)]);
    let mut web = bench.container(UNIT);
    bench.restart();
    bench.fence.end_overdue().await;
    assert!(web.runs());
    bench.at(5);
    bench.restart();
    bench.fence.end_overdue().await;
    assert!(web.ends_killed());
}

/// The machine has booted, or the agent has just dropped the instance from its list.
#[tokio::test]
async fn an_instance_without_a_deadline_does_not_start_and_is_not_killed() {
    let bench = Bench::new();
    bench.list(&[("web-ab12c", &[UNIT])]);
    bench.allow(&[]);
    let mut web = bench.container(UNIT);
    bench.fence.end_overdue().await;
    assert!(web.runs());
    assert!(bench.fence.check_start("web-ab12c").is_err());
    bench.list(&[]);
    assert!(
        bench.fence.check_start("web-ab12c").is_ok(),
        "onPartition: keep"
    );
    assert_eq!(bench.fence.end_overdue().await, None);
    assert!(web.runs());
}

#[tokio::test]
async fn the_loop_kills_at_the_deadline_without_news() {
    let bench = Bench::new();
    bench.list(&[("web-ab12c", &[UNIT])]);
    bench.allow(&[("web-ab12c", 5)]);
    let web = bench.container(UNIT);
    let (pulses, cancel) = (LoopPulses::default(), CancellationToken::new());
    let watching = Arc::clone(&bench.fence).watch(pulses.watch("fence"), cancel.clone());
    let watching = tokio::spawn(watching);
    bench.at(5);
    // Waiting for the process does not keep the loop from running.
    assert!(
        tokio::task::spawn_blocking(|| web.ends_killed())
            .await
            .unwrap()
    );
    cancel.cancel();
    watching.await.unwrap();
}
