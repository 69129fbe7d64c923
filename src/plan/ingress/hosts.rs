//! Who has which host: a host with all its paths, and the names that a wildcard covers, belong to one
//! namespace, and a host with a path to one workload. Ports 80 and 443 of machines belong either to
//! routes or to workloads.
//!
//! An apply is refused by [`claim_conflict`]; what is stored already is decided by [`RouteOwners`], in
//! the order in which the workloads were created.

use std::collections::{BTreeMap, BTreeSet};

use super::machines_for_ingress;
use crate::{
    Snapshot,
    scheduling::{
        host_ports,
        ingress_ports::{on_ingress, stored_numbers},
    },
};
use kat_types::{
    assignment::Assignment,
    resource::{Ingress, Protocol, VirtualLoadBalancerSpec},
    store::{
        ingress::INGRESS_PORTS,
        revisions::WorkloadKey,
        snapshot::{ParsedWorkload, WorkloadEntry},
    },
};

/// What a workload claims of the machines that serve routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkloadClaims {
    /// Hosts with paths, without a final `/`: those of its routes, and those that are redirected to
    /// them, with the empty path.
    pub routes: BTreeSet<(String, String)>,
    /// Ports of machines among [`INGRESS_PORTS`].
    pub ports: BTreeSet<u16>,
    /// Host ports of the machines that serve routes (`hostPortOn: ingress`).
    pub on_ingress: BTreeSet<(u16, Protocol)>,
    /// Ports of the machines that have instances.
    pub on_instances: BTreeSet<(u16, Protocol)>,
}

impl WorkloadClaims {
    /// The claims of a workload's files.
    pub fn of(parsed: &ParsedWorkload) -> Self {
        let balancer = parsed.load_balancer.as_ref().map(|balancer| &balancer.spec);
        let container = &parsed.workload.spec.container;
        let declared = host_ports::ports_of(parsed);
        let held = host_ports::held(declared, container.host_network);
        let ports = held
            .filter(|(number, protocol)| {
                *protocol == Protocol::Tcp && INGRESS_PORTS.contains(number)
            })
            .map(|(number, _)| number);
        let shared = on_ingress(declared).cloned().collect::<Vec<_>>();
        let own = host_ports::of_instance(declared.to_vec());
        Self {
            routes: balancer.map(routes_of).unwrap_or_default(),
            ports: ports.collect(),
            // Without an `auto`, whose number is free when it is chosen.
            on_ingress: host_ports::numbers(&shared).collect(),
            on_instances: host_ports::held(&own, container.host_network).collect(),
        }
    }

    /// The claims of a route to something outside KAT.
    pub fn of_outside(route: &Ingress) -> Self {
        let path = route.path.trim_end_matches('/').to_owned();
        Self {
            routes: [(route.host.clone(), path)].into(),
            ..Self::default()
        }
    }

    /// Nothing is claimed.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
            && self.ports.is_empty()
            && self.on_ingress.is_empty()
            && self.on_instances.is_empty()
    }

    /// Nothing is claimed that `before` does not claim.
    pub fn is_part_of(&self, before: &Self) -> bool {
        self.routes.is_subset(&before.routes)
            && self.ports.is_subset(&before.ports)
            && self.on_ingress.is_subset(&before.on_ingress)
            && self.on_instances.is_subset(&before.on_instances)
    }
}

fn routes_of(balancer: &VirtualLoadBalancerSpec) -> BTreeSet<(String, String)> {
    let routes = balancer.ingress.iter().flat_map(|route| {
        let path = route.path.trim_end_matches('/').to_owned();
        let own = std::iter::once((route.host.clone(), path));
        let others = route.redirect_from.iter();
        own.chain(others.map(|host| (host.clone(), String::new())))
    });
    routes.collect()
}

/// Why a workload can't have what it claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimConflict {
    /// Another namespace has the host, or one that covers it or that it covers.
    Host {
        /// The claimed host.
        host: String,
        /// The host of the other namespace.
        other: String,
        /// A workload that has it.
        owner: WorkloadKey,
    },
    /// Another workload of the namespace has the host with this path.
    Route {
        /// The claimed host.
        host: String,
        /// The claimed path, without a final `/`.
        path: String,
        owner: WorkloadKey,
    },
    /// A workload has a port of machines that routes need.
    PortHeld { port: u16, owner: WorkloadKey },
    /// Routes need a port of machines that the workload claims.
    PortServesRoutes {
        port: u16,
        /// A host that is served.
        host: String,
        owner: WorkloadKey,
    },
    /// Another workload has the port on all machines that serve routes.
    PortOnIngress {
        port: u16,
        protocol: Protocol,
        owner: WorkloadKey,
    },
    /// An instance of another workload has the port on one of the machines that serve routes.
    PortOnInstance {
        port: u16,
        protocol: Protocol,
        /// The machine.
        node: String,
        owner: WorkloadKey,
    },
}

impl ClaimConflict {
    /// The workload that has what is claimed.
    pub fn owner(&self) -> &WorkloadKey {
        match self {
            Self::Host { owner, .. }
            | Self::Route { owner, .. }
            | Self::PortHeld { owner, .. }
            | Self::PortServesRoutes { owner, .. }
            | Self::PortOnIngress { owner, .. }
            | Self::PortOnInstance { owner, .. } => owner,
        }
    }

    /// The conflict in a sentence, in which `owner` stands for the other workload or its namespace.
    pub fn in_words(&self, owner: &str) -> String {
        match self {
            Self::Host { host, other, .. } if host == other => {
                format!("the host {host} belongs to {owner}")
            }
            Self::Host { host, other, .. } => {
                format!("the host {host} overlaps with {other}, which belongs to {owner}")
            }
            Self::Route { host, path, .. } if path.is_empty() => {
                format!("{host}/ is a route of {owner}")
            }
            Self::Route { host, path, .. } => format!("{host}{path} is a route of {owner}"),
            Self::PortHeld { port, .. } => format!(
                "routes need port {port} of the machines that serve them, and {owner} has it as a host port"
            ),
            Self::PortServesRoutes { port, host, .. } => {
                format!("port {port} of machines serves routes, such as {host} of {owner}")
            }
            Self::PortOnIngress { port, protocol, .. } => format!(
                "{owner} has port {port}/{} of the machines that serve routes as a host port",
                protocol.word()
            ),
            Self::PortOnInstance {
                port,
                protocol,
                node,
                ..
            } => format!(
                "{node} serves routes, and an instance of {owner} has its port {port}/{}",
                protocol.word()
            ),
        }
    }
}

/// Whether both may name the same host.
fn overlap(one: &str, other: &str) -> bool {
    kat_types::store::ingress::covers(one, other) || kat_types::store::ingress::covers(other, one)
}

/// Why a workload can't have these claims now; `None` if it can.
///
/// Claims of workloads whose files this version can't read count as they were assigned to machines.
pub fn claim_conflict(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    claims: &WorkloadClaims,
) -> Option<ClaimConflict> {
    if claims.is_empty() {
        return None;
    }
    let serves = snapshot.wanted_cluster().spec.ingress.enabled;
    let machines: BTreeSet<&str> = machines_for_ingress(snapshot).into_iter().collect();
    let everywhere = machines.len() == snapshot.nodes.len();
    for (other, theirs) in stored_claims(snapshot).filter(|(other, _)| *other != key) {
        let conflict = conflict_of_two((key, claims), (other, &theirs), serves)
            .or_else(|| port_conflict(claims, (other, &theirs), everywhere));
        if conflict.is_some() {
            return conflict;
        }
    }
    let placed = snapshot.instances.values();
    let placed = placed.filter(|entry| machines.contains(entry.node.as_str()));
    for entry in placed.filter(|_| !claims.on_ingress.is_empty()) {
        let assignment = &entry.assignment.value;
        let owner = WorkloadKey::new(&assignment.namespace, &assignment.workload);
        let mut held = ports_of_instance(assignment);
        let taken = held.find(|port| claims.on_ingress.contains(port));
        if let Some((port, protocol)) = taken.filter(|_| owner != *key) {
            let node = entry.node.clone();
            return Some(ClaimConflict::PortOnInstance {
                port,
                protocol,
                node,
                owner,
            });
        }
    }
    // What an instance has that is not replaced yet.
    if serves && !claims.routes.is_empty() {
        let mut held = ports_of_instances(snapshot);
        if let Some((port, owner)) = held.find(|(_, owner)| owner != key) {
            return Some(ClaimConflict::PortHeld { port, owner });
        }
    }
    None
}

/// Why routes can't be served on machines now: another workload than one with a route has port 80 or
/// 443 of machines. While the cluster has no ingress, both are accepted.
pub fn serving_conflict(snapshot: &Snapshot) -> Option<ClaimConflict> {
    let claims: Vec<_> = stored_claims(snapshot).collect();
    let ports = claims
        .iter()
        .filter_map(|(key, claims)| Some((*claims.ports.first()?, (*key).clone())));
    let held: Vec<(u16, WorkloadKey)> = ports.chain(ports_of_instances(snapshot)).collect();
    let mut routed = claims.iter().filter(|(_, own)| !own.routes.is_empty());
    routed.find_map(|(key, _)| {
        let (port, owner) = held.iter().find(|(_, owner)| owner != *key)?;
        Some(ClaimConflict::PortHeld {
            port: *port,
            owner: owner.clone(),
        })
    })
}

/// The claims of all workloads, and of the routes to something outside KAT.
fn stored_claims(snapshot: &Snapshot) -> impl Iterator<Item = (&WorkloadKey, WorkloadClaims)> {
    let workloads = snapshot.workloads.iter();
    let workloads = workloads.map(|(key, entry)| {
        let mut claims = claims_of_stored(snapshot, key, entry);
        // With the numbers that `auto` has got.
        let numbers = stored_numbers(snapshot, key, entry);
        claims.on_ingress.extend(numbers);
        (key, claims)
    });
    let outside = snapshot.outside_routes.values();
    let outside = outside.map(|stored| {
        let claims = WorkloadClaims::of_outside(&stored.value.route);
        (&stored.value.key, claims)
    });
    workloads.chain(outside)
}

/// Ports 80 and 443 of machines that instances have, with their workloads.
fn ports_of_instances(snapshot: &Snapshot) -> impl Iterator<Item = (u16, WorkloadKey)> {
    let instances = snapshot
        .instances
        .values()
        .map(|entry| &entry.assignment.value);
    instances.filter_map(|assignment| {
        let mut held = ports_of_instance(assignment);
        let (port, _) = held.find(|(number, protocol)| {
            *protocol == Protocol::Tcp && INGRESS_PORTS.contains(number)
        })?;
        let owner = WorkloadKey::new(&assignment.namespace, &assignment.workload);
        Some((port, owner))
    })
}

fn ports_of_instance(assignment: &Assignment) -> impl Iterator<Item = (u16, Protocol)> {
    host_ports::held(&assignment.ports, assignment.container.host_network)
}

/// Whether another workload has a port of all machines that serve routes, or needs one; `everywhere` if
/// all machines serve routes.
fn port_conflict(
    claims: &WorkloadClaims,
    (other, theirs): (&WorkloadKey, &WorkloadClaims),
    everywhere: bool,
) -> Option<ClaimConflict> {
    let mut shared = claims.on_ingress.intersection(&theirs.on_ingress);
    // Elsewhere an instance finds another machine.
    let mut without_place = claims.on_instances.intersection(&theirs.on_ingress);
    let without_place = without_place.next().filter(|_| everywhere);
    let (port, protocol) = *shared.next().or(without_place)?;
    Some(ClaimConflict::PortOnIngress {
        port,
        protocol,
        owner: other.clone(),
    })
}

fn conflict_of_two(
    (key, claims): (&WorkloadKey, &WorkloadClaims),
    (other, theirs): (&WorkloadKey, &WorkloadClaims),
    serves: bool,
) -> Option<ClaimConflict> {
    let owner = || other.clone();
    if key.namespace == other.namespace {
        if let Some((host, path)) = claims.routes.intersection(&theirs.routes).next() {
            let (host, path) = (host.clone(), path.clone());
            return Some(ClaimConflict::Route {
                host,
                path,
                owner: owner(),
            });
        }
    } else {
        for (host, _) in &claims.routes {
            let mut hosts = theirs.routes.iter();
            if let Some((other, _)) = hosts.find(|(other, _)| overlap(host, other)) {
                let (host, other) = (host.clone(), other.clone());
                return Some(ClaimConflict::Host {
                    host,
                    other,
                    owner: owner(),
                });
            }
        }
    }
    if !serves {
        return None;
    }
    if let (false, Some(port)) = (claims.routes.is_empty(), theirs.ports.first()) {
        let port = *port;
        return Some(ClaimConflict::PortHeld {
            port,
            owner: owner(),
        });
    }
    if let (Some(port), Some((host, _))) = (claims.ports.first(), theirs.routes.first()) {
        let (port, host) = (*port, host.clone());
        return Some(ClaimConflict::PortServesRoutes {
            port,
            host,
            owner: owner(),
        });
    }
    None
}

/// The claims of a stored workload; for files that this version can't read the routes that machines
/// serve for it.
pub fn claims_of_stored(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    entry: &WorkloadEntry,
) -> WorkloadClaims {
    match &entry.parsed {
        Ok(parsed) => WorkloadClaims::of(parsed),
        Err(_) => {
            let assigned = snapshot
                .routes
                .values()
                .filter_map(|of_node| of_node.get(key));
            let routes = assigned.flat_map(|stored| &stored.value.routes);
            let routes = routes.flat_map(|route| {
                let path = route.path.trim_end_matches('/').to_owned();
                let own = std::iter::once((route.host.clone(), path));
                let others = route.redirect_from.keys();
                own.chain(others.map(|host| (host.clone(), String::new())))
            });
            WorkloadClaims {
                routes: routes.collect(),
                on_ingress: stored_numbers(snapshot, key, entry).into_iter().collect(),
                ..WorkloadClaims::default()
            }
        }
    }
}

/// The hosts for which a namespace has routes, without those that `except` alone has.
pub(crate) fn hosts_of_namespace(
    snapshot: &Snapshot,
    namespace: &str,
    except: Option<&WorkloadKey>,
) -> BTreeSet<String> {
    let first = WorkloadKey::new(namespace, "");
    let workloads = snapshot.workloads.range(first..);
    let workloads = workloads
        .take_while(|(key, _)| key.namespace == namespace)
        .filter(|(key, _)| Some(*key) != except)
        .map(|(key, entry)| claims_of_stored(snapshot, key, entry));
    let outside = snapshot.outside_routes.values();
    let outside = outside
        .map(|stored| &stored.value)
        .filter(|route| route.key.namespace == namespace && Some(&route.key) != except)
        .map(|route| WorkloadClaims::of_outside(&route.route));
    let routes = workloads.chain(outside).flat_map(|claims| claims.routes);
    routes.map(|(host, _)| host).collect()
}

/// Who has what of the stored claims: each host the namespace of the workload that was created first,
/// and each host with a path the first workload of it.
#[derive(Debug, Default)]
pub(crate) struct RouteOwners<'a> {
    /// Hosts with the workload that decided about their namespace.
    hosts: BTreeMap<&'a str, &'a WorkloadKey>,
    /// By wildcard, the taken hosts that it covers.
    covered: BTreeMap<String, BTreeSet<&'a str>>,
    routes: BTreeMap<(&'a str, &'a str), &'a WorkloadKey>,
}

impl<'a> RouteOwners<'a> {
    /// Takes a route, or returns why it can't be had.
    pub(crate) fn take(
        &mut self,
        key: &'a WorkloadKey,
        host: &'a str,
        path: &'a str,
    ) -> Option<ClaimConflict> {
        let path = path.trim_end_matches('/');
        let above = wildcard_above(host);
        let over = above
            .as_deref()
            .filter(|above| self.hosts.contains_key(above));
        let below = self.covered.get(host).into_iter().flatten().copied();
        for other in [Some(host), over].into_iter().flatten().chain(below) {
            let Some((other, owner)) = self.hosts.get_key_value(other) else {
                continue;
            };
            if owner.namespace != key.namespace {
                return Some(ClaimConflict::Host {
                    host: host.to_owned(),
                    other: (*other).to_owned(),
                    owner: (*owner).clone(),
                });
            }
        }
        if let Some(owner) = self.routes.get(&(host, path))
            && *owner != key
        {
            return Some(ClaimConflict::Route {
                host: host.to_owned(),
                path: path.to_owned(),
                owner: (*owner).clone(),
            });
        }
        self.hosts.entry(host).or_insert(key);
        self.routes.insert((host, path), key);
        if let Some(above) = above {
            self.covered.entry(above).or_default().insert(host);
        }
        None
    }
}

/// The wildcard that covers a host.
fn wildcard_above(host: &str) -> Option<String> {
    let (label, domain) = host.split_once('.')?;
    (label != "*").then(|| format!("*.{domain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> WorkloadKey {
        let (namespace, name) = text.split_once('/').unwrap();
        WorkloadKey::new(namespace, name)
    }

    fn claims(routes: &[(&str, &str)], ports: &[u16]) -> WorkloadClaims {
        let routes = routes.iter();
        WorkloadClaims {
            routes: routes
                .map(|(host, path)| ((*host).to_owned(), (*path).to_owned()))
                .collect(),
            ports: ports.iter().copied().collect(),
            ..WorkloadClaims::default()
        }
    }

    fn between(one: (&str, &WorkloadClaims), other: (&str, &WorkloadClaims)) -> Option<String> {
        let (own, others) = (key(one.0), key(other.0));
        let found = conflict_of_two((&own, one.1), (&others, other.1), true);
        found.map(|conflict| conflict.in_words(other.0))
    }

    #[test]
    fn a_host_belongs_to_one_namespace_with_all_its_paths() {
        let (shop, cart) = (
            claims(&[("a.lan", "")], &[]),
            claims(&[("a.lan", "/x")], &[]),
        );
        let said = between(("two/b", &cart), ("one/a", &shop));
        assert_eq!(said.as_deref(), Some("the host a.lan belongs to one/a"));
        assert_eq!(between(("one/b", &cart), ("one/a", &shop)), None);
        let said = between(("one/b", &shop), ("one/a", &shop));
        assert_eq!(said.as_deref(), Some("a.lan/ is a route of one/a"));
    }

    #[test]
    fn a_wildcard_and_the_names_that_it_covers_belong_to_one_namespace() {
        let wild = claims(&[("*.shop.lan", "")], &[]);
        for (host, refused) in [
            ("a.shop.lan", true),
            ("*.shop.lan", true),
            ("shop.lan", false),
            ("a.b.shop.lan", false),
            ("*.a.shop.lan", false),
        ] {
            let one = claims(&[(host, "")], &[]);
            let found = between(("two/b", &one), ("one/a", &wild)).is_some();
            assert_eq!(found, refused, "{host}");
            let found = between(("one/a", &wild), ("two/b", &one)).is_some();
            assert_eq!(found, refused, "{host} was first");
        }
    }

    #[test]
    fn ports_80_and_443_serve_routes_or_a_workload() {
        let (routes, port) = (claims(&[("a.lan", "")], &[]), claims(&[], &[80]));
        let said = between(("one/a", &routes), ("two/b", &port)).unwrap();
        assert!(said.contains("two/b has it as a host port"), "{said}");
        let said = between(("two/b", &port), ("one/a", &routes)).unwrap();
        assert!(
            said.contains("serves routes, such as a.lan of one/a"),
            "{said}"
        );
        let (one, two) = (key("one/a"), key("two/b"));
        // Without an ingress the ports are like any others.
        assert_eq!(conflict_of_two((&one, &routes), (&two, &port), false), None);
    }

    #[test]
    fn a_port_of_machines_that_serve_routes_has_one_owner() {
        let on_ingress = |port: u16, protocol| WorkloadClaims {
            on_ingress: [(port, protocol)].into(),
            ..WorkloadClaims::default()
        };
        let (postgres, dns) = (
            on_ingress(5432, Protocol::Tcp),
            on_ingress(5432, Protocol::Udp),
        );
        let on_instances = WorkloadClaims {
            on_instances: [(5432, Protocol::Tcp)].into(),
            ..WorkloadClaims::default()
        };
        let owner = key("one/db");
        let between = |claims: &WorkloadClaims, theirs: &WorkloadClaims, everywhere| {
            let found = port_conflict(claims, (&owner, theirs), everywhere);
            found.map(|conflict| conflict.in_words("one/db"))
        };
        let said = between(&postgres, &postgres, false).unwrap();
        let expected = "one/db has port 5432/TCP of the machines that serve routes as a host port";
        assert_eq!(said, expected);
        assert_eq!(between(&dns, &postgres, true), None);
        // An instance finds a machine that serves no routes, if there is one.
        assert_eq!(between(&on_instances, &postgres, false), None);
        let said = between(&on_instances, &postgres, true).unwrap();
        assert_eq!(said, expected);
        // The other way round the places of the instances decide.
        assert_eq!(between(&postgres, &on_instances, true), None);
    }

    #[test]
    fn the_first_keeps_what_was_stored_twice() {
        let keys = ["one/a", "two/b", "one/c"].map(key);
        let [first, second, third] = &keys;
        let mut owners = RouteOwners::default();
        assert_eq!(owners.take(first, "a.shop.lan", "/"), None);
        assert_eq!(owners.take(first, "a.shop.lan", "/x"), None);
        for host in ["a.shop.lan", "*.shop.lan"] {
            let found = owners.take(second, host, "/y");
            assert_eq!(
                found.as_ref().map(ClaimConflict::owner),
                Some(first),
                "{host}"
            );
        }
        assert_eq!(owners.take(second, "b.shop.lan", "/"), None);
        // The wildcard covers a name of the other namespace.
        let found = owners.take(third, "*.shop.lan", "/");
        assert_eq!(found.as_ref().map(ClaimConflict::owner), Some(second));
        let found = owners.take(third, "a.shop.lan", "/x/").unwrap();
        assert!(matches!(found, ClaimConflict::Route { .. }), "{found:?}");
        assert_eq!(owners.take(third, "*.cart.lan", "/"), None);
        assert!(owners.take(second, "c.cart.lan", "/").is_some());
    }
}
