//! Instances being stopped continue to serve during `drainSeconds`.

use super::*;

fn draining(seconds: u32) -> Assignment {
    let container = Container {
        drain_seconds: seconds,
        ..Container::default()
    };
    Assignment {
        container,
        ..assignment(0, "web")
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_to_stop_runs_on_for_its_time_and_says_so() {
    let bench = Bench::new();
    let web = draining(20);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.list(true, &[stopped(&web)]);
    bench.later(Duration::from_millis(19_500)).await;
    assert_eq!(bench.calls(&web, "stop"), 0);
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Stopping, "ConnectionDraining")
    );
    assert!(message.contains("20 s"), "{message}");
    bench.later(Duration::from_secs(1)).await;
    assert_eq!(bench.calls(&web, "stop"), 1);
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
}

/// A program that crashes while it drains is started again by systemd and needs its files.
#[tokio::test(start_paused = true)]
async fn its_files_stay_while_it_drains() {
    let bench = Bench::new();
    let web = draining(20);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.list(true, &[stopped(&web)]);
    bench.later(Duration::from_secs(5)).await;
    let file = bench.units(&web).join("kat-default-web-aaaaa.container");
    assert!(file.exists());
    bench.later(Duration::from_secs(20)).await;
    assert!(!file.exists());
}

/// The drain time counts from when the agent first saw the stop, over any number of restarts and
/// kills of the agent.
#[tokio::test(start_paused = true)]
async fn the_drain_time_continues_after_a_restart_of_the_agent() {
    let mut bench = Bench::new();
    let web = draining(30);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.list(true, &[stopped(&web)]);
    bench.later(Duration::from_secs(10)).await;
    bench.restart().await;
    bench.later(Duration::from_secs(10)).await;
    assert_eq!(bench.said(&web.instance).1, "ConnectionDraining");
    bench.kill().await;
    bench.later(Duration::from_secs(9)).await;
    assert_eq!(bench.calls(&web, "stop"), 0);
    bench.later(Duration::from_secs(2)).await;
    assert_eq!(bench.calls(&web, "stop"), 1);
    bench.list(true, &[]);
    bench.soon().await;
    let notes = bench.root.path().join("run/kat/instances");
    assert_eq!(std::fs::read_dir(notes).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_crashed_instance_is_stopped_without_draining() {
    let bench = Bench::new();
    // The program has crashed and waits for its next start.
    let web = draining(600);
    let crashing = UnitBehaviour {
        restarts: true,
        rests: true,
        ..UnitBehaviour::default()
    };
    bench.behave(&web.unit(), Some(crashing));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.manager(&web).exits(&web.unit(), 1);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Restarting);
    bench.list(true, &[stopped(&web)]);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_not_healthy_is_not_waited_for() {
    for (answer, expected) in [
        (Err("connection refused"), InstancePhase::Stopped),
        (Ok(200), InstancePhase::Stopping),
    ] {
        for another_agent in [false, true] {
            let mut bench = Bench::new();
            bench.answer(answer);
            let web = super::health::checked(draining(600));
            bench.list(true, std::slice::from_ref(&web));
            bench.soon().await;
            if another_agent {
                bench.cancel.cancel();
                bench.running.take().unwrap().await.unwrap();
                bench.begin();
            }
            bench.list(true, &[stopped(&web)]);
            bench.soon().await;
            assert_eq!(bench.said(&web.instance).0, expected, "{answer:?}");
        }
    }
}

/// A machine that is cut off must stop the instance before the leader replaces it, so it does not
/// drain.
#[tokio::test(start_paused = true)]
async fn a_fenced_instance_is_stopped_without_draining() {
    let bench = Bench::new();
    let web = draining(600);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.list(true, &[stopped(&web)]);
    bench.soon().await;
    assert_eq!(bench.calls(&web, "stop"), 0);
    bench.lists.send_modify(|listed| {
        listed.fenced = Arc::new([web.instance.clone()].into());
    });
    bench.soon().await;
    assert_eq!(bench.calls(&web, "stop"), 1);
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Stopped);
}
