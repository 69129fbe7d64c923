//! Follows the store, and keeps on the disk what this machine needs when it is alone.

use std::{path::PathBuf, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    NetworkFiles, desired, identity::Identity, keys::Keys, known::Known, network_files, stores,
    supervisor::Listed,
};
use crate::store::{EtcdStore, Mirror, StateStore, keys};

/// Follows a machine's list, keeps it in `file`, and hands it on, until `cancel`.
pub async fn follow_desired(
    node: String,
    store: Arc<dyn StateStore>,
    file: PathBuf,
    lists: watch::Sender<Listed>,
    cancel: CancellationToken,
) {
    let prefix = keys::node_desired(&node);
    let mut mirror = Mirror::start(store, &prefix, cancel.clone());
    while let Some(Ok(state)) = cancel.run_until_cancelled(mirror.changed()).await {
        if !state.confirmed {
            continue;
        }
        let desired = match desired::read(&state.entries, &node) {
            Ok(desired) => Arc::new(desired),
            Err(error) => {
                tracing::warn!(%error, "the desired list is not taken");
                continue;
            }
        };
        let before = lists.borrow().clone();
        if before.confirmed && before.desired == desired {
            continue;
        }
        if let Err(error) = desired.store(&file) {
            tracing::error!(%error, "the desired list can't be kept on the disk");
        }
        lists.send_replace(Listed {
            known: true,
            confirmed: true,
            desired,
        });
    }
}

/// Keeps `kat-net`'s files of names and peers.
pub async fn follow_network(
    identity: Arc<Identity>,
    store: EtcdStore,
    network: NetworkFiles,
    cancel: CancellationToken,
) {
    let store: Arc<dyn StateStore> = Arc::new(store);
    let mut names = Mirror::start(Arc::clone(&store), keys::DNS, cancel.clone());
    let mut machines = Mirror::start(store, keys::NETWORK, cancel.clone());
    loop {
        let written = tokio::select! {
            () = cancel.cancelled() => return,
            Ok(state) = names.changed() => {
                if !state.confirmed { continue }
                network.write_dns(&network_files::dns_records(&state.entries, state.revision))
            }
            Ok(state) = machines.changed() => {
                if !state.confirmed { continue }
                network.write_peers(&network_files::peers(&state.entries, &identity.node))
            }
            else => return,
        };
        if let Err(error) = written {
            tracing::error!(%error, "the network's files can't be written");
        }
    }
}

/// Follows where the cluster is, and keeps it on the disk.
pub async fn follow_known(
    identity: Arc<Identity>,
    store: EtcdStore,
    own: Keys,
    known: watch::Sender<Arc<Known>>,
    cancel: CancellationToken,
) {
    let mut mirror = Mirror::start(
        Arc::new(store.clone()) as Arc<dyn StateStore>,
        keys::CONFIG,
        cancel.clone(),
    );
    while let Some(Ok(state)) = cancel.run_until_cancelled(mirror.changed()).await {
        let now = Known::read(&state.entries);
        let before = known.borrow().clone();
        // A list without members would cut this machine off.
        if !state.confirmed || now == *before || now.etcd(&identity).is_empty() {
            continue;
        }
        if let Err(error) = now.store() {
            tracing::error!(%error, "where the cluster is can't be kept on the disk");
        }
        if now.etcd(&identity) != before.etcd(&identity) {
            let options = stores::options(&identity, &own, &now, "node-etcd");
            let connected = async { anyhow::Ok(store.reconnect(&options?).await?) };
            if let Err(error) = connected.await {
                tracing::error!(%error, "the other members of etcd can't be used");
            }
        }
        known.send_replace(Arc::new(now));
    }
}
