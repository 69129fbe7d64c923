//! Computes the difference between the wanted and the actual state of a link.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::SystemTime,
};

use ipnet::Ipv4Net;

use super::{PrivateKey, PublicKey};

/// The actual state of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WireGuardDevice {
    /// `None` on a new link.
    pub private_key: Option<PrivateKey>,
    /// 0 on a new link.
    pub listen_port: u16,
    pub peers: BTreeMap<PublicKey, PeerStatus>,
}

/// The actual state of a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerStatus {
    /// The endpoint that WireGuard learned or was given.
    pub endpoint: Option<SocketAddr>,
    /// Addresses behind it, IPv4 only.
    pub allowed: BTreeSet<Ipv4Net>,
    /// Seconds between keepalives, 0 for none.
    pub keepalive: u16,
    /// `None` before the first.
    pub last_handshake: Option<SystemTime>,
    /// Bytes sent, handshakes included.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

/// The wanted state of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredLink {
    pub private_key: PrivateKey,
    pub listen_port: u16,
    pub peers: BTreeMap<PublicKey, WantedPeer>,
}

/// The wanted state of a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedPeer {
    /// `None` leaves the endpoint as it is: WireGuard itself follows a peer whose address changes.
    pub endpoint: Option<SocketAddr>,
    /// Addresses behind it.
    pub allowed: BTreeSet<Ipv4Net>,
    /// Seconds between keepalives, 0 for none.
    pub keepalive: u16,
}

/// The changes, applied in this order: key and port, removed peers, changed peers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkChanges {
    pub private_key: Option<PrivateKey>,
    pub listen_port: Option<u16>,
    pub removed: Vec<PublicKey>,
    /// New and changed peers.
    pub peers: Vec<PeerChange>,
}

/// The changes of a peer; `None` leaves a field as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerChange {
    pub key: PublicKey,
    /// Whether the peer is new on the link.
    pub new: bool,
    pub endpoint: Option<SocketAddr>,
    pub allowed: Option<BTreeSet<Ipv4Net>>,
    /// Seconds between keepalives, 0 for none.
    pub keepalive: Option<u16>,
}

impl LinkChanges {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The changes that turn `actual` into `wanted`.
pub fn difference(wanted: &DesiredLink, actual: &WireGuardDevice) -> LinkChanges {
    let key_changes = actual.private_key.as_ref() != Some(&wanted.private_key);
    let port_changes = actual.listen_port != wanted.listen_port;
    let removed = actual
        .peers
        .keys()
        .filter(|key| !wanted.peers.contains_key(key))
        .copied()
        .collect();
    let peers = wanted
        .peers
        .iter()
        .filter_map(|(key, peer)| peer_change(*key, peer, actual.peers.get(key)))
        .collect();
    LinkChanges {
        private_key: key_changes.then(|| wanted.private_key.clone()),
        listen_port: port_changes.then_some(wanted.listen_port),
        removed,
        peers,
    }
}

fn peer_change(
    key: PublicKey,
    wanted: &WantedPeer,
    actual: Option<&PeerStatus>,
) -> Option<PeerChange> {
    let Some(actual) = actual else {
        return Some(PeerChange {
            key,
            new: true,
            endpoint: wanted.endpoint,
            allowed: Some(wanted.allowed.clone()),
            keepalive: Some(wanted.keepalive),
        });
    };
    let change = PeerChange {
        key,
        new: false,
        endpoint: wanted
            .endpoint
            .filter(|endpoint| actual.endpoint != Some(*endpoint)),
        allowed: (wanted.allowed != actual.allowed).then(|| wanted.allowed.clone()),
        keepalive: (wanted.keepalive != actual.keepalive).then_some(wanted.keepalive),
    };
    let nothing =
        change.endpoint.is_none() && change.allowed.is_none() && change.keepalive.is_none();
    (!nothing).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn wanted() -> DesiredLink {
        let peer = |third: u8| WantedPeer {
            endpoint: Some(format!("192.0.2.{third}:51820").parse().unwrap()),
            allowed: BTreeSet::from([format!("10.90.{third}.0/24").parse().unwrap()]),
            keepalive: 25,
        };
        DesiredLink {
            private_key: PrivateKey::from_bytes([7; 32]),
            listen_port: 51820,
            peers: BTreeMap::from([(key(1), peer(1)), (key(2), peer(2))]),
        }
    }

    /// The state of a device after a change, as both implementations promise it.
    fn after(mut device: WireGuardDevice, change: &LinkChanges) -> WireGuardDevice {
        if let Some(key) = &change.private_key {
            device.private_key = Some(key.clone());
        }
        device.listen_port = change.listen_port.unwrap_or(device.listen_port);
        for key in &change.removed {
            device.peers.remove(key).unwrap();
        }
        for peer in &change.peers {
            assert_eq!(peer.new, !device.peers.contains_key(&peer.key));
            let status = device.peers.entry(peer.key).or_default();
            status.endpoint = peer.endpoint.or(status.endpoint);
            if let Some(allowed) = &peer.allowed {
                status.allowed.clone_from(allowed);
            }
            status.keepalive = peer.keepalive.unwrap_or(status.keepalive);
        }
        device
    }

    #[test]
    fn a_new_link_gets_everything_and_then_nothing_more() {
        let change = difference(&wanted(), &WireGuardDevice::default());
        assert_eq!(change.peers.len(), 2);
        assert!(change.peers.iter().all(|peer| peer.new));
        let device = after(WireGuardDevice::default(), &change);
        assert!(difference(&wanted(), &device).is_empty());
    }

    #[test]
    fn only_what_differs_is_changed() {
        let device = after(
            WireGuardDevice::default(),
            &difference(&wanted(), &WireGuardDevice::default()),
        );
        let mut next = wanted();
        next.peers.remove(&key(1));
        next.peers.get_mut(&key(2)).unwrap().keepalive = 0;
        next.peers.insert(key(3), WantedPeer::default());
        let change = difference(&next, &device);
        assert_eq!(change.private_key, None);
        assert_eq!(change.listen_port, None);
        assert_eq!(change.removed, [key(1)]);
        assert_eq!(
            change.peers[0],
            PeerChange {
                key: key(2),
                new: false,
                endpoint: None,
                allowed: None,
                keepalive: Some(0)
            }
        );
        assert!(change.peers[1].new);
        assert!(difference(&next, &after(device, &change)).is_empty());
    }

    #[test]
    fn a_peer_that_moved_is_not_called_back() {
        let mut device = after(
            WireGuardDevice::default(),
            &difference(&wanted(), &WireGuardDevice::default()),
        );
        device.peers.get_mut(&key(1)).unwrap().endpoint =
            Some("198.51.100.9:4000".parse().unwrap());
        let mut next = wanted();
        next.peers.get_mut(&key(1)).unwrap().endpoint = None;
        assert!(difference(&next, &device).is_empty());
        assert_eq!(difference(&wanted(), &device).peers.len(), 1);
    }
}
