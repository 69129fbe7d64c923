//! The content of the files of `kat-ingress`, from the store's keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::Bound,
};

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, de::DeserializeOwned};

use kat_pki::delivery::{SealingPurpose, open_assigned};
use kat_store::mirror::MirrorEntries;
use kat_types::{
    ingress::{
        IngressCertificate, IngressCertificates, IngressChallenges, IngressRoute, IngressRoutes,
        IngressSettings, IngressUpstream, IngressUpstreams, RouteAction, RouteForwardAuth,
        RouteTls, UpstreamInstance,
    },
    resource::{ClusterConfiguration, PlainHttp, Protocol, secret::SecretValues},
    services::{BackendState, ServiceBalance},
    store::{
        acme::AcmeChallengeRecord,
        configuration::ConfigurationRecord,
        ingress::{AssignedRoute, AssignedRoutes, HTPASSWD, STICKY_KEY, TLS_CERTIFICATE, TLS_KEY},
        keys,
        transaction::KeyValue,
    },
};

/// `max-age` of `Strict-Transport-Security` for certificates that users bring and those by ACME:
/// half a year. Browsers do not trust KAT's own authority by themselves, so a host with its
/// certificate gets no such header.
const HSTS_SECONDS: u64 = 15_552_000;
/// Beginning of the name of a certificate of KAT's own authority, or of one that stands in for another.
const INTERNAL: &str = "internal:";
/// Beginning of the name of a certificate by ACME.
const ACME: &str = "acme:";

/// What `kat-ingress` serves on this machine. Revisions are 0: the files count them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IngressContent {
    /// The settings of all routes.
    pub settings: IngressSettings,
    /// The routes of this machine.
    pub routes: IngressRoutes,
    /// The instances behind them.
    pub upstreams: IngressUpstreams,
    /// The certificates of their hosts.
    pub certificates: IngressCertificates,
    /// Answers to challenges.
    pub challenges: IngressChallenges,
    /// Revision of the store of the newest challenge; 0 without any.
    pub newest_challenge: i64,
}

impl IngressContent {
    /// Whether there is something to serve.
    pub(crate) fn serves(&self) -> bool {
        !self.routes.routes.is_empty()
    }
}

/// Reads what the machine serves. Certificates and passwords are opened with its private key; what does
/// not open leaves its routes without a certificate, or without any user.
pub fn content(entries: &MirrorEntries, node: &str, key: &[u8; 32]) -> IngressContent {
    let mut content = IngressContent {
        settings: settings(entries, node),
        ..IngressContent::default()
    };
    content.routes.schema = 1;
    content.upstreams.schema = 1;
    content.certificates.schema = 1;
    content.challenges.schema = 1;
    for (token, entry) in entries_below(entries, keys::ACME_CHALLENGES) {
        if let Some(challenge) = read::<AcmeChallengeRecord>(entry) {
            let tokens = &mut content.challenges.tokens;
            tokens.insert(token.to_owned(), challenge.answer);
        }
        content.newest_challenge = content.newest_challenge.max(entry.mod_revision);
    }
    let machines = machines(entries);
    let prefix = keys::desired_routes(node);
    for (workload, entry) in entries_below(entries, &prefix) {
        let Some(assigned) = read::<AssignedRoutes>(entry) else {
            add_unread(&mut content.routes, workload, entry);
            continue;
        };
        let values = opened(&assigned, (node, workload), key);
        if let Some(key) = sticky_key(&values) {
            // The same for all workloads.
            content.settings.sticky_key = key;
        }
        for route in &assigned.routes {
            add_certificates(&mut content.certificates, workload, route, &values);
            let served = served(workload, route, &values, &content.certificates);
            let upstreams = &mut content.upstreams.upstreams;
            if let RouteAction::Service { upstream } = &served.action {
                let upstream = upstreams.entry(upstream.clone());
                match (route.port, route.outside) {
                    (Some(port), _) => {
                        upstream.or_insert_with(|| instances(entries, &machines, workload, port));
                    }
                    (None, Some(target)) => {
                        upstream.or_insert_with(|| outside_instance(target));
                    }
                    (None, None) => {}
                }
            }
            if let (Some(auth), Some(asked)) = (&served.forward_auth, &route.forward_auth)
                && let Some(port) = asked.port
            {
                let upstream = upstreams.entry(auth.upstream.clone());
                upstream.or_insert_with(|| instances(entries, &machines, &asked.workload, port));
            }
            let name = format!("{workload}/{}{}", served.host, served.path);
            content.routes.routes.insert(name, served);
        }
    }
    content
}

/// Hosts and paths of routes that a newer version wrote.
#[derive(Debug, Deserialize)]
struct UnreadRoutes {
    routes: Vec<UnreadRoute>,
}

#[derive(Debug, Deserialize)]
struct UnreadRoute {
    host: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    tls: bool,
}

/// Answers what can't be read with 503: without an entry, a shorter path of the host would answer its
/// requests, without its password and its allowed addresses.
fn add_unread(routes: &mut IngressRoutes, workload: &str, entry: &KeyValue) {
    let Some(unread) = read::<UnreadRoutes>(entry) else {
        return;
    };
    for route in unread.routes {
        let path = prefix(&route.path);
        let name = format!("{workload}/{}{path}", route.host);
        let tls = route.tls.then(|| RouteTls {
            waits_for: Some(waits_for(&route.host)),
            hsts_seconds: 0,
        });
        let placeholder = IngressRoute {
            path,
            tls,
            ..IngressRoute::new(&route.host, RouteAction::Maintenance {})
        };
        routes.routes.insert(name, placeholder);
    }
}

/// A path without its final slash.
fn prefix(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" => "/".to_owned(),
        path => path.to_owned(),
    }
}

/// The route's own reason names secrets and namespaces, which are no matter of strangers.
fn waits_for(host: &str) -> String {
    format!("The certificate of {host} is not ready yet.")
}

fn settings(entries: &MirrorEntries, node: &str) -> IngressSettings {
    let wanted = entries.get(keys::WANTED_CONFIGURATION);
    let wanted = wanted.and_then(|entry| read::<ConfigurationRecord>(entry));
    let spec = wanted.map(|record| record.configuration.spec).or_else(|| {
        let entry = entries.get(keys::CLUSTER)?;
        Some(read::<ClusterConfiguration>(entry)?.spec)
    });
    let ingress = spec.unwrap_or_default().ingress;
    IngressSettings {
        schema: 1,
        revision: 0,
        node: node.to_owned(),
        trusted_proxies: ranges(&ingress.trusted_proxies),
        proxy_protocol_from: ranges(&ingress.proxy_protocol_from),
        access_log: ingress.access_log,
        ..IngressSettings::default()
    }
}

/// Addresses and ranges. One that can't be read was checked by another version, and is left out.
fn ranges(texts: &[String]) -> Vec<IpNet> {
    let parsed = texts.iter().filter_map(|text| {
        let address = text.parse::<IpAddr>().ok().map(IpNet::from);
        address.or_else(|| text.parse().ok())
    });
    parsed.collect()
}

/// The opened secrets of a workload's routes; without those that do not open.
fn opened(
    assigned: &AssignedRoutes,
    (node, workload): (&str, &str),
    key: &[u8; 32],
) -> BTreeMap<String, SecretValues> {
    let Some(secrets) = &assigned.secrets else {
        return BTreeMap::new();
    };
    let opened = open_assigned(secrets, SealingPurpose::Routes, key, node, workload);
    opened.unwrap_or_else(|error| {
        tracing::error!(workload, "certificates of routes can't be opened: {error}");
        BTreeMap::new()
    })
}

/// The key of the cookies of sticky routes, in hexadecimal digits.
fn sticky_key(values: &BTreeMap<String, SecretValues>) -> Option<String> {
    let key = values.get(STICKY_KEY)?.0.get(STICKY_KEY)?;
    Some(hex::encode(key))
}

/// The name of a certificate in the file: those of the leader are the same for every workload with the
/// host.
fn certificate_name(workload: &str, name: &str) -> String {
    match name.starts_with(INTERNAL) || name.starts_with(ACME) {
        true => name.to_owned(),
        false => format!("{workload}/{name}"),
    }
}

fn add_certificates(
    certificates: &mut IngressCertificates,
    workload: &str,
    route: &AssignedRoute,
    values: &BTreeMap<String, SecretValues>,
) {
    let own = route.certificate.as_ref().map(|name| (&route.host, name));
    let others = route.redirect_from.iter();
    let others = others.filter_map(|(host, name)| Some((host, name.as_ref()?)));
    for (host, name) in own.into_iter().chain(others) {
        let text = |key: &str| {
            let value = values.get(name)?.0.get(key)?;
            String::from_utf8(value.clone()).ok()
        };
        let (Some(chain), Some(key)) = (text(TLS_CERTIFICATE), text(TLS_KEY)) else {
            continue;
        };
        let one = certificates
            .certificates
            .entry(certificate_name(workload, name));
        let one = one.or_insert_with(|| IngressCertificate {
            hosts: BTreeSet::new(),
            chain,
            key,
        });
        one.hosts.insert(host.clone());
    }
}

/// The route as `kat-ingress` reads it. One with an action that this version does not know is answered
/// with 503: left out, a shorter path of the host would answer its requests without its restrictions.
fn served(
    workload: &str,
    route: &AssignedRoute,
    values: &BTreeMap<String, SecretValues>,
    certificates: &IngressCertificates,
) -> IngressRoute {
    let target = (
        route.port,
        route.outside,
        &route.redirect_to,
        route.maintenance,
    );
    let action = match target {
        (Some(port), None, None, false) => RouteAction::Service {
            upstream: format!("{workload}:{port}"),
        },
        (None, Some(outside), None, false) => RouteAction::Service {
            upstream: format!("outside {outside}"),
        },
        (None, None, Some(to), false) => RouteAction::Redirect { to: to.clone() },
        _ => RouteAction::Maintenance {},
    };
    let certificate = route.certificate.as_ref().filter(|name| {
        let name = certificate_name(workload, name);
        certificates.certificates.contains_key(&name)
    });
    let tls = route.tls.then(|| RouteTls {
        // A certificate of KAT's own authority may stand in for one that a user has not brought yet.
        waits_for: (certificate.is_none() || !route.awaits.is_empty())
            .then(|| waits_for(&route.host)),
        hsts_seconds: match certificate {
            Some(name) if !name.starts_with(INTERNAL) => HSTS_SECONDS,
            _ => 0,
        },
    });
    let users = route.users.as_ref().map(|name| {
        let file = values.get(name).and_then(|values| values.0.get(HTPASSWD));
        let text = file.map(|file| String::from_utf8_lossy(file).into_owned());
        let text = text.unwrap_or_default();
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    });
    IngressRoute {
        path: prefix(&route.path),
        tls,
        plain_http: match route.redirects_plain {
            true => PlainHttp::Redirect,
            false => PlainHttp::Serve,
        },
        redirect_from: route.redirect_from.keys().cloned().collect(),
        strip_prefix: route.strip_prefix,
        request_headers: route.request_headers.clone(),
        response_headers: route.response_headers.clone(),
        basic_auth: users,
        allow_sources: (!route.allow_sources.is_empty()).then(|| ranges(&route.allow_sources)),
        max_body_bytes: route.max_body_bytes,
        timeouts: route.timeouts.clone(),
        protocol: route.upstream,
        sticky: route.sticky,
        passthrough: route.passthrough,
        proxy_protocol: route.proxy_protocol,
        forward_auth: route.forward_auth.as_ref().map(|auth| RouteForwardAuth {
            // Without a port there is no such upstream, and the route admits nobody.
            upstream: match auth.port {
                Some(port) => format!("{}:{port}", auth.workload),
                None => format!("{}:none", auth.workload),
            },
            path: auth.path.clone(),
            response_headers: auth.response_headers.clone(),
        }),
        ..IngressRoute::new(&route.host, action)
    }
}

/// The machines' subnets of the overlay.
fn machines(entries: &MirrorEntries) -> Vec<(Ipv4Net, String)> {
    let nodes = entries_below(entries, keys::NETWORK_NODES);
    let subnets = nodes.filter_map(|(name, entry)| {
        let node = name.strip_suffix("/subnet")?;
        let subnet = std::str::from_utf8(&entry.value).ok()?.parse().ok()?;
        Some((subnet, node.to_owned()))
    });
    subnets.collect()
}

/// The instances behind a port of a workload (`NAMESPACE/NAME`).
fn instances(
    entries: &MirrorEntries,
    machines: &[(Ipv4Net, String)],
    workload: &str,
    port: u16,
) -> IngressUpstream {
    let key = format!("{}{workload}/balance", keys::SERVICES);
    let balance = entries.get(key.as_str());
    let balance = balance.and_then(|entry| read::<ServiceBalance>(entry));
    let ports = balance.unwrap_or_default().ports.into_iter();
    let own = ports.filter(|one| one.port == port && one.protocol == Protocol::Tcp);
    let machine = |address: Ipv4Addr| {
        let found = machines
            .iter()
            .find(|(subnet, _)| subnet.contains(&address));
        found.map_or_else(String::new, |(_, node)| node.clone())
    };
    let instances = own.flat_map(|one| one.instances);
    let instances = instances.map(|(address, state)| {
        let instance = UpstreamInstance {
            address: address.into(),
            port,
            machine: machine(address),
            state,
        };
        (address.to_string(), instance)
    });
    IngressUpstream {
        instances: instances.collect(),
    }
}

/// A target outside KAT, of which nothing is known but its address.
fn outside_instance(target: SocketAddr) -> IngressUpstream {
    let instance = UpstreamInstance {
        address: target.ip(),
        port: target.port(),
        machine: String::new(),
        state: BackendState::Serving,
    };
    IngressUpstream {
        instances: [(target.to_string(), instance)].into(),
    }
}

/// The keys below a prefix, each without the prefix.
fn entries_below<'a>(
    entries: &'a MirrorEntries,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a str, &'a KeyValue)> {
    entries
        .range::<_, str>((Bound::Included(prefix), Bound::Unbounded))
        .map_while(move |(key, entry)| key.strip_prefix(prefix).map(|rest| (rest, entry.as_ref())))
}

fn read<T: DeserializeOwned>(entry: &KeyValue) -> Option<T> {
    let read = serde_json::from_slice(&entry.value);
    read.inspect_err(|error| tracing::error!(key = entry.key, "it can't be read: {error:#}"))
        .ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn entries(pairs: &[(&str, &str)]) -> MirrorEntries {
        let entry = |key: &str, value: &str| KeyValue {
            key: key.to_owned(),
            value: value.as_bytes().to_vec(),
            mod_revision: 1,
            create_revision: 1,
        };
        pairs
            .iter()
            .map(|(key, value)| (Arc::from(*key), Arc::new(entry(key, value))))
            .collect()
    }

    const BALANCE: &str = r#"{"schema":1,"ports":[
        {"port":8080,"protocol":"TCP","instances":{"10.100.0.2":"serving","10.100.2.2":"leaving"}},
        {"port":8080,"protocol":"UDP","instances":{"10.100.0.9":"serving"}}]}"#;

    #[test]
    fn a_route_leads_to_the_instances_of_its_port_with_their_machines() {
        let routes = r#"{"schema":1,"routes":[{"host":"a.lan","path":"/x/","port":8080}]}"#;
        let entries = entries(&[
            ("/kat/network/nodes/n1/subnet", "10.100.0.0/23"),
            ("/kat/network/nodes/n2/subnet", "10.100.2.0/23"),
            ("/kat/network/services/shop/web/balance", BALANCE),
            ("/kat/nodes/desired/n1/routes/shop/web", routes),
            ("/kat/nodes/desired/n2/routes/shop/other", routes),
        ]);
        let content = content(&entries, "n1", &[0; 32]);
        assert!(content.serves());
        let routes = &content.routes.routes;
        assert_eq!(routes.keys().collect::<Vec<_>>(), ["shop/web/a.lan/x"]);
        assert_eq!(routes["shop/web/a.lan/x"].path, "/x");
        assert_eq!(routes["shop/web/a.lan/x"].allow_sources, None);
        let behind = &content.upstreams.upstreams["shop/web:8080"].instances;
        let seen: Vec<_> = behind
            .values()
            .map(|one| (one.machine.as_str(), one.state))
            .collect();
        let expected = [("n1", BackendState::Serving), ("n2", BackendState::Leaving)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn every_machine_answers_every_challenge_of_the_store() {
        let entries = entries(&[
            (
                "/kat/ingress/challenges/abc_-1",
                r#"{"schema":1,"answer":"abc_-1.thumb"}"#,
            ),
            ("/kat/ingress/challenges/bad", "{"),
            ("/kat/ingress/claims", ""),
        ]);
        let content = content(&entries, "n1", &[0; 32]);
        let expected = [("abc_-1".to_owned(), "abc_-1.thumb".to_owned())];
        assert_eq!(content.challenges.tokens, expected.into());
        assert_eq!(content.newest_challenge, 1);
        assert!(!content.serves());
    }

    #[test]
    fn without_its_secrets_a_route_admits_nobody_and_waits_for_its_certificate() {
        let routes = r#"{"schema":1,"routes":[{"host":"a.lan","path":"/","port":8080,"tls":true,
            "certificate":"tls:shop","users":"users:people","redirectsPlain":true}],
            "secrets":{"versions":{},"sealed":"AAAA"}}"#;
        let entries = entries(&[("/kat/nodes/desired/n1/routes/shop/web", routes)]);
        let content = content(&entries, "n1", &[0; 32]);
        let route = &content.routes.routes["shop/web/a.lan/"];
        assert_eq!(route.basic_auth, Some(Vec::new()));
        let waits = route.tls.as_ref().and_then(|tls| tls.waits_for.clone());
        assert_eq!(
            waits.as_deref(),
            Some("The certificate of a.lan is not ready yet.")
        );
        assert!(content.certificates.certificates.is_empty());
    }

    #[test]
    fn certificates_have_the_hosts_of_their_routes_alone() {
        let values = |name: &str| {
            let one = [(TLS_CERTIFICATE, "chain"), (TLS_KEY, "key")];
            let one = one.map(|(key, text)| (key.to_owned(), text.as_bytes().to_vec()));
            (name.to_owned(), SecretValues(one.into()))
        };
        let values = [values("tls:shop"), values("internal:b.lan")].into();
        let route: AssignedRoute = serde_json::from_str(
            r#"{"host":"a.lan","path":"/","port":80,"tls":true,"certificate":"tls:shop",
                "redirectFrom":{"b.lan":"internal:b.lan","c.lan":"tls:shop","d.lan":null}}"#,
        )
        .unwrap();
        let mut certificates = IngressCertificates::default();
        add_certificates(&mut certificates, "ns/web", &route, &values);
        let hosts: Vec<_> = certificates
            .certificates
            .iter()
            .map(|(name, one)| {
                let hosts: Vec<_> = one.hosts.iter().map(String::as_str).collect();
                (name.as_str(), hosts)
            })
            .collect();
        let expected = [
            ("internal:b.lan", vec!["b.lan"]),
            ("ns/web/tls:shop", vec!["a.lan", "c.lan"]),
        ];
        assert_eq!(hosts, expected);
        let served = served("ns/web", &route, &values, &certificates);
        let tls = served.tls.unwrap();
        assert_eq!((tls.waits_for, tls.hsts_seconds), (None, HSTS_SECONDS));
    }

    #[test]
    fn a_certificate_that_stands_in_for_a_users_serves_the_page_alone() {
        let one = [(TLS_CERTIFICATE, "chain"), (TLS_KEY, "key")];
        let one = one.map(|(key, text)| (key.to_owned(), text.as_bytes().to_vec()));
        let values = [("internal:a.lan".to_owned(), SecretValues(one.into()))].into();
        let route: AssignedRoute = serde_json::from_str(
            r#"{"host":"a.lan","path":"/","port":80,"tls":true,"certificate":"internal:a.lan",
                "awaits":"there is no secret shop in namespace ns"}"#,
        )
        .unwrap();
        let mut certificates = IngressCertificates::default();
        add_certificates(&mut certificates, "ns/web", &route, &values);
        assert!(certificates.certificates.contains_key("internal:a.lan"));
        let tls = served("ns/web", &route, &values, &certificates)
            .tls
            .unwrap();
        let expected = Some("The certificate of a.lan is not ready yet.".to_owned());
        assert_eq!((tls.waits_for, tls.hsts_seconds), (expected, 0));
    }

    #[test]
    fn routes_pass_tls_on_ask_another_workload_and_lead_outside() {
        let routes = r#"{"schema":1,"routes":[
            {"host":"a.lan","path":"/","port":8080,"passthrough":true,"proxyProtocol":"v2"},
            {"host":"b.lan","path":"/","port":8080,"forwardAuth":{"workload":"crew/auth","port":8080,"path":"/v","responseHeaders":["X-User"]}},
            {"host":"c.lan","path":"/","port":8080,"forwardAuth":{"workload":"auth","path":"/"}}]}"#;
        let outside = r#"{"schema":1,"routes":[{"host":"nas.lan","path":"/","outside":"[2001:db8::5]:5000"}]}"#;
        let entries = entries(&[
            ("/kat/network/services/crew/auth/balance", BALANCE),
            ("/kat/nodes/desired/n1/routes/crew/web", routes),
            (
                "/kat/nodes/desired/n1/routes/kat-core/route:nas.lan",
                outside,
            ),
        ]);
        let content = content(&entries, "n1", &[0; 32]);
        let routes = &content.routes.routes;
        let whole = &routes["crew/web/a.lan/"];
        assert!(whole.passthrough && whole.tls.is_none());
        assert_eq!(whole.proxy_protocol, kat_types::resource::ProxyProtocol::V2);
        let upstreams = &content.upstreams.upstreams;
        let auth = routes["crew/web/b.lan/"].forward_auth.as_ref().unwrap();
        assert_eq!(upstreams[&auth.upstream].instances.len(), 2);
        assert_eq!(auth.response_headers, ["X-User"]);
        // Of one that may not be asked there is no upstream, so that nobody is admitted.
        let none = routes["crew/web/c.lan/"].forward_auth.as_ref().unwrap();
        assert!(!upstreams.contains_key(&none.upstream));
        let nas = &routes["kat-core/route:nas.lan/nas.lan/"];
        let RouteAction::Service { upstream } = &nas.action else {
            panic!("{nas:?}");
        };
        let behind: Vec<_> = upstreams[upstream].instances.values().collect();
        assert_eq!(behind[0].port, 5000);
        assert!(behind[0].machine.is_empty());
    }

    #[test]
    fn the_key_of_sticky_routes_comes_from_the_sealed_secrets() {
        let values = [(STICKY_KEY.to_owned(), vec![7; 32])];
        let one = SecretValues(values.into());
        let values = [(STICKY_KEY.to_owned(), one)].into();
        assert_eq!(sticky_key(&values), Some("07".repeat(32)));
        assert_eq!(sticky_key(&BTreeMap::new()), None);
    }

    /// Left out, the shorter path would answer for it.
    #[test]
    fn a_route_of_a_newer_version_is_answered_with_503() {
        let short = r#"{"schema":1,"routes":[{"host":"a.lan","path":"/","port":80}]}"#;
        let later = r#"{"schema":2,"routes":[{"host":"a.lan","path":"/x/","later":{"x":1},
            "users":"users:people"}]}"#;
        let unread = r#"{"schema":2,"routes":[{"host":"a.lan","path":"/y","port":80,"tls":true,
            "upstream":"h9"}]}"#;
        let entries = entries(&[
            ("/kat/nodes/desired/n1/routes/shop/later", later),
            ("/kat/nodes/desired/n1/routes/shop/short", short),
            ("/kat/nodes/desired/n1/routes/shop/unread", unread),
        ]);
        let content = content(&entries, "n1", &[0; 32]);
        let routes = &content.routes.routes;
        let names: Vec<_> = routes.keys().map(String::as_str).collect();
        let expected = [
            "shop/later/a.lan/x",
            "shop/short/a.lan/",
            "shop/unread/a.lan/y",
        ];
        assert_eq!(names, expected);
        for name in ["shop/later/a.lan/x", "shop/unread/a.lan/y"] {
            assert_eq!(routes[name].action, RouteAction::Maintenance {}, "{name}");
        }
        assert_eq!(routes["shop/later/a.lan/x"].basic_auth, Some(Vec::new()));
        assert!(routes["shop/unread/a.lan/y"].tls.is_some());
    }
}
