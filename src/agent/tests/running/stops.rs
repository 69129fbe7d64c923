//! Removal of instances and files that are no longer assigned, and of nothing else.

use super::*;
use crate::{
    service::paths::UserFolders,
    worker::unit_state::unit_files::{UnitFolder, remove_every_users},
};
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
    let folder = UnitFolder::new(UserFolders::new(&Root::new("/nowhere"), 20_000), 20_000);
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
