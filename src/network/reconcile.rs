//! One round of `kat-net`: what the files say against what the machine has.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    attach,
    firewall::{Firewall, FirewallError},
    kat0::Overlay,
    links::{Link, LinkError, Links, Target},
    resolved,
    state::{Instances, NodeNetwork, PRIVATE_KEY_FILE, Peers},
    watch::Snapshot,
    wireguard::{
        PublicKey, Tracker, Wanted, WantedPeer, WireGuard, difference, read_private_key, resolve,
    },
};

/// systemd-resolved is told again after this time, in case that it was restarted.
const RESOLVED_INTERVAL: Duration = Duration::from_secs(300);
/// The firewall's rules are looked at again after this time.
const FIREWALL_INTERVAL: Duration = Duration::from_secs(25);

/// What a round came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// A line for `systemctl status`.
    pub status: String,
    /// Whether everything is as it should be; if not, the next round comes soon.
    pub settled: bool,
    /// Where DNS can be served now.
    pub dns_address: Option<Ipv4Addr>,
}

/// Remembers what a round needs of the one before.
pub(super) struct Reconciler {
    folder: PathBuf,
    links: Links,
    overlay: Overlay,
    firewall: Firewall,
    checked: Option<(Instant, Arc<NodeNetwork>)>,
    tracker: Tracker,
    resolved: bool,
    announced: Option<(u32, Ipv4Addr, String, Instant)>,
}

/// How many peers there are and have a session.
#[derive(Debug, Clone, Copy, Default)]
struct PeerCount {
    all: usize,
    connected: usize,
}

impl Reconciler {
    pub(super) fn new(folder: PathBuf, links: Links, overlay: Overlay, resolved: bool) -> Self {
        Self {
            folder,
            links,
            overlay,
            firewall: Firewall::installed(),
            checked: None,
            tracker: Tracker::default(),
            resolved,
            announced: None,
        }
    }

    /// What is said when a round did not end.
    pub(super) fn gave_up(&self, limit: Duration) -> Outcome {
        Outcome {
            status: format!(
                "a round did not end within {} s; trying again",
                limit.as_secs()
            ),
            ..Outcome::default()
        }
    }

    /// Makes everything as the snapshot says. A part that fails does not stop the others.
    pub(super) async fn round(&mut self, snapshot: &Snapshot) -> Outcome {
        let Some(node) = &snapshot.node else {
            return Outcome {
                status: "waiting for node.json: kat-agent has not set up this machine yet".into(),
                ..Outcome::default()
            };
        };
        let mut problems = Vec::new();
        if let Err(error) = self.set_firewall(node).await {
            problems.push(error.to_string());
        }
        let mut parts = Vec::new();
        let mut dns_address = None;
        let mut all_connected = true;
        match self.overlay.ensure(node).await {
            Err(error) => problems.push(error.to_string()),
            Ok((link, wireguard)) => {
                dns_address = Some(node.address);
                parts.push(format!("kat0 is up ({})", wireguard.kind()));
                let peers = snapshot.peers.as_deref();
                match self.set_peers(node, peers, wireguard.as_ref()).await {
                    Err(error) => problems.push(error),
                    Ok(count) => {
                        all_connected = count.all == count.connected;
                        parts.push(format!(
                            "{} of {} peers connected",
                            count.connected, count.all
                        ));
                    }
                }
                self.announce(node, &link).await;
            }
        }
        if let Some(instances) = &snapshot.instances {
            match self.set_instances(instances).await {
                Err(error) => problems.push(error.to_string()),
                Ok(count) => parts.push(format!("{count} containers attached")),
            }
        }
        let settled = problems.is_empty() && all_connected;
        let status = match problems.is_empty() {
            true => parts.join(", "),
            false => problems.join("; "),
        };
        Outcome {
            status,
            settled,
            dns_address,
        }
    }

    /// Looks at the rules when the node changed, and from time to time: `nft` is a program.
    async fn set_firewall(&mut self, node: &Arc<NodeNetwork>) -> Result<(), FirewallError> {
        let fresh = self.checked.as_ref().is_some_and(|(when, seen)| {
            when.elapsed() < FIREWALL_INTERVAL && Arc::ptr_eq(seen, node)
        });
        if !fresh {
            self.checked = None;
            if self.firewall.ensure(node).await? {
                tracing::info!("put the rules of the firewall in place");
            }
            self.checked = Some((Instant::now(), Arc::clone(node)));
        }
        Ok(())
    }

    async fn set_peers(
        &mut self,
        node: &NodeNetwork,
        peers: Option<&Peers>,
        wireguard: &dyn WireGuard,
    ) -> Result<PeerCount, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let private_key =
            read_private_key(&self.folder.join(PRIVATE_KEY_FILE)).map_err(|error| text(&error))?;
        let own = private_key.public();
        let actual = wireguard.read().await.map_err(|error| text(&error))?;
        let mut wanted = BTreeMap::new();
        let mut attempts = Vec::new();
        // Without a list of peers nobody is removed.
        let Some(peers) = peers else {
            let keep = Wanted {
                private_key,
                listen_port: node.wireguard_port,
                peers: BTreeMap::new(),
            };
            let mut change = difference(&keep, &actual);
            change.removed.clear();
            wireguard
                .apply(&change)
                .await
                .map_err(|error| text(&error))?;
            return Ok(PeerCount::default());
        };
        for (name, peer) in &peers.peers {
            let key: PublicKey = match peer.public_key.parse() {
                Ok(key) if key == own => continue,
                Ok(key) => key,
                Err(error) => {
                    tracing::warn!(peer = name, "{error}");
                    continue;
                }
            };
            let status = actual.peers.get(&key);
            let attempt = self
                .tracker
                .choose(key, &peer.endpoints, status, Instant::now());
            attempts.extend(attempt.map(|attempt| (key, attempt)));
            let one = WantedPeer {
                endpoint: None,
                allowed: BTreeSet::from([peer.subnet.trunc()]),
                keepalive: peer.keepalive,
            };
            if wanted.insert(key, one).is_some() {
                tracing::warn!(peer = name, "another peer has the same key");
            }
        }
        self.tracker.keep(|key| wanted.contains_key(key));
        let resolving = attempts
            .iter()
            .map(|(key, attempt)| async move { (*key, resolve(attempt).await) });
        for (key, endpoint) in futures_util::future::join_all(resolving).await {
            if let Some(peer) = wanted.get_mut(&key) {
                peer.endpoint = endpoint;
            }
        }
        let count = PeerCount {
            all: wanted.len(),
            connected: wanted
                .keys()
                .filter_map(|key| actual.peers.get(key))
                .filter(|status| status.is_connected())
                .count(),
        };
        let wanted = Wanted {
            private_key,
            listen_port: node.wireguard_port,
            peers: wanted,
        };
        let change = difference(&wanted, &actual);
        wireguard
            .apply(&change)
            .await
            .map_err(|error| text(&error))?;
        Ok(count)
    }

    /// Removes links of instances that are gone, and puts back routes that somebody took.
    async fn set_instances(&self, instances: &Instances) -> Result<usize, LinkError> {
        let keep = instances.instances.keys().map(String::as_str).collect();
        for instance in attach::sweep(&self.links, &keep).await? {
            tracing::info!(instance, "removed the link of an instance that is gone");
        }
        let routes = self.links.routes().await?;
        let mut count = 0;
        for link in self.links.all().await? {
            let Some(instance) = attach::instance_of(&link) else {
                continue;
            };
            let Some(known) = instances.instances.get(instance) else {
                continue;
            };
            count += 1;
            let net = known.address.into();
            if link.up && !routes.contains(&(net, Some(link.index))) {
                tracing::info!(instance, "put back the route of an instance");
                self.links.set_route(net, Target::Link(link.index)).await?;
            }
        }
        Ok(count)
    }

    async fn announce(&mut self, node: &Arc<NodeNetwork>, link: &Link) {
        if !self.resolved || !resolved::is_running() {
            return;
        }
        let (index, address, domain) = (link.index, node.address, &node.cluster_domain);
        let same = self
            .announced
            .as_ref()
            .is_some_and(|(at, server, name, when)| {
                (*at, *server, name) == (index, address, domain)
                    && when.elapsed() < RESOLVED_INTERVAL
            });
        if same {
            return;
        }
        match resolved::announce(index, address, domain).await {
            Ok(()) => self.announced = Some((index, address, domain.clone(), Instant::now())),
            Err(error) => tracing::warn!("systemd-resolved was not told: {error}"),
        }
    }
}
