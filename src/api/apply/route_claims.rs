//! Whether a workload can have the routes, and the ports 80 and 443, that its files claim.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::{
    access::authentication::Caller,
    apply::{exceeded_in, quota_defaults, submission::Submission},
    errors::ApiError,
};
use kat_pki::ingress::{BroughtCertificate, brought_certificate};
use kat_plan::{
    ClaimConflict, Snapshot, WorkloadClaims, auth_target, check_hosts, claim_conflict,
    claims_of_stored,
};
use kat_types::{
    api::Scope,
    resource::{CORE_NAMESPACE, Ingress, IngressTls, secret::SecretValues},
    secrets::SecretKey,
    store::{
        ingress::{HTPASSWD, NAMESPACE_HOSTS, TLS_CERTIFICATE, TLS_KEY, covers, owner_in_words},
        revisions::WorkloadKey,
    },
};

/// The claims of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CheckedClaims {
    /// They differ from those of the stored workload.
    pub(super) change: bool,
}

/// Refuses claims of what somebody else has, and certificates that don't fit. Claims that are stored
/// already are not refused: the plan decides about those.
pub(super) fn check(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    submission: &Submission,
    caller: &Caller,
) -> Result<CheckedClaims, ApiError> {
    let stored = snapshot.workloads.get(key);
    let before = stored.map(|entry| claims_of_stored(snapshot, key, entry));
    let before = before.unwrap_or_default();
    let change = submission.claims != before;
    if !submission.claims.is_part_of(&before)
        && let Some(conflict) = claim_conflict(snapshot, key, &submission.claims)
    {
        return Err(refusal(&conflict, key, submission, caller));
    }
    if !submission.claims.is_part_of(&before) {
        check_number_of_hosts(snapshot, key, &submission.claims)?;
        check_hosts(snapshot, key, &quota_defaults(caller), &submission.claims)
            .map_err(|error| exceeded_in("VirtualLoadBalancer.kat", error))?;
        let claimed = submission.claims.routes.difference(&before.routes);
        check_allowed_hosts(snapshot, key, claimed.map(|(host, _)| host))?;
    }
    let known = stored.and_then(|entry| entry.parsed.as_ref().ok());
    let known = known.and_then(|parsed| parsed.load_balancer.as_ref());
    let known = known.map_or(&[][..], |balancer| balancer.spec.ingress.as_slice());
    for route in &submission.routes {
        check_secrets(snapshot, key, route)?;
        if !known.contains(route) {
            check_forward_auth(snapshot, key, route)?;
        }
    }
    Ok(CheckedClaims { change })
}

/// Refuses more hosts than a namespace can have.
fn check_number_of_hosts(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    claims: &WorkloadClaims,
) -> Result<(), ApiError> {
    let others = snapshot.workloads.iter();
    let others = others.filter(|(other, _)| other.namespace == key.namespace && *other != key);
    let others = others.map(|(other, entry)| claims_of_stored(snapshot, other, entry));
    let routes = others.flat_map(|claims| claims.routes);
    let routes = routes.chain(claims.routes.iter().cloned());
    let hosts: BTreeSet<String> = routes.map(|(host, _)| host).collect();
    if hosts.len() <= NAMESPACE_HOSTS {
        return Ok(());
    }
    Err(ApiError::conflict(
        format!(
            "VirtualLoadBalancer.kat: the namespace `{}` would have routes for {} hosts, and can have {NAMESPACE_HOSTS}",
            key.namespace,
            hosts.len()
        ),
        "use one host with several paths, or a wildcard such as `*.example.org`",
    ))
}

/// Refuses hosts that `ingressHosts` of the namespace does not cover.
fn check_allowed_hosts<'h>(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    mut claimed: impl Iterator<Item = &'h String>,
) -> Result<(), ApiError> {
    let stored = snapshot.namespaces.get(&key.namespace);
    let allowed = stored.and_then(|stored| stored.value.ingress_hosts.as_ref());
    let Some(allowed) = allowed else {
        return Ok(());
    };
    let Some(host) = claimed.find(|host| !is_allowed(allowed, host)) else {
        return Ok(());
    };
    let said = match allowed.is_empty() {
        true => "no routes".to_owned(),
        false => format!("routes for {} alone", allowed.join(", ")),
    };
    Err(ApiError::conflict(
        format!(
            "VirtualLoadBalancer.kat: the host {host}: namespace `{}` may have {said}",
            key.namespace
        ),
        "choose another host, or ask an administrator for another `ingressHosts` of the namespace",
    ))
}

fn is_allowed(allowed: &[String], host: &str) -> bool {
    allowed.iter().any(|pattern| covers(pattern, host))
}

/// Refuses an `ingressHosts` that a stored route of the namespace would break.
pub(crate) fn check_ingress_hosts(
    snapshot: &Snapshot,
    namespace: &str,
    allowed: &[String],
) -> Result<(), ApiError> {
    let own = snapshot.workloads.iter();
    let own = own.filter(|(key, _)| key.namespace == namespace);
    for (key, entry) in own {
        let claims = claims_of_stored(snapshot, key, entry);
        let mut hosts = claims.routes.iter().map(|(host, _)| host);
        if let Some(host) = hosts.find(|host| !is_allowed(allowed, host)) {
            return Err(ApiError::conflict(
                format!(
                    "spec.ingressHosts does not cover the host {host}, for which workload {} has a route",
                    key.name
                ),
                "add the host, or remove that route first",
            ));
        }
    }
    Ok(())
}

/// Refuses a `forwardAuth` that could never be asked. A workload of the same namespace that does not
/// exist yet is no mistake: the route admits nobody until it does.
fn check_forward_auth(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    route: &Ingress,
) -> Result<(), ApiError> {
    let Some(auth) = &route.forward_auth else {
        return Ok(());
    };
    let Err(said) = auth_target(snapshot, &key.namespace, auth) else {
        return Ok(());
    };
    if !auth.workload.contains('/') {
        let asked = WorkloadKey::new(&key.namespace, &auth.workload);
        // Its own ports may be changed by the same files.
        if asked == *key || !snapshot.workloads.contains_key(&asked) {
            return Ok(());
        }
    }
    Err(ApiError::conflict(
        format!("VirtualLoadBalancer.kat: {}: {said}", route.host),
        "name a workload that exists, and one of its TCP ports; one of another namespace has to allow this one (`allowNamespaces`)",
    ))
}

/// Why a route to something outside KAT can't have its host, told to an administrator.
pub(crate) fn outside_refusal(conflict: &ClaimConflict) -> ApiError {
    let said = conflict.in_words(&owner_in_words(conflict.owner()));
    let hint = match conflict {
        ClaimConflict::PortHeld { .. }
        | ClaimConflict::PortServesRoutes { .. }
        | ClaimConflict::PortOnIngress { .. }
        | ClaimConflict::PortOnInstance { .. } => {
            "have that workload use another hostPort, or a route of its own"
        }
        ClaimConflict::Host { .. } | ClaimConflict::Route { .. } => "choose another host or path",
    };
    ApiError::conflict(format!("route.kat: {said}"), hint)
}

fn refusal(
    conflict: &ClaimConflict,
    key: &WorkloadKey,
    submission: &Submission,
    caller: &Caller,
) -> ApiError {
    let owner = conflict.owner();
    let named = match may_see(caller, &owner.namespace) {
        true if owner.namespace == key.namespace => words_within(owner),
        true => owner_in_words(owner),
        false => "another namespace".to_owned(),
    };
    let said = match conflict {
        // The host itself may be a secret of those who may not see the namespace.
        ClaimConflict::Host { host, .. } if !may_see(caller, &owner.namespace) => {
            format!("the host {host} belongs to {named}, or overlaps with a host of it")
        }
        ClaimConflict::PortServesRoutes { port, .. } if !may_see(caller, &owner.namespace) => {
            format!("port {port} of machines serves routes of {named}")
        }
        _ => conflict.in_words(&named),
    };
    let (file, hint) = match conflict {
        ClaimConflict::PortServesRoutes { .. } => (
            submission.ports_file,
            "write another hostPort, or a route in spec.ingress instead of it",
        ),
        ClaimConflict::PortOnIngress { .. } => (
            submission.ports_file,
            "write another hostPort, or have that workload use another one",
        ),
        ClaimConflict::PortOnInstance { .. } => (
            submission.ports_file,
            "write another hostPort, or move that instance: hostPortOn ingress needs the port on each machine that serves routes",
        ),
        ClaimConflict::PortHeld { .. } => (
            "VirtualLoadBalancer.kat",
            "have that workload use another hostPort, or a route of its own",
        ),
        ClaimConflict::Host { .. } | ClaimConflict::Route { .. } => {
            ("VirtualLoadBalancer.kat", "choose another host or path")
        }
    };
    ApiError::conflict(format!("{file}: {said}"), hint)
}

/// The owner of a route in words, for somebody who knows its namespace.
fn words_within(key: &WorkloadKey) -> String {
    match key.namespace == CORE_NAMESPACE {
        true => owner_in_words(key),
        false => format!("workload {}", key.name),
    }
}

/// Whether a caller that applies may read that namespace.
fn may_see(caller: &Caller, namespace: &str) -> bool {
    match caller {
        Caller::Token {
            scope: Scope::Deploy { namespace: own },
            ..
        } => own == namespace,
        _ => true,
    }
}

/// Refuses a certificate that can't be served for the route's hosts. A secret that does not exist yet is
/// no mistake: the route waits for it.
pub(crate) fn check_secrets(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    route: &Ingress,
) -> Result<(), ApiError> {
    let refused = |said: String| ApiError::invalid(format!("VirtualLoadBalancer.kat: {said}"));
    if let Some(name) = certificate_secret(route)
        && let Some(found) = certificate_in(snapshot, &SecretKey::new(&key.namespace, name))?
    {
        check_names(name, &found, route).map_err(refused)?;
    }
    let users = route.basic_auth.as_ref();
    if let Some(auth) = users
        && let Some(stored) = snapshot
            .secrets
            .get(&SecretKey::new(&key.namespace, &auth.secret))
        && !stored.value.keys.contains_key(HTPASSWD)
    {
        return Err(refused(format!(
            "secret {} has no key {HTPASSWD}",
            auth.secret
        )));
    }
    Ok(())
}

/// The secret with a route's certificate.
fn certificate_secret(route: &Ingress) -> Option<&str> {
    match &route.tls {
        IngressTls::Source(source) => source.secret.as_deref(),
        IngressTls::Switch(_) => None,
    }
}

fn check_names(name: &str, found: &BroughtCertificate, route: &Ingress) -> Result<(), String> {
    let mut hosts = std::iter::once(&route.host).chain(&route.redirect_from);
    match hosts.find(|host| !found.is_for(host)) {
        Some(host) => Err(format!(
            "the certificate in secret {name} is for {}, not for {host}",
            found.names.join(", ")
        )),
        None => Ok(()),
    }
}

/// The certificate in a secret; `None` if there is no such secret, or this machine can't open it.
fn certificate_in(
    snapshot: &Snapshot,
    place: &SecretKey,
) -> Result<Option<BroughtCertificate>, ApiError> {
    let refused = |said: String| ApiError::invalid(format!("VirtualLoadBalancer.kat: {said}"));
    let Some(stored) = snapshot.secrets.get(place) else {
        return Ok(None);
    };
    has_keys(&place.name, |key| stored.value.keys.contains_key(key)).map_err(refused)?;
    let Ok(values) = snapshot.sealing.open(snapshot, place, &stored.value) else {
        return Ok(None);
    };
    certificate_of(&place.name, &values)
        .map(Some)
        .map_err(refused)
}

fn has_keys(name: &str, has: impl Fn(&str) -> bool) -> Result<(), String> {
    let mut keys = [TLS_CERTIFICATE, TLS_KEY].into_iter();
    match keys.find(|key| !has(key)) {
        Some(key) => Err(format!("secret {name} has no key {key}")),
        None => Ok(()),
    }
}

fn certificate_of(name: &str, values: &SecretValues) -> Result<BroughtCertificate, String> {
    has_keys(name, |key| values.0.contains_key(key))?;
    let value = |key: &str| values.0.get(key).map_or(&[][..], Vec::as_slice);
    brought_certificate(value(TLS_CERTIFICATE), value(TLS_KEY))
        .map_err(|error| format!("secret {name} has no usable certificate: {error}"))
}

/// Refuses values of a secret that the stored routes of its namespace could not use: machines would
/// serve them with the earlier certificate, or to nobody.
pub(crate) fn check_values(
    snapshot: &Snapshot,
    place: &SecretKey,
    values: &SecretValues,
) -> Result<(), ApiError> {
    let entries = snapshot.workloads.iter();
    let own = entries
        .filter(|(key, entry)| key.namespace == place.namespace && !entry.meta.value.deleting);
    let mut certificate = None;
    let own = own.map(|(key, entry)| {
        let balancer = entry.parsed.as_ref().ok();
        let balancer = balancer.and_then(|parsed| parsed.load_balancer.as_ref());
        let routes = balancer.map_or(&[][..], |balancer| balancer.spec.ingress.as_slice());
        (key, routes)
    });
    let outside = snapshot.outside_routes.values();
    let outside = outside
        .map(|stored| &stored.value)
        .filter(|route| route.key.namespace == place.namespace)
        .map(|route| (&route.key, std::slice::from_ref(&route.route)));
    for (key, routes) in own.chain(outside) {
        for route in routes {
            let refused = |said: String| {
                ApiError::invalid(format!(
                    "{said}; a route of {}, for {}, uses it",
                    words_within(key),
                    route.host
                ))
            };
            if certificate_secret(route) == Some(place.name.as_str()) {
                let found = match certificate.take() {
                    Some(found) => found,
                    None => certificate_of(&place.name, values).map_err(refused)?,
                };
                check_names(&place.name, &found, route).map_err(refused)?;
                certificate = Some(found);
            }
            let users = route.basic_auth.as_ref();
            if users.is_some_and(|auth| auth.secret == place.name)
                && !values.0.contains_key(HTPASSWD)
            {
                return Err(refused(format!(
                    "secret {} has no key {HTPASSWD}",
                    place.name
                )));
            }
        }
    }
    Ok(())
}

/// What an apply warns of: certificates that have expired, or are not valid yet, and secrets that do
/// not exist.
pub(crate) fn warnings(
    snapshot: &Snapshot,
    namespace: &str,
    routes: &[Ingress],
    now: Timestamp,
) -> Vec<String> {
    let mut said = Vec::new();
    for route in routes {
        if let Some(auth) = &route.forward_auth
            && let Err(why) = auth_target(snapshot, namespace, auth)
        {
            said.push(format!(
                "{}: {why}: the route admits nobody until then",
                route.host
            ));
        }
        let Some(name) = certificate_secret(route) else {
            continue;
        };
        let host = &route.host;
        match certificate_in(snapshot, &SecretKey::new(namespace, name)) {
            Ok(Some(found)) if found.validity.holds(now) => {}
            Ok(Some(found)) => said.push(format!(
                "the certificate of {host} in secret {name} is valid from {} to {}, not now",
                found.validity.not_before, found.validity.not_after
            )),
            Ok(None) => said.push(format!(
                "there is no secret {name} yet: {host} is not served with TLS until there is"
            )),
            // The apply was refused for it.
            Err(_) => {}
        }
    }
    said.sort();
    said.dedup();
    said
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use crate::apply::submission::of_files;
    use kat_bundle::SourceFile;
    use kat_types::{
        resource::Amounts,
        store::{
            records::{NamespaceRecord, WorkloadMeta},
            revisions::Stored,
            snapshot::{ParsedWorkload, StoredState, WorkloadEntry},
        },
    };

    fn files(namespace: &str, name: &str, ingress: &str) -> Vec<SourceFile> {
        let file = |name: &str, text: String| SourceFile {
            name: name.to_owned(),
            text,
        };
        let head = "apiVersion: kat.dws.rip/v1alpha1\nkind:";
        vec![
            file(
                "workload.kat",
                format!(
                    "{head} Workload\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{source: {{image: registry.lab/web:1}}}}\n"
                ),
            ),
            file(
                "VirtualLoadBalancer.kat",
                format!(
                    "{head} VirtualLoadBalancer\nspec:\n  ports: [{{name: web, containerPort: 8080}}]\n{ingress}"
                ),
            ),
        ]
    }

    fn route(host: &str) -> String {
        format!("  ingress: [{{host: \"{host}\", servicePort: 8080}}]\n")
    }

    fn stored(namespace: &str, name: &str, ingress: &str) -> Snapshot {
        let files = files(namespace, name, ingress);
        let bundle = kat_bundle::parse(&files, kat_bundle::DecodeMode::Strict).unwrap();
        let parsed = ParsedWorkload::new(bundle.workload.unwrap(), bundle.load_balancer, None);
        let meta = WorkloadMeta {
            schema: 1,
            uid: "uid".to_owned(),
            generation: 1,
            spec_hash: String::new(),
            template_hash: String::new(),
            index: 1,
            created: Timestamp::UNIX_EPOCH,
            updated: Timestamp::UNIX_EPOCH,
            deleting: false,
            deletes_volumes: false,
            paused: false,
            restarted: None,
            image: Default::default(),
            stopped: None,
        };
        let entry = WorkloadEntry {
            meta: Stored {
                revision: 8,
                value: meta,
            },
            parsed: Ok(Arc::new(parsed)),
            files: BTreeMap::new(),
            status: None,
            archive: BTreeMap::new(),
            earlier: None,
        };
        let mut snapshot = Snapshot::from(StoredState::default());
        let key = WorkloadKey::new(namespace, name);
        snapshot.workloads.insert(key, Arc::new(entry));
        snapshot
    }

    fn token(scope: Scope) -> Caller {
        Caller::Token {
            id: "t".to_owned(),
            name: String::new(),
            scope,
        }
    }

    fn tried(
        snapshot: &Snapshot,
        (namespace, name, ingress): (&str, &str, &str),
        scope: Scope,
    ) -> Result<CheckedClaims, String> {
        let submission = of_files(&files(namespace, name, ingress)).unwrap();
        let key = WorkloadKey::new(namespace, name);
        let checked = check(snapshot, &key, &submission, &token(scope));
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn the_owner_of_a_host_is_named_to_those_alone_who_may_see_it() {
        let snapshot = stored("shop", "web", &route("*.shop.lan"));
        let wanted = route("a.shop.lan");
        let deploy = Scope::Deploy {
            namespace: "other".to_owned(),
        };
        let said = tried(&snapshot, ("other", "web", &wanted), Scope::Admin).unwrap_err();
        assert!(
            said.contains("*.shop.lan") && said.contains("shop/web"),
            "{said}"
        );
        let said = tried(&snapshot, ("other", "web", &wanted), deploy).unwrap_err();
        assert!(said.contains("another namespace"), "{said}");
        assert!(
            !said.contains("*.shop.lan") && !said.contains("shop/web"),
            "{said}"
        );
        let mine = tried(&snapshot, ("shop", "other", &wanted), Scope::Admin);
        assert_eq!(mine, Ok(CheckedClaims { change: true }));
    }

    #[test]
    fn a_namespace_has_a_bounded_number_of_hosts() {
        let hosts = |number: usize| {
            let route = |at| format!("{{host: h{at}.lan, servicePort: 8080}}");
            let routes: Vec<_> = (0..number).map(route).collect();
            format!("  ingress: [{}]\n", routes.join(", "))
        };
        let mut snapshot = Snapshot::from(StoredState::default());
        for at in 0..4 {
            let name = format!("w{at}");
            let other = |at: usize| format!("{{host: h{at}.w.lan, servicePort: 8080}}");
            let routes: Vec<_> = (at * 49..(at + 1) * 49).map(other).collect();
            let text = format!("  ingress: [{}]\n", routes.join(", "));
            let one = stored("shop", &name, &text);
            snapshot.workloads.extend(one.workloads.clone());
        }
        let four = tried(&snapshot, ("shop", "web", &hosts(4)), Scope::Admin);
        assert_eq!(four, Ok(CheckedClaims { change: true }));
        let five = tried(&snapshot, ("shop", "web", &hosts(5)), Scope::Admin);
        let said = five.unwrap_err();
        assert!(said.contains("for 201 hosts, and can have 200"), "{said}");
        let elsewhere = tried(&snapshot, ("other", "web", &hosts(5)), Scope::Admin);
        assert_eq!(elsewhere, Ok(CheckedClaims { change: true }));
        // What is stored already is not refused.
        let full = stored("shop", "web", &hosts(5));
        snapshot.workloads.extend(full.workloads.clone());
        let same = tried(&snapshot, ("shop", "web", &hosts(5)), Scope::Admin);
        assert_eq!(same, Ok(CheckedClaims { change: false }));
    }

    #[test]
    fn hosts_beyond_the_quota_of_the_namespace_are_refused_and_name_it() {
        let shop = |hosts: Option<u64>| {
            let mut snapshot = stored("shop", "web", &route("a.lan"));
            let record = NamespaceRecord {
                schema: 1,
                uid: "ns".to_owned(),
                labels: BTreeMap::new(),
                created: Timestamp::UNIX_EPOCH,
                deleting: false,
                quota: Amounts {
                    hosts,
                    ..Amounts::default()
                },
                access: Default::default(),
                ingress_hosts: None,
                defaults: Default::default(),
            };
            let stored = Stored {
                revision: 3,
                value: record,
            };
            snapshot.namespaces.insert("shop".to_owned(), stored);
            snapshot
        };
        let deploy = || Scope::Deploy {
            namespace: "shop".to_owned(),
        };
        // The host of another workload counts once, and so does that of a second path.
        let two = "  ingress: [{host: a.lan, path: /x, servicePort: 8080}, {host: b.lan, servicePort: 8080}, {host: b.lan, path: /y, servicePort: 8080}]\n";
        let redirected =
            "  ingress: [{host: b.lan, servicePort: 8080, redirectFrom: [www.b.lan]}]\n";
        for scope in [Scope::Admin, deploy()] {
            let limited = shop(Some(2));
            let fits = tried(&limited, ("shop", "cart", two), scope.clone());
            assert_eq!(fits, Ok(CheckedClaims { change: true }));
            let refused = tried(&limited, ("shop", "cart", redirected), scope);
            assert_eq!(
                refused.unwrap_err(),
                "VirtualLoadBalancer.kat: the quota `hosts` of namespace `shop` is 2: 1 used now, and 3 with this"
            );
        }
        // Another host in the place of one is no growth, also above a quota that was lowered.
        let full = shop(Some(0));
        let other = tried(&full, ("shop", "web", &route("c.lan")), Scope::Admin);
        assert_eq!(other, Ok(CheckedClaims { change: true }));
        let more = tried(&full, ("shop", "cart", &route("c.lan")), Scope::Admin);
        assert!(more.unwrap_err().contains("1 used now, and 2 with this"));
        // Without a quota of the namespace, the default limits deploy tokens alone.
        let hosts = |prefix: &str, number: usize| {
            let route = |at| format!("{{host: {prefix}{at}.lan, servicePort: 8080}}");
            let routes: Vec<_> = (0..number).map(route).collect();
            format!("  ingress: [{}]\n", routes.join(", "))
        };
        let mut open = shop(None);
        for name in ["one", "two"] {
            let one = stored("shop", name, &hosts(name, 49));
            open.workloads.extend(one.workloads.clone());
        }
        let fits = tried(&open, ("shop", "cart", &hosts("h", 1)), deploy());
        assert_eq!(fits, Ok(CheckedClaims { change: true }));
        let two = hosts("h", 2);
        let refused = tried(&open, ("shop", "cart", &two), deploy()).unwrap_err();
        let said = "`shop` is 100: 99 used now, and 101 with this";
        assert!(refused.contains(said), "{refused}");
        let admin = tried(&open, ("shop", "cart", &two), Scope::Admin);
        assert_eq!(admin, Ok(CheckedClaims { change: true }));
    }

    #[test]
    fn what_is_stored_already_is_neither_refused_nor_claimed_anew() {
        let mut snapshot = stored("shop", "web", &route("a.lan"));
        let again = stored("other", "web", &route("a.lan"));
        snapshot.workloads.extend(again.workloads.clone());
        let same = tried(&snapshot, ("other", "web", &route("a.lan")), Scope::Admin);
        assert_eq!(same, Ok(CheckedClaims { change: false }));
        let fewer = tried(&snapshot, ("other", "web", ""), Scope::Admin);
        assert_eq!(fewer, Ok(CheckedClaims { change: true }));
        let more =
            "  ingress: [{host: a.lan, servicePort: 8080}, {host: b.lan, servicePort: 8080}]\n";
        let more = tried(&snapshot, ("other", "web", more), Scope::Admin);
        assert!(
            more.unwrap_err()
                .contains("a.lan belongs to workload shop/web")
        );
    }
}
