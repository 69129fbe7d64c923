//! Host ports: ports of this machine that nftables forwards to instances, each new connection to one that
//! serves. The instances are on this machine, or anywhere if the machine has the port because it serves
//! routes.
//!
//! The table `inet kat-host-ports` is rendered from `unit-templates/kat-host-ports.nft` and changed
//! as described in [`table`](super::table), like that of service addresses. The source address of a
//! packet to an instance of this machine is kept, so that a program sees its callers' addresses; instances
//! of other machines see this machine's address, so that their answers return through it. A port on which
//! a program of the machine itself listens is left to that program, whatever the agent's file says; a port
//! without a serving instance is rejected at once, and so is a caller that may not use the port.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net};
use serde::Serialize;
use tera::Tera;
use tokio::time::Instant;

use super::{
    conntrack::{self, Flow},
    firewall::FirewallError,
    netfilter::NetfilterError,
    table::{self, PortChainTable, TableChange},
};
use crate::{
    host_sockets, overlay::local_addresses as local, run_file, state_files::StateFilesSnapshot,
    virtual_addresses,
};
use kat_types::{
    machine::network::{
        HostPortNetwork, HostPortParts, IngressHostPort, Instances, MACHINE_PORTS_FILE,
        MachinePorts, NodeNetwork, Transport,
    },
    services::BackendState,
};

/// Name of the table.
pub(crate) const TABLE: &str = "kat-host-ports";
/// The compiled-in template of the rules.
pub const TEMPLATE: &str = include_str!("../../../unit-templates/kat-host-ports.nft");
/// Path of the packaged template, which an administrator may change; it replaces the compiled-in
/// one.
const INSTALLED: &str = "/usr/share/kat/unit-templates/kat-host-ports.nft";
/// Interval of the checks, including that of the machine's listeners.
const INTERVAL: Duration = Duration::from_secs(20);
/// How long a port stays reserved for a program of the machine after the program was last seen to
/// listen on it: while the program is restarted or upgraded, its callers, who may send passwords,
/// must not reach a workload.
const KEPT_FOR_PROGRAMS: Duration = Duration::from_secs(600);
/// Prefix of the chains of ports.
const CHAIN: &str = "to-";

/// Why the host ports could not be updated.
#[derive(Debug, thiserror::Error)]
pub enum HostPortError {
    #[error("host ports: {0}")]
    Rules(#[from] FirewallError),
    #[error("host ports: {0}")]
    Conntrack(#[from] NetfilterError),
}

/// Transport and number of a host port.
type HostPortKey = (Transport, u16);

/// The instances behind a host port, by address: the container's port, and the instance's part;
/// `None` for one that has not started yet.
type PortBackends = BTreeMap<Ipv4Addr, (u16, Option<BackendState>)>;

/// The ports that only some addresses may use. A caller has to be in each list of its port: the instances
/// behind a port are of one workload, and have the same list.
type PortSources = BTreeMap<HostPortKey, BTreeSet<Vec<Ipv4Net>>>;

/// Keeps the table and the kernel's connection tracking in line with the agent's files.
#[derive(Debug)]
pub struct HostPortKeeper {
    template: Cow<'static, str>,
    table: PortChainTable,
    /// Input and time of the last check.
    seen: Option<(HostPortInput, Instant)>,
    /// Ports that were in the files, served or not.
    known: BTreeSet<HostPortKey>,
    /// Ports that are left to a program of the machine.
    left: BTreeSet<HostPortKey>,
    /// Ports of the machine's programs, and when each program was last seen to listen.
    programs: BTreeMap<HostPortKey, Instant>,
    /// File with these ports for the agent.
    report: Option<PathBuf>,
}

/// The input of the rules, apart from the machine's listeners.
#[derive(Debug, Clone)]
struct HostPortInput {
    node: Arc<NodeNetwork>,
    instances: Option<Arc<Instances>>,
    parts: Option<Arc<HostPortParts>>,
}

impl HostPortInput {
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
    /// Uses the compiled-in template.
    fn default() -> Self {
        Self {
            template: Cow::Borrowed(TEMPLATE),
            table: PortChainTable::new(TABLE, CHAIN),
            seen: None,
            known: BTreeSet::new(),
            left: BTreeSet::new(),
            programs: BTreeMap::new(),
            report: None,
        }
    }
}

impl HostPortKeeper {
    /// Uses the packaged template if it exists, read once.
    pub fn installed() -> Self {
        Self {
            template: table::template(INSTALLED, TEMPLATE),
            report: Some(MACHINE_PORTS_FILE.into()),
            ..Self::default()
        }
    }

    /// Applies the rules unless they are in place: at once after a change, otherwise periodically.
    ///
    /// # Errors
    /// See [`HostPortError`]; the previous rules stay in force then.
    pub async fn ensure(
        &mut self,
        node: &Arc<NodeNetwork>,
        snapshot: &StateFilesSnapshot,
    ) -> Result<(), HostPortError> {
        let now = HostPortInput {
            node: Arc::clone(node),
            instances: snapshot.instances.clone(),
            parts: snapshot.host_ports.clone(),
        };
        let same = self.seen.as_ref().filter(|(seen, _)| seen.is_same(&now));
        if same.is_some_and(|(_, when)| when.elapsed() < INTERVAL) {
            return Ok(());
        }
        let is_same = same.is_some();
        self.seen = None;
        let (instances, parts) = (Instances::default(), HostPortParts::default());
        let instances = snapshot.instances.as_deref().unwrap_or(&instances);
        let parts = snapshot.host_ports.as_deref().unwrap_or(&parts);
        let mut ports = behind(instances, parts);
        let sources = sources_of(instances, parts);
        let left = self.left.clone();
        self.leave_to_programs(node, &mut ports);
        let in_place = is_same && left == self.left && self.table.is_untouched().await;
        let change = match in_place {
            true => TableChange::None,
            false => {
                let loopback = led_from_loopback(instances, parts);
                let values = HostPortTableValues::of(node, &ports, &loopback, &sources);
                let wanted = values.ports.iter().map(|port| port.chain.as_str());
                let render = |stale| values.render(&self.template, stale);
                self.table.set(&wanted.collect(), render).await?
            }
        };
        let changed = change != TableChange::None;
        if changed {
            tracing::debug!(ports = ports.len(), "put the rules of host ports in place");
        }
        self.known.extend(ports.keys().copied());
        // No connection is forgotten because of a file that was not read.
        if snapshot.instances.is_some() && !self.known.is_empty() {
            self.forget(node, &ports, &sources, changed).await?;
        }
        self.seen = Some((now, Instant::now()));
        Ok(())
    }

    /// Makes the next [`ensure`](Self::ensure) check the rules, whatever the time of the last check,
    /// and apply them if they were `changed`.
    pub(crate) fn check_again(&mut self, changed: bool) {
        self.seen = None;
        if changed {
            self.table.forget();
        }
    }

    /// Removes the ports on which a program of the machine itself listens, or listened recently.
    fn leave_to_programs(
        &mut self,
        node: &NodeNetwork,
        ports: &mut BTreeMap<HostPortKey, PortBackends>,
    ) {
        let listening = host_sockets::in_the_way(node.cluster_cidr);
        self.remember(&listening, Instant::now());
        let has = |port: &HostPortKey| listening.contains(port) || self.programs.contains_key(port);
        let left: BTreeSet<HostPortKey> = ports.keys().copied().filter(has).collect();
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

    /// Records the present listeners, forgets old ones, and writes the file for the agent.
    fn remember(&mut self, listening: &BTreeSet<HostPortKey>, now: Instant) {
        // A UDP client has an ephemeral port for a moment, which is no listener.
        let passing = host_sockets::passing_ports();
        let lasting = |(transport, port): &HostPortKey| {
            *transport == Transport::Tcp || !passing.contains(port)
        };
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
                "cannot write the ports of the machine's programs for kat-agent: {error:#}"
            );
        }
    }

    /// Makes the kernel forget connections to instances that must not be used any more, and those of
    /// callers that may not use the port any more; and, after a change, UDP flows that began before their
    /// port was forwarded.
    async fn forget(
        &self,
        node: &NodeNetwork,
        ports: &BTreeMap<HostPortKey, PortBackends>,
        sources: &PortSources,
        changed: bool,
    ) -> Result<(), HostPortError> {
        let mut count = 0;
        for flow in conntrack::translated().await? {
            if self.is_stale(&flow, node, ports, sources) {
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
                .map(|own| own.address)
                .chain(virtual_addresses::held())
                .filter_map(|own| match own {
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

    /// As for service addresses (`service_addresses::is_stale`): a TCP connection stays with an
    /// instance that still has the port, a UDP flow only with one that serves or is leaving. One to a held
    /// instance of another machine that has not answered goes to another instance: that machine may be
    /// silent.
    fn is_stale(
        &self,
        flow: &Flow,
        node: &NodeNetwork,
        ports: &BTreeMap<HostPortKey, PortBackends>,
        sources: &PortSources,
    ) -> bool {
        let ours = !node.service_cidr.contains(&flow.called)
            && !node.cluster_cidr.contains(&flow.called)
            && node.cluster_cidr.contains(&flow.answers)
            && !flow.ended;
        let port = flow.transport.map(|transport| (transport, flow.port));
        let known = |port: &HostPortKey| self.known.contains(port) && !self.left.contains(port);
        let Some(port) = port.filter(|port| ours && known(port)) else {
            return false;
        };
        if !admits(sources, &port, flow.from) {
            return true;
        }
        let instance = ports
            .get(&port)
            .and_then(|behind| behind.get(&flow.answers));
        match instance {
            Some((_, Some(BackendState::Serving | BackendState::Leaving))) => false,
            Some((_, Some(BackendState::Away | BackendState::Held) | None)) => {
                let is_elsewhere = !node.subnet.contains(&flow.answers);
                port.0 == Transport::Udp || (is_elsewhere && flow.half_open)
            }
            None => true,
        }
    }
}

/// Removes the table, if it exists.
pub async fn remove() -> Result<(), FirewallError> {
    table::remove(TABLE).await
}

/// The rules without earlier chains to remove, and without listeners of the machine.
///
/// # Errors
/// The template can't be rendered.
pub fn ruleset(
    template: &str,
    node: &NodeNetwork,
    instances: &Instances,
    parts: &HostPortParts,
) -> Result<String, tera::Error> {
    let ports = behind(instances, parts);
    let loopback = led_from_loopback(instances, parts);
    let sources = sources_of(instances, parts);
    HostPortTableValues::of(node, &ports, &loopback, &sources).render(template, Vec::new())
}

/// Who may use which host port, of those that are not for all.
fn sources_of(instances: &Instances, parts: &HostPortParts) -> PortSources {
    let mut sources = PortSources::new();
    for instance in instances.instances.values() {
        let restricted = parts.sources.get(&instance.address).into_iter().flatten();
        let own = restricted.filter(|one| {
            let mut ports = instance.host_ports.iter();
            ports.any(|port| (port.protocol, port.port) == (one.protocol, one.port))
        });
        for one in own {
            let lists = sources.entry((one.protocol, one.port)).or_default();
            lists.insert(ipv4_ranges(&one.allow_sources));
        }
    }
    for one in of_ingress(instances, parts) {
        if let Some(allowed) = &one.allow_sources {
            let lists = sources.entry((one.protocol, one.port)).or_default();
            lists.insert(ipv4_ranges(allowed));
        }
    }
    sources
}

/// The ranges of IPv4, which do not overlap: nft refuses a set whose ranges do.
fn ipv4_ranges(networks: &[IpNet]) -> Vec<Ipv4Net> {
    let ranges = networks.iter().filter_map(|network| match network {
        IpNet::V4(network) => Some(network.trunc()),
        IpNet::V6(_) => None,
    });
    Ipv4Net::aggregate(&ranges.collect())
}

fn is_for_all(ranges: &[Ipv4Net]) -> bool {
    ranges.iter().any(|range| range.prefix_len() == 0)
}

/// Whether an address may use a host port.
fn admits(sources: &PortSources, port: &HostPortKey, address: Ipv4Addr) -> bool {
    let mut lists = sources.get(port).into_iter().flatten();
    lists.all(|list| list.iter().any(|range| range.contains(&address)))
}

/// Every host port, with the instances behind it.
fn behind(instances: &Instances, parts: &HostPortParts) -> BTreeMap<HostPortKey, PortBackends> {
    let mut ports: BTreeMap<HostPortKey, PortBackends> = BTreeMap::new();
    for instance in instances.instances.values() {
        for port in &instance.host_ports {
            let behind = ports.entry((port.protocol, port.port)).or_default();
            let part = parts.parts.get(&instance.address).copied();
            behind.insert(instance.address, (port.container_port, part));
        }
    }
    for one in of_ingress(instances, parts) {
        let behind = ports.entry((one.protocol, one.port)).or_default();
        for (address, backend) in &one.instances {
            let backend = (backend.port, Some(backend.state));
            behind.entry(*address).or_insert(backend);
        }
    }
    ports
}

/// The ports that this machine has because it serves routes, without those that an instance of another
/// workload has on it: such an instance was here when the machine began to serve routes.
fn of_ingress<'p>(
    instances: &'p Instances,
    parts: &'p HostPortParts,
) -> impl Iterator<Item = &'p IngressHostPort> {
    let is_free = move |one: &&IngressHostPort| {
        let others = instances.instances.values().filter(|instance| {
            (&instance.namespace, &instance.workload) != (&one.namespace, &one.workload)
        });
        let mut ports = others.flat_map(|instance| &instance.host_ports);
        !ports.any(|port| (port.protocol, port.port) == (one.protocol, one.port))
    };
    parts.ingress.iter().filter(is_free)
}

/// Ports that are also forwarded for callers of 127.0.0.1: those that all their instances open to
/// loopback. The kernel sends nothing from 127.0.0.1 to another machine.
fn led_from_loopback(instances: &Instances, parts: &HostPortParts) -> BTreeSet<HostPortKey> {
    let of_ingress: BTreeSet<HostPortKey> = of_ingress(instances, parts)
        .map(|one| (one.protocol, one.port))
        .collect();
    let ports = instances.instances.values().flat_map(|one| &one.host_ports);
    let (led, not_led): (Vec<_>, Vec<_>) = ports.partition(|port| port.loopback);
    let of = |port: &HostPortNetwork| (port.protocol, port.port);
    let not_led: BTreeSet<HostPortKey> = not_led.into_iter().map(of).collect();
    let led = led.into_iter().map(of);
    led.filter(|port| !not_led.contains(port) && !of_ingress.contains(port))
        .collect()
}

fn serving(behind: &PortBackends) -> impl Iterator<Item = PortTarget> {
    let serving = behind
        .iter()
        .filter(|(_, (_, part))| *part == Some(BackendState::Serving));
    serving.map(|(address, (port, _))| PortTarget {
        address: *address,
        port: *port,
    })
}

#[derive(Debug, Serialize)]
struct HostPortTableValues {
    network: Ipv4Net,
    services: Ipv4Net,
    machine: Ipv4Addr,
    /// Ports with a serving instance.
    ports: Vec<HostPortValues>,
    /// Ports without a serving instance, and those that are not for all: what a machine forwards does not
    /// come to the rules that refuse.
    refused: Vec<RefusedPort>,
    /// The ports of both lists that are also forwarded for callers of 127.0.0.1.
    loopback_ports: Vec<HostPortValues>,
    loopback_refused: Vec<RefusedPort>,
    /// Container ports behind host ports.
    passing: Vec<PassedPort>,
    /// Those of TCP behind host ports that are not for all.
    guarded: Vec<PassedPort>,
    /// Instances that may be forwarded to themselves.
    own: BTreeSet<Ipv4Addr>,
}

#[derive(Debug, Clone, Serialize)]
struct HostPortValues {
    chain: String,
    protocol: Transport,
    port: u16,
    targets: Vec<PortTarget>,
    /// Lists of addresses that may use the port; a caller has to be in each.
    sources: Vec<Vec<Ipv4Net>>,
}

#[derive(Debug, Clone, Serialize)]
struct PortTarget {
    address: Ipv4Addr,
    port: u16,
}

#[derive(Debug, Clone, Serialize)]
struct RefusedPort {
    protocol: Transport,
    port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct PassedPort {
    protocol: Transport,
    address: Ipv4Addr,
    port: u16,
}

impl HostPortTableValues {
    fn of(
        node: &NodeNetwork,
        all: &BTreeMap<HostPortKey, PortBackends>,
        loopback: &BTreeSet<HostPortKey>,
        sources: &PortSources,
    ) -> Self {
        let (mut ports, mut refused) = (Vec::new(), Vec::new());
        let (mut passing, mut own) = (BTreeSet::new(), BTreeSet::new());
        let mut guarded = BTreeSet::new();
        for ((protocol, port), behind) in all {
            let (protocol, port) = (*protocol, *port);
            let restricted = sources.get(&(protocol, port));
            for (address, (container_port, _)) in behind {
                let passed = PassedPort {
                    protocol,
                    address: *address,
                    port: *container_port,
                };
                if restricted.is_some() && protocol == Transport::Tcp {
                    guarded.insert(passed);
                }
                passing.insert(passed);
                if node.subnet.contains(address) {
                    own.insert(*address);
                }
            }
            let targets: Vec<PortTarget> = serving(behind).collect();
            let lists: Vec<Vec<Ipv4Net>> = restricted.into_iter().flatten().cloned().collect();
            let is_for_nobody = lists.iter().any(Vec::is_empty);
            if restricted.is_some() || targets.is_empty() {
                refused.push(RefusedPort { protocol, port });
            }
            if targets.is_empty() || is_for_nobody {
                continue;
            }
            ports.push(HostPortValues {
                chain: format!("{CHAIN}{}-{port}", protocol.word()),
                protocol,
                port,
                targets,
                sources: lists.into_iter().filter(|list| !is_for_all(list)).collect(),
            });
        }
        let is_led = |protocol, port| loopback.contains(&(protocol, port));
        let loopback_ports = ports.iter();
        let loopback_ports =
            loopback_ports.filter(|one: &&HostPortValues| is_led(one.protocol, one.port));
        let loopback_refused = refused.iter();
        let loopback_refused =
            loopback_refused.filter(|one: &&RefusedPort| is_led(one.protocol, one.port));
        Self {
            loopback_ports: loopback_ports.cloned().collect(),
            loopback_refused: loopback_refused.cloned().collect(),
            network: node.cluster_cidr.trunc(),
            services: node.service_cidr.trunc(),
            machine: node.address,
            ports,
            refused,
            passing: passing.into_iter().collect(),
            guarded: guarded.into_iter().collect(),
            own,
        }
    }

    /// Renders the rules; `stale` are earlier chains to remove.
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
