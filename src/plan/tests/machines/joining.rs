//! Machines that join and leave, and their addresses.

use super::*;
use kat_plan::not_migrated;
use kat_types::api::MemberKeys;

fn applicant(name: &str, number: u8) -> Applicant {
    Applicant {
        name: name.to_owned(),
        identity_key: format!("key {number}"),
        signed: false,
        member_keys: Default::default(),
        public_key: format!("wireguard {number}"),
        endpoints: vec![format!("192.0.2.{number}:51820")],
        advertise: vec![[192, 0, 2, number].into()],
        reach: Reach::default(),
        architecture: "amd64".to_owned(),
        etcd: false,
        no_etcd: false,
        etcd_peer: false,
    }
}

/// Admits a machine as the API does.
fn join(world: &mut World, applicant: &Applicant) -> Result<Admission, NotAdmitted> {
    let uid = format!("uid {}", world.revision);
    let admission = applicant.admit(&world.snapshot(), &uid, world.now)?;
    world.apply(&admission.operations);
    let mut silent = Machine::new(&admission.uid);
    silent.resources = ResourceList::default();
    (silent.speaks, silent.obeys) = (false, false);
    world.machines.insert(applicant.name.clone(), silent);
    Ok(admission)
}

#[test]
fn each_machine_gets_the_first_free_subnet_and_a_key_of_its_own() {
    let mut world = World::with_machines(1);
    let subnet = |world: &mut World, name: &str, number| {
        join(world, &applicant(name, number)).map(|one| one.subnet.to_string())
    };
    assert_eq!(subnet(&mut world, "n2", 2).unwrap(), "10.100.2.0/23");
    assert_eq!(subnet(&mut world, "n3", 3).unwrap(), "10.100.4.0/23");
    world.remove_machine("n2");
    assert_eq!(subnet(&mut world, "n4", 4).unwrap(), "10.100.2.0/23");
    let taken = NotAdmitted::NameTaken("n3".to_owned());
    assert_eq!(subnet(&mut world, "n3", 9), Err(taken));
    let known = NotAdmitted::KnownAs("n3".to_owned());
    assert_eq!(subnet(&mut world, "n9", 3), Err(known));
    let copy = Applicant {
        identity_key: "another".to_owned(),
        ..applicant("n9", 3)
    };
    let same = NotAdmitted::SameWireGuardKey("n3".to_owned());
    assert_eq!(join(&mut world, &copy), Err(same));
}

#[test]
fn a_known_key_keeps_what_the_machine_was_and_what_was_decided_about_it() {
    let mut world = World::with_machines(1);
    let first = join(&mut world, &applicant("n2", 2)).unwrap();
    let mut registration = world.snapshot().state.nodes["n2"]
        .registration
        .value
        .clone();
    registration.labels.insert("disk".into(), "ssd".into());
    registration.draining = true;
    world.write(keys::registration("n2"), &registration);
    let moved = Applicant {
        advertise: vec![[198, 51, 100, 7].into()],
        endpoints: vec!["198.51.100.7:51820".to_owned()],
        ..applicant("n2", 2)
    };
    let swapped = Applicant {
        public_key: "another".to_owned(),
        ..moved.clone()
    };
    let refused = NotAdmitted::NotSigned("n2".to_owned());
    assert_eq!(join(&mut world, &swapped), Err(refused));
    let again = join(&mut world, &moved).unwrap();
    assert!(again.known);
    assert_eq!((again.uid, again.subnet), (first.uid, first.subnet));
    let node = world.snapshot().state.nodes["n2"].clone();
    assert_eq!(node.endpoints, moved.endpoints);
    let expected = NodeRegistration {
        advertise: moved.advertise,
        ..registration
    };
    assert_eq!(node.registration.value, expected);
    world.mark_machine("n2");
    let leaving = NotAdmitted::Leaving("n2".to_owned());
    assert_eq!(join(&mut world, &applicant("n2", 2)), Err(leaving));
}

#[test]
fn a_full_overlay_is_named() {
    let mut world = World::new();
    world.write(
        keys::CLUSTER.to_owned(),
        &json!({"metadata": {"name": "kat"}, "spec": {"clusterCIDR": "10.100.0.0/28", "nodeSubnetBits": 1}}),
    );
    for number in 1..=2 {
        join(&mut world, &applicant(&format!("n{number}"), number)).unwrap();
    }
    let error = join(&mut world, &applicant("n3", 3)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "clusterCIDR 10.100.0.0/28 has room for 2 machines, and all of it is taken"
    );
}

#[test]
fn a_machine_that_leaves_takes_nothing_along_and_its_work_goes_elsewhere() {
    let mut world = World::with_machines(2);
    world.replicas("web", 300);
    world.settle();
    world.remove_machine("n2");
    world.settle();
    assert_eq!(world.wanted("web").len(), 300);
    assert!(world.wanted("web").iter().all(|(_, node, _)| node == "n1"));
    for prefix in [
        keys::registration("n2"),
        keys::node_status("n2"),
        keys::node_desired("n2"),
        keys::network_node("n2", ""),
        keys::dns_record("node", "n2", "A", ""),
    ] {
        let left = world.entries.keys().find(|key| key.starts_with(&prefix));
        assert_eq!(left, None);
    }
    let addresses = world.snapshot().state.allocations;
    assert_eq!(addresses.len(), 300, "the addresses are given back");
}

#[test]
fn everybody_is_told_where_machines_answer() {
    let mut world = World::new();
    join(
        &mut world,
        &Applicant {
            etcd: true,
            ..applicant("n1", 1)
        },
    )
    .unwrap();
    join(&mut world, &applicant("n2", 2)).unwrap();
    world.plan_out();
    let stored = world.snapshot().state.endpoints.unwrap().value;
    assert_eq!(stored.machines["n2"].api, ["192.0.2.2:9115"]);
    assert_eq!(stored.api(), ["192.0.2.1:9115"], "workers never lead");
    assert_eq!(stored.etcd(2379), ["https://10.100.0.1:2379"]);
    world.remove_machine("n2");
    let stored = world.snapshot().state.endpoints.unwrap().value;
    assert_eq!(stored.machines.keys().collect::<Vec<_>>(), ["n1"]);
}

#[test]
fn a_machine_whose_address_changed_is_told_of_to_all() {
    let mut world = World::new();
    let etcd = Applicant {
        etcd: true,
        ..applicant("n1", 1)
    };
    join(&mut world, &etcd).unwrap();
    let n1 = world.at("n1");
    n1.speaks = true;
    world.plan_out();
    // The report of an older agent has no endpoints.
    let node = world.snapshot().state.nodes["n1"].clone();
    assert_eq!(node.endpoints, ["192.0.2.1:51820"]);
    let mut registration = node.registration.value;
    let n1 = world.at("n1");
    n1.advertise = vec![[198, 51, 100, 7].into()];
    n1.endpoints = vec![
        "home.example.org:51820".to_owned(),
        "198.51.100.7:51820".to_owned(),
    ];
    let said = n1.endpoints.clone();
    world.plan_out();
    let node = world.snapshot().state.nodes["n1"].clone();
    assert_eq!(node.endpoints, said);
    registration.advertise = vec![[198, 51, 100, 7].into()];
    assert_eq!(node.registration.value, registration);
    let stored = world.snapshot().state.endpoints.unwrap().value;
    assert_eq!(stored.api(), ["198.51.100.7:9115"]);
    let events = world.snapshot().state.events;
    let told = |stored: &&Stored<Arc<Event>>| stored.value.reason == "EndpointsChanged";
    assert_eq!(events.values().filter(told).count(), 1);
}

/// Two members and a worker, each with an address; n1 leads.
fn three_with_addresses() -> World {
    let mut world = World::with_machines(0);
    for (name, number) in [("n1", 1), ("n2", 2), ("a3", 3)] {
        let etcd = name != "a3";
        let one = Applicant {
            etcd,
            ..applicant(name, number)
        };
        join(&mut world, &one).unwrap();
        let machine = world.at(name);
        (machine.speaks, machine.obeys) = (true, true);
        machine.advertise.clone_from(&one.advertise);
        machine.endpoints.clone_from(&one.endpoints);
    }
    world.plan_out();
    world
}

fn addresses(world: &mut World, name: &str) -> (Vec<String>, Vec<String>) {
    let node = world.snapshot().state.nodes[name].clone();
    let advertise = &node.registration.value.advertise;
    let advertise = advertise.iter().map(ToString::to_string).collect();
    (advertise, node.endpoints)
}

fn taken(world: &mut World, name: &str) -> Option<String> {
    let node = world.snapshot().state.nodes[name].clone();
    let conditions = node.status.unwrap().value.conditions;
    let mut taken = conditions
        .into_iter()
        .filter(|one| one.reason == "AddressTaken");
    taken.next().map(|one| one.message)
}

fn warnings(world: &mut World) -> usize {
    let events = world.snapshot().state.events;
    let taken = events
        .values()
        .filter(|one| one.value.reason == "AddressTaken");
    taken.count()
}

#[test]
fn a_machine_that_reports_the_leaders_address_as_its_own_does_not_get_it() {
    let mut world = three_with_addresses();
    let before = world.snapshot().state.endpoints.unwrap().value;
    assert_eq!(taken(&mut world, "a3"), None);
    let worker = world.at("a3");
    worker.advertise = vec![[192, 0, 2, 1].into()];
    worker.endpoints = vec!["192.0.2.1:51820".to_owned(), "192.0.2.3:51821".to_owned()];
    world.plan_out();
    let own = (
        vec!["192.0.2.3".to_owned()],
        vec!["192.0.2.3:51821".to_owned()],
    );
    assert_eq!(addresses(&mut world, "a3"), own);
    assert_eq!(world.snapshot().state.endpoints.unwrap().value, before);
    let said = taken(&mut world, "a3").unwrap();
    assert!(
        said.contains("192.0.2.1:9115 is the address of machine n1"),
        "{said}"
    );
    assert!(said.contains("192.0.2.1:51820"), "{said}");
    assert_eq!(warnings(&mut world), 1);
    world.plan_out();
    assert_eq!(warnings(&mut world), 1);
    // With the machine's own address, the condition ends.
    world.at("a3").advertise = vec![[192, 0, 2, 3].into()];
    world.at("a3").endpoints = vec!["192.0.2.3:51820".to_owned()];
    world.plan_out();
    assert_eq!(taken(&mut world, "a3"), None);
}

#[test]
fn a_machine_gets_no_address_with_which_another_one_joins_meanwhile() {
    let mut world = three_with_addresses();
    let worker = world.at("a3");
    worker.advertise = vec![[192, 0, 2, 4].into()];
    worker.endpoints = vec!["192.0.2.4:51820".to_owned()];
    // The leader plans while its copy of the store does not show the newcomer yet.
    let behind = plan(&world.snapshot(), &world.observed(), world.now, 1);
    let newcomer = applicant("n4", 4);
    assert!(!join(&mut world, &newcomer).unwrap().known);
    let places = [
        keys::registration("a3"),
        keys::network_node("a3", "wg_endpoints"),
    ];
    let moves = |operation: &WriteOperation| matches!(operation, WriteOperation::Put(key, _) if places.contains(key));
    let mut moving = behind
        .changes
        .iter()
        .filter(|change| change.operations.iter().any(moves));
    let holds = |condition: &Compare| match condition {
        Compare::ModRevision(key, revision) => {
            let entry = world.entries.get(key.as_str());
            entry.map_or(0, |entry| entry.mod_revision) == *revision
        }
        other => panic!("{other:?}"),
    };
    let change = moving.next().expect("its address is to be stored");
    assert!(!change.conditions.iter().all(holds), "{change:?}");
    world.plan_out();
    assert_eq!(addresses(&mut world, "a3").0, ["192.0.2.3"]);
    let said = taken(&mut world, "a3").unwrap();
    assert!(
        said.contains("192.0.2.4:9115 is the address of machine n4"),
        "{said}"
    );
    assert!(join(&mut world, &newcomer).unwrap().known);
}

#[test]
fn an_address_is_free_once_its_machine_is_elsewhere_or_gone() {
    let mut world = three_with_addresses();
    // The two machines swap addresses, as a restarted router may do.
    for (name, number) in [("n1", 2_u8), ("n2", 1)] {
        let machine = world.at(name);
        machine.advertise = vec![[192, 0, 2, number].into()];
        machine.endpoints = vec![format!("192.0.2.{number}:51820")];
    }
    world.plan_out();
    assert_eq!(addresses(&mut world, "n1").0, ["192.0.2.2"]);
    assert_eq!(addresses(&mut world, "n2").1, ["192.0.2.1:51820"]);
    assert_eq!(warnings(&mut world), 0);
    // A machine that is off keeps its address until it is removed.
    world.at("n2").speaks = false;
    let join_there = |world: &mut World| {
        let newcomer = Applicant {
            advertise: vec![[192, 0, 2, 1].into()],
            ..applicant("n4", 4)
        };
        join(world, &newcomer).map(|one| one.known)
    };
    let refused = NotAdmitted::AddressTaken {
        address: "192.0.2.1:9115".to_owned(),
        node: "n2".to_owned(),
    };
    assert_eq!(join_there(&mut world), Err(refused));
    world.remove_machine("n2");
    assert_eq!(join_there(&mut world), Ok(false));
}

#[test]
fn machines_behind_one_router_share_its_address_with_a_port_each() {
    let mut world = three_with_addresses();
    let hidden = |name: &str, number, port: u16| Applicant {
        // Agents also report their private address, and the addresses of two private networks may
        // be equal.
        endpoints: vec![format!("203.0.113.7:{port}"), "10.0.0.2:51820".to_owned()],
        advertise: vec![[10, 0, 0, 2].into()],
        reach: Reach {
            behind_nat: true,
            ..Reach::default()
        },
        ..applicant(name, number)
    };
    for (name, number, port) in [("n5", 5, 51_820), ("n6", 6, 51_821)] {
        let one = hidden(name, number, port);
        join(&mut world, &one).unwrap();
        let machine = world.at(name);
        machine.speaks = true;
        machine.advertise.clone_from(&one.advertise);
        machine.endpoints.clone_from(&one.endpoints);
    }
    world.plan_out();
    assert_eq!(
        addresses(&mut world, "n6").1,
        ["203.0.113.7:51821", "10.0.0.2:51820"]
    );
    assert_eq!(warnings(&mut world), 0);
    let same = join(&mut world, &hidden("n7", 7, 51_821)).unwrap_err();
    assert!(same.to_string().contains("203.0.113.7:51821"), "{same}");
}

#[test]
fn a_report_writes_the_keys_of_a_member_that_joined_with_an_earlier_version() {
    let mut world = three_with_addresses();
    let keys_of = |world: &mut World, name: &str| {
        let node = world.snapshot().state.nodes[name].clone();
        node.registration.value.member_keys
    };
    assert!(keys_of(&mut world, "n2").is_empty());
    let known = MemberKeys {
        leader: "ab".repeat(32),
        admin: "cd".repeat(32),
        api: "ef".repeat(32),
    };
    world.at("n2").member_keys.clone_from(&known);
    world.plan_out();
    assert_eq!(keys_of(&mut world, "n2"), known);
    let published = world.snapshot().state.endpoints.unwrap().value.machines;
    assert_eq!(published["n2"].leader_key, known.leader);
    assert_eq!(published["n2"].node_key, "key 2");
    assert_eq!(published["n2"].api_key, known.api);
    assert_eq!(published["a3"].leader_key, "");
    // A report without keys comes from a machine whose upgrade was taken back: it has no certificate
    // of the API, and the others stay known.
    world.at("n2").member_keys = MemberKeys::default();
    world.plan_out();
    let without_api = MemberKeys {
        api: String::new(),
        ..known.clone()
    };
    assert_eq!(keys_of(&mut world, "n2"), without_api);
    // A machine that joins reports its keys immediately.
    let newcomer = Applicant {
        member_keys: known.clone(),
        ..applicant("n4", 4)
    };
    join(&mut world, &newcomer).unwrap();
    assert_eq!(keys_of(&mut world, "n4"), known);
}

#[test]
fn the_migration_waits_for_a_machine_until_it_reads_the_stream_and_again_if_it_goes_back() {
    let mut world = three_with_addresses();
    world.at("a3").state_stream = None;
    world.plan_out();
    let waits = |world: &mut World| not_migrated(&world.snapshot());
    assert!(waits(&mut world).contains(&"a3".to_owned()));
    // An upgraded machine that has not opened the stream yet.
    world.at("a3").state_stream = Some(false);
    world.plan_out();
    assert!(waits(&mut world).contains(&"a3".to_owned()));
    world.at("a3").state_stream = Some(true);
    world.plan_out();
    assert!(!waits(&mut world).contains(&"a3".to_owned()));
    // Its agent starts again.
    world.at("a3").state_stream = Some(false);
    world.plan_out();
    assert!(!waits(&mut world).contains(&"a3".to_owned()));
    // Its upgrade is taken back.
    world.at("a3").state_stream = None;
    world.plan_out();
    assert!(waits(&mut world).contains(&"a3".to_owned()));
}

#[test]
fn names_come_before_addresses() {
    let mut world = World::new();
    let named = Applicant {
        etcd: true,
        reach: Reach {
            names: vec!["home.example.org".to_owned()],
            ..Reach::default()
        },
        ..applicant("n1", 1)
    };
    join(&mut world, &named).unwrap();
    world.plan_out();
    let stored = world.snapshot().state.endpoints.unwrap().value;
    assert_eq!(stored.api(), ["home.example.org:9115", "192.0.2.1:9115"]);
}

#[test]
fn a_machine_behind_nat_is_named_by_its_place_on_the_overlay() {
    let mut world = World::new();
    let hidden = Applicant {
        etcd: true,
        reach: Reach {
            behind_nat: true,
            ..Reach::default()
        },
        ..applicant("n1", 1)
    };
    join(&mut world, &hidden).unwrap();
    world.plan_out();
    let stored = world.snapshot().state.endpoints.unwrap().value;
    assert_eq!(stored.api(), ["10.100.0.1:9115"]);
    // The machine has a name now, and another machine that can lead is reachable from everywhere.
    let named = Applicant {
        reach: Reach {
            names: vec!["home.example.org".to_owned()],
            ..hidden.reach.clone()
        },
        ..hidden.clone()
    };
    join(&mut world, &named).unwrap();
    let open = Applicant {
        etcd: true,
        ..applicant("n2", 2)
    };
    join(&mut world, &open).unwrap();
    world.plan_out();
    let stored = world.snapshot().state.endpoints.unwrap().value;
    let expected = ["192.0.2.2:9115", "10.100.0.1:9115", "home.example.org:9115"];
    assert_eq!(stored.api(), expected);
    join(&mut world, &hidden).unwrap();
    world.remove_machine("n2");
    // The key is one that every machine's `kat-net` reads.
    let key = keys::network_node("n1", "reach");
    let told: Reach = serde_json::from_slice(&world.entries[key.as_str()].value).unwrap();
    assert_eq!(told, hidden.reach);
    // The machine joins again, and is reachable from outside now.
    join(&mut world, &applicant("n1", 1)).unwrap();
    world.plan_out();
    let stored = world.snapshot().state.endpoints.unwrap().value;
    assert_eq!(stored.api(), ["192.0.2.1:9115"]);
    let told: Reach = serde_json::from_slice(&world.entries[key.as_str()].value).unwrap();
    assert_eq!(told, Reach::default());
}

/// A machine that joins has no connection to the overlay yet.
#[test]
fn who_joins_is_sent_to_a_machine_that_is_reached_from_outside() {
    let mut world = World::new();
    let hidden = Reach {
        behind_nat: true,
        ..Reach::default()
    };
    let relay = Reach {
        relay: true,
        ..Reach::default()
    };
    for (number, reach) in [
        (1, hidden),
        (2, Reach::default()),
        (3, relay),
        (4, Reach::default()),
    ] {
        let machine = Applicant {
            etcd: number == 4,
            reach,
            ..applicant(&format!("n{number}"), number)
        };
        join(&mut world, &machine).unwrap();
    }
    let leads = |world: &mut World, at: &str| {
        let leader = WriteOperation::Put(keys::LEADER_ENDPOINT.to_owned(), at.into());
        world.apply(&[leader]);
        endpoint_for_joining(&world.snapshot())
    };
    let of = |world: &mut World| leads(world, "10.100.0.1:9115");
    assert_eq!(of(&mut world), None, "nobody else is Ready");
    for (name, expected) in [("n2", 2), ("n4", 4), ("n3", 3)] {
        world.at(name).speaks = true;
        world.plan_out();
        let expected = format!("192.0.2.{expected}:9115");
        assert_eq!(of(&mut world), Some(expected));
    }
    for leader in ["192.0.2.4:9115", "home.example.org:9115"] {
        assert_eq!(leads(&mut world, leader).as_deref(), Some(leader));
    }
}
