//! Watches the store, and keeps on the disk what this machine needs without the store.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{desired, watched_writes::WatchedWrites};
use crate::{
    NetworkFiles, Statuses,
    cluster::{cluster_cache::ClusterCache, identity::MachineIdentity, keys::MachineKeys},
    etcd::stores,
    images::registries,
    network::{files as network_files, ingress_ports, isolation, virtual_addresses},
    service::{paths, supervisor::DesiredList},
    worker::WorkerTools,
};
use kat_daemon::watchdog::LoopPulses;
use kat_host::files::{self, FileAccess, FileError};
use kat_store::{EtcdStore, Mirror, MirrorState, mirror::MirrorEntries};
use kat_types::{
    api::Connection,
    encoding::json,
    machine::{
        isolation::{ISOLATION_FILE, IsolationRules},
        network::{DNS_FILE, HOST_PORTS_FILE, PEERS_FILE, SERVICES_FILE},
        root::Root,
    },
    registry::RegistrySettings,
    store::keys,
    virtual_addresses::GRANTS_FILE,
};

/// Largest connection file in bytes.
const ADMIN_LIMIT: u64 = 1 << 20;

/// Watches a machine's desired list in `state`, stores it in `file`, and passes it on, until
/// `cancel`.
pub async fn follow_desired(
    node: String,
    mut state: Mirror,
    file: PathBuf,
    lists: watch::Sender<DesiredList>,
    writes: WatchedWrites,
    pulses: LoopPulses,
    cancel: CancellationToken,
) {
    let pulse = pulses.watch("this machine's list of assignments");
    let prefix = keys::node_desired(&node);
    let mut read = None;
    while let Some(Ok(state)) = cancel
        .run_until_cancelled(pulse.wait(state.changed()))
        .await
    {
        let same = |before: &Arc<MirrorState>| state.same_below(before, &prefix);
        if state.confirmed && lists.borrow().current && read.as_ref().is_some_and(same) {
            continue;
        }
        if !state.confirmed {
            lists.send_if_modified(|listed| std::mem::replace(&mut listed.current, false));
            continue;
        }
        let synced_at = state.synced_at;
        let desired = match desired::read(&state.entries, &node) {
            Ok(desired) => {
                read = Some(state);
                Arc::new(desired)
            }
            Err(error) => {
                tracing::warn!("the desired list is not taken: {error:#}");
                continue;
            }
        };
        let before = lists.borrow().clone();
        let same = before.confirmed && before.desired == desired;
        if same && before.current {
            continue;
        }
        if !same {
            let (desired, path) = (Arc::clone(&desired), file.clone());
            let _tried_again = writes.write(&file, move || Ok(desired.store(&path)?));
        }
        lists.send_replace(DesiredList {
            known: true,
            confirmed: true,
            current: true,
            read_at: synced_at,
            desired,
            ..DesiredList::default()
        });
    }
}

/// Keeps `kat-net`'s files of isolation, DNS records, peers and services up to date. What changes at one
/// revision is written together.
pub(crate) async fn follow_network(
    identity: Arc<MachineIdentity>,
    mut state: Mirror,
    network: NetworkFiles,
    writes: WatchedWrites,
    (tools, statuses): (Arc<WorkerTools>, Statuses),
    pulses: LoopPulses,
    cancel: CancellationToken,
) {
    let pulse = pulses.watch("DNS records, peers and services");
    let followed = FollowedNetwork { network, writes };
    let mut written: Option<Arc<MirrorState>> = None;
    let mut isolated: Option<IsolationRules> = None;
    while let Some(Ok(state)) = cancel
        .run_until_cancelled(pulse.wait(state.changed()))
        .await
    {
        if !state.confirmed {
            continue;
        }
        let changed = |prefix| {
            let before = written.as_ref();
            before.is_none_or(|before| !state.same_below(before, prefix))
        };
        // Before the names and services that show an instance.
        let before = written.as_deref();
        if before.is_none_or(|before| isolation::differs(before, &state)) {
            let rules = isolation::rules(&state.entries, state.revision);
            let before = isolated.as_ref();
            if before.is_none_or(|before| isolation::replaces(&rules, before, &state.entries)) {
                isolated = Some(rules.clone());
                followed.write(ISOLATION_FILE, rules, NetworkFiles::write_isolation);
            }
        }
        if changed(keys::DNS) {
            let records = network_files::dns_records(&state.entries, state.revision);
            followed.write(DNS_FILE, records, NetworkFiles::write_dns);
        }
        if changed(keys::VIRTUAL_ADDRESSES) {
            let grants = virtual_addresses::grants(&state.entries, &identity.node);
            followed.write(GRANTS_FILE, grants, NetworkFiles::write_virtual_addresses);
        }
        if changed(keys::NETWORK) {
            let peers = network_files::peers(&state.entries, &identity.node);
            let services = network_files::services(&state.entries);
            let mut ports = network_files::host_port_parts(&state.entries, identity.subnet);
            let own = (identity.node.as_str(), identity.subnet);
            let (wanted, open) = ingress_ports::of_machine(&state.entries, own, &tools.options);
            statuses.set_ingress_ports(wanted);
            ports.ingress = open;
            followed.write(PEERS_FILE, peers, NetworkFiles::write_peers);
            followed.write(SERVICES_FILE, services, NetworkFiles::write_services);
            followed.write(HOST_PORTS_FILE, ports, NetworkFiles::write_host_ports);
        }
        written = Some(state);
    }
}

/// Writes the files of `kat-net` that follow the store.
struct FollowedNetwork {
    network: NetworkFiles,
    writes: WatchedWrites,
}

impl FollowedNetwork {
    fn write<T: Send + Sync + 'static>(
        &self,
        name: &str,
        state: T,
        write: fn(&NetworkFiles, &T) -> Result<bool, FileError>,
    ) {
        let network = self.network.clone();
        let written = move || Ok(write(&network, &state).map(drop)?);
        let _tried_again = self.writes.write(&self.network.path(name), written);
    }
}

/// The connection to etcd whose endpoints follow etcd's members.
#[derive(Clone)]
pub(crate) enum FollowedStore {
    /// As the leader's user, on a machine that holds etcd.
    Leader(EtcdStore),
    /// As the machine's user, for clusters of a version without the state stream.
    Node(EtcdStore),
    /// None, on a machine that reads the state stream alone.
    Absent,
}

impl FollowedStore {
    /// Uses these members and the present certificate from the next call on.
    pub(crate) async fn reconnect(
        &self,
        identity: &MachineIdentity,
        own: &MachineKeys,
        known: &ClusterCache,
    ) -> anyhow::Result<()> {
        let (store, leaf) = match self {
            Self::Leader(store) => (store, "leader-etcd"),
            // A renewal has taken the certificate: the machine reads the state stream.
            Self::Node(_) if !own.is_etcd_client() => return Ok(()),
            Self::Node(store) => (store, "node-etcd"),
            Self::Absent => return Ok(()),
        };
        let options = stores::options(identity, own, known, leaf)?;
        store.reconnect(&options).await?;
        Ok(())
    }
}

/// Watches the cluster's endpoints and members, and stores them on the disk.
pub(crate) async fn follow_known(
    identity: Arc<MachineIdentity>,
    mut state: Mirror,
    store: FollowedStore,
    own: MachineKeys,
    known: watch::Sender<Arc<ClusterCache>>,
    writes: WatchedWrites,
    pulses: LoopPulses,
    cancel: CancellationToken,
) {
    let pulse = pulses.watch("addresses of the cluster");
    let mut read: Option<Arc<MirrorState>> = None;
    while let Some(Ok(state)) = cancel
        .run_until_cancelled(pulse.wait(state.changed()))
        .await
    {
        let same = |before: &Arc<MirrorState>| state.same_below(before, keys::CONFIG);
        if !state.confirmed || read.as_ref().is_some_and(same) {
            continue;
        }
        read = Some(Arc::clone(&state));
        keep_registries(&state.entries, &writes);
        let before = known.borrow().clone();
        let now = Arc::new(ClusterCache::read(&state.entries, &before));
        // An update without etcd URLs would cut this machine off.
        if now == before || now.etcd(&identity).is_empty() {
            continue;
        }
        let kept = Arc::clone(&now);
        let admin = Path::new(paths::ADMIN_CONNECTION);
        let _tried_again = writes.write(admin, move || keep_admin_connection(admin, &kept));
        let kept = Arc::clone(&now);
        let _tried_again = writes.write(Path::new(paths::KNOWN), move || Ok(kept.store()?));
        if now.etcd(&identity) != before.etcd(&identity)
            && let Err(error) = store.reconnect(&identity, &own, &now).await
        {
            tracing::error!("the other members of etcd can't be used: {error:#}");
        }
        known.send_replace(now);
    }
}

/// Settings that can't be read are logged, and the file stays as it is.
fn keep_registries(entries: &MirrorEntries, writes: &WatchedWrites) {
    let stored = entries.get(keys::REGISTRIES);
    let settings =
        match stored.map(|entry| serde_json::from_slice::<RegistrySettings>(&entry.value)) {
            None => RegistrySettings::default(),
            Some(Ok(settings)) => settings,
            Some(Err(error)) => {
                tracing::error!("what is set about registries can't be read: {error:#}");
                return;
            }
        };
    let _tried_again = writes.write(Path::new(registries::FILE), move || {
        if registries::write_registry_file(&Root::new("/"), &settings)? {
            tracing::info!("this machine's Podman reaches registries as the cluster says");
        }
        Ok(())
    });
}

/// Keeps all machines that may lead in the administrator's connection file, where this machine has
/// one, and whether they must have the name of the API.
fn keep_admin_connection(path: &Path, known: &ClusterCache) -> anyhow::Result<()> {
    let text = match files::read_text(path, ADMIN_LIMIT) {
        Err(error) if error.is_not_found() => return Ok(()),
        read => read?,
    };
    let mut connection: Connection =
        serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let endpoints = known.endpoints.api();
    let api_name_required = connection.api_name_required || known.api_name_required;
    let same =
        connection.endpoints == endpoints && connection.api_name_required == api_name_required;
    if endpoints.is_empty() || same {
        return Ok(());
    }
    connection.endpoints = endpoints;
    connection.api_name_required = api_name_required;
    let text = json::pretty(&path.display().to_string(), &connection)?;
    files::write_atomic(path, &text, FileAccess::mode(0o600))?;
    Ok(())
}
