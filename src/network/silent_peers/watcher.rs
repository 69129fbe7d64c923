//! The loop that looks at the peers, asks them, and publishes which ones are excluded.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    exclusion::{self, Excluded},
    judgement::{OutsideProbe, PeerLook, PeerTraffic, SilenceJudge, TICK},
    probes::PeerProbes,
};
use crate::{
    overlay::wireguard::{PublicKey, WireGuard, WireGuardDevice, read_private_key},
    state_files::StateFilesSnapshot,
};
use kat_daemon::watchdog::LoopPulse;
use kat_types::machine::network::{
    NodeNetwork, PRIVATE_KEY_FILE, PeerMachine, PeerMachines, node_address,
};

/// Longest wait for WireGuard's counters: a look that takes longer is left out.
const COUNTERS_LIMIT: Duration = Duration::from_millis(300);

/// The running WireGuard, as soon as a round of `kat-net` has found it.
pub(crate) type RunningWireGuard = Option<Arc<dyn WireGuard>>;

/// By name, since when each peer owes an answer.
pub(crate) type OwedAnswers = BTreeMap<String, Instant>;

/// A peer in this machine's list.
#[derive(Debug, Clone)]
struct WatchedPeer {
    name: String,
    address: Ipv4Addr,
    machine: PeerMachine,
}

/// The lists that were last read, and what follows from them.
struct WatchedLists {
    snapshot: Arc<StateFilesSnapshot>,
    node: Arc<NodeNetwork>,
    peers: BTreeMap<PublicKey, WatchedPeer>,
    in_use: BTreeSet<PublicKey>,
}

/// Watches the peers.
pub(crate) struct PeerWatcher {
    /// Folder of this machine's key.
    pub folder: PathBuf,
    pub probes: Arc<dyn PeerProbes>,
    pub wireguard: watch::Receiver<RunningWireGuard>,
    pub files: watch::Receiver<Arc<StateFilesSnapshot>>,
    pub excluded: watch::Sender<Excluded>,
    pub owed: watch::Sender<OwedAnswers>,
}

impl PeerWatcher {
    /// Watches until cancelled.
    pub(crate) async fn watch(mut self, pulse: LoopPulse, cancel: CancellationToken) {
        let mut judge = SilenceJudge::default();
        let mut lists: Option<WatchedLists> = None;
        let mut outside: Option<JoinHandle<OutsideProbe>> = None;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pulse.beat();
            tokio::select! {
                () = cancel.cancelled() => return,
                peer = self.probes.answer() => {
                    judge.answered(&peer, Instant::now());
                    if !self.excluded.borrow().is_empty() {
                        self.publish(&mut judge, lists.as_ref());
                    }
                    continue;
                }
                _ = ticks.tick() => {}
            }
            if let Some(task) = outside.take_if(|task| task.is_finished())
                && let Ok(probe) = task.await
            {
                judge.tried_outside(probe);
            }
            self.follow_lists(&mut lists);
            let Some(lists) = &lists else { continue };
            // Lists that could not be followed are read again at the next tick.
            let latest = self.files.borrow().clone();
            let is_latest = Arc::ptr_eq(&lists.snapshot, &latest);
            let is_alone = lists.peers.is_empty() && judge.peers().is_empty();
            if is_latest && is_alone && outside.is_none() {
                // Nobody is there to look at until the lists change.
                tokio::select! {
                    () = cancel.cancelled() => return,
                    changed = pulse.wait(self.files.changed()) => if changed.is_err() { return },
                }
                ticks.reset_immediately();
                continue;
            }
            let counters = match lists.in_use.is_empty() {
                // Nothing is sent there, so nobody is asked.
                true => WireGuardDevice::default(),
                false => match self.counters().await {
                    Some(counters) => counters,
                    // What is excluded is judged again: this machine's own overlay may hang.
                    None => {
                        self.publish(&mut judge, Some(lists));
                        continue;
                    }
                },
            };
            let due = judge.look(&lists.looks(&counters), Instant::now());
            for key in &due.peers {
                if let Some(peer) = lists.peers.get(key) {
                    self.probes.ask(peer.address);
                }
            }
            if outside.is_none()
                && let Some(key) = due.outside
                && let Some(peer) = lists.peers.get(&key)
            {
                let learned = counters.peers.get(&key).and_then(|status| status.endpoint);
                let targets = targets(&lists.node, &peer.machine, learned);
                let probes = Arc::clone(&self.probes);
                outside = Some(tokio::spawn(async move {
                    let began = Instant::now();
                    let reached = probes.reaches_outside(targets).await;
                    OutsideProbe { began, reached }
                }));
            }
            self.publish(&mut judge, Some(lists));
        }
    }

    fn follow_lists(&mut self, lists: &mut Option<WatchedLists>) {
        let snapshot = self.files.borrow_and_update().clone();
        let known = lists.as_ref();
        if known.is_some_and(|lists| Arc::ptr_eq(&lists.snapshot, &snapshot)) {
            return;
        }
        let (Some(node), Some(peers)) = (&snapshot.node, &snapshot.peers) else {
            return;
        };
        let own = match read_private_key(&self.folder.join(PRIVATE_KEY_FILE)) {
            Ok(own) => own,
            Err(error) => {
                tracing::debug!("peers are not watched: {error}");
                return;
            }
        };
        let next = WatchedLists::new(Arc::clone(&snapshot), node, peers, own.public());
        let addresses: Vec<(Ipv4Addr, PublicKey)> = next
            .peers
            .iter()
            .map(|(key, peer)| (peer.address, *key))
            .collect();
        self.probes.set(&own, node.address, &addresses);
        *lists = Some(next);
    }

    async fn counters(&self) -> Option<WireGuardDevice> {
        let wireguard = self.wireguard.borrow().clone()?;
        match timeout(COUNTERS_LIMIT, wireguard.read()).await {
            Ok(Ok(device)) => Some(device),
            Ok(Err(error)) => {
                tracing::debug!("peers are not watched: {error}");
                None
            }
            Err(_) => None,
        }
    }

    fn publish(&self, judge: &mut SilenceJudge<PublicKey>, lists: Option<&WatchedLists>) {
        let owed = judge.peers().iter().filter_map(|(key, peer)| {
            let peer_of = |lists: &WatchedLists| Some(lists.peers.get(key)?.name.clone());
            Some((lists.and_then(peer_of)?, peer.unanswered?.0))
        });
        let owed: OwedAnswers = owed.collect();
        self.owed.send_if_modified(|current| {
            let changed = *current != owed;
            *current = owed;
            changed
        });
        let silent = judge.judge(Instant::now());
        let peers = silent
            .iter()
            .filter_map(|key| lists.and_then(|lists| lists.peers.get(key)));
        let next: Excluded = peers
            .map(|peer| (peer.name.clone(), peer.machine.subnet.trunc()))
            .collect();
        self.excluded.send_if_modified(|current| {
            if *current == next {
                return false;
            }
            for peer in next.keys().filter(|peer| !current.contains_key(*peer)) {
                tracing::warn!(
                    peer,
                    "does not answer over the overlay; new connections go to other machines where any serves"
                );
            }
            for peer in current.keys().filter(|peer| !next.contains_key(*peer)) {
                tracing::info!(peer, "is sent new connections again");
            }
            *current = next;
            true
        });
    }
}

impl WatchedLists {
    fn new(
        snapshot: Arc<StateFilesSnapshot>,
        node: &Arc<NodeNetwork>,
        machines: &PeerMachines,
        own: PublicKey,
    ) -> Self {
        let used: BTreeSet<&str> = exclusion::in_use(&snapshot, machines).collect();
        let mut peers = BTreeMap::new();
        let mut in_use = BTreeSet::new();
        for (name, machine) in &machines.peers {
            // An invalid key is named by the round that sets the peers.
            let Ok(key) = machine.public_key.parse::<PublicKey>() else {
                continue;
            };
            if key == own {
                continue;
            }
            if used.contains(name.as_str()) {
                in_use.insert(key);
            }
            let peer = WatchedPeer {
                name: name.clone(),
                address: node_address(machine.subnet),
                machine: machine.clone(),
            };
            peers.insert(key, peer);
        }
        drop(used);
        Self {
            snapshot,
            node: Arc::clone(node),
            peers,
            in_use,
        }
    }

    fn looks(&self, counters: &WireGuardDevice) -> BTreeMap<PublicKey, PeerLook> {
        let looks = self.peers.iter().map(|(key, peer)| {
            let status = counters.peers.get(key);
            let traffic = status.filter(|_| peer.machine.via.is_none());
            let look = PeerLook {
                in_use: self.in_use.contains(key),
                traffic: traffic.map(|status| PeerTraffic {
                    sent: status.sent,
                    received: status.received,
                }),
            };
            (*key, look)
        });
        looks.collect()
    }
}

/// Where a machine can be tried outside the overlay: at the ports of its services, at the addresses
/// in the list and at the one that WireGuard has learned.
fn targets(
    node: &NodeNetwork,
    machine: &PeerMachine,
    learned: Option<SocketAddr>,
) -> Vec<SocketAddr> {
    let listed = machine.endpoints.iter();
    let listed = listed.filter_map(|endpoint| endpoint.parse::<SocketAddr>().ok());
    let addresses: BTreeSet<IpAddr> = listed.chain(learned).map(|one| one.ip()).collect();
    let targets = addresses.iter().flat_map(|address| {
        let ports = node.control_ports.iter();
        ports.map(|port| SocketAddr::new(*address, *port))
    });
    targets.collect()
}

#[cfg(test)]
mod tests;
