//! Host ports and the instances behind them, with the kernel's own nftables and conntrack.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    firewall::Outside,
    namespaced_machine::{
        Container, Machine, fetch_in, in_new_namespace, nobody, node, run, serve_in, write,
    },
    service_addresses::{answer, ask, ask_udp},
};
use kat_network::{
    containers::namespaces::NetworkNamespace,
    nftables::{
        firewall::Firewall,
        host_ports::{self, HostPortKeeper},
        other_firewalls as obstacles,
    },
    state_files::StateFilesSnapshot,
};
use kat_types::{
    machine::network::{
        HostPortNetwork, HostPortParts, IngressBackend, IngressHostPort, NodeNetwork,
        RestrictedHostPort, StartGate, Transport,
    },
    services::BackendState,
};

const UID: u32 = 20001;
const LIMIT: Duration = Duration::from_secs(5);
const MACHINE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NEIGHBOUR: &str = "192.0.2.2";

use BackendState::{Held, Leaving, Serving};

/// A machine with a neighbour, and with containers that have host ports, except for the last one.
struct Site {
    node: Arc<NodeNetwork>,
    keeper: HostPortKeeper,
    firewall: Firewall,
    /// The ranges that may use port 80 over TCP and port 514 over UDP; `None` for all.
    allowed: Option<Vec<&'static str>>,
    /// Ports that the machine has because it serves routes.
    ingress: Vec<IngressHostPort>,
    containers: BTreeMap<u8, Container>,
    outside: Outside,
    machine: Machine,
}

impl Site {
    async fn start() -> Self {
        let mut machine = Machine::start();
        let outside = Outside::connect();
        let mut containers = BTreeMap::new();
        for number in 10..14 {
            let name = format!("web-aaa{number}");
            machine.instance(&name, UID, number, StartGate::Open);
            if number < 13 {
                let port = |port, protocol, container_port| HostPortNetwork {
                    port,
                    protocol,
                    container_port,
                    loopback: true,
                };
                let instance = machine.instances.instances.get_mut(&name).unwrap();
                instance.host_ports = vec![
                    port(8080, Transport::Tcp, 80),
                    port(80, Transport::Tcp, 80),
                    port(514, Transport::Udp, 53),
                ];
                write(machine.folder.path(), "instances.json", &machine.instances);
            }
            let container = machine.container(UID, &name);
            machine.hook(UID, &name, container.pid()).await.unwrap();
            answer(&container.namespace(), number);
            containers.insert(number, container);
        }
        let firewall = Firewall::default();
        firewall.ensure(&node(), &nobody()).await.unwrap();
        Self {
            node: Arc::new(node()),
            keeper: HostPortKeeper::default(),
            firewall,
            allowed: None,
            ingress: Vec::new(),
            containers,
            outside,
            machine,
        }
    }

    /// Sets the states of these instances and removes the others.
    async fn serve(&mut self, parts: &[(u8, BackendState)]) {
        let mut instances = self.machine.instances.clone();
        instances.instances.retain(|_, instance| {
            let last = instance.address.octets()[3];
            parts.iter().any(|(number, _)| *number == last)
        });
        let parts = parts
            .iter()
            .map(|(last, part)| (Ipv4Addr::new(10, 90, 1, *last), *part));
        let restricted: Option<Vec<RestrictedHostPort>> = self.allowed.as_ref().map(|ranges| {
            let restricted =
                [(80, Transport::Tcp), (514, Transport::Udp)].map(|(port, protocol)| {
                    RestrictedHostPort {
                        port,
                        protocol,
                        allow_sources: ranges.iter().map(|range| range.parse().unwrap()).collect(),
                    }
                });
            restricted.to_vec()
        });
        let sources = parts
            .clone()
            .filter_map(|(address, _)| Some((address, restricted.clone()?)));
        let sources: BTreeMap<Ipv4Addr, Vec<RestrictedHostPort>> = sources.collect();
        let snapshot = StateFilesSnapshot {
            instances: Some(Arc::new(instances)),
            host_ports: Some(Arc::new(HostPortParts {
                schema: 1,
                parts: parts.collect(),
                sources,
                ingress: self.ingress.clone(),
            })),
            ..StateFilesSnapshot::default()
        };
        self.keeper.ensure(&self.node, &snapshot).await.unwrap();
    }

    fn inside<T: Send>(&self, number: u8, work: impl FnOnce() -> T + Send) -> T {
        self.containers[&number].namespace().run(work).unwrap()
    }

    fn outside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.outside.namespace().run(work).unwrap()
    }
}

fn connect(address: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(address, port).into(), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn udp(address: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.connect((address, 514)).unwrap();
    socket
}

/// The answering instance at each of the machine's ports, and the caller's address as it saw it.
fn all(address: Ipv4Addr) -> BTreeSet<(u8, String)> {
    let tcp = [8080, 80].map(|port| ask(&connect(address, port).unwrap()).unwrap());
    let flow = ask_udp(&udp(address)).unwrap();
    tcp.into_iter().chain([flow]).collect()
}

fn only(number: u8, caller: &str) -> BTreeSet<(u8, String)> {
    BTreeSet::from([(number, caller.to_owned())])
}

#[test]
fn a_port_of_the_machine_leads_to_its_instance_wherever_the_caller_is() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        site.serve(&[(10, Serving), (11, Held)]).await;
        // The program sees the caller's own address.
        assert_eq!(site.outside(|| all(MACHINE)), only(10, NEIGHBOUR));
        assert_eq!(all(MACHINE), only(10, "192.0.2.1"), "the machine itself");
        assert_eq!(all(Ipv4Addr::LOCALHOST), only(10, "10.90.1.1"));
        assert_eq!(site.inside(13, || all(MACHINE)), only(10, "10.90.1.13"));
        // The call of this instance comes back to itself.
        assert_eq!(site.inside(10, || all(MACHINE)), only(10, "10.90.1.1"));
        // The overlay address has no host ports, and neither has another port number.
        for (address, port) in [([10, 90, 1, 1].into(), 8080), (MACHINE, 8081)] {
            for error in [
                connect(address, port).unwrap_err(),
                site.inside(13, || connect(address, port).unwrap_err()),
            ] {
                assert_eq!(
                    error.kind(),
                    ErrorKind::ConnectionRefused,
                    "{address}:{port}"
                );
            }
        }
        // Connections to a port of several serving instances are spread over them.
        site.serve(&[(10, Serving), (11, Serving), (12, Leaving)])
            .await;
        let sixty: BTreeSet<(u8, String)> = site.outside(|| {
            let answers = (0..60).map(|_| ask(&connect(MACHINE, 80).unwrap()).unwrap());
            answers.collect()
        });
        let both = [10, 11].map(|number| (number, NEIGHBOUR.to_owned()));
        assert_eq!(sixty, BTreeSet::from(both));
    });
}

#[test]
fn a_port_that_nobody_serves_refuses_and_leads_there_once_somebody_does() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        let ask_refused = |socket: &UdpSocket| {
            let error = ask_udp(socket).unwrap_err();
            let kinds = [ErrorKind::ConnectionRefused, ErrorKind::PermissionDenied];
            assert!(kinds.contains(&error.kind()), "{error}");
        };
        // This socket sends before the port is known, and later sends again from the same source
        // port.
        let early = site.outside(|| udp(MACHINE));
        ask_refused(&early);
        site.serve(&[(10, Held)]).await;
        ask_refused(&early);
        let own = udp(Ipv4Addr::LOCALHOST);
        ask_refused(&own);
        // The refusal may also have left a pending error on the socket.
        own.take_error().unwrap();
        let refused = |address| {
            let began = Instant::now();
            let error = connect(address, 8080).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert!(began.elapsed() < LIMIT);
        };
        site.outside(|| refused(MACHINE));
        site.inside(13, || refused(MACHINE));
        refused(MACHINE);
        refused(Ipv4Addr::LOCALHOST);
        // Nothing refuses this flow while there are no rules, so the kernel keeps its conntrack
        // entry.
        host_ports::remove().await.unwrap();
        ask_refused(&early);
        site.serve(&[(10, Serving)]).await;
        assert_eq!(ask_udp(&early).unwrap(), (10, NEIGHBOUR.to_owned()));
        assert_eq!(ask_udp(&own).unwrap(), (10, "10.90.1.1".to_owned()));
        // The workload is gone, and its port is closed.
        site.serve(&[]).await;
        site.outside(|| refused(MACHINE));
        ask_refused(&early);
    });
}

#[test]
fn what_is_open_stays_with_its_instance_until_that_is_gone() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        site.serve(&[(10, Serving)]).await;
        let kept = site.outside(|| connect(MACHINE, 80).unwrap());
        let own = connect(Ipv4Addr::LOCALHOST, 80).unwrap();
        let flow = site.outside(|| udp(MACHINE));
        let to = |number: u8| (number, NEIGHBOUR.to_owned());
        for parts in [[(10, Serving), (11, Held)], [(10, Leaving), (11, Serving)]] {
            site.serve(&parts).await;
            assert_eq!(ask(&kept).unwrap(), to(10));
            assert_eq!(ask(&own).unwrap().0, 10);
            assert_eq!(ask_udp(&flow).unwrap(), to(10));
        }
        assert_eq!(site.outside(|| all(MACHINE)), only(11, NEIGHBOUR));
        // Only the next version is left.
        site.serve(&[(11, Serving)]).await;
        assert_eq!(ask_udp(&flow).unwrap(), to(11));
        for gone in [&kept, &own] {
            assert_eq!(ask(gone).unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
    });
}

#[test]
fn a_port_of_machines_that_serve_routes_needs_no_host_port_of_the_instance() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        let port = |port, protocol, container_port, allowed: Option<&str>| IngressHostPort {
            port,
            protocol,
            namespace: "default".to_owned(),
            workload: "db".to_owned(),
            instances: [(
                Ipv4Addr::new(10, 90, 1, 13),
                IngressBackend {
                    port: container_port,
                    state: Serving,
                },
            )]
            .into(),
            allow_sources: allowed.map(|range| vec![range.parse().unwrap()]),
        };
        // The last instance has no host port of its own.
        site.ingress = vec![
            port(8080, Transport::Tcp, 80, None),
            port(80, Transport::Tcp, 80, None),
            port(514, Transport::Udp, 53, None),
        ];
        site.serve(&[(13, Serving)]).await;
        assert_eq!(site.outside(|| all(MACHINE)), only(13, NEIGHBOUR));
        assert_eq!(all(MACHINE), only(13, "192.0.2.1"));
        // It is not forwarded from the loopback.
        let error = connect(Ipv4Addr::LOCALHOST, 80).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // Only the neighbour may call it.
        site.ingress = vec![port(80, Transport::Tcp, 80, Some("192.0.2.2/32"))];
        site.serve(&[(13, Serving)]).await;
        let answer = site.outside(|| ask(&connect(MACHINE, 80).unwrap()).unwrap());
        assert_eq!(answer, (13, NEIGHBOUR.to_owned()));
        let error = connect(MACHINE, 80).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // The port of an instance of another workload stays with that.
        site.ingress = vec![port(80, Transport::Tcp, 80, None)];
        site.serve(&[(10, Serving), (13, Serving)]).await;
        assert_eq!(site.outside(|| all(MACHINE)), only(10, NEIGHBOUR));
    });
}

#[test]
fn a_port_for_some_addresses_refuses_all_others_wherever_they_call() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        let closed = |address: Ipv4Addr| {
            let began = Instant::now();
            let error = connect(address, 80).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
            assert!(began.elapsed() < LIMIT, "{address}");
            let error = ask_udp(&udp(address)).unwrap_err();
            let kinds = [ErrorKind::ConnectionRefused, ErrorKind::PermissionDenied];
            assert!(kinds.contains(&error.kind()), "{address}: {error}");
            // The other port is for all.
            let other = connect(address, 8080).unwrap();
            assert_eq!(ask(&other).unwrap().0, 10, "{address}");
        };
        // Only the neighbour may call: neither the machine itself nor a container.
        site.allowed = Some(vec!["192.0.2.2/32", "198.51.100.0/24"]);
        site.serve(&[(10, Serving), (11, Held)]).await;
        assert_eq!(site.outside(|| all(MACHINE)), only(10, NEIGHBOUR));
        closed(MACHINE);
        closed(Ipv4Addr::LOCALHOST);
        site.inside(13, || closed(MACHINE));
        site.inside(10, || closed(MACHINE));
        let kept = site.outside(|| connect(MACHINE, 80).unwrap());
        let flow = site.outside(|| udp(MACHINE));
        assert_eq!(ask(&kept).unwrap(), (10, NEIGHBOUR.to_owned()));
        assert_eq!(ask_udp(&flow).unwrap(), (10, NEIGHBOUR.to_owned()));
        // Everybody but the neighbour, whose open connections end.
        site.allowed = Some(vec!["192.0.2.1/32", "127.0.0.0/8", "10.90.1.0/24"]);
        site.serve(&[(10, Serving), (11, Held)]).await;
        site.outside(|| closed(MACHINE));
        let error = ask(&kept).unwrap_err();
        let ended = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(ended.contains(&error.kind()), "{error}");
        assert!(ask_udp(&flow).is_err());
        assert_eq!(all(MACHINE), only(10, "192.0.2.1"));
        assert_eq!(all(Ipv4Addr::LOCALHOST), only(10, "10.90.1.1"));
        assert_eq!(site.inside(13, || all(MACHINE)), only(10, "10.90.1.13"));
        // Addresses of IPv6 open no port, which is IPv4.
        site.allowed = Some(vec!["2001:db8::/32"]);
        site.serve(&[(10, Serving)]).await;
        site.outside(|| closed(MACHINE));
        closed(MACHINE);
        // All may call again, also from a port whose calls were refused.
        site.allowed = None;
        site.serve(&[(10, Serving)]).await;
        assert_eq!(site.outside(|| all(MACHINE)), only(10, NEIGHBOUR));
        // A refusal may have left a pending error on the socket.
        flow.take_error().unwrap();
        assert_eq!(ask_udp(&flow).unwrap(), (10, NEIGHBOUR.to_owned()));
    });
}

#[test]
fn no_connection_is_lost_while_a_version_takes_over() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        site.serve(&[(10, Serving), (11, Serving)]).await;
        let end = Arc::new(AtomicBool::new(false));
        let own = NetworkNamespace::own().unwrap();
        let callers = [
            (site.outside.namespace(), MACHINE),
            (own, Ipv4Addr::LOCALHOST),
        ];
        let callers = callers.map(|(namespace, address)| {
            let end = Arc::clone(&end);
            std::thread::spawn(move || {
                let call = || {
                    let mut count = 0;
                    while !end.load(Ordering::Relaxed) {
                        ask(&connect(address, 80).unwrap()).unwrap();
                        count += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    count
                };
                namespace.run(call).unwrap()
            })
        });
        for round in 0..20 {
            let parts = match round % 2 {
                0 => [(10, Serving), (11, Leaving)],
                _ => [(10, Leaving), (11, Serving)],
            };
            site.serve(&parts).await;
        }
        end.store(true, Ordering::Relaxed);
        for caller in callers {
            let count: u32 = caller.join().unwrap();
            assert!(count > 20, "only {count} connections");
        }
    });
}

#[test]
fn a_program_of_the_machine_keeps_its_port() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        site.serve(&[(10, Serving)]).await;
        let kept = site.outside(|| connect(MACHINE, 80).unwrap());
        assert_eq!(ask(&kept).unwrap().0, 10);
        serve_in(&NetworkNamespace::own().unwrap(), 80);
        site.serve(&[(10, Serving)]).await;
        let seen = fetch_in(site.outside.namespace(), (MACHINE, 80).into()).await;
        assert_eq!(seen.unwrap(), NEIGHBOUR, "the program answers");
        // The other ports still work, and so do open connections.
        let other = site.outside(|| ask(&connect(MACHINE, 8080).unwrap()));
        assert_eq!(other.unwrap().0, 10);
        assert_eq!(ask(&kept).unwrap().0, 10);
        // A program that listens on another address takes no connections away.
        let elsewhere = TcpListener::bind("127.0.0.2:8080").unwrap();
        let overlay = TcpListener::bind("10.90.1.1:8080").unwrap();
        site.serve(&[(10, Serving)]).await;
        let other = site.outside(|| ask(&connect(MACHINE, 8080).unwrap()));
        assert_eq!(other.unwrap().0, 10);
        drop((elsewhere, overlay));
    });
}

#[test]
fn a_port_stays_with_the_machine_when_its_program_has_just_ended() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        let program = TcpListener::bind("0.0.0.0:80").unwrap();
        site.serve(&[]).await;
        drop(program);
        // The workload is added while the program restarts.
        site.serve(&[(10, Serving)]).await;
        let error = site.outside(|| connect(MACHINE, 80).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let other = site.outside(|| ask(&connect(MACHINE, 8080).unwrap()));
        assert_eq!(other.unwrap().0, 10, "the control");
        // A restart of kat-net ends the reservation.
        site.keeper = HostPortKeeper::default();
        site.serve(&[(10, Serving)]).await;
        let led = site.outside(|| ask(&connect(MACHINE, 80).unwrap()));
        assert_eq!(led.unwrap().0, 10);
    });
}

#[test]
fn what_calls_the_loopback_stays_on_the_machine_unless_its_owner_says_otherwise() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        site.serve(&[(10, Serving)]).await;
        assert_eq!(
            all(Ipv4Addr::LOCALHOST),
            only(10, "10.90.1.1"),
            "the control"
        );
        let instances = site.machine.instances.instances.values_mut();
        for port in instances.flat_map(|one| &mut one.host_ports) {
            port.loopback = false;
        }
        site.serve(&[(10, Serving)]).await;
        let error = connect(Ipv4Addr::LOCALHOST, 80).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(site.outside(|| all(MACHINE)), only(10, NEIGHBOUR));
        assert_eq!(
            all(MACHINE),
            only(10, "192.0.2.1"),
            "by another address of its own"
        );
    });
}

#[test]
fn strangers_come_no_further_than_the_ports() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        let outside = &site.outside;
        outside.inside("ip route add 10.90.0.0/16 via 192.0.2.1");
        site.containers[&10].serve(81);
        run("nft add table ip theirs");
        run("nft add chain ip theirs in { type nat hook prerouting priority -100 ; }");
        run("nft add rule ip theirs in ip daddr 192.0.2.1 tcp dport 9999 dnat to 10.90.1.10:81");
        let others: [SocketAddr; 3] = [
            (MACHINE, 9999).into(),
            ([10, 90, 1, 10], 80).into(),
            ([10, 90, 1, 10], 81).into(),
        ];
        let theirs = fetch_in(outside.namespace(), others[0]).await;
        assert_eq!(theirs.unwrap(), NEIGHBOUR, "the control");
        site.serve(&[(10, Serving)]).await;
        assert_eq!(site.outside(|| all(MACHINE)), only(10, NEIGHBOUR));
        for address in others {
            let error = fetch_in(site.outside.namespace(), address).await;
            assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut, "{address}");
        }
    });
}

#[test]
fn a_container_with_a_port_does_not_reach_what_listens_on_the_loopback() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        site.serve(&[(10, Serving)]).await;
        let listener = TcpListener::bind("127.0.0.1:7777").unwrap();
        std::thread::spawn(move || while listener.accept().is_ok() {});
        site.inside(10, || {
            run("ip address del 127.0.0.1/8 dev lo");
            std::fs::write("/proc/sys/net/ipv4/conf/eth0/route_localnet", "1").unwrap();
            run("ip route add 127.0.0.0/8 via 10.90.1.1 dev eth0 src 10.90.1.10");
        });
        let reaches = |site: &Site| {
            let limit = Duration::from_millis(500);
            let address = SocketAddr::from(([127, 0, 0, 1], 7777));
            site.inside(10, || TcpStream::connect_timeout(&address, limit).is_ok())
        };
        run("nft delete table inet kat");
        assert!(reaches(&site), "the control");
        site.firewall = Firewall::default();
        site.firewall.ensure(&node(), &nobody()).await.unwrap();
        assert!(!reaches(&site));
        assert_eq!(all(Ipv4Addr::LOCALHOST), only(10, "10.90.1.1"));
    });
}

#[test]
fn the_command_for_a_table_that_drops_opens_host_ports_too() {
    in_new_namespace(|| async {
        let mut site = Site::start().await;
        site.serve(&[(10, Serving)]).await;
        run("nft add table ip strict");
        run(
            "nft add chain ip strict forward { type filter hook forward priority 0 ; policy drop ; }",
        );
        let reached = || connect(MACHINE, 80).map(|_| ());
        assert!(site.outside(reached).is_err());
        let needs = obstacles::RequiredTraffic {
            cluster: node().cluster_cidr,
            wireguard_port: 51820,
            api_port: 9115,
        };
        let found = obstacles::foreign_obstacles(needs).await.unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let shell = Command::new("sh")
            .args(["-c", &found[0].command.replace("sudo ", "")])
            .output()
            .unwrap();
        assert!(shell.status.success(), "{shell:?}");
        assert_eq!(site.outside(|| all(MACHINE)), only(10, NEIGHBOUR));
    });
}

#[test]
fn the_table_says_what_is_wanted_and_nothing_of_before() {
    in_new_namespace(|| async {
        let list = || run("nft -s list table inet kat-host-ports");
        let mut site = Site::start().await;
        site.serve(&[]).await;
        let empty = list();
        assert!(!empty.contains("dnat ip"), "{empty}");
        site.serve(&[(10, Serving), (11, Held)]).await;
        let text = list();
        assert!(text.contains("chain to-tcp-8080"), "{text}");
        site.serve(&[]).await;
        assert_eq!(list(), empty);
        // A new process takes over the table of the previous one, which another program has
        // changed.
        site.serve(&[(10, Serving)]).await;
        run("nft flush chain inet kat-host-ports prerouting");
        site.keeper = HostPortKeeper::default();
        site.serve(&[(10, Serving), (11, Held)]).await;
        assert_eq!(list(), text);
        host_ports::remove().await.unwrap();
        host_ports::remove().await.unwrap();
        assert_eq!(run("nft list tables").trim(), "table inet kat");
    });
}
