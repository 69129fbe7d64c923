//! A file system that hangs delays what lies on it, and nothing else of its machine.

use jiff::Timestamp;

use super::{
    volumes::{database, volumes},
    *,
};
use crate::{
    disk::{
        foreign_disks::{ChildCommand, ForeignDisks},
        pressure::{DiskWatch, FreeSpace, ReadFreeSpace},
        silence::DiskSilence,
    },
    tests::hung_disk::{HungDisk, OwnDisk, child_command},
    volumes::{RemovalFailureKind, removals::VolumeRemovals},
};
use kat_daemon::watchdog::LoopPulses;
use kat_types::{
    reason::Reason,
    volumes::{RemovalRecord, removal_id},
};

/// Lets children of the agent work, which the virtual clock does not wait for.
async fn really_wait() {
    let nap = || std::thread::sleep(Duration::from_millis(20));
    tokio::task::spawn_blocking(nap).await.unwrap();
}

/// Waits for a condition while time passes, virtually and really.
async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        really_wait().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("it did not come");
}

/// Another instance of the database's user, without volumes.
fn beside(db: &Assignment) -> Assignment {
    Assignment {
        instance: "db-bbbbb".to_owned(),
        slot: 1,
        volumes: Vec::new(),
        container: Container::default(),
        address: Ipv4Addr::new(10, 100, 0, 99),
        ..db.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_disk_hangs_names_it_and_the_others_start_stop_and_are_fenced() {
    let bench = Bench::new();
    let point = bench.root.path().join("var/lib/kat/volumes/default/db");
    let disk = HungDisk::mount(&point);
    let db = database(false);
    let ends_when_cut_off = |one: Assignment| Assignment {
        on_partition: OnPartition::Stop,
        ..one
    };
    let same_user = ends_when_cut_off(beside(&db));
    let other_user = ends_when_cut_off(assignment(1, "web"));
    bench.list(true, &[db.clone(), same_user.clone(), other_user.clone()]);
    bench.soon().await;
    for one in [&same_user, &other_user] {
        assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
    }
    assert_ne!(bench.said(&db.instance).0, InstancePhase::Running);
    bench.later(Duration::from_secs(12)).await;
    let (phase, reason, message) = bench.said(&db.instance);
    assert_eq!(phase, InstancePhase::Starting);
    assert_eq!(reason, Reason::DiskNotAnswering, "{message}");
    let named = format!("volume data: the file system at {}", point.display());
    assert!(message.starts_with(&named), "{message}");
    assert!(message.contains(" has not answered since 20"), "{message}");

    // The fence.
    let mut fenced = bench.lists.borrow().clone();
    fenced.fenced = Arc::new(BTreeSet::from([
        same_user.instance.clone(),
        other_user.instance.clone(),
    ]));
    bench.lists.send_replace(fenced);
    bench.soon().await;
    for one in [&same_user, &other_user] {
        assert_eq!(bench.said(&one.instance).1, Reason::CutOff);
        assert_eq!(bench.calls(one, "stop kat-default"), 1);
    }

    // An instance that leaves does not wait for its disk.
    bench.list(true, &[stopped(&db), other_user.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&db.instance).0, InstancePhase::Stopped);
    bench.list(true, &[]);
    bench.later(Duration::from_secs(5)).await;
    assert_eq!(bench.report(&db.instance), None);
    assert!(!bench.units(&db).exists());
    drop(disk);
}

#[tokio::test(start_paused = true)]
async fn an_instance_with_new_groups_starts_beside_one_whose_disk_hangs() {
    let bench = Bench::new();
    let point = bench.root.path().join("var/lib/kat/volumes/default/db");
    let disk = HungDisk::mount(&point);
    let db = database(false);
    bench.list(true, std::slice::from_ref(&db));
    bench.later(Duration::from_secs(12)).await;
    assert_eq!(bench.said(&db.instance).1, Reason::DiskNotAnswering);
    let mut other = beside(&db);
    other.container.groups = vec!["dialout".to_owned()];
    bench.list(true, &[db.clone(), other.clone()]);
    bench.later(Duration::from_secs(5)).await;
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
    drop(disk);
}

#[tokio::test(start_paused = true)]
async fn an_instance_starts_when_its_disk_answers_again() {
    let bench = Bench::new();
    let point = bench.root.path().join("var/lib/kat/volumes/default/db");
    let disk = HungDisk::mount(&point);
    let db = database(false);
    bench.list(true, std::slice::from_ref(&db));
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&db.instance).1, Reason::DiskNotAnswering);
    assert_eq!(bench.calls(&db, "start kat-default"), 0);
    drop(disk);
    until(|| bench.said(&db.instance).0 == InstancePhase::Running).await;
    assert!(point.join("data").is_dir());
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_hangs_is_reported_and_the_others_are_done() {
    let root = tempfile::tempdir().unwrap();
    let disks = ForeignDisks::new(&Root::new(root.path())).with_command(child_command());
    let volumes = Arc::new(volumes(root.path(), &[]).with_disks(disks));
    let db = database(false);
    volumes.prepare(&db).unwrap();
    let base = root.path().join("var/lib/kat/volumes/default");
    let disk = HungDisk::mount(&base.join("an"));
    let asked: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let record = RemovalRecord {
        schema: 1,
        asked,
        index: db.user.index,
        made: false,
        copy: false,
        unsure: false,
        forget: false,
    };
    let names = ["default/an/data", "default/db/data"];
    let lists = watch::Sender::new(DesiredList {
        known: true,
        confirmed: true,
        current: true,
        desired: Arc::new(DesiredState {
            removals: names.map(|name| (name.to_owned(), record)).into(),
            ..DesiredState::default()
        }),
        ..DesiredList::default()
    });
    let statuses = Statuses::default();
    let cancel = CancellationToken::new();
    let removals = VolumeRemovals {
        lists: lists.subscribe(),
        volumes,
        statuses: statuses.clone(),
        pulses: LoopPulses::default(),
    };
    let running = tokio::spawn(removals.run(cancel.clone()));
    until(|| statuses.removed() == [removal_id(names[1], asked)]).await;
    assert!(!base.join("db").exists());
    let told = || statuses.not_removed().join("; ");
    until(|| told().contains("default/an/data: the file system at ")).await;
    drop(disk);
    until(|| statuses.removed().len() == 2).await;
    assert_eq!(told(), "");
    cancel.cancel();
    running.await.unwrap();
}

/// The child of the first try removes the data and ends before it can say so.
#[tokio::test]
async fn a_removal_on_another_disk_that_was_interrupted_after_its_end_is_done_at_the_next_try() {
    let root = tempfile::tempdir().unwrap();
    let started = root.path().join("started");
    let point = root.path().join("var/lib/kat/volumes/default");
    let _disk = OwnDisk::mount(&point, &root.path().join("memory"));
    let real = child_command();
    let script = format!(
        "echo >>{started}; if [ $(wc -l <{started}) = 2 ]; then rm -r {data}; exit 1; fi; exec \"$0\" \"$@\"",
        started = started.display(),
        data = point.join("db").display(),
    );
    let program = real.program.into_os_string();
    let command = ChildCommand {
        program: "/bin/sh".into(),
        arguments: ["-c".into(), script.into(), program]
            .into_iter()
            .chain(real.arguments)
            .collect(),
        variables: real.variables,
    };
    let disks = ForeignDisks::new(&Root::new(root.path())).with_command(command);
    let volumes = Arc::new(volumes(root.path(), &[]).with_disks(disks.clone()));
    let db = database(false);
    volumes.prepare(&db).unwrap();
    assert_eq!(disks.mount_of(&point.join("db")), Some(point.clone()));
    let record = RemovalRecord {
        schema: 1,
        asked: Timestamp::UNIX_EPOCH,
        index: db.user.index,
        made: true,
        copy: false,
        unsure: false,
        forget: false,
    };
    let remove = || Arc::clone(&volumes).remove_apart("default/db/data".to_owned(), record);
    let error = remove().await.unwrap_err();
    assert!(error.message.contains("has failed"), "{error:?}");
    assert_eq!(error.kind, RemovalFailureKind::Other);
    assert!(!point.join("db").exists());
    remove().await.unwrap();
    assert_eq!(volumes.all_made(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_volumes_that_hangs_does_not_hide_that_another_disk_is_full() {
    let root = tempfile::tempdir().unwrap();
    let _disk = HungDisk::mount(&root.path().join("srv/volumes"));
    let tree = Root::new(root.path());
    let touched = Arc::new(AtomicBool::new(false));
    let is_touched = Arc::clone(&touched);
    let full: ReadFreeSpace = Arc::new(move |path: &Path| {
        is_touched.fetch_or(path.ends_with("volumes"), Ordering::Relaxed);
        Ok(FreeSpace {
            device: 1,
            bytes: 100 << 30,
            free_bytes: 1 << 30,
            inodes: 0,
            free_inodes: 0,
        })
    });
    let config = AgentConfig::default();
    let watch = Arc::new(DiskWatch::new(&tree, "/srv/volumes", &config, full));
    let disks = ForeignDisks::new(&tree).with_command(child_command());
    let cancel = CancellationToken::new();
    let run = Arc::clone(&watch).run(
        disks,
        Statuses::default(),
        LoopPulses::default(),
        cancel.clone(),
    );
    let running = tokio::spawn(run);
    until(|| watch.condition().is_some()).await;
    let message = watch.condition().unwrap().message;
    assert!(
        message.contains("1.0 GiB of 100.0 GiB are free"),
        "{message}"
    );
    assert!(!touched.load(Ordering::Relaxed), "without a child");
    cancel.cancel();
    running.await.unwrap();
}

/// The programs of instances that run say nothing of it.
#[tokio::test(start_paused = true)]
async fn a_disk_that_hangs_under_running_instances_is_told_with_their_names() {
    let root = tempfile::tempdir().unwrap();
    let disks = ForeignDisks::new(&Root::new(root.path())).with_command(child_command());
    let volumes = Arc::new(volumes(root.path(), &[]).with_disks(disks));
    let point = root.path().join("var/lib/kat/volumes/default/db");
    let disk = HungDisk::mount(&point);
    let db = database(false);
    let name = format!("{}/{}", db.namespace, db.workload);
    let lists = watch::Sender::new(DesiredList {
        known: true,
        desired: Arc::new(DesiredState {
            assignments: [(db.instance.clone(), db)].into(),
            ..DesiredState::default()
        }),
        ..DesiredList::default()
    });
    let statuses = Statuses::default();
    let cancel = CancellationToken::new();
    let watch = DiskSilence {
        lists: lists.subscribe(),
        volumes,
        statuses: statuses.clone(),
        pulses: LoopPulses::default(),
    };
    let running = tokio::spawn(watch.run(cancel.clone()));
    until(|| !statuses.silent_disks().is_empty()).await;
    let told = statuses.silent_disks().join("; ");
    assert!(
        told.contains("default/db has not answered since 20"),
        "{told}"
    );
    assert!(told.ends_with(&format!("; it is used by {name}")), "{told}");
    drop(disk);
    until(|| statuses.silent_disks().is_empty()).await;
    cancel.cancel();
    running.await.unwrap();
}

/// The list of made folders is written while a lock of it is held.
#[test]
fn a_list_of_volumes_that_cannot_be_written_holds_up_no_report() {
    let root = tempfile::tempdir().unwrap();
    let volumes = Arc::new(volumes(root.path(), &[]));
    volumes.note("default/db/data");
    assert_eq!(volumes.all_made(), ["default/db/data"]);
    let disk = HungDisk::mount(&root.path().join("var/lib/kat"));
    let same = Arc::clone(&volumes);
    let writes = std::thread::spawn(move || same.note("default/web/data"));
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while disk.asked() == 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let (told, made) = std::sync::mpsc::channel();
    let same = Arc::clone(&volumes);
    std::thread::spawn(move || told.send(same.all_made()));
    let made = made.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(made, ["default/db/data"]);
    drop(disk);
    writes.join().unwrap();
    assert_eq!(volumes.all_made(), ["default/db/data", "default/web/data"]);
}
