//! KAT's nftables table against a hostile outside network.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use super::namespaced_machine::{
    ADDRESS, Container, Machine, as_user, connect_from, fetch, fetch_in, in_new_namespace, nobody,
    node, run, serve_in,
};
use kat_network::{
    containers::{attach, namespaces::NetworkNamespace},
    nftables::{
        firewall::{self, Firewall, FirewallInput},
        other_firewalls as obstacles,
    },
};
use kat_types::machine::network::StartGate;

const UID: u32 = 20001;

/// A network namespace connected to the machine: the machine is 192.0.2.1, and this side is
/// 192.0.2.2.
pub(crate) struct Outside(Child);

impl Outside {
    pub(crate) fn connect() -> Self {
        let child = Command::new("unshare")
            .args(["--net", "sleep", "300"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let outside = Self(child);
        let own = NetworkNamespace::own().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while outside.namespace().is_same(&own) {
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let pid = outside.0.id();
        run(&format!(
            "ip link add uplink0 type veth peer name eth0 netns {pid}"
        ));
        run("ip address add 192.0.2.1/24 dev uplink0");
        run("ip link set uplink0 up");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        outside.inside("ip address add 192.0.2.2/24 dev eth0");
        outside.inside("ip link set eth0 up");
        outside.inside("ip link set lo up");
        outside
    }

    /// Connects it by `kat0` as well, as another machine of the cluster with this overlay address.
    pub(crate) fn join_overlay(&self, address: Ipv4Addr) {
        run(&format!(
            "ip link add kat0 type veth peer name kat0 netns {}",
            self.0.id()
        ));
        run("ip link set kat0 up");
        self.inside("ip link set kat0 up");
        self.inside(&format!("ip address add {address}/32 dev lo"));
        self.inside(&format!("ip route add {ADDRESS} dev kat0 src {address}"));
        let others = format!(
            "ip route add {}/24 via {ADDRESS} dev kat0",
            Ipv4Addr::from(u32::from(ADDRESS) & !255)
        );
        self.inside(&others);
        run(&format!("ip route add {address} dev kat0 src {ADDRESS}"));
    }

    pub(crate) fn namespace(&self) -> NetworkNamespace {
        NetworkNamespace::of(self.0.id().try_into().unwrap()).unwrap()
    }

    pub(crate) fn inside(&self, line: &str) -> String {
        self.namespace().run(|| run(line)).unwrap()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn attached(machine: &mut Machine) -> Container {
    machine.instance("web-aaaaa", UID, 10, StartGate::Open);
    let container = machine.container(UID, "web-aaaaa");
    machine
        .hook(UID, "web-aaaaa", container.pid())
        .await
        .unwrap();
    container
}

#[test]
fn containers_reach_the_outside_as_the_machine() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let outside = Outside::connect();
        let container = attached(&mut machine).await;
        serve_in(&outside.namespace(), 80);
        let server = ([192, 0, 2, 2], 80).into();
        assert!(
            container.fetch(server).await.is_err(),
            "the control: no way back without the rules"
        );
        let firewall = Firewall::default();
        assert!(firewall.ensure(&node(), &nobody()).await.unwrap());
        assert_eq!(container.fetch(server).await.unwrap(), "192.0.2.1");
    });
}

#[test]
fn strangers_do_not_reach_the_overlay() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let outside = Outside::connect();
        let container = attached(&mut machine).await;
        container.serve(80);
        serve_in(&NetworkNamespace::own().unwrap(), 8080);
        outside.inside("ip route add 10.90.0.0/16 via 192.0.2.1");
        let container_address = ([10, 90, 1, 10], 80).into();
        let machine_address = (ADDRESS, 8080).into();
        for address in [container_address, machine_address] {
            let reached = fetch_in(outside.namespace(), address).await;
            assert_eq!(
                reached.unwrap(),
                "192.0.2.2",
                "the control: open without the rules"
            );
        }
        Firewall::default()
            .ensure(&node(), &nobody())
            .await
            .unwrap();
        for address in [container_address, machine_address] {
            assert!(
                fetch_in(outside.namespace(), address).await.is_err(),
                "{address}"
            );
        }
        // A stranger uses a container's source address.
        outside.inside("ip address add 10.90.1.77/32 dev lo");
        outside.inside("ip route replace 10.90.0.0/16 via 192.0.2.1 src 10.90.1.77");
        assert!(
            fetch_in(outside.namespace(), container_address)
                .await
                .is_err()
        );
        // KAT's rules do not affect addresses outside the overlay.
        let plain = ([192, 0, 2, 1], 8080).into();
        assert!(fetch_in(outside.namespace(), plain).await.is_ok());
        // The machine itself and its containers still reach the overlay.
        assert!(super::namespaced_machine::fetch(container_address).is_ok());
        assert!(container.fetch(machine_address).await.is_ok());
    });
}

#[test]
fn an_address_of_the_overlay_is_believed_on_the_overlay_alone() {
    in_new_namespace(|| async {
        let _machine = Machine::start();
        let outside = Outside::connect();
        outside.inside("ip address add 10.90.9.1/32 dev lo");
        run("ip route add 10.90.9.0/24 via 192.0.2.2");
        let bind = |address: Ipv4Addr| {
            let socket = UdpSocket::bind((address, 9999)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(1)))
                .unwrap();
            socket
        };
        let own = bind([192, 0, 2, 1].into());
        let forger = outside
            .namespace()
            .run(|| bind([10, 90, 9, 1].into()))
            .unwrap();
        let stranger = outside
            .namespace()
            .run(|| bind([192, 0, 2, 2].into()))
            .unwrap();
        let arrives = |from: &UdpSocket| {
            from.send_to(b"x", own.local_addr().unwrap()).unwrap();
            own.recv(&mut [0; 8]).is_ok()
        };
        assert!(arrives(&forger), "the control: without the rules");
        Firewall::default()
            .ensure(&node(), &nobody())
            .await
            .unwrap();
        assert!(!arrives(&forger));
        // As an answer to what the machine sends there.
        own.send_to(b"x", forger.local_addr().unwrap()).unwrap();
        assert!(!arrives(&forger));
        assert!(arrives(&stranger), "others are not affected");
    });
}

#[test]
fn the_table_is_put_back_and_others_are_left_alone() {
    in_new_namespace(|| async {
        run("nft add table inet mine");
        run(
            "nft add chain inet mine keep { type filter hook forward priority 0 ; policy accept ; }",
        );
        let firewall = Firewall::default();
        assert!(firewall.ensure(&node(), &nobody()).await.unwrap());
        assert!(
            !firewall.ensure(&node(), &nobody()).await.unwrap(),
            "nothing to do"
        );
        let text = run("nft list table inet kat");
        assert!(text.contains("masquerade"), "{text}");
        run("nft flush chain inet kat forward");
        assert!(
            firewall.ensure(&node(), &nobody()).await.unwrap(),
            "somebody flushed it"
        );
        assert_eq!(run("nft list table inet kat"), text);
        run("nft flush chain inet kat input");
        run("nft add rule inet kat input accept");
        run("nft add rule inet kat input accept");
        assert!(
            firewall.ensure(&node(), &nobody()).await.unwrap(),
            "somebody changed it, and the number of rules is the same"
        );
        assert_eq!(run("nft list table inet kat"), text);
        run("nft delete table inet kat");
        assert!(
            firewall.ensure(&node(), &nobody()).await.unwrap(),
            "somebody removed it"
        );
        let mut moved = node();
        moved.subnet = "10.90.7.0/24".parse().unwrap();
        assert!(firewall.ensure(&moved, &nobody()).await.unwrap());
        assert!(run("nft list table inet kat").contains("10.90.7.0/24"));
        assert!(!run("nft list table inet kat").contains("10.90.1.0/24"));
        firewall::remove().await.unwrap();
        firewall::remove().await.unwrap();
        assert_eq!(run("nft list tables").trim(), "table inet mine");
    });
}

#[test]
fn rules_are_untouched_until_any_program_changes_a_rule_of_the_machine() {
    in_new_namespace(|| async {
        let firewall = Firewall::default();
        assert!(!firewall.is_untouched().await, "nothing was applied");
        assert!(firewall.ensure(&node(), &nobody()).await.unwrap());
        assert!(firewall.is_untouched().await);
        run("nft list ruleset");
        assert!(firewall.is_untouched().await, "a list changes nothing");
        run("nft add table inet mine");
        assert!(!firewall.is_untouched().await);
        assert!(!firewall.ensure(&node(), &nobody()).await.unwrap());
        assert!(firewall.is_untouched().await, "its own rules were compared");
        run("nft flush chain inet kat forward");
        assert!(!firewall.is_untouched().await);
        assert!(firewall.ensure(&node(), &nobody()).await.unwrap());
        assert!(firewall.is_untouched().await);
    });
}

#[test]
fn a_table_that_drops_is_found_and_its_command_mends_it() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let outside = Outside::connect();
        let container = attached(&mut machine).await;
        Firewall::default()
            .ensure(&node(), &nobody())
            .await
            .unwrap();
        run("nft add table ip strict");
        run(
            "nft add chain ip strict forward { type filter hook forward priority 0 ; policy drop ; }",
        );
        serve_in(&outside.namespace(), 80);
        let server = ([192, 0, 2, 2], 80).into();
        assert!(container.fetch(server).await.is_err());
        let needs = obstacles::RequiredTraffic {
            cluster: node().cluster_cidr,
            wireguard_port: 51820,
            api_port: 9115,
        };
        let found = obstacles::foreign_obstacles(needs).await.unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.contains("table ip strict"));
        let shell = Command::new("sh")
            .args(["-c", &found[0].command.replace("sudo ", "")])
            .output()
            .unwrap();
        assert!(shell.status.success(), "{shell:?}");
        assert_eq!(container.fetch(server).await.unwrap(), "192.0.2.1");
        let after = obstacles::foreign_obstacles(needs).await.unwrap();
        assert_eq!(after, []);
    });
}

#[test]
fn containers_reach_the_own_ports_of_no_machine() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        // `outside` stands for another machine of the cluster, with one address outside the overlay
        // and one on it, and for a stranger with an address of its own.
        let outside = Outside::connect();
        outside.inside("ip address add 192.0.2.3/24 dev eth0");
        outside.join_overlay([10, 90, 2, 1].into());
        let container = attached(&mut machine).await;
        for port in [9115, 8080] {
            serve_in(&NetworkNamespace::own().unwrap(), port);
            serve_in(&outside.namespace(), port);
        }
        let own = [ADDRESS, [192, 0, 2, 1].into()];
        let others = [[192, 0, 2, 2].into(), [10, 90, 2, 1].into()];
        let machines = [own, others].concat();
        let somebody: Ipv4Addr = [192, 0, 2, 3].into();
        for address in machines.iter().chain([&somebody]) {
            let reached = container.fetch((*address, 9115).into()).await;
            assert!(reached.is_ok(), "the control: {address}: {reached:?}");
        }
        let known = ["192.0.2.2", "2001:db8::2"].map(|text| text.parse().unwrap());
        let known = FirewallInput::new(BTreeSet::from(known), None);
        Firewall::default().ensure(&node(), &known).await.unwrap();
        let as_host_network = async |address: Ipv4Addr, port: u16| {
            as_user(UID, move || fetch((address, port).into())).await
        };
        for address in machines {
            assert!(
                container.fetch((address, 9115).into()).await.is_err(),
                "{address}"
            );
            assert!(as_host_network(address, 9115).await.is_err(), "{address}");
            // Other ports stay open, and so does everything for the machine itself.
            let open = container.fetch((address, 8080).into()).await;
            assert!(open.is_ok(), "{address}: {open:?}");
            assert!(as_host_network(address, 8080).await.is_ok(), "{address}");
            assert!(fetch((address, 9115).into()).is_ok(), "{address}");
        }
        assert!(
            as_host_network(Ipv4Addr::LOCALHOST, 9115).await.is_err(),
            "also at the loopback"
        );
        // A host outside the cluster may have such a port.
        assert!(container.fetch((somebody, 9115).into()).await.is_ok());
        assert!(as_host_network(somebody, 9115).await.is_ok());
        // The rule does not apply to the machine's ordinary users.
        let person = as_user(1000, move || fetch((ADDRESS, 9115).into())).await;
        assert!(person.is_ok(), "{person:?}");
    });
}

#[test]
fn answers_reach_a_caller_whose_port_is_a_machines_own_and_open_that_port_to_nobody() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let outside = Outside::connect();
        let other: Ipv4Addr = [10, 90, 2, 1].into();
        outside.join_overlay(other);
        let container = attached(&mut machine).await;
        Firewall::default()
            .ensure(&node(), &nobody())
            .await
            .unwrap();
        // The container's program is asked from that port, and then calls it from its own.
        let (is_ready, ready) = mpsc::channel();
        let inside = container.namespace();
        let server = std::thread::spawn(move || {
            let serve_once = || {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080))?;
                is_ready.send(()).unwrap();
                let (mut stream, caller) = listener.accept()?;
                stream.write_all(b"hello")?;
                stream.read_to_end(&mut Vec::new())?;
                io::Result::Ok(caller)
            };
            let caller = inside.run(serve_once).unwrap().unwrap();
            (inside, caller)
        });
        ready.recv().unwrap();
        let served = SocketAddrV4::new([10, 90, 1, 10].into(), 8080);
        let ask = || {
            let mut text = [0; 5];
            connect_from(9115, served)?.read_exact(&mut text)?;
            io::Result::Ok(text)
        };
        let answer = outside.namespace().run(ask).unwrap();
        assert_eq!(answer.unwrap(), *b"hello");
        let (inside, caller) = server.join().unwrap();
        assert_eq!(caller, (other, 9115).into());
        serve_in(&outside.namespace(), 9115);
        assert!(fetch((other, 9115).into()).is_ok(), "the control");
        let call_back = || connect_from(8080, SocketAddrV4::new(other, 9115));
        let refused = inside.run(call_back).unwrap().map(drop);
        let refused = refused.map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
    });
}

/// TCP lets both ends open one connection at the same time, and conntrack takes the second SYN for an
/// answer.
#[test]
fn a_container_that_leaves_a_call_unanswered_can_not_call_its_callers_port() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let outside = Outside::connect();
        let other: Ipv4Addr = [10, 90, 2, 1].into();
        outside.join_overlay(other);
        let container = attached(&mut machine).await;
        Firewall::default()
            .ensure(&node(), &nobody())
            .await
            .unwrap();
        let quiet = "add table ip quiet; \
             add chain ip quiet input { type filter hook input priority 0; }; \
             add rule ip quiet input tcp dport 8080 tcp flags & (syn|ack|rst) == syn drop";
        let inside = container.namespace();
        let set = inside.run(|| Command::new("nft").arg(quiet).output());
        let set = set.unwrap().unwrap();
        assert!(set.status.success(), "{set:?}");
        let call = || connect_from(9115, SocketAddrV4::new([10, 90, 1, 10].into(), 8080));
        let unanswered = outside.namespace().run(call).unwrap().map(drop);
        let unanswered = unanswered.map_err(|error| error.raw_os_error());
        let in_progress = rustix::io::Errno::INPROGRESS.raw_os_error();
        assert_eq!(unanswered, Err(Some(in_progress)), "the control");
        serve_in(&outside.namespace(), 9115);
        assert!(fetch((other, 9115).into()).is_ok(), "the control");
        let call_back = || connect_from(8080, SocketAddrV4::new(other, 9115));
        let refused = inside.run(call_back).unwrap().map(drop);
        let refused = refused.map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
    });
}

#[test]
fn a_container_can_not_send_with_its_neighbours_address_where_the_kernel_would_let_it() {
    in_new_namespace(|| async {
        let mut machine = Machine::start();
        let container = attached(&mut machine).await;
        // Another program may switch the kernel's filter off for all links, including new ones.
        for link in ["all".to_owned(), attach::host_link_name("web-aaaaa")] {
            let path = format!("/proc/sys/net/ipv4/conf/{link}/rp_filter");
            std::fs::write(path, "0").unwrap();
        }
        machine.instance("web-bbbbb", UID, 11, StartGate::Open);
        let neighbour = machine.container(UID, "web-bbbbb");
        machine
            .hook(UID, "web-bbbbb", neighbour.pid())
            .await
            .unwrap();
        container
            .namespace()
            .run(|| run("ip address add 10.90.1.11/32 dev eth0"))
            .unwrap();
        let socket = std::net::UdpSocket::bind((ADDRESS, 9999)).unwrap();
        let limit = std::time::Duration::from_millis(500);
        socket.set_read_timeout(Some(limit)).unwrap();
        let arrives = |source: &'static str| {
            let sent = container.namespace().run(|| {
                let sender = std::net::UdpSocket::bind((source, 0)).unwrap();
                sender.send_to(b"x", (ADDRESS, 9999)).unwrap();
            });
            sent.unwrap();
            socket.recv(&mut [0; 8]).is_ok()
        };
        assert!(
            arrives("10.90.1.11"),
            "the control: the kernel's own filter lets it pass"
        );
        Firewall::default()
            .ensure(&node(), &nobody())
            .await
            .unwrap();
        assert!(arrives("10.90.1.10"), "its own address passes");
        assert!(!arrives("10.90.1.11"), "its neighbour's does not");
    });
}
