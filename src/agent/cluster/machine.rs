//! The real machine: the facts in its reports, and its connection to the leader.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    abilities::{AbilitiesReader, MachineAbilities},
    identity::MachineIdentity,
    keys::{KeysError, MachineKeys},
    reach::CurrentReach,
};
use crate::{
    MachineFacts, ReportSink,
    cluster::cluster_cache::{ClusterCache, ClusterCacheReceiver},
    desired_state::{known_epochs::refused_epoch_text, settings::FollowedSettings},
    disk::pressure::DiskWatch,
    etcd::{authorities::AuthorityUses, membership::LostDataReader},
    network::{isolation, kat_net_probe},
    volumes::Volumes,
};
use kat_client::{Client, ClientError, ClientOptions};
use kat_host::{
    facts::{FactsError, network, node_facts},
    files,
};
use kat_network::{links::address_change, virtual_addresses};
use kat_pki::{ApiServers, KnownServer, KnownServers};
use kat_systemd::{ActiveState, ManagerSource, UnitManager};
use kat_types::{
    api::{
        ApiTime, AuthorityReport, Condition, DATA_LOST_CONDITION, IsolationReport, MemberKeys,
        MembershipAnswer, NodeReport, NodeResources, OverlayPeer, OverlayReport, OverlayStatus,
        STORE_EPOCH_REFUSED, VirtualAddressReport, data_lost_reason,
    },
    machine::{
        isolation::ISOLATION_STATE_FILE,
        network::{MACHINE_PORTS_FILE, MachinePorts, OVERLAY_FILE, OverlayState},
    },
    reason::Reason,
    resource::{AgentConfig, Bytes, MilliCpu, ResourceList},
    virtual_addresses::STATES_FILE,
};

/// Largest file with the state of the overlay peers, in bytes.
const OVERLAY_LIMIT: u64 = 1 << 20;
/// Longest wait for an answer of the leader.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// The same where this machine leaves: the leader answers once it has removed the machine's etcd.
const LEAVE_LIMIT: Duration = Duration::from_secs(30);
/// Longest repetition of a request to leave that is refused.
const REFUSED_LIMIT: Duration = Duration::from_secs(20);
/// Pause before that request is repeated.
const REPEATED_AFTER: Duration = Duration::from_secs(1);

/// Microseconds of the monotonic clock, as systemd counts them.
pub(crate) fn monotonic_microseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000)
        .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0) / 1000)
}

/// Whether the machine's root control group has the controllers that limits need.
pub(crate) fn limits_enforced() -> bool {
    let controllers =
        std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    ["cpu", "memory"]
        .iter()
        .all(|wanted| controllers.split_whitespace().any(|one| one == *wanted))
}

/// Addresses of the links with a default route, without loopback and link-local ones; where no link
/// has a default route, the addresses of all other links.
pub(crate) fn default_addresses() -> Vec<IpAddr> {
    let routes = network::routes();
    let outward: Vec<&str> = routes
        .iter()
        .filter(|route| route.destination.prefix_len() == 0)
        .map(|route| route.link.as_str())
        .collect();
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    let shared = virtual_addresses::held();
    let mut found: Vec<_> = network::addresses()
        .into_iter()
        .filter(|one| usable(&one.address) && !one.link.starts_with("kat"))
        // It says where the cluster is, and not where this machine is.
        .filter(|one| !shared.contains(&one.address))
        .filter(|one| outward.is_empty() || outward.contains(&one.link.as_str()))
        .map(|one| one.address)
        .collect();
    found.sort_by_key(|address| address.is_ipv6());
    found.dedup();
    found
}

/// The facts that this machine reports.
pub(crate) struct ThisMachine {
    identity: Arc<MachineIdentity>,
    config: AgentConfig,
    system: Arc<dyn UnitManager>,
    architecture: String,
    capacity: ResourceList,
    reserved: ResourceList,
    known: ClusterCacheReceiver,
    volumes: Arc<Volumes>,
    disks: Arc<DiskWatch>,
    abilities: AbilitiesReader,
    lost_data: LostDataReader,
    member_keys: MemberKeys,
    authorities: AuthorityUses,
    state_stream: Arc<AtomicBool>,
    refused_epoch: watch::Receiver<Option<u64>>,
    data_path_silent: watch::Receiver<Option<Timestamp>>,
}

impl ThisMachine {
    /// Sets the keys of this machine's certificates as a machine that holds etcd.
    #[must_use]
    pub(crate) fn with_member_keys(self, member_keys: MemberKeys) -> Self {
        Self {
            member_keys,
            ..self
        }
    }

    /// Shows in the reports how this machine uses the authorities.
    #[must_use]
    pub(crate) fn with_authorities(self, authorities: AuthorityUses) -> Self {
        Self {
            authorities,
            ..self
        }
    }

    /// Shows in the reports whether this machine reads the state stream.
    #[must_use]
    pub(crate) fn with_state_stream(self, state_stream: Arc<AtomicBool>) -> Self {
        Self {
            state_stream,
            ..self
        }
    }

    /// Shows in the reports which later epoch of the store this machine refuses.
    #[must_use]
    pub(crate) fn with_refused_epoch(self, refused_epoch: watch::Receiver<Option<u64>>) -> Self {
        Self {
            refused_epoch,
            ..self
        }
    }

    /// Shows in the reports since when `kat-net` runs and does not answer.
    #[must_use]
    pub(crate) fn with_data_path_silent(self, silent: watch::Receiver<Option<Timestamp>>) -> Self {
        Self {
            data_path_silent: silent,
            ..self
        }
    }

    /// Reads the facts that do not change while the agent runs.
    pub(crate) async fn new(
        identity: &Arc<MachineIdentity>,
        config: &AgentConfig,
        managers: Arc<dyn ManagerSource>,
        known: ClusterCacheReceiver,
        volumes: Arc<Volumes>,
        disks: Arc<DiskWatch>,
    ) -> Result<Self, FactsError> {
        let facts = node_facts().await?;
        let abilities = AbilitiesReader::new(PathBuf::from("/"));
        abilities.first_look().await;
        Ok(Self {
            identity: Arc::clone(identity),
            config: config.clone(),
            system: managers.system(),
            architecture: facts.architecture,
            capacity: ResourceList {
                cpu: Some(MilliCpu(facts.cpu_milli)),
                memory: Some(Bytes(facts.memory_bytes)),
                storage: None,
            },
            reserved: config.reserved,
            known,
            volumes,
            disks,
            abilities,
            lost_data: LostDataReader::default(),
            member_keys: MemberKeys::default(),
            authorities: AuthorityUses::default(),
            state_stream: Arc::default(),
            refused_epoch: watch::channel(None).1,
            data_path_silent: watch::channel(None).1,
        })
    }
}

#[async_trait]
impl MachineFacts for ThisMachine {
    fn resources(&self) -> NodeResources {
        NodeResources {
            capacity: self.capacity,
            allocatable: without(self.capacity, self.reserved),
        }
    }

    fn architecture(&self) -> String {
        self.architecture.clone()
    }

    fn addresses(&self) -> Vec<String> {
        default_addresses()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn member_keys(&self) -> MemberKeys {
        self.member_keys.clone()
    }

    fn authorities(&self) -> Vec<AuthorityReport> {
        self.authorities.shown()
    }

    fn state_stream(&self) -> bool {
        self.state_stream.load(Ordering::Relaxed)
    }

    fn etcd_waits(&self) -> Option<bool> {
        Some(self.identity.etcd && self.known.borrow().prepares(&self.identity))
    }

    fn volume_shared(&self) -> bool {
        self.config.volume_shared
    }

    fn host_network(&self) -> bool {
        self.config.host_network_allow
    }

    fn abilities(&self) -> MachineAbilities {
        self.abilities.newest()
    }

    fn made_volumes(&self) -> Vec<String> {
        self.volumes.all_made()
    }

    fn present(&self) -> CurrentReach {
        CurrentReach::of(&self.identity, &self.config)
    }

    fn moved(&self) -> BoxFuture<'static, ()> {
        let authorities = self.authorities.changed();
        let mut silent = self.data_path_silent.clone();
        silent.mark_unchanged();
        let addresses = crate::network::virtual_addresses::state_change(Path::new(STATES_FILE));
        Box::pin(async move {
            tokio::select! {
                () = address_change() => {}
                () = addresses => {}
                () = authorities => {}
                Ok(()) = silent.changed() => {}
            }
        })
    }

    fn conditions(&self) -> Vec<Condition> {
        let lost = self.lost_data.newest(&self.identity, &self.known.borrow());
        let lost = lost.map(|member| Condition {
            kind: DATA_LOST_CONDITION.to_owned(),
            status: true,
            reason: data_lost_reason(&member),
            message: "the data of this machine's etcd is gone; it becomes a member anew".to_owned(),
            since: ApiTime::UNKNOWN,
        });
        let unlimited = (!limits_enforced()).then(|| Condition {
            kind: "LimitsEnforced".to_owned(),
            status: false,
            reason: Reason::ControllerMissing.into(),
            message: "the cgroups of this machine lack the memory or the processor controller, so limits of workloads do nothing".to_owned(),
            since: ApiTime::UNKNOWN,
        });
        let refused = *self.refused_epoch.borrow();
        let refused = refused.map(|epoch| Condition {
            kind: STORE_EPOCH_REFUSED.to_owned(),
            status: true,
            reason: Reason::Unconfirmed.into(),
            message: refused_epoch_text(epoch),
            since: ApiTime::UNKNOWN,
        });
        let pressure = self.disks.condition();
        let lost = lost.into_iter().chain(refused);
        unlimited.into_iter().chain(lost).chain(pressure).collect()
    }

    fn data_path_silent(&self) -> Option<Timestamp> {
        *self.data_path_silent.borrow()
    }

    fn isolation(&self) -> Option<IsolationReport> {
        isolation::report(Path::new(ISOLATION_STATE_FILE))
    }

    fn machine_ports(&self) -> MachinePorts {
        crate::network::ingress_ports::machine_ports(Path::new(MACHINE_PORTS_FILE))
    }

    fn virtual_addresses(&self) -> Vec<VirtualAddressReport> {
        crate::network::virtual_addresses::reports(Path::new(STATES_FILE))
    }

    async fn overlay(&self) -> OverlayReport {
        let status = self.system.status(kat_net_probe::UNIT).await;
        let status = match status.as_ref().map(|status| status.active_state) {
            Ok(ActiveState::Active) if self.data_path_silent().is_some() => OverlayStatus::Down,
            Ok(ActiveState::Active) => OverlayStatus::Connected,
            // It is restarted, as in an upgrade.
            Ok(ActiveState::Activating | ActiveState::Reloading) => OverlayStatus::Unknown,
            Ok(_) => OverlayStatus::Down,
            Err(_) => OverlayStatus::Unknown,
        };
        let (last_peer_sync, mut peers) = peers(Path::new(OVERLAY_FILE)).unwrap_or_default();
        if status == OverlayStatus::Down {
            // Nobody asks the peers any more.
            for peer in &mut peers {
                peer.unanswered_seconds = None;
            }
        }
        OverlayReport {
            status,
            last_peer_sync,
            peers,
        }
    }
}

/// Allocatable resources: the capacity without the reserved part.
fn without(capacity: ResourceList, reserved: ResourceList) -> ResourceList {
    let cpu = capacity.cpu.unwrap_or_default().0;
    let memory = capacity.memory.unwrap_or_default().0;
    ResourceList {
        cpu: Some(MilliCpu(
            cpu.saturating_sub(reserved.cpu.unwrap_or_default().0),
        )),
        memory: Some(Bytes(
            memory.saturating_sub(reserved.memory.unwrap_or_default().0),
        )),
        storage: None,
    }
}

/// When `kat-net` last wrote the state of its peers, and that state; `None` where it has not
/// written it since the boot.
fn peers(path: &Path) -> Option<(ApiTime, Vec<OverlayPeer>)> {
    let looked = std::fs::metadata(path)
        .and_then(|meta| meta.modified())
        .ok()?;
    let text = files::read_bounded(path, OVERLAY_LIMIT).ok()?;
    let state: OverlayState = serde_json::from_slice(&text).ok()?;
    let time = |seconds: u64| {
        let seconds = i64::try_from(seconds).ok()?;
        Timestamp::from_second(seconds).ok().map(ApiTime::from)
    };
    let peers = state.peers.into_iter().map(|(name, peer)| OverlayPeer {
        name,
        endpoint: peer.endpoint.map(|endpoint| endpoint.to_string()),
        last_handshake: peer.last_handshake.and_then(time),
        connected: peer.connected,
        sent: peer.sent,
        received: peer.received,
        unanswered_seconds: peer.unanswered_seconds,
        via: peer.via,
    });
    let since_epoch = looked.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some((time(since_epoch.as_secs())?, peers.collect()))
}

/// Sends reports to the leader's API with this machine's certificate.
pub(crate) struct LeaderApi {
    identity: Arc<MachineIdentity>,
    keys: MachineKeys,
    known: ClusterCacheReceiver,
    settings: FollowedSettings,
    client: tokio::sync::Mutex<Option<Client>>,
    /// The leader that the last report was sent to.
    leader: Mutex<Option<String>>,
    /// Failed reports since the last one that arrived.
    failures: AtomicUsize,
    /// The servers that were asked, where no leader answered the last report.
    unanswered: Mutex<Option<Vec<String>>>,
    /// The cluster answered the last report that it does not know this machine.
    unknown: AtomicBool,
}

impl LeaderApi {
    /// Connects with the first report.
    pub(crate) fn new(
        identity: &Arc<MachineIdentity>,
        keys: &MachineKeys,
        known: ClusterCacheReceiver,
        settings: FollowedSettings,
    ) -> Self {
        Self {
            known,
            settings,
            identity: Arc::clone(identity),
            keys: keys.clone(),
            client: tokio::sync::Mutex::default(),
            leader: Mutex::default(),
            failures: AtomicUsize::default(),
            unanswered: Mutex::default(),
            unknown: AtomicBool::default(),
        }
    }

    /// The APIs of other machines to which reports are sent.
    fn asked(&self) -> Vec<String> {
        let known = self.known.borrow().clone();
        if self.identity.etcd {
            return known.ways_to_leader(&self.identity);
        }
        let others = known.as_ref().clone().of_others(&self.identity);
        others.api(self.identity.cluster.spec.api_port)
    }

    fn connect(&self) -> Result<Client, LeaderApiError> {
        let known = self.known.borrow().clone();
        let mut endpoints = client_endpoints(&self.identity, &known);
        // Every machine forwards reports to the leader, and may know of a new leader before this
        // one does.
        let failures = self.failures.load(Ordering::Relaxed);
        let first = failures.checked_rem(endpoints.len()).unwrap_or(0);
        endpoints.rotate_left(first);
        let client = client_at(
            &endpoints,
            (&self.identity, &known, &self.keys),
            REQUEST_LIMIT,
        )?;
        // The reporter does its own retries, with a new report and on a new connection, which may
        // reach another leader.
        let settings = self.settings.present();
        let tick = settings.tick.min(settings.loss_timeout / 5).as_secs();
        let options = ClientOptions {
            request_timeout: Duration::from_secs(tick.clamp(1, 5)),
            retry_for: Duration::ZERO,
            unreachable_for: Duration::ZERO,
            ..client.options()
        };
        Ok(client.with_options(options))
    }

    /// Remembers the present leader; returns true where the last report was sent to another.
    fn turn_to_leader(&self) -> bool {
        let now = self.known.borrow().leader.clone();
        let mut leader = self.leader.lock();
        let differs = *leader != now;
        *leader = now;
        differs
    }
}

/// A client of the leader's API with this machine's certificate. A machine that holds etcd connects
/// to its own port, which forwards requests to the leader, and to the leader directly where all
/// connection slots of its own port are in use.
fn client_of(
    identity: &MachineIdentity,
    known: &ClusterCache,
    keys: &MachineKeys,
) -> Result<Client, LeaderApiError> {
    let endpoints = client_endpoints(identity, known);
    client_at(&endpoints, (identity, known, keys), REQUEST_LIMIT)
}

fn client_endpoints(identity: &MachineIdentity, known: &ClusterCache) -> Vec<String> {
    let port = identity.cluster.spec.api_port;
    if identity.etcd {
        let own = SocketAddr::from(([127, 0, 0, 1], port)).to_string();
        let leader = known.ways_to_leader(identity);
        std::iter::once(own).chain(leader).collect()
    } else {
        known.api(port)
    }
}

fn client_at(
    endpoints: &[String],
    (identity, known, keys): (&MachineIdentity, &ClusterCache, &MachineKeys),
    request_timeout: Duration,
) -> Result<Client, LeaderApiError> {
    let leaf = keys.leaf("node")?;
    let options = ClientOptions {
        request_timeout,
        ..ClientOptions::default()
    };
    Ok(Client::of_machine(
        endpoints,
        &identity.cluster_uid,
        &keys.cluster_authority()?,
        Some(&format!("{}{}", leaf.certificate_pem, leaf.key_pem)),
        &ApiServers::KnownOnly(servers_of(identity, known, keys)?),
        options,
    )?)
}

/// The machines that hold the store, by their known keys alone: whoever answers a report keeps
/// instances with `onPartition: stop` running. This machine's own key is read from its disk, since
/// it is published by a report, which goes to its own port first.
fn servers_of(
    identity: &MachineIdentity,
    known: &ClusterCache,
    keys: &MachineKeys,
) -> Result<KnownServers, KeysError> {
    let mut servers = known.servers();
    if identity.etcd {
        let unknown = KnownServer {
            is_member: true,
            node_key: None,
            api_key: None,
        };
        let own = servers.machines.entry(identity.node.clone());
        let own = own.or_insert(unknown);
        own.is_member = true;
        own.api_key = Some(keys.member_keys()?.api);
    }
    Ok(servers)
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaderApiError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    #[error(transparent)]
    Client(#[from] ClientError),
}

#[async_trait]
impl ReportSink for LeaderApi {
    async fn send(&self, report: &NodeReport) -> Result<Duration, String> {
        let turned = self.turn_to_leader();
        let mut slot = self.client.lock().await;
        if turned || slot.is_none() {
            *slot = Some(self.connect().map_err(|error| error.to_string())?);
        }
        let Some(client) = slot.as_ref() else {
            return Err("there is no client".to_owned());
        };
        let sent = client.report(&self.identity.node, report).await;
        *self.unanswered.lock() = match &sent {
            Err(error) if error.is_passing() => Some(self.asked()),
            _ => None,
        };
        // 401 says that the cluster knows this machine's name, if at all, by another key.
        let unknown = |error: &ClientError| error.is_not_found() || error.status() == Some(401);
        let unknown = sent.as_ref().is_err_and(unknown);
        self.unknown.store(unknown, Ordering::Relaxed);
        if sent.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
            // The next client reads the renewed certificate.
            *slot = None;
        } else {
            self.failures.store(0, Ordering::Relaxed);
        }
        sent.map_err(|error| error.to_string())
    }

    async fn elsewhere(&self) {
        let mut known = self.known.clone();
        let leader = || self.leader.lock().clone();
        if known
            .wait_for(|known| known.leader != leader())
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    fn unanswered(&self) -> Option<Vec<String>> {
        self.unanswered.lock().clone()
    }

    fn unknown(&self) -> bool {
        self.unknown.load(Ordering::Relaxed)
    }
}

/// Waits until the API on this machine's socket reports the machine as Ready.
pub(crate) async fn wait_ready(identity: &MachineIdentity, limit: Duration) -> anyhow::Result<()> {
    let client = Client::from_unix_socket(
        Path::new(crate::service::paths::API_SOCKET),
        ClientOptions::default(),
    )?;
    wait_ready_at(&client, identity, limit).await
}

/// Waits until the leader reports this machine as Ready.
pub(crate) async fn wait_joined(
    identity: &MachineIdentity,
    known: &ClusterCache,
    keys: &MachineKeys,
    limit: Duration,
) -> anyhow::Result<()> {
    let client = client_of(identity, known, keys)?;
    wait_ready_at(&client, identity, limit).await
}

/// Requests from the leader what this machine needs to hold etcd.
pub(crate) async fn membership(
    identity: &MachineIdentity,
    known: &ClusterCache,
    keys: &MachineKeys,
) -> anyhow::Result<MembershipAnswer> {
    let client = client_of(identity, known, keys)?;
    Ok(client.membership(&identity.node).await?)
}

/// Asks the leader to remove this machine for good. This machine's own agent is stopped by then, so
/// the request goes to other machines. A refusal is repeated for [`REFUSED_LIMIT`]: etcd of another
/// machine may be restarting.
pub(crate) async fn leave(identity: &MachineIdentity) -> anyhow::Result<()> {
    let client = client_of_others(identity, LEAVE_LIMIT)?;
    let deadline = tokio::time::Instant::now() + REFUSED_LIMIT;
    loop {
        let Err(error) = client.delete_node(&identity.node).await else {
            return Ok(());
        };
        match error.status() {
            // 401 means that the machine was removed before: its certificate is no longer accepted.
            Some(401 | 404) => return Ok(()),
            Some(409) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(REPEATED_AFTER).await;
            }
            _ => return Err(error.into()),
        }
    }
}

/// A client of the other machines' APIs with this machine's certificate. They pass its calls on to
/// the leader, also where this machine leads: then its own certificate is what the client sees.
pub(crate) fn client_of_others(
    identity: &MachineIdentity,
    request_timeout: Duration,
) -> anyhow::Result<Client> {
    let known = ClusterCache::stored().of_others(identity);
    let endpoints = known.api(identity.cluster.spec.api_port);
    let parts = (identity, &known, &MachineKeys::new(None));
    Ok(client_at(&endpoints, parts, request_timeout)?)
}

async fn wait_ready_at(
    client: &Client,
    identity: &MachineIdentity,
    limit: Duration,
) -> anyhow::Result<()> {
    use kat_types::api::NodePhase;
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        let phase = client
            .node(&identity.node)
            .await
            .map(|node| (node.status.phase, node.status.message));
        match phase {
            Ok((NodePhase::Ready, _)) => return Ok(()),
            other if tokio::time::Instant::now() >= deadline => {
                let state = match other {
                    Ok((phase, message)) => format!("{phase:?} {message}"),
                    Err(error) => error.to_string(),
                };
                anyhow::bail!(
                    "kat-agent runs, but the machine was not Ready within {} s ({state}); `journalctl -u kat-agent` says why",
                    limit.as_secs()
                );
            }
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_keeps_back_is_not_for_workloads() {
        let of = |cpu: Option<u64>, memory: Option<u64>| ResourceList {
            cpu: cpu.map(MilliCpu),
            memory: memory.map(Bytes),
            storage: None,
        };
        let has = of(Some(2000), Some(4 << 30));
        for (reserved, left) in [
            (of(None, None), has),
            (of(Some(250), Some(1 << 30)), of(Some(1750), Some(3 << 30))),
            (of(Some(250), None), of(Some(1750), Some(4 << 30))),
            // A reservation above the capacity leaves 0.
            (of(Some(9000), Some(8 << 30)), of(Some(0), Some(0))),
        ] {
            assert_eq!(without(has, reserved), left);
        }
    }
}
