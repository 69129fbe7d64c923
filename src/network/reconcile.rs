//! One round of `kat-net`: what the files say against what the machine has.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use super::{
    attach,
    firewall::{Firewall, FirewallError},
    kat0::Overlay,
    links::{Link, LinkError, Links, Target},
    peers::PeerKeeper,
    resolved,
    state::{Instances, NodeNetwork},
    watch::Snapshot,
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
    /// Whether there are peers to look after.
    pub peers: bool,
    /// Where DNS can be served now.
    pub dns_address: Option<Ipv4Addr>,
}

/// Remembers what a round needs of the one before.
pub(super) struct Reconciler {
    links: Links,
    overlay: Overlay,
    firewall: Firewall,
    /// Why services are not balanced as they should be.
    services: watch::Receiver<Option<String>>,
    checked: Option<(Instant, Arc<NodeNetwork>)>,
    peers: PeerKeeper,
    resolved: bool,
    announced: Option<(u32, Ipv4Addr, String, Instant)>,
}

impl Reconciler {
    pub(super) fn new(
        links: Links,
        overlay: Overlay,
        peers: PeerKeeper,
        services: watch::Receiver<Option<String>>,
        resolved: bool,
    ) -> Self {
        Self {
            links,
            overlay,
            firewall: Firewall::installed(),
            services,
            checked: None,
            peers,
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
        problems.extend(self.services.borrow().clone());
        let mut parts = Vec::new();
        let mut dns_address = None;
        let mut peers_settled = true;
        let mut has_peers = false;
        match self.overlay.ensure(node).await {
            Err(error) => problems.push(error.to_string()),
            Ok((link, wireguard)) => {
                dns_address = Some(node.address);
                parts.push(format!("kat0 is up ({})", wireguard.kind()));
                let peers = snapshot.peers.as_deref();
                match self.peers.set(node, peers, wireguard.as_ref()).await {
                    Err(error) => problems.push(error.to_string()),
                    Ok(overview) => {
                        peers_settled = overview.settled;
                        has_peers = overview.all > 0;
                        parts.push(format!(
                            "{} of {} peers connected",
                            overview.connected, overview.all
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
        let settled = problems.is_empty() && peers_settled;
        let status = match problems.is_empty() {
            true => parts.join(", "),
            false => problems.join("; "),
        };
        Outcome {
            status,
            settled,
            peers: has_peers,
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
