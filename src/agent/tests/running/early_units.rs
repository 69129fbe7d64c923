//! New units without a reload of the user's manager, and the reload that follows.

use super::*;
use kat_systemd::{SystemdError, UnitManager};
use kat_types::assignment::PREPARED_SCHEMA;

const QUIET: Duration = Duration::from_secs(5);

/// A bench on which one instance runs and the user's manager has reloaded.
async fn with_first() -> (Bench, Assignment) {
    let bench = Bench::new();
    bench.generator.is_installed.store(true, Ordering::Relaxed);
    let web = assignment(0, "web");
    bench.images(&web, &["registry.lab:5000/web:1"]);
    bench.list(true, std::slice::from_ref(&web));
    bench.later(QUIET).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    bench.manager(&web).clear_calls();
    (bench, web)
}

/// Another instance of the same workload.
fn second(web: &Assignment) -> Assignment {
    Assignment {
        instance: "web-bbbbb".to_owned(),
        address: Ipv4Addr::new(10, 100, 0, 9),
        ..web.clone()
    }
}

fn folder(bench: &Bench) -> PathBuf {
    bench.root.path().join("run/systemd/user")
}

fn copied(bench: &Bench) -> Vec<String> {
    let entries = std::fs::read_dir(folder(bench)).into_iter().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn a_new_instance_starts_without_a_reload_which_follows_once() {
    let (bench, web) = with_first().await;
    let other = second(&web);
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
    assert_eq!(
        bench.manager(&web).calls(),
        [format!("start {}", other.unit())]
    );
    assert_eq!(copied(&bench), [other.unit()]);
    let copy = std::fs::metadata(folder(&bench).join(other.unit())).unwrap();
    assert_eq!(
        (copy.mode() & 0o7777, copy.uid(), copy.gid()),
        (0o640, 0, web.user.uid),
        "other users' managers can't read it"
    );
    bench.later(QUIET).await;
    assert_eq!(bench.calls(&web, "reload"), 1);
    assert_eq!(copied(&bench), Vec::<String>::new());
    bench.manager(&web).clear_calls();
    bench.later(Duration::from_secs(600)).await;
    assert_eq!(bench.manager(&web).calls(), Vec::<String>::new());
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn two_workloads_of_one_image_that_start_together_have_copies_of_their_own() {
    let bench = Bench::new();
    bench.generator.is_installed.store(true, Ordering::Relaxed);
    let web = assignment(0, "web");
    let mut other = assignment(1, "other");
    other.image.clone_from(&web.image);
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    let mut expected = Vec::new();
    for one in [&web, &other] {
        let image = image_unit(&bench, one);
        assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
        assert_eq!(
            bench.manager(one).calls(),
            [format!("start {image}"), format!("start {}", one.unit())],
            "each pulls once, without a reload"
        );
        for unit in [image, one.unit()] {
            let copy = std::fs::metadata(folder(&bench).join(&unit)).unwrap();
            assert_eq!(copy.gid(), one.user.uid, "{unit}");
            expected.push(unit);
        }
    }
    expected.sort();
    assert_eq!(copied(&bench), expected);
    bench.later(QUIET).await;
    assert_eq!(copied(&bench), Vec::<String>::new());
    for one in [&web, &other] {
        assert_eq!(bench.calls(one, "reload"), 1);
        assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_leaves_soon_where_no_job_follows() {
    let (bench, web) = with_first().await;
    let mut next = second(&web);
    next.image = "registry.lab:5000/web:2".to_owned();
    bench.images(&web, &[&web.image, &next.image]);
    (next.schema, next.wanted) = (PREPARED_SCHEMA, DesiredRun::Prepared);
    bench.list(true, &[web.clone(), next.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&next.instance).0, InstancePhase::Prepared);
    assert_eq!(bench.manager(&web).calls(), Vec::<String>::new());
    assert_eq!(copied(&bench), [image_unit(&bench, &next)]);
    bench.later(QUIET).await;
    assert_eq!(copied(&bench), Vec::<String>::new());
    assert_eq!(bench.manager(&web).calls(), ["reload"]);
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_is_owed_does_not_wait_for_the_pull_of_a_new_instance() {
    let (bench, web) = with_first().await;
    let refused = SystemdError::Refused {
        unit: "reload".to_owned(),
        name: "org.freedesktop.systemd1.ReloadLimit".to_owned(),
        message: "too often".to_owned(),
    };
    bench.manager(&web).fail_next("reload", refused);
    let mut changed = web.clone();
    changed.container.termination_grace_seconds = 77;
    bench.list(true, std::slice::from_ref(&changed));
    bench.soon().await;
    let mut other = second(&web);
    other.image = "registry.lab:5000/web:never-there".to_owned();
    let slow = UnitBehaviour {
        oneshot: true,
        start_hangs: true,
        ..UnitBehaviour::default()
    };
    bench.behave(&image_unit(&bench, &other), Some(slow));
    bench.list(true, &[changed.clone(), other.clone()]);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Pulling);
    let needed = bench.manager(&web).needs_reload(&changed.unit()).await;
    assert!(!needed.unwrap(), "the new text is loaded");
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_agent_left_is_removed_by_the_next() {
    let (mut bench, web) = with_first().await;
    let other = second(&web);
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(copied(&bench), [other.unit()]);
    bench.kill().await;
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(copied(&bench), Vec::<String>::new());
    assert_eq!(bench.calls(&web, "reload"), 1);
    assert_eq!(bench.calls(&web, "start"), 1, "it went on running");
}

#[tokio::test(start_paused = true)]
async fn a_copy_leaves_with_its_quadlet() {
    let (bench, web) = with_first().await;
    let other = second(&web);
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(copied(&bench), [other.unit()]);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(copied(&bench), Vec::<String>::new());
    assert_eq!(bench.calls(&web, "reload"), 1);
    assert_eq!(bench.manager(&web).live(), [web.unit()]);
}

#[tokio::test(start_paused = true)]
async fn a_copy_does_not_outrank_a_changed_quadlet() {
    let (bench, web) = with_first().await;
    let mut other = second(&web);
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(copied(&bench), [other.unit()]);
    other.container.termination_grace_seconds = 77;
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(copied(&bench), Vec::<String>::new());
    assert_eq!(bench.calls(&web, "reload"), 1);
    let needed = bench.manager(&web).needs_reload(&other.unit()).await;
    assert!(!needed.unwrap(), "the new text is loaded");
}

#[tokio::test(start_paused = true)]
async fn a_unit_that_is_loaded_needs_the_reload() {
    let (bench, web) = with_first().await;
    let other = second(&web);
    // A file that was removed without a reload.
    let earlier = UnitBehaviour::default();
    bench.manager(&web).define(&other.unit(), earlier);
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(copied(&bench), Vec::<String>::new());
    assert_eq!(bench.calls(&web, "reload"), 1);
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn settings_of_others_for_quadlets_are_left_to_the_generator() {
    let places = [
        "etc/containers/systemd/users/container.d",
        "home/kat-default-web/.config/containers/systemd",
        "run/user/20000/containers/systemd",
    ];
    for place in places {
        let (bench, web) = with_first().await;
        assert_eq!(web.user.uid, 20_000);
        std::fs::create_dir_all(bench.root.path().join(place)).unwrap();
        let other = second(&web);
        bench.list(true, &[web.clone(), other.clone()]);
        bench.soon().await;
        assert_eq!(copied(&bench), Vec::<String>::new(), "{place}");
        assert_eq!(bench.calls(&web, "reload"), 1, "{place}");
        assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
    }
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_can_not_be_written_delays_nothing_but_the_copy() {
    let (bench, web) = with_first().await;
    std::fs::remove_dir_all(folder(&bench)).unwrap();
    std::fs::write(folder(&bench), "").unwrap();
    let other = second(&web);
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    assert_eq!(bench.calls(&web, "reload"), 1);
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_fails_delays_no_start_and_is_tried_again() {
    let (bench, web) = with_first().await;
    let other = second(&web);
    let refused = SystemdError::Refused {
        unit: "reload".to_owned(),
        name: "org.freedesktop.systemd1.ReloadLimit".to_owned(),
        message: "too often".to_owned(),
    };
    bench.manager(&web).fail_next("reload", refused);
    bench.list(true, &[web.clone(), other.clone()]);
    bench.later(QUIET).await;
    assert_eq!(bench.calls(&web, "reload"), 1, "it was refused");
    let third = Assignment {
        instance: "web-ccccc".to_owned(),
        address: Ipv4Addr::new(10, 100, 0, 10),
        ..web.clone()
    };
    bench.list(true, &[web.clone(), other.clone(), third.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&third.instance).0, InstancePhase::Running);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(copied(&bench), Vec::<String>::new());
    assert_eq!(bench.calls(&web, "reload"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_was_killed_before_a_reload_leaves_it_to_the_next() {
    let (mut bench, web) = with_first().await;
    let mark = folder(&bench).join(".kat-20000");
    assert!(!mark.exists(), "the manager has reloaded");
    std::fs::write(&mark, "").unwrap();
    std::os::unix::fs::chown(&mark, Some(0), Some(web.user.uid)).unwrap();
    bench.restart().await;
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.calls(&web, "reload"), 1);
    assert!(!mark.exists());
    bench.manager(&web).clear_calls();
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.manager(&web).calls(), Vec::<String>::new());
}
