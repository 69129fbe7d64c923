//! Assignments of a newer leader that this agent does not understand.

use super::*;

fn newer(assignment: &Assignment) -> Assignment {
    let mut stored = serde_json::to_value(assignment).unwrap();
    stored["restartPolicy"]["condition"] = "OnTuesdays".into();
    serde_json::from_value(stored).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_assignment_of_a_newer_schema_keeps_running_but_does_not_start() {
    let bench = Bench::new();
    let (web, other) = (assignment(0, "web"), assignment(1, "other"));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let before = std::fs::read_dir(bench.units(&web)).unwrap().count();
    bench.manager(&web).clear_calls();
    bench.list(true, &[newer(&web), newer(&other)]);
    bench.later(Duration::from_secs(100)).await;
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Running, "NotUnderstood")
    );
    assert!(message.contains("OnTuesdays"), "{message}");
    let calls = bench.manager(&web).calls();
    assert!(
        calls.iter().all(|call| call.starts_with("status")),
        "{calls:?}"
    );
    assert_eq!(
        std::fs::read_dir(bench.units(&web)).unwrap().count(),
        before
    );
    let (phase, reason, _) = bench.said(&other.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Scheduled, "NotUnderstood")
    );
    assert_eq!(bench.calls(&other, "start"), 0);
    // Such an instance can be stopped, and one that the agent understands again runs.
    bench.list(true, &[stopped(&newer(&web)), other.clone()]);
    bench.later(Duration::from_secs(5)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
    assert_eq!(bench.said(&other.instance).0, InstancePhase::Running);
}
