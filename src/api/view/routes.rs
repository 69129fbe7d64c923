//! Routes as users see them.

use std::collections::BTreeSet;

use super::ApiView;
use kat_pki::ingress::certificate_hash;
use kat_plan::{
    PlannedRoute, RouteIssuer, ingress_machines, internal_domains, order_in_words, planned_routes,
};
use kat_types::{
    api::{
        IngressAuthorityView, IngressReport, IngressState, Item, Metadata, NodePhase, RouteItem,
        RouteMachine, RouteStatus, RouteView, TrustedIngressAuthority,
    },
    ingress::{CERTIFICATES_FILE, ROUTES_FILE},
    reason::Reason,
    resource::{PlainHttp, Protocol},
    services::BackendState,
    store::{
        acme::{AcmeOrderState, LETS_ENCRYPT, server_name},
        revisions::WorkloadKey,
    },
};

/// An authority for ingress that clients have to trust beside the present one.
fn trusted(certificate: &str, domains: &BTreeSet<String>) -> TrustedIngressAuthority {
    TrustedIngressAuthority {
        certificate: certificate.to_owned(),
        fingerprint: certificate_hash(certificate).unwrap_or_default(),
        domains: domains.iter().cloned().collect(),
    }
}

impl ApiView<'_> {
    /// Routes of one namespace, or of all, by host and path.
    pub(crate) fn routes(&self, namespace: Option<&str>) -> Vec<RouteItem> {
        let routes = planned_routes(self.snapshot).into_iter();
        let own = routes.filter(|planned| {
            namespace.is_none_or(|namespace| planned.workload.namespace == namespace)
        });
        let mut items: Vec<_> = own
            .map(|planned| self.route_item(&planned, namespace.is_some()))
            .collect();
        items.sort_by(|one, other| {
            let key = |item: &RouteItem| (item.spec.host.clone(), item.spec.path.clone());
            key(one).cmp(&key(other))
        });
        items
    }

    /// Routes of one workload.
    pub(crate) fn routes_of(&self, key: &WorkloadKey) -> Vec<RouteItem> {
        let mut routes = self.routes(Some(&key.namespace));
        routes.retain(|route| route.spec.workload == key.name);
        routes
    }

    /// KAT's own authority for ingress.
    pub(crate) fn ingress_authority(&self) -> IngressAuthorityView {
        let stored = self.snapshot.ingress_authority.as_ref();
        let certificate =
            stored.map_or_else(String::new, |stored| stored.value.certificate.clone());
        let domains = match stored {
            Some(stored) => stored.value.domains.clone(),
            None => internal_domains(&self.snapshot.wanted_cluster().spec),
        };
        let record = stored.map(|stored| &*stored.value);
        let next = record.and_then(|record| record.next.as_ref());
        let previous = record.and_then(|record| record.previous.as_ref());
        IngressAuthorityView {
            fingerprint: certificate_hash(&certificate).unwrap_or_default(),
            certificate,
            domains: domains.into_iter().collect(),
            next: next.map(|next| trusted(&next.certificate, &next.domains)),
            previous: previous.map(|previous| trusted(&previous.certificate, &previous.domains)),
            next_issues: next.map(|next| next.replacement.grace_end()).into(),
        }
    }

    /// `only_own`: the caller may read one namespace alone, and learns of no other.
    fn route_item(&self, planned: &PlannedRoute<'_>, only_own: bool) -> RouteItem {
        let PlannedRoute {
            workload, route, ..
        } = planned;
        let entry = self.snapshot.workloads.get(workload);
        let meta = entry.map(|entry| &entry.meta);
        let tls = route.tls.is_on();
        let outside = planned.outside.map(|stored| &stored.value.record);
        let to = match (outside, planned.port, &route.redirect_to) {
            (Some(record), ..) => record.spec.to.clone(),
            (None, Some(port), _) if route.passthrough => {
                format!("port {port}, TLS passed through")
            }
            (None, Some(port), _) => format!("port {port}"),
            (None, None, Some(url)) => format!("redirect to {url}"),
            (None, None, None) => "maintenance".to_owned(),
        };
        Item {
            kind: "Route".to_owned(),
            metadata: Metadata {
                name: format!("{}{}", route.host, route.path),
                namespace: Some(workload.namespace.clone()),
                uid: match (meta, outside) {
                    (Some(meta), _) => meta.value.uid.clone(),
                    (None, Some(record)) => record.uid.clone(),
                    (None, None) => String::new(),
                },
                labels: Default::default(),
                generation: meta.map_or(0, |meta| meta.value.generation),
                resource_version: match (meta, planned.outside) {
                    (Some(meta), _) => meta.revision.to_string(),
                    (None, stored) => stored.map_or(0, |stored| stored.revision).to_string(),
                },
                creation_timestamp: match (meta, outside) {
                    (Some(meta), _) => Some(meta.value.created).into(),
                    (None, record) => record.map(|record| record.created).into(),
                },
            },
            spec: RouteView {
                workload: match outside {
                    Some(_) => String::new(),
                    None => workload.name.clone(),
                },
                host: route.host.clone(),
                path: route.path.clone(),
                to,
                redirect_from: route.redirect_from.clone(),
                issuer: match &planned.issuer {
                    RouteIssuer::None => "none".to_owned(),
                    RouteIssuer::Internal => "internal".to_owned(),
                    RouteIssuer::Acme => {
                        let acme = &self.snapshot.wanted_cluster().spec.acme;
                        let directory = acme.directory.as_deref().unwrap_or(LETS_ENCRYPT);
                        format!("acme ({})", server_name(directory))
                    }
                    RouteIssuer::Secret(name) => format!("secret {name}"),
                },
                redirects_plain: tls && route.plain_http != Some(PlainHttp::Serve),
            },
            status: self.route_status(planned, only_own),
        }
    }

    fn route_status(&self, planned: &PlannedRoute<'_>, only_own: bool) -> RouteStatus {
        let PlannedRoute {
            workload, route, ..
        } = planned;
        let machines: Vec<RouteMachine> = ingress_machines(self.snapshot)
            .into_iter()
            .map(|node| self.route_machine(node, planned))
            .collect();
        let (serving, instances) = self.behind(workload, planned.port);
        let stored = self.snapshot.ingress_certificates.get(&route.host);
        // One that stands in for another has no date that matters.
        let expires = stored.filter(|stored| match planned.issuer {
            RouteIssuer::Internal | RouteIssuer::Acme => {
                stored.value.acme.is_some() || !stored.value.authority.is_empty()
            }
            RouteIssuer::None | RouteIssuer::Secret(_) => false,
        });
        let trouble = planned.trouble.as_ref().map(|trouble| {
            let owner = trouble.owner.as_ref();
            let hidden =
                only_own && owner.is_some_and(|owner| owner.namespace != workload.namespace);
            let message = match hidden {
                true => format!("the host {} belongs to another namespace", route.host),
                false => trouble.message.clone(),
            };
            (trouble.reason, message)
        });
        let serves = machines.iter().any(|machine| machine.serves);
        let (reason, message) = trouble.unwrap_or_else(|| {
            if serves {
                let failed = self.failed_renewal(planned);
                let expired = expires.filter(|stored| stored.value.expires <= self.now);
                return match expired {
                    Some(stored) => {
                        let why = failed.unwrap_or_else(|| "there is no other one yet".to_owned());
                        let (host, at) = (&route.host, stored.value.expires);
                        let said = format!("the certificate for {host} expired at {at:.0}; {why}");
                        (Reason::CertificateFailed, said)
                    }
                    None => (Reason::Served, failed.unwrap_or_default()),
                };
            }
            let first = machines.iter().find(|machine| !machine.reason.is_empty());
            let known = first.and_then(|machine| {
                let reason = Reason::from_word(&machine.reason)?;
                Some((reason, format!("on {}: {}", machine.node, machine.message)))
            });
            known.unwrap_or((
                Reason::NoIngressMachine,
                "no machine serves routes yet".to_owned(),
            ))
        });
        let addresses = machines
            .iter()
            .flat_map(|machine| self.outside(&machine.node));
        let mut addresses: Vec<_> = addresses.collect();
        addresses.sort();
        addresses.dedup();
        RouteStatus {
            served: reason == Reason::Served,
            reason: reason.into(),
            message,
            serving,
            instances,
            expires: expires.map(|stored| stored.value.expires).into(),
            machines,
            addresses,
        }
    }

    /// Why a certificate that is served could not be renewed.
    fn failed_renewal(&self, planned: &PlannedRoute<'_>) -> Option<String> {
        let route = planned.route;
        let mut hosts = std::iter::once(&route.host).chain(&route.redirect_from);
        let host = hosts.find(|host| {
            let order = self.snapshot.acme_orders.get(*host);
            let state = order.map(|order| &order.value.state);
            matches!(state, Some(AcmeOrderState::Failed { .. }))
        })?;
        let why = order_in_words(self.snapshot, &planned.workload.namespace, host);
        Some(format!("the present certificate is served: {why}"))
    }

    fn route_machine(&self, node: &str, planned: &PlannedRoute<'_>) -> RouteMachine {
        let PlannedRoute {
            workload, route, ..
        } = planned;
        let assigned = self.snapshot.routes.get(node);
        let assigned = assigned.and_then(|all| all.get(*workload));
        let own = assigned.and_then(|stored| {
            let mut routes = stored.value.routes.iter();
            routes.find(|one| one.host == route.host && one.path == route.path)
        });
        let holds_key = own.is_some_and(|own| own.certificate.is_some());
        let (serves, reason, message) = match (own, self.ingress_report(node)) {
            (None, _) => (
                false,
                None,
                "the machine has not been given the route".to_owned(),
            ),
            (Some(_), None) => (
                false,
                Some(Reason::NodeNotReady),
                "the machine has not reported that it serves routes".to_owned(),
            ),
            (Some(_), Some(report)) => state_of(report, planned),
        };
        RouteMachine {
            node: node.to_owned(),
            serves: serves && self.is_ready(node),
            holds_key,
            reason: Reason::word_or_empty(reason).to_owned(),
            message,
        }
    }

    pub(super) fn is_ready(&self, node: &str) -> bool {
        let status = self.snapshot.nodes.get(node);
        let status = status.and_then(|node| node.status.as_ref());
        status.is_some_and(|status| status.value.phase != NodePhase::NotReady)
    }

    fn ingress_report(&self, node: &str) -> Option<&IngressReport> {
        let reported = self.observed.reports.get(node)?;
        reported.report.ingress.as_ref()
    }

    /// Instances of a port that get new requests, and all of them.
    fn behind(&self, workload: &WorkloadKey, port: Option<u16>) -> (u32, u32) {
        let balance = self.snapshot.services.get(workload);
        let balance = balance.and_then(|service| service.balance.as_ref());
        let ports = balance.iter().flat_map(|stored| &stored.value.ports);
        let own = ports.filter(|one| Some(one.port) == port && one.protocol == Protocol::Tcp);
        own.flat_map(|one| one.instances.values())
            .fold((0, 0), |(serving, all), state| {
                let more = u32::from(*state == BackendState::Serving);
                (serving + more, all + 1)
            })
    }

    /// Addresses of a machine outside the overlay.
    fn outside(&self, node: &str) -> Vec<String> {
        let reported = self.observed.reports.get(node);
        reported.map_or_else(Vec::new, |reported| {
            let addresses = reported.report.advertise.iter();
            addresses.map(ToString::to_string).collect()
        })
    }
}

/// Whether a machine that reports serves the route.
fn state_of(report: &IngressReport, planned: &PlannedRoute<'_>) -> (bool, Option<Reason>, String) {
    let PlannedRoute {
        workload, route, ..
    } = planned;
    match report.state {
        IngressState::Starting => (false, None, "kat-ingress starts".to_owned()),
        IngressState::PortInUse => (
            false,
            Some(Reason::IngressPortInUse),
            report.message.clone(),
        ),
        IngressState::Failed => (false, Some(Reason::IngressFailed), report.message.clone()),
        IngressState::Serving => {
            let path = match route.path.trim_end_matches('/') {
                "" => "/",
                path => path,
            };
            let name = format!("{workload}/{}{path}", route.host);
            // A machine has one of the two: a certificate by ACME stays when it is ordered no more, and
            // one of KAT itself stands in until the first by ACME is there.
            let certificates = match &planned.issuer {
                RouteIssuer::None => Vec::new(),
                RouteIssuer::Internal | RouteIssuer::Acme => {
                    let host = &route.host;
                    vec![format!("internal:{host}"), format!("acme:{host}")]
                }
                RouteIssuer::Secret(secret) => vec![format!("{workload}/tls:{secret}")],
            };
            let mut refused = report.refused.iter();
            let found = refused.find(|part| {
                part.file == ROUTES_FILE && part.name == name
                    || part.file == CERTIFICATES_FILE && certificates.contains(&part.name)
            });
            match found {
                Some(part) => (false, Some(Reason::RouteRefused), part.message.clone()),
                None => (true, None, String::new()),
            }
        }
    }
}
