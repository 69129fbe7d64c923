//! One round of `kat-net`: brings the machine in line with the state files.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use crate::{
    containers::attachments::Attachments,
    dns::resolved::ResolvedAnnouncement,
    nftables::firewall::{Firewall, FirewallError, FirewallInput},
    overlay::{kat0::OverlayLink, peers::PeerKeeper},
    silent_peers::watcher::RunningWireGuard,
    state_files::StateFilesSnapshot,
};
use kat_types::machine::network::NodeNetwork;

/// Interval of the checks of the firewall's rules.
const FIREWALL_INTERVAL: Duration = Duration::from_secs(25);

/// The result of a round.
#[derive(Debug, Default)]
pub(super) struct ReconcileOutcome {
    pub status: String,
    /// Whether everything is in place; otherwise the next round comes soon.
    pub settled: bool,
    /// Whether there are peers to check.
    pub peers: bool,
    /// The address at which DNS can be served now.
    pub(crate) dns_address: Option<Ipv4Addr>,
}

/// When the rules were checked, and their input.
struct CheckedRules {
    when: Instant,
    node: Arc<NodeNetwork>,
    input: FirewallInput,
}

/// State that is kept between rounds.
pub(super) struct Reconciler {
    attachments: Arc<Attachments>,
    overlay: OverlayLink,
    firewall: Arc<Firewall>,
    /// The present error of the service addresses.
    services: watch::Receiver<Option<String>>,
    checked: Option<CheckedRules>,
    peers: PeerKeeper,
    /// The settings for systemd-resolved.
    announcement: watch::Sender<Option<ResolvedAnnouncement>>,
    /// The WireGuard of `kat0`, for those that read its counters between rounds.
    wireguard: watch::Sender<RunningWireGuard>,
}

impl Reconciler {
    pub(super) fn new(
        attachments: Arc<Attachments>,
        overlay: OverlayLink,
        firewall: Arc<Firewall>,
        peers: PeerKeeper,
        services: watch::Receiver<Option<String>>,
        announcement: watch::Sender<Option<ResolvedAnnouncement>>,
        wireguard: watch::Sender<RunningWireGuard>,
    ) -> Self {
        Self {
            attachments,
            overlay,
            firewall,
            services,
            checked: None,
            peers,
            announcement,
            wireguard,
        }
    }

    /// The outcome of a round that took too long.
    pub(super) fn gave_up(&self, limit: Duration) -> ReconcileOutcome {
        ReconcileOutcome {
            status: format!(
                "a round did not end within {} s; trying again",
                limit.as_secs()
            ),
            ..ReconcileOutcome::default()
        }
    }

    /// Applies the snapshot. A part that fails does not stop the others.
    pub(super) async fn round(&mut self, snapshot: &StateFilesSnapshot) -> ReconcileOutcome {
        let Some(node) = &snapshot.node else {
            return ReconcileOutcome {
                status: "waiting for node.json: kat-agent has not set up this machine yet".into(),
                ..ReconcileOutcome::default()
            };
        };
        let mut problems = Vec::new();
        if let Err(error) = self.set_firewall(node, snapshot).await {
            problems.push(error.to_string());
        }
        problems.extend(self.services.borrow().clone());
        // Before the steps that may wait for other machines and their names.
        let attached = match self.attachments.restore_all().await {
            Err(error) => {
                problems.push(error.to_string());
                None
            }
            Ok(kept) => {
                problems.extend(without_links(&kept.without));
                let listed = snapshot.instances.is_some();
                listed.then(|| format!("{} containers attached", kept.attached))
            }
        };
        let mut parts = Vec::new();
        let mut dns_address = None;
        let mut peers_settled = true;
        let mut has_peers = false;
        match self.overlay.ensure(node).await {
            Err(error) => problems.push(error.to_string()),
            Ok((link, wireguard)) => {
                dns_address = Some(node.address);
                self.wireguard.send_replace(Some(Arc::clone(&wireguard)));
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
                self.announce(ResolvedAnnouncement {
                    link: link.index,
                    server: node.address,
                    domain: node.cluster_domain.clone(),
                });
            }
        }
        parts.extend(attached);
        let settled = problems.is_empty() && peers_settled;
        let status = match problems.is_empty() {
            true => parts.join(", "),
            false => problems.join("; "),
        };
        ReconcileOutcome {
            status,
            settled,
            peers: has_peers,
            dns_address,
        }
    }

    /// Checks the rules when their input changed, and periodically: a check runs the program `nft`
    /// unless no nftables rule of the machine has changed since the last one.
    async fn set_firewall(
        &mut self,
        node: &Arc<NodeNetwork>,
        snapshot: &StateFilesSnapshot,
    ) -> Result<(), FirewallError> {
        let machines = self.peers.addresses(snapshot.peers.as_deref());
        let input = FirewallInput::new(machines, snapshot.instances.as_deref());
        let same = self
            .checked
            .as_ref()
            .filter(|checked| Arc::ptr_eq(&checked.node, node) && checked.input == input);
        let is_same = same.is_some();
        if same.is_none_or(|checked| checked.when.elapsed() >= FIREWALL_INTERVAL) {
            self.checked = None;
            let in_place = is_same && self.firewall.is_untouched().await;
            if !in_place && self.firewall.ensure(node, &input).await? {
                tracing::info!("put the rules of the firewall in place");
            }
            self.checked = Some(CheckedRules {
                when: Instant::now(),
                node: Arc::clone(node),
                input,
            });
        }
        Ok(())
    }

    fn announce(&self, wanted: ResolvedAnnouncement) {
        self.announcement.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&wanted);
            if changed {
                *current = Some(wanted);
            }
            changed
        });
    }
}

/// A sentence about the containers that run without their links; `None` where there are none.
fn without_links(without: &BTreeMap<String, String>) -> Option<String> {
    let (first, why) = without.first_key_value()?;
    let others = match without.len() {
        1 => String::new(),
        count => format!(" ({} others too)", count - 1),
    };
    Some(format!(
        "the container of {first} runs without its link{others}: {why}"
    ))
}
