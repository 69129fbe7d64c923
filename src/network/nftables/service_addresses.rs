//! Service addresses: nftables forwards each new connection to an instance that serves.
//!
//! The table `inet kat-services` is rendered from `unit-templates/kat-services.nft` and changed as
//! described in [`table`]. Connections keep their instance through the kernel's connection tracking
//! (conntrack); outdated entries are deleted here ([`conntrack`](super::conntrack)).

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
    conntrack::{self, Flow},
    firewall::FirewallError,
    host_ports::HostPortKeeper,
    netfilter::NetfilterError,
    rule_changes::RulesetChanges,
    table::{self, PortChainTable, TableChange},
};
use crate::{
    isolation::enforcement::{EnforcedIsolation, IsolationKeeper},
    state_files::StateFilesSnapshot,
};
use kat_daemon::watchdog::LoopPulse;
use kat_types::{
    machine::network::{NodeNetwork, ServicePortBackends, Services, Transport},
    services::BackendState,
};

/// Name of the table.
pub(crate) const TABLE: &str = "kat-services";
/// The compiled-in template of the rules.
pub const TEMPLATE: &str = include_str!("../../../unit-templates/kat-services.nft");
/// Path of the packaged template, which an administrator may change; it replaces the compiled-in
/// one.
const INSTALLED: &str = "/usr/share/kat/unit-templates/kat-services.nft";
/// Interval of the checks of the rules and of conntrack.
const INTERVAL: Duration = Duration::from_secs(25);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Prefix of the chains of ports.
const CHAIN: &str = "to-";

/// Why the service addresses could not be updated.
#[derive(Debug, thiserror::Error)]
pub enum BalanceError {
    #[error("service addresses: {0}")]
    Rules(#[from] FirewallError),
    #[error("service addresses: {0}")]
    Conntrack(#[from] NetfilterError),
}

/// Keeps the table and the kernel's connection tracking in line with the agent's file.
#[derive(Debug)]
pub struct ServiceBalancer {
    template: Cow<'static, str>,
    table: PortChainTable,
    host_ports: HostPortKeeper,
    isolation: IsolationKeeper,
    /// Input and time of the last check.
    seen: Option<(Arc<NodeNetwork>, Option<Arc<Services>>, Instant)>,
    /// The rules were missing, and connections that began without them were not looked for since.
    were_missing: bool,
}

impl Default for ServiceBalancer {
    /// Uses the compiled-in template.
    fn default() -> Self {
        Self {
            template: Cow::Borrowed(TEMPLATE),
            table: PortChainTable::new(TABLE, CHAIN),
            host_ports: HostPortKeeper::default(),
            isolation: IsolationKeeper::default(),
            seen: None,
            were_missing: false,
        }
    }
}

impl ServiceBalancer {
    /// Uses the packaged templates if they exist, read once; publishes to `enforced` what of isolation
    /// is in force.
    pub fn installed(enforced: watch::Sender<EnforcedIsolation>) -> Self {
        Self {
            template: table::template(INSTALLED, TEMPLATE),
            host_ports: HostPortKeeper::installed(),
            isolation: IsolationKeeper::installed(enforced),
            ..Self::default()
        }
    }

    /// Follows the agent's files until cancelled; errors are sent to `trouble`, and retried. The
    /// rules are checked at once when `foreign` changes.
    pub(crate) async fn follow_files(
        mut self,
        mut changes: watch::Receiver<Arc<StateFilesSnapshot>>,
        mut foreign: watch::Receiver<RulesetChanges>,
        trouble: watch::Sender<Option<String>>,
        pulse: LoopPulse,
        cancel: CancellationToken,
    ) {
        let mut restored = 0;
        loop {
            pulse.beat();
            let snapshot = changes.borrow_and_update().clone();
            let mut problems = Vec::new();
            if let Some(node) = &snapshot.node {
                // First: a new instance is known before anybody is sent to it.
                let isolation = self.isolation.ensure(node, &snapshot).await;
                problems.extend(isolation.err().map(|error| error.to_string()));
                pulse.beat();
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
                // Without its sender the rules are still checked periodically.
                Ok(()) = foreign.changed() => {
                    let seen = foreign.borrow_and_update().seen;
                    let changed = seen != std::mem::replace(&mut restored, seen);
                    self.seen = None;
                    if changed {
                        self.table.forget();
                    }
                    self.host_ports.check_again(changed);
                    self.isolation.check_again(changed);
                }
            }
        }
    }

    /// Applies the rules unless they are in place: at once after a change, otherwise periodically.
    /// Before the agent has written its file, connections to every service address are rejected.
    ///
    /// # Errors
    /// See [`BalanceError`]; the previous rules stay in force then.
    pub async fn ensure(
        &mut self,
        node: &Arc<NodeNetwork>,
        services: Option<&Arc<Services>>,
    ) -> Result<(), BalanceError> {
        let same = self.seen.as_ref().filter(|(known, told, _)| {
            let same = match (told, services) {
                (Some(told), Some(services)) => Arc::ptr_eq(told, services),
                (told, services) => told.is_none() && services.is_none(),
            };
            same && Arc::ptr_eq(known, node)
        });
        if same.is_some_and(|(.., when)| when.elapsed() < INTERVAL) {
            return Ok(());
        }
        let is_same = same.is_some();
        self.seen = None;
        let none = Services::default();
        let wanted = services.map_or(&none, Arc::as_ref);
        let change = match is_same && self.table.is_untouched().await {
            true => TableChange::None,
            false => self.set_rules(node, wanted).await?,
        };
        self.were_missing |= change == TableChange::Restored;
        if change != TableChange::None {
            tracing::debug!(
                services = wanted.services.len(),
                "put the rules of services in place"
            );
        }
        // No connection is forgotten because of a file that was not read.
        if services.is_some() {
            self.forget(node, wanted).await?;
            self.were_missing = false;
        }
        self.seen = Some((Arc::clone(node), services.cloned(), Instant::now()));
        Ok(())
    }

    async fn set_rules(
        &mut self,
        node: &NodeNetwork,
        services: &Services,
    ) -> Result<TableChange, FirewallError> {
        let values = ServiceTableValues::of(node, services);
        let wanted = values.ports.iter().map(|port| port.chain.as_str());
        let render = |stale| values.render(&self.template, stale);
        self.table.set(&wanted.collect(), render).await
    }

    /// Makes the kernel forget connections to instances that must not be used any more; and, where
    /// the rules were missing, connections that began without them. The latter takes a list of all
    /// connections of the machine.
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
        if self.were_missing && parts.values().any(|instances| is_served(instances)) {
            let mut count = 0;
            for flow in conntrack::untranslated().await? {
                if missed_the_rules(&flow, node.service_cidr, &parts) {
                    conntrack::forget(&flow).await?;
                    count += 1;
                }
            }
            if count > 0 {
                tracing::info!(
                    count,
                    "connections to services that began without rules begin anew"
                );
            }
        }
        Ok(())
    }
}

/// Removes the table, if it exists.
pub async fn remove() -> Result<(), FirewallError> {
    table::remove(TABLE).await
}

/// The rules without earlier chains to remove.
///
/// # Errors
/// The template can't be rendered.
pub fn ruleset(
    template: &str,
    node: &NodeNetwork,
    services: &Services,
) -> Result<String, tera::Error> {
    ServiceTableValues::of(node, services).render(template, Vec::new())
}

#[derive(Debug, Serialize)]
struct ServiceTableValues {
    network: Ipv4Net,
    machine: Ipv4Addr,
    /// Ports with a serving instance.
    ports: Vec<ServicePortValues>,
    /// Instances of this machine that may be forwarded to themselves.
    own: BTreeSet<Ipv4Addr>,
}

#[derive(Debug, Serialize)]
struct ServicePortValues {
    chain: String,
    address: Ipv4Addr,
    protocol: Transport,
    port: u16,
    instances: Vec<Ipv4Addr>,
}

impl ServiceTableValues {
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
                ports.push(ServicePortValues {
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

    /// Renders the rules; `stale` are earlier chains to remove.
    fn render(&self, template: &str, stale: Vec<String>) -> Result<String, tera::Error> {
        let mut templates = Tera::new();
        templates.add_raw_template("kat-services.nft", template)?;
        let mut values = tera::Context::from_serialize(self)?;
        values.insert("stale", &stale);
        templates.render("kat-services.nft", &values)
    }
}

fn serving(port: &ServicePortBackends) -> impl Iterator<Item = Ipv4Addr> {
    let serving = port
        .instances
        .iter()
        .filter(|(_, part)| **part == BackendState::Serving);
    serving.map(|(address, _)| *address)
}

/// Address, transport and port of a service, to its instances.
type PartsByPort<'a> = BTreeMap<(Ipv4Addr, Transport, u16), &'a BTreeMap<Ipv4Addr, BackendState>>;

fn parts(services: &Services) -> PartsByPort<'_> {
    let services = services.services.values();
    let ports = services.flat_map(|service| {
        let ports = service.ports.iter();
        ports.map(|port| ((service.address, port.protocol, port.port), &port.instances))
    });
    ports.collect()
}

/// Whether the kernel has to forget a connection. A TCP connection stays with an instance that
/// serves, is leaving or is held; but one that a held instance has never answered is none yet, and
/// its client's next SYN goes to another instance. A UDP flow has no end, and its client may never notice a dead
/// instance: it only stays with one that serves or is leaving. After its entry was forgotten, the
/// next packet is sent to another instance; that ends a TCP connection, since the new instance does
/// not know it and resets it. A connection that both ends have closed is left alone: the kernel
/// itself treats the next one from that port as new, and may have done so already when the entry is
/// deleted, which would reset the new connection.
fn is_stale(flow: &Flow, network: Ipv4Net, parts: &PartsByPort<'_>) -> bool {
    let ours = network.contains(&flow.called) && !flow.ended;
    let Some(transport) = flow.transport.filter(|_| ours) else {
        return false;
    };
    let parts = parts.get(&(flow.called, transport, flow.port));
    match parts.and_then(|parts| parts.get(&flow.answers)) {
        Some(BackendState::Serving | BackendState::Leaving) => false,
        Some(BackendState::Away | BackendState::Held) => {
            transport == Transport::Udp || flow.half_open
        }
        None => true,
    }
}

/// Whether a connection to a port that an instance serves began while the port was not forwarded,
/// such as before the first start of `kat-net`, or after another program flushed all rules. The
/// kernel keeps such a connection untranslated for as long as its client sends, so that no packet of
/// it reaches an instance. A UDP flow and a TCP connection without an answer begin anew.
fn missed_the_rules(flow: &Flow, network: Ipv4Net, parts: &PartsByPort<'_>) -> bool {
    let ours = network.contains(&flow.called) && flow.answers == flow.called;
    let Some(transport) = flow.transport.filter(|_| ours) else {
        return false;
    };
    let begins_anew = transport == Transport::Udp || flow.half_open;
    let instances = parts.get(&(flow.called, transport, flow.port));
    begins_anew && instances.is_some_and(|instances| is_served(instances))
}

fn is_served(instances: &BTreeMap<Ipv4Addr, BackendState>) -> bool {
    instances
        .values()
        .any(|part| *part == BackendState::Serving)
}

#[cfg(test)]
mod tests;
