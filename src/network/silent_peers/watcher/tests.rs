use ipnet::Ipv4Net;

use super::*;

#[test]
fn a_machine_is_tried_outside_at_each_port_of_its_services_and_each_of_its_addresses() {
    let node: NodeNetwork = serde_json::from_str(
        r#"{"schema":1,"node":"n1","clusterCidr":"10.90.0.0/16","serviceCidr":"10.91.0.0/16",
        "subnet":"10.90.1.0/24","address":"10.90.1.1","clusterDomain":"cluster.local",
        "wireguardPort":51820,"mtu":1420,"holdSeconds":60,"controlPorts":[9115,9116]}"#,
    )
    .unwrap();
    let machine = PeerMachine {
        public_key: String::new(),
        endpoints: vec!["192.0.2.2:51820".into(), "two.example:51820".into()],
        subnet: "10.90.2.0/24".parse::<Ipv4Net>().unwrap(),
        keepalive: 0,
        via: None,
    };
    let learned = "198.51.100.2:40000".parse().ok();
    let found: Vec<String> = targets(&node, &machine, learned)
        .iter()
        .map(ToString::to_string)
        .collect();
    let expected = [
        "192.0.2.2:9115",
        "192.0.2.2:9116",
        "198.51.100.2:9115",
        "198.51.100.2:9116",
    ];
    assert_eq!(found, expected);
    assert_eq!(targets(&node, &machine, None).len(), 2);
}
