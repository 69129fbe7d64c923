//! A double for programs of the machine that listen on ports.

use parking_lot::Mutex;

use crate::network::host_ports::HostListeners;
use kat_host::facts::network::{self as facts, Listener};
use kat_types::resource::Protocol;

/// Listeners of other programs on the machine.
#[derive(Default)]
pub(in crate::tests) struct Others(
    pub(in crate::tests) Mutex<Vec<Listener>>,
    /// Ports that are kept for a program that has ended.
    pub(in crate::tests) Mutex<Vec<(Protocol, u16)>>,
);

impl HostListeners for Others {
    fn listeners_on(&self, ports: &[(Protocol, u16)]) -> Vec<Listener> {
        let mut found = self.0.lock().clone();
        found.retain(|one| {
            let protocol = match one.protocol {
                facts::SocketProtocol::Tcp => Protocol::Tcp,
                facts::SocketProtocol::Udp => Protocol::Udp,
            };
            ports.contains(&(protocol, one.port))
        });
        found
    }

    fn port_left_to_program(&self, ports: &[(Protocol, u16)]) -> Option<(Protocol, u16)> {
        let kept = self.1.lock();
        ports.iter().copied().find(|port| kept.contains(port))
    }
}
