//! What the kernel tells unasked.

use std::{io, time::Duration};

use futures_util::StreamExt;
use netlink_packet_core::NetlinkPayload;
use rtnetlink::{MulticastGroup, packet_route::RouteNetlinkMessage};

use super::{LinkError, describe};
use crate::overlay::local_addresses as local;

/// What changes within this time is one change.
const SETTLING: Duration = Duration::from_millis(300);

/// Waits until the link of this name is removed from the calling thread's namespace, also where that
/// happens after this was called and before anybody waits.
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

/// Waits until the machine's own addresses are others than when this was called, also where they
/// change before anybody waits, and are so for a moment: a new lease takes one away before it brings
/// another. Without the kernel's messages it waits for good.
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

async fn wait_for_other_addresses(before: &[local::Local]) -> Result<(), LinkError> {
    let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
    let (connection, _handle, mut messages) =
        rtnetlink::new_multicast_connection(&groups).map_err(LinkError::Socket)?;
    let task = tokio::spawn(connection);
    let _end = AbortOnDrop(task.abort_handle());
    loop {
        // Once more than there are messages: an address may have come before they were asked for.
        if local::addresses() != before {
            return Ok(());
        }
        if messages.next().await.is_none() {
            return Err(LinkError::Socket(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
