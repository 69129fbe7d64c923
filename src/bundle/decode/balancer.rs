//! `VirtualLoadBalancer.kat` (RFC001-KAT 3.3).

use std::collections::BTreeMap;

use super::{Decoder, Fields, PathValue, ingress::ingress};
use crate::{
    check,
    diagnostic::{Class, quote},
    yaml::YamlValue,
};
use kat_types::resource::{
    AutoPort, ExecProbe, HealthCheck, HostPort, HttpProbe, Port, PortRef, Protocol, TcpProbe,
    VirtualLoadBalancer, VirtualLoadBalancerSpec,
};

/// Routes that a workload has at most: what machines get of them has to fit into one value of the store.
const MAX_ROUTES: usize = 64;
/// Further names that a workload has at most: each is a record for each address of the workload.
const MAX_ALIASES: usize = 16;
/// Addresses and ranges that `allowSources` of a port has at most: every machine knows each.
const MAX_SOURCES: usize = 64;

/// A document of kind VirtualLoadBalancer.
///
/// `elsewhere` are the ports in `workload.kat`; `None` if that file could not be read, after which
/// references to ports are not checked.
pub(crate) fn load_balancer(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    elsewhere: Option<&[Port]>,
) -> Option<VirtualLoadBalancer> {
    let mut fields = decoder.mapping(at)?;
    fields.get("apiVersion");
    fields.get("kind");
    let spec = fields.required(decoder, "spec", |decoder, at| spec(decoder, at, elsewhere));
    fields.finish(decoder);
    Some(VirtualLoadBalancer { spec: spec? })
}

fn spec(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    elsewhere: Option<&[Port]>,
) -> Option<VirtualLoadBalancerSpec> {
    let mut fields = decoder.mapping(at)?;
    let ports = fields.defaulted(decoder, "ports", Vec::new, ports);
    // References to ports that could not be read are not checked.
    let known = match fields.has("ports") {
        true => ports.as_deref(),
        false => elsewhere,
    };
    let health_check = fields.optional(decoder, "healthCheck", |decoder, at| {
        health_check(decoder, at, known)
    });
    let headless = fields.optional(decoder, "headless", Decoder::boolean);
    let ingress = fields.optional(decoder, "ingress", |decoder, at| {
        let mut seen = BTreeMap::new();
        let routes = decoder.list(at, |decoder, at| ingress(decoder, at, known, &mut seen))?;
        if routes.len() > MAX_ROUTES {
            let message = format!(
                "found {} routes, expected at most {MAX_ROUTES}",
                routes.len()
            );
            decoder.soft(Class::Shape, at.node.span, &at.path, message, None);
        }
        let mut whole = routes.iter().filter(|route| route.passthrough);
        let hidden = whole.find(|whole| {
            let mut others = routes.iter();
            others.any(|other| {
                !other.passthrough && other.host == whole.host && other.tls.is_on()
            })
        });
        if let Some(route) = hidden {
            let message = format!(
                "the host `{}` has a route with passthrough and one with tls: port 443 of a host is either passed on or served",
                quote(&route.host)
            );
            decoder.soft(Class::Shape, at.node.span, &at.path, message, None);
        }
        Some(routes)
    });
    let aliases = fields.optional(decoder, "aliases", |decoder, at| {
        let aliases = decoder.distinct(at, check::label)?;
        refuse_more_than(decoder, at, MAX_ALIASES, aliases.len(), "names");
        Some(aliases)
    });
    let allow_namespaces = fields.optional(decoder, "allowNamespaces", |decoder, at| {
        decoder.namespaces(at)
    });
    fields.finish(decoder);
    Some(VirtualLoadBalancerSpec {
        ports: ports?,
        health_check,
        headless: headless.unwrap_or_default(),
        ingress: ingress.unwrap_or_default(),
        aliases: aliases.unwrap_or_default(),
        allow_namespaces: allow_namespaces.unwrap_or_default(),
    })
}

/// Ports, and values that must be unique.
#[derive(Default)]
struct SeenPorts {
    names: BTreeMap<String, u32>,
    container_ports: BTreeMap<(u16, Protocol), u32>,
    host_ports: BTreeMap<(u16, Protocol), u32>,
}

pub(super) fn ports(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Vec<Port>> {
    let mut seen = SeenPorts::default();
    let ports = decoder.list(at, |decoder, at| port(decoder, at, &mut seen))?;
    if ports.is_empty() {
        let message = "found no port, expected at least one";
        let hint = "such as `- {name: web, containerPort: 8080}`".to_owned();
        decoder.soft(Class::Missing, at.node.span, &at.path, message, Some(hint));
    }
    Some(ports)
}

fn port(decoder: &mut Decoder<'_>, at: &PathValue<'_>, seen: &mut SeenPorts) -> Option<Port> {
    let mut fields = decoder.mapping(at)?;
    let name = fields.optional(decoder, "name", |decoder, at| {
        let name = decoder.checked(at, check::port_name)?;
        decoder.once(at, &name, &mut seen.names);
        Some(name)
    });
    let container_port = fields.required(decoder, "containerPort", Decoder::integer);
    let protocol = fields
        .optional(decoder, "protocol", Decoder::word)
        .unwrap_or_default();
    let host_port = fields.optional(decoder, "hostPort", host_port);
    let host_port_on = fields.optional(decoder, "hostPortOn", Decoder::word);
    let allow_sources = fields.optional(decoder, "allowSources", |decoder, at| {
        let sources = decoder.distinct(at, check::source_range)?;
        let what = "addresses and ranges";
        refuse_more_than(decoder, at, MAX_SOURCES, sources.len(), what);
        Some(sources)
    });
    for name in ["hostPortOn", "allowSources"] {
        if fields.has(name) && !fields.has("hostPort") {
            decoder.soft(
                Class::CrossFile,
                fields.span_of(name),
                &fields.path_of(name),
                format!("{name} is used only with hostPort"),
                Some("write hostPort, or leave it out".to_owned()),
            );
        }
    }
    if let Some(number) = container_port {
        let place = fields.span_of("containerPort").start.line;
        if let Some(first) = seen.container_ports.insert((number, protocol), place) {
            refuse_duplicate_port(decoder, &fields, "containerPort", number, protocol, first);
        }
    }
    if let Some(HostPort::Number(number)) = host_port {
        let place = fields.span_of("hostPort").start.line;
        if let Some(first) = seen.host_ports.insert((number, protocol), place) {
            refuse_duplicate_port(decoder, &fields, "hostPort", number, protocol, first);
        }
    }
    fields.finish(decoder);
    Some(Port {
        name,
        container_port: container_port?,
        protocol,
        host_port,
        host_port_on: host_port_on.unwrap_or_default(),
        allow_sources: allow_sources.unwrap_or_default(),
    })
}

fn refuse_more_than(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    most: usize,
    found: usize,
    what: &str,
) {
    if found > most {
        let message = format!("found {found} {what}, expected at most {most}");
        decoder.soft(Class::Shape, at.node.span, &at.path, message, None);
    }
}

fn refuse_duplicate_port(
    decoder: &mut Decoder<'_>,
    fields: &Fields<'_>,
    name: &str,
    number: u16,
    protocol: Protocol,
    first: u32,
) {
    let protocol = protocol.word();
    decoder.soft(
        Class::Duplicate,
        fields.span_of(name),
        &fields.path_of(name),
        format!("{name} {number}/{protocol} is written twice, first in line {first}"),
        None,
    );
}

/// A number, or `auto`.
fn host_port(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<HostPort> {
    match &at.node.value {
        YamlValue::Scalar { text, .. } if text == "auto" => Some(HostPort::Auto(AutoPort::Auto)),
        _ => decoder.integer(at).map(HostPort::Number),
    }
}

fn health_check(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    ports: Option<&[Port]>,
) -> Option<HealthCheck> {
    const PROBES: [&str; 3] = ["exec", "http", "tcp"];
    let mut fields = decoder.mapping(at)?;
    let exec = fields.optional(decoder, "exec", exec);
    let http = fields.optional(decoder, "http", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let path = fields.required(decoder, "path", |decoder, at| {
            decoder.checked(at, check::url_path)
        });
        let port = fields.required(decoder, "port", |decoder, at| {
            port_reference(decoder, at, ports)
        });
        fields.finish(decoder);
        Some(HttpProbe {
            path: path?,
            port: port?,
        })
    });
    let tcp = fields.optional(decoder, "tcp", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let port = fields.required(decoder, "port", |decoder, at| {
            port_reference(decoder, at, ports)
        });
        fields.finish(decoder);
        Some(TcpProbe { port: port? })
    });
    let written: Vec<_> = PROBES.into_iter().filter(|name| fields.has(name)).collect();
    match written.as_slice() {
        [] => decoder.soft(
            Class::Missing,
            fields.head(),
            &at.path,
            "found no probe, expected exactly one of exec, http, tcp",
            Some("such as `tcp: {port: web}`".to_owned()),
        ),
        [_] => {}
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
    let initial_delay_seconds = fields.optional(decoder, "initialDelaySeconds", Decoder::integer);
    let period_seconds = fields.optional(decoder, "periodSeconds", Decoder::integer);
    let timeout_seconds = fields.optional(decoder, "timeoutSeconds", Decoder::integer);
    let success_threshold = fields.optional(decoder, "successThreshold", Decoder::integer);
    let failure_threshold = fields.optional(decoder, "failureThreshold", Decoder::integer);
    let restart_on_unhealthy = fields.optional(decoder, "restartOnUnhealthy", Decoder::boolean);
    fields.finish(decoder);
    Some(HealthCheck {
        exec,
        http,
        tcp,
        initial_delay_seconds: initial_delay_seconds.unwrap_or(0),
        period_seconds: period_seconds.unwrap_or(10),
        timeout_seconds: timeout_seconds.unwrap_or(1),
        success_threshold: success_threshold.unwrap_or(1),
        failure_threshold: failure_threshold.unwrap_or(3),
        restart_on_unhealthy: restart_on_unhealthy.unwrap_or_default(),
    })
}

fn exec(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<ExecProbe> {
    let mut fields = decoder.mapping(at)?;
    let command = fields.required(decoder, "command", |decoder, at| {
        let command = decoder.texts(at, check::argument)?;
        if command.is_empty() {
            let message = "found no command, expected a program and its arguments";
            decoder.soft(Class::Missing, at.node.span, &at.path, message, None);
        }
        Some(command)
    });
    fields.finish(decoder);
    Some(ExecProbe { command: command? })
}

/// The number or name of a TCP port; of one of `ports`, unless these are not known.
pub(super) fn port_reference(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    ports: Option<&[Port]>,
) -> Option<PortRef> {
    let numeric = matches!(&at.node.value, YamlValue::Scalar { text, .. }
        if text.starts_with(|first: char| first.is_ascii_digit() || first == '-')
            && check::port_name(text).is_err());
    let reference = if numeric {
        PortRef::Number(decoder.integer(at)?)
    } else {
        PortRef::Name(decoder.checked(at, check::port_name)?)
    };
    let is_meant = |port: &&Port| match &reference {
        PortRef::Number(number) => port.container_port == *number,
        PortRef::Name(name) => port.name.as_ref() == Some(name),
    };
    let Some(ports) = ports else {
        return Some(reference);
    };
    let tcp = |port: &&Port| port.protocol == Protocol::Tcp;
    if !ports.iter().any(|port| is_meant(&port)) {
        no_such_port(decoder, at, ports);
    } else if !ports.iter().filter(is_meant).any(|port| tcp(&port)) {
        let message = "a probe needs a TCP port, this one is UDP";
        decoder.soft(Class::CrossFile, at.node.span, &at.path, message, None);
    }
    Some(reference)
}

pub(super) fn no_such_port(decoder: &mut Decoder<'_>, at: &PathValue<'_>, ports: &[Port]) {
    let shown = match &at.node.value {
        YamlValue::Scalar { text, .. } => quote(text),
        _ => String::new(),
    };
    let known: Vec<_> = ports
        .iter()
        .take(20)
        .map(|port| match &port.name {
            Some(name) => format!("{name} ({})", port.container_port),
            None => port.container_port.to_string(),
        })
        .collect();
    let hint = match known.is_empty() {
        true => "neither this file nor workload.kat has spec.ports".to_owned(),
        false => format!("the ports are {}", quote(&known.join(", "))),
    };
    decoder.soft(
        Class::CrossFile,
        at.node.span,
        &at.path,
        format!("no port of spec.ports is `{shown}`"),
        Some(hint),
    );
}
