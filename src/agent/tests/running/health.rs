//! Health checks of running instances.

use super::*;
use kat_systemd::UnitManager;
use kat_types::{
    api::Health,
    resource::{HealthCheck, HttpProbe, Port, PortRef, Protocol},
};

/// The assignment with an HTTP health check every 10 s and a failure threshold of 3.
pub(super) fn checked(assignment: Assignment) -> Assignment {
    let port = Port {
        name: None,
        container_port: 80,
        protocol: Protocol::Tcp,
        host_port: None,
        ..Port::default()
    };
    let http = HttpProbe {
        path: "/healthz".to_owned(),
        port: PortRef::Number(80),
    };
    Assignment {
        schema: 3,
        ports: vec![port],
        health_check: Some(HealthCheck {
            http: Some(http),
            ..HealthCheck::default()
        }),
        ..assignment
    }
}

fn restarting(assignment: Assignment) -> Assignment {
    let mut checked = checked(assignment);
    if let Some(check) = &mut checked.health_check {
        check.restart_on_unhealthy = true;
    }
    checked
}

impl Bench {
    fn health(&self, assignment: &Assignment) -> Health {
        self.report(&assignment.instance).unwrap().health_status
    }
}

#[tokio::test(start_paused = true)]
async fn one_without_a_health_check_has_none() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.health(&web), Health::NotApplicable);
}

#[tokio::test(start_paused = true)]
async fn health_follows_the_probes_at_once_and_says_why() {
    let bench = Bench::new();
    bench.answer(Err("connection refused"));
    let web = checked(assignment(0, "web"));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.health(&web), Health::PendingCheck);
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Running, "HealthCheckPending")
    );
    let why = "its health check does not succeed yet: GET :80/healthz: connection refused";
    assert_eq!(message, why);
    bench.answer(Ok(200));
    bench.later(Duration::from_secs(10)).await;
    assert_eq!(bench.health(&web), Health::Healthy);
    let all_is_well = (InstancePhase::Running, String::new(), String::new());
    assert_eq!(bench.said(&web.instance), all_is_well);
    bench.answer(Ok(503));
    bench.later(Duration::from_secs(19)).await;
    assert_eq!(bench.said(&web.instance), all_is_well);
    // A subscriber to statuses is notified at the third failure.
    while bench.health(&web) == Health::Healthy {
        let news = tokio::time::timeout(Duration::from_secs(12), bench.statuses.changed());
        news.await.unwrap();
    }
    let (_, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (bench.health(&web), reason.as_str()),
        (Health::Unhealthy, "Unhealthy")
    );
    assert_eq!(message, "its health check fails: GET :80/healthz: http 503");
    assert_eq!(bench.calls(&web, "restart"), 0);
    bench.answer(Ok(200));
    bench.later(Duration::from_secs(11)).await;
    assert_eq!(bench.said(&web.instance), all_is_well);
}

#[tokio::test(start_paused = true)]
async fn another_run_of_the_program_is_pending_again() {
    let bench = Bench::new();
    let web = checked(assignment(0, "web"));
    let again = UnitBehaviour {
        restarts: true,
        ..UnitBehaviour::default()
    };
    bench.behave(&web.unit(), Some(again));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.health(&web), Health::Healthy);
    bench.answer(Err("connection refused"));
    bench.manager(&web).exits(&web.unit(), 1);
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    assert_eq!(bench.health(&web), Health::PendingCheck);
}

/// An upgrade of the agent takes no instance out of service, because the first report has the
/// stored health.
#[tokio::test(start_paused = true)]
async fn the_health_of_an_instance_survives_a_restart_of_the_agent() {
    let mut bench = Bench::new();
    let web = checked(assignment(0, "web"));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.health(&web), Health::Healthy);
    // Probes fail from now on, but the failure threshold is not reached before the checks below.
    bench.answer(Err("connection refused"));
    for how in ["restarted", "killed"] {
        match how {
            "killed" => bench.kill().await,
            _ => bench.restart().await,
        }
        while bench.report(&web.instance).is_none() {
            bench.statuses.changed().await;
        }
        assert_eq!(bench.health(&web), Health::Healthy, "{how}");
        bench.soon().await;
        assert_eq!(bench.health(&web), Health::Healthy, "{how}");
    }
    bench.later(Duration::from_secs(21)).await;
    assert_eq!(bench.health(&web), Health::Unhealthy);
    bench.restart().await;
    bench.soon().await;
    assert_eq!(bench.health(&web), Health::Unhealthy);
    // The health of an earlier run of the unit does not apply to the present one.
    let manager = bench.manager(&web);
    let unit = web.unit();
    bench.cancel.cancel();
    bench.running.take().unwrap().await.unwrap();
    manager
        .restart(&unit, Duration::from_secs(9))
        .await
        .unwrap();
    bench.begin();
    bench.soon().await;
    assert_eq!(bench.health(&web), Health::PendingCheck);
}

#[tokio::test(start_paused = true)]
async fn what_is_unhealthy_is_started_again_where_its_file_says_so() {
    let bench = Bench::new();
    let web = restarting(assignment(0, "web"));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.answer(Ok(503));
    bench.later(Duration::from_secs(31)).await;
    assert_eq!(bench.calls(&web, "restart"), 1);
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(
        (report.phase, report.restarts, report.health_status),
        (InstancePhase::Running, 1, Health::PendingCheck)
    );
    let why = "it was started again because its health check failed: http 503";
    assert!(report.message.contains(why), "{}", report.message);
    bench.answer(Ok(200));
    bench.later(Duration::from_secs(10)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(
        (
            report.health_status,
            report.restarts,
            report.message.as_str()
        ),
        (Health::Healthy, 1, "")
    );
}

/// An instance that never becomes healthy is restarted at growing intervals.
#[tokio::test(start_paused = true)]
async fn restarts_in_vain_become_rarer() {
    let bench = Bench::new();
    bench.answer(Ok(503));
    let mut web = restarting(assignment(0, "web"));
    if let Some(check) = &mut web.health_check {
        (check.period_seconds, check.failure_threshold) = (1, 1);
    }
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(60)).await;
    let in_a_minute = bench.calls(&web, "restart");
    assert!((4..=7).contains(&in_a_minute), "{in_a_minute}");
    // A pause that is longer than the time between two looks is no rest.
    bench.later(Duration::from_secs(40)).await;
    assert!(bench.calls(&web, "restart") > in_a_minute);
    bench.later(Duration::from_secs(500)).await;
    let in_ten = bench.calls(&web, "restart");
    assert!((8..=12).contains(&in_ten), "{in_ten}");
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(report.restarts, u32::try_from(in_ten).unwrap());
}

#[tokio::test(start_paused = true)]
async fn its_restarts_are_counted_on_by_another_agent() {
    let mut bench = Bench::new();
    let web = restarting(assignment(0, "web"));
    let again = UnitBehaviour {
        restarts: true,
        ..UnitBehaviour::default()
    };
    bench.behave(&web.unit(), Some(again));
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.manager(&web).exits(&web.unit(), 1);
    bench.soon().await;
    bench.answer(Ok(503));
    bench.later(Duration::from_secs(40)).await;
    assert_eq!(bench.calls(&web, "restart"), 1);
    bench.answer(Ok(200));
    bench.restart().await;
    bench.later(Duration::from_secs(20)).await;
    assert_eq!(bench.report(&web.instance).unwrap().restarts, 2);
    bench.manager(&web).exits(&web.unit(), 1);
    bench.soon().await;
    assert_eq!(bench.report(&web.instance).unwrap().restarts, 3);
}
