use super::*;
use crate::network::state::{Gate, HostPortNetwork, InstanceNetwork};

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
        hold_seconds: 60,
        relay: false,
    }
}

fn instance(last: u8, ports: &[(u16, Transport, u16)]) -> (String, InstanceNetwork) {
    let ports = ports.iter();
    let ports = ports.map(|(port, protocol, container_port)| HostPortNetwork {
        port: *port,
        protocol: *protocol,
        container_port: *container_port,
    });
    let network = InstanceNetwork {
        namespace: "default".to_owned(),
        workload: "web".to_owned(),
        uid: 20_001,
        unit: format!("kat-default-web-{last}.service"),
        address: [10, 100, 0, last].into(),
        gate: Gate::Open,
        host_ports: ports.collect(),
    };
    (format!("web-{last}"), network)
}

fn instances() -> Instances {
    use Transport::{Tcp, Udp};
    Instances {
        schema: 1,
        instances: [
            instance(2, &[(80, Tcp, 8080), (53, Udp, 53)]),
            // Another version, with another port in the container.
            instance(3, &[(80, Tcp, 8081)]),
            instance(4, &[(80, Tcp, 8080)]),
            instance(5, &[(443, Tcp, 443)]),
            instance(6, &[]),
        ]
        .into(),
    }
}

fn parts(parts: &[(u8, Part)]) -> HostPortParts {
    let parts = parts.iter();
    HostPortParts {
        schema: 1,
        parts: parts
            .map(|(last, part)| (Ipv4Addr::new(10, 100, 0, *last), *part))
            .collect(),
    }
}

#[test]
fn ports_lead_to_those_that_serve() {
    let parts = parts(&[
        (2, Part::Serving),
        (3, Part::Serving),
        (4, Part::Leaving),
        (6, Part::Serving),
    ]);
    let rules = ruleset(TEMPLATE, &node(), &instances(), &parts).unwrap();
    insta::assert_snapshot!(rules);
}

#[test]
fn without_ports_nothing_is_led_anywhere() {
    let rules = ruleset(TEMPLATE, &node(), &Instances::default(), &parts(&[])).unwrap();
    for word in ["dnat ip", "goto", "127.0.0.1"] {
        assert!(!rules.contains(word), "{word}: {rules}");
    }
}

#[test]
fn connections_are_forgotten_that_lead_to_what_is_gone() {
    use Transport::{Tcp, Udp};
    let parts = parts(&[(2, Part::Held), (3, Part::Leaving)]);
    let ports = behind(&instances(), &parts);
    let keeper = HostPortKeeper {
        known: ports
            .keys()
            .copied()
            .chain([(Tcp, 90), (Tcp, 91)])
            .collect(),
        left: [(Tcp, 91)].into(),
        ..HostPortKeeper::default()
    };
    let lan = Ipv4Addr::new(192, 0, 2, 1);
    for (called, port, transport, last, stale) in [
        (lan, 80, Tcp, 3, false),
        (lan, 80, Tcp, 2, false),
        (lan, 80, Tcp, 5, true),
        (lan, 80, Tcp, 9, true),
        (lan, 53, Udp, 2, true),
        (lan, 90, Tcp, 2, true),
        // A program of the machine has it now; what was open before goes on.
        (lan, 91, Tcp, 2, false),
        // Somebody else's.
        (lan, 92, Tcp, 2, false),
        (Ipv4Addr::new(10, 200, 0, 5), 80, Tcp, 9, false),
        (Ipv4Addr::LOCALHOST, 80, Tcp, 9, true),
    ] {
        let answers = Ipv4Addr::new(10, 100, 0, last);
        let flow = Flow::example(called, port, transport, answers);
        assert_eq!(
            keeper.is_stale(&flow, &node(), &ports),
            stale,
            "{called}:{port} {transport:?} to {last}"
        );
        let mut ended = flow;
        ended.ended = true;
        assert!(!keeper.is_stale(&ended, &node(), &ports));
    }
    let elsewhere = Flow::example(lan, 80, Tcp, Ipv4Addr::new(172, 17, 0, 2));
    assert!(!keeper.is_stale(&elsewhere, &node(), &ports));
}
