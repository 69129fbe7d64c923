//! Pulls that fail, and images that vanish.

use super::*;

fn fails() -> Behaviour {
    Behaviour {
        oneshot: true,
        exits: Some(125),
        ..Behaviour::default()
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
            "ImagePullFailed".to_owned(),
            "manifest unknown".to_owned()
        )
    );
    bench.later(Duration::from_secs(62)).await;
    // At 0, 1, 3, 7, 15 and 31 s.
    assert_eq!(bench.calls(&web, &format!("start {unit}")), 6);
    assert_eq!(bench.calls(&web, "start kat-default-web-"), 0);
    bench.behaviours.lock().unwrap().clear();
    bench.manager(&web).define(
        &unit,
        Behaviour {
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
    let slow = Behaviour {
        oneshot: true,
        exits: Some(0),
        start_takes: Duration::from_secs(600),
        ..Behaviour::default()
    };
    bench.behave(&image_unit(&bench, &web), Some(slow));
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Pulling);
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
    bench.later(Duration::from_secs(600)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
}
