//! Whoever waits has a reason.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_instance_that_comes_while_the_user_waits_has_the_reason_at_once() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let second = Assignment {
        instance: "web-bbbbb".to_owned(),
        slot: 1,
        ..web.clone()
    };
    bench.accounts.taken.store(true, Ordering::Relaxed);
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(130)).await;
    bench.list(true, &[web.clone(), second.clone()]);
    bench.later(Duration::from_millis(1)).await;
    let (phase, reason, message) = bench.said(&second.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "UserNotReady")
    );
    assert!(message.contains("taken by dora"), "{message}");
    bench.accounts.taken.store(false, Ordering::Relaxed);
    bench.later(Duration::from_secs(300)).await;
    for one in [&web, &second] {
        let said = bench.said(&one.instance);
        assert_eq!((said.0, said.1.as_str()), (InstancePhase::Running, ""));
    }
}

#[tokio::test(start_paused = true)]
async fn files_that_cant_be_written_are_told_of_new_instances_and_not_of_running_ones() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let second = Assignment {
        instance: "web-bbbbb".to_owned(),
        slot: 1,
        ..web.clone()
    };
    // A folder where the file should be.
    let blocked = bench.units(&web).join("kat-default-web-bbbbb.container");
    std::fs::create_dir(&blocked).unwrap();
    bench.list(true, &[web.clone(), second.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&second.instance).1, "FilesNotWritten");
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    std::fs::remove_dir(&blocked).unwrap();
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.said(&second.instance).0, InstancePhase::Running);
}
