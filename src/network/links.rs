//! Links, addresses, routes and neighbours over rtnetlink(7).
//!
//! This is the only module that uses the `rtnetlink` library, whose interface changes often. Every
//! call has a deadline of five seconds.

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsRawFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use futures_util::{TryStream, TryStreamExt};
use ipnet::Ipv4Net;
use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, LinkVeth, LinkWireguard, RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    },
};
use rustix::io::Errno;
use tokio::sync::Mutex;

use crate::containers::namespaces::NetworkNamespace;

mod marked_addresses;
mod notices;

pub use marked_addresses::LinkAddress;
pub use notices::{address_change, changed_addresses, removal};

/// Protocol number of KAT's routes (rtnetlink(7), `rtm_protocol`), unused in iproute2's table.
pub(crate) const ROUTE_PROTOCOL: u8 = 75;

const DEADLINE: Duration = Duration::from_secs(5);

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The netlink socket can't be opened.
    #[error("can't open a netlink socket: {0}")]
    Socket(#[source] io::Error),
    #[error("{what}: {source}")]
    Kernel {
        /// The request, for messages.
        what: String,
        source: io::Error,
    },
    /// The answer is invalid.
    #[error("{what}: {reason}")]
    Answer {
        /// The request, for messages.
        what: String,
        reason: String,
    },
    #[error("{what}: no answer from the kernel within {} s", DEADLINE.as_secs())]
    Timeout {
        /// The request, for messages.
        what: String,
    },
}

impl LinkError {
    /// Whether the kernel refused with this error number.
    pub fn is(&self, errno: Errno) -> bool {
        matches!(self, Self::Kernel { source, .. } if source.raw_os_error() == Some(errno.raw_os_error()))
    }
}

/// State of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// Its index in its namespace.
    pub index: u32,
    pub name: String,
    /// Its alias (`ip link set alias`).
    pub alias: Option<String>,
    /// Such as `veth`, `wireguard` or `tun`; `None` for hardware.
    pub kind: Option<String>,
    /// Its hardware address, if it is an Ethernet link.
    pub mac: Option<[u8; 6]>,
    pub mtu: u32,
    pub up: bool,
    /// Whether packets that are sent on it leave: it has a carrier, and the kernel has noticed it.
    pub running: bool,
}

/// A veth pair, with one end here and one in another namespace.
#[derive(Debug)]
pub(crate) struct VethPair<'a> {
    /// Name of this end.
    pub name: &'a str,
    /// Hardware address of this end.
    pub mac: [u8; 6],
    /// Name of the other end.
    pub(crate) peer_name: &'a str,
    /// Hardware address of the other end.
    pub(crate) peer_mac: [u8; 6],
    /// Namespace of the other end.
    pub(crate) peer_namespace: BorrowedFd<'a>,
    /// MTU of both ends.
    pub mtu: u32,
}

/// Next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// Directly over this link.
    Link(u32),
    /// Over a gateway on this link.
    Gateway(Ipv4Addr, u32),
    /// Unreachable: the sender gets an error.
    Unreachable,
}

/// A netlink socket in one network namespace.
#[derive(Debug, Clone)]
pub struct Links {
    handle: rtnetlink::Handle,
    /// Held while the kernel lists something: it lists one thing at a time on a socket, and refuses
    /// a second one with `EBUSY`.
    listing: Arc<Mutex<()>>,
}

impl Links {
    /// Opens a socket in the calling thread's namespace. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`LinkError::Socket`].
    pub fn open() -> Result<Self, LinkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(LinkError::Socket)?;
        tokio::spawn(connection);
        Ok(Self::of(handle))
    }

    /// Opens a socket in another namespace. `prepare` runs in that namespace first.
    ///
    /// # Errors
    /// [`LinkError::Socket`], also when `prepare` fails.
    pub(crate) fn open_in(
        namespace: &NetworkNamespace,
        prepare: impl FnOnce() -> io::Result<()> + Send,
    ) -> Result<Self, LinkError> {
        let runtime = tokio::runtime::Handle::current();
        let opened = namespace.run(|| {
            prepare()?;
            let _entered = runtime.enter();
            rtnetlink::new_connection()
        });
        let (connection, handle, _) = opened.and_then(|inner| inner).map_err(LinkError::Socket)?;
        tokio::spawn(connection);
        Ok(Self::of(handle))
    }

    fn of(handle: rtnetlink::Handle) -> Self {
        Self {
            handle,
            listing: Arc::default(),
        }
    }

    /// Collects the answers of one request, after those of earlier ones. The request is sent when
    /// `request` is called.
    async fn list<R>(
        &self,
        what: &str,
        request: impl FnOnce() -> R,
    ) -> Result<Vec<R::Ok>, LinkError>
    where
        R: TryStream<Error = rtnetlink::Error>,
    {
        call(what, async {
            let _alone = self.listing.lock().await;
            request().try_collect().await
        })
        .await
    }

    /// Finds the link with this name.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub async fn find(&self, name: &str) -> Result<Option<LinkState>, LinkError> {
        let request = self.handle.link().get().match_name(name).execute();
        let found = call(&format!("look up link {name}"), async move {
            Box::pin(request).try_next().await
        })
        .await;
        match found {
            Ok(message) => Ok(message.as_ref().map(describe)),
            Err(error) if error.is(Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists all links.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub async fn all(&self) -> Result<Vec<LinkState>, LinkError> {
        let request = self.handle.link().get();
        let messages = self.list("list links", || request.execute()).await?;
        Ok(messages.iter().map(describe).collect())
    }

    /// Makes a WireGuard link, down and without keys.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the kernel has no WireGuard.
    pub async fn add_wireguard(&self, name: &str) -> Result<(), LinkError> {
        let message = LinkWireguard::new(name).build();
        let request = self.handle.link().add(message);
        call(&format!("make WireGuard link {name}"), request.execute()).await
    }

    /// Makes a veth pair, with both ends down.
    ///
    /// # Errors
    /// `EEXIST` where one of the names is in use.
    pub(crate) async fn add_veth(&self, pair: &VethPair<'_>) -> Result<(), LinkError> {
        let peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(pair.peer_name)
            .mtu(pair.mtu)
            .address(pair.peer_mac.to_vec())
            .setns_by_fd(pair.peer_namespace.as_raw_fd())
            .build();
        let message = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(pair.name)
            .mtu(pair.mtu)
            .address(pair.mac.to_vec())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        let request = self.handle.link().add(message);
        call(&format!("make link {}", pair.name), request.execute()).await
    }

    /// Sets a link's alias.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub(crate) async fn set_alias(&self, index: u32, alias: &str) -> Result<(), LinkError> {
        let message = LinkUnspec::new_with_index(index).alias(alias).build();
        self.change(&format!("mark link {index}"), message).await
    }

    /// Sets a link's MTU and brings it up.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub(crate) async fn bring_up(&self, index: u32, mtu: Option<u32>) -> Result<(), LinkError> {
        let mut builder = LinkUnspec::new_with_index(index).up();
        if let Some(mtu) = mtu {
            builder = builder.mtu(mtu);
        }
        self.change(&format!("bring up link {index}"), builder.build())
            .await
    }

    /// Waits until packets that are sent on a link leave. The kernel notices a carrier with a
    /// delay, and drops packets until then.
    ///
    /// # Errors
    /// The kernel refuses or does not answer, or the link has no carrier within five seconds.
    pub(crate) async fn wait_running(&self, name: &str) -> Result<(), LinkError> {
        let begin = tokio::time::Instant::now();
        while !self.find(name).await?.is_some_and(|link| link.running) {
            if begin.elapsed() > DEADLINE {
                return Err(LinkError::Answer {
                    what: format!("wait for link {name}"),
                    reason: format!("no carrier within {} s", DEADLINE.as_secs()),
                });
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn change(&self, what: &str, message: LinkMessage) -> Result<(), LinkError> {
        call(what, self.handle.link().change(message).execute()).await
    }

    /// Removes a link; does nothing if it is gone already.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub async fn delete(&self, index: u32) -> Result<(), LinkError> {
        let request = self.handle.link().del(index);
        match call(&format!("remove link {index}"), request.execute()).await {
            Err(error) if error.is(Errno::NODEV) => Ok(()),
            other => other,
        }
    }

    /// Sets the only IPv4 address of a link.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub(crate) async fn set_address(
        &self,
        index: u32,
        address: Ipv4Addr,
        prefix: u8,
    ) -> Result<(), LinkError> {
        let mut present = false;
        let request = self.handle.address().get().set_link_index_filter(index);
        let messages = self.list("list addresses", || request.execute()).await?;
        for message in messages {
            let held = message
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    AddressAttribute::Local(IpAddr::V4(held)) => Some(*held),
                    _ => None,
                });
            match held {
                None => {}
                Some(held) if held == address && message.header.prefix_len == prefix => {
                    present = true;
                }
                Some(held) => {
                    let request = self.handle.address().del(message);
                    call(&format!("take away address {held}"), request.execute()).await?;
                }
            }
        }
        if present {
            return Ok(());
        }
        let request = self.handle.address().add(index, address.into(), prefix);
        call(
            &format!("give address {address}/{prefix} to link {index}"),
            request.replace().execute(),
        )
        .await
    }

    /// Sets a route with KAT's protocol number; replaces any route with the same destination.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub(crate) async fn set_route(
        &self,
        destination: Ipv4Net,
        target: NextHop,
    ) -> Result<(), LinkError> {
        let builder = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(destination.network(), destination.prefix_len())
            .protocol(RouteProtocol::Other(ROUTE_PROTOCOL));
        let message = match target {
            NextHop::Link(index) => builder.output_interface(index).scope(RouteScope::Link),
            NextHop::Gateway(gateway, index) => builder.output_interface(index).gateway(gateway),
            NextHop::Unreachable => builder.kind(RouteType::Unreachable),
        }
        .build();
        let request = self.handle.route().add(message).replace();
        call(&format!("set route {destination}"), request.execute()).await
    }

    /// KAT's routes: destination, and link if the route has one.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub async fn routes(&self) -> Result<Vec<(Ipv4Net, Option<u32>)>, LinkError> {
        let messages = self.route_messages().await?;
        Ok(messages.iter().filter_map(describe_route).collect())
    }

    async fn route_messages(&self) -> Result<Vec<RouteMessage>, LinkError> {
        let all = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let request = self.handle.route().get(all);
        let messages = self.list("list routes", || request.execute()).await?;
        let ours = RouteProtocol::Other(ROUTE_PROTOCOL);
        Ok(messages
            .into_iter()
            .filter(|message| message.header.protocol == ours)
            .collect())
    }

    /// Removes KAT's routes that `keep` rejects; returns their destinations.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub(crate) async fn remove_routes(
        &self,
        keep: impl Fn(Ipv4Net, Option<u32>) -> bool,
    ) -> Result<Vec<Ipv4Net>, LinkError> {
        let mut removed = Vec::new();
        for message in self.route_messages().await? {
            let Some((destination, device)) = describe_route(&message) else {
                continue;
            };
            if keep(destination, device) {
                continue;
            }
            let request = self.handle.route().del(message);
            match call(&format!("remove route {destination}"), request.execute()).await {
                Err(error) if !error.is(Errno::SRCH) => return Err(error),
                _ => removed.push(destination),
            }
        }
        Ok(removed)
    }

    /// Adds a permanent neighbour entry with a hardware address, so that no ARP request is needed.
    ///
    /// # Errors
    /// The kernel refuses or does not answer.
    pub(crate) async fn set_neighbour(
        &self,
        index: u32,
        address: Ipv4Addr,
        mac: [u8; 6],
    ) -> Result<(), LinkError> {
        let request = self
            .handle
            .neighbours()
            .add(index, address.into())
            .link_layer_address(&mac)
            .replace();
        call(&format!("set neighbour {address}"), request.execute()).await
    }
}

async fn call<T>(
    what: &str,
    request: impl Future<Output = Result<T, rtnetlink::Error>>,
) -> Result<T, LinkError> {
    let what = what.to_owned();
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(rtnetlink::Error::NetlinkError(message))) => Err(LinkError::Kernel {
            what,
            source: message.to_io(),
        }),
        Ok(Err(other)) => Err(LinkError::Answer {
            what,
            reason: other.to_string(),
        }),
        Err(_) => Err(LinkError::Timeout { what }),
    }
}

fn describe(message: &LinkMessage) -> LinkState {
    let mut link = LinkState {
        index: message.header.index,
        name: String::new(),
        alias: None,
        kind: None,
        mac: None,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        running: message.header.flags.contains(LinkFlags::Running),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Address(address) => link.mac = address.as_slice().try_into().ok(),
            LinkAttribute::LinkInfo(parts) => {
                link.kind = parts.iter().find_map(|part| match part {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    link
}

fn describe_route(message: &RouteMessage) -> Option<(Ipv4Net, Option<u32>)> {
    let mut destination = Ipv4Addr::UNSPECIFIED;
    let mut device = None;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => destination = *address,
            RouteAttribute::Oif(index) => device = Some(*index),
            _ => {}
        }
    }
    let net = Ipv4Net::new(destination, message.header.destination_prefix_length).ok()?;
    Some((net, device))
}
