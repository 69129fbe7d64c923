//! Other programs on ports that KAT needs, and the commands that stop these programs.

use super::*;
use crate::facts::network::{Listener, SocketProtocol};

fn listener(
    protocol: SocketProtocol,
    port: u16,
    process: Option<&str>,
    unit: Option<&str>,
) -> Listener {
    Listener {
        protocol,
        address: [0, 0, 0, 0].into(),
        port,
        process: process.map(str::to_owned),
        pid: process.map(|_| 4711),
        manager: None,
        unit: unit.map(str::to_owned),
    }
}

#[test]
fn a_port_is_anybodys_before_init_and_kats_afterwards() {
    let cases = [
        (
            listener(
                SocketProtocol::Tcp,
                2379,
                Some("etcd"),
                Some("etcd.service"),
            ),
            true,
            true,
            "TCP port 2379, for etcd's clients, is taken by etcd (etcd.service)",
        ),
        (
            listener(
                SocketProtocol::Tcp,
                9115,
                Some("kat-agent"),
                Some("kat-agent.service"),
            ),
            true,
            false,
            "TCP port 9115, for the API, is taken by kat-agent",
        ),
        (
            listener(SocketProtocol::Tcp, 9116, Some("python3"), None),
            true,
            true,
            "TCP port 9116, for the agent, is taken by python3",
        ),
        (
            listener(SocketProtocol::Udp, 51820, None, None),
            true,
            false,
            "UDP port 51820, for WireGuard, is taken by something",
        ),
        (
            listener(SocketProtocol::Udp, 2380, Some("x"), None),
            false,
            false,
            "",
        ),
        (
            listener(SocketProtocol::Tcp, 443, Some("nginx"), None),
            false,
            false,
            "",
        ),
    ];
    for (listener, before, running, what) in cases {
        for (stage, expected) in [
            (CheckStage::BeforeInit, before),
            (CheckStage::Running, running),
        ] {
            let found = findings_of(stage, |facts| facts.listeners = vec![listener.clone()]);
            assert_eq!(found.len(), usize::from(expected), "{stage:?} {found:?}");
            assert!(
                found.iter().all(|finding| finding.what.starts_with(what)),
                "{found:?}"
            );
        }
    }
}

#[test]
fn the_machines_own_wireguard_port_counts() {
    let mut input = input(CheckStage::BeforeInit);
    input.agent.wireguard_port = Some(50_000);
    let mut facts = sound();
    facts.listeners = vec![listener(SocketProtocol::Udp, 51820, Some("wg"), None)];
    assert_eq!(worst(&evaluate(&input, &facts)), Level::Ok);
    facts.listeners = vec![listener(SocketProtocol::Udp, 50_000, Some("wg"), None)];
    assert_eq!(worst(&evaluate(&input, &facts)), Level::Problem);
}

#[test]
fn dns_needs_its_port_on_the_overlay_alone() {
    for (address, protocol, expected) in [
        ("0.0.0.0", SocketProtocol::Udp, true),
        ("::", SocketProtocol::Tcp, true),
        ("::ffff:0.0.0.0", SocketProtocol::Tcp, true),
        ("10.100.0.1", SocketProtocol::Udp, true),
        ("::ffff:10.100.3.1", SocketProtocol::Tcp, true),
        // No conflict: the stub of systemd-resolved, a bridge's DNS server, loopback, and another
        // network.
        ("127.0.0.53", SocketProtocol::Udp, false),
        ("10.88.0.1", SocketProtocol::Udp, false),
        ("::1", SocketProtocol::Tcp, false),
        ("192.168.2.7", SocketProtocol::Tcp, false),
    ] {
        let mut other = listener(protocol, 53, Some("dnsmasq"), Some("dnsmasq.service"));
        other.address = address.parse().unwrap();
        let found = findings_of(CheckStage::BeforeInit, |f| f.listeners = vec![other]);
        assert_eq!(found.len(), usize::from(expected), "{address}: {found:?}");
        if let Some(found) = found.first() {
            let word = if protocol == SocketProtocol::Udp {
                "UDP"
            } else {
                "TCP"
            };
            let what = format!("{word} port 53, for DNS, is taken by dnsmasq (dnsmasq.service)");
            assert_eq!(found.what, what);
        }
    }
    let mut own = listener(
        SocketProtocol::Udp,
        53,
        Some("kat-agent"),
        Some("kat-net.service"),
    );
    own.address = "10.100.0.1".parse().unwrap();
    assert_eq!(
        findings_of(CheckStage::Running, |f| f.listeners = vec![own]),
        []
    );
}

#[test]
fn what_ends_a_listener_depends_on_what_it_is() {
    let mut of_user = listener(SocketProtocol::Tcp, 9115, Some("x"), Some("x.service"));
    of_user.manager = Some(1000);
    let docker = Some("docker.service");
    for (listener, mend) in [
        (
            listener(SocketProtocol::Tcp, 9115, Some("x"), Some("there.service")),
            "sudo systemctl disable --now there.service",
        ),
        // A transient unit does not start at boot, so it is stopped and not disabled.
        (
            listener(SocketProtocol::Tcp, 9115, Some("x"), Some("run-r1.service")),
            "sudo systemctl stop run-r1.service",
        ),
        (
            of_user,
            "sudo systemctl --user --machine=1000@.host stop x.service",
        ),
        (
            listener(
                SocketProtocol::Tcp,
                9115,
                Some("nc"),
                Some("session-3.scope"),
            ),
            "sudo kill 4711",
        ),
        (
            listener(SocketProtocol::Udp, 51820, Some("nc"), None),
            "sudo kill 4711",
        ),
        (
            listener(
                SocketProtocol::Tcp,
                9115,
                Some("systemd"),
                Some("init.scope"),
            ),
            "sudo systemctl disable --now \"$(sudo systemctl list-sockets --no-legend --plain --full | \
             awk '$1 ~ /:9115$/ { print $2 }')\"",
        ),
        (
            listener(SocketProtocol::Tcp, 9115, Some("docker-proxy"), docker),
            "sudo docker stop $(sudo docker ps --quiet --filter publish=9115/tcp)",
        ),
    ] {
        let found = findings_of(CheckStage::BeforeInit, |facts| {
            facts.enabled.insert("there.service".to_owned());
            facts.listeners = vec![listener];
        });
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].mend.as_deref(), Some(mend));
        assert!(is_command(mend), "{mend}");
    }
}

#[test]
fn one_command_for_each_holder_of_a_port() {
    let found = findings_of(CheckStage::BeforeInit, |facts| {
        let nginx = listener(
            SocketProtocol::Tcp,
            9115,
            Some("nginx"),
            Some("nginx.service"),
        );
        let other = listener(SocketProtocol::Tcp, 9115, Some("nc"), None);
        facts.listeners = vec![nginx.clone(), nginx, other];
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]
            .what
            .ends_with("is taken by nginx (nginx.service) and nc")
    );
    assert_eq!(
        found[0].mend.as_deref(),
        Some("sudo systemctl stop nginx.service && sudo kill 4711")
    );
}

#[test]
fn a_listener_without_a_process_is_told_with_what_can_be_done() {
    for (protocol, port, is_root, mend) in [
        (
            SocketProtocol::Udp,
            51820,
            true,
            "wireguardPort in /etc/kat/agent.yaml",
        ),
        (SocketProtocol::Udp, 53, true, "stop what listens there"),
        (SocketProtocol::Tcp, 9115, true, "stop what listens there"),
        (SocketProtocol::Tcp, 9115, false, "sudo kat-agent check"),
    ] {
        let found = findings_of(CheckStage::BeforeInit, |facts| {
            facts.is_root = is_root;
            facts.listeners = vec![listener(protocol, port, None, None)];
        });
        let found = found.last().unwrap();
        assert_eq!(found.level, Level::Problem);
        assert!(found.mend.as_ref().unwrap().contains(mend), "{found:?}");
    }
    // Without root, the processes of KAT's own services are not visible either.
    let found = findings_of(CheckStage::Running, |facts| {
        facts.is_root = false;
        facts.listeners = vec![listener(SocketProtocol::Tcp, 9115, None, None)];
    });
    assert_eq!(worst(&found), Level::Warning, "{found:?}");
}

#[test]
fn the_distributions_etcd_is_told_once() {
    let of_etcd = |port| {
        listener(
            SocketProtocol::Tcp,
            port,
            Some("etcd"),
            Some("etcd.service"),
        )
    };
    let found = findings_of(CheckStage::BeforeInit, |facts| {
        facts.etcd_unit.active = true;
        facts.listeners = vec![of_etcd(2379), of_etcd(2380)];
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].what.contains("etcd.service runs"));
}
