//! The whole service on two or three machines, connected by userspace WireGuard.

use std::{
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use super::{
    connected_hosts::{Host, UID, block_on, cable, pair},
    namespaced_machine::{Container, eventually, fetch_in, in_new_namespace, run, serve_in},
};
use kat_network as network;
use kat_network::{
    links::{address_change, removal},
    overlay::wireguard::{WireGuard, WireGuardDevice},
};
use kat_types::{
    machine::network::{
        NodeNetwork, PeerMachine, ServiceNetwork, ServicePortBackends, Services, Transport,
    },
    services::BackendState,
};

async fn reaches(from: &Container, to: Ipv4Addr, port: u16) -> bool {
    from.fetch((to, port).into()).await.is_ok()
}

/// One service with one instance.
fn balanced(service: Ipv4Addr, instance: Ipv4Addr) -> Services {
    let port = ServicePortBackends {
        port: 80,
        protocol: Transport::Tcp,
        instances: [(instance, BackendState::Serving)].into(),
    };
    let web = ServiceNetwork {
        address: service,
        ports: vec![port],
    };
    Services {
        schema: 1,
        services: [("default/web".to_owned(), web)].into(),
    }
}

fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

#[test]
fn containers_on_two_machines_reach_each_other_and_outlive_the_service() {
    let (one, two) = pair();
    block_on(async {
        one.set_instances(&[("web-aaaaa", 10)]);
        two.set_instances(&[("web-bbbbb", 10)]);
        one.set_peers(&[("n2", two.as_peer(&["192.0.2.2:51820"]))]);
        two.set_peers(&[("n1", one.as_peer(&["192.0.2.1:51820"]))]);
        let (stop, ended) = one.serve();
        let (stop_two, ended_two) = two.serve();
        let first = one.container("web-aaaaa").await;
        let second = two.container("web-bbbbb").await;
        second.serve(80);
        serve_in(&two.namespace, 8080);

        eventually("the overlay carries", async || {
            reaches(&first, two.address(10), 80).await
        })
        .await;
        let seen = first.fetch((two.address(10), 80).into()).await.unwrap();
        assert_eq!(
            seen,
            one.address(10).to_string(),
            "nothing is translated on the overlay"
        );
        assert!(
            reaches(&first, two.address(1), 8080).await,
            "the other machine too"
        );
        let machine = fetch_in(one.namespace(), (two.address(10), 80).into()).await;
        assert_eq!(machine.unwrap(), one.address(1).to_string());

        // A service is balanced on the caller's machine, and the caller's address stays.
        let service = Ipv4Addr::new(10, 91, 0, 5);
        one.write("services.json", &balanced(service, two.address(10)));
        eventually("a service over the overlay", async || {
            reaches(&first, service, 80).await
        })
        .await;
        let seen = first.fetch((service, 80).into()).await.unwrap();
        assert_eq!(seen, one.address(10).to_string());
        let machine = fetch_in(one.namespace(), (service, 80).into()).await;
        assert_eq!(machine.unwrap(), one.address(1).to_string());

        let device = one.wireguard().read().await.unwrap();
        assert_eq!((device.peers.len(), device.listen_port), (1, 51820));
        let link = one.command("ip -d link show kat0");
        assert!(
            link.contains("mtu 1420") && link.contains("alias kat"),
            "{link}"
        );
        let routes = one.command("ip route");
        assert!(routes.contains("10.90.0.0/16 dev kat0"), "{routes}");
        assert!(routes.contains("10.91.0.0/16 dev kat0"), "{routes}");
        assert!(routes.contains("unreachable 10.90.1.0/24"), "{routes}");
        let mode = std::fs::metadata(&one.starter.socket)
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "only root sets up WireGuard");

        // Both services stop, and running containers do not notice.
        stop.cancel();
        stop_two.cancel();
        ended.await.unwrap();
        ended_two.await.unwrap();
        assert!(
            reaches(&first, two.address(10), 80).await,
            "with the services stopped"
        );

        // Both services restart: nothing is recreated, and the WireGuard session continues.
        let before = one.wireguard().read().await.unwrap();
        let (stop, ended) = one.serve();
        one.hook("web-zzzzz", first.pid()).await.unwrap_err();
        assert!(reaches(&first, two.address(10), 80).await);
        let after = one.wireguard().read().await.unwrap();
        let key = two.key.public();
        let handshake = |device: &WireGuardDevice| device.peers[&key].last_handshake.unwrap();
        let (first_time, then) = (handshake(&before), handshake(&after));
        // The time is computed from the age of the handshake, so it may differ slightly.
        let apart = then
            .duration_since(first_time)
            .unwrap_or_else(|error| error.duration());
        assert!(
            apart < Duration::from_millis(50),
            "the session went on: {apart:?}"
        );
        assert_eq!(one.starter.started.lock().len(), 1);

        // The watchdog of WireGuard's service is fed: the device answers.
        let pulses = &one.starter.pulses;
        assert_eq!(pulses.watched(), ["WireGuard", "the WireGuard socket"]);
        assert_eq!(pulses.stalled(), None);

        // WireGuard's process ends. The service starts it again at once and configures it again.
        one.starter.started.lock()[0].cancel();
        eventually("it was started again", async || {
            one.starter.started.lock().len() == 2
        })
        .await;
        eventually("the overlay carries again", async || {
            reaches(&first, two.address(10), 80).await
        })
        .await;

        // A removed peer is removed from WireGuard.
        one.set_peers(&[]);
        eventually("the peer is removed", async || {
            one.wireguard().read().await.unwrap().peers.is_empty()
        })
        .await;
        assert!(!reaches(&first, two.address(10), 80).await);

        // A removed instance loses its link, and a deleted route is restored.
        one.command("ip route flush proto 75 root 10.90.1.10/32");
        one.set_instances(&[("web-aaaaa", 10), ("web-ccccc", 11)]);
        eventually("the route is back", async || {
            one.command("ip route").contains("10.90.1.10 dev kat")
        })
        .await;
        one.set_instances(&[]);
        eventually("the link is swept", async || {
            !one.command("ip -d link").contains("kat:web-aaaaa")
        })
        .await;
        stop.cancel();
        ended.await.unwrap();
    });
}

#[test]
fn a_dead_endpoint_is_left_for_the_next() {
    let (one, two) = pair();
    block_on(async {
        // Neither machine may hear announcements, because the other one would announce its
        // endpoint.
        one.deafen();
        two.deafen();
        one.set_peers(&[("n2", two.as_peer(&["192.0.2.9:51820", "192.0.2.2:51820"]))]);
        two.set_peers(&[("n1", one.as_peer(&[]))]);
        let (stop, _) = one.serve();
        let (stop_two, _) = two.serve();
        serve_in(&two.namespace, 8080);
        let start = Instant::now();
        let mut reached = false;
        while !reached && start.elapsed() < Duration::from_secs(40) {
            let fetched = fetch_in(one.namespace(), (two.address(1), 8080).into()).await;
            reached = fetched.is_ok();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(reached, "the second endpoint was not tried");
        assert!(
            start.elapsed() > Duration::from_secs(10),
            "the first was given its time"
        );
        stop.cancel();
        stop_two.cancel();
    });
}

/// The path to a machine breaks during traffic, and there is another path. It is found long before
/// the session expires, even while keepalives are still sent.
#[test]
fn a_machine_that_falls_silent_is_looked_for_where_else_it_may_be() {
    let (one, two) = pair();
    cable("cable1", [(&one, "198.51.100.1"), (&two, "198.51.100.2")]);
    block_on(async {
        one.deafen();
        two.deafen();
        let endpoints = ["192.0.2.2:51820", "198.51.100.2:51820"];
        one.set_peers(&[("n2", two.as_peer(&endpoints))]);
        let mute = PeerMachine {
            keepalive: 0,
            ..one.as_peer(&[])
        };
        two.set_peers(&[("n1", mute)]);
        let (stop, _) = one.serve();
        let (stop_two, _) = two.serve();
        serve_in(&two.namespace, 8080);
        eventually("there is a session", async || {
            one.fetches(two.address(1)).await
        })
        .await;
        two.command("nft add table inet broken");
        two.command("nft add chain inet broken in { type filter hook input priority 0 ; }");
        two.command("nft add rule inet broken in ip daddr 192.0.2.2 drop");
        two.command("nft add chain inet broken out { type filter hook output priority 0 ; }");
        two.command("nft add rule inet broken out ip saddr 192.0.2.2 drop");
        let start = Instant::now();
        let mut reached = false;
        while !reached && start.elapsed() < Duration::from_secs(90) {
            reached = one.fetches(two.address(1)).await;
        }
        assert!(reached, "not within 90 s");
        let found = one.endpoint_of(&two).await;
        assert_eq!(found, "198.51.100.2:51820".parse().ok());
        stop.cancel();
        stop_two.cancel();
    });
}

/// As after a power cut after which all machines have new leases: no stored endpoint is right.
#[test]
fn machines_whose_addresses_all_changed_find_each_other() {
    let (one, two) = pair();
    block_on(async {
        let silent = |peer: PeerMachine| PeerMachine {
            keepalive: 0,
            ..peer
        };
        one.set_peers(&[("n2", silent(two.as_peer(&["198.51.100.2:51820"])))]);
        two.set_peers(&[("n1", silent(one.as_peer(&["198.51.100.1:51820"])))]);
        let (stop, _) = one.serve();
        serve_in(&two.namespace, 8080);
        eventually("the first looks for the second", async || {
            one.endpoint_of(&two).await == "198.51.100.2:51820".parse().ok()
        })
        .await;
        let (stop_two, _) = two.serve();
        let mut reached = false;
        let start = Instant::now();
        while !reached && start.elapsed() < Duration::from_secs(40) {
            reached = one.fetches(two.address(1)).await;
        }
        assert!(reached, "not within 40 s");
        assert_eq!(one.endpoint_of(&two).await, "192.0.2.2:51820".parse().ok());
        stop.cancel();
        stop_two.cancel();
    });
}

/// Only the machine that moved sends packets, and announcements are dropped.
#[test]
fn a_machine_that_moved_tells_its_peers_at_once() {
    let (one, two) = pair();
    block_on(async {
        let silent = |peer: PeerMachine| PeerMachine {
            keepalive: 0,
            ..peer
        };
        one.deafen();
        two.deafen();
        one.set_peers(&[("n2", silent(two.as_peer(&["192.0.2.2:51820"])))]);
        two.set_peers(&[("n1", silent(one.as_peer(&["192.0.2.1:51820"])))]);
        let (stop, _) = one.serve();
        let (stop_two, _) = two.serve();
        serve_in(&two.namespace, 8080);
        eventually("there is a session", async || {
            one.fetches(two.address(1)).await
        })
        .await;
        two.command("ip address delete 192.0.2.2/24 dev cable0");
        two.command("ip address add 192.0.2.12/24 broadcast + dev cable0");
        eventually("the other side follows", async || {
            one.endpoint_of(&two).await == "192.0.2.12:51820".parse().ok()
        })
        .await;
        stop.cancel();
        stop_two.cancel();
    });
}

/// The change may come while the service is still handling the previous one.
#[test]
fn a_change_of_addresses_is_seen_also_where_it_comes_before_anybody_waits() {
    in_new_namespace(|| async {
        run("ip link add lan0 type veth peer name lan1");
        let change = address_change();
        run("ip address add 192.0.2.7/24 dev lan0");
        let seen = tokio::time::timeout(Duration::from_secs(10), change).await;
        assert!(seen.is_ok(), "not within 10 s");
    });
}

/// `kat0` may disappear during the first round.
#[test]
fn the_removal_of_a_link_is_seen_also_where_it_comes_before_anybody_waits() {
    in_new_namespace(|| async {
        run("ip link add gone0 type veth peer name gone1");
        let gone = removal("gone0");
        run("ip link del gone0");
        let seen = tokio::time::timeout(Duration::from_secs(10), gone).await;
        assert!(matches!(seen, Ok(Ok(()))), "{seen:?}");
    });
}

#[test]
fn two_machines_that_can_not_reach_each_other_speak_through_a_third() {
    let hosts = [Host::start(1), Host::start(2), Host::start(3)];
    let [relay, two, three] = &hosts;
    cable("cable2", [(relay, "192.0.2.1"), (two, "192.0.2.2")]);
    cable("cable3", [(relay, "198.51.100.1"), (three, "198.51.100.3")]);
    block_on(async {
        let set_relay = |relays| {
            let node = NodeNetwork {
                relay: relays,
                ..relay.node()
            };
            relay.write("node.json", &node);
        };
        let through = |peer: PeerMachine| PeerMachine {
            via: Some("n1".to_owned()),
            ..peer
        };
        set_relay(true);
        relay.set_peers(&[
            ("n2", two.as_peer(&["192.0.2.2:51820"])),
            ("n3", three.as_peer(&["198.51.100.3:51820"])),
        ]);
        two.set_peers(&[
            ("n1", relay.as_peer(&["192.0.2.1:51820"])),
            ("n3", through(three.as_peer(&["198.51.100.3:51820"]))),
        ]);
        three.set_peers(&[
            ("n1", relay.as_peer(&["198.51.100.1:51820"])),
            ("n2", through(two.as_peer(&["192.0.2.2:51820"]))),
        ]);
        let stops = hosts.each_ref().map(|host| host.serve().0);
        serve_in(&three.namespace, 8080);
        eventually("one reaches the other", async || {
            two.fetches(three.address(1)).await
        })
        .await;
        // A machine that is not a relay forwards nothing.
        set_relay(false);
        eventually("the rules are others", async || {
            relay
                .command("nft list chain inet kat forward")
                .contains("this is no relay")
        })
        .await;
        assert!(!two.fetches(three.address(1)).await);
        for stop in stops {
            stop.cancel();
        }
    });
}

#[test]
fn files_that_come_late_are_waited_for_and_teardown_leaves_nothing() {
    let host = Host::start(1);
    std::fs::remove_file(host.folder.path().join("node.json")).unwrap();
    block_on(async {
        let before = (host.command("ip -o link"), host.command("ip route"));
        let (stop, ended) = host.serve();
        host.set_instances(&[("web-aaaaa", 10)]);
        let container = Container::start(UID);
        let error = host.hook("web-aaaaa", container.pid()).await.unwrap_err();
        assert!(error.contains("node.json"), "{error}");
        host.write("node.json", &host.node());
        eventually("kat0 is up", async || {
            host.command("ip -o address")
                .contains("kat0    inet 10.90.1.1/32")
        })
        .await;
        let container = host.container("web-aaaaa").await;
        serve_in(&host.namespace, 8080);
        assert!(reaches(&container, host.address(1), 8080).await);
        assert!(host.command("nft list tables").contains("inet kat"));

        stop.cancel();
        ended.await.unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        host.handle.spawn(async move {
            sender.send(network::teardown().await).unwrap();
        });
        receiver.await.unwrap().unwrap();
        eventually("nothing is left", async || {
            let after = (host.command("ip -o link"), host.command("ip route"));
            after == before && host.command("nft list tables").is_empty()
        })
        .await;
        eventually("its socket is gone with it", async || {
            !exists(&host.starter.socket)
        })
        .await;
    });
}

/// A round that hangs uses an old list, and no container must lose its link because of that.
#[test]
fn a_resolved_that_hangs_takes_no_container_off_the_network() {
    let mut host = Host::start(1);
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = std::sync::Arc::clone(&asked);
    host.resolved = Some(std::sync::Arc::new(move |_| {
        seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Box::pin(std::future::pending())
    }));
    block_on(async {
        host.set_instances(&[("web-aaaaa", 10)]);
        let (stop, ended) = host.serve();
        let first = host.container("web-aaaaa").await;
        eventually("resolved is told of kat0, and hangs", async || {
            asked.load(std::sync::atomic::Ordering::Relaxed) > 0
        })
        .await;
        host.set_instances(&[("web-bbbbb", 11)]);
        let second = host.container("web-bbbbb").await;
        second.serve(80);
        eventually("the round goes on: what is gone is swept", async || {
            !host.command("ip -d link").contains("kat:web-aaaaa")
        })
        .await;
        let reached = fetch_in(host.namespace(), (host.address(11), 80).into()).await;
        assert!(reached.is_ok(), "{reached:?}");
        drop(first);
        stop.cancel();
        ended.await.unwrap();
    });
}
