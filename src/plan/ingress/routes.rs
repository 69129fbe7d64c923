//! The stored routes with what keeps each from being served, and what a machine gets of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use jiff::Timestamp;

use crate::{Snapshot, SnapshotSealing, secrets::deliver, services::isolation};
use kat_pki::delivery::{SealingError, SealingPurpose};
use kat_types::{
    reason::Reason,
    resource::{
        ForwardAuth, Ingress, IngressTls, PlainHttp, Port, PortRef, Protocol, TlsIssuer,
        secret::{INSTANCE_LIMIT, SecretValues},
    },
    secrets::{AssignedSecrets, SecretKey, SecretVersion},
    store::{
        ingress::{
            AssignedForwardAuth, AssignedRoute, AssignedRoutes, HTPASSWD, OutsideRoute, STICKY_KEY,
            TLS_CERTIFICATE, TLS_KEY, is_within, owner_in_words,
        },
        revisions::{Stored, WorkloadKey},
    },
};

use super::{
    acme::{can_be_ordered, order_in_words, order_reason},
    certificates::{certificate_place, given_name, is_internal, stands_in, sticky_place},
    hosts::RouteOwners,
    internal_domains, outside_target,
};

/// Keys of a secret of `tls`.
const TLS_KEYS: [&str; 2] = [TLS_CERTIFICATE, TLS_KEY];

/// Who issues the certificate of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteIssuer {
    /// Nobody: the host is served without TLS.
    None,
    /// KAT's own authority for ingress.
    Internal,
    /// The ACME server of the settings; KAT's own authority for hosts of the internal domains.
    Acme,
    /// A user, in this secret of the workload's namespace.
    Secret(String),
}

/// A route of a workload's file, or one to something outside KAT.
#[derive(Debug, Clone)]
pub struct PlannedRoute<'a> {
    /// The workload that has it; for a route to something outside KAT what stands for one
    /// ([`OutsideRoute::key`]).
    pub workload: &'a WorkloadKey,
    /// The route as written.
    pub route: &'a Ingress,
    /// Number of the port that requests are forwarded to.
    pub port: Option<u16>,
    /// Who issues its certificate.
    pub issuer: RouteIssuer,
    /// The stored route, if it leads to something outside KAT.
    pub outside: Option<&'a Stored<Arc<OutsideRoute>>>,
    /// The address outside KAT that requests are forwarded to.
    pub target: Option<SocketAddr>,
    /// The workload that decides about its requests, with its port; `None` if it cannot be asked.
    pub auth: Option<(WorkloadKey, u16)>,
    /// Why it is not served as written.
    pub trouble: Option<RouteTrouble>,
    /// Its hosts get certificates of the leader: those of KAT's own authority and by ACME, and those whose
    /// secret has no certificate yet. The latter answer on port 443 with the page that says so.
    pub uses_authority: bool,
}

/// Why a route is not served as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteTrouble {
    /// [`Reason::HostTaken`], [`Reason::IngressDisabled`], [`Reason::TlsNotReady`],
    /// [`Reason::CertificatePending`], [`Reason::CertificateFailed`], [`Reason::CertificateLimitReached`],
    /// [`Reason::SecretMissing`], [`Reason::AuthNotReachable`] or [`Reason::RouteRefused`].
    pub reason: Reason,
    /// The reason in a sentence.
    pub message: String,
    /// The workload that has the host, for [`Reason::HostTaken`].
    pub owner: Option<WorkloadKey>,
}

impl RouteTrouble {
    fn new(reason: Reason, message: String) -> Self {
        Self {
            reason,
            message,
            owner: None,
        }
    }
}

impl PlannedRoute<'_> {
    /// Whether machines get the route: also one whose certificate is missing, which is answered with
    /// a page that says so, and one whose users or decisions are missing, which admits nobody.
    pub fn is_assigned(&self) -> bool {
        let reason = self.trouble.as_ref().map(|trouble| trouble.reason);
        matches!(
            reason,
            None | Some(
                Reason::TlsNotReady
                    | Reason::SecretMissing
                    | Reason::AuthNotReachable
                    | Reason::CertificatePending
                    | Reason::CertificateFailed
                    | Reason::CertificateLimitReached
            )
        )
    }
}

/// The routes of a workload that is not being deleted, or one to something outside KAT.
struct WrittenRoutes<'a> {
    created: Timestamp,
    key: &'a WorkloadKey,
    routes: &'a [Ingress],
    ports: &'a [Port],
    outside: Option<&'a Stored<Arc<OutsideRoute>>>,
}

/// All stored routes, in the order in which their workloads were created.
fn written_routes(snapshot: &Snapshot) -> Vec<WrittenRoutes<'_>> {
    let entries = snapshot.workloads.iter();
    let of_workloads = entries
        .filter(|(_, entry)| !entry.meta.value.deleting)
        .filter_map(|(key, entry)| {
            let parsed = entry.parsed.as_ref().ok()?;
            let balancer = &parsed.load_balancer.as_ref()?.spec;
            (!balancer.ingress.is_empty()).then_some(WrittenRoutes {
                created: entry.meta.value.created,
                key,
                routes: &balancer.ingress,
                ports: &balancer.ports,
                outside: None,
            })
        });
    let outside = snapshot
        .outside_routes
        .values()
        .map(|stored| WrittenRoutes {
            created: stored.value.record.created,
            key: &stored.value.key,
            routes: std::slice::from_ref(&stored.value.route),
            ports: &[],
            outside: Some(stored),
        });
    let mut written: Vec<_> = of_workloads.chain(outside).collect();
    written.sort_by_key(|one| (one.created, one.key));
    written
}

/// The routes of all workloads that are not being deleted and those to something outside KAT, in the
/// order in which they were created.
pub fn planned_routes(snapshot: &Snapshot) -> Vec<PlannedRoute<'_>> {
    let spec = &snapshot.wanted_cluster().spec;
    let domains = internal_domains(spec);
    let mut owners = RouteOwners::default();
    let mut planned = Vec::new();
    for written in written_routes(snapshot) {
        let WrittenRoutes {
            key,
            routes,
            ports,
            outside,
            ..
        } = written;
        let target = outside.map(|stored| outside_target(snapshot, &stored.value.record.spec.to));
        for route in routes {
            let own = owners.take(key, &route.host, &route.path);
            let mut others = route.redirect_from.iter();
            let taken = own.or_else(|| others.find_map(|host| owners.take(key, host, "/")));
            let issuer = issuer(route, &domains, spec.acme.agree_to_terms);
            let auth = route.forward_auth.as_ref();
            let auth = auth.map(|auth| auth_target(snapshot, &key.namespace, auth));
            let (auth, no_auth) = match auth {
                None => (None, None),
                Some(Ok(target)) => (Some(target), None),
                Some(Err(message)) => (None, Some(message)),
            };
            let trouble = match taken {
                Some(conflict) => Some(RouteTrouble {
                    owner: Some(conflict.owner().clone()),
                    ..RouteTrouble::new(
                        Reason::HostTaken,
                        conflict.in_words(&owner_in_words(conflict.owner())),
                    )
                }),
                None if !spec.ingress.enabled => Some(RouteTrouble::new(
                    Reason::IngressDisabled,
                    "the cluster's setting ingress.enabled is false".to_owned(),
                )),
                None => match (no_auth, &target) {
                    (Some(message), _) => {
                        Some(RouteTrouble::new(Reason::AuthNotReachable, message))
                    }
                    (None, Some(Err(message))) => {
                        Some(RouteTrouble::new(Reason::RouteRefused, message.clone()))
                    }
                    (None, _) => not_ready(snapshot, key, route, &issuer, &domains),
                },
            };
            planned.push(PlannedRoute {
                workload: key,
                route,
                port: port(route, ports),
                outside,
                target: target
                    .as_ref()
                    .and_then(|target| target.as_ref().ok())
                    .copied(),
                auth,
                uses_authority: match &issuer {
                    RouteIssuer::None => false,
                    RouteIssuer::Internal | RouteIssuer::Acme => true,
                    RouteIssuer::Secret(name) => lacks(snapshot, key, name, &TLS_KEYS).is_some(),
                },
                issuer,
                trouble,
            });
        }
    }
    planned
}

fn port(route: &Ingress, ports: &[Port]) -> Option<u16> {
    let named = route.service_port_name.as_ref().and_then(|name| {
        let mut ports = ports.iter();
        let found = ports.find(|port| port.name.as_ref() == Some(name))?;
        Some(found.container_port)
    });
    route.service_port.or(named)
}

/// The workload and port that `forwardAuth` asks.
///
/// # Errors
/// A sentence. Of a workload of another namespace it does not say whether there is one that may not be
/// reached.
pub fn auth_target(
    snapshot: &Snapshot,
    namespace: &str,
    auth: &ForwardAuth,
) -> Result<(WorkloadKey, u16), String> {
    let key = match auth.workload.split_once('/') {
        Some((other, name)) => WorkloadKey::new(other, name),
        None => WorkloadKey::new(namespace, &auth.workload),
    };
    let port = match &auth.port {
        PortRef::Number(number) => number.to_string(),
        PortRef::Name(name) => name.clone(),
    };
    let entry = snapshot.workloads.get(&key);
    let entry = entry.filter(|entry| !entry.meta.value.deleting);
    let parsed = entry.and_then(|entry| entry.parsed.as_ref().ok());
    let balancer = parsed.and_then(|parsed| parsed.load_balancer.as_ref());
    let balancer = balancer.map(|balancer| &balancer.spec);
    let ports = balancer.map_or(&[][..], |balancer| balancer.ports.as_slice());
    let mut ports = ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    let found = ports.find(|found| match &auth.port {
        PortRef::Number(number) => found.container_port == *number,
        PortRef::Name(name) => found.name.as_ref() == Some(name),
    });
    let found = found.map(|found| found.container_port);
    if key.namespace != namespace {
        let allowed = balancer.map_or(&[][..], |balancer| balancer.allow_namespaces.as_slice());
        let may = isolation::may_reach(snapshot, namespace, &key.namespace, allowed);
        return match found.filter(|_| may) {
            Some(port) => Ok((key, port)),
            None => Err(format!(
                "forwardAuth: there is no workload {key} with the TCP port {port} that namespace {namespace} may reach"
            )),
        };
    }
    match (entry, found) {
        (_, Some(port)) => Ok((key, port)),
        (None, None) => Err(format!("forwardAuth: there is no workload {key}")),
        (Some(_), None) => Err(format!(
            "forwardAuth: workload {key} has no TCP port {port}"
        )),
    }
}

fn issuer(route: &Ingress, domains: &BTreeSet<String>, agreed: bool) -> RouteIssuer {
    match &route.tls {
        IngressTls::Switch(false) => RouteIssuer::None,
        IngressTls::Switch(true)
            if agreed && hosts(route).any(|host| !is_within(host, domains)) =>
        {
            RouteIssuer::Acme
        }
        IngressTls::Switch(true) => RouteIssuer::Internal,
        IngressTls::Source(source) => match (&source.secret, source.issuer) {
            (Some(secret), _) => RouteIssuer::Secret(secret.clone()),
            (None, Some(TlsIssuer::Acme)) => RouteIssuer::Acme,
            (None, Some(TlsIssuer::Internal) | None) => RouteIssuer::Internal,
        },
    }
}

/// The hosts that a route answers: its own, and those that are redirected to it.
pub(super) fn hosts(route: &Ingress) -> impl Iterator<Item = &String> {
    std::iter::once(&route.host).chain(&route.redirect_from)
}

/// Why a route has not all secrets and certificates that it needs.
fn not_ready(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    route: &Ingress,
    issuer: &RouteIssuer,
    domains: &BTreeSet<String>,
) -> Option<RouteTrouble> {
    if let Some(auth) = &route.basic_auth {
        let lacks = lacks(snapshot, key, &auth.secret, &[HTPASSWD]);
        if let Some(message) = lacks {
            return Some(RouteTrouble::new(Reason::SecretMissing, message));
        }
    }
    match issuer {
        RouteIssuer::None => None,
        RouteIssuer::Secret(name) => {
            let lacks = lacks(snapshot, key, name, &TLS_KEYS);
            lacks.map(|message| RouteTrouble::new(Reason::TlsNotReady, message))
        }
        RouteIssuer::Acme => acme_not_ready(snapshot, &key.namespace, route, domains)
            .map(|(reason, message)| RouteTrouble::new(reason, message)),
        RouteIssuer::Internal => {
            // A certificate by ACME is served whether the terms are agreed to any more or not.
            let outside =
                hosts(route).find(|host| !is_within(host, domains) && !has_ordered(snapshot, host));
            if let Some(host) = outside {
                let names: Vec<_> = domains.iter().map(String::as_str).collect();
                return Some(RouteTrouble::new(
                    Reason::TlsNotReady,
                    format!(
                        "ACME is not configured (acme.agreeToTerms), and KAT's own authority issues no certificate for {host}, which is in none of internalDomains ({}); set acme, or use tls: {{secret: NAME}}",
                        names.join(", ")
                    ),
                ));
            }
            let mut hosts = hosts(route);
            let missing = hosts.find(|host| !snapshot.ingress_certificates.contains_key(*host))?;
            Some(RouteTrouble::new(
                Reason::CertificatePending,
                format!("the certificate for {missing} has not been issued yet"),
            ))
        }
    }
}

/// Whether there is a certificate by ACME.
pub(super) fn has_ordered(snapshot: &Snapshot, host: &str) -> bool {
    let stored = snapshot.ingress_certificates.get(host);
    stored.is_some_and(|stored| stored.value.acme.is_some())
}

/// What the certificates of a route of [`RouteIssuer::Acme`] wait for.
fn acme_not_ready(
    snapshot: &Snapshot,
    namespace: &str,
    route: &Ingress,
    domains: &BTreeSet<String>,
) -> Option<(Reason, String)> {
    let explicit = matches!(&route.tls, IngressTls::Source(_));
    let acme = &snapshot.wanted_cluster().spec.acme;
    let agreed = acme.agree_to_terms;
    hosts(route).find_map(|host| {
        if has_ordered(snapshot, host) {
            return None;
        }
        let lasting = |message: String| Some((Reason::TlsNotReady, message));
        match is_within(host, domains) {
            true if explicit => lasting(format!(
                "no certificate is ordered for {host}, which is in one of internalDomains: use tls: true, and KAT's own authority issues it"
            )),
            true if snapshot.ingress_certificates.contains_key(host) => None,
            true => Some((
                Reason::CertificatePending,
                format!("the certificate for {host} has not been issued yet"),
            )),
            false if !can_be_ordered(host, domains, acme) => lasting(format!(
                "a certificate by ACME for the wildcard {host} needs a proof by DNS, and no zone of the setting acme.dns has it: set acme.dns, name the hosts, or use tls: {{secret: NAME}}"
            )),
            false if !agreed => lasting(format!(
                "ACME is not configured: no certificate is ordered for {host} before the setting acme.agreeToTerms is true"
            )),
            false => Some((
                order_reason(snapshot, namespace, host),
                order_in_words(snapshot, namespace, host),
            )),
        }
    })
}

/// Whether the leader may have to make or order a certificate for the route's hosts: not for one whose
/// certificate a user has brought.
pub(super) fn may_use_authority(snapshot: &Snapshot, key: &WorkloadKey, route: &Ingress) -> bool {
    match &route.tls {
        IngressTls::Switch(on) => *on,
        IngressTls::Source(source) => match &source.secret {
            Some(name) => lacks(snapshot, key, name, &TLS_KEYS).is_some(),
            None => true,
        },
    }
}

fn lacks(snapshot: &Snapshot, key: &WorkloadKey, name: &str, wanted: &[&str]) -> Option<String> {
    let namespace = &key.namespace;
    let Some(stored) = snapshot.secrets.get(&SecretKey::new(namespace, name)) else {
        return Some(format!(
            "there is no secret {name} in namespace {namespace}"
        ));
    };
    let there = &stored.value.keys;
    let missing = wanted.iter().find(|key| !there.contains_key(**key))?;
    Some(format!("secret {name} has no key {missing}"))
}

/// What a machine gets of a workload's routes. What is stored is kept where nothing changed: sealing
/// takes longer than comparing. It is also kept where the next secrets can't be sealed, so that a
/// certificate is replaced by nothing but another one.
pub(super) fn assigned(
    snapshot: &Snapshot,
    node: &str,
    key: &WorkloadKey,
    routes: &[PlannedRoute<'_>],
    stored: Option<&AssignedRoutes>,
) -> AssignedRoutes {
    let machine = snapshot.nodes.get(node);
    let machine = machine.and_then(|node| node.public_key.clone());
    let machine = machine.unwrap_or_default();
    let kept = stored.filter(|stored| stored.sealed_for == machine);
    let kept = kept.and_then(|stored| stored.secrets.as_ref());
    let mut named = NamedSecrets {
        snapshot,
        namespace: &key.namespace,
        kept,
        incomplete: None,
        versions: BTreeMap::new(),
        places: BTreeMap::new(),
    };
    let mut list: Vec<AssignedRoute> = routes
        .iter()
        .map(|planned| assigned_route(planned, &mut named))
        .collect();
    let NamedSecrets {
        incomplete,
        versions,
        places,
        ..
    } = named;
    let mut assigned = AssignedRoutes {
        schema: 1,
        routes: Vec::new(),
        sealed_for: String::new(),
        secrets: None,
    };
    if !versions.is_empty() || incomplete.is_some() {
        let same = kept.filter(|kept| kept.versions == versions);
        let sealed = match (incomplete, same) {
            (Some(secret), _) => Err(format!("secret {secret} has no certificate any more")),
            (None, Some(same)) => Ok(same.clone()),
            (None, None) => {
                let sealed = seal(snapshot, (node, key), versions.clone(), &places);
                sealed.map_err(|error| error.to_string())
            }
        };
        let sealed = match sealed {
            Ok(secrets) => Some(secrets),
            // A route whose users are not known is served to nobody; one without a certificate says
            // what it waits for.
            Err(why) => {
                for route in &mut list {
                    keep_certificates(route, kept, &why);
                    keep_users(route, kept, &versions);
                }
                kept.cloned()
            }
        };
        if sealed.is_some() {
            assigned.sealed_for = machine;
        }
        assigned.secrets = sealed;
    }
    assigned.routes = list;
    assigned
}

/// Leaves a route the certificates that the machine has, in whatever version.
fn keep_certificates(route: &mut AssignedRoute, kept: Option<&AssignedSecrets>, why: &str) {
    let is_lost = |name: &mut String| {
        let versions = kept.map(|kept| &kept.versions);
        !versions.is_some_and(|versions| versions.contains_key(name.as_str()))
    };
    if route.certificate.take_if(is_lost).is_some() {
        why.clone_into(&mut route.awaits);
    }
    for certificate in route.redirect_from.values_mut() {
        certificate.take_if(is_lost);
    }
}

/// Admits nobody to a route whose users have changed since what the machine has: a password that was
/// taken away opens nothing.
fn keep_users(
    route: &mut AssignedRoute,
    kept: Option<&AssignedSecrets>,
    versions: &BTreeMap<String, SecretVersion>,
) {
    let (Some(name), Some(kept)) = (&mut route.users, kept) else {
        return;
    };
    if kept.versions.get(name.as_str()) != versions.get(name.as_str()) {
        *name = format!("changed:{name}");
    }
}

/// The secrets that a machine gets, by the names that routes use for them.
struct NamedSecrets<'a> {
    snapshot: &'a Snapshot,
    namespace: &'a str,
    /// What the machine has.
    kept: Option<&'a AssignedSecrets>,
    /// A secret whose certificate the machine has, and that is none any more.
    incomplete: Option<String>,
    versions: BTreeMap<String, SecretVersion>,
    places: BTreeMap<String, NamedSecret>,
}

enum NamedSecret {
    /// A user's secret, of which these keys are given.
    Users(SecretKey, &'static [&'static str]),
    /// A certificate that the leader issued or ordered for a host.
    OfLeader(String),
    /// The key of the cookies of sticky routes.
    Sticky,
}

impl NamedSecrets<'_> {
    /// The name of the certificate of a host; `None` while there is none.
    fn certificate(&mut self, issuer: &RouteIssuer, host: &str) -> Option<String> {
        match issuer {
            RouteIssuer::None => None,
            RouteIssuer::Secret(name) => {
                let own = self.secret("tls", name, &TLS_KEYS);
                let own = own.or_else(|| self.incomplete_certificate(name));
                own.or_else(|| self.of_leader(host))
            }
            RouteIssuer::Internal | RouteIssuer::Acme => self.of_leader(host),
        }
    }

    /// Gives the key of the cookies of sticky routes, once there is one.
    fn sticky_key(&mut self) {
        if let Some(stored) = &self.snapshot.ingress_sticky {
            let version = SecretVersion::of(&stored.value.key);
            self.versions.insert(STICKY_KEY.to_owned(), version);
            let place = NamedSecret::Sticky;
            self.places.insert(STICKY_KEY.to_owned(), place);
        }
    }

    fn of_leader(&mut self, host: &str) -> Option<String> {
        let stored = self.snapshot.ingress_certificates.get(host)?;
        let name = given_name(host, &stored.value);
        let version = SecretVersion::of(&stored.value.key);
        self.versions.insert(name.clone(), version);
        let place = NamedSecret::OfLeader(host.to_owned());
        self.places.insert(name.clone(), place);
        Some(name)
    }

    /// The certificate that the machine has of a secret that was changed and lacks one of its keys now.
    /// A secret that was deleted gives up its certificate.
    fn incomplete_certificate(&mut self, name: &str) -> Option<String> {
        let place = SecretKey::new(self.namespace, name);
        let given = format!("tls:{name}");
        let is_kept = self.kept?.versions.contains_key(&given);
        if !is_kept || !self.snapshot.secrets.contains_key(&place) {
            return None;
        }
        self.incomplete = Some(place.to_string());
        Some(given)
    }

    fn secret(
        &mut self,
        purpose: &str,
        name: &str,
        keys: &'static [&'static str],
    ) -> Option<String> {
        let place = SecretKey::new(self.namespace, name);
        let stored = self.snapshot.secrets.get(&place)?;
        let has_all = keys.iter().all(|key| stored.value.keys.contains_key(*key));
        if !has_all {
            return None;
        }
        let given = format!("{purpose}:{name}");
        let version = SecretVersion::of(&stored.value);
        self.versions.insert(given.clone(), version);
        let place = NamedSecret::Users(place, keys);
        self.places.insert(given.clone(), place);
        Some(given)
    }
}

fn assigned_route(planned: &PlannedRoute<'_>, named: &mut NamedSecrets<'_>) -> AssignedRoute {
    let PlannedRoute {
        route,
        port,
        target,
        auth,
        issuer,
        trouble,
        ..
    } = planned;
    if route.sticky {
        named.sticky_key();
    }
    let certificate = named.certificate(issuer, &route.host);
    // A certificate of the leader stands in for one that a user has not brought, or a server not issued.
    let stands_in = certificate.as_ref().is_some_and(|name| is_internal(name))
        && match issuer {
            RouteIssuer::Secret(_) => true,
            RouteIssuer::Acme => {
                let stored = named.snapshot.ingress_certificates.get(&route.host);
                stored.is_some_and(|stored| stands_in(&stored.value))
            }
            RouteIssuer::None | RouteIssuer::Internal => false,
        };
    let awaits = match (&certificate, issuer, trouble) {
        (_, RouteIssuer::None, _) => String::new(),
        (Some(_), ..) if !stands_in => String::new(),
        (_, _, Some(trouble)) => trouble.message.clone(),
        (_, _, None) => "there is no certificate".to_owned(),
    };
    let redirect_from = route.redirect_from.iter().map(|host| {
        let certificate = named.certificate(issuer, host);
        (host.clone(), certificate)
    });
    let redirect_from = redirect_from.collect();
    let users = route.basic_auth.as_ref().map(|auth| {
        let name = named.secret("users", &auth.secret, &[HTPASSWD]);
        // A name that the machine does not find among the secrets: nobody may use the route.
        name.unwrap_or_else(|| format!("users:{}", auth.secret))
    });
    let forward_auth = route.forward_auth.as_ref().map(|written| {
        let (workload, port) = match auth {
            Some((key, port)) => (key.to_string(), Some(*port)),
            None => (written.workload.clone(), None),
        };
        AssignedForwardAuth {
            workload,
            port,
            path: written.path.clone(),
            response_headers: written.response_headers.clone(),
        }
    });
    let tls = route.tls.is_on();
    AssignedRoute {
        host: route.host.clone(),
        path: route.path.clone(),
        port: *port,
        outside: *target,
        redirect_to: route.redirect_to.clone(),
        maintenance: route.maintenance,
        tls,
        certificate,
        awaits,
        redirects_plain: tls && route.plain_http != Some(PlainHttp::Serve),
        redirect_from,
        strip_prefix: route.strip_prefix,
        request_headers: route.request_headers.clone(),
        response_headers: route.response_headers.clone(),
        users,
        allow_sources: route.allow_sources.clone(),
        max_body_bytes: route.max_body_bytes,
        timeouts: route.timeouts.clone(),
        upstream: route.upstream,
        sticky: route.sticky,
        passthrough: route.passthrough,
        proxy_protocol: route.proxy_protocol,
        forward_auth,
    }
}

fn seal(
    snapshot: &Snapshot,
    (node, key): (&str, &WorkloadKey),
    versions: BTreeMap<String, SecretVersion>,
    places: &BTreeMap<String, NamedSecret>,
) -> Result<AssignedSecrets, SealingError> {
    let open = || {
        let mut given: BTreeMap<String, SecretValues> = BTreeMap::new();
        let mut size = 0;
        for (name, place) in places {
            let mut values = open_one(snapshot, place)?;
            if let NamedSecret::Users(_, keys) = place {
                values.0.retain(|key, _| keys.contains(&key.as_str()));
            }
            size += values.0.values().map(Vec::len).sum::<usize>();
            given.insert(name.clone(), values);
        }
        if size > INSTANCE_LIMIT {
            let what = format!("the certificates and passwords of {key}'s routes");
            return Err(SealingError::TooMuch(what, size, INSTANCE_LIMIT));
        }
        Ok(given)
    };
    let purpose = SealingPurpose::Routes;
    deliver(snapshot, purpose, (node, &key.to_string()), versions, open)
}

fn open_one(snapshot: &Snapshot, place: &NamedSecret) -> Result<SecretValues, SealingError> {
    let sealing: &SnapshotSealing = &snapshot.sealing;
    match place {
        NamedSecret::Users(place, _) => {
            let missing = || SealingError::Malformed(format!("secret {place}"));
            let stored = snapshot.secrets.get(place).ok_or_else(missing)?;
            sealing.open(snapshot, place, &stored.value)
        }
        NamedSecret::OfLeader(host) => {
            let missing = || SealingError::Malformed(format!("the certificate for {host}"));
            let stored = snapshot.ingress_certificates.get(host);
            let stored = stored.ok_or_else(missing)?;
            sealing.open(snapshot, &certificate_place(host), &stored.value.key)
        }
        NamedSecret::Sticky => {
            let missing = || SealingError::Malformed("the key of sticky routes".to_owned());
            let stored = snapshot.ingress_sticky.as_ref().ok_or_else(missing)?;
            sealing.open(snapshot, &sticky_place(), &stored.value.key)
        }
    }
}
