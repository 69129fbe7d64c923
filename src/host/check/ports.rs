//! Checks the ports that KAT needs, and which programs listen on them.

use std::net::IpAddr;

use ipnet::Ipv4Net;

use super::{CheckFacts, CheckInput, CheckStage, Finding};
use crate::facts::network::{Listener, SocketProtocol};

/// A port that KAT listens on.
pub(super) struct NeededPort {
    pub(super) protocol: SocketProtocol,
    pub(super) port: u16,
    purpose: &'static str,
    /// Only needed on the machine's address in `clusterCIDR`.
    overlay: bool,
}

/// Ports that KAT listens on (docs/reference/README.md, "Ports").
pub(super) fn needed_ports(input: &CheckInput) -> Vec<NeededPort> {
    let cluster = &input.cluster;
    let wireguard = input.agent.wireguard_port.unwrap_or(cluster.wireguard_port);
    [
        (SocketProtocol::Tcp, cluster.api_port, "the API", false),
        (SocketProtocol::Tcp, cluster.agent_port, "the agent", false),
        (
            SocketProtocol::Tcp,
            cluster.etcd_client_port,
            "etcd's clients",
            false,
        ),
        (
            SocketProtocol::Tcp,
            cluster.etcd_peer_port,
            "etcd's peers",
            false,
        ),
        (SocketProtocol::Udp, wireguard, "WireGuard", false),
        (SocketProtocol::Udp, 53, "DNS", true),
        (SocketProtocol::Tcp, 53, "DNS", true),
    ]
    .map(|(protocol, port, purpose, overlay)| NeededPort {
        protocol,
        port,
        purpose,
        overlay,
    })
    .into()
}

/// Adds a problem for each port on which another program listens.
pub(super) fn add_port_findings(
    input: &CheckInput,
    facts: &CheckFacts,
    findings: &mut Vec<Finding>,
) {
    for wanted in needed_ports(input) {
        let others: Vec<&Listener> = facts
            .listeners
            .iter()
            .filter(|one| one.protocol == wanted.protocol && one.port == wanted.port)
            .filter(|one| !wanted.overlay || collides(one.address, input.cluster.cluster_cidr))
            .filter(|one| input.stage != CheckStage::Running || !is_ours(one, facts.is_root))
            // A separate finding covers the distribution's etcd.service.
            .filter(|one| !(facts.etcd_unit.active && one.unit.as_deref() == Some("etcd.service")))
            .collect();
        if others.is_empty() {
            continue;
        }
        let who = distinct(others.iter().map(|one| who(one)));
        let mend = distinct(others.iter().map(|one| end(one, &wanted, facts)));
        findings.push(Finding::problem(
            format!(
                "{} port {}, for {}, is taken by {}",
                word(wanted.protocol).to_uppercase(),
                wanted.port,
                wanted.purpose,
                who.join(" and ")
            ),
            mend.join(" && "),
        ));
    }
}

/// Whether a socket at this address conflicts with the machine's overlay address.
fn collides(address: IpAddr, overlay: Ipv4Net) -> bool {
    address.is_unspecified()
        || match address.to_canonical() {
            IpAddr::V4(address) => address.is_unspecified() || overlay.contains(&address),
            IpAddr::V6(_) => false,
        }
}

fn is_ours(listener: &Listener, is_root: bool) -> bool {
    match (&listener.unit, &listener.process) {
        (Some(unit), _) => unit.starts_with("kat-"),
        (None, Some(_)) => false,
        // The kernel's WireGuard listens without a process. A user other than root can't see root's
        // processes.
        (None, None) => listener.protocol == SocketProtocol::Udp || !is_root,
    }
}

fn word(protocol: SocketProtocol) -> &'static str {
    match protocol {
        SocketProtocol::Tcp => "tcp",
        SocketProtocol::Udp => "udp",
    }
}

fn who(listener: &Listener) -> String {
    match (&listener.process, &listener.unit) {
        (Some(process), Some(unit)) => format!("{process} ({unit})"),
        (Some(process), None) => process.clone(),
        (None, _) => "something without a process, or of another user".to_owned(),
    }
}

/// The command that ends a listener: by its unit where it has one, otherwise by its process.
fn end(listener: &Listener, wanted: &NeededPort, facts: &CheckFacts) -> String {
    let Some(pid) = listener.pid else {
        return without_process(wanted, facts);
    };
    let port = wanted.port;
    let systemctl = match listener.manager {
        Some(uid) => format!("sudo systemctl --user --machine={uid}@.host"),
        None => "sudo systemctl".to_owned(),
    };
    match (listener.process.as_deref(), listener.unit.as_deref()) {
        // systemd itself listens on behalf of a socket unit.
        (Some("systemd"), _) => format!(
            "{systemctl} disable --now \"$({systemctl} list-sockets --no-legend --plain --full | \
             awk '$1 ~ /:{port}$/ {{ print $2 }}')\""
        ),
        // docker-proxy listens on behalf of a container, and its unit is all of Docker.
        (Some("docker-proxy"), _) => format!(
            "sudo docker stop $(sudo docker ps --quiet --filter publish={port}/{})",
            word(wanted.protocol)
        ),
        (_, Some(unit)) if unit.ends_with(".service") => {
            // A unit that is not enabled may be a transient or generated one, which can't be
            // disabled.
            let verb = if facts.enabled.contains(unit) {
                "disable --now"
            } else {
                "stop"
            };
            format!("{systemctl} {verb} {unit}")
        }
        _ => format!("sudo kill {pid}"),
    }
}

fn without_process(wanted: &NeededPort, facts: &CheckFacts) -> String {
    if !facts.is_root {
        "sudo kat-agent check".to_owned()
    } else if wanted.protocol == SocketProtocol::Udp && !wanted.overlay {
        "take down the WireGuard link that has it (sudo wg show all listen-port names them), \
         or set another wireguardPort in /etc/kat/agent.yaml"
            .to_owned()
    } else {
        "stop what listens there: the kernel itself, or a process outside of this machine's view"
            .to_owned()
    }
}

/// The texts without duplicates, in their order.
fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut found = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}
