//! Starts what only machines with etcd run: etcd, the leader election, and the care for the
//! members.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    authorities::{NextAuthorities, SigningAuthorities},
    membership, stores,
};
use crate::{
    cluster::{
        cluster_cache::{ClusterCache, ClusterCacheReceiver},
        identity::MachineIdentity,
        keys::MachineKeys,
        reach::CurrentReach,
    },
    commands::{host_files, recovery},
    disk::foreign_disks::ForeignDisks,
    ingress::dns_hooks::MachineDnsHooks,
    network::overlay,
    service::{loops::AgentLoops, paths},
};
use kat_api::JoiningState;
use kat_host::users::Users;
use kat_leader as leader;
use kat_leader::{
    BackupsConfig, EtcdMembers, InstantAcme, LeaderConfig, LeaderHandle, MemberClients,
    MembersConfig, OrderedCertificatesConfig, RotationConfig, TakeoverConfig,
};
use kat_render::{ETCD_QUOTA, Renderer};
use kat_store::{EtcdStore, StateFeed, StoreError};
use kat_systemd::{JobResult, UnitManager};
use kat_types::resource::AgentConfig;

/// Time to live of the leader's lease without a renewal.
const LEASE: Duration = Duration::from_secs(5);
/// Pause before the upkeep of a full store is retried.
const UPKEEP_RETRY: Duration = Duration::from_secs(60);
/// Longest start of etcd.
const ETCD_LIMIT: Duration = Duration::from_secs(90);
/// Longest wait for kat0 before etcd is started.
const OVERLAY_LIMIT: Duration = Duration::from_secs(30);

/// Longest wait for etcd before the agent's start continues without it.
const READY_SOON: Duration = Duration::from_secs(3);

pub(crate) struct RunningMember {
    /// The authorities with which the API signs.
    pub signing: Arc<SigningAuthorities>,
    /// The store, as the leader's user.
    pub store: EtcdStore,
    /// The leader's state, and whether this machine leads.
    pub handle: LeaderHandle,
    /// What each machine may see of the store.
    pub feed: StateFeed,
    /// Handles joins of other machines.
    pub joining: JoiningState,
}

/// The parts that a member needs.
pub(crate) struct MemberParts<'a> {
    pub identity: &'a Arc<MachineIdentity>,
    /// Settings of the machine.
    pub config: &'a AgentConfig,
    pub keys: &'a MachineKeys,
    pub known: &'a ClusterCacheReceiver,
    pub system: Arc<dyn UnitManager>,
    /// Renders etcd's unit.
    pub renderer: Arc<Renderer>,
    /// The file systems that may hang, such as one with the backups.
    pub disks: ForeignDisks,
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl RunningMember {
    /// Starts etcd without waiting until it is ready, since that needs a quorum. Takes part in the
    /// leader election, cares for the members while this machine leads, and watches the leader
    /// otherwise.
    pub(crate) async fn start(
        parts: MemberParts<'_>,
        loops: &mut AgentLoops,
    ) -> anyhow::Result<Self> {
        let cancel = loops.cancel.clone();
        let MemberParts {
            identity,
            config,
            keys,
            known,
            system,
            renderer,
            disks,
            clock,
        } = parts;
        let before = known.borrow().clone();
        renew_certificates(identity, keys, &before)?;
        let (started, first) = oneshot::channel();
        let etcd_unit = EtcdKeeper {
            identity: Arc::clone(identity),
            known: known.clone(),
            system: Arc::clone(&system),
            renderer,
        };
        loops.add_blocking("etcd's unit", etcd_unit.run(started, cancel.clone()));
        // Where etcd needs no other member, or the others are up, it is ready soon.
        let _ = tokio::time::timeout(READY_SOON, first).await;
        let now = known.borrow().clone();
        let store = stores::leader(identity, keys, &now).await?;
        let endpoint = api_endpoint(identity, config)?;
        let signing = Arc::new(SigningAuthorities::load(paths::PKI.into())?);
        let handle = leader::start(
            Arc::new(store.clone()),
            LeaderConfig {
                candidate: identity.node.clone(),
                lease: LEASE,
                endpoint,
                clock: Arc::clone(&clock),
                pulses: loops.pulses.clone(),
                sealing: signing.sealing(),
            },
            cancel,
        );
        let candidate = Candidate {
            identity,
            keys,
            handle: &handle,
            clock,
            system,
        };
        let etcd = candidate.keep_members(&store, loops);
        candidate.keep_certificates(loops);
        candidate.keep_backups(disks, loops);
        candidate.watch_over_leader(etcd, loops);
        candidate.keep_authorities(&signing, loops);
        let joining = JoiningState {
            authorities: signing.subscribe(),
            users: Arc::new(stores::EtcdUsers(store.clone())),
        };
        let feed = handle.feed.clone().context("a candidate has no feed")?;
        Ok(Self {
            signing,
            store,
            handle,
            feed,
            joining,
        })
    }
}

fn renew_certificates(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
) -> anyhow::Result<()> {
    let renewed = match keys.renew(identity, known, Timestamp::now()) {
        // Such as a full disk. It is tried again while the agent runs.
        Err(error) if keys.has_all_leaves() => {
            tracing::error!("certificates can't be renewed: {error:#}");
            Vec::new()
        }
        renewed => renewed?,
    };
    if !renewed.is_empty() {
        tracing::info!(?renewed, "certificates were renewed");
    }
    Ok(())
}

/// The address of this machine's API at each call; an error where it has none now.
fn api_endpoint(
    identity: &Arc<MachineIdentity>,
    config: &AgentConfig,
) -> anyhow::Result<Arc<dyn Fn() -> String + Send + Sync>> {
    CurrentReach::of(identity, config)
        .api(identity)
        .context("the machine has no address")?;
    let (own, settings) = (Arc::clone(identity), config.clone());
    Ok(Arc::new(move || {
        CurrentReach::of(&own, &settings)
            .api(&own)
            .unwrap_or_default()
    }))
}

/// A machine in the leader election, and what its loops need.
struct Candidate<'a> {
    identity: &'a Arc<MachineIdentity>,
    keys: &'a MachineKeys,
    handle: &'a LeaderHandle,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    system: Arc<dyn UnitManager>,
}

impl Candidate<'_> {
    /// Returns the access to etcd's members.
    fn keep_members(&self, store: &EtcdStore, loops: &mut AgentLoops) -> Arc<dyn EtcdMembers> {
        let own_keys = self.keys.clone();
        let options = move |url: &str| {
            stores::at(&own_keys, vec![url.to_owned()], "leader-etcd")
                .map_err(|error| StoreError::Invalid(error.to_string()))
        };
        let clients = Arc::new(MemberClients::new(store, Arc::new(options)));
        let etcd: Arc<dyn EtcdMembers> = Arc::clone(&clients) as _;
        let spec = &self.identity.cluster.spec;
        let members = MembersConfig {
            node: self.identity.node.clone(),
            client_port: spec.etcd_client_port,
            peer_port: spec.etcd_peer_port,
            clock: Arc::clone(&self.clock),
            etcd: Arc::clone(&etcd),
            upkeep: clients,
            quota: ETCD_QUOTA,
            retry: UPKEEP_RETRY,
            pulses: loops.pulses.clone(),
        };
        let members = leader::keep_members(self.handle.clone(), members, loops.cancel.clone());
        loops.add_blocking("members of the store", members);
        etcd
    }

    fn hooks(&self) -> MachineDnsHooks {
        MachineDnsHooks::new(Arc::clone(&self.system), &self.identity.node)
    }

    fn keep_certificates(&self, loops: &mut AgentLoops) {
        let config = OrderedCertificatesConfig {
            clock: Arc::clone(&self.clock),
            server: Arc::new(InstantAcme::new(Arc::new(self.hooks()))),
            pulses: loops.pulses.clone(),
        };
        let certificates =
            leader::keep_certificates(self.handle.clone(), config, loops.cancel.clone());
        loops.add("ordered certificates", certificates);
    }

    fn keep_backups(&self, disks: ForeignDisks, loops: &mut AgentLoops) {
        let backups = recovery::ScheduledBackups::new(self.identity, self.keys, disks);
        let config = BackupsConfig {
            node: self.identity.node.clone(),
            clock: Arc::clone(&self.clock),
            backups: Arc::new(backups),
        };
        let backups = leader::keep_backups(self.handle.clone(), config, loops.cancel.clone());
        loops.add_blocking("backups", backups);
    }

    fn watch_over_leader(&self, etcd: Arc<dyn EtcdMembers>, loops: &mut AgentLoops) {
        let spec = &self.identity.cluster.spec;
        let takeover = TakeoverConfig {
            node: self.identity.node.clone(),
            api_port: spec.api_port,
            own_url: format!("https://127.0.0.1:{}", spec.etcd_client_port),
            etcd,
        };
        let takeover = leader::watch_over(self.handle.clone(), takeover, loops.cancel.clone());
        loops.add_blocking("watch over the leader", takeover);
    }

    fn keep_authorities(&self, signing: &Arc<SigningAuthorities>, loops: &mut AgentLoops) {
        let maker = NextAuthorities {
            keys: self.keys.clone(),
            cluster_uid: self.identity.cluster_uid.clone(),
            signing: Arc::clone(signing),
        };
        let rotation = RotationConfig {
            node: self.identity.node.clone(),
            clock: Arc::new(Timestamp::now),
            maker: Arc::new(maker),
            pulses: loops.pulses.clone(),
        };
        let authorities =
            leader::keep_authorities(self.handle.clone(), rotation, loops.cancel.clone());
        loops.add_blocking("rotation of authorities", authorities);
    }
}

/// Starts etcd, and keeps its unit up to date with the members.
struct EtcdKeeper {
    identity: Arc<MachineIdentity>,
    known: ClusterCacheReceiver,
    system: Arc<dyn UnitManager>,
    renderer: Arc<Renderer>,
}

impl EtcdKeeper {
    async fn run(self, started: oneshot::Sender<()>, cancel: CancellationToken) {
        let work = async {
            let mut started = Some(started);
            let mut known = self.known.clone();
            loop {
                let now = known.borrow_and_update().clone();
                if membership::is_out(&self.identity, &now) {
                    drop(started.take());
                    if known.changed().await.is_err() {
                        return;
                    }
                    continue;
                }
                self.write_unit(&now).await;
                let changed = tokio::select! {
                    () = self.start(&now) => {
                        drop(started.take());
                        known.changed().await
                    }
                    changed = known.changed() => changed,
                };
                if changed.is_err() {
                    return;
                }
            }
        };
        cancel.run_until_cancelled(work).await;
        // The task waits here for the agent's stop: the end of a task would stop the agent.
        cancel.cancelled().await;
    }

    async fn write_unit(&self, known: &ClusterCache) {
        match host_files::etcd(&self.renderer, &self.identity, known) {
            Ok(file) => {
                if let Err(error) = host_files::renew(&[file], self.system.as_ref()).await {
                    tracing::error!("etcd's unit can't be written: {error:#}");
                }
            }
            Err(error) => tracing::error!("etcd's unit can't be rendered: {error:#}"),
        }
    }

    /// An etcd without data is restarted with the present members: its unit must name all of them,
    /// and they may have changed since its last start.
    async fn start(&self, known: &ClusterCache) {
        if let Some(member) = membership::lost_data(&self.identity, known) {
            tracing::error!(
                member,
                "the data of this machine's etcd is gone, and it has a vote: it is not started; the leader makes it anew where the others keep the quorum"
            );
            return;
        }
        let address = self.identity.overlay_address().into();
        if let Err(error) = overlay::wait_for_address(address, OVERLAY_LIMIT).await {
            tracing::warn!(%address, "kat0 is not up; etcd is tried without it: {error:#}");
        }
        let started = if membership::has_data() {
            self.system.start(host_files::ETCD, ETCD_LIMIT).await
        } else {
            self.system.restart(host_files::ETCD, ETCD_LIMIT).await
        };
        if !matches!(started, Ok(JobResult::Done)) {
            tracing::error!(
                ?started,
                "etcd is not ready; workloads run on, nothing can be changed"
            );
        }
    }
}

/// The group of etcd's user; `None` on a machine without etcd.
pub(crate) fn etcd_group(identity: &MachineIdentity) -> anyhow::Result<Option<u32>> {
    let accounts = Users::new().accounts()?;
    let group = accounts.group(kat_render::ETCD_USER);
    Ok(group.filter(|_| identity.etcd).map(|group| group.gid))
}
