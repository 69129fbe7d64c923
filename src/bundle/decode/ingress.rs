//! `spec.ingress` of `VirtualLoadBalancer.kat`, and documents of kind Route.

use std::collections::BTreeMap;

use super::{
    Decoder, Fields, PathValue,
    balancer::{no_such_port, port_reference},
};
use crate::{
    check,
    diagnostic::{Class, quote},
    yaml::YamlValue,
};
use kat_types::resource::{
    BasicAuth, ForwardAuth, HeaderChanges, Ingress, IngressTimeouts, IngressTls, PlainHttp, Port,
    Protocol, Route, RouteSpec, TlsSource,
};

/// What a request is answered with: exactly one of these.
const TARGETS: [&str; 4] = [
    "servicePort",
    "servicePortName",
    "redirectTo",
    "maintenance",
];

/// What is used beside `passthrough`.
const WITH_PASSTHROUGH: [&str; 6] = [
    "host",
    "servicePort",
    "servicePortName",
    "allowSources",
    "proxyProtocol",
    "passthrough",
];

/// One route. `seen` are the hosts and paths of the routes before it; references to ports are not
/// checked if `ports` are not known.
pub(super) fn ingress(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    ports: Option<&[Port]>,
    seen: &mut BTreeMap<String, u32>,
) -> Option<Ingress> {
    let mut fields = decoder.mapping(at)?;
    let host = fields.required(decoder, "host", |decoder, at| {
        decoder.checked(at, check::host)
    });
    let path = path(decoder, &mut fields);
    let service_port_name = fields.optional(decoder, "servicePortName", |decoder, at| {
        let name = decoder.checked(at, check::port_name)?;
        if let Some(ports) = ports
            && !ports.iter().any(|port| port.name.as_ref() == Some(&name))
        {
            no_such_port(decoder, at, ports);
        }
        refuse_datagrams(decoder, at, ports, |port| port.name.as_ref() == Some(&name));
        Some(name)
    });
    let service_port = fields.optional(decoder, "servicePort", |decoder, at| {
        let number = decoder.integer(at)?;
        if let Some(ports) = ports
            && !ports.iter().any(|port| port.container_port == number)
        {
            no_such_port(decoder, at, ports);
        }
        refuse_datagrams(decoder, at, ports, |port| port.container_port == number);
        Some(number)
    });
    let redirect_to = fields.optional(decoder, "redirectTo", |decoder, at| {
        decoder.checked(at, check::web_url)
    });
    let maintenance = fields.optional(decoder, "maintenance", Decoder::boolean);
    if let Some(host) = &host {
        once(decoder, &fields, host, &path, seen);
    }
    let tls = fields.optional(decoder, "tls", tls);
    let plain_http = fields.optional(decoder, "plainHTTP", Decoder::word);
    let redirect_from = fields.optional(decoder, "redirectFrom", |decoder, at| {
        decoder.distinct(at, check::exact_host)
    });
    let strip_prefix = fields.optional(decoder, "stripPrefix", Decoder::boolean);
    let request_headers = fields.optional(decoder, "requestHeaders", |decoder, at| {
        header_changes(decoder, at)
    });
    let response_headers = fields.optional(decoder, "responseHeaders", |decoder, at| {
        header_changes(decoder, at)
    });
    let basic_auth = fields.optional(decoder, "basicAuth", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let secret = fields.required(decoder, "secret", |decoder, at| {
            decoder.checked(at, check::label)
        });
        fields.finish(decoder);
        Some(BasicAuth { secret: secret? })
    });
    let forward_auth = fields.optional(decoder, "forwardAuth", forward_auth);
    let allow_sources = fields.optional(decoder, "allowSources", |decoder, at| {
        decoder.distinct(at, check::source_range)
    });
    let max_body_bytes = fields.optional(decoder, "maxBodyBytes", Decoder::integer);
    let timeouts = fields.optional(decoder, "timeouts", timeouts);
    let upstream = fields.optional(decoder, "upstream", Decoder::word);
    let sticky = fields.optional(decoder, "sticky", Decoder::boolean);
    let passthrough = fields.optional(decoder, "passthrough", Decoder::boolean);
    let proxy_protocol = fields.optional(decoder, "proxyProtocol", Decoder::word);
    let route = Ingress {
        host: host.clone().unwrap_or_default(),
        path,
        service_port_name,
        service_port,
        redirect_to,
        maintenance: maintenance.unwrap_or_default(),
        tls: tls.unwrap_or_default(),
        plain_http,
        redirect_from: redirect_from.unwrap_or_default(),
        strip_prefix: strip_prefix.unwrap_or_default(),
        request_headers: request_headers.unwrap_or_default(),
        response_headers: response_headers.unwrap_or_default(),
        basic_auth,
        forward_auth,
        allow_sources: allow_sources.unwrap_or_default(),
        max_body_bytes: max_body_bytes.unwrap_or_default(),
        timeouts: timeouts.unwrap_or_default(),
        upstream: upstream.unwrap_or_default(),
        sticky: sticky.unwrap_or_default(),
        passthrough: passthrough.unwrap_or_default(),
        proxy_protocol: proxy_protocol.unwrap_or_default(),
    };
    one_target(decoder, &fields, maintenance);
    combinations(decoder, &fields, &route);
    fields.finish(decoder);
    host.map(|_| route)
}

/// Refuses a port that is found and has no TCP.
fn refuse_datagrams(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    ports: Option<&[Port]>,
    is_meant: impl Fn(&Port) -> bool,
) {
    let mut meant = ports
        .unwrap_or_default()
        .iter()
        .filter(|port| is_meant(port));
    let found = meant.clone().next().is_some();
    if found && meant.all(|port| port.protocol != Protocol::Tcp) {
        decoder.soft(
            Class::CrossFile,
            at.node.span,
            &at.path,
            "the port has protocol UDP, and HTTP needs TCP",
            None,
        );
    }
}

fn path(decoder: &mut Decoder<'_>, fields: &mut Fields<'_>) -> String {
    let path = fields.optional(decoder, "path", |decoder, at| {
        decoder.checked(at, check::path_prefix)
    });
    path.unwrap_or_else(|| "/".to_owned())
}

/// Complains about a host and path that an earlier route has.
fn once(
    decoder: &mut Decoder<'_>,
    fields: &Fields<'_>,
    host: &str,
    path: &str,
    seen: &mut BTreeMap<String, u32>,
) {
    let line = fields.span_of("host").start.line;
    // `/shop` and `/shop/` are one prefix.
    let prefix = path.trim_end_matches('/');
    if let Some(first) = seen.insert(format!("{host}{prefix}"), line) {
        decoder.soft(
            Class::Duplicate,
            fields.span_of("host"),
            &fields.path_of("host"),
            format!(
                "`{}{}` is written twice, first in line {first}",
                quote(host),
                quote(path)
            ),
            None,
        );
    }
}

/// Checks that a route has exactly one target.
fn one_target(decoder: &mut Decoder<'_>, fields: &Fields<'_>, maintenance: Option<bool>) {
    let written = TARGETS.into_iter().filter(|name| match *name {
        // `false` is as if it were not written.
        "maintenance" => fields.has(name) && maintenance != Some(false),
        _ => fields.has(name),
    });
    let written: Vec<_> = written.collect();
    match written.as_slice() {
        [_] => {}
        [] => decoder.soft(
            Class::Missing,
            fields.head(),
            &fields.path_of("servicePortName"),
            format!(
                "found no target, expected exactly one of {}",
                TARGETS.join(", ")
            ),
            Some("such as `servicePortName: web`".to_owned()),
        ),
        [_, second, ..] => decoder.soft(
            Class::Shape,
            fields.span_of(second),
            &fields.path_of(second),
            format!(
                "found {}, expected exactly one of them",
                written.join(" and ")
            ),
            Some("leave the others out".to_owned()),
        ),
    }
}

/// Refuses fields that have no meaning beside others.
fn combinations(decoder: &mut Decoder<'_>, fields: &Fields<'_>, route: &Ingress) {
    let mut refuse = |name: &str, message: String| {
        decoder.soft(
            Class::CrossFile,
            fields.span_of(name),
            &fields.path_of(name),
            message,
            Some("leave it out".to_owned()),
        );
    };
    if route.passthrough {
        let others = fields
            .names()
            .filter(|name| !WITH_PASSTHROUGH.contains(name));
        for name in others {
            let message = format!("{name} can't be used with passthrough, which does not end TLS");
            refuse(name, message);
        }
        return;
    }
    if route.plain_http == Some(PlainHttp::Redirect) && !route.tls.is_on() {
        let message = "plainHTTP redirect sends clients to https, which needs tls";
        refuse("plainHTTP", message.to_owned());
    }
    if route.strip_prefix && route.path == "/" {
        refuse(
            "stripPrefix",
            "stripPrefix needs a path other than /".to_owned(),
        );
    }
    if let Some(index) = route
        .redirect_from
        .iter()
        .position(|host| *host == route.host)
    {
        let message = format!(
            "item {} is the route's own host `{}`",
            index + 1,
            quote(&route.host)
        );
        refuse("redirectFrom", message);
    }
    // `kat-ingress` refuses the route.
    if !route.redirect_from.is_empty() && route.host.starts_with("*.") {
        let message = format!(
            "redirectFrom needs one host to redirect to, and `{}` stands for many",
            quote(&route.host)
        );
        refuse("redirectFrom", message);
    }
}

/// `true`, `false`, or exactly one of `issuer` and `secret`.
fn tls(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<IngressTls> {
    if !matches!(at.node.value, YamlValue::Mapping(_)) {
        return decoder.boolean(at).map(IngressTls::Switch);
    }
    let mut fields = decoder.mapping(at)?;
    let issuer = fields.optional(decoder, "issuer", Decoder::word);
    let secret = fields.optional(decoder, "secret", |decoder, at| {
        decoder.checked(at, check::label)
    });
    match (fields.has("issuer"), fields.has("secret")) {
        (true, true) => decoder.soft(
            Class::Shape,
            fields.span_of("secret"),
            &fields.path_of("secret"),
            "found both issuer and secret, expected exactly one of them",
            Some("leave one of them out".to_owned()),
        ),
        (false, false) => decoder.soft(
            Class::Missing,
            fields.head(),
            &at.path,
            "found neither issuer nor secret, expected exactly one of them",
            Some("write `tls: true` for a certificate of the usual issuer".to_owned()),
        ),
        _ => {}
    }
    fields.finish(decoder);
    Some(IngressTls::Source(TlsSource { issuer, secret }))
}

fn header_changes(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<HeaderChanges> {
    let mut fields = decoder.mapping(at)?;
    let set = fields.optional(decoder, "set", |decoder, at| {
        decoder.text_map(at, check::changed_header, check::header_value)
    });
    let remove = fields.optional(decoder, "remove", |decoder, at| {
        decoder.distinct(at, check::changed_header)
    });
    fields.finish(decoder);
    Some(HeaderChanges {
        set: set.unwrap_or_default(),
        remove: remove.unwrap_or_default(),
    })
}

fn forward_auth(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<ForwardAuth> {
    let mut fields = decoder.mapping(at)?;
    let workload = fields.required(decoder, "workload", |decoder, at| {
        decoder.checked(at, check::workload_reference)
    });
    let port = fields.required(decoder, "port", |decoder, at| {
        port_reference(decoder, at, None)
    });
    let path = path(decoder, &mut fields);
    let response_headers = fields.optional(decoder, "responseHeaders", |decoder, at| {
        decoder.distinct(at, check::header)
    });
    fields.finish(decoder);
    Some(ForwardAuth {
        workload: workload?,
        port: port?,
        path,
        response_headers: response_headers.unwrap_or_default(),
    })
}

fn timeouts(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<IngressTimeouts> {
    let mut timeouts = IngressTimeouts::default();
    let mut fields = decoder.mapping(at)?;
    let connect = &mut timeouts.connect_seconds;
    fields.fill(decoder, "connectSeconds", connect, Decoder::integer);
    let response = &mut timeouts.response_seconds;
    fields.fill(decoder, "responseSeconds", response, Decoder::integer);
    let idle = &mut timeouts.idle_seconds;
    fields.fill(decoder, "idleSeconds", idle, Decoder::integer);
    fields.finish(decoder);
    Some(timeouts)
}

/// A document of kind Route.
pub(crate) fn route(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Route> {
    let mut fields = decoder.mapping(at)?;
    fields.get("apiVersion");
    fields.get("kind");
    let spec = fields.required(decoder, "spec", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let host = fields.required(decoder, "host", |decoder, at| {
            decoder.checked(at, check::host)
        });
        let path = path(decoder, &mut fields);
        let to = fields.required(decoder, "to", |decoder, at| {
            decoder.checked(at, check::web_url)
        });
        let tls = fields.optional(decoder, "tls", tls);
        fields.finish(decoder);
        Some(RouteSpec {
            host: host?,
            path,
            to: to?,
            tls: tls.unwrap_or_default(),
        })
    });
    fields.finish(decoder);
    Some(Route { spec: spec? })
}
