//! The fake of `kat-net` of a machine: whether the other machines answer its probes over the
//! overlay. It runs from the boot on, whatever happens to the agent.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::faults::network_faults::Way;
use kat_testing::MemoryStore;
use kat_types::{
    api::{OverlayPeer, OverlayReport, OverlayStatus},
    store::keys,
};

/// Time between two probes. `kat-net` asks a peer that owes an answer more often; reports say whole
/// seconds.
const PROBE: Duration = Duration::from_secs(1);

/// The data path of one boot of a machine.
pub(crate) struct DataPath {
    peers: Arc<Probes>,
    probing: JoinHandle<()>,
}

struct Probes {
    machine: String,
    ways: BTreeMap<String, Arc<Way>>,
    store: MemoryStore,
    /// Since when each peer has answered nothing.
    unanswered: Mutex<BTreeMap<String, Instant>>,
}

impl DataPath {
    /// `ways` are the paths of all machines.
    pub(crate) fn start(
        machine: &str,
        ways: BTreeMap<String, Arc<Way>>,
        store: &MemoryStore,
    ) -> Self {
        let peers = Arc::new(Probes {
            machine: machine.to_owned(),
            ways,
            store: store.clone(),
            unanswered: Mutex::default(),
        });
        let prober = Arc::clone(&peers);
        let probing = tokio::spawn(async move {
            loop {
                prober.probe();
                sleep(PROBE).await;
            }
        });
        Self { peers, probing }
    }

    /// What `kat-net` says of the overlay.
    pub(crate) fn report(&self) -> OverlayReport {
        let unanswered = self.peers.unanswered.lock();
        let peers = self.peers.names().map(|name| {
            let since = unanswered.get(name);
            let seconds = since.and_then(|since| u32::try_from(since.elapsed().as_secs()).ok());
            OverlayPeer {
                name: name.clone(),
                connected: seconds.is_none(),
                unanswered_seconds: seconds,
                ..OverlayPeer::default()
            }
        });
        OverlayReport {
            status: OverlayStatus::Connected,
            peers: peers.collect(),
            ..OverlayReport::default()
        }
    }
}

impl Drop for DataPath {
    fn drop(&mut self) {
        self.probing.abort();
    }
}

impl Probes {
    /// The other machines of the cluster.
    fn names(&self) -> impl Iterator<Item = &String> {
        let others = self.ways.keys().filter(|name| **name != self.machine);
        others.filter(|name| {
            let key = keys::registration(name);
            !self.store.peek(&key).items.is_empty()
        })
    }

    fn probe(&self) {
        let carries = |name: &str| {
            let way = self.ways[name].now();
            !way.overlay_cut && !way.machines_cut && !way.off
        };
        let own = carries(&self.machine);
        let mut unanswered = self.unanswered.lock();
        for name in self.names() {
            if own && carries(name) {
                unanswered.remove(name);
            } else {
                unanswered.entry(name.clone()).or_insert_with(Instant::now);
            }
        }
    }
}
