//! Routes from outside the cluster: who has which host, what each ingress machine serves, and the
//! certificates of KAT's own authority.

pub(crate) mod acme;
mod authority;
pub(crate) mod certificates;
pub(crate) mod hosts;
mod outside;
mod routes;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Snapshot,
    draft::{Draft, OperationGroup},
};
use kat_types::{
    machine::node_labels::is_for_ingress,
    resource::{CORE_NAMESPACE, ClusterSpec, Ingress, IngressTls},
    store::{
        ingress::{AssignedRoutes, INTERNAL_DOMAINS},
        keys,
        revisions::WorkloadKey,
        snapshot::ParsedWorkload,
    },
};

pub use acme::{
    AcmeAccount, AcmeFailure, AcmeFailureKind, AcmeOrders, AcmeQuestion, AcmeReply, AcmeRequest,
    AcmeStep, CheckedName, DnsAccess, DnsKey, EabAccount, ProofKind, RecordCheck, TsigHash,
    order_in_words, uses_acme,
};
pub use authority::INGRESS_GRACE_SECONDS;
pub use certificates::{CertificateStep, IssuingError, next_certificate};
pub use hosts::{
    ClaimConflict, WorkloadClaims, claim_conflict, claims_of_stored, serving_conflict,
};
pub use outside::outside_target;
pub use routes::{PlannedRoute, RouteIssuer, RouteTrouble, auth_target, planned_routes};

/// The machines that serve routes: those with the label, and all while none has it. None without an
/// ingress.
pub fn ingress_machines(snapshot: &Snapshot) -> Vec<&str> {
    match snapshot.wanted_cluster().spec.ingress.enabled {
        true => machines_for_ingress(snapshot),
        false => Vec::new(),
    }
}

/// The machines that callers from outside use: those with the label, and all while none has it. They have
/// the host ports with `hostPortOn: ingress`, also in a cluster without an ingress of its own.
pub(crate) fn machines_for_ingress(snapshot: &Snapshot) -> Vec<&str> {
    let names = |only_labelled: bool| -> Vec<&str> {
        let nodes = snapshot.nodes.iter();
        let meant = nodes
            .filter(|(_, node)| !only_labelled || is_for_ingress(&node.registration.value.labels));
        meant.map(|(name, _)| name.as_str()).collect()
    };
    match names(true) {
        labelled if labelled.is_empty() => names(false),
        labelled => labelled,
    }
}

/// Domains for which KAT's own authority issues certificates.
pub fn internal_domains(spec: &ClusterSpec) -> BTreeSet<String> {
    match &spec.ingress.internal_domains {
        Some(domains) => domains.iter().cloned().collect(),
        None => {
            let usual = INTERNAL_DOMAINS.into_iter().map(str::to_owned);
            usual.chain([spec.cluster_domain.clone()]).collect()
        }
    }
}

/// Writes what each ingress machine serves, where it changed, and withdraws it from other machines.
pub(crate) fn plan_routes(draft: &mut Draft<'_>) {
    let snapshot = draft.snapshot;
    if snapshot.routes.is_empty() && !has_routes(snapshot) {
        return;
    }
    let machines: BTreeSet<&str> = ingress_machines(snapshot).into_iter().collect();
    let mut planned: BTreeMap<&WorkloadKey, Vec<PlannedRoute<'_>>> = BTreeMap::new();
    for route in planned_routes(snapshot) {
        planned.entry(route.workload).or_default().push(route);
    }
    planned.retain(|_, routes| {
        routes.retain(|route| route.is_assigned());
        !routes.is_empty()
    });
    let unread = |key: &WorkloadKey| {
        let is_unread = snapshot.unread_outside_routes > 0;
        if is_unread && key.namespace == CORE_NAMESPACE && !snapshot.workloads.contains_key(key) {
            return true;
        }
        let entry = snapshot.workloads.get(key);
        entry.is_some_and(|entry| entry.parsed.is_err() && !entry.meta.value.deleting)
    };
    let mut group = OperationGroup::default();
    for (node, stored) in &snapshot.routes {
        let serves = machines.contains(node.as_str());
        for key in stored.keys() {
            // A file that this version can't read changes nothing.
            if serves && (planned.contains_key(key) || unread(key) || draft.keeps(key)) {
                continue;
            }
            let WorkloadKey { namespace, name } = key;
            group.delete(keys::desired_routes_of(node, namespace, name));
            if Draft::is_full(&group) {
                let full = std::mem::take(&mut group);
                draft.commit(full, "routes".to_owned(), Vec::new());
            }
        }
    }
    draft.commit(
        group,
        "routes that a machine serves no more".to_owned(),
        Vec::new(),
    );
    let mut group = OperationGroup::default();
    for (key, routes) in &planned {
        for node in &machines {
            let WorkloadKey { namespace, name } = key;
            let stored_at = keys::desired_routes_of(node, namespace, name);
            if draft.keeps(key) || draft.is_not_writable(key, &stored_at) {
                continue;
            }
            let stored = snapshot.routes.get(*node).and_then(|all| all.get(key));
            let stored: Option<&AssignedRoutes> = stored.map(|stored| &*stored.value);
            let assigned = routes::assigned(snapshot, node, key, routes, stored);
            if stored != Some(&assigned) {
                draft.put_in_turn(&mut group, stored_at, &assigned, "routes");
            }
        }
    }
    draft.commit(group, "routes".to_owned(), Vec::new());
}

/// Whether there is a route that needs a certificate or a key of the leader, or a certificate of KAT's own
/// authority, or the authority is being replaced: whether [`next_certificate`] may have something to do.
pub fn uses_own_authority(snapshot: &Snapshot) -> bool {
    let authority = snapshot.ingress_authority.as_ref();
    !snapshot.ingress_certificates.is_empty()
        || authority.is_some_and(|stored| stored.value.is_being_replaced())
        || needs_leader(snapshot)
}

/// Whether a route needs a certificate or a key that the leader makes.
fn needs_leader(snapshot: &Snapshot) -> bool {
    let needs = |key: &WorkloadKey, route: &Ingress| {
        route.sticky || routes::may_use_authority(snapshot, key, route)
    };
    let mut outside = snapshot.outside_routes.values();
    if outside.any(|stored| needs(&stored.value.key, &stored.value.route)) {
        return true;
    }
    snapshot.workloads.iter().any(|(key, entry)| {
        let parsed = entry.parsed.as_ref().ok();
        let balancer = parsed.and_then(|parsed| parsed.load_balancer.as_ref());
        let routes = balancer.map_or(&[][..], |balancer| balancer.spec.ingress.as_slice());
        routes.iter().any(|route| needs(key, route))
    })
}

/// Whether a route of the workload uses a secret, as its certificate or for its users.
pub(crate) fn uses_secret(parsed: &ParsedWorkload, name: &str) -> bool {
    let balancer = parsed.load_balancer.as_ref();
    let routes = balancer.map_or(&[][..], |balancer| balancer.spec.ingress.as_slice());
    routes.iter().any(|route| names_secret(route, name))
}

/// Whether a route uses a secret.
pub(crate) fn names_secret(route: &Ingress, name: &str) -> bool {
    let certificate = match &route.tls {
        IngressTls::Source(source) => source.secret.as_deref(),
        IngressTls::Switch(_) => None,
    };
    let users = route.basic_auth.as_ref().map(|auth| auth.secret.as_str());
    [certificate, users].contains(&Some(name))
}

/// There is a route.
fn has_routes(snapshot: &Snapshot) -> bool {
    if !snapshot.outside_routes.is_empty() {
        return true;
    }
    snapshot.workloads.values().any(|entry| {
        let parsed = entry.parsed.as_ref().ok();
        let balancer = parsed.and_then(|parsed| parsed.load_balancer.as_ref());
        balancer.is_some_and(|balancer| !balancer.spec.ingress.is_empty())
    })
}
