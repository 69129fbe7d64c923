use super::*;
use kat_types::machine::network::ServiceNetwork;

fn node() -> NodeNetwork {
    NodeNetwork {
        schema: 1,
        node: "n1".into(),
        cluster_cidr: "10.100.0.0/16".parse().unwrap(),
        service_cidr: "10.200.0.0/16".parse().unwrap(),
        subnet: "10.100.0.0/23".parse().unwrap(),
        address: [10, 100, 0, 1].into(),
        cluster_domain: "kat.cluster.local".into(),
        wireguard_port: 51820,
        mtu: 1420,
        upstream_dns: Vec::new(),
        control_ports: kat_types::machine::network::control_ports(),
        api_port: None,
        hold_seconds: 60,
        relay: false,
    }
}

fn port(port: u16, protocol: Transport, instances: &[(&str, BackendState)]) -> ServicePortBackends {
    let instances = instances.iter();
    ServicePortBackends {
        port,
        protocol,
        instances: instances
            .map(|(address, part)| (address.parse().unwrap(), *part))
            .collect(),
    }
}

fn services() -> Services {
    let web = ServiceNetwork {
        address: [10, 200, 0, 5].into(),
        ports: vec![
            port(
                80,
                Transport::Tcp,
                &[
                    ("10.100.0.2", BackendState::Serving),
                    ("10.100.0.3", BackendState::Leaving),
                    ("10.100.2.2", BackendState::Serving),
                    ("10.100.4.2", BackendState::Held),
                ],
            ),
            port(53, Transport::Udp, &[("10.100.2.2", BackendState::Serving)]),
            port(81, Transport::Tcp, &[("10.100.0.2", BackendState::Held)]),
        ],
    };
    let empty = ServiceNetwork {
        address: [10, 200, 0, 6].into(),
        ports: Vec::new(),
    };
    let hostile = ServiceNetwork {
        address: [10, 200, 0, 7].into(),
        ports: vec![port(
            1,
            Transport::Tcp,
            &[("10.100.0.9", BackendState::Serving)],
        )],
    };
    Services {
        schema: 1,
        services: [
            ("default/web".to_owned(), web),
            ("default/empty".to_owned(), empty),
            ("a }\nflush ruleset".to_owned(), hostile),
        ]
        .into(),
    }
}

#[test]
fn new_connections_go_to_those_that_serve() {
    let rules = ruleset(TEMPLATE, &node(), &services()).unwrap();
    insta::assert_snapshot!(rules);
}

#[test]
fn without_services_every_address_is_refused() {
    let rules = ruleset(TEMPLATE, &node(), &Services::default()).unwrap();
    assert!(
        !rules.contains("dnat") && !rules.contains("snat"),
        "{rules}"
    );
    assert_eq!(
        rules.matches("10.200.0.0/16 goto refuse").count(),
        2,
        "{rules}"
    );
}

#[test]
fn a_connection_stays_with_its_instance_as_long_as_that_may_be_there() {
    let services = services();
    let parts = parts(&services);
    let stale = |called: [u8; 4], port, transport, answers: &str| {
        let flow = Flow::example(called.into(), port, transport, answers.parse().unwrap());
        is_stale(&flow, node().service_cidr, &parts)
    };
    use Transport::{Tcp, Udp};
    let web = [10, 200, 0, 5];
    for (answers, expected) in [
        ("10.100.0.2", false),
        ("10.100.0.3", false),
        ("10.100.4.2", false),
        ("10.100.0.9", true),
    ] {
        assert_eq!(stale(web, 80, Tcp, answers), expected, "{answers}");
    }
    let mut half_open = Flow::example(web.into(), 80, Tcp, [10, 100, 4, 2].into());
    half_open.half_open = true;
    assert!(
        is_stale(&half_open, node().service_cidr, &parts),
        "held, and never answered"
    );
    half_open.answers = [10, 100, 0, 2].into();
    assert!(
        !is_stale(&half_open, node().service_cidr, &parts),
        "serving"
    );
    let mut ended = Flow::example(web.into(), 80, Tcp, [10, 100, 0, 9].into());
    ended.ended = true;
    assert!(!is_stale(&ended, node().service_cidr, &parts), "it is over");
    assert!(!stale(web, 53, Udp, "10.100.2.2"));
    assert!(stale(web, 53, Udp, "10.100.0.2"), "it has no such port");
    let mut held = services.clone();
    held.services.get_mut("default/web").unwrap().ports[1] =
        port(53, Udp, &[("10.100.2.2", BackendState::Held)]);
    let held = super::parts(&held);
    let flow = Flow::example(web.into(), 53, Udp, [10, 100, 2, 2].into());
    assert!(is_stale(&flow, node().service_cidr, &held));
    assert!(
        stale([10, 200, 9, 9], 80, Tcp, "10.100.0.2"),
        "no service has it"
    );
    assert!(
        !stale([192, 0, 2, 1], 80, Tcp, "10.100.0.2"),
        "somebody else's"
    );
}

#[test]
fn a_flow_that_began_without_rules_begins_anew_once_an_instance_serves_its_port() {
    let services = services();
    let parts = parts(&services);
    let network = node().service_cidr;
    let began_without_rules = |called: [u8; 4], port, transport| {
        let flow = Flow::example(called.into(), port, transport, called.into());
        missed_the_rules(&flow, network, &parts)
    };
    use Transport::{Tcp, Udp};
    let web = [10, 200, 0, 5];
    assert!(began_without_rules(web, 53, Udp));
    assert!(!began_without_rules(web, 54, Udp), "it has no such port");
    assert!(!began_without_rules([10, 200, 9, 9], 53, Udp), "no service");
    assert!(!began_without_rules([192, 0, 2, 1], 53, Udp), "elsewhere");
    assert!(
        !began_without_rules(web, 80, Tcp),
        "the client has an answer"
    );
    let translated = Flow::example(web.into(), 53, Udp, [10, 100, 2, 2].into());
    assert!(!missed_the_rules(&translated, network, &parts));
    for (port, expected) in [(80, true), (81, false)] {
        let mut half_open = Flow::example(web.into(), port, Tcp, web.into());
        half_open.half_open = true;
        let missed = missed_the_rules(&half_open, network, &parts);
        assert_eq!(missed, expected, "port {port}, of which 81 is only held");
    }
}

#[test]
fn chains_of_before_are_found() {
    let listed = r#"{"nftables": [
        {"metainfo": {"version": "1.1.3"}},
        {"table": {"family": "inet", "name": "kat-services"}},
        {"chain": {"family": "inet", "name": "balance"}},
        {"chain": {"family": "inet", "name": "to-default/web-tcp-80"}},
        {"rule": {"chain": "to-default/web-tcp-80"}}
    ]}"#;
    assert_eq!(table::chains(listed, CHAIN), ["to-default/web-tcp-80"]);
    assert_eq!(table::chains("", CHAIN), [""; 0]);
}
