//! Waits for notifications from the kernel.

use std::{io, time::Duration};

use futures_util::StreamExt;
use netlink_packet_core::NetlinkPayload;
use rtnetlink::{MulticastGroup, packet_route::RouteNetlinkMessage};

use super::{LinkError, describe};
use crate::overlay::local_addresses as local;

/// Changes within this time count as one.
const SETTLING: Duration = Duration::from_millis(300);

/// Waits until the link with this name is removed from the calling thread's namespace. Removals
/// after this call are seen even before the future is polled.
///
/// # Errors
/// [`LinkError::Socket`], also when the kernel's messages end.
pub fn removal(name: &'static str) -> impl Future<Output = Result<(), LinkError>> + Send + 'static {
    let opened = rtnetlink::new_multicast_connection(&[MulticastGroup::Link]);
    async move {
        let (connection, _handle, mut messages) = opened.map_err(LinkError::Socket)?;
        let task = tokio::spawn(connection);
        let _end = AbortOnDrop(task.abort_handle());
        while let Some((message, _)) = messages.next().await {
            if let NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) =
                message.payload
                && describe(&link).name == name
            {
                return Ok(());
            }
        }
        Err(LinkError::Socket(io::ErrorKind::UnexpectedEof.into()))
    }
}

/// Waits until the machine's own addresses differ from those at this call, even if they change
/// before the future is polled. It then waits for a moment, since a new lease removes one address
/// before it adds another. Without the kernel's messages it waits forever.
pub fn address_change() -> impl Future<Output = ()> + Send + 'static {
    let before = local::addresses();
    async move {
        if let Err(error) = wait_for_other_addresses(&before).await {
            tracing::warn!("changes of addresses are seen late: {error}");
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(SETTLING).await;
    }
}

async fn wait_for_other_addresses(before: &[local::LocalAddress]) -> Result<(), LinkError> {
    let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
    let (connection, _handle, mut messages) =
        rtnetlink::new_multicast_connection(&groups).map_err(LinkError::Socket)?;
    let task = tokio::spawn(connection);
    let _end = AbortOnDrop(task.abort_handle());
    loop {
        // The addresses are compared before each message, since one may have changed before the
        // subscription.
        if local::addresses() != before {
            return Ok(());
        }
        if messages.next().await.is_none() {
            return Err(LinkError::Socket(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

/// Waits until an address or a link of the machine changes, whoever changes it. Changes after this call
/// are seen even before the future is polled. Without the kernel's messages it waits forever.
pub fn changed_addresses() -> impl Future<Output = ()> + Send + 'static {
    let opened = rtnetlink::new_multicast_connection(&[
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Link,
    ]);
    async move {
        if let Ok((connection, _handle, mut messages)) = opened {
            let task = tokio::spawn(connection);
            let _end = AbortOnDrop(task.abort_handle());
            if messages.next().await.is_some() {
                return;
            }
        }
        std::future::pending().await
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
