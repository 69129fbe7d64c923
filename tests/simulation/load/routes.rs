//! Workloads with routes, of which two claim the same path of a host, the certificate of that host, which a
//! user renews, and machines that get and lose the label for ingress. Its steps have a generator of their
//! own, so that the other steps of a seed stay as they are.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use axum::body::Body;
use base64::{Engine, prelude::BASE64_STANDARD};
use hyper::{Request, header};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    api_calls::Net,
    checks::monitor::Monitor,
    faults::disabled_safeguards::Without,
    load::{
        added::{Requests, workload_file},
        user::NAMESPACE,
    },
    random::Random,
    run::{HEALED_WITHIN, SECOND, Scenario},
    world::World,
};
use kat_bundle::{SourceFile, pack};
use kat_pki::{CertificateKeyPair, ingress::stand_in_certificate};
use kat_types::{
    machine::node_labels::{INGRESS_ROLE, ROLE_LABEL},
    store::{
        ingress::{TLS_CERTIFICATE, TLS_KEY},
        keys,
    },
};

/// Has two paths of [`HOST`].
const SHOP: &str = "shop";
/// Claims one of the paths of [`SHOP`].
const RIVAL: &str = "rival";
/// Has a host of its own, without TLS.
pub(crate) const SITE: &str = "site";
/// The workloads with routes.
pub(crate) const ROUTED: [&str; 3] = [SHOP, RIVAL, SITE];
/// Host with a certificate that a user brings.
const HOST: &str = "shop.lan";
/// The secret with the certificate of [`HOST`].
pub(crate) const CERTIFICATE: &str = "shop-tls";
/// The container's port.
pub(crate) const PORT: u16 = 8080;
/// Instances of each of the workloads.
pub(crate) const INSTANCES: usize = 2;

/// The certificates that a user brings one after the other. They are generated once for each run of the
/// program; nothing in a simulation depends on their bytes.
static BROUGHT: LazyLock<Vec<CertificateKeyPair>> = LazyLock::new(|| {
    let issued: Timestamp = "2025-12-31T00:00:00Z".parse().unwrap();
    let made = (0..6).map(|_| stand_in_certificate(HOST, issued).unwrap());
    made.collect()
});

/// A route that a workload's file has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClaimedRoute {
    pub host: &'static str,
    pub path: &'static str,
    /// With the certificate in [`CERTIFICATE`].
    pub tls: bool,
}

const fn claim(host: &'static str, path: &'static str, tls: bool) -> ClaimedRoute {
    ClaimedRoute { host, path, tls }
}

/// The routes of a workload.
pub(crate) fn claims(workload: &str) -> &'static [ClaimedRoute] {
    const OF_SHOP: [ClaimedRoute; 2] = [claim(HOST, "/", true), claim(HOST, "/api", true)];
    const OF_RIVAL: [ClaimedRoute; 1] = [claim(HOST, "/", true)];
    const OF_SITE: [ClaimedRoute; 1] = [claim("site.lan", "/", false)];
    match workload {
        SHOP => &OF_SHOP,
        RIVAL => &OF_RIVAL,
        _ => &OF_SITE,
    }
}

fn files(workload: &str, version: u64) -> Vec<SourceFile> {
    let routes = claims(workload).iter().map(|route| {
        let mut file = json!({"host": route.host, "path": route.path, "servicePort": PORT});
        if route.tls {
            file["tls"] = json!({"secret": CERTIFICATE});
        }
        file
    });
    let routes: Vec<Value> = routes.collect();
    let balancer = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "VirtualLoadBalancer",
        "spec": {"ports": [{"name": "web", "containerPort": PORT}], "ingress": routes},
    });
    let spec = json!({"replicas": INSTANCES});
    vec![
        workload_file(workload, "Service", version, &spec),
        SourceFile {
            name: "VirtualLoadBalancer.kat".to_owned(),
            text: balancer.to_string(),
        },
    ]
}

/// The users of the routes.
pub(crate) struct RouteLoad {
    random: Random,
    requests: Requests,
    version: u64,
    /// Number of certificates that were brought.
    brought: usize,
}

impl RouteLoad {
    pub(crate) fn of_seed(
        seed: u64,
        without: Without,
        net: &Arc<Net>,
        monitor: &Arc<Monitor>,
    ) -> Option<Self> {
        let has = match without {
            Without::Nothing => seed % 5 == 3,
            _ => without.is_about_routes(),
        };
        has.then(|| Self {
            random: Random::new(seed ^ 0x726f_7574_6573),
            requests: Requests::new(net, monitor),
            version: 1,
            brought: 0,
        })
    }

    fn apply(&self, to: &str, workload: &str) {
        let archive = pack(&files(workload, self.version)).unwrap();
        let request = Request::put(path(workload))
            .header(header::CONTENT_TYPE, "application/gzip")
            .body(Body::from(archive));
        self.requests.send(to, workload, request.unwrap());
    }

    fn delete(&self, to: &str, workload: &str) {
        let request = Request::delete(path(workload)).body(Body::empty());
        self.requests.send(to, workload, request.unwrap());
    }

    fn bring_certificate(&mut self, to: &str) {
        let pair = &BROUGHT[self.brought % BROUGHT.len()];
        self.brought += 1;
        let value = |text: &str| BASE64_STANDARD.encode(text);
        let body = json!({"values": {
            TLS_CERTIFICATE: value(&pair.certificate_pem),
            TLS_KEY: value(&pair.key_pem),
        }});
        self.put(to, &format!("n/{NAMESPACE}/secrets/{CERTIFICATE}"), &body);
    }

    /// Sets or removes the label for ingress of a machine.
    fn label(&self, to: &str, machine: &str, is_for_ingress: bool) {
        let labels = is_for_ingress.then_some((ROLE_LABEL, INGRESS_ROLE));
        let labels: BTreeMap<_, _> = labels.into_iter().collect();
        let body = json!({"labels": labels});
        self.put(to, &format!("nodes/{machine}/labels"), &body);
    }

    fn put(&self, to: &str, object: &str, body: &Value) {
        let request = Request::put(format!("/v1alpha1/{object}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()));
        self.requests.send(to, object, request.unwrap());
    }
}

fn path(workload: &str) -> String {
    format!("/v1alpha1/n/{NAMESPACE}/workloads/{workload}")
}

impl World {
    /// Whether the certificate is stored. No route is applied before: the leader would make a
    /// certificate that stands in for it, on another thread, and the same seed has to be the same run.
    fn has_certificate(&self) -> bool {
        let key = keys::secret(&format!("{NAMESPACE}/{CERTIFICATE}"));
        !self.store.peek(&key).items.is_empty()
    }
}

impl Scenario {
    /// Draws a step of the routes.
    pub(crate) fn step_of_the_routes(&mut self) {
        let to = self.asked();
        let joined = self.world.joined().count();
        let has_certificate = self.world.has_certificate();
        let machines = &self.world.machines;
        let Some(routes) = &mut self.world.routes else {
            return;
        };
        if !has_certificate {
            routes.bring_certificate(&to);
            return;
        }
        let what = routes.random.below(100);
        let workload = ROUTED[routes.random.index(ROUTED.len())];
        let machine = &machines[routes.random.index(joined)].name;
        let is_changed = routes.random.chance(50);
        match what {
            0..40 => {
                routes.version += u64::from(is_changed);
                routes.apply(&to, workload);
            }
            40..55 => routes.delete(&to, workload),
            55..75 => routes.bring_certificate(&to),
            75..95 => routes.label(&to, machine, is_changed),
            _ => {}
        }
    }

    /// Every route is where it is promised, and leaves with its workload.
    pub(crate) async fn settle_the_routes(&mut self) {
        if self.world.routes.is_none() {
            return;
        }
        let end = Instant::now() + HEALED_WITHIN;
        loop {
            self.apply_missing_routes();
            self.pass_in(SECOND / 5, SECOND).await;
            if self.is_over() {
                return;
            }
            let Some(missing) = self.world.routes_missing() else {
                break;
            };
            if Instant::now() >= end {
                let text = format!("{HEALED_WITHIN:?} after all was healed: {missing}");
                self.world.monitor.violated(text);
            }
        }
        let end = Instant::now() + HEALED_WITHIN;
        while !self.is_over() {
            let Some(left) = self.world.routes_left() else {
                return;
            };
            let to = self.asked();
            for workload in ROUTED {
                if let Some(routes) = &self.world.routes
                    && self.world.has_workload(workload)
                {
                    routes.delete(&to, workload);
                }
            }
            if Instant::now() >= end {
                let text = format!("{left}, and the workloads with routes are deleted");
                self.world.monitor.violated(text);
            }
            self.pass_in(SECOND / 5, SECOND).await;
        }
    }

    /// Applies what has to be there: [`SITE`], and one of the two that claim the same path.
    fn apply_missing_routes(&mut self) {
        let to = self.asked();
        let has_certificate = self.world.has_certificate();
        let has = |workload: &str| self.world.has_workload(workload);
        let lacks_site = !has(SITE);
        let lacks_shop = !has(SHOP) && !has(RIVAL);
        let Some(routes) = &mut self.world.routes else {
            return;
        };
        if !has_certificate {
            routes.bring_certificate(&to);
            return;
        }
        if lacks_site {
            routes.apply(&to, SITE);
        }
        if lacks_shop {
            routes.apply(&to, SHOP);
        }
    }
}
