//! Routes: a host with a path belongs to one workload, each machine that serves routes has exactly those of
//! the stored workloads and only instances that serve behind them, and certificates never go back.
//!
//! The loop of the agent that writes the files of `kat-ingress` does not run: it writes to a folder of the
//! machine itself. Its decisions are pure, and are taken here from the machine's copy.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    load::{
        added::live_of,
        routes::{CERTIFICATE, INSTANCES, PORT, ROUTED, SITE, claims},
        secrets::private_key,
        user::NAMESPACE,
    },
    world::World,
};
use kat_agent::{IngressContent, ingress_content, needs_new_files};
use kat_store::MirrorState;
use kat_types::{
    ingress::IngressRoute,
    machine::node_labels::is_for_ingress,
    secrets::{SecretRecord, SecretVersion},
    services::BackendState,
    store::{
        ingress::AssignedRoutes,
        keys,
        records::{NodeRegistration, WorkloadMeta},
    },
};

/// An agent that starts anew may be shown a state that is older than its last one: it keeps its position
/// at most every 5 s, and a confirmed copy has every change that is older than 6 s.
const KEPT: Duration = Duration::from_secs(7);

/// What the checks remember of routes.
#[derive(Default)]
pub(crate) struct RouteChecks {
    machines: BTreeMap<String, WrittenRoutes>,
    /// Revision of the store at the last check.
    revision: i64,
    /// The chain of each version of a certificate.
    chains: BTreeMap<(String, u64), String>,
}

impl RouteChecks {
    /// What `kat-ingress` of a machine serves; `None` for one that has written nothing yet.
    pub(crate) fn content(&self, machine: &str) -> Option<&IngressContent> {
        self.machines.get(machine).map(|written| &written.content)
    }
}

/// The files of `kat-ingress` on a machine.
#[derive(Default)]
struct WrittenRoutes {
    /// Number of the process of `kat-agent`.
    process: u32,
    /// When that process was last seen.
    seen: Option<Instant>,
    /// The copy that the process wrote last.
    copy: Option<Arc<MirrorState>>,
    content: IngressContent,
    /// The newest certificate that was ever written, by workload and name.
    certificates: BTreeMap<(String, String), NewestCertificate>,
}

struct NewestCertificate {
    version: SecretVersion,
    since: Instant,
}

impl WrittenRoutes {
    /// Another process has started.
    fn restart(&mut self, process: u32) {
        let seen = self.seen;
        self.process = process;
        self.copy = None;
        self.certificates.retain(|_, newest| {
            seen.is_some_and(|seen| seen.saturating_duration_since(newest.since) >= KEPT)
        });
    }

    /// The host and path that two routes have.
    fn served_twice(&self) -> Option<String> {
        let mut owners: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        self.content.routes.routes.iter().find_map(|(name, route)| {
            let other = owners.insert((route.host.as_str(), route.path.as_str()), name)?;
            Some(format!("{other} and {name}"))
        })
    }

    /// Takes the versions of the certificates that were written; returns what is wrong with them.
    fn take_certificates(
        &mut self,
        machine: &str,
        copy: &MirrorState,
        chains: &mut BTreeMap<(String, u64), String>,
    ) -> Option<String> {
        let prefix = keys::desired_routes(machine);
        let mut wrong = None;
        for entry in copy.below(&prefix) {
            let workload = entry.key.strip_prefix(&prefix).unwrap();
            let assigned: AssignedRoutes = serde_json::from_slice(&entry.value).unwrap();
            let versions = assigned.secrets.map(|secrets| secrets.versions);
            for (name, version) in versions.into_iter().flatten() {
                let certificates = &self.content.certificates.certificates;
                let Some(one) = certificates.get(&format!("{workload}/{name}")) else {
                    return Some(format!("has no certificate {name} for {workload}"));
                };
                let id = (version.uid.clone(), version.version);
                let chain = chains.entry(id).or_insert_with(|| one.chain.clone());
                if *chain != one.chain {
                    wrong = Some(format!("has another certificate as {version:?} of {name}"));
                }
                let place = (workload.to_owned(), name.clone());
                let newest = self.certificates.get(&place);
                let known = newest.filter(|newest| newest.version.uid == version.uid);
                match known.map(|newest| newest.version.version) {
                    Some(before) if before > version.version => {
                        wrong = Some(format!(
                            "had version {before} of {name} for {workload}, and goes back to {}",
                            version.version
                        ));
                    }
                    Some(before) if before == version.version => {}
                    _ => {
                        let since = Instant::now();
                        let newest = NewestCertificate { version, since };
                        self.certificates.insert(place, newest);
                    }
                }
            }
        }
        wrong
    }
}

impl World {
    /// Checks what must hold of routes at every moment.
    pub(crate) fn check_routes(&mut self) {
        if self.routes.is_none() {
            return;
        }
        self.check_route_owners();
        for machine in self.machines.iter().filter(|machine| machine.joined) {
            let Some(process) = &machine.process else {
                continue;
            };
            if machine.way.now().hung {
                continue;
            }
            let name = &machine.name;
            let RouteChecks {
                machines, chains, ..
            } = &mut self.route_checks;
            let written = machines.entry(name.clone()).or_default();
            if written.process != machine.processes {
                written.restart(machine.processes);
            }
            written.seen = Some(Instant::now());
            let copy = process.copy();
            if !needs_new_files(&copy, written.copy.as_deref(), name) {
                continue;
            }
            written.content = ingress_content(&copy.entries, name, private_key(name).bytes());
            let wrong = written.take_certificates(name, &copy, chains);
            written.copy = Some(copy);
            if let Some(why) = wrong {
                self.monitor.violated(format!("{name} {why}"));
            }
            if let Some(twice) = written.served_twice() {
                self.monitor.violated(format!(
                    "the routes of {name} have a host with a path twice: {twice}"
                ));
            }
        }
    }

    /// What the leader wrote gives a host with a path to one workload, on whatever machine.
    fn check_route_owners(&mut self) {
        let revision = self.store.revision();
        if std::mem::replace(&mut self.route_checks.revision, revision) == revision {
            return;
        }
        let mut owners: BTreeMap<(String, String), String> = BTreeMap::new();
        for machine in self.joined() {
            let prefix = keys::desired_routes(&machine.name);
            for item in self.store.peek(&prefix).items {
                let workload = item.key.strip_prefix(&prefix).unwrap();
                let assigned: AssignedRoutes = serde_json::from_slice(&item.value).unwrap();
                for route in assigned.routes {
                    let place = (route.host, route.path);
                    let text = format!("{}{}", place.0, place.1);
                    let owner = owners.entry(place).or_insert_with(|| workload.to_owned());
                    if *owner != workload {
                        self.monitor.violated(format!(
                            "the routes of {} have {text} for {workload}, and it is a route of {owner}",
                            machine.name
                        ));
                    }
                }
            }
        }
    }

    /// The stored workloads with routes, in the order in which they were created.
    fn routed_workloads(&self) -> Vec<&'static str> {
        let metas = ROUTED.into_iter().filter_map(|workload| {
            let meta: WorkloadMeta = self.stored(&keys::workload_meta(NAMESPACE, workload))?;
            (!meta.deleting).then_some((meta.created, workload))
        });
        let mut found: Vec<_> = metas.collect();
        found.sort_unstable();
        found.into_iter().map(|(_, workload)| workload).collect()
    }

    /// Names of the joined machines, and whether each is to serve routes.
    pub(crate) fn ingress_machines(&self) -> Vec<(&str, bool)> {
        let is_labelled = |name: &str| {
            let registration: Option<NodeRegistration> = self.stored(&keys::registration(name));
            registration.is_some_and(|registration| is_for_ingress(&registration.labels))
        };
        let machines = self.joined().map(|machine| machine.name.as_str());
        let machines: Vec<(&str, bool)> = machines.map(|name| (name, is_labelled(name))).collect();
        let none = !machines.iter().any(|(_, labelled)| *labelled);
        let machines = machines.into_iter();
        machines
            .map(|(name, labelled)| (name, labelled || none))
            .collect()
    }

    /// What of the routes is not as promised once all is healed.
    pub(crate) fn routes_missing(&self) -> Option<String> {
        let workloads = self.routed_workloads();
        // One of the two that claim the same path has it.
        if !workloads.contains(&SITE) || workloads.len() < 2 {
            return Some(format!(
                "of the workloads with routes only {workloads:?} are there"
            ));
        }
        let mut taken = BTreeSet::new();
        let mut expected: BTreeMap<String, bool> = BTreeMap::new();
        for workload in &workloads {
            for route in claims(workload) {
                if taken.insert((route.host, route.path)) {
                    let name = format!("{NAMESPACE}/{workload}/{}{}", route.host, route.path);
                    expected.insert(name, route.tls);
                }
            }
        }
        let live = self.live();
        let mut behind: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        for workload in &workloads {
            let begins = format!("{NAMESPACE}/{workload}/");
            let units = live_of(&live, workload);
            if units.len() != INSTANCES {
                return Some(format!("{workload} has {units:?}"));
            }
            if expected.keys().any(|name| name.starts_with(&begins)) {
                let known = units
                    .iter()
                    .filter_map(|(unit, _)| self.monitor.assigned(unit));
                let addresses = known.map(|known| IpAddr::from(known.address));
                behind.insert(
                    format!("{NAMESPACE}/{workload}:{PORT}"),
                    addresses.collect(),
                );
            }
        }
        let mut machines = self.ingress_machines().into_iter();
        machines.find_map(|(machine, serves)| match serves {
            true => self.machine_lacks(machine, &expected, &behind),
            false => self.machine_has_routes(machine),
        })
    }

    /// Why what a machine serves is not these routes, with instances at these addresses behind them.
    fn machine_lacks(
        &self,
        machine: &str,
        expected: &BTreeMap<String, bool>,
        behind: &BTreeMap<String, BTreeSet<IpAddr>>,
    ) -> Option<String> {
        let Some(written) = self.route_checks.machines.get(machine) else {
            return Some(format!("{machine} has written no routes"));
        };
        let content = &written.content;
        let routes = content.routes.routes.iter();
        let with_certificate = |(name, route): (&String, &IngressRoute)| {
            let tls = route.tls.as_ref();
            let is_ready = tls.is_some_and(|tls| tls.waits_for.is_none());
            (name.clone(), is_ready)
        };
        let shown: BTreeMap<String, bool> = routes.map(with_certificate).collect();
        if shown != *expected {
            return Some(format!(
                "the routes of {machine} are {shown:?}, and should be {expected:?}"
            ));
        }
        let upstreams = content.upstreams.upstreams.iter();
        let serving = upstreams.map(|(name, upstream)| {
            let instances = upstream.instances.values();
            let states: BTreeMap<IpAddr, BackendState> =
                instances.map(|one| (one.address, one.state)).collect();
            (name.clone(), states)
        });
        let serving: BTreeMap<String, BTreeMap<IpAddr, BackendState>> = serving.collect();
        let wanted = behind.iter().map(|(name, addresses)| {
            let states = addresses.iter().map(|one| (*one, BackendState::Serving));
            (name.clone(), states.collect::<BTreeMap<_, _>>())
        });
        let wanted: BTreeMap<String, BTreeMap<IpAddr, BackendState>> = wanted.collect();
        if serving != wanted {
            return Some(format!(
                "the routes of {machine} lead to {serving:?}, and should lead to {wanted:?}"
            ));
        }
        let stored = keys::secret(&format!("{NAMESPACE}/{CERTIFICATE}"));
        let stored: Option<SecretRecord> = self.stored(&stored);
        let newest = stored.as_ref().map(SecretVersion::of);
        let prefix = keys::desired_routes(machine);
        let copy = written.copy.as_ref();
        let entries = copy.into_iter().flat_map(|copy| copy.below(&prefix));
        let given = entries.filter_map(|entry| {
            let assigned: AssignedRoutes = serde_json::from_slice(&entry.value).unwrap();
            assigned.secrets
        });
        let mut given = given.flat_map(|secrets| secrets.versions.into_values());
        let old = given.find(|version| Some(version) != newest.as_ref())?;
        Some(format!(
            "the routes of {machine} have the certificate {old:?}, and {newest:?} is stored"
        ))
    }

    /// The routes of a machine that is to have none.
    fn machine_has_routes(&self, machine: &str) -> Option<String> {
        let written = self.route_checks.machines.get(machine)?;
        let names: Vec<&String> = written.content.routes.routes.keys().collect();
        (!names.is_empty())
            .then(|| format!("the routes of {machine} are {names:?}, and should be none"))
    }

    /// What is left of the workloads with routes once they are deleted.
    pub(crate) fn routes_left(&self) -> Option<String> {
        let live = self.live();
        let mut workloads = ROUTED.into_iter();
        if let Some(left) = workloads.find(|workload| self.is_left(workload, &live)) {
            return Some(format!("{left} is not gone"));
        }
        self.joined().find_map(|machine| {
            let prefix = keys::desired_routes(&machine.name);
            let stored = self.store.peek(&prefix).items.into_iter().next();
            let stored = stored.map(|item| {
                format!(
                    "the routes of {} have {} in the store",
                    machine.name, item.key
                )
            });
            stored.or_else(|| self.machine_has_routes(&machine.name))
        })
    }
}
