//! Ports of this machine that lead to instances on it: nftables sends each new connection to one that serves.
//!
//! The table `inet kat-host-ports` is rendered from `unit-templates/kat-host-ports.nft` and changed as
//! [`table`](super::table) says, like that of service addresses. The source of a packet stays, so that a
//! program sees its callers' addresses. A port that a program of the machine itself listens on is left to that program,
//! whatever the agent's file says; one whose instances all don't serve is refused at once.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ipnet::Ipv4Net;
use serde::Serialize;
use tera::Tera;
use tokio::time::Instant;

use super::{
    conntrack::{self, ConntrackError, Flow},
    firewall::FirewallError,
    table::{self, Table},
};
use crate::{
    host_sockets,
    overlay::local_addresses as local,
    run_file,
    state::{
        HostPortNetwork, HostPortParts, Instances, MACHINE_PORTS_FILE, MachinePorts, NodeNetwork,
        Transport,
    },
    state_files::Snapshot,
};
use kat_types::services::BackendState;

/// Name of the table.
pub const TABLE: &str = "kat-host-ports";
/// The compiled-in template of the rules.
pub const TEMPLATE: &str = include_str!("../../../unit-templates/kat-host-ports.nft");
/// What an administrator may change; it stands in for the compiled-in template.
const INSTALLED: &str = "/usr/share/kat/unit-templates/kat-host-ports.nft";
/// Everything is looked at again after this time, also who listens on the machine.
const INTERVAL: Duration = Duration::from_secs(20);
/// For so long a port stays a program's of the machine after it was last seen to listen there: one that starts anew, or is
/// upgraded, must not find its callers, who may send passwords, with a workload.
const KEPT_FOR_PROGRAMS: Duration = Duration::from_secs(600);
/// Chains of ports begin so.
const CHAIN: &str = "to-";

/// Why ports of the machine are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum HostPortError {
    /// The rules.
    #[error("host ports: {0}")]
    Rules(#[from] FirewallError),
    /// What the kernel remembers.
    #[error("host ports: {0}")]
    Conntrack(#[from] ConntrackError),
}

/// A port of the machine.
type HostPort = (Transport, u16);

/// The instances that a port leads to, by their addresses: the port of the container, and what they are to callers;
/// nothing of one that has not begun to run.
type Behind = BTreeMap<Ipv4Addr, (u16, Option<BackendState>)>;

/// Keeps the table, and what the kernel remembers, as the agent's files say.
#[derive(Debug)]
pub struct HostPortKeeper {
    template: Cow<'static, str>,
    table: Table,
    /// What the last look was for, and when it was.
    seen: Option<(Seen, Instant)>,
    /// Ports that led to an instance once.
    known: BTreeSet<HostPort>,
    /// Ports that are left to a program of the machine.
    left: BTreeSet<HostPort>,
    /// Ports that a program of the machine had, and when it was last seen there.
    programs: BTreeMap<HostPort, Instant>,
    /// Where they are told to the agent.
    report: Option<PathBuf>,
}

/// What the rules follow from, but for who listens.
#[derive(Debug, Clone)]
struct Seen {
    node: Arc<NodeNetwork>,
    instances: Option<Arc<Instances>>,
    parts: Option<Arc<HostPortParts>>,
}

impl Seen {
    fn is_same(&self, other: &Self) -> bool {
        fn same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
            match (one, other) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (one, other) => one.is_none() && other.is_none(),
            }
        }
        Arc::ptr_eq(&self.node, &other.node)
            && same(self.instances.as_ref(), other.instances.as_ref())
            && same(self.parts.as_ref(), other.parts.as_ref())
    }
}

impl Default for HostPortKeeper {
    /// With the compiled-in template.
    fn default() -> Self {
        Self {
            template: Cow::Borrowed(TEMPLATE),
            table: Table::new(TABLE, CHAIN),
            seen: None,
            known: BTreeSet::new(),
            left: BTreeSet::new(),
            programs: BTreeMap::new(),
            report: None,
        }
    }
}

impl HostPortKeeper {
    /// With the template of the package if it is there, read once.
    pub fn installed() -> Self {
        Self {
            template: table::template(INSTALLED, TEMPLATE),
            report: Some(MACHINE_PORTS_FILE.into()),
            ..Self::default()
        }
    }

    /// Puts the rules in place unless they are, at once after a change and else from time to time.
    ///
    /// # Errors
    /// See [`HostPortError`]; the rules from before hold then.
    pub async fn ensure(
        &mut self,
        node: &Arc<NodeNetwork>,
        snapshot: &Snapshot,
    ) -> Result<(), HostPortError> {
        let now = Seen {
            node: Arc::clone(node),
            instances: snapshot.instances.clone(),
            parts: snapshot.host_ports.clone(),
        };
        let fresh = self
            .seen
            .as_ref()
            .is_some_and(|(seen, when)| seen.is_same(&now) && when.elapsed() < INTERVAL);
        if fresh {
            return Ok(());
        }
        self.seen = None;
        let (instances, parts) = (Instances::default(), HostPortParts::default());
        let instances = snapshot.instances.as_deref().unwrap_or(&instances);
        let parts = snapshot.host_ports.as_deref().unwrap_or(&parts);
        let mut ports = behind(instances, parts);
        self.leave_to_programs(node, &mut ports);
        let values = Values::of(node, &ports, &led_from_loopback(instances));
        let wanted = values.ports.iter().map(|port| port.chain.as_str());
        let render = |stale| values.render(&self.template, stale);
        let changed = self.table.set(&wanted.collect(), render).await?;
        if changed {
            tracing::debug!(ports = ports.len(), "put the rules of host ports in place");
        }
        self.known.extend(ports.keys().copied());
        // Nothing is forgotten on behalf of a file that was not read.
        if snapshot.instances.is_some() && !self.known.is_empty() {
            self.forget(node, &ports, changed).await?;
        }
        self.seen = Some((now, Instant::now()));
        Ok(())
    }

    /// Takes out the ports that a program of the machine itself listens on, or did not long ago.
    fn leave_to_programs(&mut self, node: &NodeNetwork, ports: &mut BTreeMap<HostPort, Behind>) {
        let listening = host_sockets::in_the_way(node.cluster_cidr);
        self.remember(&listening, Instant::now());
        let has = |port: &HostPort| listening.contains(port) || self.programs.contains_key(port);
        let left: BTreeSet<HostPort> = ports.keys().copied().filter(has).collect();
        for (protocol, port) in left.difference(&self.left) {
            tracing::warn!(
                port,
                protocol = protocol.word(),
                "a program of this machine listens on a host port, or did in the last ten minutes, which is left to it"
            );
        }
        ports.retain(|port, _| !left.contains(port));
        self.left = left;
    }

    /// Notes who listens now, forgets who has not for long, and tells the agent.
    fn remember(&mut self, listening: &BTreeSet<HostPort>, now: Instant) {
        // Whoever asks something over UDP has such a port for a moment, which says nothing.
        let passing = host_sockets::passing_ports();
        let lasting =
            |(transport, port): &HostPort| *transport == Transport::Tcp || !passing.contains(port);
        let seen = listening.iter().copied().filter(lasting);
        self.programs.extend(seen.map(|port| (port, now)));
        self.programs
            .retain(|_, seen| now.saturating_duration_since(*seen) < KEPT_FOR_PROGRAMS);
        let Some(path) = &self.report else { return };
        let of = |wanted: Transport| {
            let ports = self.programs.keys();
            let ports = ports.filter(|(transport, _)| *transport == wanted);
            ports.map(|(_, port)| *port).collect()
        };
        let told = MachinePorts {
            schema: 1,
            tcp: of(Transport::Tcp),
            udp: of(Transport::Udp),
        };
        let written = run_file::write(path, &told);
        if let Err(error) = written {
            tracing::warn!(
                "the ports of the machine's programs can't be told to kat-agent: {error:#}"
            );
        }
    }

    /// Has the kernel forget which instance a connection is sent to, where that is not to be; and, after a change,
    /// UDP flows that began before their port led anywhere.
    async fn forget(
        &self,
        node: &NodeNetwork,
        ports: &BTreeMap<HostPort, Behind>,
        changed: bool,
    ) -> Result<(), HostPortError> {
        let mut count = 0;
        for flow in conntrack::translated().await? {
            if self.is_stale(&flow, node, ports) {
                conntrack::forget(&flow).await?;
                count += 1;
            }
        }
        let serves_udp = ports.iter().any(|((protocol, _), behind)| {
            *protocol == Transport::Udp && serving(behind).count() > 0
        });
        if changed && serves_udp {
            let own: BTreeSet<Ipv4Addr> = local::addresses()
                .into_iter()
                .filter_map(|own| match own.address {
                    IpAddr::V4(address) => Some(address),
                    IpAddr::V6(_) => None,
                })
                .chain([Ipv4Addr::LOCALHOST])
                .collect();
            for flow in conntrack::untranslated().await? {
                let port = flow.transport.map(|transport| (transport, flow.port));
                let behind = port
                    .filter(|(transport, _)| *transport == Transport::Udp)
                    .and_then(|port| ports.get(&port));
                let served = behind.is_some_and(|behind| serving(behind).count() > 0);
                let untouched = flow.answers == flow.called;
                if served && untouched && own.contains(&flow.called) {
                    conntrack::forget(&flow).await?;
                    count += 1;
                }
            }
        }
        if count > 0 {
            tracing::info!(count, "connections to host ports begin anew");
        }
        Ok(())
    }

    /// As with service addresses (`balance::is_stale`): a connection goes on with an instance of which something is
    /// known, a UDP flow with one that serves or leaves.
    fn is_stale(
        &self,
        flow: &Flow,
        node: &NodeNetwork,
        ports: &BTreeMap<HostPort, Behind>,
    ) -> bool {
        let ours = !node.service_cidr.contains(&flow.called)
            && !node.cluster_cidr.contains(&flow.called)
            && node.subnet.contains(&flow.answers)
            && !flow.ended;
        let port = flow.transport.map(|transport| (transport, flow.port));
        let known = |port: &HostPort| self.known.contains(port) && !self.left.contains(port);
        let Some(port) = port.filter(|port| ours && known(port)) else {
            return false;
        };
        let instance = ports
            .get(&port)
            .and_then(|behind| behind.get(&flow.answers));
        match instance {
            Some((_, Some(BackendState::Serving | BackendState::Leaving))) => false,
            Some((_, Some(BackendState::Held) | None)) => port.0 == Transport::Udp,
            None => true,
        }
    }
}

/// Removes the table, if there is one.
///
/// # Errors
/// See [`FirewallError`].
pub async fn remove() -> Result<(), FirewallError> {
    table::remove(TABLE).await
}

/// The rules where nothing of before has to go, and no program of the machine is in the way.
///
/// # Errors
/// The template is wrong.
pub fn ruleset(
    template: &str,
    node: &NodeNetwork,
    instances: &Instances,
    parts: &HostPortParts,
) -> Result<String, tera::Error> {
    let loopback = led_from_loopback(instances);
    Values::of(node, &behind(instances, parts), &loopback).render(template, Vec::new())
}

/// Every port of the machine that an instance has, with those instances.
fn behind(instances: &Instances, parts: &HostPortParts) -> BTreeMap<HostPort, Behind> {
    let mut ports: BTreeMap<HostPort, Behind> = BTreeMap::new();
    for instance in instances.instances.values() {
        for port in &instance.host_ports {
            let behind = ports.entry((port.protocol, port.port)).or_default();
            let part = parts.parts.get(&instance.address).copied();
            behind.insert(instance.address, (port.container_port, part));
        }
    }
    ports
}

/// Ports that lead to their instances for callers of 127.0.0.1 too: where all that have one say so.
fn led_from_loopback(instances: &Instances) -> BTreeSet<HostPort> {
    let ports = instances.instances.values().flat_map(|one| &one.host_ports);
    let (led, not_led): (Vec<_>, Vec<_>) = ports.partition(|port| port.loopback);
    let of = |port: &HostPortNetwork| (port.protocol, port.port);
    let not_led: BTreeSet<HostPort> = not_led.into_iter().map(of).collect();
    let led = led.into_iter().map(of);
    led.filter(|port| !not_led.contains(port)).collect()
}

fn serving(behind: &Behind) -> impl Iterator<Item = Target> {
    let serving = behind
        .iter()
        .filter(|(_, (_, part))| *part == Some(BackendState::Serving));
    serving.map(|(address, (port, _))| Target {
        address: *address,
        port: *port,
    })
}

#[derive(Debug, Serialize)]
struct Values {
    /// The overlay.
    network: Ipv4Net,
    services: Ipv4Net,
    machine: Ipv4Addr,
    /// Those that somebody serves.
    ports: Vec<PortValues>,
    /// Those that nobody serves.
    refused: Vec<Refused>,
    /// Those of both that callers of 127.0.0.1 are sent to as well.
    loopback_ports: Vec<PortValues>,
    loopback_refused: Vec<Refused>,
    /// Ports of containers that ports of the machine lead to.
    passing: Vec<Passing>,
    /// Instances that may be sent to themselves.
    own: BTreeSet<Ipv4Addr>,
}

#[derive(Debug, Clone, Serialize)]
struct PortValues {
    chain: String,
    protocol: Transport,
    port: u16,
    targets: Vec<Target>,
}

#[derive(Debug, Clone, Serialize)]
struct Target {
    address: Ipv4Addr,
    port: u16,
}

#[derive(Debug, Clone, Serialize)]
struct Refused {
    protocol: Transport,
    port: u16,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Passing {
    protocol: Transport,
    address: Ipv4Addr,
    port: u16,
}

impl Values {
    fn of(
        node: &NodeNetwork,
        all: &BTreeMap<HostPort, Behind>,
        loopback: &BTreeSet<HostPort>,
    ) -> Self {
        let (mut ports, mut refused) = (Vec::new(), Vec::new());
        let (mut passing, mut own) = (BTreeSet::new(), BTreeSet::new());
        for ((protocol, port), behind) in all {
            let (protocol, port) = (*protocol, *port);
            for (address, (container_port, _)) in behind {
                passing.insert(Passing {
                    protocol,
                    address: *address,
                    port: *container_port,
                });
                own.insert(*address);
            }
            let targets: Vec<Target> = serving(behind).collect();
            if targets.is_empty() {
                refused.push(Refused { protocol, port });
                continue;
            }
            ports.push(PortValues {
                chain: format!("{CHAIN}{}-{port}", protocol.word()),
                protocol,
                port,
                targets,
            });
        }
        let is_led = |protocol, port| loopback.contains(&(protocol, port));
        let loopback_ports = ports.iter();
        let loopback_ports =
            loopback_ports.filter(|one: &&PortValues| is_led(one.protocol, one.port));
        let loopback_refused = refused.iter();
        let loopback_refused =
            loopback_refused.filter(|one: &&Refused| is_led(one.protocol, one.port));
        Self {
            loopback_ports: loopback_ports.cloned().collect(),
            loopback_refused: loopback_refused.cloned().collect(),
            network: node.cluster_cidr.trunc(),
            services: node.service_cidr.trunc(),
            machine: node.address,
            ports,
            refused,
            passing: passing.into_iter().collect(),
            own,
        }
    }

    /// With chains of before that have to go.
    fn render(&self, template: &str, stale: Vec<String>) -> Result<String, tera::Error> {
        let mut templates = Tera::new();
        templates.add_raw_template("kat-host-ports.nft", template)?;
        let mut values = tera::Context::from_serialize(self)?;
        values.insert("stale", &stale);
        templates.render("kat-host-ports.nft", &values)
    }
}

#[cfg(test)]
mod tests;
