//! A new agent process takes over the units that run.

use super::*;
use kat_systemd::UnitManager;

#[tokio::test(start_paused = true)]
async fn what_runs_is_neither_started_nor_stopped_nor_reloaded() {
    let mut bench = Bench::new();
    let (web, other) = (assignment(0, "web"), assignment(1, "other"));
    let list = [web.clone(), other.clone()];
    bench.list(true, &list);
    bench.soon().await;
    for one in &list {
        bench.manager(one).clear_calls();
    }
    bench.restart().await;
    bench.later(Duration::from_secs(100)).await;
    for one in &list {
        assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
        assert_eq!(bench.manager(one).calls(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_ended_is_not_run_again() {
    let mut bench = Bench::new();
    let web = with_policy(assignment(0, "web"), RestartCondition::Never);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.manager(&web).exits(&web.unit(), 0);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Succeeded);
    bench.manager(&web).clear_calls();
    bench.restart().await;
    bench.later(Duration::from_secs(100)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Succeeded);
    assert_eq!(bench.manager(&web).calls(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ended_is_opened_again() {
    let bench = Bench::new();
    let web = with_policy(assignment(0, "web"), RestartCondition::Never);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let manager = bench.manager(&web);
    manager.set_unreachable(Some("the bus ended"));
    manager.set_unreachable(None);
    bench.soon().await;
    manager.killed(&web.unit(), 9);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_comes_back_is_found() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.manager(&web).set_unreachable(Some("the bus ended"));
    bench.later(Duration::from_millis(100)).await;
    assert_eq!(bench.said(&web.instance).1, "SystemdRefused");
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(
        bench.said(&web.instance).0,
        InstancePhase::Running,
        "lingering brings it back"
    );
    assert_eq!(bench.calls(&web, "start kat-default-web-"), 1);
}

/// The sessions and probes of an earlier agent process have no caller any more.
#[tokio::test(start_paused = true)]
async fn commands_and_probes_of_the_process_before_are_ended() {
    let mut bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let left = [
        "kat-exec-0123456789abcdef.service",
        "health-kat-default-web-aaaaa-7.service",
    ];
    let other = "other.service";
    let manager = bench.manager(&web);
    for unit in left.into_iter().chain([other]) {
        manager.define(unit, UnitBehaviour::default());
        manager.start(unit, Duration::from_secs(1)).await.unwrap();
    }
    manager.clear_calls();
    bench.restart().await;
    bench.later(Duration::from_secs(10)).await;
    let running = |unit: &'static str| {
        let manager = Arc::clone(&manager);
        async move { manager.status(unit).await.unwrap().main_pid != 0 }
    };
    for unit in left {
        assert!(!running(unit).await, "{unit}");
    }
    assert!(running(other).await);
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    assert_eq!(bench.calls(&web, "stop "), 2);
}

/// A manager that does not answer for a while, for example on a busy machine, must not fail a
/// probe.
#[tokio::test(start_paused = true)]
async fn own_probes_outlive_a_manager_that_was_lost() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let manager = bench.manager(&web);
    let probe = "health-kat-default-web-aaaaa-7.service";
    manager.define(probe, UnitBehaviour::default());
    let started = manager.start(probe, Duration::from_secs(1)).await;
    started.unwrap();
    manager.set_unreachable(Some("the bus ended"));
    bench.later(Duration::from_millis(100)).await;
    assert_eq!(bench.said(&web.instance).1, "SystemdRefused");
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    assert_ne!(manager.status(probe).await.unwrap().main_pid, 0);
    assert_eq!(bench.calls(&web, "stop "), 0);
}
