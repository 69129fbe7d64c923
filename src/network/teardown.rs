//! Removes KAT's network from the machine, for `kat-agent reset`.

use super::{
    OVERLAY_LINK,
    links::{LinkError, Links},
};
use crate::{
    containers::attach,
    nftables::{
        firewall, firewall::FirewallError, host_ports, isolation, service_addresses as balance,
    },
    overlay::kat0,
    virtual_addresses,
};

/// The part that could not be removed; the rest was removed.
#[derive(Debug, thiserror::Error)]
pub enum TeardownError {
    /// A link or route.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The nftables table.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
}

/// Removes `kat0`, every veth with KAT's alias, KAT's addresses and routes, and its nftables tables.
/// `kat-net.service` and `kat-wg.service` have to be stopped first. Does nothing where nothing is
/// left.
///
/// # Errors
/// The first part that could not be removed, after all were tried.
pub async fn teardown() -> Result<(), TeardownError> {
    let links = Links::open()?;
    let veths = attach::remove_all(&links).await;
    let overlay = remove_overlay(&links).await;
    let held = virtual_addresses::held();
    let addresses = links.remove_marked_addresses(&held).await;
    let routes = links.remove_routes(|_, _| false).await;
    let table = firewall::remove().await;
    let services = balance::remove().await;
    let ports = host_ports::remove().await;
    let isolation = isolation::remove().await;
    veths?;
    overlay?;
    addresses?;
    routes?;
    table?;
    services?;
    ports?;
    Ok(isolation?)
}

async fn remove_overlay(links: &Links) -> Result<(), LinkError> {
    match links.find(OVERLAY_LINK).await? {
        Some(link) if link.alias.as_deref() == Some(kat0::ALIAS) => links.delete(link.index).await,
        _ => Ok(()),
    }
}
