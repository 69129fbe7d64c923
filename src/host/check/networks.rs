//! Checks networks that overlap the cluster's, the default route, and name servers.

use ipnet::Ipv4Net;

use super::{CheckFacts, CheckInput, CheckStage, Finding, packages::Package};
use crate::facts::network::{Overlap, overlaps};

/// Bytes that WireGuard adds to a packet over IPv4.
const TUNNEL_BYTES: u32 = 60;
/// Bytes that WireGuard adds to a packet over IPv6.
const TUNNEL_BYTES_V6: u32 = 80;

pub(super) fn add_network_findings(
    input: &CheckInput,
    facts: &CheckFacts,
    findings: &mut Vec<Finding>,
) {
    cluster_networks(input, facts, findings);
    way_out(input, facts, findings);
    findings.push(if facts.resolved.active {
        Finding::ok("systemd-resolved runs: this machine will know the workloads' names too")
    } else {
        let enable = "sudo systemctl enable --now systemd-resolved.service";
        Finding::warning(
            "systemd-resolved does not run: containers know the workloads' names, this machine does not",
        )
        .mended_by(if facts.resolved.exists {
            enable.to_owned()
        } else {
            format!("{} && {enable}", Package::Resolved.install(facts.family))
        })
    });
}

fn cluster_networks(input: &CheckInput, facts: &CheckFacts, findings: &mut Vec<Finding>) {
    let mut kept = vec![input.cluster.cluster_cidr, input.cluster.service_cidr];
    for (name, network) in [
        ("clusterCIDR", input.cluster.cluster_cidr),
        ("serviceCIDR", input.cluster.service_cidr),
    ] {
        let mut found = overlaps(network, &facts.routes, &facts.addresses);
        if input.stage == CheckStage::Running {
            // KAT's own routes are those of kat0 and of the veths. The rest of the machine's subnet
            // has an unreachable route without a link.
            found.retain(|overlap| !(overlap.link().starts_with("kat") || overlap.link() == "*"));
        }
        if found.is_empty() {
            findings.push(Finding::ok(format!("{network} ({name}) is free")));
            continue;
        }
        let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
        let mend = if input.stage == CheckStage::BeforeInit {
            let other = free_network(network.prefix_len(), &kept, facts);
            kept.extend(other);
            let other = other.map_or_else(
                || "a network that nothing here has a route to".to_owned(),
                |network| network.to_string(),
            );
            format!(
                "set {name}: {other} in cluster.kat, and give it with sudo kat-agent init --config cluster.kat"
            )
        } else {
            // A cluster's networks can't be changed later, so the overlapping ones have to be
            // removed.
            let commands: Vec<_> = found.iter().map(Overlap::removal).collect();
            format!("sudo {}", commands.join(" && sudo "))
        };
        findings.push(Finding::problem(
            format!("{network} ({name}) overlaps {}", texts.join(" and ")),
            mend,
        ));
    }
}

/// A private network (RFC 1918) that overlaps no network of this machine.
fn free_network(prefix: u8, kept: &[Ipv4Net], facts: &CheckFacts) -> Option<Ipv4Net> {
    let after = (101..=255).chain(0..=100).map(|second| [10, second, 0, 0]);
    let others = (16..=31).map(|second| [172, second, 0, 0]);
    after
        .chain(others)
        .chain([[192, 168, 0, 0]])
        .filter_map(|address| Ipv4Net::new(address.into(), prefix.max(16)).ok())
        .find(|network| {
            overlaps(*network, &facts.routes, &facts.addresses).is_empty()
                && !kept
                    .iter()
                    .any(|other| other.contains(network) || network.contains(other))
        })
}

fn way_out(input: &CheckInput, facts: &CheckFacts, findings: &mut Vec<Finding>) {
    let Some((link, mtu)) = &facts.default_link else {
        findings.push(
            Finding::warning("there is no default route: images can't be pulled from elsewhere")
                .mended_by(
                    "set a gateway in the network's configuration; until the next boot: \
                     sudo ip route add default via GATEWAY",
                ),
        );
        return;
    };
    let wanted = input.cluster.mtu;
    let mend = if input.stage == CheckStage::BeforeInit {
        format!(
            "set mtu: {} in cluster.kat, and give it with sudo kat-agent init --config cluster.kat",
            mtu.saturating_sub(TUNNEL_BYTES_V6)
        )
    } else {
        format!(
            "sudo ip link set dev {link} mtu {}",
            wanted + TUNNEL_BYTES_V6
        )
    };
    findings.push(if wanted + TUNNEL_BYTES_V6 <= *mtu {
        Finding::ok(format!("{link} takes the overlay's MTU of {wanted}"))
    } else if wanted + TUNNEL_BYTES <= *mtu {
        Finding::warning(format!(
            "{link} has an MTU of {mtu}: the overlay's {wanted} fits over IPv4 only"
        ))
        .mended_by(mend)
    } else {
        Finding::problem(
            format!(
                "{link} has an MTU of {mtu}, too small for the overlay's {wanted} and WireGuard's {TUNNEL_BYTES_V6}"
            ),
            mend,
        )
    });
}
