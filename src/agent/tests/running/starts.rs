//! The start of an instance: from its assignment to a running unit.

use super::*;

#[tokio::test(start_paused = true)]
async fn makes_user_files_and_links_and_starts_after_the_pull() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    let uid = web.user.uid;
    assert!(bench.accounts.find(uid).is_some());
    assert!(bench.machine.lingering().contains(&uid));
    let quadlet = "kat-default-web-aaaaa.container";
    let file = bench.units(&web).join(quadlet);
    let metadata = std::fs::metadata(&file).unwrap();
    assert_eq!(
        (metadata.mode() & 0o7777, metadata.uid(), metadata.gid()),
        (0o640, 0, uid)
    );
    let folder = std::fs::metadata(bench.units(&web)).unwrap();
    assert_eq!(
        (folder.mode() & 0o7777, folder.uid(), folder.gid()),
        (0o750, 0, uid)
    );
    let link = std::fs::read_link(bench.links(&web).join(quadlet)).unwrap();
    assert_eq!(link, file);
    assert!(bench.links(&web).symlink_metadata().unwrap().is_dir());
    let drop_in = format!("etc/systemd/system/user@{uid}.service.d/50-kat.conf");
    assert!(bench.root.path().join(drop_in).exists());
    assert_eq!(bench.machine.system_manager().calls(), ["reload"]);
    assert_eq!(
        bench.manager(&web).calls(),
        [
            "reload".to_owned(),
            format!("start {}", image_unit(&bench, &web)),
            "start kat-default-web-aaaaa.service".to_owned(),
        ],
        "one reload for all files"
    );
    assert_eq!(bench.statuses.all().1, [0], "the user's index is told");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_there_is_not_pulled() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.images(&web, &["registry.lab:5000/web:1"]);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    assert_eq!(bench.calls(&web, "start"), 1);
    assert_eq!(bench.report(&web.instance).unwrap().image_id, "sha256:1");
}

#[tokio::test(start_paused = true)]
async fn later_passes_change_nothing() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.manager(&web).clear_calls();
    bench.machine.system_manager().clear_calls();
    bench.later(Duration::from_secs(600)).await;
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.manager(&web).calls(), Vec::<String>::new());
    assert_eq!(bench.machine.system_manager().calls(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_missing_unit_is_no_endless_reload() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.images(&web, &["registry.lab:5000/web:1"]);
    bench.behave(&web.unit(), None);
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(120)).await;
    assert!(
        bench.calls(&web, "reload") < 12,
        "{:?}",
        bench.manager(&web).calls()
    );
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "StartFailed")
    );
    assert!(message.contains("does not exist"), "{message}");
    bench.behaviours.lock().clear();
    bench.later(Duration::from_secs(200)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_the_hook_is_not_the_programs() {
    let bench = Bench::new();
    let web = with_policy(assignment(0, "web"), RestartCondition::MaxCount);
    let unit = web.unit();
    bench.images(&web, &["registry.lab:5000/web:1"]);
    let refused = UnitBehaviour {
        oneshot: true,
        exits: Some(126),
        ..UnitBehaviour::default()
    };
    bench.behave(&unit, Some(refused));
    bench.logs.refuse(&unit, Some("kat-net does not answer"));
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(5)).await;
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str(), message.as_str()),
        (
            InstancePhase::Starting,
            "NetworkNotReady",
            "kat-net does not answer"
        )
    );
    assert!(bench.calls(&web, "reset_failed") >= 2);
    bench.manager(&web).define(&unit, UnitBehaviour::default());
    bench.logs.refuse(&unit, None);
    bench.later(Duration::from_secs(60)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!((report.phase, report.restarts), (InstancePhase::Running, 0));
}

#[tokio::test(start_paused = true)]
async fn an_old_fault_of_the_hook_does_not_excuse_a_program_that_says_nothing() {
    let bench = Bench::new();
    let web = with_policy(assignment(0, "web"), RestartCondition::Never);
    let unit = web.unit();
    bench.images(&web, &["registry.lab:5000/web:1"]);
    bench
        .logs
        .say(&unit, "network of the container: no answer", true);
    bench.later(Duration::from_secs(1)).await;
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(60)).await;
    bench.manager(&web).exits(&unit, 3);
    bench.later(Duration::from_secs(60)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(
        (report.phase, report.reason.as_str()),
        (InstancePhase::Failed, "ProgramFailed")
    );
    assert_eq!(bench.calls(&web, "reset_failed"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_gave_up_is_left_failed_with_its_last_words() {
    let bench = Bench::new();
    let web = with_policy(assignment(0, "web"), RestartCondition::MaxCount);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.logs.say(&web.unit(), "no database", false);
    bench.manager(&web).clear_calls();
    bench.manager(&web).exits(&web.unit(), 3);
    bench.later(Duration::from_secs(300)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(
        (report.phase, report.reason.as_str(), report.exit_code),
        (InstancePhase::Failed, "RestartsExhausted", Some(3))
    );
    assert_eq!(
        report.message,
        "the program ended with exit code 3; last lines: no database"
    );
    assert_eq!(bench.manager(&web).calls(), Vec::<String>::new());
}
