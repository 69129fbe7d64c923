use std::collections::BTreeMap;

use super::*;
use kat_types::machine::{
    isolation::IsolatedNamespace,
    network::{InstanceNetwork, StartGate},
};

pub(crate) fn node() -> NodeNetwork {
    let node = r#"{"schema":1,"node":"n1","clusterCidr":"10.90.0.0/16","serviceCidr":"10.91.0.0/16",
        "subnet":"10.90.2.0/23","address":"10.90.2.1","clusterDomain":"cluster.local",
        "wireguardPort":51820,"mtu":1420,"holdSeconds":60}"#;
    serde_json::from_str(node).unwrap()
}

pub(crate) fn address(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

/// Rules with one instance of each `(namespace, workload, address)`.
pub(crate) fn rules(instances: &[(&str, &str, &str)]) -> IsolationRules {
    let mut namespaces: BTreeMap<String, IsolatedNamespace> = BTreeMap::new();
    for (namespace, workload, at) in instances {
        let content = namespaces.entry((*namespace).to_owned()).or_default();
        let workloads = &mut content.workloads;
        let one = workloads.entry((*workload).to_owned()).or_default();
        let id = format!("{workload}-{}", one.instances.len());
        one.instances.insert(address(at), id);
    }
    IsolationRules {
        schema: 1,
        mode: IsolationMode::Namespaces,
        revision: 1,
        namespaces,
    }
}

pub(crate) fn own(namespace: &str, workload: &str, at: &str) -> InstanceNetwork {
    InstanceNetwork {
        namespace: namespace.into(),
        workload: workload.into(),
        uid: 20000,
        unit: "kat-x.service".into(),
        address: address(at),
        gate: StartGate::Open,
        host_ports: Vec::new(),
        machine_access: BTreeSet::new(),
    }
}

pub(crate) fn policy(rules: &IsolationRules) -> IsolationPolicy {
    IsolationPolicy::new(&node(), &Instances::default(), rules)
}

const DB: &str = "10.90.4.10";
const CACHE: &str = "10.90.4.11";
const SHOP: &str = "10.90.6.10";
const OPS: &str = "10.90.6.11";

fn three_namespaces() -> IsolationRules {
    rules(&[
        ("data", "db", DB),
        ("data", "cache", CACHE),
        ("shop", "web", SHOP),
        ("ops", "tool", OPS),
    ])
}

fn verdict(rules: &IsolationRules, from: &str, to: &str) -> IsolationVerdict {
    policy(rules).judge(address(from), address(to))
}

#[test]
fn a_namespace_reaches_itself_and_no_other() {
    let rules = three_namespaces();
    assert_eq!(verdict(&rules, CACHE, DB), IsolationVerdict::Allowed);
    assert_eq!(verdict(&rules, SHOP, DB), IsolationVerdict::Refused);
    assert_eq!(verdict(&rules, DB, SHOP), IsolationVerdict::Refused);
}

#[test]
fn what_serves_says_who_may_reach_it() {
    let mut rules = three_namespaces();
    let data = rules.namespaces.get_mut("data").unwrap();
    data.allow.insert("ops".into());
    let db = data.workloads.get_mut("db").unwrap();
    db.allow.insert("shop".into());
    assert_eq!(verdict(&rules, OPS, DB), IsolationVerdict::Allowed);
    assert_eq!(verdict(&rules, OPS, CACHE), IsolationVerdict::Allowed);
    assert_eq!(verdict(&rules, SHOP, DB), IsolationVerdict::Allowed);
    assert_eq!(verdict(&rules, SHOP, CACHE), IsolationVerdict::Refused);
    assert_eq!(
        verdict(&rules, DB, SHOP),
        IsolationVerdict::Refused,
        "one direction"
    );
}

#[test]
fn a_shared_namespace_is_reached_by_all_and_reaches_no_more_for_it() {
    let mut rules = three_namespaces();
    let data = rules.namespaces.get_mut("data").unwrap();
    data.allow.insert(EVERY_NAMESPACE.into());
    for from in [SHOP, OPS, CACHE] {
        assert_eq!(verdict(&rules, from, DB), IsolationVerdict::Allowed);
    }
    assert_eq!(verdict(&rules, DB, SHOP), IsolationVerdict::Refused);
    assert_eq!(
        verdict(&rules, "10.90.6.99", DB),
        IsolationVerdict::Unknown,
        "an unknown caller is of no namespace"
    );
}

#[test]
fn an_address_that_two_instances_have_is_nobodys() {
    let rules = rules(&[
        ("data", "db", DB),
        ("shop", "web", DB),
        ("shop", "web", SHOP),
    ]);
    assert_eq!(verdict(&rules, SHOP, DB), IsolationVerdict::Unknown);
    assert_eq!(verdict(&rules, DB, SHOP), IsolationVerdict::Unknown);
}

#[test]
fn this_machines_own_list_is_believed_about_its_own_containers() {
    let rules = rules(&[("data", "db", "10.90.2.10"), ("shop", "web", SHOP)]);
    let instances = Instances {
        schema: 1,
        instances: [("new-0".to_owned(), own("shop", "new", "10.90.2.10"))].into(),
        ..Instances::default()
    };
    let policy = IsolationPolicy::new(&node(), &instances, &rules);
    let verdict = policy.judge(address(SHOP), address("10.90.2.10"));
    assert_eq!(verdict, IsolationVerdict::Allowed);
    assert_eq!(policy.own["new-0"], address("10.90.2.10"));
}

#[test]
fn neither_a_machine_nor_an_address_outside_becomes_a_namespaces() {
    let rules = rules(&[
        ("data", "db", "10.90.4.1"),
        ("data", "web", "192.0.2.1"),
        ("Data\n", "x", DB),
        ("data", "a b", CACHE),
        ("data", "ok", SHOP),
    ]);
    let policy = policy(&rules);
    let known: Vec<&Ipv4Addr> = policy.owners().keys().collect();
    assert_eq!(known, [&address(SHOP)]);
}
