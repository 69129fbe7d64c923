//! Routes, checked, and found by host and path.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hyper::{
    Uri,
    header::{HeaderName, HeaderValue},
};
use ipnet::IpNet;
use serde_json::Value;

use crate::{
    config::passwords::PasswordList,
    headers::{HeaderChangeError, ParsedChanges},
    metrics::{Metrics, RouteCounters},
    request_path::{PathError, RequestPath, prefix_segments},
};
use kat_types::{
    ingress::{IngressRoute, RouteAction},
    resource::{PlainHttp, ProxyProtocol, UpstreamProtocol},
};

/// Longest host name (RFC 1035 2.3.4).
const LONGEST_HOST: usize = 253;
/// Longest sentence of [`RouteTls::waits_for`](kat_types::ingress::RouteTls::waits_for).
const LONGEST_SENTENCE: usize = 500;

/// A host name of a route or a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPattern {
    /// This name.
    Exact(String),
    /// One label before this name.
    Wildcard(String),
}

impl HostPattern {
    /// `None` if the text is not a name in lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, is_wildcard) = match text.strip_prefix("*.") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let is_valid = is_host_name(name) && name == name.to_ascii_lowercase();
        is_valid.then(|| match is_wildcard {
            true => Self::Wildcard(name.to_owned()),
            false => Self::Exact(name.to_owned()),
        })
    }
}

/// Whether a text is a DNS name, or an IPv4 address. Underscores are allowed, as in practice.
pub(crate) fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    text.len() <= LONGEST_HOST && text.split('.').all(is_label)
}

/// The name that a wildcard would have for this host: without its first label.
pub(crate) fn wildcard_of(host: &str) -> Option<&str> {
    host.split_once('.').map(|(_, rest)| rest)
}

/// Why a route is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error("`{0}` is no host name in lower case")]
    Host(String),
    #[error("path `{0}` is not made of plain segments after slashes")]
    Path(String),
    #[error("`{0}` is no URL with http or https and a host")]
    Url(String),
    #[error(transparent)]
    Header(#[from] HeaderChangeError),
    #[error("`{0}` is no header name")]
    AuthHeader(String),
    #[error("a passed-through route has path `/` and a service")]
    Passthrough,
    #[error("the sentence about its certificate is longer than {LONGEST_SENTENCE} bytes")]
    Sentence,
    #[error("route `{0}` has the same host and path")]
    Taken(String),
}

/// What a route does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedAction {
    /// Requests go to an instance of this upstream.
    Service(String),
    /// Requests are redirected below this URL, without a final slash.
    Redirect(String),
    /// Requests are answered with a page.
    Maintenance,
    /// The route was refused. Its place answers 503, so that nobody reaches what is behind it by
    /// the route of a shorter path.
    Refused,
}

/// An upstream that decides about requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedForwardAuth {
    pub upstream: String,
    pub path: String,
    pub response_headers: Vec<HeaderName>,
}

/// Longest waits of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteTimeouts {
    pub connect: Duration,
    pub response: Duration,
    pub idle: Duration,
}

/// A checked route.
#[derive(Debug)]
pub struct Route {
    pub name: String,
    pub host: HostPattern,
    pub segments: Vec<String>,
    pub action: ParsedAction,
    pub has_tls: bool,
    /// Why its certificate is not there yet.
    pub waits_for: Option<String>,
    pub hsts: Option<HeaderValue>,
    pub plain_http: PlainHttp,
    pub strip_prefix: bool,
    pub request_headers: ParsedChanges,
    pub response_headers: ParsedChanges,
    pub basic_auth: Option<PasswordList>,
    pub forward_auth: Option<ParsedForwardAuth>,
    pub allow_sources: Option<Vec<IpNet>>,
    pub max_body_bytes: u64,
    pub timeouts: RouteTimeouts,
    pub protocol: UpstreamProtocol,
    pub sticky: bool,
    pub passthrough: bool,
    pub proxy_protocol: ProxyProtocol,
    pub counters: Arc<RouteCounters>,
}

impl Route {
    /// A route that stands for one that was refused.
    fn refused(name: &str, host: HostPattern, segments: Vec<String>, metrics: &Metrics) -> Self {
        Self {
            name: name.to_owned(),
            host,
            segments,
            action: ParsedAction::Refused,
            has_tls: false,
            waits_for: None,
            hsts: None,
            plain_http: PlainHttp::Redirect,
            strip_prefix: false,
            request_headers: ParsedChanges::default(),
            response_headers: ParsedChanges::default(),
            basic_auth: None,
            forward_auth: None,
            allow_sources: None,
            max_body_bytes: 0,
            timeouts: RouteTimeouts {
                connect: Duration::ZERO,
                response: Duration::ZERO,
                idle: Duration::ZERO,
            },
            protocol: UpstreamProtocol::default(),
            sticky: false,
            passthrough: false,
            proxy_protocol: ProxyProtocol::default(),
            counters: metrics.route(name),
        }
    }

    fn parse(
        name: &str,
        route: &IngressRoute,
        metrics: &Metrics,
    ) -> Result<ParsedRoute, RouteError> {
        let host =
            HostPattern::parse(&route.host).ok_or_else(|| RouteError::Host(route.host.clone()))?;
        let segments =
            prefix_segments(&route.path).ok_or_else(|| RouteError::Path(route.path.clone()))?;
        let redirect_from = route.redirect_from.iter().map(|from| {
            let pattern = HostPattern::parse(from);
            match (pattern, &host) {
                // A wildcard has no single host to redirect to.
                (Some(HostPattern::Exact(from)), HostPattern::Exact(_)) => Ok(from),
                _ => Err(RouteError::Host(from.clone())),
            }
        });
        let redirect_from = redirect_from.collect::<Result<_, _>>()?;
        let action = match &route.action {
            RouteAction::Service { upstream } => ParsedAction::Service(upstream.clone()),
            RouteAction::Redirect { to } => ParsedAction::Redirect(redirect_target(to)?),
            RouteAction::Maintenance {} => ParsedAction::Maintenance,
        };
        let is_service = matches!(action, ParsedAction::Service(_));
        if route.passthrough && !(segments.is_empty() && is_service) {
            return Err(RouteError::Passthrough);
        }
        let tls = route.tls.as_ref();
        let waits_for = tls.and_then(|tls| tls.waits_for.clone());
        if waits_for
            .as_ref()
            .is_some_and(|text| text.len() > LONGEST_SENTENCE)
        {
            return Err(RouteError::Sentence);
        }
        let hsts = tls
            .map(|tls| tls.hsts_seconds)
            .filter(|seconds| *seconds > 0);
        let hsts =
            hsts.and_then(|seconds| HeaderValue::from_str(&format!("max-age={seconds}")).ok());
        let forward_auth = route.forward_auth.as_ref().map(|auth| {
            let names = auth.response_headers.iter().map(|name| {
                let parsed = name.parse();
                parsed.map_err(|_| RouteError::AuthHeader(name.clone()))
            });
            if !auth.path.starts_with('/') || auth.path.parse::<Uri>().is_err() {
                return Err(RouteError::Path(auth.path.clone()));
            }
            Ok(ParsedForwardAuth {
                upstream: auth.upstream.clone(),
                path: auth.path.clone(),
                response_headers: names.collect::<Result<_, _>>()?,
            })
        });
        let (basic_auth, refused_users) = match &route.basic_auth {
            Some(lines) => {
                let (list, refused) = PasswordList::parse(lines);
                (Some(list), refused)
            }
            None => (None, Vec::new()),
        };
        let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds.max(1)));
        let parsed = Self {
            name: name.to_owned(),
            host,
            segments,
            action,
            has_tls: tls.is_some(),
            waits_for,
            hsts,
            plain_http: route.plain_http,
            strip_prefix: route.strip_prefix,
            request_headers: ParsedChanges::parse(&route.request_headers)?,
            response_headers: ParsedChanges::parse(&route.response_headers)?,
            basic_auth,
            forward_auth: forward_auth.transpose()?,
            allow_sources: route.allow_sources.clone(),
            max_body_bytes: route.max_body_bytes,
            timeouts: RouteTimeouts {
                connect: seconds(route.timeouts.connect_seconds),
                response: seconds(route.timeouts.response_seconds),
                idle: seconds(route.timeouts.idle_seconds),
            },
            protocol: route.protocol,
            sticky: route.sticky,
            passthrough: route.passthrough,
            proxy_protocol: route.proxy_protocol,
            counters: metrics.route(name),
        };
        Ok(ParsedRoute {
            route: Arc::new(parsed),
            redirect_from,
            refused_users,
        })
    }
}

struct ParsedRoute {
    route: Arc<Route>,
    redirect_from: Vec<String>,
    /// Numbers of htpasswd's lines that can't be used.
    refused_users: Vec<usize>,
}

fn redirect_target(to: &str) -> Result<String, RouteError> {
    let malformed = || RouteError::Url(to.to_owned());
    let uri: Uri = to.parse().map_err(|_| malformed())?;
    let host = uri.host().filter(|host| !host.is_empty());
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_plain = uri.query().is_none()
        && to.bytes().all(|byte| byte.is_ascii_graphic())
        && uri
            .authority()
            .is_some_and(|authority| !authority.as_str().contains('@'));
    match host.is_some() && is_http && is_plain {
        true => Ok(to.trim_end_matches('/').to_owned()),
        false => Err(malformed()),
    }
}

/// The routes of one host.
#[derive(Debug, Default)]
pub struct HostRoutes {
    /// The longest path first.
    routes: Vec<Arc<Route>>,
    /// Segments of the longest path.
    depth: usize,
    /// A refused route whose path can't be read: it may be any path of the host.
    refused: Option<Arc<Route>>,
}

impl HostRoutes {
    /// The route for a path without its query; none if no route has it.
    ///
    /// # Errors
    /// The path could be read in two ways.
    pub fn find(&self, path: &str) -> Result<Option<&Arc<Route>>, PathError> {
        let path = RequestPath::parse(path, self.depth)?;
        let mut routes = self.routes.iter();
        let found = || routes.find(|route| path.is_below(&route.segments));
        Ok(self.refused.as_ref().or_else(found))
    }

    /// Adds a route.
    ///
    /// # Errors
    /// Another one has its path.
    fn add(&mut self, route: &Arc<Route>) -> Result<(), RouteError> {
        let mut present = self.routes.iter();
        if let Some(taken) = present.find(|other| other.segments == route.segments) {
            return Err(RouteError::Taken(taken.name.clone()));
        }
        self.depth = self.depth.max(route.segments.len());
        let longer = |other: &Arc<Route>| other.segments.len() >= route.segments.len();
        let position = self.routes.partition_point(longer);
        self.routes.insert(position, Arc::clone(route));
        Ok(())
    }
}

/// The place of a route, read from what may not be one.
#[derive(Debug, Clone, Copy)]
pub struct RoutePlace<'a> {
    host: &'a str,
    path: &'a str,
    redirect_from: Option<&'a Vec<Value>>,
}

impl<'a> RoutePlace<'a> {
    /// `None` if not even the host can be read: then no request can be meant.
    pub fn read(route: &'a Value) -> Option<Self> {
        let path = match route.get("path") {
            Some(path) => path.as_str().unwrap_or_default(),
            None => "/",
        };
        Some(Self {
            host: route.get("host")?.as_str()?,
            path,
            redirect_from: route.get("redirectFrom").and_then(Value::as_array),
        })
    }
}

/// What is known of a host.
#[derive(Debug)]
pub enum HostMatch<'a> {
    /// It has routes.
    Routes(&'a HostRoutes),
    /// Its requests are redirected to this route's host.
    Redirect(&'a Arc<Route>),
}

/// All routes.
#[derive(Debug, Default)]
pub struct RoutingTable {
    exact: BTreeMap<String, HostRoutes>,
    redirects: BTreeMap<String, Arc<Route>>,
    /// By the name without `*.`.
    wildcards: BTreeMap<String, HostRoutes>,
}

impl RoutingTable {
    /// Adds a route. The result has sentences about parts of the route that can't be used.
    ///
    /// # Errors
    /// The route can't be used; the table is unchanged.
    pub fn add(
        &mut self,
        name: &str,
        route: &IngressRoute,
        metrics: &Metrics,
    ) -> Result<Vec<String>, RouteError> {
        let ParsedRoute {
            route,
            redirect_from,
            refused_users,
        } = Route::parse(name, route, metrics)?;
        self.host_routes(&route.host).add(&route)?;
        for from in redirect_from {
            let redirects = self.redirects.entry(from);
            redirects.or_insert_with(|| Arc::clone(&route));
        }
        let users = refused_users.into_iter().take(8);
        let sentence =
            |line| format!("line {line} of htpasswd has no bcrypt hash with a cost of at most 12");
        Ok(users.map(sentence).collect())
    }

    /// Closes the place of a route that was refused: what it has no other route for is answered with
    /// 503. All of the host is, if the path can't be read.
    pub fn refuse(&mut self, name: &str, place: RoutePlace<'_>, metrics: &Metrics) {
        let lower = |host: &str| host.trim_end_matches('.').to_ascii_lowercase();
        let Some(host) = HostPattern::parse(&lower(place.host)) else {
            return;
        };
        let segments = prefix_segments(place.path);
        let is_whole = segments.is_none();
        let segments = segments.unwrap_or_default();
        let route = Arc::new(Route::refused(name, host, segments, metrics));
        let routes = self.host_routes(&route.host);
        match is_whole {
            true => routes.refused = Some(Arc::clone(&route)),
            // A route with a lesser name may have the place: it is the one that counts.
            false => _ = routes.add(&route),
        }
        let from = place.redirect_from.into_iter().flatten();
        for from in from.filter_map(Value::as_str) {
            if let Some(HostPattern::Exact(from)) = HostPattern::parse(&lower(from)) {
                let redirects = self.redirects.entry(from);
                redirects.or_insert_with(|| Arc::clone(&route));
            }
        }
    }

    fn host_routes(&mut self, host: &HostPattern) -> &mut HostRoutes {
        let hosts = match host {
            HostPattern::Exact(host) => self.exact.entry(host.clone()),
            HostPattern::Wildcard(host) => self.wildcards.entry(host.clone()),
        };
        hosts.or_default()
    }

    /// Finds a host in lower case, without port.
    pub fn host(&self, host: &str) -> Option<HostMatch<'_>> {
        let exact = self.exact.get(host).map(HostMatch::Routes);
        let redirect = || self.redirects.get(host).map(HostMatch::Redirect);
        let wildcard = || {
            let routes = self.wildcards.get(wildcard_of(host)?);
            routes.map(HostMatch::Routes)
        };
        exact.or_else(redirect).or_else(wildcard)
    }

    /// The route that takes connections with this server name whole.
    pub fn passthrough(&self, host: &str) -> Option<&Arc<Route>> {
        let Some(HostMatch::Routes(host)) = self.host(host) else {
            return None;
        };
        host.routes.iter().find(|route| route.passthrough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::resource::HeaderChanges;

    fn service(host: &str, path: &str) -> IngressRoute {
        let upstream = "default/web:80".to_owned();
        IngressRoute {
            path: path.to_owned(),
            ..IngressRoute::new(host, RouteAction::Service { upstream })
        }
    }

    fn table(routes: &[(&str, IngressRoute)]) -> RoutingTable {
        let mut table = RoutingTable::default();
        for (name, route) in routes {
            assert_eq!(table.add(name, route, &Metrics::default()), Ok(Vec::new()));
        }
        table
    }

    fn found(table: &RoutingTable, host: &str, path: &str) -> String {
        match table.host(host) {
            Some(HostMatch::Routes(routes)) => routes
                .find(path)
                .unwrap()
                .map_or_else(|| "none".to_owned(), |route| route.name.clone()),
            Some(HostMatch::Redirect(route)) => format!("redirect to {}", route.name),
            None => "no host".to_owned(),
        }
    }

    #[test]
    fn an_exact_host_wins_over_a_redirected_one_and_that_over_a_wildcard() {
        let redirecting = IngressRoute {
            redirect_from: vec!["www.example.org".to_owned(), "a.example.org".to_owned()],
            ..service("example.org", "/")
        };
        let table = table(&[
            ("wild", service("*.example.org", "/")),
            ("exact", service("a.example.org", "/")),
            ("main", redirecting),
        ]);
        assert_eq!(found(&table, "a.example.org", "/"), "exact");
        assert_eq!(found(&table, "www.example.org", "/"), "redirect to main");
        assert_eq!(found(&table, "b.example.org", "/x"), "wild");
        assert_eq!(found(&table, "example.org", "/"), "main");
        // A wildcard is one label.
        assert_eq!(found(&table, "b.c.example.org", "/"), "no host");
        assert_eq!(found(&table, "org", "/"), "no host");
    }

    #[test]
    fn the_longest_path_wins_whatever_the_order() {
        let routes = [
            ("a", service("x.example", "/")),
            ("b", service("x.example", "/api/v2")),
            ("c", service("x.example", "/api")),
            ("d", service("x.example", "/shop")),
        ];
        let forwards = table(&routes);
        let backwards: Vec<_> = routes.into_iter().rev().collect();
        let backwards = table(&backwards);
        for table in [forwards, backwards] {
            assert_eq!(found(&table, "x.example", "/api/v2/x"), "b");
            assert_eq!(found(&table, "x.example", "/api/v1"), "c");
            assert_eq!(found(&table, "x.example", "/shop"), "d");
            assert_eq!(found(&table, "x.example", "/other"), "a");
        }
        let alone = table(&[("c", service("x.example", "/api"))]);
        assert_eq!(found(&alone, "x.example", "/other"), "none");
    }

    #[test]
    fn a_second_route_for_the_same_place_is_refused_with_the_firsts_name() {
        let mut table = table(&[("a", service("x.example", "/api"))]);
        let taken = table.add("b", &service("x.example", "/api"), &Metrics::default());
        assert_eq!(taken, Err(RouteError::Taken("a".to_owned())));
    }

    #[test]
    fn a_bad_route_is_refused_with_its_reason() {
        let refused = |route: &IngressRoute| {
            let mut table = RoutingTable::default();
            let refused = table.add("bad", route, &Metrics::default());
            assert!(table.host("x.example").is_none());
            refused.unwrap_err()
        };
        for host in [
            "X.example",
            "x.example.",
            "",
            "*.",
            "*",
            "a.*.example",
            "x:80",
            "ä.example",
            "-a.example",
        ] {
            assert_eq!(
                refused(&service(host, "/")),
                RouteError::Host(host.to_owned())
            );
        }
        let path = refused(&service("x.example", "/a/../b"));
        assert_eq!(path, RouteError::Path("/a/../b".to_owned()));
        for url in [
            "example.org",
            "ftp://a.example",
            "https://",
            "https://u:p@a.example",
            "https://a.example/?q",
        ] {
            let to = url.to_owned();
            let route = IngressRoute::new("x.example", RouteAction::Redirect { to });
            assert_eq!(refused(&route), RouteError::Url(url.to_owned()));
        }
        let route = IngressRoute {
            request_headers: HeaderChanges {
                remove: vec!["x-forwarded-for".to_owned()],
                ..HeaderChanges::default()
            },
            ..service("x.example", "/")
        };
        assert!(matches!(refused(&route), RouteError::Header(_)));
        let route = IngressRoute {
            passthrough: true,
            ..service("x.example", "/a")
        };
        assert_eq!(refused(&route), RouteError::Passthrough);
        let route = IngressRoute {
            redirect_from: vec!["*.x.example".to_owned()],
            ..service("x.example", "/")
        };
        assert_eq!(refused(&route), RouteError::Host("*.x.example".to_owned()));
    }

    #[test]
    fn the_place_of_a_refused_route_is_closed_and_its_neighbours_are_not() {
        let mut table = table(&[
            ("a", service("x.example", "/")),
            ("b", service("x.example", "/shop")),
            ("w", service("*.x.example", "/")),
        ]);
        let refuse = |table: &mut RoutingTable, route: &str| {
            let value: Value = serde_json::from_str(route).unwrap();
            let place = RoutePlace::read(&value).unwrap();
            table.refuse("refused", place, &Metrics::default());
        };
        refuse(
            &mut table,
            r#"{"host":"X.example","path":"/admin","redirectFrom":["www.x.example","*.x"]}"#,
        );
        assert_eq!(found(&table, "x.example", "/admin/x"), "refused");
        assert_eq!(found(&table, "x.example", "/administrator"), "a");
        assert_eq!(found(&table, "x.example", "/shop"), "b");
        assert_eq!(
            found(&table, "www.x.example", "/"),
            "redirect to refused",
            "it is not the wildcard's"
        );
        // A route that is there keeps its place, and one that comes later does not get it.
        refuse(&mut table, r#"{"host":"x.example","path":"/shop"}"#);
        assert_eq!(found(&table, "x.example", "/shop"), "b");
        let taken = table.add("z", &service("x.example", "/admin"), &Metrics::default());
        assert_eq!(taken, Err(RouteError::Taken("refused".to_owned())));
        refuse(&mut table, r#"{"host":"one.x.example"}"#);
        assert_eq!(found(&table, "one.x.example", "/y"), "refused");
        assert_eq!(found(&table, "two.x.example", "/y"), "w");
        // It may be any path.
        for path in [r#""/a|b""#, "7", "null"] {
            let mut table = super::tests::table(&[("a", service("y.example", "/"))]);
            let route = format!(r#"{{"host":"y.example","path":{path}}}"#);
            refuse(&mut table, &route);
            assert_eq!(found(&table, "y.example", "/"), "refused", "{path}");
        }
        assert!(RoutePlace::read(&Value::Null).is_none());
    }

    #[test]
    fn a_bad_line_of_htpasswd_refuses_that_user_alone() {
        let route = IngressRoute {
            basic_auth: Some(vec!["ann:plain".to_owned()]),
            ..service("x.example", "/")
        };
        let mut table = RoutingTable::default();
        let sentences = table.add("a", &route, &Metrics::default()).unwrap();
        assert_eq!(sentences.len(), 1);
        assert!(sentences[0].starts_with("line 1 "), "{sentences:?}");
        let Some(HostMatch::Routes(routes)) = table.host("x.example") else {
            panic!("no routes");
        };
        // Nobody can sign in; the route is not open.
        assert!(routes.find("/").unwrap().unwrap().basic_auth.is_some());
    }
}
