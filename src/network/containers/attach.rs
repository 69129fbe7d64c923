//! Attaches a container to the overlay: a veth pair, an address, and routes in both directions.
//!
//! Both ends know each other's hardware address from the start, so that nothing depends on ARP: the
//! link works while `kat0` is missing, and where the machine answers ARP strictly. The container's
//! end and both routes disappear with the container's namespace.
//!
//! Every link has the overlay's MTU, so that TCP's segment size follows it without clamping.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::namespaces::NetworkNamespace;
use crate::{
    links::{LinkError, LinkState, Links, NextHop, VethPair},
    sysctl,
};
use kat_types::encoding::digest::sha256_u64;

/// Name of the link inside the container.
pub(crate) const CONTAINER_LINK: &str = "eth0";
/// Prefix of the alias of every veth of KAT's; the instance's id follows.
pub(crate) const ALIAS_PREFIX: &str = "kat:";

/// Why a container was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The kernel refused a step.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The link's name is used by a link that is not this instance's.
    #[error("link {name} exists and is not of instance {instance}")]
    Foreign {
        name: String,
        /// The instance that needs the name.
        instance: String,
    },
    /// A link that was just made is missing.
    #[error("link {0} vanished while it was set up")]
    Vanished(String),
    /// A setting of the link was refused.
    #[error("can't set up link {name}: {source}")]
    Setting {
        name: String,
        source: std::io::Error,
    },
}

/// The link to make for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    pub instance: String,
    /// Its overlay address.
    pub address: Ipv4Addr,
    /// This machine's overlay address.
    pub gateway: Ipv4Addr,
    /// MTU of the link.
    pub mtu: u32,
    /// Host ports are forwarded to the container, also from the machine's loopback.
    pub has_host_ports: bool,
}

/// Name of the host end of the instance's link: `kat` and 11 characters of a hash, within the
/// kernel's limit of 15.
pub fn host_link_name(instance: &str) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut name = String::from("kat");
    let number = number_of(instance);
    for position in 0..11_u32 {
        let digit = (number >> (position * 5)) & 31;
        let letter = usize::try_from(digit)
            .ok()
            .and_then(|digit| ALPHABET.get(digit))
            .copied()
            .unwrap_or(b'a');
        name.push(char::from(letter));
    }
    name
}

fn number_of(instance: &str) -> u64 {
    sha256_u64(instance.as_bytes())
}

/// Locally administered hardware address of one end of the link.
fn mac_of(instance: &str, end: u8) -> [u8; 6] {
    let [.., a, b, c, d] = number_of(instance).to_be_bytes();
    [0x02, end, a, b, c, d]
}

/// Makes an instance's link in `namespace`. A link from an earlier start of the same instance, or
/// from an interrupted call, is replaced. After a failure no part of the link is left.
pub async fn attach(
    links: &Links,
    namespace: &NetworkNamespace,
    wanted: &Attachment,
) -> Result<(), AttachError> {
    let name = host_link_name(&wanted.instance);
    if let Some(stale) = links.find(&name).await? {
        if !is_of(&stale, &wanted.instance) {
            return Err(AttachError::Foreign {
                name,
                instance: wanted.instance.clone(),
            });
        }
        links.delete(stale.index).await?;
    }
    let outcome = build(links, namespace, wanted, &name).await;
    if outcome.is_err()
        && let Ok(Some(half_made)) = links.find(&name).await
        && let Err(error) = links.delete(half_made.index).await
    {
        tracing::warn!(link = name, "can't take back a half-made link: {error}");
    }
    outcome
}

async fn build(
    links: &Links,
    namespace: &NetworkNamespace,
    wanted: &Attachment,
    name: &str,
) -> Result<(), AttachError> {
    use std::os::fd::AsFd;
    let (host_mac, container_mac) = (mac_of(&wanted.instance, 1), mac_of(&wanted.instance, 2));
    links
        .add_veth(&VethPair {
            name,
            mac: host_mac,
            peer_name: CONTAINER_LINK,
            peer_mac: container_mac,
            peer_namespace: namespace.as_fd(),
            mtu: wanted.mtu,
        })
        .await?;
    let host = found(links, name).await?;
    let alias = format!("{ALIAS_PREFIX}{}", wanted.instance);
    links.set_alias(host.index, &alias).await?;
    settle_host_link(name, wanted.has_host_ports).map_err(|source| AttachError::Setting {
        name: name.to_owned(),
        source,
    })?;

    let inside = Links::open_in(namespace, || {
        sysctl::set("ipv6", CONTAINER_LINK, "disable_ipv6", "1")
    })?;
    let container = found(&inside, CONTAINER_LINK).await?;
    let loopback = found(&inside, "lo").await?;
    inside.bring_up(loopback.index, None).await?;
    inside
        .set_address(container.index, wanted.address, 32)
        .await?;
    inside.bring_up(container.index, None).await?;
    inside
        .set_neighbour(container.index, wanted.gateway, host_mac)
        .await?;
    let gateway = Ipv4Net::from(wanted.gateway);
    inside
        .set_route(gateway, NextHop::Link(container.index))
        .await?;
    let everything = Ipv4Net::default();
    inside
        .set_route(
            everything,
            NextHop::Gateway(wanted.gateway, container.index),
        )
        .await?;

    links.bring_up(host.index, None).await?;
    links
        .set_neighbour(host.index, wanted.address, container_mac)
        .await?;
    links
        .set_route(wanted.address.into(), NextHop::Link(host.index))
        .await?;
    // Until the links run, the kernel drops packets.
    links.wait_running(name).await?;
    inside.wait_running(CONTAINER_LINK).await?;
    Ok(())
}

/// Configures the host end: it forwards, accepts only packets from the instance's own address, and
/// has no IPv6. With `from_loopback` it also carries connections that the machine made to
/// 127.0.0.1; in the other direction the table `inet kat` lets only replies pass.
fn settle_host_link(name: &str, from_loopback: bool) -> std::io::Result<()> {
    sysctl::set("ipv6", name, "disable_ipv6", "1")?;
    sysctl::set("ipv4", name, "rp_filter", "1")?;
    sysctl::set("ipv4", name, "send_redirects", "0")?;
    if from_loopback {
        sysctl::set("ipv4", name, "route_localnet", "1")?;
    }
    sysctl::set("ipv4", name, "forwarding", "1")
}

async fn found(links: &Links, name: &str) -> Result<LinkState, AttachError> {
    let link = links.find(name).await?;
    link.ok_or_else(|| AttachError::Vanished(name.to_owned()))
}

/// The instance in a link's alias, if the link is KAT's.
pub fn instance_of(link: &LinkState) -> Option<&str> {
    link.alias.as_deref()?.strip_prefix(ALIAS_PREFIX)
}

/// Whether a link with an instance's link name belongs to that instance. A link without an alias,
/// because `kat-net` ended before setting it, is recognised by its hardware address.
fn is_of(link: &LinkState, instance: &str) -> bool {
    match &link.alias {
        Some(_) => instance_of(link) == Some(instance),
        None => link.kind.as_deref() == Some("veth") && link.mac == Some(mac_of(instance, 1)),
    }
}

/// Removes the links of all instances. A link without KAT's alias is never touched.
///
/// # Errors
/// The first link that could not be removed.
pub(crate) async fn remove_all(links: &Links) -> Result<(), LinkError> {
    for link in links.all().await? {
        if instance_of(&link).is_some() {
            links.delete(link.index).await?;
        }
    }
    Ok(())
}

/// Removes the links of one instance; returns whether there were any.
///
/// # Errors
/// The first link that could not be removed.
pub(crate) async fn remove(links: &Links, instance: &str) -> Result<bool, LinkError> {
    let mut removed = false;
    for link in links.all().await? {
        if instance_of(&link) == Some(instance) {
            links.delete(link.index).await?;
            removed = true;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn link_names_fit_the_kernel_and_differ() {
        let mut names = BTreeSet::new();
        for number in 0..500 {
            let name = host_link_name(&format!("web-{number:05}"));
            assert_eq!(name.len(), 14, "{name}");
            assert!(name.starts_with("kat"));
            assert!(names.insert(name));
        }
        assert_eq!(host_link_name("web-ab12c"), host_link_name("web-ab12c"));
    }

    #[test]
    fn hardware_addresses_are_local_and_unicast() {
        let [first, ..] = mac_of("web-ab12c", 1);
        assert_eq!(first & 0b11, 0b10);
        assert_ne!(mac_of("web-ab12c", 1), mac_of("web-ab12c", 2));
    }

    #[test]
    fn only_marked_links_are_ours() {
        let mut link = LinkState {
            index: 7,
            name: host_link_name("web-ab12c"),
            alias: None,
            kind: Some("veth".into()),
            mac: Some(mac_of("web-ab12c", 1)),
            mtu: 1420,
            up: true,
            running: true,
        };
        assert_eq!(instance_of(&link), None);
        assert!(is_of(&link, "web-ab12c"), "half made");
        assert!(!is_of(&link, "web-zzzzz"));
        link.alias = Some("uplink".into());
        assert_eq!(instance_of(&link), None);
        assert!(!is_of(&link, "web-ab12c"));
        link.alias = Some("kat:web-ab12c".into());
        assert_eq!(instance_of(&link), Some("web-ab12c"));
        link.mac = None;
        assert!(is_of(&link, "web-ab12c"));
        link.alias = None;
        assert!(!is_of(&link, "web-ab12c"));
    }
}
