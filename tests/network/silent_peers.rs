//! Machines that fall silent, and what callers on the others notice of it.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with};

use super::{
    connected_hosts::{Host, block_on, cable, pair},
    firewall::Outside,
    namespaced_machine::{
        ADDRESS, Container, Machine, as_user, eventually, in_new_namespace, nobody, node,
    },
    service_addresses::{answer, ask},
};
use kat_network::{containers::namespaces::NetworkNamespace, nftables::firewall::Firewall};
use kat_types::{
    machine::network::{
        PeerMachine, ServiceNetwork, ServicePortBackends, Services, StartGate, Transport,
    },
    services::BackendState,
};

pub(crate) const WEB: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 5);
const DB: Ipv4Addr = Ipv4Addr::new(10, 91, 0, 6);
/// Longest that a new connection may wait while a machine falls silent.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);

/// Services at port 80, with the instances behind them.
pub(crate) fn services(behind: &[(&str, Ipv4Addr, &[Ipv4Addr])]) -> Services {
    let services = behind.iter().map(|(name, address, instances)| {
        let instances = instances.iter();
        let port = ServicePortBackends {
            port: 80,
            protocol: Transport::Tcp,
            instances: instances.map(|one| (*one, BackendState::Serving)).collect(),
        };
        let service = ServiceNetwork {
            address: *address,
            ports: vec![port],
        };
        ((*name).to_owned(), service)
    });
    Services {
        schema: 1,
        services: services.collect(),
    }
}

/// A machine as a peer that sends nothing by itself.
fn quiet(host: &Host, endpoint: &str) -> PeerMachine {
    PeerMachine {
        keepalive: 0,
        ..host.as_peer(&[endpoint])
    }
}

/// Starts an instance that answers with its machine's number.
pub(crate) async fn instance(host: &Host, name: &str) -> Container {
    let container = host.container(name).await;
    answer(&container.namespace(), host.number);
    container
}

/// Drops all packets of the machine's cables, as a pulled plug does.
fn plug(host: &Host) {
    host.command("nft add table inet plug");
    for (chain, hook, name) in [("in", "input", "iifname"), ("out", "output", "oifname")] {
        host.command(&format!(
            "nft add chain inet plug {chain} {{ type filter hook {hook} priority -400 ; }}"
        ));
        host.command(&format!(
            "nft add rule inet plug {chain} {name} cable* drop"
        ));
    }
}

fn mend(host: &Host) {
    host.command("nft delete table inet plug");
}

/// A new connection from the machine itself: the number of the machine that answers, and how long
/// it took.
pub(crate) fn call(namespace: &NetworkNamespace, service: Ipv4Addr) -> io::Result<(u8, Duration)> {
    let work = || {
        let began = Instant::now();
        let stream = TcpStream::connect_timeout(&(service, 80).into(), 3 * LONGEST)?;
        stream.set_read_timeout(Some(LONGEST))?;
        let (number, _) = ask(&stream)?;
        Ok((number, began.elapsed()))
    };
    namespace.run(work)?
}

/// New connections, one after each interval, none of which waits for another; `call` makes one.
pub(crate) async fn calls_at<T: Send + 'static>(
    host: &Host,
    service: Ipv4Addr,
    count: usize,
    interval: Duration,
    call: fn(&NetworkNamespace, Ipv4Addr) -> io::Result<T>,
) -> Vec<T> {
    let mut threads = Vec::new();
    for _ in 0..count {
        let namespace = host.namespace();
        threads.push(tokio::task::spawn_blocking(move || {
            call(&namespace, service)
        }));
        tokio::time::sleep(interval).await;
    }
    let mut made = Vec::new();
    for thread in threads {
        made.push(thread.await.unwrap().expect("a connection was lost"));
    }
    made
}

/// Ten new connections a second for six seconds; who answered how many of them, and the longest
/// wait.
async fn calls(host: &Host, service: Ipv4Addr) -> (BTreeMap<u8, u32>, Duration) {
    let interval = Duration::from_millis(100);
    let (mut answered, mut longest) = (BTreeMap::new(), Duration::ZERO);
    for (number, took) in calls_at(host, service, 60, interval, call).await {
        *answered.entry(number).or_default() += 1;
        longest = longest.max(took);
    }
    (answered, longest)
}

/// Waits until both machines have answered calls to the service.
async fn both_answer(host: &Host, service: Ipv4Addr, numbers: [u8; 2]) {
    for number in numbers {
        eventually("each machine answers", async || {
            let namespace = host.namespace();
            let called = tokio::task::spawn_blocking(move || call(&namespace, service));
            called
                .await
                .unwrap()
                .is_ok_and(|(answered, _)| answered == number)
        })
        .await;
    }
}

/// Looks at the machine's rules for five seconds; each time they must have all these addresses.
async fn keeps(host: &Host, addresses: &[Ipv4Addr]) {
    let began = Instant::now();
    while began.elapsed() < LONGEST {
        let rules = host.command("nft list table inet kat-services");
        for address in addresses {
            let behind = format!(": {address}");
            assert!(rules.contains(&behind), "{address} is left out: {rules}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn with_three_machines_callers_of_a_silent_one_meet_another_within_five_seconds() {
    let hosts = [Host::start(1), Host::start(2), Host::start(3)];
    let [one, two, three] = &hosts;
    cable("cable12", [(one, "192.0.2.1"), (two, "192.0.2.2")]);
    cable("cable13", [(one, "198.51.100.1"), (three, "198.51.100.3")]);
    cable("cable23", [(two, "203.0.113.2"), (three, "203.0.113.3")]);
    block_on(async {
        one.set_peers(&[
            ("n2", quiet(two, "192.0.2.2:51820")),
            ("n3", quiet(three, "198.51.100.3:51820")),
        ]);
        two.set_peers(&[
            ("n1", quiet(one, "192.0.2.1:51820")),
            ("n3", quiet(three, "203.0.113.3:51820")),
        ]);
        three.set_peers(&[
            ("n1", quiet(one, "198.51.100.1:51820")),
            ("n2", quiet(two, "203.0.113.2:51820")),
        ]);
        two.set_instances(&[("web-bbbbb", 10)]);
        three.set_instances(&[("web-ccccc", 10)]);
        let both = [two.address(10), three.address(10)];
        let only = [three.address(10)];
        let behind = services(&[("default/web", WEB, &both), ("default/db", DB, &only)]);
        one.write("services.json", &behind);
        let stops = hosts.each_ref().map(|host| host.serve().0);
        let _second = instance(two, "web-bbbbb").await;
        let _third = instance(three, "web-ccccc").await;
        both_answer(one, WEB, [2, 3]).await;
        let open = || TcpStream::connect_timeout(&(DB, 80).into(), LONGEST).unwrap();
        let open = one.namespace.run(open).unwrap();
        open.set_read_timeout(Some(LONGEST)).unwrap();
        assert_eq!(ask(&open).unwrap().0, 3);

        plug(three);
        let (answered, longest) = calls(one, WEB).await;
        assert_eq!(answered, BTreeMap::from([(2, 60)]));
        assert!(longest < LONGEST, "{longest:?}");
        let rules = one.command("nft list table inet kat-services");
        let last = format!(": {}", three.address(10));
        assert_eq!(
            rules.matches(&last).count(),
            1,
            "the last instance stays: {rules}"
        );
        mend(three);
        both_answer(one, WEB, [2, 3]).await;
        assert_eq!(
            ask(&open).unwrap().0,
            3,
            "what was open stayed with its instance"
        );

        // A machine that reaches nobody is cut off itself.
        plug(one);
        let namespace = one.namespace();
        let calling = std::thread::spawn(move || call(&namespace, WEB));
        keeps(one, &both).await;
        mend(one);
        both_answer(one, WEB, [2, 3]).await;
        calling.join().unwrap().expect("a connection was lost");
        for stop in stops {
            stop.cancel();
        }
    });
}

#[test]
fn with_two_machines_a_peer_is_excluded_only_if_the_lan_does_not_reach_it_either() {
    let (one, two) = pair();
    block_on(async {
        one.set_peers(&[("n2", quiet(&two, "192.0.2.2:51820"))]);
        two.set_peers(&[("n1", quiet(&one, "192.0.2.1:51820"))]);
        one.set_instances(&[("web-aaaaa", 10)]);
        two.set_instances(&[("web-bbbbb", 10)]);
        let both = [one.address(10), two.address(10)];
        one.write("services.json", &services(&[("default/web", WEB, &both)]));
        let (stop, _) = one.serve();
        let (stop_two, _) = two.serve();
        let _first = instance(&one, "web-aaaaa").await;
        let _second = instance(&two, "web-bbbbb").await;
        both_answer(&one, WEB, [1, 2]).await;

        plug(&two);
        let (answered, longest) = calls(&one, WEB).await;
        assert_eq!(answered, BTreeMap::from([(1, 60)]));
        assert!(longest < LONGEST, "{longest:?}");
        mend(&two);
        both_answer(&one, WEB, [1, 2]).await;

        // Only the overlay is silent: nobody else says which of the two machines is at fault.
        two.command("nft add table inet broken");
        two.command("nft add chain inet broken in { type filter hook input priority -400 ; }");
        two.command("nft add rule inet broken in udp dport 51820 drop");
        let namespace = one.namespace();
        // Callers, so that the peer is in use; some of their calls fail, as the overlay is silent.
        let calling = std::thread::spawn(move || {
            for _ in 0..20 {
                let _ = call(&namespace, WEB);
            }
        });
        keeps(&one, &both).await;
        two.command("nft delete table inet broken");
        calling.join().unwrap();
        stop.cancel();
        stop_two.cancel();
    });
}

/// The data path of a machine does not need its `kat-net`: the kernel's refusal of a probe shows
/// that packets arrive.
#[test]
fn a_machine_whose_kat_net_is_stopped_keeps_its_callers() {
    let hosts = [Host::start(1), Host::start(2), Host::start(3)];
    let [one, two, three] = &hosts;
    cable("cable12", [(one, "192.0.2.1"), (two, "192.0.2.2")]);
    cable("cable13", [(one, "198.51.100.1"), (three, "198.51.100.3")]);
    block_on(async {
        one.set_peers(&[
            ("n2", quiet(two, "192.0.2.2:51820")),
            ("n3", quiet(three, "198.51.100.3:51820")),
        ]);
        two.set_peers(&[("n1", quiet(one, "192.0.2.1:51820"))]);
        three.set_peers(&[("n1", quiet(one, "198.51.100.1:51820"))]);
        two.set_instances(&[("web-bbbbb", 10)]);
        three.set_instances(&[("web-ccccc", 10)]);
        let both = [two.address(10), three.address(10)];
        one.write("services.json", &services(&[("default/web", WEB, &both)]));
        let (stop, _) = one.serve();
        let (stop_two, _) = two.serve();
        let (stop_three, ended_three) = three.serve();
        let _second = instance(two, "web-bbbbb").await;
        let _third = instance(three, "web-ccccc").await;
        both_answer(one, WEB, [2, 3]).await;
        stop_three.cancel();
        ended_three.await.unwrap();
        // The caller sends and nothing comes back, so that the machine is asked.
        let sending = one.namespace.run(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.connect((three.address(10), 53)).unwrap();
            socket
        });
        let sending = sending.unwrap();
        three.command("nft add table inet mute");
        three.command("nft add chain inet mute pass { type filter hook forward priority -400 ; }");
        three.command("nft add rule inet mute pass udp dport 53 drop");
        let flow = tokio::spawn(async move {
            loop {
                let _ = sending.send(b"?");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        keeps(one, &both).await;
        let (answered, longest) = calls(one, WEB).await;
        assert!(
            answered.contains_key(&3) && longest < LONGEST,
            "{answered:?}, {longest:?}"
        );
        flow.abort();
        stop.cancel();
        stop_two.cancel();
    });
}

/// A socket for probes in the calling thread's namespace.
fn raw() -> io::Result<UdpSocket> {
    let protocol = Protocol::from_raw(253.try_into().unwrap());
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(protocol))?;
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    Ok(socket)
}

#[test]
fn containers_can_neither_ask_nor_answer_for_their_machine() {
    in_new_namespace(|| async {
        const UID: u32 = 20001;
        let mut machine = Machine::start();
        machine.instance("web-aaaaa", UID, 10, StartGate::Open);
        let container = machine.container(UID, "web-aaaaa");
        machine
            .hook(UID, "web-aaaaa", container.pid())
            .await
            .unwrap();
        machine.instance("web-bbbbb", UID, 11, StartGate::Open);
        let other = machine.container(UID, "web-bbbbb");
        machine.hook(UID, "web-bbbbb", other.pid()).await.unwrap();
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let own = raw().unwrap();
        bind(&own, &SocketAddrV4::new(ADDRESS, 0)).unwrap();
        let inside = container.namespace().run(raw).unwrap().unwrap();
        let beside = other.namespace().run(raw).unwrap().unwrap();
        let arrives = |at: &UdpSocket| at.recv_from(&mut [0; 128]).is_ok();
        let send = |address: Ipv4Addr| {
            inside.send_to(b"probe", (address, 0)).unwrap();
        };
        let beyond = Ipv4Addr::new(10, 90, 1, 11);
        send(ADDRESS);
        send(beyond);
        assert!(
            arrives(&own) && arrives(&beside),
            "the control: without the rules"
        );
        Firewall::default()
            .ensure(&node(), &nobody())
            .await
            .unwrap();
        send(ADDRESS);
        assert!(!arrives(&own), "a container asks its own machine");
        send(beyond);
        assert!(
            !arrives(&beside),
            "a container's probe leaves its machine's rules"
        );

        // A container with hostNetwork runs as its user in the machine's own namespace: the kernel
        // gives it no such socket, so it takes nothing from kat-net either.
        let error = as_user(UID, raw).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    });
}

#[test]
fn a_machine_that_floods_another_with_probes_takes_no_turn_of_a_third() {
    in_new_namespace(|| async {
        let _machine = Machine::start();
        let others = Outside::connect();
        let [flooding, third] = [2, 3].map(|machine| Ipv4Addr::new(10, 90, machine, 1));
        others.join_overlay(flooding);
        others.inside(&format!("ip address add {third}/32 dev lo"));
        let own = raw().unwrap();
        bind(&own, &SocketAddrV4::new(ADDRESS, 0)).unwrap();
        let of = |address: Ipv4Addr| {
            let socket = others.namespace().run(raw).unwrap().unwrap();
            bind(&socket, &SocketAddrV4::new(address, 0)).unwrap();
            socket
        };
        let (flooding, third) = (of(flooding), of(third));
        let arrived = |from: &UdpSocket, count: u32| {
            for _ in 0..count {
                from.send_to(b"probe", (ADDRESS, 0)).unwrap();
            }
            std::iter::from_fn(|| own.recv(&mut [0; 128]).ok()).count()
        };
        assert_eq!(arrived(&flooding, 100), 100, "the control");
        let firewall = Firewall::default();
        firewall.ensure(&node(), &nobody()).await.unwrap();
        let passed = arrived(&flooding, 100);
        assert!((40..60).contains(&passed), "{passed}");
        assert_eq!(arrived(&third, 10), 10);
        assert!(
            !firewall.ensure(&node(), &nobody()).await.unwrap(),
            "what the kernel notes of senders is no change of the rules"
        );
    });
}
