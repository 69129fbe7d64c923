//! Connects the DNS server to the files that the agent writes.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    dns,
    dns::{DnsError, Zone},
    service::DnsServer,
    state_files::StateFilesSnapshot,
};
use kat_types::machine::{
    isolation::IsolationMode,
    network::{DnsRecords, Instances},
};

/// Port of DNS.
const PORT: u16 = 53;

/// The DNS server that `kat-net` starts when `kat0` has its address.
pub(crate) fn server() -> DnsServer {
    Arc::new(|address, snapshots, cancel| {
        Box::pin(async move {
            serve(address, snapshots, cancel)
                .await
                .map_err(|error| error.to_string())
        })
    })
}

async fn serve(
    address: Ipv4Addr,
    mut snapshots: watch::Receiver<Arc<StateFilesSnapshot>>,
    cancel: CancellationToken,
) -> Result<(), DnsError> {
    let first = loop {
        let snapshot = snapshots.borrow_and_update().clone();
        if let Some(zone) = zone_of(&snapshot)? {
            break zone;
        }
        match cancel.run_until_cancelled(snapshots.changed()).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return Ok(()),
        }
    };
    let (zones, zone) = watch::channel(Arc::new(first));
    let follow = async {
        while snapshots.changed().await.is_ok() {
            let snapshot = snapshots.borrow_and_update().clone();
            match zone_of(&snapshot) {
                Ok(Some(zone)) => {
                    zones.send_replace(Arc::new(zone));
                }
                Ok(None) => {}
                Err(error) => tracing::error!("the names stay as they were: {error:#}"),
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        served = dns::serve(SocketAddr::from((address, PORT)), zone, cancel) => served,
        () = follow => Ok(()),
    }
}

/// Makes a zone; `None` until `node.json` was read.
fn zone_of(snapshot: &StateFilesSnapshot) -> Result<Option<Zone>, DnsError> {
    let Some(node) = &snapshot.node else {
        return Ok(None);
    };
    let (instances, records) = (Instances::default(), DnsRecords::default());
    let instances = snapshot.instances.as_deref().unwrap_or(&instances);
    let records = snapshot.dns.as_deref().unwrap_or(&records);
    let isolation = snapshot.isolation.as_deref();
    let isolated = isolation.is_some_and(|rules| rules.mode == IsolationMode::Namespaces);
    let zone = Zone::new(node, instances, records)?;
    Ok(Some(zone.with_own_namespace_only(isolated)))
}
