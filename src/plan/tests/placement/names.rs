//! Names of workloads and replicas: aliases, and the names of replicas with volumes of their own.

use super::{service_addresses::serve, *};

/// The values of the records of a name.
fn records(world: &World, name: &str) -> Vec<String> {
    let prefix = format!("/kat/dns/{NAMESPACE}/{name}/A/");
    let keys = world.keys(&prefix);
    keys.iter()
        .map(|key| key[prefix.len()..].to_owned())
        .collect()
}

/// The addresses with which a name answers.
fn addresses(world: &World, name: &str) -> Vec<String> {
    let mut found = records(world, name);
    found.retain(|value| !value.contains('='));
    found
}

fn serve_as(world: &mut World, name: &str, aliases: &[&str]) {
    serve(world, name, |balancer| {
        balancer["spec"]["aliases"] = json!(aliases);
    });
}

#[test]
fn an_alias_answers_as_the_name_of_its_workload_does() {
    let mut world = World::with_machines(1);
    serve_as(&mut world, "db", &["mysql", "sql"]);
    world.settle();
    let service = addresses(&world, "db");
    assert_eq!(service.len(), 1);
    for alias in ["mysql", "sql"] {
        assert_eq!(records(&world, alias), service, "no names of instances");
    }
    serve(&mut world, "db", |balancer| {
        balancer["spec"]["aliases"] = json!(["mysql"]);
        balancer["spec"]["headless"] = json!(true);
    });
    world.replicas("db", 2);
    world.roll_out();
    let instances = addresses(&world, "db");
    assert_eq!(instances.len(), 2, "{instances:?}");
    assert_ne!(instances, service);
    assert_eq!(records(&world, "mysql"), instances);
    assert_eq!(records(&world, "sql"), [""; 0], "it is no alias any more");
    world.delete_workload("db");
    world.roll_out();
    assert_eq!(world.keys(&format!("{}{NAMESPACE}/", keys::DNS)), [""; 0]);
}

#[test]
fn the_aliases_of_a_workload_whose_files_cannot_be_read_stay() {
    let mut world = World::with_machines(1);
    serve_as(&mut world, "db", &["mysql"]);
    world.apply_workload("web", |_| {});
    world.settle();
    let service = addresses(&world, "db");
    let file = keys::manifest(NAMESPACE, "db", "VirtualLoadBalancer.kat");
    world.apply(&[WriteOperation::Put(file, b"- : -".to_vec())]);
    world.change(&keys::workload_meta(NAMESPACE, "db"), |value| {
        value["generation"] = json!(3);
    });
    world.plan_out();
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, "db")];
    assert!(entry.parsed.is_err(), "the scene");
    assert_eq!(addresses(&world, "db"), service);
    assert_eq!(addresses(&world, "mysql"), service);
    // Nobody else gets the name meanwhile.
    let mysql = ["mysql".to_owned()];
    let other = WorkloadKey::new(NAMESPACE, "other");
    let conflict = |world: &mut World| {
        let conflict = name_conflict(&world.snapshot(), &other, &mysql);
        conflict.map(|conflict| (conflict.owner.name, conflict.of_owner))
    };
    let expected = Some(("db".to_owned(), NameUse::UnreadAlias));
    assert_eq!(conflict(&mut world), expected);
    // An address that is another workload's too does not tell whose the other names are.
    let shared = keys::dns_record(NAMESPACE, "web", "A", &service[0]);
    world.apply(&[WriteOperation::Put(shared.clone(), Vec::new())]);
    assert_eq!(conflict(&mut world), None);
    world.apply(&[WriteOperation::Delete(shared)]);
    assert_eq!(conflict(&mut world), expected);
    serve_as(&mut world, "db", &[]);
    world.settle();
    assert_eq!(addresses(&world, "mysql"), [""; 0]);
}

#[test]
fn a_name_of_a_namespace_is_one_workloads() {
    let mut world = World::with_machines(1);
    serve_as(&mut world, "db", &["mysql", "sql"]);
    world.settle();
    let conflict = |world: &mut World, namespace: &str, name: &str, aliases: &[&str]| {
        let aliases: Vec<String> = aliases.iter().map(|alias| (*alias).to_owned()).collect();
        let key = WorkloadKey::new(namespace, name);
        name_conflict(&world.snapshot(), &key, &aliases)
    };
    let owned = |name: &str, alias, of_owner: Option<usize>| NameConflict {
        name: name.to_owned(),
        alias,
        owner: WorkloadKey::new(NAMESPACE, "db"),
        of_owner: of_owner.map_or(NameUse::OwnName, NameUse::Alias),
    };
    for (name, aliases, expected) in [
        (
            "web",
            &["cache", "sql"][..],
            Some(owned("sql", Some(1), Some(1))),
        ),
        ("web", &["db"][..], Some(owned("db", Some(0), None))),
        ("mysql", &[][..], Some(owned("mysql", None, Some(0)))),
        ("web", &["cache"][..], None),
        // Its own names, of which some are stored.
        ("db", &["mysql", "postgres"][..], None),
    ] {
        assert_eq!(conflict(&mut world, NAMESPACE, name, aliases), expected);
    }
    assert_eq!(conflict(&mut world, "shop", "mysql", &["sql"]), None);
}

#[test]
fn of_two_that_have_a_name_stored_the_earlier_one_has_it_and_an_own_name_comes_first() {
    let mut world = World::with_machines(1);
    serve_as(&mut world, "db", &["mysql", "web"]);
    world.settle();
    let first = addresses(&world, "db");
    assert_eq!(addresses(&world, "web"), first);
    world.pass(Duration::from_secs(1));
    serve_as(&mut world, "also", &["mysql", "db"]);
    serve_as(&mut world, "web", &[]);
    world.settle();
    let second = addresses(&world, "also");
    assert_ne!(first, second);
    assert_eq!(addresses(&world, "mysql"), first);
    assert_eq!(addresses(&world, "db"), first);
    assert_ne!(
        addresses(&world, "web"),
        first,
        "it is a workload's own name now"
    );
    world.delete_workload("db");
    world.roll_out();
    assert_eq!(addresses(&world, "mysql"), second);
    assert_eq!(addresses(&world, "db"), second);
}

/// The names of replicas, each with its address.
fn replicas(world: &World, name: &str) -> Vec<String> {
    let mut found = records(world, name);
    found.retain(|value| {
        let owner = value.split_once('=').map(|(owner, _)| owner);
        let last = owner.and_then(|owner| owner.rsplit('-').next());
        last.is_some_and(|last| last.parse::<u32>().is_ok() && last.len() < 5)
    });
    found
}

fn expected(world: &mut World, name: &str) -> Vec<String> {
    let wanted = world.wanted(name).into_iter();
    let named = wanted.map(|(_, _, one)| format!("{name}-{}={}", one.slot, one.address));
    let mut named: Vec<String> = named.collect();
    named.sort();
    named
}

fn database(world: &mut World, image: &str, count: u32) {
    world.apply_workload("db", |file| {
        file["spec"]["replicas"] = json!(count);
        file["spec"]["source"]["image"] = json!(image);
        file["spec"]["volumes"] =
            json!([{"name": "data", "simpleClusterStorage": {}, "perReplica": true}]);
        file["spec"]["container"]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    });
}

#[test]
fn a_replica_with_data_of_its_own_has_a_name_that_stays() {
    let mut world = World::with_machines(3);
    database(&mut world, "registry.example/db:1", 3);
    world.replicas("web", 2);
    world.roll_out();
    let before = replicas(&world, "db");
    assert_eq!(before.len(), 3, "{before:?}");
    assert_eq!(before, expected(&mut world, "db"));
    assert_eq!(
        replicas(&world, "web"),
        [""; 0],
        "its replicas share nothing that stays"
    );
    database(&mut world, "registry.example/db:2", 3);
    world.roll_out();
    let after = replicas(&world, "db");
    assert_eq!(after, expected(&mut world, "db"));
    assert_ne!(after, before, "other instances have the names");
    database(&mut world, "registry.example/db:2", 1);
    world.roll_out();
    assert_eq!(replicas(&world, "db"), expected(&mut world, "db"));
    assert_eq!(replicas(&world, "db").len(), 1);
}

#[test]
fn a_replica_has_its_name_from_its_start_and_loses_it_with_its_stop() {
    let mut world = World::with_machines(1);
    database(&mut world, "registry.example/db:1", 1);
    world.roll_out();
    let named = replicas(&world, "db");
    let (id, ..) = world.wanted("db")[0].clone();
    let machine = world.at("n1");
    machine.obeys = false;
    for (phase, has_name) in [
        (InstancePhase::Pulling, false),
        (InstancePhase::Starting, true),
        (InstancePhase::Restarting, true),
        (InstancePhase::Running, true),
    ] {
        world.pass(Duration::from_secs(1));
        world.at("n1").instances.get_mut(&id).unwrap().phase = phase;
        world.plan_out();
        let expected = if has_name { named.clone() } else { Vec::new() };
        assert_eq!(replicas(&world, "db"), expected, "{phase:?}");
        let serves = records(&world, "db")
            .iter()
            .any(|value| value.starts_with(&id));
        assert_eq!(serves, phase == InstancePhase::Running, "{phase:?}");
    }
    // It is stopped, and its machine has not confirmed that yet.
    database(&mut world, "registry.example/db:1", 0);
    world.plan_out();
    assert_eq!(replicas(&world, "db"), [""; 0]);
}
