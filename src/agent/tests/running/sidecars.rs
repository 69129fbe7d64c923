//! Sidecars and init containers: their files and units are created and removed with the instance.

use super::*;
use kat_systemd::{ActiveState, UnitManager};
use kat_types::{api::Health, resource::OtherKind};

/// The workload `web` with an init container, and with a sidecar of another image.
fn with_others() -> Assignment {
    let named = |name: &str, image: &str| Container {
        name: Some(name.to_owned()),
        image: Some(image.to_owned()),
        ..Container::default()
    };
    let web = assignment(0, "web");
    Assignment {
        init_containers: vec![named("prepare", &web.image)],
        sidecars: vec![named("proxy", "registry.lab:5000/proxy:1")],
        ..web
    }
}

fn unit(web: &Assignment, what: &str) -> String {
    web.unit().replace(".service", &format!("_{what}.service"))
}

#[tokio::test(start_paused = true)]
async fn sidecars_and_init_containers_are_created_and_removed_with_their_instance() {
    let bench = Bench::new();
    let web = with_others();
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(5)).await;
    let manager = bench.manager(&web);
    // systemd would start the sidecar together with the main container; the fake manager leaves
    // that to the agent.
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    let status = manager.status(&unit(&web, "side-proxy")).await.unwrap();
    assert_eq!(status.active_state, ActiveState::Active);
    let report = bench.report(&web.instance).unwrap();
    let told: Vec<(&str, OtherKind)> = report
        .containers
        .iter()
        .map(|one| (one.name.as_str(), one.kind))
        .collect();
    assert_eq!(
        told,
        [("prepare", OtherKind::Init), ("proxy", OtherKind::Sidecar)]
    );
    // Both images are pulled before the instance starts.
    assert_eq!(bench.calls(&web, "start kat-image-"), 2);
    assert_eq!(web.asking_unit(), unit(&web, "net"));
    assert!(bench.root.path().join("var/lib/kat/holder/proc").is_dir());

    manager.clear_calls();
    bench.list(true, &[stopped(&web)]);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
    let stops: Vec<String> = manager
        .calls()
        .into_iter()
        .filter_map(|call| Some(call.strip_prefix("stop ")?.to_owned()))
        .collect();
    let order = ["side-proxy", "init-prepare", "net"].map(|what| unit(&web, what));
    assert_eq!(stops[0], web.unit());
    assert_eq!(stops[1..4], order);
    let left: Vec<_> = std::fs::read_dir(bench.units(&web))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("web-aaaaa"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_that_does_not_run_makes_its_instance_unhealthy() {
    let bench = Bench::new();
    let web = with_others();
    let proxy = unit(&web, "side-proxy");
    bench.behave(
        &proxy,
        Some(UnitBehaviour {
            exits: Some(3),
            ..UnitBehaviour::default()
        }),
    );
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(5)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(report.phase, InstancePhase::Running);
    assert_eq!(report.reason, "SidecarNotRunning");
    assert!(
        report.message.contains("sidecar proxy"),
        "{}",
        report.message
    );
    assert_eq!(report.health_status, Health::Unhealthy);
    assert_eq!(report.restarts, 0);
    // The main program keeps running.
    assert_eq!(bench.calls(&web, &format!("stop {}", web.unit())), 0);
    // The agent retries at growing intervals.
    let tries = bench.calls(&web, &format!("start {proxy}"));
    assert!((1..10).contains(&tries), "{tries} starts in 5 s");
}

#[test]
fn units_of_one_instance_are_no_others() {
    let web = with_others();
    let mut tricky = web.clone();
    // The id of another workload's instance may end like a sidecar's unit name.
    tricky.instance = "web-aaaaa-side-proxy".to_owned();
    let units = |one: &Assignment| {
        let others = one
            .others()
            .map(|(kind, other)| one.other_unit(kind, other));
        let mut units: BTreeSet<String> = others.collect();
        units.insert(one.unit());
        units.extend(one.network_unit());
        units
    };
    assert_eq!(units(&web).len(), 4);
    assert!(units(&web).is_disjoint(&units(&tricky)));
    for unit in units(&web) {
        assert_eq!(kat_types::assignment::main_unit(&unit), web.unit());
    }
}
