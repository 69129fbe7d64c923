//! Documents of kind Route: a host and path is never a workload's and a document's, and the machines that
//! serve routes forward exactly what is stored.
//!
//! That a host and path has one owner in what machines get, workloads and documents alike, is checked with
//! the [routes of workloads](crate::checks::routes).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use crate::{
    load::{
        outside_routes::{CONTESTED, WrittenRoute},
        routes::SITE,
    },
    world::World,
};
use kat_agent::IngressContent;
use kat_types::{
    ingress::RouteAction,
    resource::CORE_NAMESPACE,
    store::{
        ingress::{OutsideRoute, OutsideRouteRecord},
        keys,
    },
};

/// What the checks remember of documents of kind Route.
#[derive(Default)]
pub(crate) struct OutsideRouteChecks {
    /// Revision of the store at the last check.
    revision: i64,
}

/// The targets by host and path.
type Targets = BTreeMap<(String, String), BTreeSet<SocketAddr>>;

/// The routes to targets outside KAT that a machine serves.
fn served(content: &IngressContent) -> Targets {
    let begins = format!("{CORE_NAMESPACE}/");
    let routes = content.routes.routes.iter();
    let outside = routes.filter(|(name, _)| name.starts_with(&begins));
    let outside = outside.map(|(_, route)| {
        let upstream = match &route.action {
            RouteAction::Service { upstream } => content.upstreams.upstreams.get(upstream),
            RouteAction::Redirect { .. } | RouteAction::Maintenance {} => None,
        };
        let instances = upstream.into_iter().flat_map(|one| one.instances.values());
        let targets = instances.map(|one| SocketAddr::new(one.address, one.port));
        let targets: BTreeSet<SocketAddr> = targets.collect();
        ((route.host.clone(), route.path.clone()), targets)
    });
    outside.collect()
}

impl World {
    /// A host and path belongs to one workload or to one document.
    pub(crate) fn check_outside_routes(&mut self) {
        if self.outside_routes.is_none() {
            return;
        }
        let revision = self.store.revision();
        if std::mem::replace(&mut self.outside_route_checks.revision, revision) == revision {
            return;
        }
        if self.has_workload(SITE) && self.has_outside_route(CONTESTED) {
            let WrittenRoute { host, path, .. } = CONTESTED;
            let text = format!("{host}{path} belongs to workload {SITE} and to a Route");
            self.monitor.violated(text);
        }
    }

    /// What machines serve of documents of kind Route, where it is not exactly these.
    pub(crate) fn outside_routes_wrong(&self, routes: &[WrittenRoute]) -> Option<String> {
        let mut stored = Targets::new();
        for item in self.store.peek(keys::OUTSIDE_ROUTES).items {
            let record: OutsideRouteRecord = serde_json::from_slice(&item.value).unwrap();
            let target = record.spec.to.strip_prefix("http://").unwrap();
            let targets = BTreeSet::from([target.parse().unwrap()]);
            stored.insert((record.spec.host, record.spec.path), targets);
        }
        let names = |targets: &Targets| {
            let names = targets
                .keys()
                .map(|(host, path)| OutsideRoute::name(host, path));
            names.collect::<BTreeSet<String>>()
        };
        let wanted = routes.iter();
        let wanted = wanted.map(|route| OutsideRoute::name(route.host, route.path));
        let wanted: BTreeSet<String> = wanted.collect();
        if names(&stored) != wanted {
            return Some(format!(
                "{:?} are stored, and should be {wanted:?}",
                names(&stored)
            ));
        }
        let mut machines = self.ingress_machines().into_iter();
        machines.find_map(|(machine, serves)| {
            let content = self.route_checks.content(machine);
            let shown = content.map(served).unwrap_or_default();
            let expected = match serves {
                true => stored.clone(),
                false => Targets::new(),
            };
            (shown != expected)
                .then(|| format!("{machine} serves {shown:?}, and should serve {expected:?}"))
        })
    }
}
