//! Networks of the machine that overlap the cluster's, and the remedies.

use super::*;
use crate::facts::network::{Address, KernelRoute};

fn route(to: &str, link: &str) -> KernelRoute {
    KernelRoute {
        destination: to.parse().unwrap(),
        link: link.to_owned(),
    }
}

#[test]
fn networks_of_others_are_in_the_way_and_kats_own_are_not() {
    let found = findings_of(CheckStage::BeforeInit, |facts| {
        facts.routes = vec![
            route("0.0.0.0/0", "eth0"),
            route("10.100.7.0/24", "docker0"),
            route("10.0.0.0/8", "vpn"),
        ];
        facts.addresses = vec![Address {
            address: [10, 100, 7, 1].into(),
            prefix: 24,
            link: "docker0".to_owned(),
        }];
    });
    let texts: Vec<&str> = found.iter().map(|finding| finding.what.as_str()).collect();
    assert_eq!(
        texts,
        [
            "10.100.0.0/16 (clusterCIDR) overlaps the route to 10.100.7.0/24 on docker0 and the route to 10.0.0.0/8 on vpn",
            "10.200.0.0/16 (serviceCIDR) overlaps the route to 10.0.0.0/8 on vpn",
        ]
    );
    let found = findings_of(CheckStage::Running, |facts| {
        facts.routes = vec![
            route("10.100.0.0/16", "kat0"),
            route("10.100.0.5/32", "kat1a2b3c"),
            route("10.100.0.0/23", "*"),
        ];
    });
    assert_eq!(found, []);
}

fn mends(stage: CheckStage, routes: &[KernelRoute]) -> Vec<String> {
    let found = findings_of(stage, |facts| {
        facts.routes = routes.to_vec();
        facts.addresses = vec![Address {
            address: [10, 100, 7, 1].into(),
            prefix: 24,
            link: "docker0".to_owned(),
        }];
    });
    found.into_iter().filter_map(|one| one.mend).collect()
}

#[test]
fn before_init_another_network_is_proposed_that_is_free() {
    let give = "in cluster.kat, and give it with sudo kat-agent init --config cluster.kat";
    assert_eq!(
        mends(CheckStage::BeforeInit, &[route("10.101.0.0/20", "vpn")]),
        [format!("set clusterCIDR: 10.102.0.0/16 {give}")]
    );
    // The two proposed networks differ.
    assert_eq!(
        mends(CheckStage::BeforeInit, &[route("10.0.0.0/8", "vpn")]),
        [
            format!("set clusterCIDR: 172.16.0.0/16 {give}"),
            format!("set serviceCIDR: 172.17.0.0/16 {give}"),
        ]
    );
    let all = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"].map(|net| route(net, "vpn"));
    let found = mends(CheckStage::BeforeInit, &all);
    assert!(found[0].starts_with("set clusterCIDR: a network that nothing here has a route to"));
}

#[test]
fn where_the_cluster_has_its_networks_the_others_go() {
    let routes = [route("10.100.9.0/24", "vpn"), route("10.200.0.0/16", "*")];
    assert_eq!(
        mends(CheckStage::BeforeJoin, &routes),
        [
            "sudo ip route delete 10.100.9.0/24 dev vpn && sudo ip address delete 10.100.7.1/24 dev docker0",
            "sudo ip route delete 10.200.0.0/16",
        ]
    );
    let found = findings_of(CheckStage::Running, |facts| {
        facts.default_link = Some(("eth0".to_owned(), 1400));
    });
    assert_eq!(
        found[0].mend.as_deref(),
        Some("sudo ip link set dev eth0 mtu 1500")
    );
}
