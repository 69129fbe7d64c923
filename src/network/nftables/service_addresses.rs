//! Addresses of services: nftables sends each new connection to an instance that serves.
//!
//! The table `inet kat-services` is rendered from `unit-templates/kat-services.nft` and changed as [`table`] says. Connections keep their instance, since the
//! kernel remembers it (conntrack); what it should not remember any more is made to be forgotten here
//! ([`conntrack`](super::conntrack)).

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use ipnet::Ipv4Net;
use serde::Serialize;
use tera::Tera;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    conntrack::{self, ConntrackError, Flow},
    firewall::FirewallError,
    host_ports::HostPortKeeper,
    table::{self, Table},
};
use crate::{
    state::{NodeNetwork, ServicePort, Services, Transport},
    state_files::Snapshot,
};
use kat_daemon::watchdog::Pulse;
use kat_types::services::BackendState;

/// Name of the table.
pub const TABLE: &str = "kat-services";
/// The compiled-in template of the rules.
pub const TEMPLATE: &str = include_str!("../../../unit-templates/kat-services.nft");
/// What an administrator may change; it stands in for the compiled-in template.
const INSTALLED: &str = "/usr/share/kat/unit-templates/kat-services.nft";
/// The rules and what conntrack remembers are looked at again after this time.
const INTERVAL: Duration = Duration::from_secs(25);
/// What failed is tried again after this time.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Chains of ports begin so.
const CHAIN: &str = "to-";

/// Why service addresses are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum BalanceError {
    /// The rules.
    #[error("service addresses: {0}")]
    Rules(#[from] FirewallError),
    /// What the kernel remembers.
    #[error("service addresses: {0}")]
    Conntrack(#[from] ConntrackError),
}

/// Keeps the table, and what the kernel remembers, as the agent's file says.
#[derive(Debug)]
pub struct Balancer {
    template: Cow<'static, str>,
    table: Table,
    host_ports: HostPortKeeper,
    /// What the last look was for, and when it was.
    seen: Option<(Arc<NodeNetwork>, Option<Arc<Services>>, Instant)>,
}

impl Default for Balancer {
    /// With the compiled-in template.
    fn default() -> Self {
        Self {
            template: Cow::Borrowed(TEMPLATE),
            table: Table::new(TABLE, CHAIN),
            host_ports: HostPortKeeper::default(),
            seen: None,
        }
    }
}

impl Balancer {
    /// With the template of the package if it is there, read once.
    pub fn installed() -> Self {
        Self {
            template: table::template(INSTALLED, TEMPLATE),
            host_ports: HostPortKeeper::installed(),
            ..Self::default()
        }
    }

    /// Follows the agent's files until cancelled; what is wrong goes to `trouble`, and is tried again.
    pub async fn keep(
        mut self,
        mut changes: watch::Receiver<Arc<Snapshot>>,
        trouble: watch::Sender<Option<String>>,
        pulse: Pulse,
        cancel: CancellationToken,
    ) {
        loop {
            pulse.beat();
            let snapshot = changes.borrow_and_update().clone();
            let mut problems = Vec::new();
            if let Some(node) = &snapshot.node {
                let services = self.ensure(node, snapshot.services.as_ref()).await;
                problems.extend(services.err().map(|error| error.to_string()));
                pulse.beat();
                let ports = self.host_ports.ensure(node, &snapshot).await;
                problems.extend(ports.err().map(|error| error.to_string()));
            }
            let problem = (!problems.is_empty()).then(|| problems.join("; "));
            let wait = problem.as_ref().map_or(INTERVAL, |_| AFTER_FAILURE);
            trouble.send_if_modified(|before| {
                let changed = *before != problem;
                if let Some(problem) = problem.as_ref().filter(|_| changed) {
                    tracing::warn!("{problem}; trying again");
                }
                *before = problem;
                changed
            });
            pulse.beat();
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Puts the rules in place unless they are, at once after a change and else from time to time.
    /// While the agent has written nothing yet, every service address is refused.
    ///
    /// # Errors
    /// See [`BalanceError`]; the rules from before hold then.
    pub async fn ensure(
        &mut self,
        node: &Arc<NodeNetwork>,
        services: Option<&Arc<Services>>,
    ) -> Result<(), BalanceError> {
        let fresh = self.seen.as_ref().is_some_and(|(known, told, when)| {
            let same = match (told, services) {
                (Some(told), Some(services)) => Arc::ptr_eq(told, services),
                (told, services) => told.is_none() && services.is_none(),
            };
            same && Arc::ptr_eq(known, node) && when.elapsed() < INTERVAL
        });
        if fresh {
            return Ok(());
        }
        self.seen = None;
        let none = Services::default();
        let wanted = services.map_or(&none, Arc::as_ref);
        if self.set_rules(node, wanted).await? {
            tracing::debug!(
                services = wanted.services.len(),
                "put the rules of services in place"
            );
        }
        // Nothing is forgotten on behalf of a file that was not read.
        if services.is_some() {
            self.forget(node, wanted).await?;
        }
        self.seen = Some((Arc::clone(node), services.cloned(), Instant::now()));
        Ok(())
    }

    async fn set_rules(
        &mut self,
        node: &NodeNetwork,
        services: &Services,
    ) -> Result<bool, FirewallError> {
        let values = Values::of(node, services);
        let wanted = values.ports.iter().map(|port| port.chain.as_str());
        let render = |stale| values.render(&self.template, stale);
        self.table.set(&wanted.collect(), render).await
    }

    /// Has the kernel forget which instance a connection is sent to, where that is not to be.
    async fn forget(&self, node: &NodeNetwork, services: &Services) -> Result<(), BalanceError> {
        let parts = parts(services);
        let mut count = 0;
        for flow in conntrack::translated().await? {
            if is_stale(&flow, node.service_cidr, &parts) {
                conntrack::forget(&flow).await?;
                count += 1;
            }
        }
        if count > 0 {
            tracing::info!(count, "connections to instances that are gone begin anew");
        }
        Ok(())
    }
}

/// Removes the table, if there is one.
///
/// # Errors
/// See [`FirewallError`].
pub async fn remove() -> Result<(), FirewallError> {
    table::remove(TABLE).await
}

/// The rules where nothing of before has to go.
///
/// # Errors
/// The template is wrong.
pub fn ruleset(
    template: &str,
    node: &NodeNetwork,
    services: &Services,
) -> Result<String, tera::Error> {
    Values::of(node, services).render(template, Vec::new())
}

#[derive(Debug, Serialize)]
struct Values {
    network: Ipv4Net,
    machine: Ipv4Addr,
    /// Those that somebody serves.
    ports: Vec<PortValues>,
    /// Instances of this machine that may be sent to themselves.
    own: BTreeSet<Ipv4Addr>,
}

#[derive(Debug, Serialize)]
struct PortValues {
    chain: String,
    address: Ipv4Addr,
    protocol: Transport,
    port: u16,
    instances: Vec<Ipv4Addr>,
}

impl Values {
    fn of(node: &NodeNetwork, services: &Services) -> Self {
        let mut ports = Vec::new();
        let mut own = BTreeSet::new();
        for (name, service) in &services.services {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-/".contains(&byte);
            if !name.bytes().all(plain) {
                tracing::error!(name, "a service whose name is none is left out");
                continue;
            }
            for port in &service.ports {
                let instances: Vec<Ipv4Addr> = serving(port).collect();
                if instances.is_empty() {
                    continue;
                }
                own.extend(
                    instances
                        .iter()
                        .filter(|address| node.subnet.contains(*address)),
                );
                let protocol = port.protocol.word();
                ports.push(PortValues {
                    chain: format!("{CHAIN}{name}-{protocol}-{}", port.port),
                    address: service.address,
                    protocol: port.protocol,
                    port: port.port,
                    instances,
                });
            }
        }
        Self {
            network: node.service_cidr.trunc(),
            machine: node.address,
            ports,
            own,
        }
    }

    /// With chains of before that have to go.
    fn render(&self, template: &str, stale: Vec<String>) -> Result<String, tera::Error> {
        let mut templates = Tera::new();
        templates.add_raw_template("kat-services.nft", template)?;
        let mut values = tera::Context::from_serialize(self)?;
        values.insert("stale", &stale);
        templates.render("kat-services.nft", &values)
    }
}

fn serving(port: &ServicePort) -> impl Iterator<Item = Ipv4Addr> {
    let serving = port
        .instances
        .iter()
        .filter(|(_, part)| **part == BackendState::Serving);
    serving.map(|(address, _)| *address)
}

/// Address, transport and port at which a service is called, to its instances.
type PartsByPort<'a> = BTreeMap<(Ipv4Addr, Transport, u16), &'a BTreeMap<Ipv4Addr, BackendState>>;

fn parts(services: &Services) -> PartsByPort<'_> {
    let services = services.services.values();
    let ports = services.flat_map(|service| {
        let ports = service.ports.iter();
        ports.map(|port| ((service.address, port.protocol, port.port), &port.instances))
    });
    ports.collect()
}

/// A connection goes on with an instance that serves or leaves, and with one of which nothing is
/// known. A UDP flow has no end, and its client may never notice: it only stays with those that serve
/// or leave. Once it is forgotten, the next packet is sent elsewhere; a TCP connection ends by that,
/// for its new instance knows nothing of it and resets it. One that both ends have closed is left alone: the
/// kernel takes the next one from that port for a new one by itself, and may have done so before its turn to be
/// forgotten comes, which would reset that one in its middle.
fn is_stale(flow: &Flow, network: Ipv4Net, parts: &PartsByPort<'_>) -> bool {
    let ours = network.contains(&flow.called) && !flow.ended;
    let Some(transport) = flow.transport.filter(|_| ours) else {
        return false;
    };
    let parts = parts.get(&(flow.called, transport, flow.port));
    match parts.and_then(|parts| parts.get(&flow.answers)) {
        Some(BackendState::Serving | BackendState::Leaving) => false,
        Some(BackendState::Held) => transport == Transport::Udp,
        None => true,
    }
}

#[cfg(test)]
mod tests;
