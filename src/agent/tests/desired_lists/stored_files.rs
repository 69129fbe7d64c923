//! Files on a machine that earlier versions (`tests/stored/README.md`) or a later version wrote can
//! be read.

use serde_json::{Value, json};

use crate::{
    cluster::{cluster_cache::ClusterCache, identity::MachineIdentity},
    desired_state::desired::DesiredState,
};
use kat_types::machine::network::{DnsRecords, Instances, NodeNetwork, PeerMachines, StartGate};

macro_rules! stored {
    ($name:literal) => {
        include_str!(concat!("../../../../tests/stored/1/", $name))
    };
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

/// The object with a newer schema and an unknown field.
fn newer(text: &str) -> Value {
    let mut value: Value = read(text);
    value["schema"] = json!(9);
    value["fromLater"] = json!({"a": [1, "b"]});
    value
}

#[test]
fn the_files_of_a_machine_are_read() {
    let identity: MachineIdentity = read(stored!("node.json"));
    let node: NodeNetwork = read(stored!("network/node.json"));
    assert_eq!(identity.overlay_address(), node.address);
    let known: ClusterCache = read(stored!("cluster.json"));
    assert_eq!(known.members.members.len(), 3);
    assert_eq!(known.etcd(&identity).len(), 3);
    let desired: DesiredState = read(stored!("desired.json"));
    let instances: Instances = read(stored!("network/instances.json"));
    assert!(!desired.assignments.is_empty());
    assert_eq!(
        desired.assignments.keys().collect::<Vec<_>>(),
        instances.instances.keys().collect::<Vec<_>>()
    );
    assert!(
        desired
            .assignments
            .values()
            .all(kat_types::assignment::Assignment::is_run)
    );
    let peers: PeerMachines = read(stored!("network/peers.json"));
    assert!(peers.peers.values().all(|peer| !peer.endpoints.is_empty()));
    assert_eq!(peers.peers.len(), 3);
    let dns: DnsRecords = read(stored!("network/dns.json"));
    assert!(dns.records.contains_key("n1.node"));
}

#[test]
fn the_files_of_a_later_version_are_read() {
    let identity: MachineIdentity = serde_json::from_value(newer(stored!("node.json"))).unwrap();
    assert_eq!(
        identity,
        MachineIdentity {
            schema: 9,
            ..read(stored!("node.json"))
        }
    );
    let known: ClusterCache = serde_json::from_value(newer(stored!("cluster.json"))).unwrap();
    assert_eq!(
        known,
        ClusterCache {
            schema: 9,
            ..read(stored!("cluster.json"))
        }
    );
    let node: NodeNetwork = serde_json::from_value(newer(stored!("network/node.json"))).unwrap();
    assert_eq!(
        node,
        NodeNetwork {
            schema: 9,
            ..read(stored!("network/node.json"))
        }
    );
    let dns: DnsRecords = serde_json::from_value(newer(stored!("network/dns.json"))).unwrap();
    assert_eq!(
        dns,
        DnsRecords {
            schema: 9,
            ..read(stored!("network/dns.json"))
        }
    );
    let mut peers = newer(stored!("network/peers.json"));
    for peer in peers["peers"].as_object_mut().unwrap().values_mut() {
        peer["fromLater"] = json!(true);
    }
    let peers: PeerMachines = serde_json::from_value(peers).unwrap();
    assert_eq!(
        peers,
        PeerMachines {
            schema: 9,
            ..read(stored!("network/peers.json"))
        }
    );
    // An unknown value keeps the gate closed.
    let mut instances = newer(stored!("network/instances.json"));
    for instance in instances["instances"].as_object_mut().unwrap().values_mut() {
        instance["fromLater"] = json!(true);
        instance["gate"] = json!("ask");
    }
    let instances: Instances = serde_json::from_value(instances).unwrap();
    assert!(
        instances
            .instances
            .values()
            .all(|one| one.gate == StartGate::Closed)
    );
    let mut desired = newer(stored!("desired.json"));
    for assignment in desired["assignments"].as_object_mut().unwrap().values_mut() {
        assignment["wanted"] = json!("Hibernating");
    }
    let desired: DesiredState = serde_json::from_value(desired).unwrap();
    let understood = |one: &kat_types::assignment::Assignment| one.not_understood.is_none();
    assert!(!desired.assignments.is_empty());
    assert!(!desired.assignments.values().any(understood));
}
