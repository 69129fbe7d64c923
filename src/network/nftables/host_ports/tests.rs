use super::*;
use kat_types::machine::network::{HostPortNetwork, InstanceNetwork, StartGate};

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

fn instance(last: u8, ports: &[(u16, Transport, u16)]) -> (String, InstanceNetwork) {
    let ports = ports.iter();
    let ports = ports.map(|(port, protocol, container_port)| HostPortNetwork {
        port: *port,
        protocol: *protocol,
        container_port: *container_port,
        // Only for port 80 does the machine's owner allow calls to loopback.
        loopback: *port == 80,
    });
    let network = InstanceNetwork {
        namespace: "default".to_owned(),
        workload: "web".to_owned(),
        uid: 20_001,
        unit: format!("kat-default-web-{last}.service"),
        address: [10, 100, 0, last].into(),
        gate: StartGate::Open,
        host_ports: ports.collect(),
        machine_access: Default::default(),
    };
    (format!("web-{last}"), network)
}

fn instances() -> Instances {
    use Transport::{Tcp, Udp};
    Instances {
        schema: 1,
        instances: [
            instance(2, &[(80, Tcp, 8080), (53, Udp, 53)]),
            // Another version of the workload listens on another port in the container.
            instance(3, &[(80, Tcp, 8081)]),
            instance(4, &[(80, Tcp, 8080)]),
            instance(5, &[(443, Tcp, 443)]),
            instance(6, &[]),
        ]
        .into(),
        fenced: BTreeMap::new(),
    }
}

fn parts(parts: &[(u8, BackendState)]) -> HostPortParts {
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
        (2, BackendState::Serving),
        (3, BackendState::Serving),
        (4, BackendState::Leaving),
        (6, BackendState::Serving),
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
    let parts = parts(&[(2, BackendState::Held), (3, BackendState::Leaving)]);
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
        // A program of the machine has the port now; open connections continue.
        (lan, 91, Tcp, 2, false),
        // These connections do not go through a host port of KAT.
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

#[tokio::test(start_paused = true)]
async fn a_port_stays_a_programs_for_ten_minutes_after_it_was_last_seen_there() {
    use Transport::{Tcp, Udp};
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("machine-ports.json");
    let mut keeper = HostPortKeeper {
        report: Some(report.clone()),
        ..HostPortKeeper::default()
    };
    let told =
        || -> MachinePorts { serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap() };
    let listening: BTreeSet<HostPortKey> = [(Tcp, 5432), (Udp, 53), (Udp, 40_000)].into();
    keeper.remember(&listening, Instant::now());
    // Client sockets on UDP have an ephemeral port for a moment, which does not count.
    let kept = |keeper: &HostPortKeeper| keeper.programs.keys().copied().collect::<Vec<_>>();
    assert_eq!(kept(&keeper), [(Tcp, 5432), (Udp, 53)]);
    assert_eq!((told().tcp, told().udp), ([5432].into(), [53].into()));
    // The program ends; it was last seen at this moment.
    tokio::time::advance(Duration::from_secs(300)).await;
    keeper.remember(&[(Tcp, 5432)].into(), Instant::now());
    tokio::time::advance(Duration::from_secs(599)).await;
    keeper.remember(&BTreeSet::new(), Instant::now());
    assert_eq!(kept(&keeper), [(Tcp, 5432)]);
    tokio::time::advance(Duration::from_secs(1)).await;
    keeper.remember(&BTreeSet::new(), Instant::now());
    assert!(kept(&keeper).is_empty());
    assert_eq!(
        told(),
        MachinePorts {
            schema: 1,
            ..MachinePorts::default()
        }
    );
}

#[test]
fn nothing_that_calls_the_loopback_is_led_away_unless_the_owner_says_so() {
    let parts = parts(&[(2, BackendState::Serving), (5, BackendState::Held)]);
    let mut instances = instances();
    let set = |instances: &mut Instances, loopback: bool| {
        let all = instances.instances.values_mut();
        for port in all.flat_map(|one| &mut one.host_ports) {
            port.loopback = loopback;
        }
    };
    set(&mut instances, false);
    let rules = ruleset(TEMPLATE, &node(), &instances, &parts).unwrap();
    assert!(rules.contains("tcp . 80 : goto to-tcp-80"), "{rules}");
    assert!(!rules.contains("ip daddr 127.0.0.1 "), "{rules}");
    set(&mut instances, true);
    let rules = ruleset(TEMPLATE, &node(), &instances, &parts).unwrap();
    for rule in [
        "ip daddr 127.0.0.1 goto lead-loopback",
        "ip daddr 127.0.0.1 goto nobody-loopback",
    ] {
        assert!(rules.contains(rule), "{rule}: {rules}");
    }
    // An older agent writes the file without `loopback`.
    let mut file = serde_json::to_value(&instances).unwrap();
    let ports = file.pointer_mut("/instances/web-2/hostPorts/0").unwrap();
    ports.as_object_mut().unwrap().remove("loopback");
    let read: Instances = serde_json::from_value(file).unwrap();
    assert_eq!(read, instances);
}
