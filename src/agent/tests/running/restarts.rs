//! Restarts of the program, which count against its limit, and starts that failed because of KAT or
//! Podman, which do not.

use super::*;
use kat_systemd::UnitManager;
use kat_types::resource::ImagePullPolicy;

const BURST: u32 = 3;

/// A running program that may be restarted twice.
async fn running() -> (Bench, Assignment) {
    let bench = Bench::new();
    let mut web = with_policy(assignment(0, "web"), RestartCondition::MaxCount);
    web.restart_policy.max_restarts = BURST - 1;
    bench.images(&web, &["registry.lab:5000/web:1"]);
    let behaviour = UnitBehaviour {
        restarts: true,
        rests: true,
        ..UnitBehaviour::default()
    };
    bench.behave(&web.unit(), Some(behaviour));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(shown(&bench, &web), (InstancePhase::Running, "", 0));
    assert_eq!(limit(&bench, &web), BURST);
    (bench, web)
}

fn shown(bench: &Bench, web: &Assignment) -> (InstancePhase, &'static str, u32) {
    let report = bench.report(&web.instance).unwrap();
    let reasons = [
        "",
        "CrashLoop",
        "NetworkNotReady",
        "RestartsExhausted",
        "StartInterrupted",
    ];
    let reason = reasons.into_iter().find(|one| *one == report.reason);
    (report.phase, reason.unwrap(), report.restarts)
}

/// The start limit in the unit file.
fn limit(bench: &Bench, web: &Assignment) -> u32 {
    let file = bench.units(web).join("kat-default-web-aaaaa.container");
    starts_of(&std::fs::read_to_string(file).unwrap())
}

impl Bench {
    /// Ends the run by the program itself or by the hook.
    async fn end(&self, web: &Assignment, by_hook: bool) {
        let refusal = by_hook.then_some("kat-net does not answer");
        self.logs.refuse(&web.unit(), refusal);
        let code = if by_hook { 126 } else { 3 };
        // Podman removes the container before systemd decides about a restart.
        self.manager(web).clears_up(&web.unit(), code);
        self.soon().await;
        self.manager(web).exits(&web.unit(), code);
        self.soon().await;
        self.logs.refuse(&web.unit(), None);
    }

    /// Podman loses the container while it starts; systemd logs that after the end.
    async fn lose(&self, web: &Assignment) {
        self.manager(web).loses_start(&web.unit());
        self.later(Duration::from_millis(10)).await;
        let line = format!("{}: Failed with result 'protocol'.", web.unit());
        self.logs.say_as("systemd", &web.unit(), &line, false);
        self.soon().await;
    }

    /// Ends the delay before the next run.
    async fn restart_due(&self, web: &Assignment) {
        self.manager(web).restart_due(&web.unit());
        self.soon().await;
    }

    async fn stop_agent(&mut self) {
        self.cancel.cancel();
        self.running.take().unwrap().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_hook_do_not_change_a_programs_restart_count() {
    use InstancePhase::{Failed, Restarting, Running, Starting};
    let (mut bench, web) = running().await;
    bench.end(&web, false).await;
    assert_eq!(shown(&bench, &web), (Restarting, "CrashLoop", 1));
    // Failures of the hook never count, however many there are.
    for _ in 0..5 {
        bench.restart_due(&web).await;
        bench.end(&web, true).await;
        assert_eq!(shown(&bench, &web), (Starting, "NetworkNotReady", 1));
    }
    assert_eq!(limit(&bench, &web), BURST - 1, "one run is over");
    bench.restart_due(&web).await;
    assert_eq!(shown(&bench, &web), (Running, "", 1));
    // A new agent process knows the count too.
    bench.manager(&web).clear_calls();
    bench.restart().await;
    bench.soon().await;
    assert_eq!(shown(&bench, &web), (Running, "", 1));
    assert_eq!(bench.manager(&web).calls(), Vec::<String>::new());
    bench.end(&web, false).await;
    assert_eq!(shown(&bench, &web), (Restarting, "CrashLoop", 2));
    bench.restart_due(&web).await;
    assert_eq!(shown(&bench, &web), (Running, "", 2));
    // The third run was the last that the limit allows.
    bench.end(&web, false).await;
    bench.restart_due(&web).await;
    assert_eq!(shown(&bench, &web), (Failed, "RestartsExhausted", 2));
    bench.restart().await;
    bench.later(Duration::from_secs(600)).await;
    assert_eq!(shown(&bench, &web), (Failed, "RestartsExhausted", 2));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_the_agent_did_not_see_is_read_from_systemds_log() {
    let (mut bench, mut web) = running().await;
    web.restart_policy.condition = RestartCondition::Always;
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let (unit, manager) = (web.unit(), bench.manager(&web));
    bench.stop_agent().await;
    for _ in 0..3 {
        bench.later(Duration::from_secs(1)).await;
        manager.exits(&unit, 3);
        let line = format!("{unit}: Main process exited, code=exited, status=3/NOTIMPLEMENTED");
        bench.logs.say_as("systemd", &unit, &line, false);
        let line = format!("{unit}: Failed with result 'exit-code'.");
        bench.logs.say_as("systemd", &unit, &line, false);
        bench.later(Duration::from_secs(1)).await;
        manager.restart_due(&unit);
    }
    bench.begin();
    bench.soon().await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(
        (report.phase, report.restarts, report.exit_code),
        (InstancePhase::Restarting, 3, Some(3))
    );
    assert_eq!(
        report.message,
        "the program ended with exit code 3; started again 3 times"
    );
}

#[tokio::test(start_paused = true)]
async fn a_start_that_podman_loses_is_not_the_programs_end() {
    use InstancePhase::{Restarting, Running, Starting};
    let (mut bench, web) = running().await;
    bench.end(&web, false).await;
    for _ in 0..5 {
        bench.restart_due(&web).await;
        bench.lose(&web).await;
        assert_eq!(shown(&bench, &web), (Starting, "StartInterrupted", 1));
        let message = bench.report(&web.instance).unwrap().message;
        assert!(message.contains("Podman lost the container"), "{message}");
        assert!(!message.contains("exit code"), "{message}");
    }
    assert_eq!(limit(&bench, &web), BURST - 1, "one run is over");
    bench.restart_due(&web).await;
    assert_eq!(shown(&bench, &web), (Running, "", 1));
    // A lost start that no agent saw does not count either, and the program's failure after it
    // does.
    bench.stop_agent().await;
    bench.later(Duration::from_secs(1)).await;
    bench.lose(&web).await;
    bench.later(Duration::from_secs(1)).await;
    bench.manager(&web).restart_due(&web.unit());
    bench.later(Duration::from_secs(1)).await;
    bench.manager(&web).exits(&web.unit(), 3);
    bench.begin();
    bench.later(Duration::from_secs(1)).await;
    assert_eq!(shown(&bench, &web), (Restarting, "CrashLoop", 2));
}

#[tokio::test(start_paused = true)]
async fn what_a_program_spent_is_forgotten_after_its_window() {
    let (bench, web) = running().await;
    bench.end(&web, false).await;
    bench.restart_due(&web).await;
    bench.end(&web, true).await;
    bench.restart_due(&web).await;
    assert_eq!(limit(&bench, &web), BURST - 1);
    bench.later(Duration::from_secs(3540)).await;
    assert_eq!(limit(&bench, &web), BURST - 1);
    bench.later(Duration::from_secs(90)).await;
    assert_eq!(limit(&bench, &web), BURST);
    assert_eq!(shown(&bench, &web).2, 1, "it did happen");
    // A failure in the next window counts in that window only.
    bench.end(&web, false).await;
    bench.restart_due(&web).await;
    bench.end(&web, true).await;
    assert_eq!(limit(&bench, &web), BURST);
    assert_eq!(shown(&bench, &web).2, 2);
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_hook_that_the_agent_did_not_see_are_not_the_programs() {
    let (mut bench, web) = running().await;
    let (unit, manager) = (web.unit(), bench.manager(&web));
    bench.stop_agent().await;
    manager.exits(&unit, 3);
    for _ in 1..BURST {
        manager.restart_due(&unit);
        bench.logs.say(&unit, "kat-net does not answer", true);
        bench.later(Duration::from_secs(1)).await;
        manager.exits(&unit, 126);
    }
    // systemd has reached the start limit and counted all failures.
    manager.restart_due(&unit);
    bench.begin();
    bench.later(Duration::from_secs(10)).await;
    assert_eq!(shown(&bench, &web), (InstancePhase::Running, "", 1));
    assert_eq!(limit(&bench, &web), BURST - 1);
    // A lost start also does not count if the limit allowed one more start and the program already
    // runs.
    bench.stop_agent().await;
    manager.exits(&unit, 3);
    manager.restart_due(&unit);
    bench.logs.say(&unit, "kat-net does not answer", true);
    bench.later(Duration::from_secs(1)).await;
    manager.exits(&unit, 126);
    manager.define(&unit, bench.behaviours.lock()[&unit].clone().unwrap());
    manager.restart_due(&unit);
    bench.begin();
    bench.later(Duration::from_secs(20)).await;
    assert_eq!(shown(&bench, &web), (InstancePhase::Running, "", 2));
    assert_eq!(limit(&bench, &web), BURST - 2);
}

#[tokio::test(start_paused = true)]
async fn starts_without_the_image_that_the_agent_did_not_see_are_not_the_programs() {
    for (policy, own) in [
        (ImagePullPolicy::IfNotPresent, 1),
        // It is the configuration's fault then.
        (ImagePullPolicy::Never, 2),
    ] {
        let (mut bench, mut web) = running().await;
        web.container.image_pull_policy = Some(policy);
        bench.list(true, std::slice::from_ref(&web));
        bench.soon().await;
        let (unit, manager) = (web.unit(), bench.manager(&web));
        bench.stop_agent().await;
        manager.exits(&unit, 3);
        bench.later(Duration::from_secs(1)).await;
        manager.restart_due(&unit);
        bench.later(Duration::from_secs(1)).await;
        let words = "Error: registry.lab:5000/web:1: image not known";
        bench.logs.say(&unit, words, false);
        manager.exits(&unit, 125);
        bench.later(Duration::from_secs(1)).await;
        manager.restart_due(&unit);
        bench.begin();
        bench.later(Duration::from_secs(20)).await;
        assert_eq!(
            shown(&bench, &web),
            (InstancePhase::Running, "", own),
            "{policy:?}"
        );
        // Podman's words excuse no later end.
        bench.stop_agent().await;
        manager.exits(&unit, 127);
        bench.later(Duration::from_secs(1)).await;
        manager.restart_due(&unit);
        bench.begin();
        bench.later(Duration::from_secs(20)).await;
        let phase = match policy {
            ImagePullPolicy::Never => InstancePhase::Failed,
            _ => InstancePhase::Running,
        };
        let restarts = bench.report(&web.instance).unwrap().restarts;
        assert_eq!(
            (bench.said(&web.instance).0, restarts),
            (phase, 2),
            "{policy:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn counts_go_with_their_instances() {
    let (bench, web) = running().await;
    bench.end(&web, false).await;
    bench.restart_due(&web).await;
    let uid = web.user.uid;
    let file = bench
        .root
        .path()
        .join(format!("run/kat/restarts/{uid}.json"));
    assert!(file.exists());
    bench.list(true, &[]);
    bench.soon().await;
    assert!(bench.accounts.all().is_empty());
    assert!(!file.exists());
}

#[tokio::test(start_paused = true)]
async fn a_program_that_ran_well_for_ten_minutes_begins_its_pauses_anew() {
    use InstancePhase::{Restarting, Running};
    for (condition, forgives) in [
        (RestartCondition::Always, true),
        (RestartCondition::MaxCount, false),
    ] {
        let bench = Bench::new();
        let mut web = with_policy(assignment(0, "web"), condition);
        web.restart_policy.max_restarts = 100;
        bench.images(&web, &["registry.lab:5000/web:1"]);
        let behaviour = UnitBehaviour {
            restarts: true,
            rests: true,
            ..UnitBehaviour::default()
        };
        bench.behave(&web.unit(), Some(behaviour));
        bench.list(true, std::slice::from_ref(&web));
        bench.soon().await;
        for _ in 0..7 {
            bench.end(&web, false).await;
            bench.restart_due(&web).await;
        }
        // The number that decides about the length of systemd's next pause.
        let counted = async || {
            bench
                .manager(&web)
                .status(&web.unit())
                .await
                .unwrap()
                .restarts
        };
        bench.later(Duration::from_secs(595)).await;
        let before = (shown(&bench, &web), counted().await);
        assert_eq!(
            before,
            ((Running, "", 7), 7),
            "{condition:?}: ten minutes are not over"
        );
        bench.later(Duration::from_secs(40)).await;
        let expected = if forgives { 0 } else { 7 };
        assert_eq!(counted().await, expected, "{condition:?}");
        assert_eq!(
            shown(&bench, &web),
            (Running, "", 7),
            "users see all restarts"
        );

        // Only the next end has an effect again, and it is counted once.
        let resets = |bench: &Bench| {
            let calls = bench.manager(&web).calls().into_iter();
            calls.filter(|call| call.contains("reset_failed")).count()
        };
        let before = resets(&bench);
        bench.later(Duration::from_secs(3600)).await;
        assert_eq!(resets(&bench), before);
        bench.end(&web, false).await;
        assert_eq!(shown(&bench, &web), (Restarting, "CrashLoop", 8));
        bench.restart_due(&web).await;
        assert_eq!((shown(&bench, &web).2, counted().await), (8, expected + 1));
    }
}
