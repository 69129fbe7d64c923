//! Waits for this machine's overlay address: kat-net reports readiness before `kat0` exists.

use std::{io, net::IpAddr, time::Duration};

use tokio::{
    net::UdpSocket,
    time::{Instant, sleep},
};

/// Interval between two tries.
const INTERVAL: Duration = Duration::from_millis(50);

/// Waits until `address` is configured on this machine: until a socket can be bound to it, as etcd
/// does.
///
/// # Errors
/// The error of binding the address, once `limit` is over.
pub(crate) async fn wait_for_address(address: IpAddr, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match UdpSocket::bind((address, 0)).await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => sleep(INTERVAL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_is_there_or_waited_for_until_the_limit() {
        let began = Instant::now();
        let limit = Duration::from_secs(30);
        let own = "127.0.0.1".parse().unwrap();
        wait_for_address(own, limit).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        // No interface has an address for documentation (RFC 5737).
        let foreign = "192.0.2.1".parse().unwrap();
        let error = wait_for_address(foreign, limit).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(began.elapsed() >= limit);
    }
}
