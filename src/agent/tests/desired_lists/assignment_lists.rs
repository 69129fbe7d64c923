//! Lists of assignments, and the instance list that the agent writes for `kat-net`.

use super::*;

#[tokio::test(start_paused = true)]
async fn without_a_list_nothing_happens() {
    let bench = Bench::new();
    bench.later(Duration::from_secs(100)).await;
    assert!(!bench.root.path().join("net/instances.json").exists());
    assert_eq!(bench.statuses.all(), (Vec::new(), Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn two_workloads_do_not_disturb_each_other() {
    let bench = Bench::new();
    let (web, other) = (assignment(0, "web"), assignment(1, "other"));
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    bench.manager(&other).clear_calls();
    bench.list(true, &[stopped(&web), other.clone()]);
    bench.soon().await;
    bench.list(true, std::slice::from_ref(&other));
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.accounts.all(), [other.user.uid]);
    assert_eq!(bench.manager(&other).calls(), Vec::<String>::new());
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
    assert_eq!(bench.statuses.all().1, [1]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_waits_with_a_reason_until_the_networks_list_is_written() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let folder = bench.root.path().join("net");
    std::fs::remove_dir(&folder).unwrap();
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(60)).await;
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "FilesNotWritten")
    );
    assert!(message.contains("net/instances.json"), "{message}");
    assert_eq!(bench.statuses.unwritten(), [message]);
    assert_eq!(bench.accounts.all(), Vec::<u32>::new(), "nothing is begun");
    assert_eq!(bench.statuses.acted(), 0);
    std::fs::create_dir(&folder).unwrap();
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    assert_eq!(bench.statuses.unwritten(), Vec::<String>::new());
    assert_eq!(bench.statuses.acted(), 1);
}

/// Deleting a workload frees space on a full disk, so it must not need to write.
#[tokio::test(start_paused = true)]
async fn workloads_stop_and_leave_while_the_networks_list_cannot_be_written() {
    let bench = Bench::new();
    let (web, other, new) = (
        assignment(0, "web"),
        assignment(1, "other"),
        assignment(2, "new"),
    );
    bench.list(true, &[web.clone(), other.clone()]);
    bench.soon().await;
    // A folder at the path of the file makes the write fail.
    let file = bench.root.path().join("net/instances.json");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    bench.list(true, &[stopped(&web), other.clone()]);
    bench.soon().await;
    bench.list(true, &[other.clone(), new.clone()]);
    bench.later(Duration::from_secs(60)).await;
    assert!(file.is_dir(), "it is not written");
    assert_eq!(bench.accounts.all(), [other.user.uid], "web's user is gone");
    assert_eq!(bench.report(&web.instance), None);
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
    assert_eq!(bench.said(&new.instance).1, "FilesNotWritten");
    // An instance that leaves before it was started is no longer reported.
    bench.list(true, std::slice::from_ref(&other));
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.report(&new.instance), None);
    std::fs::remove_dir(&file).unwrap();
    bench.list(true, &[other.clone(), new.clone()]);
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.said(&new.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_comes_back_while_it_goes_runs_again() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    for round in 0..5 {
        bench.list(true, std::slice::from_ref(&web));
        bench.later(Duration::from_millis(round)).await;
        bench.list(true, &[]);
        bench.later(Duration::from_millis(round)).await;
        bench.list(true, std::slice::from_ref(&web));
        bench.later(Duration::from_secs(40)).await;
        assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    }
}
