//! Who may reach whom, by address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use kat_types::machine::{
    isolation::{EVERY_NAMESPACE, IsolationMode, IsolationRules, TrafficEnd},
    network::{Instances, NodeNetwork, node_address},
};

/// The namespaces that may reach something, besides its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AllowedNamespaces {
    Every,
    Only(BTreeSet<String>),
}

impl AllowedNamespaces {
    fn of(of_namespace: &BTreeSet<String>, of_workload: &BTreeSet<String>) -> Self {
        let all = of_namespace.union(of_workload);
        let names: BTreeSet<String> = all.cloned().collect();
        match names.contains(EVERY_NAMESPACE) {
            true => Self::Every,
            false => Self::Only(names),
        }
    }

    fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::Every => true,
            Self::Only(names) => names.contains(namespace),
        }
    }
}

/// Who may reach some workloads of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamespaceGuard {
    pub namespace: String,
    pub allowed: AllowedNamespaces,
}

/// What becomes of a connection between two addresses of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IsolationVerdict {
    Allowed,
    /// Both are known, and the caller's namespace may not reach the other.
    Refused,
    /// One of the addresses is nobody's.
    Unknown,
}

/// Who may reach whom, from the agent's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IsolationPolicy {
    pub(crate) mode: IsolationMode,
    /// The instances, by address.
    owners: BTreeMap<Ipv4Addr, TrafficEnd>,
    /// By `NAMESPACE` or `NAMESPACE/WORKLOAD`; see [`guard_of`](Self::guard_of).
    pub(crate) guards: BTreeMap<String, NamespaceGuard>,
    /// This machine's containers, by id: their addresses.
    pub(crate) own: BTreeMap<String, Ipv4Addr>,
}

impl IsolationPolicy {
    /// Reads the files. A namespace or workload whose name is none is left out and logged; what
    /// `instances` says of this machine's own containers has precedence.
    pub(crate) fn new(node: &NodeNetwork, instances: &Instances, rules: &IsolationRules) -> Self {
        let is_usable = |address: Ipv4Addr| {
            let subnet = ipnet::Ipv4Net::new(address, node.subnet.prefix_len());
            node.cluster_cidr.contains(&address)
                && subnet.is_ok_and(|subnet| node_address(subnet.trunc()) != address)
        };
        let mut found: BTreeMap<Ipv4Addr, Option<TrafficEnd>> = BTreeMap::new();
        for (namespace, content) in &rules.namespaces {
            for (workload, one) in &content.workloads {
                if !is_plain(namespace) || !is_plain(workload) {
                    tracing::error!(namespace, workload, "left out of isolation: it is no name");
                    continue;
                }
                for (address, instance) in &one.instances {
                    let end = end(namespace, workload, instance);
                    add(&mut found, *address, end);
                }
            }
        }
        let mut own: BTreeMap<Ipv4Addr, Option<TrafficEnd>> = BTreeMap::new();
        for (id, instance) in &instances.instances {
            if is_plain(&instance.namespace) && is_plain(&instance.workload) {
                let end = end(&instance.namespace, &instance.workload, id);
                add(&mut own, instance.address, end);
            }
        }
        found.extend(own);
        let owners = found
            .into_iter()
            .filter(|(address, _)| is_usable(*address))
            .filter_map(|(address, owner)| Some((address, owner?)))
            .collect();
        let own = instances.instances.iter();
        let mut policy = Self {
            mode: rules.mode,
            owners,
            guards: BTreeMap::new(),
            own: own.map(|(id, one)| (id.clone(), one.address)).collect(),
        };
        policy.guards = policy.guards_by(rules);
        policy
    }

    fn guards_by(&self, rules: &IsolationRules) -> BTreeMap<String, NamespaceGuard> {
        let nobody = BTreeSet::new();
        let mut guards = BTreeMap::new();
        let workloads: BTreeSet<(&str, &str)> = self
            .owners
            .values()
            .map(|owner| (owner.namespace.as_str(), owner.workload.as_str()))
            .collect();
        for (namespace, workload) in workloads {
            let content = rules.namespaces.get(namespace);
            let of_namespace = content.map_or(&nobody, |content| &content.allow);
            let of_workload = content.and_then(|content| content.workloads.get(workload));
            let of_workload = of_workload.map_or(&nobody, |one| &one.allow);
            let plain = AllowedNamespaces::of(of_namespace, &nobody);
            let allowed = AllowedNamespaces::of(of_namespace, of_workload);
            let name = match allowed == plain || plain == AllowedNamespaces::Every {
                true => namespace.to_owned(),
                false => format!("{namespace}/{workload}"),
            };
            let guard = NamespaceGuard {
                namespace: namespace.to_owned(),
                allowed,
            };
            guards.insert(name, guard);
        }
        guards
    }

    /// The known instances, by address.
    pub(crate) fn owners(&self) -> &BTreeMap<Ipv4Addr, TrafficEnd> {
        &self.owners
    }

    /// The key in `guards` of what guards an instance: its workload's, if the workload allows more
    /// than its namespace.
    pub(crate) fn guard_of(&self, owner: &TrafficEnd) -> String {
        let own = format!("{}/{}", owner.namespace, owner.workload);
        match self.guards.contains_key(&own) {
            true => own,
            false => owner.namespace.clone(),
        }
    }

    /// Whether a connection from one address to another is allowed, whatever the mode.
    pub(crate) fn judge(&self, from: Ipv4Addr, to: Ipv4Addr) -> IsolationVerdict {
        let (Some(from), Some(to)) = (self.owners.get(&from), self.owners.get(&to)) else {
            return IsolationVerdict::Unknown;
        };
        let guard = self.guards.get(&self.guard_of(to));
        let allows = |guard: &NamespaceGuard| guard.allowed.contains(&from.namespace);
        match from.namespace == to.namespace || guard.is_some_and(allows) {
            true => IsolationVerdict::Allowed,
            false => IsolationVerdict::Refused,
        }
    }
}

fn end(namespace: &str, workload: &str, instance: &str) -> TrafficEnd {
    TrafficEnd {
        namespace: namespace.to_owned(),
        workload: workload.to_owned(),
        instance: instance.to_owned(),
    }
}

/// Adds an address; one that two instances have is nobody's.
fn add(owners: &mut BTreeMap<Ipv4Addr, Option<TrafficEnd>>, address: Ipv4Addr, end: TrafficEnd) {
    let shared = owners.contains_key(&address);
    if shared {
        tracing::error!(%address, instance = end.instance, "two instances have one address");
    }
    owners.insert(address, (!shared).then_some(end));
}

/// Whether a text can be a name in the rules of nftables.
fn is_plain(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
pub(crate) mod tests;
