//! Targets of routes to something outside KAT.
//!
//! Administrators alone write such routes. A target is refused that the proxy reaches and callers must
//! not: what listens on the machine itself, what only one link reaches, and KAT's own networks and ports.

use std::net::{IpAddr, SocketAddr};

use crate::{Snapshot, scheduling::host_ports::reserved_ports};
use kat_types::{
    resource::Protocol, store::ingress::INGRESS_PORTS, virtual_addresses::address_and_prefix,
};

/// The address that `to` of a route names.
///
/// # Errors
/// A sentence that says why requests can't be forwarded to it.
pub fn outside_target(snapshot: &Snapshot, to: &str) -> Result<SocketAddr, String> {
    let Some(rest) = to.strip_prefix("http://") else {
        return Err(format!(
            "{to} is no URL with http: requests to a target outside KAT are sent without TLS"
        ));
    };
    let place = rest.strip_suffix('/').unwrap_or(rest);
    let address = place.parse::<SocketAddr>().ok().or_else(|| {
        let inner = place
            .strip_prefix('[')
            .and_then(|one| one.strip_suffix(']'));
        let address = match inner {
            Some(inner) => inner.parse().map(IpAddr::V6).ok(),
            None => place.parse().map(IpAddr::V4).ok(),
        };
        Some(SocketAddr::new(address?, 80))
    });
    let Some(address) = address else {
        return Err(format!(
            "{to} names no address: expected an IPv4 address or an IPv6 address in brackets, with a port or without one, and no path"
        ));
    };
    match refused(snapshot, address) {
        Some(why) => Err(format!("{to}: {} {why}", address.ip())),
        None => Ok(address),
    }
}

/// Why requests are not forwarded to an address.
fn refused(snapshot: &Snapshot, target: SocketAddr) -> Option<String> {
    if target.port() == 0 {
        return Some("has no port 0".to_owned());
    }
    let ip = target.ip().to_canonical();
    let is_special = match ip {
        IpAddr::V4(ip) => {
            let first = ip.octets()[0];
            ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_link_local()
                || ip.is_multicast()
                || first == 0
                || first >= 240
        }
        IpAddr::V6(ip) => {
            ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_unicast_link_local()
                || ip.is_multicast()
        }
    };
    if is_special {
        return Some(
            "is an address of the machine itself, of one link, or of no single machine".to_owned(),
        );
    }
    let mut virtual_addresses = snapshot.wanted_cluster().spec.virtual_addresses.iter();
    if virtual_addresses.any(|one| address_and_prefix(one).is_some_and(|(own, _)| own == ip)) {
        return Some(
            "is a virtual address of the cluster, which machines have themselves".to_owned(),
        );
    }
    let spec = &snapshot.cluster.spec;
    if let IpAddr::V4(ip) = ip {
        if spec.cluster_cidr.contains(&ip) {
            return Some(format!(
                "lies in the overlay ({}): a route of a workload forwards to instances",
                spec.cluster_cidr
            ));
        }
        if spec.service_cidr.contains(&ip) {
            return Some(format!(
                "lies among the service addresses ({}): a route of a workload forwards to instances",
                spec.service_cidr
            ));
        }
    }
    let mut nodes = snapshot.nodes.iter();
    let (node, _) = nodes.find(|(_, node)| {
        let given = node.registration.value.advertise.iter().copied();
        let endpoints = node.endpoints.iter();
        let endpoints = endpoints.filter_map(|place| Some(place.parse::<SocketAddr>().ok()?.ip()));
        let status = node.status.iter();
        let reported = status.flat_map(|status| &status.value.addresses);
        let reported = reported.filter_map(|own| own.parse::<IpAddr>().ok());
        let mut own = given.chain(endpoints).chain(reported);
        own.any(|own| own.to_canonical() == ip)
    })?;
    let reserved = reserved_ports(spec).into_iter();
    let reserved = reserved.filter(|(_, protocol, _)| *protocol == Protocol::Tcp);
    let routes = INGRESS_PORTS.map(|port| (port, "the routes themselves"));
    let mut reserved = reserved
        .map(|(port, _, purpose)| (port, purpose))
        .chain(routes);
    let (port, purpose) = reserved.find(|(port, _)| *port == target.port())?;
    Some(format!(
        "is machine {node}, whose port {port} is for {purpose}"
    ))
}
