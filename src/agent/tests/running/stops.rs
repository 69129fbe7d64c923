//! Removal of instances and files that are no longer assigned, and of nothing else.

use super::*;
use crate::worker::unit_state::unit_files::{UnitFolder, remove_every_users};
use kat_systemd::{ActiveState, UnitManager, UnitStatus, UserSessions};

#[tokio::test(start_paused = true)]
async fn nothing_is_said_of_what_is_gone() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.list(true, &[stopped(&web)]);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
    assert_eq!(bench.calls(&web, "stop"), 1);
    assert!(
        !bench
            .units(&web)
            .join("kat-default-web-aaaaa.container")
            .exists()
    );
    assert!(
        bench
            .links(&web)
            .join("kat-default-web-aaaaa.container")
            .symlink_metadata()
            .is_err()
    );
    assert_eq!(bench.statuses.all().1, [0], "its user is still there");
    bench.list(true, &[]);
    bench.soon().await;
    assert_eq!(bench.statuses.all(), (Vec::new(), Vec::new()));
    assert!(bench.accounts.all().is_empty());
    assert!(bench.machine.lingering().is_empty());
    assert!(!bench.units(&web).exists());
    assert!(!bench.links(&web).exists());
    let drop_ins = bench.root.path().join("etc/systemd/system");
    assert_eq!(std::fs::read_dir(drop_ins).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_not_confirmed_removes_nothing() {
    let mut bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.list(false, &[]);
    bench.later(Duration::from_secs(100)).await;
    bench.restart().await;
    bench.later(Duration::from_secs(100)).await;
    assert_eq!(bench.calls(&web, "stop"), 0);
    assert!(bench.accounts.find(web.user.uid).is_some());
    let status = bench.manager(&web).status(&web.unit()).await.unwrap();
    assert_eq!(status.active_state, ActiveState::Active);
    bench.list(true, &[]);
    bench.soon().await;
    assert_eq!(bench.calls(&web, "stop"), 1);
    assert!(
        bench.accounts.all().is_empty(),
        "found again by the account"
    );
}

#[test]
fn a_unit_without_its_file_is_stopped_too() {
    let folder = UnitFolder::new(&Root::new("/nowhere"), 20_000);
    let status = |load: &str, active: &str| UnitStatus {
        load_state: load.into(),
        active_state: ActiveState::from_word(active),
        ..UnitStatus::default()
    };
    assert!(!folder.is_over(&status("not-found", "active")));
    assert!(folder.is_over(&status("not-found", "inactive")));
    assert!(folder.is_over(&status("loaded", "failed")));
    assert!(!folder.is_over(&status("loaded", "deactivating")));
}

#[tokio::test(start_paused = true)]
async fn files_without_the_mark_are_left_alone() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let own = bench.links(&web).join("own.container");
    std::fs::write(&own, "[Container]\nImage=a\n").unwrap();
    bench.manager(&web).reload().await.unwrap();
    bench
        .manager(&web)
        .start("own.service", Duration::from_secs(1))
        .await
        .unwrap();
    bench.list(true, &[stopped(&web)]);
    bench.soon().await;
    let status = bench.manager(&web).status("own.service").await.unwrap();
    assert_eq!(status.active_state, ActiveState::Active);
    bench.list(true, &[]);
    bench.soon().await;
    assert!(own.exists());
    assert!(bench.accounts.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_others_keep_beside_kats_files_stays() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let (units, links) = (bench.units(&web), bench.links(&web));
    let quadlet = "kat-default-web-aaaaa.container";
    let theirs = [
        units.join("kat-backup.container"),
        units.join("tool.image"),
        units.join("notes.txt"),
        units.join("own.env"),
        links.join("own.container"),
        links.join("kat-own.image"),
    ];
    for path in &theirs {
        std::fs::write(path, "[Container]\nImage=a\n# like [X-KAT]\n").unwrap();
    }
    let linked = [
        (links.join("to-kats.container"), units.join(quadlet)),
        (links.join("gone.container"), PathBuf::from("/opt/gone")),
        (units.join("kat-link.env"), PathBuf::from("/opt/gone")),
    ];
    for (link, target) in &linked {
        std::os::unix::fs::symlink(target, link).unwrap();
    }
    std::fs::create_dir(units.join("kat-folder.container")).unwrap();
    // An interrupted write leaves this temporary file.
    std::fs::write(units.join(".kat-default-web-aaaaa.env.Xy12"), "A=b").unwrap();
    bench.list(true, &[]);
    bench.later(Duration::from_secs(60)).await;
    assert!(bench.accounts.all().is_empty());
    let mut left: Vec<PathBuf> = [&units, &links]
        .into_iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    left.sort();
    let mut expected: Vec<PathBuf> = theirs.to_vec();
    expected.extend(linked.into_iter().map(|(link, _)| link));
    expected.push(units.join("kat-folder.container"));
    expected.sort();
    assert_eq!(left, expected);
    // Other programs' files cause no work for a user that KAT has removed.
    bench.manager(&web).clear_calls();
    bench.later(Duration::from_secs(600)).await;
    assert_eq!(bench.manager(&web).calls(), Vec::<String>::new());
    remove_every_users(&bench.tools.root).unwrap();
    assert!(theirs.iter().all(|path| path.exists()));
}

#[tokio::test(start_paused = true)]
async fn a_pull_does_not_hold_up_the_removal() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let slow = UnitBehaviour {
        oneshot: true,
        start_hangs: true,
        ..UnitBehaviour::default()
    };
    bench.behave(&image_unit(&bench, &web), Some(slow));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Pulling);
    bench.list(true, &[]);
    bench.soon().await;
    assert!(bench.accounts.all().is_empty());
    assert_eq!(bench.statuses.all(), (Vec::new(), Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_user_that_cant_be_made_does_not_hold_up_a_deletion() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.accounts.taken.store(true, Ordering::Relaxed);
    // Another account has the uid.
    bench.machine.set_linger(web.user.uid, true).await.unwrap();
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).1, "UserNotReady");
    bench.list(true, &[stopped(&web)]);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
    bench.list(true, &[]);
    bench.soon().await;
    assert_eq!(bench.statuses.all(), (Vec::new(), Vec::new()));
    assert!(bench.machine.lingering().contains(&web.user.uid));
}

#[tokio::test(start_paused = true)]
async fn a_unit_that_does_not_stop_is_reported_and_stopped_again() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let hangs = UnitBehaviour {
        stop_hangs: true,
        ..UnitBehaviour::default()
    };
    bench.behave(&web.unit(), Some(hangs));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.list(true, &[stopped(&web)]);
    bench.soon().await;
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str(), message.as_str()),
        (InstancePhase::Stopping, "", "")
    );
    bench.later(Duration::from_secs(300)).await;
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Stopping, "StopNotEnding")
    );
    assert!(message.contains("its unit has not stopped: "), "{message}");
    assert!(bench.calls(&web, "stop") > 1);
    bench.behave(&web.unit(), None);
    bench.manager(&web).reload().await.unwrap();
    bench.manager(&web).exits(&web.unit(), 0);
    bench.later(Duration::from_secs(120)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
}

/// systemd gives up on processes that wait for a disk: the unit has ended, and they may still write.
#[tokio::test(start_paused = true)]
async fn processes_that_outlive_their_unit_keep_the_instance_from_having_stopped() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let uid = web.user.uid;
    let group = format!(
        "/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/{}",
        web.unit()
    );
    let events = bench
        .root
        .path()
        .join(format!("sys/fs/cgroup{group}/cgroup.events"));
    std::fs::create_dir_all(events.parent().unwrap()).unwrap();
    let leaves = UnitBehaviour {
        control_group: group.clone(),
        ..UnitBehaviour::default()
    };
    bench.behave(&web.unit(), Some(leaves));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    std::fs::write(&events, "populated 1\nfrozen 0\n").unwrap();
    bench.list(true, &[stopped(&web)]);
    bench.later(Duration::from_secs(300)).await;
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Stopping, "StopNotEnding")
    );
    assert!(message.contains("processes of it have not"), "{message}");
    assert!(message.contains(&group), "{message}");
    assert!(
        bench
            .units(&web)
            .join("kat-default-web-aaaaa.container")
            .exists()
    );
    assert_eq!(bench.calls(&web, "stop"), 1, "systemd has nothing to stop");
    std::fs::write(&events, "populated 0\nfrozen 0\n").unwrap();
    bench.later(Duration::from_secs(10)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
    assert!(
        !bench
            .units(&web)
            .join("kat-default-web-aaaaa.container")
            .exists()
    );
}

/// As after a fence that lifts: two programs would write to the same data.
#[tokio::test(start_paused = true)]
async fn an_instance_does_not_start_beside_processes_of_its_last_run() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let uid = web.user.uid;
    let group = format!("user.slice/user-{uid}.slice/user@{uid}.service/app.slice");
    let events = bench.root.path().join("sys/fs/cgroup").join(group);
    let events = events.join(web.unit()).join("cgroup.events");
    std::fs::create_dir_all(events.parent().unwrap()).unwrap();
    std::fs::write(&events, "populated 1\nfrozen 0\n").unwrap();
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(60)).await;
    let (phase, reason, _) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "StopNotEnding")
    );
    assert_eq!(bench.calls(&web, "start kat-default"), 0);
    std::fs::write(&events, "populated 0\nfrozen 0\n").unwrap();
    bench.later(Duration::from_secs(10)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
}

/// The user's manager has ended as failed, with a process in a call that hangs.
#[tokio::test(start_paused = true)]
async fn a_user_is_not_removed_while_processes_of_it_are_there() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let uid = web.user.uid;
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let group = format!("sys/fs/cgroup/user.slice/user-{uid}.slice/cgroup.events");
    let events = bench.root.path().join(group);
    std::fs::create_dir_all(events.parent().unwrap()).unwrap();
    std::fs::write(&events, "populated 1\nfrozen 0\n").unwrap();
    bench.list(true, &[stopped(&web)]);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
    bench.list(true, &[]);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.accounts.all(), [uid]);
    assert_eq!(bench.statuses.all().1, [0], "its index is not free");
    std::fs::write(&events, "populated 0\nfrozen 0\n").unwrap();
    bench.later(Duration::from_secs(10)).await;
    assert!(bench.accounts.all().is_empty());
    assert_eq!(bench.statuses.all(), (Vec::new(), Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn the_manager_of_a_user_whose_account_somebody_has_removed_ends_with_its_workload() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let uid = web.user.uid;
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.list(true, &[stopped(&web)]);
    bench.soon().await;
    assert!(bench.machine.lingering().contains(&uid));
    bench.accounts.users.lock().remove(&uid);
    bench.list(true, &[]);
    bench.soon().await;
    assert!(!bench.machine.lingering().contains(&uid));
    assert_eq!(bench.statuses.all(), (Vec::new(), Vec::new()));
}
