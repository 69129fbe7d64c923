//! Proofs by DNS: records that stand side by side, are waited for, and go whoever leads.

use super::*;
use kat_types::resource::{AcmeZone, DnsUpdate, TsigKey};

const WILDCARD: &str = "*.example.org";

/// The text of the record of an order.
pub(super) fn value(number: usize) -> String {
    format!("{number:A>43}")
}

fn zones(acme: &mut AcmeSettings) {
    acme.dns = vec![AcmeZone {
        zone: "example.org".to_owned(),
        rfc2136: Some(DnsUpdate {
            server: "ns1.example.org".to_owned(),
            tsig: TsigKey {
                secret: "dns-key".to_owned(),
            },
        }),
        hook: None,
    }];
}

/// A world with these hosts, whose zone takes updates. The ingress machines confirm nothing: no
/// proof by DNS needs them.
fn world_with(hosts: &[&str]) -> World {
    let mut world = machines(2);
    let routes: Vec<_> = hosts
        .iter()
        .map(|host| json!({"host": host, "servicePort": 80, "tls": true}))
        .collect();
    route(&mut world, NAMESPACE, "web", json!(routes));
    configure(&mut world, zones);
    set_in(
        &mut world,
        "kat-core",
        "dns-key",
        &[("tsig.key", b"kat:AAECAw==")],
    );
    issue(&mut world);
    world.settle();
    serving(&mut world, 0);
    world
}

fn is_ordered(world: &mut World, host: &str) -> bool {
    let snapshot = world.snapshot();
    let stored = snapshot.ingress_certificates.get(host);
    stored.is_some_and(|stored| stored.value.acme.is_some())
}

fn nothing_is_left(world: &mut World, server: &Server) {
    assert_eq!(server.recorded, BTreeSet::new());
    let snapshot = world.snapshot();
    assert!(snapshot.acme_dns.is_empty(), "{:?}", snapshot.acme_dns);
    assert!(
        snapshot.acme_orders.is_empty(),
        "{:?}",
        snapshot.acme_orders
    );
}

/// The message of the first route.
fn said(world: &mut World) -> String {
    trouble(world)
        .map(|(_, message)| message)
        .unwrap_or_default()
}

fn after(world: &World, seconds: i64) -> Timestamp {
    let later = SignedDuration::from_secs(seconds);
    world.now.checked_add(later).unwrap()
}

#[test]
fn a_wildcard_and_its_domain_are_proved_by_records_that_stand_side_by_side() {
    let mut world = world_with(&[WILDCARD, "example.org"]);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    // Neither is done before the other has begun.
    server.delay = 3;
    let mut most = 0;
    let limit = after(&world, 1);
    for _ in 0..200 {
        run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
        most = most.max(server.recorded.len());
        if is_ordered(&mut world, WILDCARD) && is_ordered(&mut world, "example.org") {
            break;
        }
        world.pass(Duration::from_secs(1));
        let limit = after(&world, 1);
        run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    }
    run(&mut world, &mut server, &mut orders);
    assert!(is_ordered(&mut world, WILDCARD) && is_ordered(&mut world, "example.org"));
    assert_eq!(most, 2, "{:?}", server.asked);
    assert_eq!((server.count("locate"), server.count("check")), (2, 0));
    assert_eq!((server.count("record"), server.count("remove")), (2, 2));
    nothing_is_left(&mut world, &server);
    assert_eq!(said(&mut world), "");
}

#[test]
fn a_zone_with_a_hook_needs_no_key_and_leaves_no_record() {
    let mut world = world_with(&[WILDCARD, "shop.example.net"]);
    serving(&mut world, i64::MAX);
    configure(&mut world, |acme| {
        zones(acme);
        acme.dns[0].rfc2136 = None;
        acme.dns[0].hook = Some("cloud".to_owned());
    });
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    assert!(is_ordered(&mut world, WILDCARD));
    assert!(is_ordered(&mut world, "shop.example.net"));
    assert_eq!((server.count("locate"), server.count("check")), (1, 1));
    assert_eq!((server.count("record"), server.count("remove")), (1, 1));
    let snapshot = world.snapshot();
    assert!(snapshot.acme_dns.is_empty(), "{:?}", snapshot.acme_dns);
}

#[test]
fn a_hook_that_fails_keeps_its_order_and_an_unconfirmed_record_is_given_a_minute() {
    let mut world = world_with(&[WILDCARD]);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    // The server needs time for its own look, after pauses that grew while the record was waited for.
    server.delay = 2;
    let failed = RecordCheck {
        failed: Some("the DNS hook cloud ended with exit code 1".to_owned()),
        ..RecordCheck::default()
    };
    let unconfirmed = RecordCheck {
        unconfirmed: true,
        silent: vec!["the leader's name servers".to_owned()],
        ..RecordCheck::default()
    };
    // Now, and after a second.
    let mut next = vec![
        ("record", AcmeReply::Recorded(failed.clone())),
        ("record", AcmeReply::Recorded(failed)),
    ];
    for _ in 0..8 {
        next.push(("record", AcmeReply::Recorded(unconfirmed.clone())));
    }
    server.next.extend(next);
    let limit = after(&world, 1);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    let message = said(&mut world);
    assert!(message.contains("exit code 1"), "{message}");
    // The hook has added it.
    server.recorded.insert(value(0));
    let began = world.now;
    while !is_ordered(&mut world, WILDCARD) {
        world.pass(Duration::from_secs(1));
        let limit = after(&world, 1);
        run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
        assert!(world.now.duration_since(began) < SignedDuration::from_mins(10));
    }
    let took = world.now.duration_since(began);
    assert!(took >= SignedDuration::from_secs(55), "{took}");
    assert!(took <= SignedDuration::from_secs(75), "{took}");
    assert_eq!(server.count("order"), 1, "{:?}", server.asked);
}

#[test]
fn hosts_of_no_zone_are_proved_by_http_and_a_wildcard_of_none_says_so() {
    let mut world = world_with(&["shop.example.net", "*.example.net", "a.b.example.org"]);
    serving(&mut world, i64::MAX);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    assert!(is_ordered(&mut world, "shop.example.net"));
    assert!(is_ordered(&mut world, "a.b.example.org"));
    assert!(!is_ordered(&mut world, "*.example.net"));
    assert_eq!((server.count("locate"), server.count("check")), (1, 1));
    let snapshot = world.snapshot();
    let trouble = planned_routes(&snapshot)[1].trouble.clone().unwrap();
    assert_eq!(trouble.reason, Reason::TlsNotReady);
    assert!(
        trouble
            .message
            .contains("no zone of the setting acme.dns has it"),
        "{}",
        trouble.message
    );
}

#[test]
fn name_servers_without_the_record_are_waited_for_and_named() {
    let mut world = world_with(&[WILDCARD]);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    let late = || {
        AcmeReply::Recorded(RecordCheck {
            missing: vec!["ns2.example.org (192.0.2.4)".to_owned()],
            ..RecordCheck::default()
        })
    };
    server.next.extend([("record", late()), ("record", late())]);
    let limit = after(&world, 1);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    let message = said(&mut world);
    assert!(
        message.contains("waits until the name servers answer with the record TXT of _acme-challenge.example.org (the record is not yet at ns2.example.org (192.0.2.4))"),
        "{message}"
    );
    assert_eq!(server.count("answer"), 0);
    run(&mut world, &mut server, &mut orders);
    assert!(is_ordered(&mut world, WILDCARD));
    assert_eq!(server.count("order"), 1);
    nothing_is_left(&mut world, &server);

    // A server that never has it fails the order after an hour, and the record goes.
    world.pass(Duration::from_secs(61 * 24 * 3600));
    server.next.extend((0..400).map(|_| ("record", late())));
    for _ in 0..70 {
        let limit = after(&world, 59);
        run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
        if matches!(
            world
                .snapshot()
                .acme_orders
                .get(WILDCARD)
                .map(|one| one.value.state.clone()),
            Some(AcmeOrderState::Failed { .. })
        ) {
            break;
        }
        world.pass(Duration::from_secs(60));
    }
    let snapshot = world.snapshot();
    let order = &snapshot.acme_orders[WILDCARD].value;
    assert!(
        order.message.contains("not all name servers had the record TXT of _acme-challenge.example.org within an hour; the record is not yet at ns2.example.org"),
        "{}",
        order.message
    );
    assert!(next_attempt_of(&mut world, WILDCARD) <= 60);
    assert_eq!((server.count("order"), server.count("answer")), (2, 1));
    assert_eq!(server.recorded, BTreeSet::new());
}

fn next_attempt_of(world: &mut World, host: &str) -> i64 {
    let snapshot = world.snapshot();
    let AcmeOrderState::Failed { next } = &snapshot.acme_orders[host].value.state else {
        panic!("{:?}", snapshot.acme_orders[host].value)
    };
    next.duration_since(world.now).as_secs()
}

fn dns_failure(kind: AcmeFailureKind) -> AcmeReply {
    AcmeReply::Failed(AcmeFailure {
        kind,
        message: "ns1.example.org (192.0.2.3) refuses the update (REFUSED)".to_owned(),
        retry_after: None,
    })
}

#[test]
fn a_zone_that_cannot_be_changed_costs_no_order_and_one_that_fails_for_a_while_no_second_one() {
    let mut world = world_with(&[WILDCARD]);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    server
        .next
        .push(("locate", dns_failure(AcmeFailureKind::Name)));
    let limit = after(&world, 30);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    let (reason, message) = trouble(&mut world).unwrap();
    assert_eq!(reason, Reason::CertificateFailed);
    assert!(
        message.contains(
            "could not be ordered: ns1.example.org (192.0.2.3) refuses the update (REFUSED)"
        ),
        "{message}"
    );
    assert_eq!(
        (server.count("order"), next_attempt_of(&mut world, WILDCARD)),
        (0, 60)
    );
    world.pass(Duration::from_secs(60));
    for _ in 0..3 {
        let failure = dns_failure(AcmeFailureKind::NameServer);
        server.next.push(("record", failure));
    }
    run(&mut world, &mut server, &mut orders);
    assert!(is_ordered(&mut world, WILDCARD));
    assert_eq!((server.count("order"), server.count("record")), (1, 4));
    nothing_is_left(&mut world, &server);
}

#[test]
fn a_key_that_is_missing_or_unusable_is_named_and_shown_nowhere() {
    let mut world = world_with(&[WILDCARD]);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    configure(&mut world, |acme| {
        zones(acme);
        let update = acme.dns[0].rfc2136.as_mut().unwrap();
        update.tsig.secret = "other-key".to_owned();
    });
    run(&mut world, &mut server, &mut orders);
    let message = said(&mut world);
    assert!(
        message.contains("acme.dns names secret kat-core/other-key, which does not exist"),
        "{message}"
    );
    for (content, why) in [
        (
            "hmac-md5:kat:AAECAw==",
            "has another algorithm than hmac-sha256",
        ),
        ("kat:THE-SECRET", "has a secret that is no base64"),
    ] {
        let values: [(&str, &[u8]); 1] = [("tsig.key", content.as_bytes())];
        set_in(&mut world, "kat-core", "other-key", &values);
        world.pass(Duration::from_secs(3600));
        run(&mut world, &mut server, &mut orders);
        let message = said(&mut world);
        assert!(
            message.contains("tsig.key of secret kat-core/other-key") && message.contains(why),
            "{message}"
        );
        assert!(!message.contains("THE-SECRET"), "{message}");
    }
    assert_eq!(server.count("locate"), 0);
    for entry in world.entries.values() {
        let text = String::from_utf8_lossy(&entry.value);
        assert!(!text.contains("THE-SECRET"), "{}", entry.key);
    }
}

#[test]
fn a_record_goes_with_its_route_and_a_server_that_does_not_remove_it_is_asked_for_three_days() {
    let mut world = world_with(&[WILDCARD]);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    server.delay = 1000;
    let limit = after(&world, 3);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert_eq!(server.recorded.len(), 1);
    let other = json!([{"host": "a.lan", "servicePort": 80}]);
    route(&mut world, NAMESPACE, "web", other);
    // The setting is gone with it: the stored record says where it is.
    configure(&mut world, |acme| acme.agree_to_terms = false);
    for _ in 0..3 {
        let failure = dns_failure(AcmeFailureKind::NameServer);
        server.next.push(("remove", failure));
    }
    let limit = after(&world, 20);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert_eq!((server.count("remove"), server.recorded.len()), (1, 1));
    assert!(uses_acme(&world.snapshot()));
    for (seconds, count) in [(60, 2), (119, 2), (1, 3)] {
        world.pass(Duration::from_secs(seconds));
        let limit = after(&world, 0);
        run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
        assert_eq!(server.count("remove"), count);
    }
    world.pass(Duration::from_secs(300));
    run(&mut world, &mut server, &mut orders);
    nothing_is_left(&mut world, &server);

    // A key that is gone removes nothing; in the end the record is forgotten.
    let mut world = world_with(&[WILDCARD]);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    server.delay = 1000;
    let limit = after(&world, 3);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    let other = json!([{"host": "a.lan", "servicePort": 80}]);
    route(&mut world, NAMESPACE, "web", other);
    set_in(
        &mut world,
        "kat-core",
        "dns-key",
        &[("tsig.key", b"nothing")],
    );
    let limit = after(&world, 20);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert_eq!(world.snapshot().acme_dns.len(), 1);
    assert_eq!(server.count("remove"), 0);
    world.pass(Duration::from_secs(73 * 3600));
    let limit = after(&world, 20);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert!(world.snapshot().acme_dns.is_empty());
}

/// A world with hosts of a zone, and one that is proved by HTTP and comes last.
fn world_with_another_host(count: usize) -> World {
    let mut hosts: Vec<_> = (0..count)
        .map(|one| format!("h{one}.example.org"))
        .collect();
    hosts.push("shop.example.net".to_owned());
    let hosts: Vec<_> = hosts.iter().map(String::as_str).collect();
    let mut world = world_with(&hosts);
    serving(&mut world, i64::MAX);
    world
}

#[test]
fn a_zone_that_takes_all_its_orders_leaves_those_of_other_hosts() {
    let mut world = world_with_another_host(9);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    let late = || {
        AcmeReply::Recorded(RecordCheck {
            missing: vec!["ns2.example.org (192.0.2.4)".to_owned()],
            ..RecordCheck::default()
        })
    };
    server.next.extend((0..400).map(|_| ("record", late())));
    let limit = after(&world, 20);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    // The zone's own orders are as many as before.
    assert_eq!((server.count("locate"), server.count("check")), (8, 1));
    assert!(is_ordered(&mut world, "shop.example.net"));
}

#[test]
fn name_servers_that_hang_keep_no_other_host_from_its_turn() {
    let mut world = world_with_another_host(5);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    let limit = after(&world, 30 * 60);
    for _ in 0..300 {
        let (snapshot, observed) = (world.snapshot(), world.observed());
        let write = match orders.next(&snapshot, &observed, world.now).unwrap() {
            AcmeStep::Wait(until) => {
                world.now = until.max(after(&world, 1));
                None
            }
            AcmeStep::Write(step) => Some(step),
            AcmeStep::Ask(question) => {
                let reply = match &question.request {
                    AcmeRequest::Record { .. } => {
                        world.now = after(&world, 45);
                        dns_failure(AcmeFailureKind::NameServer)
                    }
                    _ => server.answer(&question, &world),
                };
                orders
                    .answered(&snapshot, &question, reply, world.now)
                    .unwrap()
            }
        };
        if let Some(write) = write {
            world.apply(&write.operations);
        }
        if is_ordered(&mut world, "shop.example.net") {
            break;
        }
    }
    assert!(is_ordered(&mut world, "shop.example.net"));
    assert!(world.now < limit, "{}", world.now);
}

/// Each step of a first order, and of a renewal, is once not taken and once not heard of.
#[test]
fn a_leader_that_is_lost_between_any_two_steps_leaves_no_record() {
    let steps = {
        let mut world = world_with(&[WILDCARD]);
        let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
        run(&mut world, &mut server, &mut orders)
    };
    assert!(steps > 10, "{steps}");
    for renewal in [false, true] {
        for number in 0..steps {
            for lost in [Lost::Before(number), Lost::Unheard(number)] {
                let mut world = world_with(&[WILDCARD]);
                let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
                if renewal {
                    run(&mut world, &mut server, &mut orders);
                    world.pass(Duration::from_secs(61 * 24 * 3600));
                }
                let stored = world.snapshot().ingress_certificates[WILDCARD]
                    .value
                    .expires;
                let limit = after(&world, 300);
                run_until(&mut world, &mut server, &mut orders, limit, lost);
                assert!(
                    is_ordered(&mut world, WILDCARD),
                    "{lost:?}: {}",
                    said(&mut world)
                );
                assert_eq!(server.accounts.len(), 1, "{lost:?}: {:?}", server.asked);
                nothing_is_left(&mut world, &server);
                let present = world.snapshot().ingress_certificates[WILDCARD]
                    .value
                    .expires;
                assert!(!renewal || present > stored, "{lost:?}");
            }
        }
    }
}

#[test]
fn a_hostile_server_gets_no_other_text_into_dns() {
    for text in ["../orders/a", "", "a b", "a\"b"] {
        let mut world = world_with(&[WILDCARD]);
        let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
        let ordered = AcmeReply::Ordered {
            url: "https://ca.example/order/0".to_owned(),
            challenge: Some(("token".to_owned(), text.to_owned())),
        };
        server.next.push(("order", ordered));
        let limit = after(&world, 120);
        run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
        assert!(said(&mut world).contains("no usable token"), "{text}");
        assert_eq!(server.count("record"), 0);
    }
}
