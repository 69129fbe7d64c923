//! Isolation of namespaces: who reaches whom, on two machines with the whole service, and what
//! containers reach of the machines themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    connected_hosts::{Host, UID, block_on, pair},
    firewall::Outside,
    namespaced_machine::{
        ADDRESS, Container, Machine, eventually, fetch_in, in_new_namespace, node, run, serve_in,
        write,
    },
};
use kat_network::{
    containers::{attach, namespaces::NetworkNamespace},
    isolation::enforcement::IsolationKeeper,
    nftables::firewall::{Firewall, FirewallInput},
    state_files::StateFilesSnapshot,
};
use kat_types::{
    machine::{
        isolation::{
            EVERY_NAMESPACE, IsolatedNamespace, IsolationMode, IsolationRules, IsolationState,
            MachineAccess,
        },
        network::{
            HostPortNetwork, HostPortParts, IngressBackend, IngressHostPort, InstanceNetwork,
            Instances, NodeNetwork, ServiceNetwork, ServicePortBackends, Services, StartGate,
            Transport,
        },
    },
    services::BackendState,
};

/// An instance, by the machine's number and the last number of its address.
#[derive(Clone, Copy)]
struct Placed {
    namespace: &'static str,
    id: &'static str,
    machine: u8,
    last: u8,
}

const fn placed(namespace: &'static str, id: &'static str, machine: u8, last: u8) -> Placed {
    Placed {
        namespace,
        id,
        machine,
        last,
    }
}

const SHOP_1: Placed = placed("shop", "web-aaaaa", 1, 10);
const SHOP_2: Placed = placed("shop", "web-bbbbb", 2, 10);
const OPS_1: Placed = placed("ops", "tool-aaaaa", 1, 11);
const OPS_2: Placed = placed("ops", "tool-bbbbb", 2, 11);
const COMMON: Placed = placed("common", "proxy-aaaaa", 2, 12);
const DATA: Placed = placed("data", "db-aaaaa", 2, 13);
const ALL: [Placed; 6] = [SHOP_1, SHOP_2, OPS_1, OPS_2, COMMON, DATA];

impl Placed {
    fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 90, self.machine, self.last)
    }

    fn workload(self) -> String {
        self.id.split('-').next().unwrap().to_owned()
    }
}

/// `common` is open to all, and `data/db` to `shop`.
fn rules(mode: IsolationMode, revision: i64, instances: &[Placed]) -> IsolationRules {
    let mut namespaces: BTreeMap<String, IsolatedNamespace> = BTreeMap::new();
    for one in instances {
        let namespace = namespaces.entry(one.namespace.to_owned()).or_default();
        if one.namespace == "common" {
            namespace.allow.insert(EVERY_NAMESPACE.to_owned());
        }
        let workload = namespace.workloads.entry(one.workload()).or_default();
        if one.namespace == "data" {
            workload.allow.insert("shop".to_owned());
        }
        workload.instances.insert(one.address(), one.id.to_owned());
    }
    IsolationRules {
        schema: 1,
        mode,
        revision,
        namespaces,
    }
}

fn instance(one: Placed) -> InstanceNetwork {
    InstanceNetwork {
        namespace: one.namespace.to_owned(),
        workload: one.workload(),
        uid: UID,
        unit: format!("kat-default-{}.service", one.id),
        address: one.address(),
        gate: StartGate::Open,
        host_ports: Vec::new(),
        machine_access: BTreeSet::new(),
    }
}

/// Two machines with all instances, each of which serves at port 80.
struct TwoMachines {
    one: Host,
    two: Host,
    containers: BTreeMap<&'static str, Container>,
    served: [(CancellationToken, JoinHandle<()>); 2],
}

impl TwoMachines {
    async fn start(rules: &IsolationRules) -> Self {
        let (one, two) = pair();
        one.set_peers(&[("n2", two.as_peer(&["192.0.2.2:51820"]))]);
        two.set_peers(&[("n1", one.as_peer(&["192.0.2.1:51820"]))]);
        for host in [&one, &two] {
            let own = ALL.iter().filter(|one| one.machine == host.number);
            let own = own.map(|one| (one.id.to_owned(), instance(*one)));
            let mut instances = Instances {
                schema: 1,
                instances: own.collect(),
                ..Instances::default()
            };
            if let Some(tool) = instances.instances.get_mut(OPS_1.id) {
                tool.host_ports = vec![HostPortNetwork {
                    port: 8080,
                    protocol: Transport::Tcp,
                    container_port: 80,
                    loopback: false,
                }];
            }
            host.write("instances.json", &instances);
            let serving = [OPS_1.address()].map(|address| (address, BackendState::Serving));
            let parts = HostPortParts {
                schema: 1,
                parts: serving.into(),
                sources: BTreeMap::new(),
                ingress: Vec::new(),
            };
            host.write("host-ports.json", &parts);
            host.write("isolation.json", rules);
        }
        let served = [one.serve(), two.serve()];
        let mut machines = Self {
            one,
            two,
            containers: BTreeMap::new(),
            served,
        };
        for placed in ALL {
            let container = machines.host(placed).container(placed.id).await;
            container.serve(80);
            machines.containers.insert(placed.id, container);
        }
        let to_own = async || machines.reaches(SHOP_1, SHOP_2).await;
        eventually("the overlay carries", to_own).await;
        machines
    }

    fn host(&self, placed: Placed) -> &Host {
        match placed.machine {
            1 => &self.one,
            _ => &self.two,
        }
    }

    fn namespace(&self, placed: Placed) -> NetworkNamespace {
        self.containers[placed.id].namespace()
    }

    async fn fetch(&self, from: Placed, to: impl Into<SocketAddr>) -> io::Result<String> {
        self.containers[from.id].fetch(to.into()).await
    }

    async fn reaches(&self, from: Placed, to: Placed) -> bool {
        self.fetch(from, (to.address(), 80)).await.is_ok()
    }

    /// All pairs of which the first reaches the second.
    async fn reached(&self) -> BTreeSet<(&'static str, &'static str)> {
        let mut reached = BTreeSet::new();
        for from in ALL {
            for to in ALL {
                if self.reaches(from, to).await {
                    reached.insert((from.id, to.id));
                }
            }
        }
        reached
    }

    /// Writes rules on both machines and waits until they are in force.
    async fn set(&self, rules: &IsolationRules) {
        for host in [&self.one, &self.two] {
            host.write("isolation.json", rules);
        }
        for host in [&self.one, &self.two] {
            eventually("the rules are in force", async || {
                let state = reported(host);
                state.revision == rules.revision && state.mode == Some(rules.mode)
            })
            .await;
        }
    }
}

impl Drop for TwoMachines {
    fn drop(&mut self) {
        self.served.iter().for_each(|(stop, _)| stop.cancel());
    }
}

/// The state that `kat-net` reported last.
fn reported(host: &Host) -> IsolationState {
    let text = std::fs::read(host.isolation_report()).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn everybody() -> BTreeSet<(&'static str, &'static str)> {
    ALL.iter()
        .flat_map(|from| ALL.iter().map(|to| (from.id, to.id)))
        .collect()
}

fn allowed() -> BTreeSet<(&'static str, &'static str)> {
    let is_allowed = |from: &Placed, to: &Placed| {
        from.namespace == to.namespace
            || to.namespace == "common"
            || (from.namespace == "shop" && to.namespace == "data")
    };
    let mut pairs = BTreeSet::new();
    for from in &ALL {
        pairs.extend(
            ALL.iter()
                .filter(|to| is_allowed(from, to))
                .map(|to| (from.id, to.id)),
        );
    }
    pairs
}

#[test]
fn who_reaches_whom_in_each_mode() {
    block_on(async {
        let machines = TwoMachines::start(&rules(IsolationMode::None, 1, &ALL)).await;
        assert_eq!(machines.reached().await, everybody(), "without isolation");
        let tables = machines.one.command("nft list tables");
        assert!(!tables.contains("kat-isolation"), "{tables}");

        machines.set(&rules(IsolationMode::Audit, 2, &ALL)).await;
        assert_eq!(
            machines.reached().await,
            everybody(),
            "Audit refuses nothing"
        );
        let lists = |host: &Host, from: Placed, to: Placed, passed: bool| {
            reported(host).refused.iter().any(|one| {
                one.passed == passed
                    && (one.from.instance.as_str(), one.to.instance.as_str()) == (from.id, to.id)
                    && (one.protocol, one.port) == (Some(Transport::Tcp), 80)
            })
        };
        eventually("Audit lists what would be refused", async || {
            lists(&machines.one, SHOP_1, OPS_1, true) && lists(&machines.one, SHOP_1, OPS_2, true)
        })
        .await;
        assert!(!lists(&machines.one, SHOP_1, SHOP_2, true));
        assert!(!lists(&machines.one, SHOP_1, DATA, true));

        machines
            .set(&rules(IsolationMode::Namespaces, 3, &ALL))
            .await;
        assert_eq!(machines.reached().await, allowed());
        for to in [OPS_1, OPS_2] {
            let began = Instant::now();
            let error = machines
                .fetch(SHOP_1, (to.address(), 80))
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
            assert!(
                began.elapsed() < Duration::from_secs(1),
                "refused, not dropped"
            );
        }
        eventually("what was refused is reported", async || {
            lists(&machines.one, SHOP_1, OPS_2, false) && lists(&machines.two, DATA, SHOP_1, false)
        })
        .await;

        machines.set(&rules(IsolationMode::None, 4, &ALL)).await;
        assert_eq!(machines.reached().await, everybody(), "opened again");
    });
}

#[test]
fn machines_host_ports_and_services_with_isolation() {
    block_on(async {
        let machines = TwoMachines::start(&rules(IsolationMode::Namespaces, 1, &ALL)).await;
        for host in [&machines.one, &machines.two] {
            serve_in(&host.namespace(), 9000);
        }
        for host in [&machines.one, &machines.two] {
            let of_machine = machines.fetch(SHOP_1, (host.address(1), 9000)).await;
            assert!(of_machine.is_ok(), "a port of a machine: {of_machine:?}");
            let from_machine = fetch_in(host.namespace(), (OPS_2.address(), 80).into()).await;
            assert!(from_machine.is_ok(), "from a machine: {from_machine:?}");
        }
        let host_port = (Ipv4Addr::new(192, 0, 2, 1), 8080);
        for caller in [SHOP_1, SHOP_2] {
            let door = machines.fetch(caller, host_port).await;
            assert!(door.is_ok(), "by a host port, as from outside: {door:?}");
        }

        let service = |last: u8, behind: Placed| {
            let port = ServicePortBackends {
                port: 80,
                protocol: Transport::Tcp,
                instances: [(behind.address(), BackendState::Serving)].into(),
            };
            let service = ServiceNetwork {
                address: Ipv4Addr::new(10, 91, 0, last),
                ports: vec![port],
            };
            (
                format!("{}/{}", behind.namespace, behind.workload()),
                service,
            )
        };
        let services = [(1, SHOP_2), (2, OPS_2), (3, DATA)];
        let services = Services {
            schema: 1,
            services: services.map(|(last, behind)| service(last, behind)).into(),
        };
        machines.one.write("services.json", &services);
        let at = |last: u8| SocketAddr::from(([10, 91, 0, last], 80));
        let own = async || machines.fetch(SHOP_1, at(1)).await.is_ok();
        eventually("the service is balanced", own).await;
        assert!(
            machines.fetch(SHOP_1, at(3)).await.is_ok(),
            "allowed by the workload"
        );
        let foreign = machines.fetch(SHOP_1, at(2)).await.unwrap_err();
        assert_eq!(foreign.kind(), ErrorKind::ConnectionRefused);
        assert!(machines.fetch(OPS_1, at(2)).await.is_ok());
    });
}

#[test]
fn a_port_of_a_machine_that_serves_routes_leads_to_the_instances_of_another_one() {
    block_on(async {
        let machines = TwoMachines::start(&rules(IsolationMode::Namespaces, 1, &ALL)).await;
        let at = SocketAddr::from(([192, 0, 2, 1], 5432));
        let lead_to = |instances: &[(Placed, BackendState)]| {
            let instances = instances.iter().map(|(one, state)| {
                let backend = IngressBackend {
                    port: 80,
                    state: *state,
                };
                (one.address(), backend)
            });
            let port = IngressHostPort {
                port: 5432,
                protocol: Transport::Tcp,
                namespace: "ops".to_owned(),
                workload: OPS_2.workload(),
                instances: instances.collect(),
                allow_sources: None,
            };
            let parts = HostPortParts {
                schema: 1,
                ingress: vec![port],
                ..HostPortParts::default()
            };
            machines.one.write("host-ports.json", &parts);
        };
        let from_machine = |host: &Host| fetch_in(host.namespace(), at);
        lead_to(&[(OPS_2, BackendState::Serving)]);
        eventually("the port is open", async || {
            from_machine(&machines.two).await.is_ok()
        })
        .await;
        // The instance sees the machine with the port, through which its answers return.
        let seen = Some("10.90.1.1".to_owned());
        for host in [&machines.one, &machines.two] {
            assert_eq!(from_machine(host).await.ok(), seen, "{}", host.number);
        }
        // It is a door from outside: isolation does not cover it.
        for caller in [SHOP_1, SHOP_2, OPS_1, OPS_2] {
            assert_eq!(machines.fetch(caller, at).await.ok(), seen, "{}", caller.id);
        }
        let other = SocketAddr::from(([192, 0, 2, 2], 5432));
        let error = fetch_in(machines.one.namespace(), other).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // An instance of the machine itself sees its caller.
        lead_to(&[(OPS_2, BackendState::Held), (OPS_1, BackendState::Serving)]);
        eventually("the instance that serves is used", async || {
            from_machine(&machines.two).await.ok().as_deref() == Some("192.0.2.2")
        })
        .await;
        lead_to(&[(OPS_2, BackendState::Held)]);
        eventually("a port that nobody serves is refused", async || {
            let refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
            from_machine(&machines.two).await.is_err_and(refused)
        })
        .await;
    });
}

#[test]
fn each_machine_decides_by_itself() {
    block_on(async {
        let open = rules(IsolationMode::None, 1, &ALL);
        let closed = rules(IsolationMode::Namespaces, 1, &ALL);
        let machines = TwoMachines::start(&closed).await;
        assert!(!machines.reaches(SHOP_1, OPS_2).await);
        // The machine that sends does not isolate: the one that receives refuses.
        machines.one.write("isolation.json", &open);
        eventually("the first machine is open", async || {
            reported(&machines.one).mode == Some(IsolationMode::None)
        })
        .await;
        let error = machines
            .fetch(SHOP_1, (OPS_2.address(), 80))
            .await
            .unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::ConnectionRefused,
            "by the receiver"
        );
        assert!(
            machines.reaches(SHOP_1, OPS_1).await,
            "the control: on the open machine"
        );
        // And the other way round.
        machines.one.write("isolation.json", &closed);
        machines.two.write("isolation.json", &open);
        eventually("the machines have changed places", async || {
            reported(&machines.one).mode == Some(IsolationMode::Namespaces)
                && reported(&machines.two).mode == Some(IsolationMode::None)
        })
        .await;
        let error = machines
            .fetch(SHOP_1, (OPS_2.address(), 80))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "by the sender");
    });
}

#[test]
fn what_is_unknown_is_dropped_without_an_answer_until_it_is_known() {
    block_on(async {
        let machines = TwoMachines::start(&rules(IsolationMode::Namespaces, 1, &ALL)).await;
        // The second machine does not know the caller, and the first one does.
        let known: Vec<Placed> = ALL.into_iter().filter(|one| one.id != SHOP_1.id).collect();
        let part = rules(IsolationMode::Namespaces, 2, &known);
        machines.two.write("isolation.json", &part);
        eventually("the second machine has forgotten it", async || {
            reported(&machines.two).revision == 2
        })
        .await;
        for to in [SHOP_2, OPS_2, COMMON] {
            let outcome = machines.fetch(SHOP_1, (to.address(), 80)).await;
            let expected = match to.id == OPS_2.id {
                // The sender knows both.
                true => ErrorKind::ConnectionRefused,
                false => ErrorKind::TimedOut,
            };
            assert_eq!(outcome.unwrap_err().kind(), expected, "{}", to.id);
        }
        machines
            .set(&rules(IsolationMode::Namespaces, 3, &ALL))
            .await;
        assert!(machines.reaches(SHOP_1, SHOP_2).await);
    });
}

/// A connection whose other end answers each request.
fn open(machines: &TwoMachines, from: Placed, to: SocketAddr) -> TcpStream {
    let connect = || {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(3)))
            .unwrap();
        stream
    };
    machines.namespace(from).run(connect).unwrap()
}

fn is_answered(mut stream: &TcpStream) -> bool {
    stream.write_all(b"x").is_ok() && matches!(stream.read(&mut [0; 64]), Ok(1..))
}

#[test]
fn closed_connections_that_are_no_more_allowed_are_forgotten_too() {
    block_on(async {
        let machines = TwoMachines::start(&rules(IsolationMode::None, 1, &ALL)).await;
        let entries = || {
            let all = machines.one.command("cat /proc/net/nf_conntrack");
            let to = format!("dst={} ", OPS_2.address());
            let of = all.lines().filter(|line| line.contains(&to));
            of.map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(machines.reaches(SHOP_1, OPS_2).await);
        eventually("both ends have closed", async || {
            entries().iter().any(|line| line.contains("TIME_WAIT"))
        })
        .await;
        machines
            .set(&rules(IsolationMode::Namespaces, 2, &ALL))
            .await;
        assert_eq!(entries(), [""; 0]);
    });
}

#[test]
fn open_connections_end_when_they_are_no_more_allowed_and_others_stay() {
    block_on(async {
        let machines = TwoMachines::start(&rules(IsolationMode::None, 1, &ALL)).await;
        for (number, placed) in [(2, SHOP_2), (3, OPS_2), (4, OPS_1)] {
            answer_at(&machines.namespace(placed), 81, number);
        }
        let at = |placed: Placed| SocketAddr::from((placed.address(), 81));
        let stays = open(&machines, SHOP_1, at(SHOP_2));
        let ends = [OPS_2, OPS_1].map(|to| open(&machines, SHOP_1, at(to)));
        assert!(is_answered(&stays) && ends.iter().all(is_answered));
        machines
            .set(&rules(IsolationMode::Namespaces, 2, &ALL))
            .await;
        assert!(is_answered(&stays), "of the own namespace");
        for end in &ends {
            assert!(!is_answered(end), "of another namespace");
        }
    });
}

/// Answers each request of a connection.
fn answer_at(namespace: &NetworkNamespace, port: u16, number: u8) {
    let bind = || std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    let listener = namespace.run(bind).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                while matches!(stream.read(&mut [0; 64]), Ok(1..)) {
                    let _ = stream.write_all(&[number]);
                }
            });
        }
    });
}

/// A TCP packet from port 81 to port `port` of `to`, with the flags SYN and ACK.
fn syn_and_ack(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut packet = vec![0, 81];
    packet.extend(port.to_be_bytes());
    packet.extend([0, 0, 0, 1, 0, 0, 0, 1, 5 << 4, 0x12, 4, 0, 0, 0, 0, 0]);
    let mut summed = [from.octets(), to.octets()].concat();
    summed.extend([0, 6, 0, 20]);
    summed.extend(&packet);
    let words = summed.chunks(2);
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[16..18].copy_from_slice(&(!u16::try_from(sum).unwrap()).to_be_bytes());
    packet
}

#[test]
fn an_answer_without_a_tracked_connection_is_neither_reset_nor_listed() {
    block_on(async {
        let machines = TwoMachines::start(&rules(IsolationMode::Namespaces, 1, &ALL)).await;
        let (from, to) = (DATA.address(), SHOP_1.address());
        // Every TCP packet that the container of `data` receives.
        let socket = machines.namespace(DATA).run(|| {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(
                AddressFamily::INET,
                SocketType::RAW,
                flags,
                Some(ipproto::TCP),
            );
            UdpSocket::from(socket.unwrap())
        });
        let socket = socket.unwrap();
        let limit = Some(Duration::from_secs(5));
        socket.set_read_timeout(limit).unwrap();
        let packet = syn_and_ack(from, to, 82);
        socket.send_to(&packet, (to, 0)).unwrap();
        // What follows it is refused, and listed.
        let refused = machines.fetch(DATA, (to, 83)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let resets_from = || {
            let mut packet = [0; 128];
            let length = socket.recv(&mut packet).unwrap();
            let header = usize::from(packet[0] & 15) * 4;
            let tcp = &packet[header..length];
            (tcp[13] & 4 != 0).then(|| u16::from_be_bytes([tcp[0], tcp[1]]))
        };
        let first = std::iter::from_fn(|| Some(resets_from())).flatten().next();
        assert_eq!(first, Some(83), "port 82 would come first");
        eventually("what was refused is reported", async || {
            let state = reported(&machines.two);
            state.refused.iter().any(|one| one.port == 83)
        })
        .await;
        for host in [&machines.one, &machines.two] {
            let listed = reported(host).refused;
            assert!(listed.iter().all(|one| one.port != 82), "{listed:?}");
        }
    });
}

#[test]
fn when_the_hook_has_answered_the_rules_have_the_link_and_a_restart_opens_nothing() {
    block_on(async {
        let mut machines = TwoMachines::start(&rules(IsolationMode::Namespaces, 1, &ALL)).await;
        let late = placed("ops", "tool-ccccc", 1, 20);
        let host = &machines.one;
        let mut instances: Instances = serde_json::from_slice(
            &std::fs::read(host.folder.path().join("instances.json")).unwrap(),
        )
        .unwrap();
        instances
            .instances
            .insert(late.id.to_owned(), instance(late));
        host.write("instances.json", &instances);
        let container = host.container(late.id).await;
        let link = attach::host_link_name(late.id);
        let sets = host.command("nft list set inet kat-isolation links");
        assert!(
            sets.contains(&link) && sets.contains("10.90.1.20"),
            "{sets}"
        );
        container.serve(80);
        assert!(!machines.reaches(SHOP_1, late).await);
        assert!(
            machines.reaches(OPS_1, late).await,
            "before the file of all instances has it"
        );

        // `kat-net` ends: what it left stays in force. As under systemd, the next one starts after that.
        let (stop, ended) = &mut machines.served[0];
        stop.cancel();
        ended.await.unwrap();
        assert!(!machines.reaches(SHOP_1, OPS_1).await);
        let (stop, _) = host.serve();
        let again = placed("ops", "tool-ddddd", 1, 21);
        instances
            .instances
            .insert(again.id.to_owned(), instance(again));
        host.write("instances.json", &instances);
        let second = host.container(again.id).await;
        second.serve(80);
        assert!(!machines.reaches(SHOP_1, again).await);
        assert!(machines.reaches(OPS_1, again).await);

        // Somebody flushes all rules.
        host.command("nft flush ruleset");
        let link = attach::host_link_name(again.id);
        eventually("the rules are back", async || {
            let list = || {
                Command::new("nft")
                    .args(["list", "set", "inet", "kat-isolation", "links"])
                    .output()
                    .unwrap()
            };
            let output = host.namespace.run(list).unwrap();
            String::from_utf8_lossy(&output.stdout).contains(&link)
        })
        .await;
        assert!(!machines.reaches(SHOP_1, again).await);
        stop.cancel();
    });
}

#[test]
fn the_metadata_of_clouds_and_the_api_are_closed_unless_they_are_opened() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let outside = Outside::connect();
        outside.inside("ip address add 169.254.169.254/32 dev lo");
        outside.inside("ip address add 100.100.100.200/32 dev lo");
        for address in ["169.254.169.254", "100.100.100.200"] {
            run(&format!("ip route add {address}/32 via 192.0.2.2"));
        }
        serve_in(&outside.namespace(), 80);
        for port in [9115, 9116] {
            serve_in(&NetworkNamespace::own().unwrap(), port);
        }
        let mut containers = Vec::new();
        for (name, last) in [("web-aaaaa", 10), ("web-bbbbb", 11)] {
            machine.instance(name, UID, last, StartGate::Open);
            let container = machine.container(UID, name);
            machine.hook(UID, name, container.pid()).await.unwrap();
            containers.push(container);
        }
        let [closed, opened] = containers.as_slice() else {
            panic!("two containers");
        };
        let own = NodeNetwork {
            api_port: Some(9115),
            ..node()
        };
        let access = [MachineAccess::Api, MachineAccess::Metadata];
        let list = &mut machine.instances.instances;
        list.get_mut("web-bbbbb").unwrap().machine_access = access.into();
        let input = FirewallInput::new(BTreeSet::new(), Some(&machine.instances));
        Firewall::default().ensure(&own, &input).await.unwrap();
        let metadata = [[169, 254, 169, 254], [100, 100, 100, 200]];
        for address in metadata.map(Ipv4Addr::from) {
            let refused = closed.fetch((address, 80).into()).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{address}");
            let reached = opened.fetch((address, 80).into()).await;
            assert_eq!(reached.unwrap(), "192.0.2.1", "{address}");
        }
        assert!(
            closed.fetch(([192, 0, 2, 2], 80).into()).await.is_ok(),
            "the outside"
        );
        let api = (ADDRESS, 9115).into();
        assert!(closed.fetch(api).await.is_err());
        assert!(opened.fetch(api).await.is_ok());
        let agent = (ADDRESS, 9116).into();
        let outside_address = ([192, 0, 2, 1], 9115).into();
        for address in [agent, outside_address] {
            assert!(opened.fetch(address).await.is_err(), "{address}");
        }
        write(machine.folder.path(), "instances.json", &machine.instances);
    });
}

#[test]
fn ten_thousand_instances_are_put_in_place_and_one_more_costs_little() {
    in_new_namespace(|| async {
        let node = Arc::new(node());
        let rules = |count: u32, revision| {
            let mut rules = IsolationRules {
                schema: 1,
                mode: IsolationMode::Namespaces,
                revision,
                ..IsolationRules::default()
            };
            for number in 0..count {
                let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 90, 2, 2)) + number);
                let namespace = format!("team-{}", number % 50);
                let namespace = rules.namespaces.entry(namespace).or_default();
                let workload = format!("app-{}", number % 500);
                let workload = namespace.workloads.entry(workload).or_default();
                workload.instances.insert(address, format!("app-{number}"));
            }
            StateFilesSnapshot {
                isolation: Some(Arc::new(rules)),
                ..StateFilesSnapshot::default()
            }
        };
        let mut keeper = IsolationKeeper::default();
        let enforced = keeper.subscribe();
        let mut timed = async |what: &str, snapshot: StateFilesSnapshot| {
            let bytes = serde_json::to_vec(snapshot.isolation.as_ref().unwrap()).unwrap();
            let began = Instant::now();
            keeper.ensure(&node, &snapshot).await.unwrap();
            println!(
                "{what}: {:?}, file of {} bytes",
                began.elapsed(),
                bytes.len()
            );
        };
        timed("10,000 instances", rules(10_000, 1)).await;
        timed("one more", rules(10_001, 2)).await;
        let known = |number: u32| {
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 90, 2, 2)) + number);
            let element = format!("{{ {address} }}");
            let output = Command::new("nft")
                .args(["get", "element", "inet", "kat-isolation", "known", &element])
                .output()
                .unwrap();
            output.status.success()
        };
        // Machines' own addresses are nobody's: the first of each /24.
        assert!(known(0) && known(10_000) && !known(10_001));
        timed("one less", rules(10_000, 3)).await;
        assert!(!known(10_000));
        assert_eq!(enforced.borrow().revision, 3);
    });
}
