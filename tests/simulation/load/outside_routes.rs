//! Documents of kind Route: two paths of a host outside KAT, and the host and path of a workload, which only
//! one of both gets. Its steps have a generator of their own, so that the other steps of a seed stay as they
//! are.

use std::sync::Arc;

use axum::body::Body;
use hyper::{Request, header};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    api_calls::Net,
    checks::monitor::Monitor,
    faults::disabled_safeguards::Without,
    load::added::Requests,
    random::Random,
    run::{HEALED_WITHIN, SECOND, Scenario},
    world::World,
};
use kat_types::store::{ingress::OutsideRoute, keys};

/// A document of kind Route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrittenRoute {
    pub host: &'static str,
    pub path: &'static str,
    /// Addresses that requests are forwarded to, one after the other.
    pub targets: [&'static str; 2],
}

/// Routes that no workload claims.
pub(crate) const FREE: [WrittenRoute; 2] = [
    WrittenRoute {
        host: "nas.lan",
        path: "/",
        targets: ["192.168.7.5:5000", "192.168.7.6:5000"],
    },
    WrittenRoute {
        host: "nas.lan",
        path: "/files",
        targets: ["192.168.7.5:8080", "192.168.7.7:80"],
    },
];
/// The route of the workload [`SITE`](crate::load::routes::SITE).
pub(crate) const CONTESTED: WrittenRoute = WrittenRoute {
    host: "site.lan",
    path: "/",
    targets: ["192.168.7.8:80", "192.168.7.9:80"],
};

/// The users of routes to targets outside KAT.
pub(crate) struct OutsideRouteLoad {
    random: Random,
    requests: Requests,
}

impl OutsideRouteLoad {
    /// In the seeds with workloads with routes. Runs without a safeguard have none, so that they find the
    /// same violations as before.
    pub(crate) fn of_seed(
        seed: u64,
        without: Without,
        net: &Arc<Net>,
        monitor: &Arc<Monitor>,
    ) -> Option<Self> {
        let has = without == Without::Nothing && seed % 5 == 3;
        has.then(|| Self {
            random: Random::new(seed ^ 0x6f75_7473_6964_6521),
            requests: Requests::new(net, monitor),
        })
    }

    fn write(&self, to: &str, route: WrittenRoute, target: usize) {
        let WrittenRoute {
            host,
            path,
            targets,
        } = route;
        let body = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "Route",
            "spec": {"host": host, "path": path, "to": format!("http://{}", targets[target])},
        });
        let request = Request::put("/v1alpha1/routes")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()));
        self.requests
            .send(to, &format!("{host}{path}"), request.unwrap());
    }

    fn delete(&self, to: &str, route: WrittenRoute) {
        let WrittenRoute { host, path, .. } = route;
        let request = Request::delete(format!("/v1alpha1/routes?host={host}&path={path}"));
        let request = request.body(Body::empty());
        self.requests
            .send(to, &format!("{host}{path}"), request.unwrap());
    }
}

impl World {
    /// Whether the document is stored.
    pub(crate) fn has_outside_route(&self, route: WrittenRoute) -> bool {
        let key = keys::outside_route(&OutsideRoute::name(route.host, route.path));
        let items = self.store.peek(&key).items;
        items.iter().any(|item| item.key == key)
    }
}

impl Scenario {
    /// Draws a step of routes to targets outside KAT.
    pub(crate) fn step_of_the_outside_routes(&mut self) {
        let to = self.asked();
        let Some(load) = &mut self.world.outside_routes else {
            return;
        };
        let random = &mut load.random;
        let what = random.below(100);
        let target = random.index(2);
        let free = FREE[random.index(FREE.len())];
        match what {
            0..25 => load.write(&to, free, target),
            25..40 => load.delete(&to, free),
            40..55 => load.write(&to, CONTESTED, target),
            55..70 => load.delete(&to, CONTESTED),
            _ => {}
        }
    }

    /// Every machine that serves routes forwards those outside KAT, and they leave with their documents.
    /// The route that a workload has too leaves first: the workload is promised it.
    pub(crate) async fn settle_the_outside_routes(&mut self) {
        if self.world.outside_routes.is_none() {
            return;
        }
        for is_served in [true, false] {
            let end = Instant::now() + HEALED_WITHIN;
            loop {
                self.write_outside_routes(is_served);
                self.pass_in(SECOND / 5, SECOND).await;
                if self.is_over() {
                    return;
                }
                let served: &[WrittenRoute] = if is_served { &FREE } else { &[] };
                let Some(wrong) = self.world.outside_routes_wrong(served) else {
                    break;
                };
                if Instant::now() >= end {
                    let text = format!("routes outside KAT after {HEALED_WITHIN:?}: {wrong}");
                    self.world.monitor.violated(text);
                }
            }
        }
    }

    /// Writes or deletes what is not yet as it is to be.
    fn write_outside_routes(&mut self, is_served: bool) {
        let to = self.asked();
        let world = &self.world;
        let Some(load) = &world.outside_routes else {
            return;
        };
        if world.has_outside_route(CONTESTED) {
            load.delete(&to, CONTESTED);
        }
        for route in FREE {
            match (world.has_outside_route(route), is_served) {
                (false, true) => load.write(&to, route, 0),
                (true, false) => load.delete(&to, route),
                (true, true) | (false, false) => {}
            }
        }
    }
}
