//! Configures systemd-resolved, where it runs, to resolve the cluster's names at `kat0`
//! (org.freedesktop.resolve1(5)).
//!
//! This runs in a task of its own: resolved or the bus may hang for any time without blocking the
//! data path.

use std::{net::Ipv4Addr, path::Path, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use zbus::connection;

/// Folder that exists while systemd-resolved runs.
const RUNTIME: &str = "/run/systemd/resolve";
/// The address family of IPv4 in resolve1's calls.
const AF_INET: i32 = 2;
/// Longest time for each call.
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest time for the connection and all calls.
const LIMIT: Duration = Duration::from_secs(20);
/// Interval at which the settings are sent again, in case resolved was restarted.
const INTERVAL: Duration = Duration::from_secs(300);
/// Pause after the settings could not be sent.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// The settings for systemd-resolved: names below a domain are resolved at this server on this
/// link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedAnnouncement {
    /// Index of the link.
    pub link: u32,
    /// Address of the DNS server.
    pub server: Ipv4Addr,
    /// The domain whose names are resolved there, and no others.
    pub domain: String,
}

/// Sends the settings once.
pub type SendAnnouncement =
    Arc<dyn Fn(ResolvedAnnouncement) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Sends the settings to the machine's systemd-resolved, where it runs.
pub(crate) fn tell_resolved() -> SendAnnouncement {
    Arc::new(|wanted| {
        Box::pin(async move {
            if !is_running() {
                return Ok(());
            }
            announce(&wanted).await.map_err(|error| error.to_string())
        })
    })
}

/// Sends the wanted settings, now and after every change, until cancelled.
pub(crate) async fn announce_until_cancelled(
    tell: SendAnnouncement,
    mut wanted: watch::Receiver<Option<ResolvedAnnouncement>>,
    cancel: CancellationToken,
) {
    let mut failure = String::new();
    loop {
        let now = wanted.borrow_and_update().clone();
        let outcome = match now {
            None => Ok(()),
            Some(wanted) => {
                let told = cancel.run_until_cancelled(timeout(LIMIT, tell(wanted)));
                match told.await {
                    None => return,
                    Some(Ok(outcome)) => outcome,
                    Some(Err(_)) => Err(format!("no answer within {} s", LIMIT.as_secs())),
                }
            }
        };
        let pause = if outcome.is_ok() {
            INTERVAL
        } else {
            AFTER_FAILURE
        };
        let said = outcome.err().unwrap_or_default();
        if said != failure && !said.is_empty() {
            tracing::warn!("systemd-resolved was not told: {said}");
        }
        failure = said;
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

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
fn is_running() -> bool {
    Path::new(RUNTIME).join("stub-resolv.conf").exists()
}

/// The settings are sent again after every change: resolved forgets them when the link is removed.
async fn announce(wanted: &ResolvedAnnouncement) -> zbus::Result<()> {
    let index =
        i32::try_from(wanted.link).map_err(|_| zbus::Error::Failure("link number".into()))?;
    let connection = connection::Builder::system()
        .method_timeout(DEADLINE)
        .build()
        .await?;
    let manager = ManagerProxy::new(&connection).await?;
    let server = (AF_INET, wanted.server.octets().to_vec());
    manager.set_link_dns(index, &[server]).await?;
    let domains = [(wanted.domain.as_str(), true)];
    manager.set_link_domains(index, &domains).await?;
    manager.set_link_default_route(index, false).await
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    fn announcement(link: u32) -> ResolvedAnnouncement {
        ResolvedAnnouncement {
            link,
            server: Ipv4Addr::new(10, 90, 1, 1),
            domain: "kat.cluster.local".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_resolved_that_hung_or_refused_is_told_again() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let tell: SendAnnouncement = Arc::new(move |wanted| {
            let mut seen = seen.lock();
            seen.push(wanted.link);
            match seen.len() {
                1 => Box::pin(std::future::pending()),
                2 => Box::pin(std::future::ready(Err("refused".to_owned()))),
                _ => Box::pin(std::future::ready(Ok(()))),
            }
        });
        let (sender, wanted) = watch::channel(None);
        let cancel = CancellationToken::new();
        let keeping = tokio::spawn(announce_until_cancelled(tell, wanted, cancel.clone()));
        sender.send_replace(Some(announcement(7)));
        tokio::time::sleep(LIMIT + AFTER_FAILURE * 2 + Duration::from_secs(1)).await;
        assert_eq!(*asked.lock(), [7, 7, 7]);
        sender.send_replace(Some(announcement(8)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*asked.lock(), [7, 7, 7, 8], "a new kat0 is told of at once");
        tokio::time::sleep(INTERVAL).await;
        assert_eq!(asked.lock().len(), 5, "it may have been restarted");
        cancel.cancel();
        keeping.await.unwrap();
    }
}
