//! Instances that run and need nothing: what a short look sees, and what waits for a pass.

use super::*;
use kat_systemd::SystemdError;

/// Two instances that run, after their last events.
async fn at_rest() -> (Bench, Assignment) {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let other = Assignment {
        instance: "web-bbbbb".to_owned(),
        ..web.clone()
    };
    bench.list(true, &[web.clone(), other]);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    (bench, web)
}

fn resolv(bench: &Bench) -> std::path::PathBuf {
    bench.root.path().join("var/lib/kat/resolv/default.conf")
}

#[tokio::test(start_paused = true)]
async fn what_no_look_compares_is_mended_by_a_pass_after_two_minutes() {
    let (bench, _) = at_rest().await;
    let right = std::fs::read(resolv(&bench)).unwrap();
    std::fs::write(resolv(&bench), "nameserver 192.0.2.1\n").unwrap();
    bench.later(Duration::from_secs(31)).await;
    assert_ne!(
        std::fs::read(resolv(&bench)).unwrap(),
        right,
        "a look is no pass"
    );
    bench.later(Duration::from_secs(120)).await;
    assert_eq!(std::fs::read(resolv(&bench)).unwrap(), right);
}

#[tokio::test(start_paused = true)]
async fn unit_files_that_somebody_changes_or_removes_are_back_after_half_a_minute() {
    let (bench, web) = at_rest().await;
    let file = bench.units(&web).join("kat-default-web-aaaaa.container");
    let link = bench.links(&web).join("kat-default-web-aaaaa.container");
    let right = std::fs::read(&file).unwrap();
    std::fs::write(&file, &right[1..]).unwrap();
    bench.later(Duration::from_secs(31)).await;
    assert_eq!(std::fs::read(&file).unwrap(), right);
    bench.later(Duration::from_secs(60)).await;
    std::fs::remove_file(&link).unwrap();
    bench.later(Duration::from_secs(31)).await;
    assert_eq!(std::fs::read_link(&link).unwrap(), file);
}

#[tokio::test(start_paused = true)]
async fn an_account_that_somebody_removes_is_made_anew_after_half_a_minute() {
    let (bench, web) = at_rest().await;
    bench.accounts.remove(&web.user).await.unwrap();
    bench.later(Duration::from_secs(31)).await;
    assert!(bench.accounts.find(web.user.uid).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_ends_while_all_rest_is_started_at_once() {
    let (bench, web) = at_rest().await;
    let starts = bench.calls(&web, "start");
    bench.manager(&web).exits(&web.unit(), 3);
    bench.later(Duration::from_secs(5)).await;
    assert_eq!(bench.calls(&web, "start"), starts + 1);
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_stops_answering_is_noticed_by_a_look() {
    let (bench, web) = at_rest().await;
    bench.manager(&web).clear_calls();
    let refused = SystemdError::Refused {
        unit: web.unit(),
        name: "org.example.Refused".to_owned(),
        message: "as a test".to_owned(),
    };
    bench.manager(&web).fail_next("status", refused);
    bench.later(Duration::from_secs(31)).await;
    // The look broke, and the pass after it found everything as it should be.
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.manager(&web).calls(), Vec::<String>::new());
}
