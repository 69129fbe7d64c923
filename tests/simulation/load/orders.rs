//! Users whose routes want certificates by ACME: two workloads with three hosts, and the settings `acme`.
//! The hosts are proved by HTTP or by DNS.

use std::sync::Arc;

use axum::body::Body;
use hyper::Request;
use serde_json::{Value, json};

use crate::{
    api_calls::Net,
    checks::monitor::Monitor,
    initial_cluster::cluster,
    load::{
        added::{Requests, workload_file},
        routes::{INSTANCES, PORT},
        user::NAMESPACE,
    },
    machines::{acme_servers::AcmeServers, dns_zones::ZoneFault},
    random::Random,
};
use kat_bundle::SourceFile;
use kat_testing::MemoryStore;
use kat_types::{
    resource::{AcmeSettings, AcmeZone},
    store::{keys, transaction::WriteOperation},
};

/// A workload, and its hosts.
pub(crate) type OrderedWorkload = (&'static str, &'static [&'static str]);

/// How the hosts are proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proofs {
    Http,
    /// By a hook. Two hosts have their records at one name.
    Dns,
}

impl Proofs {
    /// The workloads, and the hosts of each.
    pub(crate) fn workloads(self) -> [OrderedWorkload; 2] {
        match self {
            Self::Http => [
                ("shop", &["shop.example.org", "www.example.org"]),
                ("blog", &["blog.example.org"]),
            ],
            Self::Dns => [
                ("shop", &[DOMAIN, "*.example.org"]),
                ("blog", &["blog.example.net"]),
            ],
        }
    }

    /// All hosts.
    pub(crate) fn hosts(self) -> Vec<&'static str> {
        let workloads = self.workloads().into_iter();
        workloads.flat_map(|(_, hosts)| hosts).copied().collect()
    }

    fn zones(self) -> Vec<AcmeZone> {
        let zones: &[&str] = match self {
            Self::Http => &[],
            Self::Dns => &[DOMAIN, "example.net"],
        };
        let zones = zones.iter().map(|zone| AcmeZone {
            zone: (*zone).to_owned(),
            rfc2136: None,
            hook: Some("zones".to_owned()),
        });
        zones.collect()
    }
}

/// The host that has a wildcard beside it, and its zone.
pub(crate) const DOMAIN: &str = "example.org";
const DIRECTORIES: [&str; 2] = [
    "https://acme.example/directory",
    "https://other.example/directory",
];

/// The users, and the servers that they use.
pub(crate) struct OrderLoad {
    pub random: Random,
    pub proofs: Proofs,
    pub servers: Arc<AcmeServers>,
    pub settings: AcmeSettings,
    requests: Requests,
    version: u64,
}

impl OrderLoad {
    /// Users who have not agreed to the servers' terms yet.
    pub(crate) fn new(
        seed: u64,
        proofs: Proofs,
        servers: Arc<AcmeServers>,
        net: &Arc<Net>,
        monitor: &Arc<Monitor>,
    ) -> Self {
        Self {
            random: Random::new(seed ^ 0x006f_7264_6572),
            proofs,
            servers,
            settings: AcmeSettings {
                directory: Some(DIRECTORIES[0].to_owned()),
                email: Some("first@example.org".to_owned()),
                dns: proofs.zones(),
                ..AcmeSettings::default()
            },
            requests: Requests::new(net, monitor),
            version: 1,
        }
    }

    /// The directory of the settings.
    pub(crate) fn directory(&self) -> &str {
        self.settings.directory.as_deref().unwrap()
    }

    /// Writes the settings as the API does.
    pub(crate) fn write_settings(&self, store: &MemoryStore) {
        let mut cluster = cluster();
        cluster.spec.acme = self.settings.clone();
        let text = serde_json::to_vec(&cluster).unwrap();
        store.write_now(&[WriteOperation::Put(keys::CLUSTER.to_owned(), text)]);
    }

    /// Agrees to the terms, or takes that back.
    pub(crate) fn agree(&mut self, store: &MemoryStore, agree: bool) {
        self.settings.agree_to_terms = agree;
        self.write_settings(store);
    }

    /// Takes another address for messages.
    pub(crate) fn change_email(&mut self, store: &MemoryStore) {
        let number = self.random.below(1_000);
        self.settings.email = Some(format!("address{number}@example.org"));
        self.write_settings(store);
    }

    /// Takes the other server.
    pub(crate) fn change_directory(&mut self, store: &MemoryStore) {
        let is_first = self.directory() == DIRECTORIES[0];
        let other = DIRECTORIES[usize::from(is_first)];
        self.settings.directory = Some(other.to_owned());
        self.write_settings(store);
    }

    /// From now on this is wrong with the zones.
    pub(crate) fn set_zone_fault(&self, fault: ZoneFault) {
        self.servers.with_zones(|zones| zones.set_fault(fault));
    }

    /// Something is wrong with the zones.
    pub(crate) fn break_zones(&mut self) {
        let fault = match self.random.below(5) {
            0 => ZoneFault::Late(self.random.milliseconds(1_000, 30_000)),
            1 => ZoneFault::Unseen,
            2 => ZoneFault::Fails,
            3 => ZoneFault::Hangs,
            _ => ZoneFault::Keeps,
        };
        self.set_zone_fault(fault);
    }

    pub(crate) fn apply(&self, to: &str, workload: &str) {
        let files = files(self.proofs, workload, self.version);
        self.requests.apply(to, workload, &files);
    }

    /// Applies another version.
    pub(crate) fn roll_out(&mut self, to: &str, workload: &str) {
        self.version += 1;
        self.apply(to, workload);
    }

    pub(crate) fn delete(&self, to: &str, workload: &str) {
        let path = format!("/v1alpha1/n/{NAMESPACE}/workloads/{workload}");
        let request = Request::delete(path).body(Body::empty());
        self.requests.send(to, workload, request.unwrap());
    }
}

fn files(proofs: Proofs, workload: &str, version: u64) -> Vec<SourceFile> {
    let workloads = proofs.workloads().into_iter();
    let mut hosts = workloads.filter(|(name, _)| *name == workload);
    let (_, hosts) = hosts.next().unwrap();
    let routes = hosts.iter().map(|host| {
        json!({
            "host": host,
            "path": "/",
            "servicePort": PORT,
            "tls": true,
        })
    });
    let routes: Vec<Value> = routes.collect();
    let balancer = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "VirtualLoadBalancer",
        "spec": {"ports": [{"name": "web", "containerPort": PORT}], "ingress": routes},
    });
    vec![
        workload_file(
            workload,
            "Service",
            version,
            &json!({"replicas": INSTANCES}),
        ),
        SourceFile {
            name: "VirtualLoadBalancer.kat".to_owned(),
            text: balancer.to_string(),
        },
    ]
}
