use super::*;
use kat_types::machine::network::{
    HostPortNetwork, IngressBackend, InstanceNetwork, RestrictedHostPort, StartGate,
};

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
        sources: BTreeMap::new(),
        ingress: Vec::new(),
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
fn what_comes_with_an_address_of_the_overlay_on_a_foreign_link_is_led_nowhere() {
    let parts = parts(&[(2, BackendState::Serving)]);
    let rules = ruleset(TEMPLATE, &node(), &instances(), &parts).unwrap();
    let first = "ip saddr 10.100.0.0/16 iifname != \"kat*\" iifname != \"lo\" return";
    for chain in ["chain prerouting {", "chain prerouting-again {"] {
        // The first of both is the declaration of the chain.
        let own = rules.split(chain).nth(2).unwrap();
        assert!(own.trim_start().starts_with(first), "{chain} {rules}");
    }
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
            keeper.is_stale(&flow, &node(), &ports, &PortSources::new()),
            stale,
            "{called}:{port} {transport:?} to {last}"
        );
        let mut ended = flow;
        ended.ended = true;
        assert!(!keeper.is_stale(&ended, &node(), &ports, &PortSources::new()));
    }
    let elsewhere = Flow::example(lan, 80, Tcp, Ipv4Addr::new(172, 17, 0, 2));
    assert!(!keeper.is_stale(&elsewhere, &node(), &ports, &PortSources::new()));
}

/// Port 80 of the instances with these last bytes is for these ranges alone.
fn restricted(parts: &mut HostPortParts, to: &[(u8, &[&str])]) {
    parts.sources = BTreeMap::new();
    for (last, ranges) in to {
        let one = RestrictedHostPort {
            port: 80,
            protocol: Transport::Tcp,
            allow_sources: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        };
        let address = Ipv4Addr::new(10, 100, 0, *last);
        parts.sources.insert(address, vec![one]);
    }
}

#[test]
fn a_port_that_is_for_some_addresses_leads_nobody_else() {
    let mut parts = parts(&[(2, BackendState::Serving), (3, BackendState::Leaving)]);
    let ranges = [
        "192.0.2.0/25",
        "192.0.2.7/32",
        "192.0.2.128/25",
        "2001:db8::/32",
    ];
    restricted(&mut parts, &[(2, &ranges[..]), (3, &ranges[..])]);
    let rules = ruleset(TEMPLATE, &node(), &instances(), &parts).unwrap();
    // Ranges that overlap or adjoin are one, and IPv6 has no host ports.
    let first = "ip saddr != { 192.0.2.0/24 } return comment \"not one of allowSources\"\n\t\tmeta l4proto tcp dnat ip to";
    for expected in [
        first,
        "tcp . 80 : goto to-tcp-80",
        // Whoever is not led there is refused, also by the loopback.
        "meta l4proto . th dport { tcp . 80, tcp . 443 } goto refuse",
        "meta l4proto . th dport { tcp . 80 } goto refuse",
        "ct state new ip saddr 10.100.0.3 tcp sport 8081 tcp flags & (fin | syn | rst | ack) != syn oifname != \"kat*\" goto refuse",
    ] {
        assert!(rules.contains(expected), "{expected}: {rules}");
    }
    assert_eq!(
        rules.matches("ip saddr != {").count(),
        1,
        "of port 80 alone: {rules}"
    );
    assert!(!rules.contains("10.100.0.5 tcp sport"), "{rules}");
    // A caller has to be in the list of each instance, should these differ.
    restricted(
        &mut parts,
        &[(2, &ranges[..]), (3, &["198.51.100.1/32"][..])],
    );
    let rules = ruleset(TEMPLATE, &node(), &instances(), &parts).unwrap();
    assert_eq!(rules.matches("ip saddr != {").count(), 2, "{rules}");
    for (nobody, ranges) in [
        (true, &["2001:db8::/32"][..]),
        (true, &[][..]),
        (false, &["0.0.0.0/0"][..]),
    ] {
        restricted(&mut parts, &[(2, ranges)]);
        let rules = ruleset(TEMPLATE, &node(), &instances(), &parts).unwrap();
        assert!(!rules.contains("ip saddr != {"), "{ranges:?}: {rules}");
        let leads = rules.contains("goto to-tcp-80");
        assert_eq!(leads, !nobody, "{ranges:?}: {rules}");
    }
}

#[test]
fn connections_of_callers_that_may_not_use_the_port_any_more_are_forgotten() {
    use Transport::{Tcp, Udp};
    let mut parts = parts(&[(2, BackendState::Serving)]);
    restricted(&mut parts, &[(2, &["192.0.2.8/30"][..])]);
    let (ports, sources) = (
        behind(&instances(), &parts),
        sources_of(&instances(), &parts),
    );
    let keeper = HostPortKeeper {
        known: ports.keys().copied().collect(),
        ..HostPortKeeper::default()
    };
    let lan = Ipv4Addr::new(192, 0, 2, 1);
    for (from, port, transport, stale) in [
        ([192, 0, 2, 9], 80, Tcp, false),
        ([192, 0, 2, 12], 80, Tcp, true),
        // The machine itself is no exception.
        ([192, 0, 2, 1], 80, Tcp, true),
        ([192, 0, 2, 12], 53, Udp, false),
    ] {
        let mut flow = Flow::example(lan, port, transport, Ipv4Addr::new(10, 100, 0, 2));
        flow.from = from.into();
        let is_stale = keeper.is_stale(&flow, &node(), &ports, &sources);
        assert_eq!(is_stale, stale, "{from:?} {port}");
    }
}

/// A port of this workload on the machines that serve routes, with an instance of this machine and two of
/// others.
fn of_machines_with_routes(workload: &str, port: u16) -> IngressHostPort {
    let backend = |state| IngressBackend { port: 5432, state };
    IngressHostPort {
        port,
        protocol: Transport::Tcp,
        namespace: "default".to_owned(),
        workload: workload.to_owned(),
        instances: [
            (Ipv4Addr::new(10, 100, 0, 6), backend(BackendState::Serving)),
            (Ipv4Addr::new(10, 100, 2, 2), backend(BackendState::Serving)),
            (Ipv4Addr::new(10, 100, 4, 2), backend(BackendState::Held)),
        ]
        .into(),
        allow_sources: None,
    }
}

#[test]
fn a_port_of_machines_that_serve_routes_leads_to_instances_anywhere() {
    let mut parts = parts(&[(2, BackendState::Serving)]);
    parts.ingress = vec![of_machines_with_routes("db", 15_432)];
    let rules = ruleset(TEMPLATE, &node(), &instances(), &parts).unwrap();
    for expected in [
        "chain to-tcp-15432 {\n\t\tmeta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.100.0.6 . 5432, 1 : 10.100.2.2 . 5432 }",
        "tcp . 15432 : goto to-tcp-15432",
        "oifname \"kat0\" snat ip to 10.100.0.1 comment",
        "ct status dnat ip daddr 10.100.2.2 tcp dport 5432 accept",
        "ct status dnat ip daddr 10.100.4.2 tcp dport 5432 accept",
        "10.100.0.6 . 10.100.0.6",
    ] {
        assert!(rules.contains(expected), "{expected}: {rules}");
    }
    assert!(!rules.contains("10.100.2.2 . 10.100.2.2"), "{rules}");
    let lead = rules.rsplit("chain lead-loopback {").next().unwrap();
    let lead = lead.split('}').next().unwrap();
    assert!(!lead.contains("15432"), "{lead}");
    // It may be for some addresses alone, as other host ports.
    parts.ingress[0].allow_sources = Some(vec!["192.0.2.0/24".parse().unwrap()]);
    let rules = ruleset(TEMPLATE, &node(), &instances(), &parts).unwrap();
    assert!(
        rules.contains("ip saddr != { 192.0.2.0/24 } return"),
        "{rules}"
    );
}

#[test]
fn a_port_of_an_instance_stays_with_its_workload_where_the_machine_serves_routes() {
    let mut parts = parts(&[(2, BackendState::Serving)]);
    // The same workload: its host port was on the machines with an instance before.
    parts.ingress = vec![of_machines_with_routes("web", 80)];
    let ports = behind(&instances(), &parts);
    let of_port = &ports[&(Transport::Tcp, 80)];
    let serves: Vec<u8> = serving(of_port)
        .map(|target| target.address.octets()[2])
        .collect();
    assert_eq!(serves, [0, 0, 2]);
    assert!(led_from_loopback(&instances(), &parts).is_empty());
    // Another workload has to wait for the port on this machine.
    parts.ingress = vec![of_machines_with_routes("db", 80)];
    let ports = behind(&instances(), &parts);
    assert_eq!(serving(&ports[&(Transport::Tcp, 80)]).count(), 1);
    assert!(!led_from_loopback(&instances(), &parts).is_empty());
}

#[test]
fn connections_to_instances_of_other_machines_are_forgotten_as_those_to_service_addresses() {
    let mut parts = parts(&[]);
    parts.ingress = vec![of_machines_with_routes("db", 15_432)];
    let none = Instances::default();
    let ports = behind(&none, &parts);
    let keeper = HostPortKeeper {
        known: ports.keys().copied().collect(),
        ..HostPortKeeper::default()
    };
    let lan = Ipv4Addr::new(192, 0, 2, 1);
    for (answers, half_open, stale) in [
        ([10, 100, 2, 2], true, false),
        ([10, 100, 4, 2], false, false),
        // It is held, and has not answered.
        ([10, 100, 4, 2], true, true),
        ([10, 100, 4, 9], false, true),
    ] {
        let mut flow = Flow::example(lan, 15_432, Transport::Tcp, answers.into());
        flow.half_open = half_open;
        let is_stale = keeper.is_stale(&flow, &node(), &ports, &PortSources::new());
        assert_eq!(is_stale, stale, "{answers:?} {half_open}");
    }
}

#[test]
fn a_file_of_an_older_agent_opens_its_ports_to_all() {
    let file = r#"{"schema":1,"parts":{"10.100.0.2":"serving"}}"#;
    let parts: HostPortParts = serde_json::from_str(file).unwrap();
    assert_eq!(sources_of(&instances(), &parts), PortSources::new());
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
