//! A cluster's DNS zone, and checks that hold for every answer of the DNS server.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use hickory_proto::op::{Message, MessageType, OpCode};
use kat_network::dns::{DnsRequest, ParseError, Zone, fuzz::Sent, parse};
use kat_types::machine::network::{DnsRecords, InstanceNetwork, Instances, NodeNetwork, StartGate};

/// Largest UDP payload that the server accepts and sends.
const UDP_PAYLOAD: usize = 1232;
/// Largest UDP payload of a client without EDNS.
const PLAIN_PAYLOAD: usize = 512;

/// A container of the machine, one of another machine, the machine itself, and strangers.
pub const CLIENTS: [IpAddr; 6] = [
    IpAddr::V4(Ipv4Addr::new(10, 100, 0, 7)),
    IpAddr::V4(Ipv4Addr::new(10, 100, 2, 9)),
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

pub fn zone() -> Arc<Zone> {
    let node = NodeNetwork {
        schema: 1,
        node: "n1".to_owned(),
        cluster_cidr: "10.100.0.0/16".parse().expect("a network"),
        service_cidr: "10.200.0.0/16".parse().expect("a network"),
        subnet: "10.100.0.0/23".parse().expect("a network"),
        address: Ipv4Addr::new(10, 100, 0, 1),
        cluster_domain: "kat.cluster.local".to_owned(),
        wireguard_port: 51820,
        mtu: 1420,
        upstream_dns: Vec::new(),
        control_ports: kat_types::machine::network::control_ports(),
        api_port: None,
        hold_seconds: 60,
        relay: false,
    };
    let instance = InstanceNetwork {
        namespace: "foo".to_owned(),
        workload: "web".to_owned(),
        uid: 20000,
        unit: "kat-foo-web-zz999.service".to_owned(),
        address: Ipv4Addr::new(10, 100, 0, 7),
        gate: StartGate::Open,
        host_ports: Vec::new(),
        machine_access: Default::default(),
    };
    let instances = Instances {
        schema: 1,
        instances: BTreeMap::from([("web-zz999".to_owned(), instance)]),
        fenced: BTreeMap::new(),
    };
    let many = (1..=200).map(|last| Ipv4Addr::new(10, 100, 4, last));
    let records = DnsRecords {
        schema: 1,
        revision: 42,
        records: BTreeMap::from([
            ("web.foo".to_owned(), vec![Ipv4Addr::new(10, 100, 0, 7)]),
            ("many.foo".to_owned(), many.collect()),
            ("down.default".to_owned(), Vec::new()),
            ("n1.node".to_owned(), vec![Ipv4Addr::new(10, 100, 0, 1)]),
        ]),
    };
    Arc::new(Zone::new(&node, &instances, &records).expect("a zone"))
}

/// Checks the answers to a packet and parses the one over TCP; `None` for a bare header.
pub fn check(packet: &[u8], sent: &Sent) -> Option<(DnsRequest, Message)> {
    assert_eq!(sent.udp.get(..2), packet.get(..2), "another question's id");
    let request = match parse(packet) {
        Ok(request) => request,
        Err(error) => {
            assert!(!matches!(error, ParseError::Short(_) | ParseError::Answer));
            assert_eq!((sent.udp.len(), &sent.udp), (12, &sent.tcp));
            return None;
        }
    };
    let room = request
        .edns
        .map_or(PLAIN_PAYLOAD, |edns| usize::from(edns.payload))
        .clamp(PLAIN_PAYLOAD, UDP_PAYLOAD);
    assert!(sent.udp.len() <= room, "{} > {room}", sent.udp.len());
    let udp = Message::from_vec(&sent.udp).expect("an answer over UDP can be read");
    let tcp = Message::from_vec(&sent.tcp).expect("an answer over TCP can be read");
    for answer in [&udp, &tcp] {
        assert_eq!(answer.metadata.id, request.metadata.id);
        assert_eq!(answer.metadata.message_type, MessageType::Response);
        assert_eq!(answer.metadata.op_code, OpCode::Query);
        assert_eq!(answer.edns.is_some(), request.edns.is_some());
        assert_eq!(answer.queries.len(), 1);
        let asked = answer.queries[0].name();
        assert!(asked.eq_case(request.question.name()), "{asked}");
    }
    assert!(udp.all_sections().count() <= tcp.all_sections().count());
    assert!(udp.metadata.truncation || udp.all_sections().count() == tcp.all_sections().count());
    Some((request, tcp))
}
