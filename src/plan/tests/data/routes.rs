//! Routes: the machines that get them with their keys, and the certificates of KAT's own authority.

use super::secrets::{machines, private, set};
use super::*;
use jiff::SignedDuration;
use kat_pki::delivery::{SealingPurpose, open_assigned};
use kat_types::{
    machine::node_labels::{INGRESS_ROLE, ROLE_LABEL},
    reason::Reason,
    resource::ClusterConfiguration,
    store::ingress::AssignedRoutes,
};

/// Applies a workload with routes to its port 80.
pub(crate) fn route(world: &mut World, namespace: &str, name: &str, routes: serde_json::Value) {
    let balancer = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "VirtualLoadBalancer",
        "spec": {"ports": [{"name": "web", "containerPort": 80}], "ingress": routes},
    });
    let key = keys::manifest(namespace, name, "VirtualLoadBalancer.kat");
    world.write(key, &balancer);
    world.apply_workload_in(namespace, name, |_| {});
}

/// The routes of `web` that the machine has.
pub(crate) fn given(world: &mut World, node: &str) -> Option<Arc<AssignedRoutes>> {
    let snapshot = world.snapshot();
    let of_node = snapshot.routes.get(node)?;
    let stored = of_node.get(&WorkloadKey::new(NAMESPACE, "web"))?;
    Some(Arc::clone(&stored.value))
}

fn holders(world: &mut World) -> Vec<String> {
    let names: Vec<String> = world.machines.keys().cloned().collect();
    let mut found = Vec::new();
    for name in names {
        if given(world, &name).is_some() {
            found.push(name);
        }
    }
    found
}

fn label(world: &mut World, node: &str, labels: &[(&str, &str)]) {
    let snapshot = world.snapshot();
    let mut registration = snapshot.nodes[node].registration.value.clone();
    registration.labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    world.write(keys::registration(node), &registration);
}

/// Makes the certificates that are missing, as the leader does between plans. Returns the number of
/// steps.
pub(crate) fn issue(world: &mut World) -> usize {
    for steps in 0..20 {
        let snapshot = world.snapshot();
        let Some(step) = next_certificate(&snapshot, world.now).unwrap() else {
            return steps;
        };
        for condition in &step.conditions {
            let Compare::ModRevision(key, revision) = condition else {
                panic!("{condition:?}")
            };
            let present = world.entries.get(key.as_str());
            let present = present.map_or(0, |entry| entry.mod_revision);
            assert_eq!(present, *revision, "{key}");
        }
        world.apply(&step.operations);
    }
    panic!("the certificates do not come to rest");
}

fn opened(assigned: &AssignedRoutes, node: &str, number: usize) -> Vec<String> {
    let secrets = assigned.secrets.as_ref().unwrap();
    let place = format!("{NAMESPACE}/web");
    let purpose = SealingPurpose::Routes;
    let other = private(number + 1);
    assert!(open_assigned(secrets, purpose, other.bytes(), node, &place).is_err());
    let as_secrets = SealingPurpose::Secrets;
    let own = private(number);
    assert!(open_assigned(secrets, as_secrets, own.bytes(), node, &place).is_err());
    let opened = open_assigned(secrets, purpose, own.bytes(), node, &place).unwrap();
    opened
        .iter()
        .flat_map(|(name, values)| values.0.keys().map(move |key| format!("{name} {key}")))
        .collect()
}

#[test]
fn every_machine_serves_routes_until_one_is_labelled_and_the_others_lose_the_keys() {
    let mut world = machines(3);
    set(&mut world, "own", &[("tls.crt", b"c"), ("tls.key", b"k")]);
    set(
        &mut world,
        "people",
        &[("htpasswd", b"a:b"), ("other", b"x")],
    );
    let routes = json!([
        {"host": "a.example.org", "path": "/x", "servicePortName": "web", "tls": {"secret": "own"},
            "basicAuth": {"secret": "people"}},
        {"host": "b.lan", "redirectTo": "https://example.org"},
    ]);
    route(&mut world, NAMESPACE, "web", routes);
    world.settle();
    assert_eq!(holders(&mut world), ["n1", "n2", "n3"]);
    let two = given(&mut world, "n2").unwrap();
    assert_eq!(two.routes[0].port, Some(80));
    assert_eq!(two.routes[0].certificate.as_deref(), Some("tls:own"));
    assert!(two.routes[0].redirects_plain && !two.routes[1].tls);
    // No more than what the routes use.
    let names = opened(&two, "n2", 2);
    assert_eq!(
        names,
        [
            "tls:own tls.crt",
            "tls:own tls.key",
            "users:people htpasswd"
        ]
    );
    label(&mut world, "n3", &[(ROLE_LABEL, INGRESS_ROLE)]);
    world.settle();
    assert_eq!(holders(&mut world), ["n3"]);
    // The label of earlier versions.
    label(&mut world, "n1", &[("kat.dws.rip/ingress", "true")]);
    world.settle();
    assert_eq!(holders(&mut world), ["n1", "n3"]);
    let mut cluster = ClusterConfiguration::default();
    cluster.spec.ingress.enabled = false;
    world.write(keys::CLUSTER.to_owned(), &cluster);
    world.settle();
    assert_eq!(holders(&mut world), Vec::<String>::new());
}

#[test]
fn another_certificate_in_a_secret_is_sealed_anew_and_nothing_else_is() {
    let mut world = machines(1);
    set(&mut world, "own", &[("tls.crt", b"c"), ("tls.key", b"k")]);
    let routes = json!([{"host": "a.example.org", "servicePort": 80, "tls": {"secret": "own"}}]);
    route(&mut world, NAMESPACE, "web", routes);
    world.settle();
    let before = given(&mut world, "n1").unwrap();
    world.pass(Duration::from_secs(60));
    world.settle();
    assert_eq!(given(&mut world, "n1").unwrap(), before);
    let instances = world.wanted("web");
    set(&mut world, "own", &[("tls.crt", b"d"), ("tls.key", b"l")]);
    world.roll_out();
    let after = given(&mut world, "n1").unwrap();
    assert_ne!(after.secrets, before.secrets);
    assert_eq!(after.routes, before.routes);
    assert_eq!(world.wanted("web"), instances, "no instance is replaced");
}

#[test]
fn a_certificate_is_replaced_by_another_one_and_never_by_nothing() {
    let mut world = machines(1);
    set(&mut world, "own", &[("tls.crt", b"c"), ("tls.key", b"k")]);
    set(&mut world, "people", &[("htpasswd", b"a:b")]);
    let routes = json!([{"host": "a.example.org", "servicePort": 80, "tls": {"secret": "own"},
        "redirectFrom": ["www.example.org"], "basicAuth": {"secret": "people"}}]);
    route(&mut world, NAMESPACE, "web", routes);
    world.settle();
    let before = given(&mut world, "n1").unwrap();

    // Without its key, as an earlier version accepted it.
    set(&mut world, "own", &[("tls.crt", b"d")]);
    world.settle();
    assert_eq!(given(&mut world, "n1").unwrap(), before);
    // Users that changed meanwhile can't be given: nobody is admitted, with whatever password.
    set(&mut world, "people", &[("htpasswd", b"c:d")]);
    world.settle();
    let kept = given(&mut world, "n1").unwrap();
    assert_eq!(kept.secrets, before.secrets);
    assert_eq!(kept.routes[0].certificate, before.routes[0].certificate);
    let users = kept.routes[0].users.as_deref();
    assert_eq!(users, Some("changed:users:people"));

    // The values of a secret can't be opened.
    set(&mut world, "own", &[("tls.crt", b"e"), ("tls.key", b"m")]);
    let snapshot = world.snapshot();
    let place = SecretKey::new(NAMESPACE, "own");
    let good = (*snapshot.secrets[&place].value).clone();
    let mut bad = good.clone();
    bad.sealed = "AAAA".to_owned();
    world.write(keys::secret(&place.to_string()), &bad);
    world.settle();
    assert_eq!(given(&mut world, "n1").unwrap(), kept);

    // A good one replaces it, and one that is deleted is given up.
    world.write(keys::secret(&place.to_string()), &good);
    world.settle();
    let after = given(&mut world, "n1").unwrap();
    assert_ne!(after.secrets, before.secrets);
    assert_eq!(after.routes, before.routes);
    world.apply(&[WriteOperation::Delete(keys::secret(&place.to_string()))]);
    world.settle();
    let gone = given(&mut world, "n1").unwrap();
    assert_eq!(gone.routes[0].certificate, None);
    let versions: Vec<_> = gone.secrets.as_ref().unwrap().versions.keys().collect();
    assert_eq!(versions, ["users:people"]);
}

#[test]
fn kats_own_authority_stands_in_for_a_certificate_that_its_user_has_not_brought() {
    let mut world = machines(1);
    let routes = json!([
        {"host": "a.lan", "servicePort": 80, "tls": {"secret": "own"}},
        {"host": "a.example.org", "servicePort": 80, "tls": {"secret": "own"}},
    ]);
    route(&mut world, NAMESPACE, "web", routes);
    issue(&mut world);
    world.settle();
    let waits = given(&mut world, "n1").unwrap();
    assert_eq!(
        waits.routes[0].certificate.as_deref(),
        Some("internal:a.lan")
    );
    assert!(waits.routes[0].awaits.contains("there is no secret own"));
    assert_eq!(waits.routes[1].certificate, None);

    set(&mut world, "own", &[("tls.crt", b"c"), ("tls.key", b"k")]);
    world.settle();
    let has = given(&mut world, "n1").unwrap();
    assert_eq!(has.routes[0].certificate.as_deref(), Some("tls:own"));
    assert_eq!(has.routes[0].awaits, "");
    issue(&mut world);
    assert!(world.snapshot().ingress_certificates.is_empty());
}

#[test]
fn the_leader_issues_certificates_of_its_own_authority_and_renews_them_in_time() {
    let mut world = machines(1);
    let routes = json!([
        {"host": "a.lan", "servicePort": 80, "tls": true, "redirectFrom": ["www.a.lan"]},
        {"host": "*.b.lan", "servicePort": 80, "tls": {"issuer": "internal"}},
        {"host": "a.example.org", "servicePort": 80, "tls": true},
    ]);
    route(&mut world, NAMESPACE, "web", routes);
    world.settle();
    let waits = given(&mut world, "n1").unwrap();
    assert_eq!(waits.routes[0].certificate, None);
    assert!(waits.routes[0].awaits.contains("has not been issued yet"));
    // The authority, and then all certificates at once.
    assert_eq!(issue(&mut world), 2);
    world.settle();
    let snapshot = world.snapshot();
    let hosts: Vec<_> = snapshot.ingress_certificates.keys().cloned().collect();
    assert_eq!(hosts, ["*.b.lan", "a.lan", "www.a.lan"]);
    let has = given(&mut world, "n1").unwrap();
    assert_eq!(has.routes[0].certificate.as_deref(), Some("internal:a.lan"));
    let planned = planned_routes(&snapshot);
    let trouble = planned[2].trouble.as_ref().unwrap();
    assert_eq!(trouble.reason, Reason::TlsNotReady);
    assert!(trouble.message.contains("ACME is not configured"));
    assert!(planned[0].trouble.is_none() && planned[1].trouble.is_none());
    // The keys are in the store only sealed.
    for entry in world.entries.values() {
        let text = String::from_utf8_lossy(&entry.value);
        assert!(!text.contains("PRIVATE KEY"), "{}", entry.key);
    }

    world.now += SignedDuration::from_hours(59 * 24);
    assert_eq!(issue(&mut world), 0);
    world.now += SignedDuration::from_hours(2 * 24);
    assert_eq!(issue(&mut world), 1);
    let renewed = world.snapshot().ingress_certificates["a.lan"].value.issued;
    assert_eq!(renewed, world.now);
    world.settle();
    assert_ne!(given(&mut world, "n1").unwrap().secrets, has.secrets);

    // A host that no route has any more loses its certificate, and another one keeps it.
    let routes = json!([{"host": "a.lan", "servicePort": 80, "tls": true}]);
    route(&mut world, NAMESPACE, "web", routes);
    assert_eq!(issue(&mut world), 1);
    let hosts: Vec<_> = world
        .snapshot()
        .ingress_certificates
        .keys()
        .cloned()
        .collect();
    assert_eq!(hosts, ["a.lan"]);
}

#[test]
fn another_data_key_seals_the_authority_and_its_certificates_too() {
    let mut world = machines(1);
    let routes = json!([{"host": "a.lan", "servicePort": 80, "tls": true}]);
    route(&mut world, NAMESPACE, "web", routes);
    issue(&mut world);
    let snapshot = world.snapshot();
    let before = SecretVersion::of(&snapshot.ingress_certificates["a.lan"].value.key);
    let step = another_data_key(&snapshot, world.now).unwrap();
    assert_eq!(step.left, 2);
    world.apply(&step.operations);
    for _ in 0..5 {
        let step = reseal_batch(&world.snapshot()).unwrap();
        assert_eq!(step.failed, None);
        world.apply(&step.operations);
    }
    let snapshot = world.snapshot();
    assert_eq!(snapshot.sealing_keys.keys().collect::<Vec<_>>(), [&2]);
    let stored = &snapshot.ingress_certificates["a.lan"].value;
    assert_eq!(
        (stored.key.key_id, SecretVersion::of(&stored.key)),
        (2, before)
    );
    // It still opens: the next certificate is issued with it.
    world.now += SignedDuration::from_hours(61 * 24);
    assert_eq!(issue(&mut world), 1);
}

#[test]
fn a_host_that_is_stored_for_two_namespaces_is_served_for_the_workload_that_came_first() {
    let mut world = machines(1);
    // Its name comes before that of the first one.
    world.namespace("another", false);
    let routes = json!([{"host": "a.lan", "servicePort": 80}]);
    route(&mut world, NAMESPACE, "web", routes.clone());
    world.pass(Duration::from_secs(1));
    route(&mut world, "another", "web", routes);
    world.roll_out();
    let served = |world: &mut World| -> Vec<String> {
        let snapshot = world.snapshot();
        let of_node = snapshot.routes.get("n1").into_iter().flatten();
        of_node.map(|(key, _)| key.to_string()).collect()
    };
    assert_eq!(served(&mut world), ["default/web"]);
    let snapshot = world.snapshot();
    let planned = planned_routes(&snapshot);
    let reasons: Vec<_> = planned
        .iter()
        .map(|route| route.trouble.as_ref().map(|trouble| trouble.reason))
        .collect();
    assert_eq!(reasons, [None, Some(Reason::HostTaken)]);
    // When the first one goes, the second one is served.
    world.delete_workload("web");
    world.roll_out();
    assert_eq!(served(&mut world), ["another/web"]);
}

#[test]
fn routes_go_with_their_workload_and_stay_with_files_that_cannot_be_read() {
    let mut world = machines(1);
    let routes = json!([{"host": "a.lan", "servicePort": 80}]);
    route(&mut world, NAMESPACE, "web", routes);
    world.roll_out();
    let before = given(&mut world, "n1").unwrap();
    let file = keys::manifest(NAMESPACE, "web", "VirtualLoadBalancer.kat");
    world.apply(&[WriteOperation::Put(file, b"- : -".to_vec())]);
    world.settle();
    assert_eq!(given(&mut world, "n1").unwrap(), before);
    let claims = world.snapshot();
    let key = WorkloadKey::new(NAMESPACE, "web");
    let claimed = claims_of_stored(&claims, &key, &claims.workloads[&key]);
    assert_eq!(claimed.routes.len(), 1);
    world.delete_workload("web");
    world.roll_out();
    assert_eq!(given(&mut world, "n1"), None);
}

fn sticky_keys(world: &mut World) -> Vec<Vec<u8>> {
    let names: Vec<String> = world.machines.keys().cloned().collect();
    let mut found = Vec::new();
    for (number, name) in (1..).zip(names) {
        let assigned = given(world, &name).unwrap();
        let secrets = assigned.secrets.as_ref().unwrap();
        let place = format!("{NAMESPACE}/web");
        let own = private(number);
        let purpose = SealingPurpose::Routes;
        let opened = open_assigned(secrets, purpose, own.bytes(), &name, &place).unwrap();
        found.push(opened["sticky"].0["sticky"].clone());
    }
    found
}

#[test]
fn every_machine_with_a_sticky_route_gets_the_same_key_which_stays() {
    let mut world = machines(2);
    let plain = json!([{"host": "a.example.org", "servicePort": 80}]);
    route(&mut world, NAMESPACE, "web", plain);
    assert_eq!(issue(&mut world), 0, "no route is sticky");
    let routes = json!([{"host": "a.example.org", "servicePort": 80, "sticky": true}]);
    route(&mut world, NAMESPACE, "web", routes);
    world.settle();
    // Before the key is there, the machines serve the route.
    assert_eq!(given(&mut world, "n1").unwrap().secrets, None);
    issue(&mut world);
    world.settle();
    let keys = sticky_keys(&mut world);
    assert_eq!(keys[0].len(), 32);
    assert_eq!(keys[0], keys[1]);
    for entry in world.entries.values() {
        let has = entry.value.windows(32).any(|part| part == keys[0]);
        assert!(!has, "{} has the key", entry.key);
    }
    // Another data key seals it anew, and it stays the same.
    let snapshot = world.snapshot();
    let step = another_data_key(&snapshot, world.now).unwrap();
    assert_eq!(step.left, 1);
    world.apply(&step.operations);
    for _ in 0..5 {
        let step = reseal_batch(&world.snapshot()).unwrap();
        world.apply(&step.operations);
    }
    let snapshot = world.snapshot();
    assert_eq!(snapshot.sealing_keys.keys().collect::<Vec<_>>(), [&2]);
    assert_eq!(issue(&mut world), 0);
    world.settle();
    assert_eq!(sticky_keys(&mut world), keys);
}

#[test]
fn a_machine_that_is_deleted_has_the_names_renewed_whose_keys_it_may_have_kept() {
    let mut world = machines(3);
    set(&mut world, "own", &[("tls.crt", b"c"), ("tls.key", b"k")]);
    let routes = json!([
        {"host": "a.lan", "servicePort": 80, "tls": true},
        {"host": "a.example.org", "servicePort": 80, "tls": {"secret": "own"}},
    ]);
    route(&mut world, NAMESPACE, "web", routes);
    issue(&mut world);
    world.settle();
    let before = given(&mut world, "n1").unwrap();
    let issued = |world: &mut World| {
        let stored = world.snapshot().ingress_certificates["a.lan"].clone();
        (stored.value.round, stored.value.certificate.clone())
    };
    let (round, first) = issued(&mut world);
    assert_eq!((round, issue(&mut world)), (0, 0));
    let snapshot = world.snapshot();
    let mut registration = snapshot.nodes["n3"].registration.value.clone();
    registration.deleting = true;
    world.write(keys::registration("n3"), &registration);
    world.settle();
    assert!(!world.snapshot().nodes.contains_key("n3"));
    // The clock of the next leader may be behind: the round counts, not the time.
    world.now -= SignedDuration::from_hours(1);
    assert_eq!(issue(&mut world), 1);
    assert_eq!(issue(&mut world), 0, "it is issued once");
    let (round, second) = issued(&mut world);
    assert_eq!(round, 1);
    assert_ne!(first, second);
    world.now += SignedDuration::from_hours(1);
    world.settle();
    assert_ne!(given(&mut world, "n1").unwrap().secrets, before.secrets);
    let snapshot = world.snapshot();
    let mut events = snapshot.events.values();
    let left = events
        .find(|event| event.value.reason == "NodeLeft")
        .unwrap();
    assert!(
        left.value.message.contains("default/own"),
        "{}",
        left.value.message
    );
}

#[test]
fn forward_auth_asks_a_workload_that_may_be_reached_and_admits_nobody_without_it() {
    let mut world = machines(1);
    world.namespace("another", false);
    let asking = |workload: &str, port: serde_json::Value| {
        json!([{"host": "a.lan", "servicePort": 80, "proxyProtocol": "v2",
            "forwardAuth": {"workload": workload, "port": port, "path": "/verify",
                "responseHeaders": ["Remote-User"]}}])
    };
    let reason = |world: &mut World| {
        let snapshot = world.snapshot();
        let planned = planned_routes(&snapshot);
        let found = planned.iter().find(|one| one.workload.name == "web");
        let trouble = found.unwrap().trouble.as_ref();
        trouble.map(|trouble| (trouble.reason, trouble.message.clone()))
    };
    let port = |world: &mut World| {
        let assigned = given(world, "n1").unwrap();
        let auth = assigned.routes[0].forward_auth.clone().unwrap();
        (auth.workload, auth.port)
    };
    route(&mut world, NAMESPACE, "web", asking("auth", json!("web")));
    world.settle();
    let (why, said) = reason(&mut world).unwrap();
    assert_eq!(why, Reason::AuthNotReachable);
    assert!(said.contains("there is no workload default/auth"), "{said}");
    assert_eq!(port(&mut world), ("auth".to_owned(), None));
    route(&mut world, NAMESPACE, "auth", json!([]));
    world.settle();
    assert_eq!(reason(&mut world), None);
    assert_eq!(port(&mut world), ("default/auth".to_owned(), Some(80)));
    let assigned = given(&mut world, "n1").unwrap();
    let auth = assigned.routes[0].forward_auth.as_ref().unwrap();
    assert_eq!(auth.response_headers, ["Remote-User"]);
    assert_eq!(
        assigned.routes[0].proxy_protocol,
        kat_types::resource::ProxyProtocol::V2
    );
    // A port that the workload does not have.
    route(&mut world, NAMESPACE, "web", asking("auth", json!(81)));
    world.settle();
    assert!(reason(&mut world).unwrap().1.contains("no TCP port 81"));
    assert_eq!(port(&mut world).1, None);

    // Another namespace has to let this one reach it, once namespaces are isolated.
    route(&mut world, "another", "auth", json!([]));
    route(
        &mut world,
        NAMESPACE,
        "web",
        asking("another/auth", json!(80)),
    );
    world.settle();
    assert_eq!(port(&mut world), ("another/auth".to_owned(), Some(80)));
    let mut cluster = ClusterConfiguration::default();
    cluster.spec.isolation = kat_types::resource::Isolation::Namespaces;
    world.write(keys::CLUSTER.to_owned(), &cluster);
    world.settle();
    let (why, said) = reason(&mut world).unwrap();
    assert_eq!(why, Reason::AuthNotReachable);
    assert!(said.contains("that namespace default may reach"), "{said}");
    assert_eq!(port(&mut world).1, None);
    let snapshot = world.snapshot();
    let mut record = snapshot.namespaces["another"].value.clone();
    record.access.allow_namespaces = vec![NAMESPACE.to_owned()];
    world.write(keys::namespace("another"), &record);
    world.settle();
    assert_eq!(port(&mut world).1, Some(80));
}

#[test]
fn the_leader_makes_no_certificate_where_each_route_has_a_brought_one_or_none() {
    let mut world = machines(1);
    let plain = json!([{"host": "a.lan", "servicePort": 80}]);
    route(&mut world, NAMESPACE, "web", plain.clone());
    assert!(!uses_own_authority(&world.snapshot()));
    let brought = json!([{"host": "a.lan", "servicePort": 80, "tls": {"secret": "own"}}]);
    route(&mut world, NAMESPACE, "web", brought);
    assert!(
        uses_own_authority(&world.snapshot()),
        "another certificate stands in for the missing one"
    );
    set(&mut world, "own", &[("tls.crt", b"c"), ("tls.key", b"k")]);
    assert!(!uses_own_authority(&world.snapshot()));
    assert_eq!(issue(&mut world), 0);
    let sticky = json!([{"host": "a.lan", "servicePort": 80, "sticky": true}]);
    route(&mut world, NAMESPACE, "web", sticky);
    assert!(uses_own_authority(&world.snapshot()));
    route(&mut world, NAMESPACE, "web", plain);
    outside(&mut world, "nas.lan", "http://192.0.2.5:5000", true);
    assert!(uses_own_authority(&world.snapshot()));
}

fn outside(world: &mut World, host: &str, to: &str, tls: bool) {
    let record = kat_types::store::ingress::OutsideRouteRecord {
        schema: 1,
        uid: host.to_owned(),
        created: world.now,
        spec: serde_json::from_value(json!({"host": host, "path": "/x/", "to": to, "tls": tls}))
            .unwrap(),
    };
    world.write(keys::outside_route(&format!("{host}/x")), &record);
}

#[test]
fn a_route_to_something_outside_is_served_like_those_of_workloads_and_owns_its_host() {
    let mut world = machines(2);
    outside(&mut world, "nas.lan", "http://192.0.2.5:5000", true);
    issue(&mut world);
    world.settle();
    let key = WorkloadKey::new("kat-core", "route:nas.lan|x");
    let snapshot = world.snapshot();
    for node in ["n1", "n2"] {
        let assigned = &snapshot.routes[node][&key].value;
        let route = &assigned.routes[0];
        assert_eq!(route.outside, Some("192.0.2.5:5000".parse().unwrap()));
        assert_eq!(route.port, None);
        assert_eq!(route.certificate.as_deref(), Some("internal:nas.lan"));
    }
    let claims = WorkloadClaims {
        routes: [("nas.lan".to_owned(), "/y".to_owned())].into(),
        ..WorkloadClaims::default()
    };
    let web = WorkloadKey::new(NAMESPACE, "web");
    let conflict = claim_conflict(&snapshot, &web, &claims).unwrap();
    assert_eq!(conflict.owner(), &key);
    // What can't be read keeps what machines serve.
    let stored_at = keys::outside_route("nas.lan/x");
    world.apply(&[WriteOperation::Put(stored_at.clone(), b"{".to_vec())]);
    world.settle();
    assert!(world.snapshot().routes["n1"].contains_key(&key));
    assert!(!world.snapshot().ingress_certificates.is_empty());
    world.apply(&[WriteOperation::Delete(stored_at)]);
    world.settle();
    assert!(world.snapshot().routes.values().all(BTreeMap::is_empty));
}

#[test]
fn each_host_of_a_namespace_counts_once_whichever_workloads_have_it() {
    let mut world = machines(1);
    let used = |world: &mut World, namespace: &str| {
        let used = used_by_namespace(&world.snapshot(), namespace);
        used.hosts
    };
    let web = json!([
        {"host": "a.lan", "servicePort": 80, "redirectFrom": ["www.a.lan"]},
        {"host": "a.lan", "path": "/x", "servicePort": 80},
    ]);
    route(&mut world, NAMESPACE, "web", web);
    let cart = json!([
        {"host": "a.lan", "path": "/cart", "servicePort": 80},
        {"host": "*.b.lan", "servicePort": 80},
    ]);
    route(&mut world, NAMESPACE, "cart", cart);
    outside(&mut world, "nas.lan", "http://192.0.2.5:5000", false);
    assert_eq!(used(&mut world, NAMESPACE), Some(3));
    assert_eq!(used(&mut world, "kat-core"), Some(1));
    assert_eq!(used(&mut world, "empty"), Some(0));
    world.delete_workload("cart");
    world.roll_out();
    assert_eq!(used(&mut world, NAMESPACE), Some(2));
}

#[test]
fn a_route_leads_neither_to_the_machine_itself_nor_into_kats_networks() {
    let mut world = machines(1);
    let snapshot = world.snapshot();
    let mut registration = snapshot.nodes["n1"].registration.value.clone();
    registration.advertise = vec!["192.0.2.1".parse().unwrap()];
    world.write(keys::registration("n1"), &registration);
    let mut cluster = kat_types::resource::ClusterConfiguration::default();
    let shared = kat_types::resource::VirtualAddress {
        address: "192.0.2.9/24".to_owned(),
        interface: "auto".to_owned(),
        on_leader_loss: Default::default(),
    };
    cluster.spec.virtual_addresses.push(shared);
    world.write(keys::CLUSTER.to_owned(), &cluster);
    let snapshot = world.snapshot();
    for good in [
        "http://192.0.2.5:5000",
        "http://192.0.2.5",
        "http://[2001:db8::5]:8080/",
        "http://[2001:db8::5]",
        "http://192.0.2.1:8080",
    ] {
        outside_target(&snapshot, good).unwrap();
    }
    for (bad, said) in [
        ("https://192.0.2.5", "without TLS"),
        ("http://nas.lan:5000", "names no address"),
        ("http://192.0.2.5:5000/x", "names no address"),
        ("http://192.0.2.5:0", "port 0"),
        ("http://127.0.0.1:80", "machine itself"),
        ("http://127.8.8.8", "machine itself"),
        ("http://0.0.0.0", "machine itself"),
        ("http://0.1.2.3", "machine itself"),
        ("http://169.254.169.254", "machine itself"),
        ("http://224.0.0.1", "machine itself"),
        ("http://255.255.255.255", "machine itself"),
        ("http://[::1]", "machine itself"),
        ("http://[::]", "machine itself"),
        ("http://[fe80::1]", "machine itself"),
        ("http://[ff02::1]", "machine itself"),
        ("http://[::ffff:127.0.0.1]:80", "machine itself"),
        ("http://[::ffff:10.100.0.2]:80", "overlay"),
        ("http://10.100.0.2:8080", "overlay"),
        ("http://10.200.0.2:8080", "service addresses"),
        ("http://192.0.2.1:9115", "KAT's API"),
        ("http://192.0.2.1:2379", "etcd"),
        ("http://[::ffff:192.0.2.1]:9116", "KAT's agents"),
        ("http://192.0.2.1:443", "the routes themselves"),
        ("http://192.0.2.9:8080", "virtual address"),
        ("http://[::ffff:192.0.2.9]", "virtual address"),
    ] {
        let found = outside_target(&snapshot, bad).unwrap_err();
        assert!(found.contains(said), "{bad}: {found}");
    }
    // Also of one that was stored before the machine was there.
    outside(&mut world, "nas.lan", "http://192.0.2.1:9115", false);
    world.settle();
    let snapshot = world.snapshot();
    let planned = planned_routes(&snapshot);
    let trouble = planned[0].trouble.as_ref().unwrap();
    assert_eq!(trouble.reason, Reason::RouteRefused);
    assert!(world.snapshot().routes.values().all(BTreeMap::is_empty));
}

/// Writes a step if the store is as the step's leader saw it. Returns whether it was.
fn committed(world: &mut World, step: &CertificateStep) -> bool {
    let holds = step.conditions.iter().all(|condition| {
        let Compare::ModRevision(key, revision) = condition else {
            panic!("{condition:?}")
        };
        let present = world.entries.get(key.as_str());
        present.map_or(0, |entry| entry.mod_revision) == *revision
    });
    if holds {
        world.apply(&step.operations);
    }
    holds
}

/// Two leaders, of which one may be outdated and has another clock, while machines leave and time passes.
#[test]
fn certificates_never_go_back_to_an_older_one_whichever_leader_writes_them() {
    for seed in 1_u64..6 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut draw = move |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let mut world = machines(2);
        let routes = json!([
            {"host": "a.lan", "servicePort": 80, "tls": true},
            {"host": "b.lan", "servicePort": 80, "tls": true, "sticky": true},
        ]);
        route(&mut world, NAMESPACE, "web", routes);
        world.settle();
        let mut leaders = [world.snapshot(), world.snapshot()];
        let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut refused = 0;
        for _ in 0..80 {
            let which = usize::try_from(draw(2)).unwrap();
            match draw(10) {
                0..3 => leaders[which] = world.snapshot(),
                3 => world.now += SignedDuration::from_hours(24 * 20),
                4 => {
                    let snapshot = world.snapshot();
                    if let Some(round) = snapshot.ingress_renewal.as_ref() {
                        let mut next = round.value.clone();
                        next.round += 1;
                        world.write(keys::INGRESS_RENEWAL.to_owned(), &next);
                    } else {
                        let first = json!({"schema": 1, "round": 1});
                        world.write(keys::INGRESS_RENEWAL.to_owned(), &first);
                    }
                }
                _ => {
                    let skew = SignedDuration::from_hours(if which == 0 { 0 } else { -24 });
                    let now = world.now + skew;
                    let step = next_certificate(&leaders[which], now).unwrap();
                    if let Some(step) = step
                        && !committed(&mut world, &step)
                    {
                        refused += 1;
                    }
                }
            }
            let snapshot = world.snapshot();
            let certificates = snapshot.ingress_certificates.iter();
            let shown = certificates.map(|(host, stored)| {
                let record = &stored.value;
                (host.clone(), record.certificate.clone())
            });
            let authority = snapshot.ingress_authority.iter();
            let authority = authority.map(|stored| {
                let record = &stored.value;
                ("authority".to_owned(), record.certificate.clone())
            });
            let sticky = snapshot.ingress_sticky.iter();
            let sticky = sticky.map(|stored| ("sticky".to_owned(), stored.value.key.uid.clone()));
            for (name, present) in shown.chain(authority).chain(sticky) {
                let before = seen.entry(name.clone()).or_default();
                if before.last() != Some(&present) {
                    assert!(!before.contains(&present), "seed {seed}: {name} went back");
                    before.push(present);
                }
            }
        }
        assert_eq!(seen["sticky"].len(), 1, "seed {seed}");
        assert_eq!(seen["authority"].len(), 1, "seed {seed}");
        assert!(seen["a.lan"].len() > 1, "seed {seed}: it was never renewed");
        assert!(refused > 0, "seed {seed}: no leader was outdated");
    }
}
