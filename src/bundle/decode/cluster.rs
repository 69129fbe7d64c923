//! `cluster.kat` (RFC001-KAT 3.9) and `/etc/kat/agent.yaml`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::Ipv4Net;

use super::{Decoder, Fields, PathValue, container::reserved};
use crate::{
    check,
    diagnostic::{Class, quote},
};
use kat_types::{
    resource::{
        AcmeAccount, AcmeSettings, AcmeZone, AgentConfig, Bytes, ClusterConfiguration,
        ClusterMetadata, ClusterSpec, DnsUpdate, IngressSettings, KeptImageTimes, PortRange,
        TsigKey, VirtualAddress,
    },
    virtual_addresses::MOST_ADDRESSES,
};

/// A document of kind ClusterConfiguration.
pub(crate) fn cluster(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
) -> Option<ClusterConfiguration> {
    let mut fields = decoder.mapping(at)?;
    fields.get("apiVersion");
    fields.get("kind");
    let metadata = fields.required(decoder, "metadata", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let name = fields.required(decoder, "name", |decoder, at| {
            decoder.checked(at, check::label)
        });
        fields.finish(decoder);
        Some(ClusterMetadata { name: name? })
    });
    let spec = fields.required(decoder, "spec", spec);
    fields.finish(decoder);
    Some(ClusterConfiguration {
        metadata: metadata?,
        spec: spec?,
    })
}

fn spec(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<ClusterSpec> {
    let default = ClusterSpec::default();
    let mut fields = decoder.mapping(at)?;
    let cluster_cidr = fields.required(decoder, "clusterCIDR", network);
    let service_cidr = fields.required(decoder, "serviceCIDR", network);
    let path =
        |decoder: &mut Decoder<'_>, at: &PathValue<'_>| decoder.checked(at, check::folder_path);
    let node_subnet_bits = fields.optional(decoder, "nodeSubnetBits", Decoder::integer);
    let cluster_domain = fields.optional(decoder, "clusterDomain", |decoder, at| {
        decoder.checked(at, check::domain)
    });
    let agent_port = fields.optional(decoder, "agentPort", Decoder::integer);
    let api_port = fields.optional(decoder, "apiPort", Decoder::integer);
    let etcd_peer_port = fields.optional(decoder, "etcdPeerPort", Decoder::integer);
    let etcd_client_port = fields.optional(decoder, "etcdClientPort", Decoder::integer);
    let wireguard_port = fields.optional(decoder, "wireguardPort", Decoder::integer);
    let volume_base_path = fields.optional(decoder, "volumeBasePath", path);
    let backup_path = fields.optional(decoder, "backupPath", path);
    let backup_retention = fields.optional(decoder, "backupRetention", Decoder::integer);
    let backup_interval = fields.optional(decoder, "backupIntervalMinutes", Decoder::integer);
    let agent_tick_seconds = fields.optional(decoder, "agentTickSeconds", Decoder::integer);
    let node_loss = fields.optional(decoder, "nodeLossTimeoutSeconds", Decoder::integer);
    let mtu = fields.optional(decoder, "mtu", Decoder::integer);
    let isolation = fields.optional(decoder, "isolation", Decoder::word);
    let ingress = fields.optional(decoder, "ingress", ingress);
    let acme = fields.optional(decoder, "acme", acme);
    let mut seen = BTreeMap::new();
    let virtual_addresses = fields.optional(decoder, "virtualAddresses", |decoder, at| {
        let own = [cluster_cidr, service_cidr];
        let own: Vec<Ipv4Net> = own.into_iter().flatten().collect();
        let found = decoder.list(at, |decoder, at| {
            virtual_address(decoder, at, (&mut seen, &own))
        });
        if found.as_ref().is_some_and(|all| all.len() > MOST_ADDRESSES) {
            let message = format!("more than {MOST_ADDRESSES} virtual addresses");
            decoder.soft(Class::Range, at.node.span, &at.path, message, None);
        }
        found
    });
    let spec = ClusterSpec {
        cluster_cidr: cluster_cidr.unwrap_or(default.cluster_cidr),
        service_cidr: service_cidr.unwrap_or(default.service_cidr),
        node_subnet_bits: node_subnet_bits.unwrap_or(default.node_subnet_bits),
        cluster_domain: cluster_domain.unwrap_or(default.cluster_domain),
        agent_port: agent_port.unwrap_or(default.agent_port),
        api_port: api_port.unwrap_or(default.api_port),
        etcd_peer_port: etcd_peer_port.unwrap_or(default.etcd_peer_port),
        etcd_client_port: etcd_client_port.unwrap_or(default.etcd_client_port),
        wireguard_port: wireguard_port.unwrap_or(default.wireguard_port),
        volume_base_path: volume_base_path.unwrap_or(default.volume_base_path),
        backup_path: backup_path.unwrap_or(default.backup_path),
        backup_retention: backup_retention.unwrap_or(default.backup_retention),
        backup_interval_minutes: backup_interval.unwrap_or(default.backup_interval_minutes),
        agent_tick_seconds: agent_tick_seconds.unwrap_or(default.agent_tick_seconds),
        node_loss_timeout_seconds: node_loss.unwrap_or(default.node_loss_timeout_seconds),
        mtu: mtu.unwrap_or(default.mtu),
        isolation: isolation.unwrap_or_default(),
        ingress: ingress.unwrap_or_default(),
        acme: acme.unwrap_or_default(),
        virtual_addresses: virtual_addresses.unwrap_or_default(),
    };
    if let (Some(cluster), Some(service)) = (cluster_cidr, service_cidr) {
        networks(decoder, &fields, cluster, service, spec.node_subnet_bits);
    }
    ports(decoder, &fields, &spec);
    let least = spec.agent_tick_seconds.saturating_mul(3);
    if spec.node_loss_timeout_seconds < least {
        let name = match fields.has("nodeLossTimeoutSeconds") {
            true => "nodeLossTimeoutSeconds",
            false => "agentTickSeconds",
        };
        decoder.soft(
            Class::CrossFile,
            fields.span_of(name),
            &fields.path_of(name),
            format!(
                "nodeLossTimeoutSeconds is {}, expected at least three ticks of agentTickSeconds: {least}",
                spec.node_loss_timeout_seconds
            ),
            None,
        );
    }
    fields.finish(decoder);
    Some(spec)
}

fn ingress(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<IngressSettings> {
    let sources =
        |decoder: &mut Decoder<'_>, at: &PathValue<'_>| decoder.distinct(at, check::source_range);
    let mut settings = IngressSettings::default();
    let mut fields = decoder.mapping(at)?;
    fields.fill(decoder, "enabled", &mut settings.enabled, Decoder::boolean);
    fields.fill(
        decoder,
        "trustedProxies",
        &mut settings.trusted_proxies,
        sources,
    );
    let from = &mut settings.proxy_protocol_from;
    fields.fill(decoder, "proxyProtocolFrom", from, sources);
    settings.internal_domains = fields.optional(decoder, "internalDomains", |decoder, at| {
        decoder.distinct(at, check::domain)
    });
    let access_log = &mut settings.access_log;
    fields.fill(decoder, "accessLog", access_log, Decoder::boolean);
    fields.finish(decoder);
    Some(settings)
}

fn acme(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<AcmeSettings> {
    let mut fields = decoder.mapping(at)?;
    let directory = fields.optional(decoder, "directory", |decoder, at| {
        decoder.checked(at, check::https_url)
    });
    let email = fields.optional(decoder, "email", |decoder, at| {
        decoder.checked(at, check::email)
    });
    let agree_to_terms = fields.optional(decoder, "agreeToTerms", Decoder::boolean);
    let eab = fields.optional(decoder, "eab", |decoder, at| {
        let secret = secret(decoder, at)?;
        Some(AcmeAccount { secret })
    });
    let profile = fields.optional(decoder, "profile", |decoder, at| {
        decoder.checked(at, check::one_line)
    });
    let mut seen = BTreeMap::new();
    let dns = fields.optional(decoder, "dns", |decoder, at| {
        decoder.list(at, |decoder, at| acme_zone(decoder, at, &mut seen))
    });
    fields.finish(decoder);
    Some(AcmeSettings {
        directory,
        email,
        agree_to_terms: agree_to_terms.unwrap_or_default(),
        eab,
        profile: profile.unwrap_or_default(),
        dns: dns.unwrap_or_default(),
    })
}

/// The name of a secret, the only field of a mapping.
fn secret(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<String> {
    let mut fields = decoder.mapping(at)?;
    let secret = fields.required(decoder, "secret", |decoder, at| {
        decoder.checked(at, check::label)
    });
    fields.finish(decoder);
    secret
}

fn acme_zone(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    seen: &mut BTreeMap<String, u32>,
) -> Option<AcmeZone> {
    let mut fields = decoder.mapping(at)?;
    let zone = fields.required(decoder, "zone", |decoder, at| {
        let zone = decoder.checked(at, check::domain)?;
        decoder.once(at, &zone, seen);
        Some(zone)
    });
    let rfc2136 = fields.optional(decoder, "rfc2136", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let server = fields.required(decoder, "server", |decoder, at| {
            decoder.checked(at, check::server)
        });
        let tsig = fields.required(decoder, "tsig", secret);
        fields.finish(decoder);
        Some(DnsUpdate {
            server: server?,
            tsig: TsigKey { secret: tsig? },
        })
    });
    let hook = fields.optional(decoder, "hook", |decoder, at| {
        decoder.checked(at, check::label)
    });
    match (fields.has("rfc2136"), fields.has("hook")) {
        (true, true) => decoder.soft(
            Class::Shape,
            fields.span_of("hook"),
            &fields.path_of("hook"),
            "found both rfc2136 and hook, expected exactly one of them",
            Some("leave one of them out".to_owned()),
        ),
        (false, false) => decoder.soft(
            Class::Missing,
            fields.head(),
            &at.path,
            "found neither rfc2136 nor hook, expected exactly one of them",
            Some(
                "such as `rfc2136: {server: ns1.example.org, tsig: {secret: dns-key}}`".to_owned(),
            ),
        ),
        _ => {}
    }
    fields.finish(decoder);
    Some(AcmeZone {
        zone: zone?,
        rfc2136,
        hook,
    })
}

fn virtual_address(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    (seen, own): (&mut BTreeMap<String, u32>, &[Ipv4Net]),
) -> Option<VirtualAddress> {
    let mut fields = decoder.mapping(at)?;
    let address = fields.required(decoder, "address", |decoder, at| {
        let address = decoder.checked(at, check::address_of_network)?;
        let host = address.split_once('/').map_or("", |(host, _)| host);
        let host = host.parse::<IpAddr>().map(|host| host.to_string());
        decoder.once(at, &host.unwrap_or_default(), seen);
        let found = address.parse::<Ipv4Net>().ok();
        if let Some(range) =
            found.and_then(|found| own.iter().find(|own| own.contains(&found.addr())))
        {
            let message = format!(
                "`{}` lies in {range}, which the cluster uses for itself",
                quote(&address)
            );
            let hint = "use a free address of the machines' LAN".to_owned();
            decoder.soft(Class::Range, at.node.span, &at.path, message, Some(hint));
        }
        Some(address)
    });
    let interface = fields.optional(decoder, "interface", |decoder, at| {
        decoder.checked(at, check::interface)
    });
    let on_leader_loss = fields.optional(decoder, "onLeaderLoss", Decoder::word);
    fields.finish(decoder);
    Some(VirtualAddress {
        address: address?,
        interface: interface.unwrap_or_else(|| "auto".to_owned()),
        on_leader_loss: on_leader_loss.unwrap_or_default(),
    })
}

/// A range of IPv4 addresses, its host bits cleared.
fn network(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Ipv4Net> {
    let text = decoder.text(at)?;
    let Ok(network) = text.parse::<Ipv4Net>() else {
        let message = format!(
            "found `{}`, expected an IPv4 range such as `10.100.0.0/16`",
            quote(&text)
        );
        decoder.hard(Class::Type, at.node.span, &at.path, message, None);
        return None;
    };
    let canonical = network.trunc();
    if network != canonical {
        decoder.soft(
            Class::Range,
            at.node.span,
            &at.path,
            format!("`{network}` has bits set after its prefix"),
            Some(format!("write `{canonical}`")),
        );
    }
    if !(8..=29).contains(&canonical.prefix_len()) {
        let message = format!(
            "found a prefix of {}, expected 8 to 29",
            canonical.prefix_len()
        );
        decoder.soft(Class::Range, at.node.span, &at.path, message, None);
    }
    const RESERVED: [(Ipv4Addr, u8, &str); 5] = [
        (Ipv4Addr::new(0, 0, 0, 0), 8, "this network"),
        (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
        (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
        (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
        (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
    ];
    for (address, prefix, name) in RESERVED {
        let reserved = Ipv4Net::new(address, prefix).unwrap_or(canonical);
        if overlap(reserved, canonical) {
            decoder.soft(
                Class::Range,
                at.node.span,
                &at.path,
                format!("`{canonical}` overlaps {reserved}, which is for {name} addresses"),
                Some("take a private range, such as `10.100.0.0/16`".to_owned()),
            );
        }
    }
    Some(canonical)
}

fn overlap(left: Ipv4Net, right: Ipv4Net) -> bool {
    left.contains(&right) || right.contains(&left)
}

fn networks(
    decoder: &mut Decoder<'_>,
    fields: &Fields<'_>,
    cluster: Ipv4Net,
    service: Ipv4Net,
    bits: u8,
) {
    if overlap(cluster, service) {
        decoder.soft(
            Class::CrossFile,
            fields.span_of("serviceCIDR"),
            &fields.path_of("serviceCIDR"),
            format!("serviceCIDR {service} overlaps clusterCIDR {cluster}"),
            None,
        );
    }
    let prefix = cluster.prefix_len().saturating_add(bits);
    if prefix > 29 {
        let name = match fields.has("nodeSubnetBits") {
            true => "nodeSubnetBits",
            false => "clusterCIDR",
        };
        decoder.soft(
            Class::CrossFile,
            fields.span_of(name),
            &fields.path_of(name),
            format!(
                "the prefix /{} of clusterCIDR and {bits} nodeSubnetBits give each node a /{prefix}, expected at most /29",
                cluster.prefix_len()
            ),
            Some("take a shorter prefix or fewer bits".to_owned()),
        );
    }
}

/// Checks that the TCP ports differ.
fn ports(decoder: &mut Decoder<'_>, fields: &Fields<'_>, spec: &ClusterSpec) {
    let ports = [
        ("agentPort", spec.agent_port),
        ("apiPort", spec.api_port),
        ("etcdPeerPort", spec.etcd_peer_port),
        ("etcdClientPort", spec.etcd_client_port),
    ];
    for (index, (name, port)) in ports.iter().enumerate() {
        let before = ports.iter().take(index);
        for (other, same) in before.filter(|(_, other)| other == port) {
            // The position of one that is written.
            let place = if fields.has(name) { name } else { other };
            decoder.soft(
                Class::CrossFile,
                fields.span_of(place),
                &fields.path_of(place),
                format!("{name} and {other} are both {same}"),
                None,
            );
        }
    }
}

/// The text of `/etc/kat/agent.yaml`.
pub(crate) fn agent_config(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<AgentConfig> {
    let default = AgentConfig::default();
    let mut fields = decoder.mapping(at)?;
    let reserved = fields.optional(decoder, "reserved", reserved);
    let upstream_dns = fields.optional(decoder, "upstreamDNS", |decoder, at| {
        decoder.list(at, resolver)
    });
    let host_mount_allow = fields.optional(decoder, "hostMountAllow", |decoder, at| {
        decoder.distinct(at, check::folder_path)
    });
    let host_mount_create = fields.optional(decoder, "hostMountCreate", |decoder, at| {
        decoder.distinct(at, check::folder_path)
    });
    let devices_allow = fields.optional(decoder, "devicesAllow", |decoder, at| {
        decoder.distinct(at, check::device_folder)
    });
    let groups_allow = fields.optional(decoder, "groupsAllow", |decoder, at| {
        decoder.distinct(at, check::group)
    });
    let host_network_allow = fields.optional(decoder, "hostNetworkAllow", Decoder::boolean);
    let security_allow = fields.optional(decoder, "securityAllow", |decoder, at| {
        decoder.distinct(at, check::security_word)
    });
    let host_ports_allow = fields.optional(decoder, "hostPortsAllow", |decoder, at| {
        let texts = decoder.distinct(at, check::port_range)?;
        let ranges = texts.iter().filter_map(|text| PortRange::parse(text));
        Some(ranges.collect())
    });
    let host_port_loopback = fields.optional(decoder, "hostPortLoopback", Decoder::boolean);
    let volume_shared = fields.optional(decoder, "volumeShared", Decoder::boolean);
    let wireguard_port = fields.optional(decoder, "wireguardPort", Decoder::integer);
    let endpoints = fields.optional(decoder, "endpoints", |decoder, at| {
        decoder.distinct(at, check::endpoint)
    });
    let images = fields.optional(decoder, "images", kept_image_times);
    let disk_free = fields.optional(decoder, "diskFree", |decoder, at| {
        decoder.size(at, Bytes(0))
    });
    let machine_access_allow = fields.optional(decoder, "machineAccessAllow", |decoder, at| {
        decoder.distinct(at, check::machine_access)
    });
    fields.finish(decoder);
    Some(AgentConfig {
        reserved: reserved.unwrap_or_default(),
        upstream_dns: upstream_dns.unwrap_or_default(),
        host_mount_allow: host_mount_allow.unwrap_or(default.host_mount_allow),
        host_mount_create,
        devices_allow,
        groups_allow,
        host_network_allow: host_network_allow.unwrap_or_default(),
        security_allow,
        host_ports_allow,
        host_port_loopback,
        volume_shared: volume_shared.unwrap_or_default(),
        wireguard_port,
        endpoints: endpoints.unwrap_or_default(),
        images: images.unwrap_or_default(),
        disk_free,
        machine_access_allow: machine_access_allow.unwrap_or_default(),
    })
}

fn kept_image_times(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<KeptImageTimes> {
    let default = KeptImageTimes::default();
    let mut fields = decoder.mapping(at)?;
    let keep_days = fields.optional(decoder, "keepDays", Decoder::integer);
    let old_hours = fields.optional(decoder, "oldHours", Decoder::integer);
    fields.finish(decoder);
    Some(KeptImageTimes {
        keep_days: keep_days.unwrap_or(default.keep_days),
        old_hours: old_hours.unwrap_or(default.old_hours),
    })
}

fn resolver(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<IpAddr> {
    let text = decoder.text(at)?;
    let Ok(address) = text.parse::<IpAddr>() else {
        let message = format!(
            "found `{}`, expected an address such as `192.0.2.1` or `2001:db8::1`",
            quote(&text)
        );
        decoder.hard(Class::Type, at.node.span, &at.path, message, None);
        return None;
    };
    if address.is_unspecified() || address.is_multicast() {
        let message = format!("`{address}` can't be asked for names");
        decoder.soft(Class::Range, at.node.span, &at.path, message, None);
    }
    Some(address)
}
