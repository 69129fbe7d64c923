//! Image pulls that fail, and images that disappear.

use super::*;

fn fails() -> UnitBehaviour {
    UnitBehaviour {
        oneshot: true,
        exits: Some(125),
        ..UnitBehaviour::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_pull_has_podmans_words_and_grows_rarer() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let unit = image_unit(&bench, &web);
    bench.behave(&unit, Some(fails()));
    bench
        .logs
        .say(&unit, "Trying to pull registry.lab:5000/web:1...", false);
    bench.logs.say(&unit, "Error: manifest unknown", false);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(
        bench.said(&web.instance),
        (
            InstancePhase::Pulling,
            "ImageNotFound".to_owned(),
            "manifest unknown".to_owned()
        )
    );
    bench.later(Duration::from_secs(62)).await;
    // The agent pulls at 0, 1, 3, 7, 15 and 31 s.
    assert_eq!(bench.calls(&web, &format!("start {unit}")), 6);
    assert_eq!(bench.calls(&web, "start kat-default-web-"), 0);
    bench.behaviours.lock().clear();
    bench.manager(&web).define(
        &unit,
        UnitBehaviour {
            exits: Some(0),
            ..fails()
        },
    );
    bench.later(Duration::from_secs(33)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn an_image_pruned_by_hand_is_pulled_again() {
    for tag in ["1", "latest"] {
        let bench = Bench::new();
        let mut web = assignment(0, "web");
        web.image = format!("registry.lab:5000/web:{tag}");
        let pull = format!("start {}", image_unit(&bench, &web));
        bench.list(true, std::slice::from_ref(&web));
        bench.soon().await;
        assert_eq!(bench.calls(&web, &pull), 1);
        bench.manager(&web).define(&web.unit(), fails());
        bench.manager(&web).killed(&web.unit(), 9);
        bench.later(Duration::from_secs(2)).await;
        assert!(
            bench.calls(&web, &pull) >= 2,
            "{:?}",
            bench.manager(&web).calls()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_with_its_image_on_the_disk_pulls_nothing() {
    let bench = Bench::new();
    let mut web = assignment(0, "web");
    web.image = "registry.lab:5000/web:latest".to_owned();
    bench.images(&web, &[&web.image]);
    let pull = format!("start {}", image_unit(&bench, &web));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.calls(&web, &pull), 1);
    bench.manager(&web).define(&web.unit(), fails());
    bench.manager(&web).killed(&web.unit(), 9);
    bench.later(Duration::from_secs(10)).await;
    assert!(bench.calls(&web, &format!("start {}", web.unit())) >= 2);
    assert_eq!(bench.calls(&web, &pull), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_pull_of_one_holds_up_no_other() {
    let bench = Bench::new();
    let (web, other) = (assignment(0, "web"), assignment(1, "other"));
    let slow = UnitBehaviour {
        oneshot: true,
        exits: Some(0),
        start_takes: Duration::from_secs(600),
        ..UnitBehaviour::default()
    };
    bench.behave(&image_unit(&bench, &web), Some(slow));
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Pulling);
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
    bench.later(Duration::from_secs(600)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
}

/// A running container whose unit systemd restarts after a delay.
async fn running(condition: RestartCondition) -> (Bench, Assignment) {
    let bench = Bench::new();
    let web = with_policy(assignment(0, "web"), condition);
    bench.images(&web, &["registry.lab:5000/web:1"]);
    let restarts = condition != RestartCondition::Never;
    let behaviour = UnitBehaviour {
        restarts,
        rests: restarts,
        ..UnitBehaviour::default()
    };
    bench.behave(&web.unit(), Some(behaviour));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    (bench, web)
}

/// systemd restarts the unit, and Podman fails with `code` and `words`.
async fn refused(bench: &Bench, web: &Assignment, code: i32, words: &str) {
    let unit = web.unit();
    bench.manager(web).restart_due(&unit);
    bench.logs.say(&unit, words, false);
    bench.manager(web).exits(&unit, code);
    let line = format!("{unit}: Failed with result 'exit-code'.");
    bench.logs.say_as("systemd", &unit, &line, false);
    bench.soon().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_lost_under_a_container_that_restarts_is_pulled_again() {
    use RestartCondition::{Always, MaxCount, Never};
    for condition in [Always, MaxCount, Never] {
        let (bench, web) = running(condition).await;
        let pull = format!("start {}", image_unit(&bench, &web));
        let slow = UnitBehaviour {
            oneshot: true,
            exits: Some(0),
            start_takes: Duration::from_secs(5),
            ..UnitBehaviour::default()
        };
        bench.behave(&image_unit(&bench, &web), Some(slow.clone()));
        bench.manager(&web).define(&image_unit(&bench, &web), slow);
        assert_eq!(bench.calls(&web, &pull), 0);
        bench.images(&web, &[]);
        if condition != Never {
            bench.manager(&web).exits(&web.unit(), 3);
            bench.soon().await;
        }
        let own = bench.report(&web.instance).unwrap().restarts;
        let words = "Error: registry.lab:5000/web:1: image not known";
        refused(&bench, &web, 125, words).await;
        assert_eq!(
            bench.said(&web.instance).0,
            InstancePhase::Pulling,
            "{condition:?}"
        );
        assert_eq!(bench.calls(&web, &pull), 1);
        bench.images(&web, &["registry.lab:5000/web:1"]);
        bench.later(Duration::from_secs(6)).await;
        let report = bench.report(&web.instance).unwrap();
        assert_eq!(
            (report.phase, report.restarts),
            (InstancePhase::Running, own),
            "{condition:?}: it does not wait for systemd's pause, and it is no end of the program"
        );
        assert_eq!(bench.calls(&web, &pull), 1);
    }
}

/// systemd starts the unit while the pull still runs; Podman does not find the image, which the pull
/// stores before the agent looks at the failed start.
#[tokio::test(start_paused = true)]
async fn a_start_that_a_pull_overtakes_counts_as_one_without_the_image() {
    let (bench, web) = running(RestartCondition::Always).await;
    let slow = UnitBehaviour {
        oneshot: true,
        exits: Some(0),
        start_takes: Duration::from_secs(5),
        ..UnitBehaviour::default()
    };
    bench.manager(&web).define(&image_unit(&bench, &web), slow);
    bench.images(&web, &[]);
    let words = "Error: registry.lab:5000/web:1: image not known";
    refused(&bench, &web, 125, words).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Pulling);
    bench.images(&web, &["registry.lab:5000/web:1"]);
    refused(&bench, &web, 125, words).await;
    bench.later(Duration::from_secs(6)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(
        (report.phase, report.restarts),
        (InstancePhase::Running, 0),
        "{report:?}"
    );
    // Where Podman says so of an image that is there and was not pulled, a person has to look.
    bench.later(Duration::from_secs(60)).await;
    for restarts in 1..3 {
        bench.manager(&web).exits(&web.unit(), 3);
        bench.later(Duration::from_secs(60)).await;
        refused(&bench, &web, 125, words).await;
        let report = bench.report(&web.instance).unwrap();
        assert_eq!(
            (report.reason.as_str(), report.restarts),
            ("CannotStart", 2 * restarts)
        );
        bench.manager(&web).restart_due(&web.unit());
        bench.later(Duration::from_secs(60)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn podmans_words_may_come_after_the_end_of_the_start() {
    for condition in [RestartCondition::Always, RestartCondition::Never] {
        let (bench, web) = running(condition).await;
        bench.images(&web, &[]);
        bench.manager(&web).restart_due(&web.unit());
        bench.manager(&web).exits(&web.unit(), 125);
        bench.later(Duration::from_millis(300)).await;
        let words = "Error: registry.lab:5000/web:1: image not known";
        bench.logs.say(&web.unit(), words, false);
        bench.later(Duration::from_millis(300)).await;
        assert_eq!(
            bench.calls(&web, &format!("start {}", image_unit(&bench, &web))),
            1,
            "{condition:?}"
        );
        assert_eq!(bench.report(&web.instance).unwrap().restarts, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_podman_can_not_start_has_podmans_words_and_no_exit_code() {
    use RestartCondition::{Always, MaxCount, Never};
    let nope = "crun: executable file `/bin/nope` not found in $PATH";
    for condition in [Always, MaxCount] {
        let (bench, web) = running(condition).await;
        bench.manager(&web).exits(&web.unit(), 3);
        bench.soon().await;
        refused(&bench, &web, 127, &format!("Error: {nope}")).await;
        let report = bench.report(&web.instance).unwrap();
        assert_eq!(
            (report.phase, report.reason.as_str(), report.exit_code),
            (InstancePhase::Restarting, "CannotStart", None)
        );
        assert_eq!(
            report.message,
            format!("Podman can't start its container: {nope}")
        );
        assert_eq!(
            report.restarts, 2,
            "such a start is tried as often as a program"
        );
    }
    let (bench, web) = running(Never).await;
    refused(&bench, &web, 127, &format!("Error: {nope}")).await;
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Failed, "CannotStart")
    );
    assert!(message.ends_with(nope), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_program_may_end_with_an_exit_code_of_podmans() {
    let (bench, web) = running(RestartCondition::Always).await;
    bench.manager(&web).exits(&web.unit(), 127);
    let line = format!("{}: Failed with result 'exit-code'.", web.unit());
    bench.logs.say_as("systemd", &web.unit(), &line, false);
    bench.soon().await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(
        (report.reason.as_str(), report.exit_code),
        ("CrashLoop", Some(127))
    );
    assert_eq!(
        report.message, "the program ended with exit code 127",
        "systemd's own lines say nothing more"
    );
}

#[tokio::test(start_paused = true)]
async fn the_image_of_a_sidecar_that_podman_does_not_find_is_pulled_again() {
    let bench = Bench::new();
    let mut web = assignment(0, "web");
    web.sidecars = vec![Container {
        name: Some("proxy".to_owned()),
        image: Some("registry.lab:5000/proxy:1".to_owned()),
        ..Container::default()
    }];
    let names = ["registry.lab:5000/web:1", "registry.lab:5000/proxy:1"];
    bench.images(&web, &names);
    let proxy = web.unit_of("proxy").unwrap();
    let rests = UnitBehaviour {
        restarts: true,
        rests: true,
        ..UnitBehaviour::default()
    };
    bench.behave(&proxy, Some(rests));
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(2)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    assert_eq!(bench.calls(&web, "start kat-image-"), 0);
    bench.images(&web, &names[..1]);
    bench.logs.say(&proxy, "Error: image not known", false);
    bench.manager(&web).exits(&proxy, 125);
    bench.soon().await;
    assert_eq!(bench.calls(&web, "start kat-image-"), 1);
    let (phase, _, message) = bench.said(&web.instance);
    assert_eq!(phase, InstancePhase::Running, "its main container runs");
    assert!(
        message.contains("sidecar proxy: Podman can't start its container: image not known"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_pull_of_a_sidecars_image_names_the_sidecar_and_its_image() {
    let bench = Bench::new();
    let mut web = assignment(0, "web");
    let proxy = Container {
        name: Some("proxy".to_owned()),
        image: Some("registry.lab:5000/proxy:1".to_owned()),
        ..Container::default()
    };
    let unit = image_unit(&bench, &web.only(&proxy));
    web.sidecars = vec![proxy];
    bench.images(&web, &["registry.lab:5000/web:1"]);
    bench.behave(&unit, Some(fails()));
    bench.logs.say(&unit, "Error: manifest unknown", false);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(
        bench.said(&web.instance),
        (
            InstancePhase::Pulling,
            "ImageNotFound".to_owned(),
            "image registry.lab:5000/proxy:1 of sidecar proxy: manifest unknown".to_owned()
        )
    );
}
