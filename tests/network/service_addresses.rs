//! Service addresses, with the kernel's own nftables and conntrack.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    firewall::Outside,
    namespaced_machine::{ADDRESS, Container, Machine, fetch_in, in_new_namespace, node, run},
};
use kat_network::{
    containers::namespaces::NetworkNamespace,
    nftables::service_addresses::{self as balance, ServiceBalancer},
};
use kat_types::{
    machine::network::{
        NodeNetwork, ServiceNetwork, ServicePortBackends, Services, StartGate, Transport,
    },
    services::BackendState,
};

const UID: u32 = 20001;
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 5);
const AT: (Ipv4Addr, u16) = (SERVICE, 80);
const LIMIT: Duration = Duration::from_secs(5);

/// A machine with containers. Each container answers any request with its own number and the
/// caller's address.
struct Site {
    node: Arc<NodeNetwork>,
    balancer: ServiceBalancer,
    containers: BTreeMap<u8, Container>,
    _machine: Machine,
}

impl Site {
    async fn start() -> Self {
        let mut machine = Machine::start();
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        run(&format!("ip route add 10.91.0.0/16 dev lo src {ADDRESS}"));
        let mut containers = BTreeMap::new();
        for number in 10..14 {
            let name = format!("web-aaa{number}");
            machine.instance(&name, UID, number, StartGate::Open);
            let container = machine.container(UID, &name);
            machine.hook(UID, &name, container.pid()).await.unwrap();
            answer(&container.namespace(), number);
            containers.insert(number, container);
        }
        Self {
            node: Arc::new(node()),
            balancer: ServiceBalancer::default(),
            containers,
            _machine: machine,
        }
    }

    /// Sets the instances of the service and their states.
    async fn serve(&mut self, instances: &[(u8, BackendState)]) {
        let services = Arc::new(services(instances));
        let services = Some(&services);
        self.balancer.ensure(&self.node, services).await.unwrap();
    }

    fn inside<T: Send>(&self, number: u8, work: impl FnOnce() -> T + Send) -> T {
        self.containers[&number].namespace().run(work).unwrap()
    }
}

fn services(instances: &[(u8, BackendState)]) -> Services {
    let port = |port, protocol| ServicePortBackends {
        port,
        protocol,
        instances: instances
            .iter()
            .map(|(last, part)| (Ipv4Addr::new(10, 90, 1, *last), *part))
            .collect(),
    };
    let web = ServiceNetwork {
        address: SERVICE,
        ports: vec![port(80, Transport::Tcp), port(53, Transport::Udp)],
    };
    Services {
        schema: 1,
        services: BTreeMap::from([("default/web".to_owned(), web)]),
    }
}

pub(crate) fn answer(namespace: &NetworkNamespace, number: u8) {
    let bind = || {
        let any = Ipv4Addr::UNSPECIFIED;
        let listener = TcpListener::bind((any, 80)).unwrap();
        (listener, UdpSocket::bind((any, 53)).unwrap())
    };
    let (listener, socket) = namespace.run(bind).unwrap();
    let said = move |caller: SocketAddr| format!("{number} {}", caller.ip()).into_bytes();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, caller)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&said(caller), caller);
        }
    });
    std::thread::spawn(move || {
        while let Ok((mut stream, caller)) = listener.accept() {
            std::thread::spawn(move || {
                while matches!(stream.read(&mut [0; 64]), Ok(1..)) {
                    let _ = stream.write_all(&said(caller));
                }
            });
        }
    });
}

fn connect() -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&AT.into(), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn udp() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.connect((SERVICE, 53)).unwrap();
    socket
}

/// The number of the answering container, and the caller's address as it saw it.
pub(crate) fn ask(mut stream: &TcpStream) -> io::Result<(u8, String)> {
    stream.write_all(b"?")?;
    let mut buffer = [0; 64];
    match stream.read(&mut buffer)? {
        0 => Err(ErrorKind::ConnectionReset.into()),
        length => Ok(parse(&buffer[..length])),
    }
}

pub(crate) fn ask_udp(socket: &UdpSocket) -> io::Result<(u8, String)> {
    socket.send(b"?")?;
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer)?;
    Ok(parse(&buffer[..length]))
}

fn parse(said: &[u8]) -> (u8, String) {
    let said = String::from_utf8(said.to_vec()).unwrap();
    let (number, caller) = said.split_once(' ').unwrap();
    (number.parse().unwrap(), caller.to_owned())
}

/// The answers to sixty new connections and sixty new flows.
fn sixty() -> BTreeSet<(u8, String)> {
    let tcp = (0..60).map(|_| ask(&connect().unwrap()).unwrap());
    let udp = (0..60).map(|_| ask_udp(&udp()).unwrap());
    let (tcp, udp): (BTreeSet<_>, BTreeSet<_>) = (tcp.collect(), udp.collect());
    assert_eq!(tcp, udp);
    tcp
}

use BackendState::{Held, Leaving, Serving};

#[test]
fn new_connections_are_spread_over_those_that_serve() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        site.serve(&[(10, Serving), (11, Serving), (12, Serving), (13, Held)])
            .await;
        let from = |caller: &str| -> BTreeSet<(u8, String)> {
            [10, 11, 12]
                .map(|number| (number, caller.to_owned()))
                .into()
        };
        assert_eq!(
            site.inside(13, sixty),
            from("10.90.1.13"),
            "with its own address"
        );
        assert_eq!(sixty(), from("10.90.1.1"), "the machine itself");
        // An instance whose call comes back to itself is the only caller that gets another source
        // address.
        let mut hairpin = from("10.90.1.10");
        hairpin.remove(&(10, "10.90.1.10".to_owned()));
        hairpin.insert((10, "10.90.1.1".to_owned()));
        assert_eq!(site.inside(10, sixty), hairpin);
        // Connections to an instance's own address are not translated.
        let direct = site.inside(13, || TcpStream::connect("10.90.1.10:80").unwrap());
        assert_eq!(ask(&direct).unwrap(), (10, "10.90.1.13".to_owned()));
    });
}

#[test]
fn what_is_open_stays_with_its_instance_until_that_is_gone() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        let others = [(10, Serving), (11, Serving)];
        site.serve(&[(12, Serving)]).await;
        let kept = site.inside(13, || connect().unwrap());
        let flow = site.inside(13, udp);
        let to = |number: u8| (number, "10.90.1.13".to_owned());
        assert_eq!(
            (ask(&kept).unwrap(), ask_udp(&flow).unwrap()),
            (to(12), to(12))
        );
        let both = BTreeSet::from([to(10), to(11)]);
        site.serve(&[others.as_slice(), &[(12, Leaving)]].concat())
            .await;
        assert_eq!(site.inside(13, sixty), both);
        assert_eq!(
            (ask(&kept).unwrap(), ask_udp(&flow).unwrap()),
            (to(12), to(12))
        );
        // The service has no serving instance left; open connections stay.
        site.serve(&[(12, Leaving)]).await;
        assert_eq!(
            (ask(&kept).unwrap(), ask_udp(&flow).unwrap()),
            (to(12), to(12))
        );
        // The state of the instance is unknown: an open connection may continue, and a flow from
        // the same port moves to another instance.
        site.serve(&[others.as_slice(), &[(12, Held)]].concat())
            .await;
        assert_eq!(ask(&kept).unwrap(), to(12));
        let moved = ask_udp(&flow).unwrap();
        assert!(both.contains(&moved), "{moved:?}");
        assert_eq!(ask_udp(&flow).unwrap(), moved, "and stays there");
        // The instance is gone, and the client of the connection gets an error at once.
        site.serve(&others).await;
        let asked = Instant::now();
        let error = ask(&kept).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(asked.elapsed() < LIMIT);
        assert_eq!(ask_udp(&flow).unwrap(), moved);
    });
}

#[test]
fn a_service_that_nobody_serves_refuses_at_once() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        let refused = || {
            let began = Instant::now();
            let error = connect().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            let flow = ask_udp(&udp()).unwrap_err();
            // The kernel may refuse the machine's own packet before it is sent.
            let kinds = [ErrorKind::ConnectionRefused, ErrorKind::PermissionDenied];
            assert!(kinds.contains(&flow.kind()), "{flow}");
            assert!(began.elapsed() < LIMIT);
        };
        site.balancer.ensure(&site.node, None).await.unwrap();
        site.inside(13, refused);
        refused();
        site.serve(&[(10, Serving)]).await;
        assert_eq!(ask(&site.inside(13, connect).unwrap()).unwrap().0, 10);
        site.serve(&[(10, Held)]).await;
        site.inside(13, refused);
        refused();
        // Another port of the same service refuses connections, and so does an address without a
        // service.
        site.serve(&[(10, Serving)]).await;
        for other in [(SERVICE, 81), (Ipv4Addr::new(10, 91, 9, 9), 80)] {
            let reached = site.inside(13, || TcpStream::connect_timeout(&other.into(), LIMIT));
            let error = reached.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{other:?}");
        }
    });
}

/// Without KAT's table a packet passes untranslated, and the kernel remembers its connection so where
/// another table tracks connections.
#[test]
fn a_connection_that_began_without_the_table_reaches_an_instance_once_the_table_is_back() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        // Packets that no rule sends to an instance leave the machine, and nobody answers them.
        let _outside = Outside::connect();
        let route = format!("ip route replace 10.91.0.0/16 via 192.0.2.2 src {ADDRESS}");
        run(&route);
        run("nft add table inet others");
        run("nft add chain inet others track { type filter hook forward priority 0 ; }");
        run("nft add rule inet others track ct state new accept");
        site.serve(&[(10, Serving)]).await;
        balance::remove().await.unwrap();
        let flow = site.inside(13, udp);
        flow.send(b"?").unwrap();
        let namespace = site.containers[&13].namespace();
        let calling = std::thread::spawn(move || namespace.run(connect).unwrap());
        // The first SYN is lost within this time, and the second follows a second after the first.
        tokio::time::sleep(Duration::from_millis(200)).await;
        site.serve(&[(10, Serving)]).await;
        let to = (10, "10.90.1.13".to_owned());
        assert_eq!(ask_udp(&flow).unwrap(), to);
        let stream = calling.join().unwrap().unwrap();
        assert_eq!(ask(&stream).unwrap(), to);
    });
}

#[test]
fn strangers_reach_no_service() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        let outside = Outside::connect();
        outside.inside("ip route add 10.91.0.0/16 via 192.0.2.1");
        site.serve(&[(10, Serving)]).await;
        // The control: packets on the same route reach a container.
        outside.inside("ip route add 10.90.0.0/16 via 192.0.2.1");
        let direct: SocketAddr = ([10, 90, 1, 10], 80).into();
        let reached = outside
            .namespace()
            .run(move || TcpStream::connect_timeout(&direct, LIMIT).is_ok());
        assert!(reached.unwrap());
        let error = fetch_in(outside.namespace(), AT.into()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "dropped without a word");
    });
}

/// A single refused connection among thousands shows a change of rules that is not atomic.
#[test]
fn no_connection_is_lost_while_the_rules_change() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        let both = [(10, Serving), (11, Serving)];
        site.serve(&both).await;
        let end = Arc::new(AtomicBool::new(false));
        let callers = [10, 13].map(|number| {
            let (namespace, end) = (site.containers[&number].namespace(), Arc::clone(&end));
            std::thread::spawn(move || {
                let call = || {
                    let mut count = 0;
                    while !end.load(Ordering::Relaxed) {
                        ask(&connect().unwrap()).unwrap();
                        count += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    count
                };
                namespace.run(call).unwrap()
            })
        });
        for round in 0..20 {
            let instances = if round % 2 == 0 { &both[..1] } else { &both };
            site.serve(instances).await;
        }
        end.store(true, Ordering::Relaxed);
        for caller in callers {
            let count: u32 = caller.join().unwrap();
            assert!(count > 20, "only {count} connections");
        }
    });
}

#[test]
fn the_table_says_what_is_wanted_and_nothing_of_before() {
    in_new_namespace(|| async {
        let list = || run("nft -s list table inet kat-services");
        let node = Arc::new(node());
        let web = Arc::new(services(&[(10, Serving)]));
        let mut other = Services::clone(&web);
        let service = other.services.remove("default/web").unwrap();
        other.services.insert("default/other".to_owned(), service);
        let other = Arc::new(other);
        let mut first = ServiceBalancer::default();
        first.ensure(&node, Some(&web)).await.unwrap();
        let text = list();
        assert!(text.contains("chain to-default/web-tcp-80"), "{text}");
        first.ensure(&node, Some(&other)).await.unwrap();
        assert!(!list().contains("to-default/web"), "{}", list());
        // A new process takes over the table of the previous one.
        let mut second = ServiceBalancer::default();
        second.ensure(&node, Some(&web)).await.unwrap();
        assert_eq!(list(), text);
        // A chain with other properties than KAT's is replaced.
        run("nft delete table inet kat-services");
        run("nft add table inet kat-services");
        run(
            "nft add chain inet kat-services forward { type filter hook forward priority 7 ; policy drop ; }",
        );
        let mut third = ServiceBalancer::default();
        third.ensure(&node, Some(&web)).await.unwrap();
        assert_eq!(list(), text);
        balance::remove().await.unwrap();
        balance::remove().await.unwrap();
        assert_eq!(run("nft list tables").trim(), "");
    });
}
