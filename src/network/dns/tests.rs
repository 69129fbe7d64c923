//! The DNS server over real sockets on loopback.

mod answers;
mod forwarding;
mod packets;

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, SOA},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinHandle,
    time::timeout,
};

use super::*;
use kat_types::machine::network::{DnsRecords, InstanceNetwork, Instances, NodeNetwork, StartGate};

const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn node() -> NodeNetwork {
    NodeNetwork {
        schema: 1,
        node: "n1".to_owned(),
        cluster_cidr: "10.100.0.0/16".parse().unwrap(),
        service_cidr: "10.200.0.0/16".parse().unwrap(),
        subnet: "10.100.0.0/23".parse().unwrap(),
        address: Ipv4Addr::new(10, 100, 0, 1),
        cluster_domain: "kat.cluster.local".to_owned(),
        wireguard_port: 51820,
        mtu: 1420,
        upstream_dns: Vec::new(),
        relay: false,
        control_ports: kat_types::machine::network::control_ports(),
        api_port: None,
        hold_seconds: 60,
    }
}

pub(super) fn records() -> DnsRecords {
    let records = [
        ("web.default", vec!["10.100.0.2", "10.100.2.3"]),
        ("web-ab12c.web.default", vec!["10.100.0.2"]),
        ("web.foo", vec!["10.100.0.7"]),
        ("db.foo", vec!["10.200.0.5"]),
        ("down.default", vec![]),
        ("n1.node", vec!["10.100.0.1"]),
    ];
    DnsRecords {
        schema: 1,
        revision: (1 << 32) + 42,
        records: records
            .into_iter()
            .map(|(name, addresses)| {
                let addresses = addresses.iter().map(|text| text.parse().unwrap());
                (name.to_owned(), addresses.collect())
            })
            .collect(),
    }
}

fn instances() -> Instances {
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
    Instances {
        schema: 1,
        instances: BTreeMap::from([("web-zz999".to_owned(), instance)]),
        fenced: BTreeMap::new(),
    }
}

pub(super) fn zone() -> Zone {
    Zone::new(&node(), &instances(), &records()).unwrap()
}

/// Tries that find a port that is free for UDP and TCP. The kernel chooses one that is free for UDP, and a connection of another
/// test may have it for TCP.
const PORTS: u32 = 20;

/// Sockets at `port`, or at any port for 0.
async fn sockets(ip: &str, port: u16) -> (UdpSocket, TcpListener) {
    for _ in 0..PORTS {
        let udp = UdpSocket::bind((ip, port)).await.unwrap();
        match TcpListener::bind(udp.local_addr().unwrap()).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            tcp => return (udp, tcp.unwrap()),
        }
    }
    panic!("none of {PORTS} ports is free for UDP and TCP");
}

/// A server at any port.
async fn bind(zone: watch::Receiver<Arc<Zone>>, settings: DnsSettings) -> OpenDnsServer {
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    for _ in 0..PORTS {
        match OpenDnsServer::bind(address, zone.clone(), settings.clone()).await {
            Err(DnsError::Listen { source, .. }) if source.kind() == ErrorKind::AddrInUse => {}
            server => return server.unwrap(),
        }
    }
    panic!("none of {PORTS} ports is free for UDP and TCP");
}

/// A running server, which ends with the test.
struct Running {
    address: SocketAddr,
    zone: watch::Sender<Arc<Zone>>,
    cancel: CancellationToken,
    task: JoinHandle<Result<(), DnsError>>,
}

impl Running {
    async fn with(node: &NodeNetwork, records: &DnsRecords, settings: DnsSettings) -> Self {
        let zone = Zone::new(node, &instances(), records).unwrap();
        let (sender, receiver) = watch::channel(Arc::new(zone));
        let server = bind(receiver, settings).await;
        let cancel = CancellationToken::new();
        Self {
            address: server.address(),
            zone: sender,
            cancel: cancel.clone(),
            task: tokio::spawn(server.run(cancel)),
        }
    }

    /// A server that forwards to a test's resolvers.
    async fn asking(upstreams: &[&Resolver]) -> Self {
        let port = upstreams[0].address.port();
        let node = NodeNetwork {
            upstream_dns: upstreams
                .iter()
                .map(|resolver| resolver.address.ip())
                .collect(),
            ..node()
        };
        Self::with(
            &node,
            &records(),
            DnsSettings {
                upstream_port: port,
                ..settings()
            },
        )
        .await
    }

    async fn udp(&self, packet: &[u8]) -> Vec<u8> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(packet, self.address).await.unwrap();
        let mut buffer = vec![0; 65_536];
        let length = timeout(PATIENCE, socket.recv(&mut buffer))
            .await
            .expect("no answer")
            .unwrap();
        buffer.truncate(length);
        buffer
    }

    async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn ask(&self, name: &str, kind: RecordType) -> Message {
        let question = question(name, kind);
        let answer = Message::from_vec(&self.udp(&question.to_vec().unwrap()).await).unwrap();
        assert_eq!(answer.metadata.id, question.metadata.id);
        assert_eq!(answer.metadata.message_type, MessageType::Response);
        assert_eq!(answer.queries[0].name().to_ascii(), name);
        answer
    }
}

fn settings() -> DnsSettings {
    DnsSettings {
        resolv_conf: "/nonexistent".into(),
        resolved_conf: "/nonexistent".into(),
        ..DnsSettings::default()
    }
}

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn question(text: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = rand::random();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name(text), kind));
    message
}

fn with_edns(mut message: Message, payload: u16) -> Vec<u8> {
    let mut edns = Edns::new();
    edns.set_max_payload(payload);
    edns.set_dnssec_ok(true);
    message.set_edns(edns);
    message.to_vec().unwrap()
}

async fn write_framed(stream: &mut TcpStream, packet: &[u8]) {
    stream
        .write_u16(packet.len().try_into().unwrap())
        .await
        .unwrap();
    stream.write_all(packet).await.unwrap();
}

async fn read_framed(stream: &mut TcpStream) -> Vec<u8> {
    let length = timeout(PATIENCE, stream.read_u16())
        .await
        .expect("no answer")
        .unwrap();
    let mut packet = vec![0; length.into()];
    stream.read_exact(&mut packet).await.unwrap();
    packet
}

/// A resolver with answers that the test sets.
struct Resolver {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

type Decide = fn(&Message) -> Vec<Message>;

impl Resolver {
    /// Starts a resolver on `ip` with the same port for UDP and TCP.
    async fn start(ip: &str, port: u16, udp_answers: Decide, tcp_answers: Decide) -> Self {
        let (udp, tcp) = sockets(ip, port).await;
        let address = udp.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let (udp_count, tcp_count) = (asked.clone(), asked.clone());
        tokio::spawn(async move {
            let mut buffer = vec![0; 4096];
            loop {
                let (length, client) = udp.recv_from(&mut buffer).await.unwrap();
                udp_count.fetch_add(1, Ordering::SeqCst);
                let question = Message::from_vec(&buffer[..length]).unwrap();
                for answer in udp_answers(&question) {
                    udp.send_to(&answer.to_vec().unwrap(), client)
                        .await
                        .unwrap();
                }
            }
        });
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                tcp_count.fetch_add(1, Ordering::SeqCst);
                let question = Message::from_vec(&read_framed(&mut stream).await).unwrap();
                for answer in tcp_answers(&question) {
                    write_framed(&mut stream, &answer.to_vec().unwrap()).await;
                }
            }
        });
        Self { address, asked }
    }

    async fn answering(decide: Decide) -> Self {
        Self::start("127.0.0.1", 0, decide, decide).await
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer_to(question: &Message) -> Message {
    let mut answer = Message::response(question.metadata.id, OpCode::Query);
    answer.metadata.recursion_available = true;
    answer.add_query(question.queries[0].clone());
    answer
}

fn address_record(question: &Message, last: u8) -> Record {
    let address = RData::A(A(Ipv4Addr::new(192, 0, 2, last)));
    Record::from_rdata(question.queries[0].name().clone(), 300, address)
}

fn one_address(question: &Message) -> Vec<Message> {
    let mut answer = answer_to(question);
    answer.add_answer(address_record(question, 1));
    vec![answer]
}

fn code(question: &Message, code: ResponseCode) -> Vec<Message> {
    let mut answer = answer_to(question);
    answer.metadata.response_code = code;
    vec![answer]
}

fn nothing(_: &Message) -> Vec<Message> {
    Vec::new()
}
