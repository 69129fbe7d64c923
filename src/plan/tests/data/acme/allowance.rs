//! The orders of new certificates that a namespace may make within a day.

use super::*;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

fn host(namespace: &str, number: usize) -> String {
    format!("h{number:02}.{namespace}.example.org")
}

/// Gives a namespace a workload with routes for this many hosts.
fn routes_for(world: &mut World, namespace: &str, count: usize) {
    let hosts = (0..count).map(|number| host(namespace, number));
    let routes: Vec<_> = hosts
        .map(|host| json!({"host": host, "servicePort": 80, "tls": true}))
        .collect();
    route(world, namespace, "web", json!(routes));
    issue(world);
}

/// A world whose namespaces have routes for this many hosts each.
fn world_with(namespaces: &[(&str, usize)]) -> World {
    let mut world = machines(1);
    configure(&mut world, |_| {});
    for (namespace, count) in namespaces {
        world.namespace(namespace, false);
        routes_for(&mut world, namespace, *count);
    }
    world.settle();
    serving(&mut world, i64::MAX);
    world
}

fn set_quota(world: &mut World, namespace: &str, orders: u64) {
    let mut record = world.snapshot().namespaces[namespace].value.clone();
    record.quota.certificate_orders = Some(orders);
    world.write(keys::namespace(namespace), &record);
}

/// The numbers of the hosts of a namespace that have a certificate by ACME.
fn ordered(world: &mut World, namespace: &str, count: usize) -> Vec<usize> {
    let snapshot = world.snapshot();
    let has = |number: &usize| {
        let stored = snapshot.ingress_certificates.get(&host(namespace, *number));
        stored.is_some_and(|stored| stored.value.acme.is_some())
    };
    (0..count).filter(has).collect()
}

/// Why a host of the default namespace is not served as written.
fn trouble_of(world: &mut World, number: usize) -> Option<(Reason, String)> {
    let snapshot = world.snapshot();
    let planned = planned_routes(&snapshot).into_iter();
    let mut own = planned.filter(|planned| planned.route.host == host(NAMESPACE, number));
    let trouble = own.next().unwrap().trouble?;
    Some((trouble.reason, trouble.message))
}

fn used(world: &mut World) -> Option<u64> {
    used_by_namespace(&world.snapshot(), NAMESPACE).certificate_orders
}

#[test]
fn hosts_beyond_the_orders_of_a_namespace_wait_a_day_and_say_until_when() {
    let mut world = world_with(&[(NAMESPACE, 5)]);
    set_quota(&mut world, NAMESPACE, 3);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    let begin = world.now;
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("order"), 3);
    assert_eq!(ordered(&mut world, NAMESPACE, 5), [0, 1, 2]);
    assert_eq!(used(&mut world), Some(3));
    let until = world.snapshot().acme_new_orders[NAMESPACE].value.until();
    let lasts = until.duration_since(begin).as_secs();
    assert!((86_400..86_460).contains(&lasts), "{lasts}");
    let waits = format!(
        "the certificate for {} waits until {until:.0}: namespace default has used its 3 orders of new certificates in 24 hours (quota certificateOrders)",
        host(NAMESPACE, 3)
    );
    let expected = Some((Reason::CertificateLimitReached, waits.clone()));
    assert_eq!(trouble_of(&mut world, 3), expected);
    // Machines have the route meanwhile, and answer with a page that says so.
    world.settle();
    let assigned = given(&mut world, "n1").unwrap();
    assert_eq!(assigned.routes[3].awaits, waits);
    assert!(assigned.routes[3].certificate.is_some());

    world.pass(Duration::from_secs(23 * HOUR));
    serving(&mut world, i64::MAX);
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("order"), 3);
    world.pass(Duration::from_secs(2 * HOUR));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("order"), 5);
    assert_eq!(ordered(&mut world, NAMESPACE, 5), [0, 1, 2, 3, 4]);
    assert_eq!(
        (used(&mut world), trouble_of(&mut world, 3)),
        (Some(2), None)
    );
    // A count goes when it counts no more.
    world.pass(Duration::from_secs(DAY));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(used(&mut world), Some(0));
    assert!(world.snapshot().acme_new_orders.is_empty());
}

#[test]
fn a_namespace_without_the_quota_orders_twenty_new_certificates_a_day() {
    let mut world = world_with(&[(NAMESPACE, 22)]);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("order"), 20);
    let (reason, message) = trouble_of(&mut world, 21).unwrap();
    assert_eq!(reason, Reason::CertificateLimitReached);
    assert!(message.contains("has used its 20 orders"), "{message}");
    // A higher quota counts at once.
    set_quota(&mut world, NAMESPACE, 21);
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("order"), 21);
}

#[test]
fn renewals_are_neither_counted_nor_held_up() {
    let mut world = world_with(&[(NAMESPACE, 2)]);
    set_quota(&mut world, NAMESPACE, 2);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    assert_eq!((server.count("order"), used(&mut world)), (2, Some(2)));
    let issued = |world: &mut World, number: usize| {
        let snapshot = world.snapshot();
        let stored = &snapshot.ingress_certificates[&host(NAMESPACE, number)];
        stored.value.issued
    };
    let first = issued(&mut world, 1);
    // Two hosts are to be renewed, two are new, and one is too many.
    world.pass(Duration::from_secs(61 * DAY));
    routes_for(&mut world, NAMESPACE, 5);
    serving(&mut world, i64::MAX);
    run(&mut world, &mut server, &mut orders);
    assert_eq!((server.count("order"), used(&mut world)), (6, Some(2)));
    assert_eq!(ordered(&mut world, NAMESPACE, 5), [0, 1, 2, 3]);
    assert!(issued(&mut world, 1) > first);
    // Without any orders of new certificates, the present ones are renewed.
    set_quota(&mut world, NAMESPACE, 0);
    world.pass(Duration::from_secs(61 * DAY));
    run(&mut world, &mut server, &mut orders);
    assert_eq!((server.count("order"), used(&mut world)), (10, Some(0)));
    let waits = format!(
        "the certificate for {} waits for another quota certificateOrders of namespace default, which is 0",
        host(NAMESPACE, 4)
    );
    let expected = Some((Reason::CertificateLimitReached, waits));
    assert_eq!(trouble_of(&mut world, 4), expected);
}

#[test]
fn a_namespace_that_has_used_its_orders_holds_up_no_other_one() {
    let mut world = world_with(&[(NAMESPACE, 9), ("another", 2)]);
    set_quota(&mut world, NAMESPACE, 1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    assert_eq!(ordered(&mut world, NAMESPACE, 9), [0]);
    assert_eq!(ordered(&mut world, "another", 2), [0, 1]);
    assert_eq!(server.count("order"), 3);
}

#[test]
fn another_leader_continues_with_the_orders_that_were_counted() {
    let scene = || {
        let mut world = world_with(&[(NAMESPACE, 4)]);
        set_quota(&mut world, NAMESPACE, 2);
        (world, Server::new(), AcmeOrders::default())
    };
    let steps = {
        let (mut world, mut server, mut orders) = scene();
        run(&mut world, &mut server, &mut orders)
    };
    assert!(steps > 10, "{steps}");
    for number in 0..steps {
        let (mut world, mut server, mut orders) = scene();
        let limit = world.now.checked_add(SignedDuration::from_mins(5)).unwrap();
        let lost = Lost::Before(number);
        run_until(&mut world, &mut server, &mut orders, limit, lost);
        assert_eq!(server.count("order"), 2, "{lost:?}: {:?}", server.asked);
        // Nor does a leader that begins when all is counted order more.
        world.new_leader();
        world.pass(Duration::from_secs(HOUR));
        run(&mut world, &mut server, &mut AcmeOrders::default());
        assert_eq!(server.count("order"), 2, "{lost:?}");
    }
}

#[test]
fn what_fails_before_the_server_has_made_the_order_does_not_count_and_a_later_failure_does() {
    let mut world = world_with(&[(NAMESPACE, 1)]);
    set_quota(&mut world, NAMESPACE, 1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    server.checked = CheckedName::default();
    let limit = world
        .now
        .checked_add(SignedDuration::from_secs(30))
        .unwrap();
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert_eq!((server.count("check"), used(&mut world)), (1, Some(0)));
    server.checked = CheckedName {
        right: vec![HERE],
        ..CheckedName::default()
    };
    server
        .next
        .push(("continue", failure(AcmeFailureKind::Refused, None)));
    world.pass(Duration::from_secs(HOUR));
    run(&mut world, &mut server, &mut orders);
    assert_eq!((server.count("order"), used(&mut world)), (1, Some(1)));
    // The next attempt of the host itself would be earlier.
    world.pass(Duration::from_secs(2 * HOUR));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("order"), 1);
    let until = world.snapshot().acme_new_orders[NAMESPACE].value.until();
    let (reason, message) = trouble_of(&mut world, 0).unwrap();
    assert_eq!(reason, Reason::CertificateFailed);
    let waits = format!("; the next attempt waits until {until:.0}: namespace default has used");
    assert!(message.contains(&waits), "{message}");
    world.pass(Duration::from_secs(DAY));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(ordered(&mut world, NAMESPACE, 1), [0]);
}

#[test]
fn an_order_counts_also_if_its_route_is_deleted_before_the_answer() {
    let mut world = world_with(&[(NAMESPACE, 1)]);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    for _ in 0..50 {
        let (snapshot, observed) = (world.snapshot(), world.observed());
        let question = match orders.next(&snapshot, &observed, world.now).unwrap() {
            AcmeStep::Wait(_) => {
                world.pass(Duration::from_secs(1));
                continue;
            }
            AcmeStep::Write(step) => {
                world.apply(&step.operations);
                continue;
            }
            AcmeStep::Ask(question) => question,
        };
        let is_order = matches!(question.request, AcmeRequest::Order { .. });
        let reply = server.answer(&question, &world);
        if is_order {
            let other = json!([{"host": "a.lan", "servicePort": 80}]);
            route(&mut world, NAMESPACE, "web", other);
        }
        let snapshot = world.snapshot();
        let now = world.now;
        let step = orders.answered(&snapshot, &question, reply, now).unwrap();
        if let Some(step) = step {
            world.apply(&step.operations);
        }
        if is_order {
            break;
        }
    }
    run(&mut world, &mut server, &mut orders);
    assert!(world.snapshot().acme_orders.is_empty());
    assert_eq!((server.count("order"), used(&mut world)), (1, Some(1)));
}

#[test]
fn a_count_that_a_clock_far_ahead_has_begun_holds_up_nothing() {
    let mut world = world_with(&[(NAMESPACE, 2)]);
    set_quota(&mut world, NAMESPACE, 1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    let right = world.now;
    world.pass(Duration::from_secs(400 * DAY));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(ordered(&mut world, NAMESPACE, 2), [0]);
    world.now = right;
    run(&mut world, &mut server, &mut orders);
    assert_eq!(ordered(&mut world, NAMESPACE, 2), [0, 1]);
}
