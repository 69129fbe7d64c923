//! Updates the peers of `kat0` from `peers.json`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    path::PathBuf,
    sync::Arc,
};

use ipnet::Ipv4Net;
use tokio::{sync::watch, time::Instant};

use super::{
    announce::AnnouncementSchedule,
    wireguard::{
        ClockMoment, DesiredLink, EndpointAttempt, EndpointTracker, KeyError, PublicKey,
        WantedPeer, WireGuard, WireGuardDevice, WireGuardError, difference, read_private_key,
        resolve,
    },
};
use crate::{
    overlay::{
        announce::sockets::Announcer, local_addresses as local, local_addresses::LocalAddress,
        state_file as overlay_state,
    },
    run_file,
    silent_peers::watcher::OwedAnswers,
};
use kat_types::machine::network::{
    NodeNetwork, OverlayState, PRIVATE_KEY_FILE, PeerMachine, PeerMachines, PeerState,
};

/// The discard port (RFC 863), on which no program listens.
const DISCARD_PORT: u16 = 9;

/// Why the peers could not be updated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeersError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    WireGuard(#[from] WireGuardError),
}

/// Summary of the peers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overview {
    /// Number of peers that are reached directly.
    pub all: usize,
    /// Number of peers with a session.
    pub connected: usize,
    /// No peer is missing or owes an answer.
    pub settled: bool,
}

/// Decisions about the peers.
#[derive(Default)]
struct PeerDecisions {
    wanted: BTreeMap<PublicKey, WantedPeer>,
    /// Peers that a packet has to be sent to.
    asked: BTreeSet<PublicKey>,
    /// Names were resolved, which takes some time.
    looked_up: bool,
}

/// Keeps the peers up to date, and searches for those that do not answer.
pub(crate) struct PeerKeeper {
    folder: PathBuf,
    tracker: EndpointTracker,
    announcer: Arc<Announcer>,
    schedule: AnnouncementSchedule,
    /// File with the state of the peers for the agent.
    report: Option<PathBuf>,
    /// The machine's own addresses at the last check.
    own: Option<Vec<LocalAddress>>,
    /// Last addresses of the peers with a session.
    reached: BTreeSet<IpAddr>,
    /// The peers that owe an answer to a probe.
    owed: watch::Receiver<OwedAnswers>,
}

impl PeerKeeper {
    /// Uses the key in `folder`; `report` is the file with the state of the peers.
    pub(crate) fn new(
        folder: PathBuf,
        announcer: Arc<Announcer>,
        report: Option<PathBuf>,
        owed: watch::Receiver<OwedAnswers>,
    ) -> Self {
        Self {
            folder,
            tracker: EndpointTracker::default(),
            announcer,
            schedule: AnnouncementSchedule::default(),
            report,
            own: None,
            reached: BTreeSet::new(),
            owed,
        }
    }

    /// Addresses of the other machines outside the overlay: those in the list, and those where the
    /// others were reached, since names are only resolved while a peer is missing.
    pub(crate) fn addresses(&self, peers: Option<&PeerMachines>) -> BTreeSet<IpAddr> {
        let peers = peers.into_iter().flat_map(|peers| peers.peers.values());
        let named = peers
            .flat_map(|peer| &peer.endpoints)
            .filter_map(|endpoint| endpoint.parse().ok())
            .map(|endpoint: SocketAddr| endpoint.ip());
        let all = named.chain(self.reached.iter().copied());
        all.filter(local::is_meaningful).collect()
    }

    /// Updates the peers from `peers`; without a list no peer is removed.
    pub(crate) async fn set(
        &mut self,
        node: &NodeNetwork,
        peers: Option<&PeerMachines>,
        wireguard: &dyn WireGuard,
    ) -> Result<Overview, PeersError> {
        let private_key = read_private_key(&self.folder.join(PRIVATE_KEY_FILE))?;
        let actual = wireguard.read().await?;
        let by_key = peers.map(|peers| by_key(peers, private_key.public()));
        if let Some(by_key) = &by_key {
            let keys = by_key.keys().copied();
            self.announcer.set(&private_key, node, keys);
        }
        let chosen = match &by_key {
            Some(by_key) => self.choose(by_key, &actual).await,
            None => PeerDecisions::default(),
        };
        let PeerDecisions {
            wanted: mut peers,
            asked,
            looked_up,
        } = chosen;
        let before = actual;
        let actual = match looked_up {
            // A peer that sent packets meanwhile keeps the endpoint that WireGuard learned from
            // them.
            true => wireguard.read().await?,
            false => before.clone(),
        };
        for (key, peer) in &mut peers {
            let received =
                |device: &WireGuardDevice| device.peers.get(key).map(|status| status.received);
            peer.endpoint = peer
                .endpoint
                .filter(|_| received(&before) == received(&actual));
        }
        let wanted = DesiredLink {
            private_key,
            listen_port: node.wireguard_port,
            peers,
        };
        let mut change = difference(&wanted, &actual);
        if by_key.is_none() {
            change.removed.clear();
        }
        wireguard.apply(&change).await?;
        let by_key = by_key.unwrap_or_default();
        let moved = self.has_moved();
        nudge(&by_key, &asked, moved);
        self.announce(node, &by_key, moved);
        self.write_overlay_state(&by_key, &actual);
        let sessions = actual.peers.values().filter(|peer| peer.is_connected());
        self.reached = sessions
            .filter_map(|peer| Some(peer.endpoint?.ip()))
            .collect();
        let status = |key: &PublicKey| actual.peers.get(key);
        let connected = by_key
            .keys()
            .filter(|key| status(key).is_some_and(|status| status.is_connected()));
        let direct = by_key
            .values()
            .filter(|(_, peer)| !is_relayed(&by_key, peer));
        Ok(Overview {
            all: direct.count(),
            connected: connected.count(),
            settled: self.tracker.is_settled(),
        })
    }

    /// The wanted state of each peer, and the endpoints to try for those that do not answer.
    async fn choose(&mut self, by_key: &PeersByKey<'_>, actual: &WireGuardDevice) -> PeerDecisions {
        let moment = ClockMoment::now();
        let mut wanted = BTreeMap::new();
        let mut asked = BTreeSet::new();
        let mut attempts = Vec::new();
        let mut relayed = relayed(by_key);
        for (key, (name, peer)) in by_key {
            if is_relayed(by_key, peer) {
                continue;
            }
            let status = actual.peers.get(key);
            // A peer's own announcement is newer than the list that this machine last read from the
            // leader.
            let mut endpoints = self.announcer.endpoints_heard_from(key);
            for endpoint in &peer.endpoints {
                if !endpoints.contains(endpoint) {
                    endpoints.push(endpoint.clone());
                }
            }
            let choice = self.tracker.choose(*key, &endpoints, status, moment);
            asked.extend(choice.ask.then_some(*key));
            attempts.extend(choice.attempt.map(|attempt| (*key, attempt)));
            let mut allowed = relayed.remove(name).unwrap_or_default();
            allowed.insert(peer.subnet.trunc());
            let one = WantedPeer {
                endpoint: None,
                allowed,
                keepalive: peer.keepalive,
            };
            wanted.insert(*key, one);
        }
        self.tracker.retain_peers(|key| wanted.contains_key(key));
        let is_name = |attempt: &EndpointAttempt| attempt.endpoint.parse::<SocketAddr>().is_err();
        let looked_up = attempts.iter().any(|(_, attempt)| is_name(attempt));
        let resolving = attempts
            .iter()
            .map(|(key, attempt)| async move { (*key, resolve(attempt).await) });
        for (key, endpoint) in futures_util::future::join_all(resolving).await {
            if endpoint.is_none() {
                self.tracker.not_resolved(&key);
            }
            if let Some(peer) = wanted.get_mut(&key) {
                peer.endpoint = endpoint;
            }
        }
        PeerDecisions {
            wanted,
            asked,
            looked_up,
        }
    }

    fn write_overlay_state(&self, by_key: &PeersByKey<'_>, actual: &WireGuardDevice) {
        let Some(path) = &self.report else { return };
        let owed = self.owed.borrow().clone();
        let now = Instant::now();
        let unanswered = |name: &str| {
            let since = owed.get(name)?;
            u32::try_from(now.saturating_duration_since(*since).as_secs()).ok()
        };
        let peers = by_key.iter().map(|(key, (name, peer))| {
            let state = actual.peers.get(key).map(overlay_state::of);
            let state = PeerState {
                unanswered_seconds: unanswered(name),
                via: peer.via.clone().filter(|_| is_relayed(by_key, peer)),
                ..state.unwrap_or_default()
            };
            ((*name).to_owned(), state)
        });
        let state = OverlayState {
            schema: 1,
            peers: peers.collect(),
        };
        if let Err(error) = run_file::write(path, &state) {
            tracing::warn!("{}: {error}", path.display());
        }
    }

    /// Whether the machine's addresses differ from those at the last check; also true at the first
    /// check.
    fn has_moved(&mut self) -> bool {
        let own = local::addresses();
        let moved = self.own.as_ref() != Some(&own);
        if moved && self.own.is_some() {
            tracing::info!("this machine's addresses changed; telling its peers");
        }
        self.own = Some(own);
        moved
    }

    /// Announces this machine's addresses on the LAN: to missing peers, and to all peers after a
    /// change.
    fn announce(&mut self, node: &NodeNetwork, by_key: &PeersByKey<'_>, moved: bool) {
        let mut missing: Vec<PublicKey> = self.tracker.missing().collect();
        let now = Instant::now();
        if self.schedule.is_due(!missing.is_empty(), moved, now) {
            if moved {
                missing = by_key.keys().copied().collect();
            }
            let own = self.own.as_deref().unwrap_or_default();
            self.announcer.send(node.wireguard_port, own, &missing);
        }
    }
}

/// Sends a byte to the overlay addresses of peers, whose machines answer that the port is closed.
/// After a change of addresses every peer learns the new endpoint from it, since WireGuard follows
/// the sender's address.
fn nudge(by_key: &PeersByKey<'_>, asked: &BTreeSet<PublicKey>, moved: bool) {
    let chosen = by_key
        .iter()
        .filter(|(key, _)| moved || asked.contains(key));
    let addresses: Vec<Ipv4Addr> = chosen
        .filter_map(|(_, (_, peer))| peer.subnet.trunc().hosts().next())
        .collect();
    if let Err(error) = send_to_each(&addresses) {
        tracing::debug!("peers were not nudged: {error}");
    }
}

type PeersByKey<'a> = BTreeMap<PublicKey, (&'a str, &'a PeerMachine)>;

/// Whether packets to the peer go through a relay. A relay that is missing, or that needs a relay
/// itself, does not count.
fn is_relayed(by_key: &PeersByKey<'_>, peer: &PeerMachine) -> bool {
    let Some(via) = &peer.via else { return false };
    let relays = |other: &PeerMachine| other.via.is_none();
    by_key
        .values()
        .any(|(name, other)| name == via && relays(other))
}

/// The subnets behind each relay, beside its own.
fn relayed<'a>(by_key: &PeersByKey<'a>) -> BTreeMap<&'a str, BTreeSet<Ipv4Net>> {
    let mut found: BTreeMap<&str, BTreeSet<Ipv4Net>> = BTreeMap::new();
    for (_, peer) in by_key.values().filter(|(_, peer)| is_relayed(by_key, peer)) {
        if let Some(via) = &peer.via {
            found.entry(via).or_default().insert(peer.subnet.trunc());
        }
    }
    found
}

/// The other machines by their keys; an invalid entry is left out.
fn by_key(peers: &PeerMachines, own: PublicKey) -> PeersByKey<'_> {
    let mut found = BTreeMap::new();
    for (name, peer) in &peers.peers {
        match peer.public_key.parse::<PublicKey>() {
            Ok(key) if key == own => {}
            Ok(key) => {
                if found.insert(key, (name.as_str(), peer)).is_some() {
                    tracing::warn!(peer = name, "another peer has the same key");
                }
            }
            Err(error) => tracing::warn!(peer = name, "{error}"),
        }
    }
    found
}

/// Sends a byte to the discard port of each address. After an error the others are still sent.
fn send_to_each(addresses: &[Ipv4Addr]) -> io::Result<()> {
    if addresses.is_empty() {
        return Ok(());
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_nonblocking(true)?;
    let mut outcome = Ok(());
    for address in addresses {
        let target = SocketAddrV4::new(*address, DISCARD_PORT);
        if let Err(error) = socket.send_to(&[0], target) {
            outcome = Err(error);
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::*;
    use crate::overlay::wireguard::{LinkChanges, PeerStatus, PrivateKey};

    fn no_answer_is_owed() -> watch::Receiver<OwedAnswers> {
        watch::Sender::default().subscribe()
    }

    fn peers(list: &[(&str, u8, Option<&str>)]) -> PeerMachines {
        let peers = list.iter().map(|(name, number, via)| {
            let peer = PeerMachine {
                public_key: PrivateKey::from_bytes([*number; 32]).public().to_string(),
                endpoints: vec![format!("192.0.2.{number}:51820")],
                subnet: format!("10.90.{number}.0/24").parse().unwrap(),
                keepalive: 25,
                via: via.map(str::to_owned),
            };
            ((*name).to_owned(), peer)
        });
        PeerMachines {
            schema: 1,
            peers: peers.collect(),
        }
    }

    /// By peer, the third byte of each overlay network behind the peer.
    async fn allowed(peers: &PeerMachines) -> Vec<(String, Vec<u8>)> {
        let own = PrivateKey::from_bytes([99; 32]).public();
        let by_key = by_key(peers, own);
        let folder = PathBuf::new();
        let mut keeper = PeerKeeper::new(folder, Arc::default(), None, no_answer_is_owed());
        let chosen = keeper.choose(&by_key, &WireGuardDevice::default()).await;
        let mut found: Vec<_> = chosen
            .wanted
            .iter()
            .map(|(key, peer)| {
                let third = |net: &Ipv4Net| net.addr().octets()[2];
                let name = by_key[key].0.to_owned();
                (name, peer.allowed.iter().map(third).collect())
            })
            .collect();
        found.sort();
        found
    }

    #[tokio::test]
    async fn what_is_behind_a_relay_is_the_relays() {
        let list = peers(&[
            ("n1", 1, None),
            ("n2", 2, Some("n1")),
            ("n3", 3, Some("n1")),
            ("n4", 4, None),
        ]);
        let expected = [("n1".to_owned(), vec![1, 2, 3]), ("n4".to_owned(), vec![4])];
        assert_eq!(allowed(&list).await, expected);
    }

    /// A WireGuard that receives a call from its peer after its first read.
    #[derive(Default)]
    struct Called {
        peer: Option<PublicKey>,
        reads: Mutex<u64>,
        changes: Mutex<Vec<LinkChanges>>,
    }

    #[async_trait]
    impl WireGuard for Called {
        async fn read(&self) -> Result<WireGuardDevice, WireGuardError> {
            let mut reads = self.reads.lock();
            *reads += 1;
            let status = PeerStatus {
                endpoint: "198.51.100.9:4000".parse().ok(),
                received: 148 * (*reads - 1),
                ..PeerStatus::default()
            };
            Ok(WireGuardDevice {
                peers: self.peer.map(|peer| (peer, status)).into_iter().collect(),
                ..WireGuardDevice::default()
            })
        }

        async fn apply(&self, change: &LinkChanges) -> Result<(), WireGuardError> {
            self.changes.lock().push(change.clone());
            Ok(())
        }

        fn kind(&self) -> &'static str {
            "a test's"
        }
    }

    /// The test needs root, because it creates a network namespace: otherwise this machine would
    /// announce itself to the peers.
    #[test]
    fn a_peer_that_calls_during_a_name_lookup_keeps_the_endpoint_it_called_from() {
        let thread = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(calls_while_looked_up());
        });
        thread.join().unwrap();
    }

    async fn calls_while_looked_up() {
        let folder = tempfile::tempdir().unwrap();
        let own = PrivateKey::from_bytes([99; 32]);
        std::fs::write(folder.path().join(PRIVATE_KEY_FILE), own.to_base64()).unwrap();
        let mut list = peers(&[("n1", 1, None)]);
        let node = NodeNetwork {
            schema: 1,
            node: "n9".into(),
            cluster_cidr: "10.90.0.0/16".parse().unwrap(),
            service_cidr: "10.91.0.0/16".parse().unwrap(),
            subnet: "10.90.9.0/24".parse().unwrap(),
            address: Ipv4Addr::new(10, 90, 9, 1),
            cluster_domain: "cluster.kat".into(),
            wireguard_port: 51820,
            mtu: 1420,
            upstream_dns: Vec::new(),
            control_ports: kat_types::machine::network::control_ports(),
            api_port: None,
            hold_seconds: 60,
            relay: false,
        };
        for (endpoint, expected) in [
            ("192.0.2.1:51820", "192.0.2.1:51820".parse().ok()),
            ("localhost:51820", None),
        ] {
            for peer in list.peers.values_mut() {
                peer.endpoints = vec![endpoint.to_owned()];
            }
            let wireguard = Called {
                peer: Some(PrivateKey::from_bytes([1; 32]).public()),
                ..Called::default()
            };
            let folder = folder.path().to_owned();
            let mut keeper = PeerKeeper::new(folder, Arc::default(), None, no_answer_is_owed());
            keeper.set(&node, Some(&list), &wireguard).await.unwrap();
            let changes = wireguard.changes.lock();
            assert_eq!(changes[0].peers[0].endpoint, expected, "{endpoint}");
        }
    }

    #[tokio::test]
    async fn without_its_relay_a_machine_is_tried_directly() {
        let list = peers(&[
            ("n2", 2, Some("n1")),
            ("n3", 3, Some("n2")),
            ("n4", 4, Some("n4")),
        ]);
        let expected = [("n2", 2), ("n3", 3), ("n4", 4)];
        let expected = expected.map(|(name, third)| (name.to_owned(), vec![third]));
        assert_eq!(allowed(&list).await, expected);
    }
}
