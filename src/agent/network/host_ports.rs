//! Host ports of instances, and other programs that listen on them.
//!
//! `kat-net` does not forward a port on which a program of the machine listens
//! (`network/nftables/host_ports.rs`). To show this, an instance does not start while such a
//! program listens, and a running instance gets a condition.

use std::{collections::BTreeSet, net::IpAddr, path::Path};

use ipnet::Ipv4Net;

use kat_host::{
    facts::network::{self as facts, Listener},
    files,
};
use kat_network::host_sockets;
use kat_types::{
    api::{ApiTime, Condition, HOST_PORT_IN_USE, HOST_PORT_NOT_ALLOWED},
    assignment::Assignment,
    machine::network::{MACHINE_PORTS_FILE, MachinePorts},
    reason::Reason,
    resource::Protocol,
    services::host_port_statuses,
};

/// Largest file of kept ports from `kat-net` in bytes: it may list every port.
const LIMIT: u64 = 1 << 20;

/// Other programs that listen on ports of the machine.
pub trait HostListeners: Send + Sync {
    /// The listeners on any of these ports.
    fn listeners_on(&self, ports: &[(Protocol, u16)]) -> Vec<Listener>;

    /// One of these ports that `kat-net` still leaves to a program that listened on it.
    fn port_left_to_program(&self, ports: &[(Protocol, u16)]) -> Option<(Protocol, u16)>;
}

/// The listeners of the real machine.
#[derive(Debug)]
pub(crate) struct SystemListeners {
    /// The overlay's network: listeners on its addresses alone do not conflict with host ports.
    pub overlay: Ipv4Net,
}

impl HostListeners for SystemListeners {
    fn listeners_on(&self, ports: &[(Protocol, u16)]) -> Vec<Listener> {
        let ports: Vec<_> = ports
            .iter()
            .map(|(protocol, port)| (of(*protocol), *port))
            .collect();
        let mut found = facts::listeners(&ports);
        found.retain(|one| host_sockets::takes(one.address, self.overlay));
        found
    }

    fn port_left_to_program(&self, ports: &[(Protocol, u16)]) -> Option<(Protocol, u16)> {
        let content = files::read_bounded(Path::new(MACHINE_PORTS_FILE), LIMIT).ok()?;
        let kept: MachinePorts = serde_json::from_slice(&content).ok()?;
        let mut ports = ports.iter().copied();
        ports.find(|(protocol, port)| match protocol {
            Protocol::Tcp => kept.tcp.contains(port),
            Protocol::Udp => kept.udp.contains(port),
        })
    }
}

fn of(protocol: Protocol) -> facts::SocketProtocol {
    match protocol {
        Protocol::Tcp => facts::SocketProtocol::Tcp,
        Protocol::Udp => facts::SocketProtocol::Udp,
    }
}

/// Why an instance's host ports are not forwarded; `None` where no other program listens on them.
pub(crate) fn in_use(assignment: &Assignment, listeners: &dyn HostListeners) -> Option<String> {
    let ports: Vec<(Protocol, u16)> = host_port_statuses(&assignment.ports)
        .into_iter()
        .map(|port| (port.protocol, port.port))
        .collect();
    if ports.is_empty() {
        return None;
    }
    let found = listeners.listeners_on(&ports);
    if found.is_empty() {
        let (protocol, port) = listeners.port_left_to_program(&ports)?;
        let word = protocol.word();
        return Some(format!(
            "a program of this machine listened on host port {port}/{word} in the last ten minutes, for which the port stays the machine's; `sudo systemctl restart kat-net` there gives it up at once"
        ));
    }
    let said: BTreeSet<String> = found.iter().map(sentence).collect();
    let said: Vec<String> = said.into_iter().collect();
    Some(said.join(" and "))
}

/// `host port 80/TCP is in use by nginx (pid 812, nginx.service)`
pub(crate) fn sentence(listener: &Listener) -> String {
    let Listener { port, .. } = listener;
    let protocol = match listener.protocol {
        facts::SocketProtocol::Tcp => Protocol::Tcp.word(),
        facts::SocketProtocol::Udp => Protocol::Udp.word(),
    };
    let program = match (&listener.process, listener.pid) {
        (Some(process), Some(pid)) => {
            let unit = listener.unit.as_ref();
            let unit = unit.map_or_else(String::new, |unit| format!(", {unit}"));
            format!("{process} (pid {pid}{unit})")
        }
        // Finding the process of a socket requires rights over all processes, which the agent has
        // not.
        _ => format!("a program of this machine (`ss -tulpn sport = :{port}` there names it)"),
    };
    let at = match listener.address {
        IpAddr::V4(address) if address.is_loopback() => " at 127.0.0.1",
        _ => "",
    };
    format!("host port {port}/{protocol} is in use by {program}{at}")
}

/// The condition `HostPortNotAllowed` of a running instance.
pub(crate) fn not_allowed(message: Option<String>) -> Option<Condition> {
    message.map(|message| Condition {
        kind: HOST_PORT_NOT_ALLOWED.to_owned(),
        status: true,
        reason: Reason::HostPortNotAllowed.into(),
        message,
        since: ApiTime::UNKNOWN,
    })
}

/// The condition `HostPortInUse` of a running instance.
pub(crate) fn condition(message: Option<String>) -> Option<Condition> {
    message.map(|message| Condition {
        kind: HOST_PORT_IN_USE.to_owned(),
        status: true,
        reason: Reason::HostPortInUse.into(),
        message: format!("{message}; meanwhile the port does not lead here"),
        since: ApiTime::UNKNOWN,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_port_is_named() {
        let mut listener = Listener {
            protocol: facts::SocketProtocol::Tcp,
            address: IpAddr::from([0, 0, 0, 0]),
            port: 80,
            process: Some("nginx".to_owned()),
            pid: Some(812),
            unit: Some("nginx.service".to_owned()),
            manager: None,
        };
        assert_eq!(
            sentence(&listener),
            "host port 80/TCP is in use by nginx (pid 812, nginx.service)"
        );
        listener.address = IpAddr::from([127, 0, 0, 1]);
        listener.unit = None;
        assert_eq!(
            sentence(&listener),
            "host port 80/TCP is in use by nginx (pid 812) at 127.0.0.1"
        );
        listener.pid = None;
        assert_eq!(
            sentence(&listener),
            "host port 80/TCP is in use by a program of this machine (`ss -tulpn sport = :80` there names it) at 127.0.0.1"
        );
    }
}
