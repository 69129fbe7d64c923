//! Which machine is to hold a virtual address.

use super::*;
use kat_types::{
    api::VirtualAddressReport,
    machine::node_labels::{INGRESS_ROLE, ROLE_LABEL},
    resource::{ClusterConfiguration, VirtualAddress},
    virtual_addresses::{AddressStateWord, VirtualAddressRecord},
};

const ADDRESS: &str = "192.0.2.9";

fn configure(world: &mut World, addresses: &[&str]) {
    let mut cluster = ClusterConfiguration::default();
    cluster.spec.virtual_addresses = addresses
        .iter()
        .map(|address| VirtualAddress {
            address: format!("{address}/24"),
            interface: "auto".to_owned(),
            on_leader_loss: Default::default(),
        })
        .collect();
    world.write(keys::CLUSTER.to_owned(), &cluster);
}

/// What the machine's `kat-net` says of the address.
fn says(world: &mut World, machine: &str, state: AddressStateWord) {
    world.at(machine).virtual_addresses = vec![VirtualAddressReport {
        address: ADDRESS.parse().unwrap(),
        state,
        interface: "eth0".to_owned(),
        message: String::new(),
    }];
}

fn record(world: &mut World) -> Option<VirtualAddressRecord> {
    let snapshot = world.snapshot();
    let stored = snapshot.virtual_addresses.get(&ADDRESS.parse().unwrap());
    stored.map(|stored| stored.value.clone())
}

fn holder(world: &mut World) -> Option<String> {
    record(world).and_then(|record| record.holder)
}

/// Three machines that can hold the address, of which one is to.
fn held() -> World {
    let mut world = World::with_machines(3);
    configure(&mut world, &[ADDRESS]);
    for name in ["n1", "n2", "n3"] {
        says(&mut world, name, AddressStateWord::Ready);
    }
    world.settle();
    assert_eq!(holder(&mut world).as_deref(), Some("n1"));
    world
}

#[test]
fn an_address_is_given_to_a_machine_that_says_that_it_can_hold_it() {
    let mut world = World::with_machines(2);
    configure(&mut world, &[ADDRESS]);
    world.settle();
    let record_of_none = record(&mut world).unwrap();
    assert_eq!((record_of_none.holder, record_of_none.number), (None, 0));
    says(&mut world, "n1", AddressStateWord::NoInterface);
    says(&mut world, "n2", AddressStateWord::Ready);
    world.settle();
    let given = record(&mut world).unwrap();
    assert_eq!(given.holder.as_deref(), Some("n2"));
    assert!(given.number > 0 && given.since.is_some());
    assert_eq!(world.events("VirtualAddressMoved").len(), 1);
    configure(&mut world, &[]);
    world.settle();
    assert_eq!(record(&mut world), None);
}

#[test]
fn only_ingress_machines_hold_an_address_where_there_are_some() {
    let mut world = held();
    let mut registration = world.snapshot().nodes["n3"].registration.value.clone();
    let labels = &mut registration.labels;
    labels.insert(ROLE_LABEL.to_owned(), INGRESS_ROLE.to_owned());
    world.write(keys::registration("n3"), &registration);
    world.settle();
    assert_eq!(holder(&mut world).as_deref(), Some("n3"));
}

#[test]
fn an_address_leaves_a_drained_machine_at_once_and_stays_where_it_went() {
    let mut world = held();
    let before = record(&mut world).unwrap().number;
    world.drain("n1", true);
    world.plan_out();
    let moved = record(&mut world).unwrap();
    assert_eq!(moved.holder.as_deref(), Some("n2"));
    assert!(moved.number > before);
    world.drain("n1", false);
    world.settle();
    assert_eq!(record(&mut world).unwrap(), moved);
    let told = world.events("VirtualAddressMoved");
    assert!(
        told.iter()
            .any(|one| one.contains("instead of n1: it is being drained")),
        "{told:?}"
    );
    for name in ["n1", "n2", "n3"] {
        world.drain(name, true);
    }
    world.settle();
    assert!(holder(&mut world).is_some(), "somebody has it all the same");
}

#[test]
fn an_address_leaves_a_lost_machine_after_the_timeout_and_not_before() {
    let mut world = held();
    world.at("n1").speaks = false;
    world.pass(Duration::from_secs(59));
    world.plan_out();
    assert_eq!(holder(&mut world).as_deref(), Some("n1"));
    world.pass(Duration::from_secs(1));
    world.plan_out();
    assert_eq!(holder(&mut world).as_deref(), Some("n2"));
    // The others are lost too: the address stays where it may still answer.
    for name in ["n2", "n3"] {
        world.at(name).speaks = false;
    }
    world.pass(Duration::from_secs(120));
    world.plan_out();
    assert_eq!(holder(&mut world).as_deref(), Some("n2"));
}

#[test]
fn an_address_leaves_a_machine_whose_interface_has_no_carrier() {
    let mut world = held();
    says(&mut world, "n1", AddressStateWord::NoCarrier);
    world.settle();
    assert_eq!(holder(&mut world).as_deref(), Some("n2"));
}

#[test]
fn a_new_leader_that_has_heard_of_no_machine_moves_nothing() {
    let mut world = held();
    let before = record(&mut world);
    world.new_leader();
    for name in ["n1", "n2", "n3"] {
        world.at(name).speaks = false;
    }
    world.plan_out();
    assert_eq!(record(&mut world), before);
}
