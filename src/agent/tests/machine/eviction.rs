//! Instances that are evicted because a disk runs full.

use super::*;
use crate::disk::eviction::EvictedInstances;
use kat_types::reason::Reason;

fn evicted(assignments: &[&Assignment]) -> EvictedInstances {
    let told = assignments
        .iter()
        .map(|one| (one.instance.clone(), "the disk ran full".to_owned()));
    Arc::new(told.collect())
}

#[tokio::test(start_paused = true)]
async fn an_evicted_instance_is_stopped_says_why_and_starts_again_when_it_may() {
    let mut bench = Bench::new();
    let (filler, web) = (assignment(0, "filler"), assignment(1, "web"));
    bench.list(true, &[filler.clone(), web.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&filler.instance).0, InstancePhase::Running);
    bench.evicted.send_replace(evicted(&[&filler]));
    bench.soon().await;
    assert_eq!(
        bench.said(&filler.instance),
        (
            InstancePhase::Scheduled,
            Reason::Evicted.into(),
            "the disk ran full".to_owned()
        )
    );
    assert_eq!(bench.calls(&filler, "stop"), 1);
    // A transient unit removes the instance's containers with Podman.
    assert_eq!(bench.calls(&filler, "run_transient evict-kat-"), 1);
    // No file is left by which systemd could start the instance, now or at boot.
    assert!(
        !bench
            .units(&filler)
            .join("kat-default-filler-aaaaa.container")
            .exists()
    );
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    assert_eq!(bench.calls(&web, "stop"), 0);
    // A restarted agent does not start the instance either.
    bench.restart().await;
    bench.list(true, &[filler.clone(), web.clone()]);
    bench.later(Duration::from_secs(60)).await;
    assert_eq!(bench.said(&filler.instance).1, Reason::Evicted);
    assert_eq!(
        bench.calls(&filler, "start kat-default-filler-aaaaa.service"),
        1
    );
    bench.evicted.send_replace(EvictedInstances::default());
    bench.soon().await;
    assert_eq!(bench.said(&filler.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn an_evicted_instance_that_is_to_stop_for_good_is_confirmed_as_stopped() {
    let bench = Bench::new();
    let filler = assignment(0, "filler");
    bench.list(true, std::slice::from_ref(&filler));
    bench.soon().await;
    bench.evicted.send_replace(evicted(&[&filler]));
    bench.soon().await;
    bench.list(true, &[stopped(&filler)]);
    bench.soon().await;
    assert_eq!(bench.said(&filler.instance).0, InstancePhase::Stopped);
}

/// The kill does not wait for the grace period of the file, because no other instance can write
/// until the disk has space.
#[tokio::test(start_paused = true)]
async fn an_evicted_instance_that_does_not_end_is_killed() {
    let bench = Bench::new();
    let mut filler = assignment(0, "filler");
    filler.container.termination_grace_seconds = 600;
    bench.behave(
        &filler.unit(),
        Some(UnitBehaviour {
            stop_takes: Duration::from_secs(600),
            ..UnitBehaviour::default()
        }),
    );
    bench.list(true, std::slice::from_ref(&filler));
    bench.soon().await;
    bench.evicted.send_replace(evicted(&[&filler]));
    bench.later(Duration::from_secs(4)).await;
    assert_eq!(bench.calls(&filler, "run_transient evict-kat-"), 0);
    bench.later(Duration::from_secs(2)).await;
    assert_eq!(bench.calls(&filler, "run_transient evict-kat-"), 1);
}
