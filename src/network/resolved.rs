//! Tells systemd-resolved that the cluster's names are asked at `kat0`, where it runs
//! (org.freedesktop.resolve1(5)).

use std::{net::Ipv4Addr, path::Path, time::Duration};

use zbus::connection;

/// The folder that is there while systemd-resolved runs.
const RUNTIME: &str = "/run/systemd/resolve";
/// The address family of IPv4 in resolve1's calls.
const AF_INET: i32 = 2;
const DEADLINE: Duration = Duration::from_secs(5);

#[zbus::proxy(
    interface = "org.freedesktop.resolve1.Manager",
    default_service = "org.freedesktop.resolve1",
    default_path = "/org/freedesktop/resolve1"
)]
trait Manager {
    #[zbus(name = "SetLinkDNS")]
    fn set_link_dns(&self, index: i32, addresses: &[(i32, Vec<u8>)]) -> zbus::Result<()>;
    fn set_link_domains(&self, index: i32, domains: &[(&str, bool)]) -> zbus::Result<()>;
    fn set_link_default_route(&self, index: i32, enable: bool) -> zbus::Result<()>;
}

/// Whether systemd-resolved runs here.
pub fn is_running() -> bool {
    Path::new(RUNTIME).join("stub-resolv.conf").exists()
}

/// Routes names below `domain`, and no others, to `server` on the link. Said again after every
/// change: resolved forgets it with the link.
///
/// # Errors
/// The system bus or resolved do not answer, or refuse.
pub async fn announce(index: u32, server: Ipv4Addr, domain: &str) -> zbus::Result<()> {
    let index = i32::try_from(index).map_err(|_| zbus::Error::Failure("link number".into()))?;
    let connection = connection::Builder::system()
        .method_timeout(DEADLINE)
        .build()
        .await?;
    let manager = ManagerProxy::new(&connection).await?;
    manager
        .set_link_dns(index, &[(AF_INET, server.octets().to_vec())])
        .await?;
    manager.set_link_domains(index, &[(domain, true)]).await?;
    manager.set_link_default_route(index, false).await
}
