//! Health checks: the machines that perform them, and the effects of their results.

use super::*;
use kat_types::services::BackendState;

impl World {
    /// The workload `web` with a health check, on one machine whose agent supports health checks.
    fn checked(&mut self, replicas: u32) {
        self.replicas("web", replicas);
        let balancer = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "VirtualLoadBalancer",
            "spec": {
                "ports": [{"name": "web", "containerPort": 80}],
                "healthCheck": {"http": {"path": "/healthz", "port": "web"}, "periodSeconds": 5},
            },
        });
        let file = keys::manifest(NAMESPACE, "web", "VirtualLoadBalancer.kat");
        self.apply(&[WriteOperation::Put(file, balancer.to_string().into_bytes())]);
    }

    /// Sets the agent's report on an instance.
    fn says(&mut self, id: &str, health: Health, reason: &str, message: &str) {
        self.pass(Duration::from_secs(1));
        let machine = self.at("n1");
        // The simulated agent would otherwise overwrite the report.
        machine.obeys = false;
        let report = machine.instances.get_mut(id).unwrap();
        report.health_status = health;
        (report.reason, report.message) = (reason.to_owned(), message.to_owned());
        self.plan_out();
    }

    /// The number of instances to which the service sends callers, and the number of instances with
    /// a name.
    fn serving(&mut self) -> (usize, usize) {
        let snapshot = self.snapshot();
        let service = &snapshot.services[&WorkloadKey::new(NAMESPACE, "web")];
        let balance = service.balance.as_ref().unwrap();
        let parts = balance.value.ports[0].instances.values();
        let names = self.keys("/kat/dns/default/web/A/").into_iter();
        let named = names.filter(|key| key.contains('='));
        (
            parts.filter(|part| **part == BackendState::Serving).count(),
            named.count(),
        )
    }

    fn told(&mut self) -> Vec<(String, String)> {
        let events = self.snapshot().state.events;
        let events = events.values().map(|event| &event.value);
        let of_instances =
            events.filter(|event| event.involved_object.kind == ObjectKind::Instance);
        of_instances
            .map(|event| (event.reason.clone(), event.message.clone()))
            .collect()
    }
}

fn knowing() -> World {
    let mut world = World::with_machines(1);
    world.at("n1").schema = ASSIGNMENT_SCHEMA;
    world
}

#[test]
fn an_instance_without_a_health_check_serves_at_once_and_is_ready_when_it_has_run_for_its_time() {
    let mut world = World::with_machines(1);
    for (replicas, before) in [(1, 0), (2, 1)] {
        world.replicas("web", replicas);
        world.settle();
        let status = world.status("web");
        assert_eq!(
            (status.phase, status.ready, status.updated),
            (WorkloadPhase::Progressing, before, before)
        );
        assert!(!status.conditions[0].status, "it is not available yet");
        let names = world.keys("/kat/dns/default/web/A/").into_iter();
        let named = names.filter(|key| key.contains('=')).count();
        assert_eq!(u32::try_from(named).unwrap(), replicas, "it has its name");
        world.pass(Duration::from_secs(3));
        world.settle();
        let status = world.status("web");
        assert_eq!(
            (status.phase, status.ready, status.updated),
            (WorkloadPhase::Running, replicas, replicas)
        );
    }
}

/// The program ends between two reports, so no report shows it as not running.
#[test]
fn a_program_that_ends_within_its_time_again_and_again_is_never_ready() {
    let mut world = World::with_machines(1);
    world.replicas("web", 1);
    world.settle();
    let id = world.wanted("web")[0].0.clone();
    world.at("n1").obeys = false;
    for restarts in 1..10 {
        world.pass(Duration::from_secs(2));
        world.at("n1").instances.get_mut(&id).unwrap().restarts = restarts;
        world.plan_out();
        let status = world.status("web");
        assert_eq!(
            (status.phase, status.ready),
            (WorkloadPhase::Progressing, 0),
            "{restarts}"
        );
    }
    world.pass(Duration::from_secs(3));
    world.plan_out();
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

#[test]
fn a_health_check_goes_to_machines_that_know_of_it() {
    let mut world = World::with_machines(2);
    (world.at("n1").schema, world.at("n2").schema) = (2, 0);
    world.checked(1);
    world.settle();
    let why = "0 of 2 machines fit: 2 with a version of KAT that is too old for it";
    assert_eq!(world.status("web").conditions[0].message, why);
    world.at("n2").schema = ASSIGNMENT_SCHEMA;
    world.settle();
    let (_, node, assignment) = world.wanted("web").remove(0);
    assert_eq!((node.as_str(), assignment.schema), ("n2", 3));
    let check = assignment.health_check.as_ref().unwrap();
    assert_eq!((check.period_seconds, check.failure_threshold), (5, 3));
    assert_eq!(check.http.as_ref().unwrap().path, "/healthz");
}

#[test]
fn what_waits_for_its_health_check_is_no_trouble_and_says_why() {
    let mut world = knowing();
    world.checked(1);
    world.settle();
    let id = world.wanted("web")[0].0.clone();
    // The instance first loses its name and is then restarted.
    world.says(&id, Health::Unhealthy, "Unhealthy", "");
    let why = "its health check does not succeed yet: GET :80/healthz: connection refused";
    world.says(&id, Health::PendingCheck, "HealthCheckPending", why);
    let status = world.status("web");
    assert_eq!(status.phase, WorkloadPhase::Progressing);
    let expected = format!("0 of 1 instances of this generation are healthy; {id}: {why}");
    assert_eq!(status.conditions[0].message, expected);
    assert_eq!(world.serving(), (0, 0));
}

#[test]
fn what_is_unhealthy_is_named_with_its_reason_and_has_no_name() {
    let mut world = knowing();
    world.checked(2);
    world.settle_and_run();
    assert_eq!(world.serving(), (2, 2));
    let id = world.wanted("web")[0].0.clone();
    let why = "its health check fails: GET :80/healthz: http 503";
    world.says(&id, Health::Unhealthy, "Unhealthy", why);
    let status = world.status("web");
    assert_eq!(
        (
            status.phase,
            status.ready,
            status.conditions[0].reason.as_str()
        ),
        (WorkloadPhase::Degraded, 1, "Unhealthy")
    );
    assert_eq!(status.conditions[0].message, format!("{id}: {why}"));
    assert_eq!(world.serving(), (1, 1));
    assert_eq!(world.wanted("web").len(), 2, "it is not replaced");
    world.says(&id, Health::Healthy, "", "");
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
    assert_eq!(world.serving(), (2, 2));
}

#[test]
fn events_tell_of_each_change_and_of_nothing_else() {
    let mut world = knowing();
    world.checked(1);
    world.settle();
    let id = world.wanted("web")[0].0.clone();
    let started = world.told();
    let why = "its health check fails: GET :80/healthz: http 503";
    world.says(&id, Health::Unhealthy, "Unhealthy", why);
    world.says(
        &id,
        Health::Unhealthy,
        "Unhealthy",
        "the same in other words",
    );
    world.says(&id, Health::Healthy, "", "");
    let told = world.told();
    let pair = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
    assert_eq!(
        told[started.len()..],
        [
            pair("Unhealthy", why),
            pair("Healthy", "its health check succeeds")
        ]
    );
    assert!(started.iter().any(|(reason, _)| reason == "Started"));
    assert_eq!(
        told.iter()
            .filter(|(reason, _)| reason == "Started")
            .count(),
        1
    );
}
