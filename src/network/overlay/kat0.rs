//! The overlay's link: made in the kernel where it has WireGuard, otherwise by `kat-wg.service`.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use rustix::io::Errno;
use tokio::{net::UnixStream, time::Instant};

use super::wireguard::{Kernel, Uapi, WireGuard, userspace};
use crate::{
    OVERLAY_LINK,
    links::{LinkError, LinkState, Links, NextHop},
    sysctl,
};
use kat_types::machine::network::NodeNetwork;

pub(crate) const ALIAS: &str = "kat";
/// The service with the userspace WireGuard.
pub(crate) const USERSPACE_UNIT: &str = "kat-wg.service";
/// Longest wait for the service's link and socket.
const USERSPACE_LIMIT: Duration = Duration::from_secs(20);

/// Why the link could not be made.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The link's name is used by a link that is not KAT's.
    #[error("link {OVERLAY_LINK} exists and is of kind {0}, not WireGuard; remove or rename it")]
    Foreign(String),
    #[error("the kernel has no WireGuard, and {USERSPACE_UNIT} can't be started: {0}")]
    Start(String),
    /// The service runs, but its link is missing.
    #[error("{USERSPACE_UNIT} did not bring up {OVERLAY_LINK} within {} s", USERSPACE_LIMIT.as_secs())]
    NotUp,
    #[error("can't set up link {OVERLAY_LINK}: {0}")]
    Setting(#[source] std::io::Error),
}

/// Starts the service with the userspace WireGuard.
#[async_trait]
pub trait StartUserspace: Send + Sync {
    /// Starts the service; its link may take longer to be ready.
    ///
    /// # Errors
    /// A sentence.
    async fn start(&self) -> Result<(), String>;
}

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<zbus::OwnedObjectPath>;
}

/// Starts the service with systemd on the system bus (org.freedesktop.systemd1(5)).
#[derive(Debug, Default)]
pub(crate) struct SystemManager;

#[async_trait]
impl StartUserspace for SystemManager {
    async fn start(&self) -> Result<(), String> {
        let work = async {
            let connection = zbus::connection::Builder::system()
                .method_timeout(USERSPACE_LIMIT)
                .build()
                .await?;
            let manager = ManagerProxy::new(&connection).await?;
            manager.start_unit(USERSPACE_UNIT, "replace").await
        };
        match work.await {
            Ok(_) => Ok(()),
            Err(zbus::Error::MethodError(name, message, _)) => {
                Err(message.unwrap_or_else(|| name.to_string()))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Keeps the overlay's link up to date.
#[derive(Clone)]
pub struct OverlayLink {
    links: Links,
    starter: Arc<dyn StartUserspace>,
    socket: PathBuf,
}

impl OverlayLink {
    /// The machine's own link.
    pub fn new(links: Links) -> Self {
        Self {
            links,
            starter: Arc::new(SystemManager),
            socket: userspace::socket_of(OVERLAY_LINK),
        }
    }

    /// With another way to start the userspace service, and another path of its socket.
    pub fn with_userspace(links: Links, starter: Arc<dyn StartUserspace>, socket: PathBuf) -> Self {
        Self {
            links,
            starter,
            socket,
        }
    }

    /// Makes the link if it is missing, and sets its address, MTU and routes.
    pub async fn ensure(
        &self,
        node: &NodeNetwork,
    ) -> Result<(LinkState, Arc<dyn WireGuard>), OverlayError> {
        let link = match self.links.find(OVERLAY_LINK).await? {
            Some(link) => link,
            None => self.make().await?,
        };
        let wireguard: Arc<dyn WireGuard> = match link.kind.as_deref() {
            Some("wireguard") => Arc::new(Kernel::new(OVERLAY_LINK)),
            Some("tun") => Arc::new(Uapi::new(&self.socket)),
            other => {
                return Err(OverlayError::Foreign(
                    other.unwrap_or("hardware").to_owned(),
                ));
            }
        };
        if link.alias.as_deref() != Some(ALIAS) {
            self.links.set_alias(link.index, ALIAS).await?;
        }
        self.links.set_address(link.index, node.address, 32).await?;
        if !link.up || link.mtu != node.mtu {
            self.links.bring_up(link.index, Some(node.mtu)).await?;
        }
        settle().map_err(OverlayError::Setting)?;
        self.ensure_routes(node, link.index).await?;
        Ok((link, wireguard))
    }

    async fn make(&self) -> Result<LinkState, OverlayError> {
        match self.links.add_wireguard(OVERLAY_LINK).await {
            Ok(()) => {}
            Err(error) if error.is(Errno::EXIST) => {}
            Err(error) if error.is(Errno::OPNOTSUPP) || error.is(Errno::NOENT) => {
                return self.make_in_userspace().await;
            }
            Err(error) => return Err(error.into()),
        }
        let made = self.links.find(OVERLAY_LINK).await?;
        made.ok_or(OverlayError::NotUp)
    }

    async fn make_in_userspace(&self) -> Result<LinkState, OverlayError> {
        self.starter.start().await.map_err(OverlayError::Start)?;
        let limit = Instant::now() + USERSPACE_LIMIT;
        loop {
            if let Some(link) = self.links.find(OVERLAY_LINK).await?
                && UnixStream::connect(&self.socket).await.is_ok()
            {
                return Ok(link);
            }
            if Instant::now() >= limit {
                return Err(OverlayError::NotUp);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Routes the overlay through the link. Unused addresses of this machine's subnet are
    /// unreachable, so that packets to them do not loop.
    async fn ensure_routes(&self, node: &NodeNetwork, index: u32) -> Result<(), LinkError> {
        let present = self.links.routes().await?;
        let cluster = node.cluster_cidr.trunc();
        let services = node.service_cidr.trunc();
        let subnet = node.subnet.trunc();
        // Only the route of a service address is used: it gives the machine's packets their overlay
        // source address; then the destination is translated.
        for network in [cluster, services] {
            if !present.contains(&(network, Some(index))) {
                self.links.set_route(network, NextHop::Link(index)).await?;
            }
        }
        let own = present
            .iter()
            .any(|(net, device)| *net == subnet && *device != Some(index));
        if subnet != cluster && !own {
            self.links.set_route(subnet, NextHop::Unreachable).await?;
        }
        let keep = |net: ipnet::Ipv4Net, device: Option<u32>| {
            [cluster, services, subnet].contains(&net)
                || (net.prefix_len() == 32 && device != Some(index))
        };
        for removed in self.links.remove_routes(keep).await? {
            tracing::info!(route = %removed, "removed an earlier route");
        }
        Ok(())
    }
}

fn settle() -> std::io::Result<()> {
    sysctl::set("ipv6", OVERLAY_LINK, "disable_ipv6", "1")?;
    sysctl::set("ipv4", OVERLAY_LINK, "rp_filter", "1")?;
    sysctl::set("ipv4", OVERLAY_LINK, "forwarding", "1")
}
