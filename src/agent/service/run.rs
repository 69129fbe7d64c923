//! `kat-agent run`: the service with the leader, the workers and the reporter.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    loops::AgentLoops,
    paths,
    supervisor::{DesiredList, Supervisor},
};
use crate::{
    NetworkFiles, Reporter, Statuses,
    cluster::{
        cluster_cache::{ClusterCache, ClusterCacheReceiver},
        identity::MachineIdentity,
        keys::{ETCD_PKI, MachineKeys},
        machine::{LeaderApi, ThisMachine},
        overview::{OverviewReader, StoreMembers},
        peer_agents::PeerAgents,
        renewal::{CertificateRenewal, ServerCertificates},
        state_stream::{MemberStateSource, RemoteStateSource, WorkerStateSource},
        succession::SuccessionWatch,
    },
    commands::{
        host_files, recovery, setup,
        setup::{read_agent_config, read_identity, render_settings},
    },
    desired_state::{
        fence,
        instance_history::InstanceHistory,
        job_starts::JobStarts,
        kept_position::PositionFile,
        known_epochs::KnownEpochs,
        settings::{FollowedSettings, SettingsFollower},
        store_watch::{FollowedStore, follow_desired, follow_known, follow_network},
        watched_writes::WatchedWrites,
    },
    disk::{
        ballast::Ballast,
        eviction::{EvictedInstances, Evictor},
        pressure as disks,
        pressure::DiskWatch,
        silence::DiskSilence,
    },
    etcd::{
        authorities::{AuthorityKeeper, AuthorityUses, SystemdEtcd},
        member::{MemberParts, RunningMember, etcd_group},
        membership, stores,
    },
    exec::{LocalSessions, sessions::ClusterSessions},
    images::{collector::Collector, unused::ImageCare},
    ingress::follow::IngressFollower,
    local_api::{
        listeners::{
            agent_listener, agent_tls, all_own_instances, known_peers, listeners, own_instances,
            state_members,
        },
        logs::{ClusterLogs, JournalLogs},
        standalone as local,
    },
    metrics::{LastMeasurement, MachineMeasurer},
    network::{
        host_ports::SystemListeners, kat_net_probe::KatNetProbe,
        virtual_addresses::ReleaseDeadlines,
    },
    reporter::{LeaderSilence, OwnLeaderFirst},
    secrets::Secrets,
    service::{
        reload::{ReloadOutcomes, ReloadRequests},
        status_line::{StatusSources, tell_status},
    },
    volumes::{
        Volumes, earlier_grants,
        moves::{OtherMachines, OwnVolumes, VolumeMoves},
        removals::VolumeRemovals,
    },
    worker::{
        WorkerTools, unit_state::early_units::PodmanGenerator,
        users::machine_options::MachineOptions,
    },
};
use kat_api as api;
use kat_api::{AgentPort, ApiConfig, ApiLimits, InstanceLogs, InstanceSessions, OverviewRelay};
use kat_daemon::clock;
use kat_host::{facts, facts::FactsError, files, users::Users};
use kat_leader::LeaderHandle;
use kat_registry::Registries;
use kat_render::Renderer;
use kat_store::{
    AbsentStore, LocalStateSource, Mirror, PrefixStateSource, StateSource, follow_source_from,
};
use kat_systemd::{Journal, Logind, ManagerSource, Managers, UnitManager};
use kat_types::{
    api::NodeReport,
    ingress,
    machine::{
        fence::{BootClock, BootTime},
        network,
        root::Root,
    },
    resource::AgentConfig,
    virtual_addresses::RELEASE_FILE,
};

/// Runs until SIGTERM, which leaves every workload running.
pub(crate) async fn run() -> anyhow::Result<()> {
    let identity = read_identity()?;
    recovery::refuse_unfinished()?;
    forget_unpacked();
    forget_unfinished();
    let config = read_agent_config()?;
    let reloads = ReloadRequests::register()?;
    let mut loops = AgentLoops::start();
    let outcomes = ReloadOutcomes::default();
    let answers = reloads.answer(config.clone(), outcomes.clone(), loops.cancel.clone());
    loops.add("reloads", answers);
    let machine = Machine {
        managers: Arc::new(Managers::new()),
        clock: Arc::new(Timestamp::now),
        config,
        identity,
    };
    let stored = ClusterCache::stored();
    if recovery::is_marked_replaced()? {
        return super::replaced::run(loops, &machine, stored, outcomes.restart).await;
    }
    let workloads = workloads(&mut loops, &machine, &stored).await?;
    let (known_now, known) = watch::channel(Arc::new(stored));
    let keys = MachineKeys::new(etcd_group(&machine.identity)?);
    let system = machine.managers.system();
    let cache = known.borrow().clone();
    let left =
        membership::give_up_outdated(&machine.identity, &keys, &cache, system.as_ref()).await?;
    if left {
        tracing::info!("systemd starts kat-agent anew");
        count_restarts_anew(system.as_ref()).await;
        loops.end().await;
        return Ok(());
    }
    let credentials = Credentials { keys, known };
    let told = Told::default();
    let cluster = cluster(&mut loops, &machine, &credentials, &workloads, &told).await?;
    let certificates = ServerCertificates::read(&machine.identity, &credentials.keys)?;
    servers(
        &mut loops,
        &machine,
        &credentials,
        (&workloads, &cluster, &certificates, &told),
    )?;
    follow_state(
        &mut loops,
        &machine,
        &credentials,
        (&workloads, &cluster),
        known_now,
    );
    let uses = AuthorityUses::default();
    reports(
        &mut loops,
        &machine,
        &credentials,
        (&workloads, &cluster, &told),
        uses.clone(),
    )
    .await?;
    certificate_loops(
        &mut loops,
        &machine,
        &credentials,
        &cluster,
        (certificates, uses),
    );
    let status = StatusSources {
        handle: cluster.handle,
        silence: told.silence.subscribe(),
        refused_epoch: cluster.epochs.refused(),
        outside: told.outside.subscribe(),
        data_path_silent: told.data_path_silent.subscribe(),
        refused_settings: outcomes.refused.subscribe(),
        member: machine.identity.etcd,
    };
    let status = tell_status(loops.status.clone(), status, loops.cancel.clone());
    loops.add("status line", status);

    let turn = role_loop(
        &mut loops,
        &machine,
        &credentials,
        cluster.epochs.replaced(),
    );
    let end = until_end(&outcomes.restart, turn, system.as_ref());
    loops.supervise(end).await?;
    loops.end().await;
    Ok(())
}

/// Removes what an earlier restore unpacked; a failure does not hold up the agent.
fn forget_unpacked() {
    if let Err(error) = recovery::forget_unpacked(Path::new(paths::STATE)) {
        tracing::error!("what an earlier restore unpacked is left: {error:#}");
    }
}

/// Removes what is left of writes that ended with an earlier agent: nobody else writes in these folders.
fn forget_unfinished() {
    let folders = [
        paths::STATE,
        paths::PKI,
        ETCD_PKI,
        network::FOLDER,
        ingress::FOLDER,
    ];
    for folder in folders {
        if let Err(error) = files::remove_unfinished(Path::new(folder)) {
            tracing::warn!("what is left of an unfinished write stays: {error}");
        }
    }
}

/// Waits for SIGTERM, or for a reason to start anew: other settings, or another part in the store.
async fn until_end(
    restart: &CancellationToken,
    turn: oneshot::Receiver<()>,
    system: &dyn UnitManager,
) -> anyhow::Result<()> {
    tokio::select! {
        ended = wait_for_end() => ended,
        () = restart.cancelled() => {
            count_restarts_anew(system).await;
            Ok(())
        }
        Ok(()) = turn => {
            tracing::info!("this machine's part in the cluster's store changes; systemd starts kat-agent anew");
            count_restarts_anew(system).await;
            Ok(())
        }
    }
}

/// Before a restart that the agent asks for. systemd's pause grows with each restart (`RestartSteps=`),
/// and without reports for as long as the longest pause the machine would count as lost.
async fn count_restarts_anew(system: &dyn UnitManager) {
    let reset = system.reset_failed("kat-agent.service");
    match tokio::time::timeout(Duration::from_secs(5), reset).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("kat-agent starts later than it could: {error}"),
        Err(_) => tracing::warn!("kat-agent starts later than it could: systemd does not answer"),
    }
}

/// What does not change while the agent runs.
pub(super) struct Machine {
    pub(super) identity: Arc<MachineIdentity>,
    pub(super) config: AgentConfig,
    pub(super) managers: Arc<dyn ManagerSource>,
    pub(super) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// The machine's keys, and what it knows of the other machines.
struct Credentials {
    keys: MachineKeys,
    known: ClusterCacheReceiver,
}

/// What the reporter and the probe of `kat-net` tell other loops.
struct Told {
    /// The last report.
    report: watch::Sender<Arc<NodeReport>>,
    /// Why no leader answers, and since when.
    silence: watch::Sender<Option<LeaderSilence>>,
    /// Whether the cluster does not know this machine any more.
    outside: watch::Sender<bool>,
    /// Since when `kat-net` runs and does not answer.
    data_path_silent: watch::Sender<Option<Timestamp>>,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            report: watch::Sender::new(Arc::default()),
            silence: watch::Sender::new(None),
            outside: watch::Sender::new(false),
            data_path_silent: watch::Sender::new(None),
        }
    }
}

/// What runs the machine's workloads.
struct Workloads {
    tools: Arc<WorkerTools>,
    statuses: Statuses,
    /// The list that the workers work on.
    lists: watch::Sender<DesiredList>,
    network: NetworkFiles,
    writes: WatchedWrites,
    disks: Arc<DiskWatch>,
    /// When this machine last counted as present for every leader.
    reached: watch::Sender<Option<BootTime>>,
    settings: FollowedSettings,
    /// The instances that this machine had.
    history: InstanceHistory,
}

/// Starts the workers and the loops over volumes, images and disks. They go by the list of before
/// the start until a newer one arrives.
async fn workloads(
    loops: &mut AgentLoops,
    machine: &Machine,
    known: &ClusterCache,
) -> anyhow::Result<Workloads> {
    let Machine {
        identity,
        config,
        managers,
        ..
    } = machine;
    let (pulses, cancel) = (loops.pulses.clone(), loops.cancel.clone());
    let root = Root::new("/");
    let stored = DesiredList::stored(Path::new(paths::DESIRED));
    earlier_grants::record(&root, config, &stored.desired)?;
    let (lists, listed) = watch::channel(stored);
    let statuses = Statuses::default();
    let network = NetworkFiles::new(network::FOLDER.into());
    network.write_node(&setup::node_network(identity, config))?;
    let boot_clock = boot_clock();
    let settings = FollowedSettings::new(&identity.cluster.spec, boot_clock());
    let tools = Arc::new(tools(identity, config, managers, &settings).await?);
    let host_files = host_files::needed_files(&tools.renderer, &tools.settings, identity, known)?;
    host_files::renew(&host_files, managers.system().as_ref()).await?;
    let mut supervisor = Supervisor::new(Arc::clone(&tools), statuses.clone(), network.clone());
    supervisor.pulses = pulses.clone();
    let writes = supervisor.writes.clone();
    let retries = writes.clone().run(pulses.clone(), cancel.clone());
    loops.add("writes that failed", retries);
    let (reached, fenced) = start_fence(loops, &settings, &listed, &tools.job_starts);
    let history = InstanceHistory::stored(paths::INSTANCE_HISTORY.into());
    let followed = history.clone().follow(
        listed.clone(),
        Arc::clone(&machine.clock),
        writes.clone(),
        pulses.clone(),
        cancel.clone(),
    );
    loops.add_blocking("history of instances", followed);
    let (disks, evicted) = disk_loops(loops, machine, &tools, &statuses, listed);
    supervisor.evicted = evicted;
    loops.add_blocking("workers", supervisor.run(fenced, cancel));
    Ok(Workloads {
        tools,
        statuses,
        lists,
        network,
        writes,
        disks,
        reached,
        settings,
        history,
    })
}

/// Starts the fence of `onPartition: stop`. Returns the sender of the last contact with a leader, and
/// the list with the instances that must not run.
fn start_fence(
    loops: &mut AgentLoops,
    settings: &FollowedSettings,
    listed: &watch::Receiver<DesiredList>,
    job_starts: &JobStarts,
) -> (
    watch::Sender<Option<BootTime>>,
    watch::Receiver<DesiredList>,
) {
    let boot_clock = boot_clock();
    let memory = fence::FenceMemory {
        path: paths::REACHED.into(),
        deadlines: network::DEADLINES_FILE.into(),
    };
    let (reached_now, reached) = watch::channel(memory.recall(boot_clock()));
    let (fenced_now, fenced) = watch::channel(DesiredList::default());
    let fence = fence::PartitionFence {
        settings: settings.clone(),
        list_age: fence::LIST_AGE,
        lists: listed.clone(),
        clock: boot_clock,
        reached,
        fenced: fenced_now,
        memory: Some(memory),
        job_starts: job_starts.clone(),
    };
    let cancel = loops.cancel.clone();
    loops.add("fence", fence.run(cancel));
    (reached_now, fenced)
}

/// Starts the loops over volumes, images and disks. Returns the instances that must not run because
/// a disk is nearly full.
fn disk_loops(
    loops: &mut AgentLoops,
    Machine {
        identity, config, ..
    }: &Machine,
    tools: &Arc<WorkerTools>,
    statuses: &Statuses,
    listed: watch::Receiver<DesiredList>,
) -> (Arc<DiskWatch>, watch::Receiver<EvictedInstances>) {
    let (pulses, cancel) = (loops.pulses.clone(), loops.cancel.clone());
    let root = &tools.root;
    let removals = VolumeRemovals {
        lists: listed.clone(),
        volumes: Arc::clone(&tools.volumes),
        statuses: statuses.clone(),
        pulses: pulses.clone(),
    };
    loops.add("removals of volumes", removals.run(cancel.clone()));
    if identity.etcd {
        let ballast = Ballast::new(root, Arc::new(disks::measure_free_space));
        loops.add(
            "reserve of the disk",
            ballast.run(pulses.clone(), cancel.clone()),
        );
    }
    let base = &identity.cluster.spec.volume_base_path;
    let disks = DiskWatch::new(root, base, config, Arc::new(disks::measure_free_space));
    let disks = Arc::new(disks);
    let look = Arc::clone(&disks).run(
        tools.volumes.disks().clone(),
        statuses.clone(),
        pulses.clone(),
        cancel.clone(),
    );
    loops.add("disks", look);
    let silence = DiskSilence {
        lists: listed.clone(),
        volumes: Arc::clone(&tools.volumes),
        statuses: statuses.clone(),
        pulses: pulses.clone(),
    };
    loops.add_blocking("silent disks", silence.run(cancel.clone()));
    let collector = Collector {
        lists: listed.clone(),
        tools: Arc::clone(tools),
        disks: Arc::clone(&disks),
        statuses: statuses.clone(),
        pulses: pulses.clone(),
    };
    loops.add_blocking("images", collector.run(cancel.clone()));
    let evictor = Evictor::new(
        root,
        base,
        config,
        Arc::new(disks::measure_free_space),
        (statuses.clone(), Arc::clone(&tools.monotonic)),
    );
    // This process does not start instances that an earlier one evicted.
    let (evicted_now, evicted) = watch::channel(evictor.evicted());
    let evictor = evictor.run(listed, evicted_now, pulses, cancel);
    loops.add("eviction", evictor);
    (disks, evicted)
}

/// The clock of the fence, which `kat-net` reads too.
fn boot_clock() -> BootClock {
    Arc::new(|| BootTime::from(clock::since_boot()))
}

/// The kernel's id of this boot.
fn boot_id() -> Option<String> {
    let id = facts::boot_id();
    let told = |error: &FactsError| {
        tracing::warn!("reports of this machine have no order, so a late one is believed: {error}");
    };
    id.inspect_err(told).ok()
}

/// The cluster as this machine reads it.
struct Cluster {
    /// `None` on a machine without the store.
    member: Option<RunningMember>,
    handle: LeaderHandle,
    store: FollowedStore,
    state: Mirror,
    epochs: Arc<KnownEpochs>,
    /// Whether a machine without the store reads the state stream now.
    stream_is_read: Arc<AtomicBool>,
    /// Answers with the cluster's overview on a machine without the store.
    relay: Option<Arc<dyn OverviewRelay>>,
}

/// Starts etcd and the leader's loops on a machine with the store, and follows the cluster's state.
async fn cluster(
    loops: &mut AgentLoops,
    machine: &Machine,
    credentials: &Credentials,
    workloads: &Workloads,
    told: &Told,
) -> anyhow::Result<Cluster> {
    let Machine { identity, .. } = machine;
    let Credentials { keys, known } = credentials;
    let member = match identity.etcd {
        true => Some(start_member(loops, machine, credentials, workloads).await?),
        false => None,
    };
    let cancel = loops.cancel.clone();
    let stream_is_read = Arc::new(AtomicBool::new(false));
    let position = PositionFile {
        path: paths::POSITION.into(),
        cluster_uid: identity.cluster_uid.clone(),
    };
    let (known_state, epochs) = position.known(&identity.node);
    let remote = RemoteStateSource::new(identity, keys, known, &epochs);
    let ClusterAccess {
        handle,
        store,
        source,
        relay,
    } = match &member {
        Some(member) => ClusterAccess {
            handle: member.handle.clone(),
            store: FollowedStore::Leader(member.store.clone()),
            source: Arc::new(MemberStateSource {
                own: Arc::new(LocalStateSource::new(member.feed.clone(), &identity.node)),
                stream: Arc::new(remote),
                stream_next: AtomicBool::new(false),
            }),
            relay: None,
        },
        None => {
            let is_read = Arc::clone(&stream_is_read);
            worker_access(
                loops,
                machine,
                credentials,
                workloads,
                told,
                remote,
                is_read,
            )
            .await?
        }
    };
    let followed = follow_source_from(source, known_state, cancel.clone());
    let position = position.follow(
        followed.confirmed,
        Arc::clone(&epochs),
        workloads.writes.clone(),
        loops.pulses.clone(),
        cancel,
    );
    loops.add("position in the state", position);
    Ok(Cluster {
        member,
        handle,
        store,
        state: followed.mirror,
        epochs,
        stream_is_read,
        relay,
    })
}

async fn start_member(
    loops: &mut AgentLoops,
    Machine {
        identity,
        config,
        managers,
        clock,
    }: &Machine,
    Credentials { keys, known }: &Credentials,
    workloads: &Workloads,
) -> anyhow::Result<RunningMember> {
    loops.status.say("starting etcd");
    let parts = MemberParts {
        identity,
        config,
        keys,
        known,
        system: managers.system(),
        renderer: Arc::clone(&workloads.tools.renderer),
        disks: workloads.tools.volumes.disks().clone(),
        clock: Arc::clone(clock),
    };
    RunningMember::start(parts, loops).await
}

/// Where a machine reads the cluster's state, and whom it asks.
struct ClusterAccess {
    handle: LeaderHandle,
    store: FollowedStore,
    source: Arc<dyn StateSource>,
    relay: Option<Arc<dyn OverviewRelay>>,
}

/// The access of a machine without the store, which reads `stream`, and sets `is_read` while it does.
async fn worker_access(
    loops: &mut AgentLoops,
    Machine {
        identity, clock, ..
    }: &Machine,
    Credentials { keys, known }: &Credentials,
    workloads: &Workloads,
    told: &Told,
    stream: RemoteStateSource,
    is_read: Arc<AtomicBool>,
) -> anyhow::Result<ClusterAccess> {
    let now = known.borrow().clone();
    let store = match keys.is_etcd_client() {
        true => FollowedStore::Node(stores::node(identity, keys, &now).await?),
        false => FollowedStore::Absent,
    };
    let etcd = match &store {
        FollowedStore::Node(store) => {
            let store = Arc::new(store.clone());
            Some(PrefixStateSource::new(store, &identity.node))
        }
        _ => None,
    };
    let (handle, shown) = local::start(
        Arc::new(AbsentStore),
        Arc::clone(identity),
        workloads.lists.subscribe(),
        told.report.subscribe(),
        loops.cancel.clone(),
    );
    let members = StoreMembers {
        identity: Arc::clone(identity),
        keys: keys.clone(),
        known: known.clone(),
    };
    let reader = OverviewReader::new(
        &identity.node,
        Arc::new(members),
        Arc::clone(clock),
        told.silence.subscribe(),
        shown,
    );
    let overview = Arc::clone(&reader).run(loops.cancel.clone());
    loops.add("overview", overview);
    Ok(ClusterAccess {
        handle,
        store,
        source: Arc::new(WorkerStateSource {
            stream,
            etcd,
            was_etcd: AtomicBool::new(false),
            is_read,
        }),
        relay: Some(reader),
    })
}

/// Serves the API, and what other machines ask of this one.
fn servers(
    loops: &mut AgentLoops,
    machine: &Machine,
    Credentials { keys, known }: &Credentials,
    (workloads, cluster, certificates, told): (&Workloads, &Cluster, &ServerCertificates, &Told),
) -> anyhow::Result<()> {
    let Machine {
        identity, managers, ..
    } = machine;
    let (pulses, cancel) = (loops.pulses.clone(), loops.cancel.clone());
    let (tools, lists) = (&workloads.tools, &workloads.lists);
    let members = state_members(identity, known);
    let handle = &cluster.handle;
    let listeners = listeners(identity, keys, known, certificates, handle, members)?;
    let here: Arc<dyn InstanceLogs> = Arc::new(JournalLogs {
        journal: Arc::clone(&tools.logs),
        managers: Arc::clone(managers),
        node: identity.node.clone(),
        history: workloads.history.clone(),
    });
    let measurer = MachineMeasurer {
        instances: all_own_instances(identity, &lists.subscribe()),
        statuses: workloads.statuses.clone(),
        disks: Arc::clone(&workloads.disks),
        system: managers.system(),
        report: told.report.subscribe(),
        reached: workloads.reached.subscribe(),
        data_path_silent: told.data_path_silent.subscribe(),
        boot_clock: boot_clock(),
        last: LastMeasurement::default(),
    };
    let sessions_here = LocalSessions::new(Arc::clone(managers), tools.root.path().to_owned());
    let sessions_here: Arc<dyn InstanceSessions> = Arc::new(sessions_here.measured_by(measurer));
    let agents = PeerAgents::new(identity, keys, known);
    let port = AgentPort {
        listener: agent_listener(identity)?,
        config: agent_tls(certificates)?,
        knows: known_peers(known),
        find: own_instances(identity, &lists.subscribe()),
        all: all_own_instances(identity, &lists.subscribe()),
        logs: Arc::clone(&here),
        sessions: Arc::clone(&sessions_here),
        copies: Arc::new(OwnVolumes {
            node: identity.node.clone(),
            lists: lists.subscribe(),
            volumes: Arc::clone(&tools.volumes),
        }),
        limits: ApiLimits::default(),
        pulses: pulses.clone(),
    };
    let moves = VolumeMoves {
        node: identity.node.clone(),
        lists: lists.subscribe(),
        volumes: Arc::clone(&tools.volumes),
        statuses: workloads.statuses.clone(),
        source: Arc::new(OtherMachines(agents.clone())),
        pulses: pulses.clone(),
    };
    loops.add("moves of volumes", moves.run(cancel.clone()));
    loops.add("agent's port", api::serve_agent(port, cancel.clone()));
    let member = cluster.member.as_ref();
    let config = ApiConfig {
        handle: cluster.handle.clone(),
        logs: Arc::new(ClusterLogs {
            node: identity.node.clone(),
            here,
            agents: agents.clone(),
        }),
        sessions: Arc::new(ClusterSessions {
            node: identity.node.clone(),
            here: sessions_here,
            agents,
        }),
        clock: Arc::clone(&machine.clock),
        new_uid: Arc::new(api::random_uid),
        node_name: identity.node.clone(),
        limits: ApiLimits::default(),
        pulses,
        joining: member.map(|member| member.joining.clone()),
        images: Some(Arc::new(Registries::new()?)),
        relay: cluster.relay.clone(),
    };
    loops.add("API", api::serve(config, listeners, cancel));
    Ok(())
}

/// Writes what the cluster's state says of this machine, its network and the other machines to files
/// and to those who follow it.
fn follow_state(
    loops: &mut AgentLoops,
    Machine {
        identity,
        config,
        managers,
        ..
    }: &Machine,
    credentials: &Credentials,
    (workloads, cluster): (&Workloads, &Cluster),
    known_now: watch::Sender<Arc<ClusterCache>>,
) {
    let (pulses, cancel) = (loops.pulses.clone(), loops.cancel.clone());
    let desired = follow_desired(
        identity.node.clone(),
        cluster.state.clone(),
        paths::DESIRED.into(),
        workloads.lists.clone(),
        workloads.writes.clone(),
        pulses.clone(),
        cancel.clone(),
    );
    loops.add_blocking("desired list", desired);
    let settings = SettingsFollower {
        identity: Arc::clone(identity),
        file: paths::IDENTITY.into(),
        state: cluster.state.clone(),
        settings: workloads.settings.clone(),
        network: workloads.network.clone(),
        node: setup::node_network(identity, config),
        writes: workloads.writes.clone(),
        boot_clock: boot_clock(),
        pulses: pulses.clone(),
    };
    loops.add_blocking("cluster's settings", settings.run(cancel.clone()));
    let network = follow_network(
        Arc::clone(identity),
        cluster.state.clone(),
        workloads.network.clone(),
        workloads.writes.clone(),
        (Arc::clone(&workloads.tools), workloads.statuses.clone()),
        pulses.clone(),
        cancel.clone(),
    );
    loops.add_blocking("network's files", network);
    let deadlines = ReleaseDeadlines {
        path: RELEASE_FILE.into(),
        reached: workloads.reached.subscribe(),
        settings: workloads.settings.clone(),
        pulses: pulses.clone(),
    };
    loops.add_blocking(
        "deadline of virtual addresses",
        deadlines.run(cancel.clone()),
    );
    let routes = IngressFollower {
        identity: Arc::clone(identity),
        state: cluster.state.clone(),
        system: managers.system(),
        listeners: Arc::clone(&workloads.tools.listeners),
        statuses: workloads.statuses.clone(),
        pulses: pulses.clone(),
        port_was_taken: false,
        challenges: Default::default(),
    };
    loops.add_blocking("routes", routes.run(cancel.clone()));
    let known = follow_known(
        Arc::clone(identity),
        cluster.state.clone(),
        cluster.store.clone(),
        credentials.keys.clone(),
        known_now,
        workloads.writes.clone(),
        pulses,
        cancel,
    );
    loops.add_blocking("known machines", known);
}

/// Reports to the leader, and answers on the bus with the last report.
async fn reports(
    loops: &mut AgentLoops,
    machine: &Machine,
    Credentials { keys, known }: &Credentials,
    (workloads, cluster, told): (&Workloads, &Cluster, &Told),
    uses: AuthorityUses,
) -> anyhow::Result<()> {
    let Machine {
        identity,
        config,
        managers,
        clock,
    } = machine;
    let cancel = loops.cancel.clone();
    let facts = ThisMachine::new(
        identity,
        config,
        Arc::clone(managers),
        known.clone(),
        Arc::clone(&workloads.tools.volumes),
        Arc::clone(&workloads.disks),
    );
    let facts = facts
        .await?
        // A machine that does not hold the store reports them too: the others then know its
        // certificates when it becomes a member.
        .with_member_keys(keys.member_keys()?)
        .with_authorities(uses)
        .with_state_stream(Arc::clone(&cluster.stream_is_read))
        .with_refused_epoch(cluster.epochs.refused())
        .with_data_path_silent(told.data_path_silent.subscribe());
    let probe = KatNetProbe::new(
        Path::new(network::HOOK_SOCKET),
        managers.system(),
        Arc::clone(clock),
        told.data_path_silent.clone(),
    );
    loops.add("questions to kat-net", probe.run(cancel.clone()));
    let reporter = Reporter {
        identity: Arc::clone(identity),
        statuses: workloads.statuses.clone(),
        lists: workloads.lists.subscribe(),
        sink: Arc::new(OwnLeaderFirst {
            handle: cluster.handle.clone(),
            others: Arc::new(LeaderApi::new(
                identity,
                keys,
                known.clone(),
                workloads.settings.clone(),
            )),
        }),
        facts: Arc::new(facts),
        published: told.report.clone(),
        reached: workloads.reached.clone(),
        silence: told.silence.clone(),
        outside: told.outside.clone(),
        clock: Arc::clone(clock),
        boot_clock: boot_clock(),
        boot_id: boot_id(),
        settings: workloads.settings.clone(),
        pulses: loops.pulses.clone(),
    };
    loops.add_blocking("reports", reporter.run(cancel.clone()));
    let bus = super::bus::serve(
        Arc::clone(identity),
        workloads.lists.subscribe(),
        cluster.handle.clone(),
        told.report.subscribe(),
        cancel,
    );
    loops.add("bus", bus);
    Ok(())
}

/// Replaces certificates in time, and authorities and keys when the cluster does.
fn certificate_loops(
    loops: &mut AgentLoops,
    Machine {
        identity, managers, ..
    }: &Machine,
    Credentials { keys, known }: &Credentials,
    cluster: &Cluster,
    (certificates, uses): (ServerCertificates, AuthorityUses),
) {
    let cancel = loops.cancel.clone();
    let changed = Arc::new(Notify::new());
    if let Some(member) = &cluster.member {
        let keeper = AuthorityKeeper {
            identity: Arc::clone(identity),
            keys: keys.clone(),
            known: known.clone(),
            snapshot: cluster.handle.snapshot.clone(),
            etcd: Arc::new(SystemdEtcd(managers.system())),
            signing: Arc::clone(&member.signing),
            uses: uses.clone(),
            trust: Arc::clone(&certificates.trust),
            restarted: Default::default(),
            tried: Default::default(),
            signed: Default::default(),
            changed: Arc::clone(&changed),
            pulses: loops.pulses.clone(),
        };
        loops.add_blocking("authorities", keeper.run(cancel.clone()));
    }
    let succession = SuccessionWatch {
        identity: Arc::clone(identity),
        keys: keys.clone(),
        known: known.clone(),
        state: cluster.state.clone(),
        changed: Arc::clone(&changed),
    };
    loops.add_blocking("succession of authorities", succession.run(cancel.clone()));
    let renewal = CertificateRenewal {
        identity: Arc::clone(identity),
        keys: keys.clone(),
        certificates,
        store: cluster.store.clone(),
        known: known.clone(),
        changed,
        uses,
        admin_connection: paths::ADMIN_CONNECTION.into(),
    };
    loops.add_blocking("renewal of certificates", renewal.run(cancel));
}

/// Follows whether this machine is to hold the store. The receiver learns it when that changes: the
/// agent then ends, and starts in its other role.
fn role_loop(
    loops: &mut AgentLoops,
    Machine {
        identity, managers, ..
    }: &Machine,
    Credentials { keys, known }: &Credentials,
    replaced: watch::Receiver<bool>,
) -> oneshot::Receiver<()> {
    let (turned, turn) = oneshot::channel();
    let cancel = loops.cancel.clone();
    let follow = membership::follow(
        Arc::clone(identity),
        keys.clone(),
        Arc::clone(managers),
        known.clone(),
        replaced,
        loops.pulses.clone(),
        cancel.clone(),
    );
    loops.add_blocking("part in the store", async move {
        follow.await;
        let _ = turned.send(());
        // This loop only ends with the agent, so it is never the reason of an early end.
        cancel.cancelled().await;
    });
    turn
}

pub(super) async fn wait_for_end() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

pub(super) async fn tools(
    identity: &MachineIdentity,
    config: &AgentConfig,
    managers: &Arc<dyn ManagerSource>,
    settings: &FollowedSettings,
) -> anyhow::Result<WorkerTools> {
    let base = &identity.cluster.spec.volume_base_path;
    let root = Root::new("/");
    Ok(WorkerTools {
        managers: Arc::clone(managers),
        sessions: Arc::new(Logind::new(managers.system())),
        accounts: Arc::new(Users::new()),
        renderer: Arc::new(Renderer::installed()?),
        generator: Arc::new(PodmanGenerator),
        logs: Arc::new(Journal::new()),
        settings: render_settings(identity),
        domain: identity.cluster.spec.cluster_domain.clone(),
        cluster_settings: settings.clone(),
        overlay_address: identity.overlay_address(),
        root: root.clone(),
        monotonic: Arc::new(crate::cluster::machine::monotonic_microseconds),
        clock: Arc::new(Timestamp::now),
        limits_enforced: crate::cluster::machine::limits_enforced(),
        network: Arc::new(crate::health::probe::OverlayProbeNetwork),
        volumes: Arc::new(Volumes::new(&root, base, config)),
        secrets: Secrets::new(&root, &identity.node, &render_settings(identity)),
        listeners: Arc::new(SystemListeners {
            overlay: identity.cluster.spec.cluster_cidr,
        }),
        options: MachineOptions::new(&root, config),
        images: ImageCare::new(&root, config),
        job_starts: JobStarts::default(),
    })
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use kat_leader::{AgentReports, PlanningHealth, StoreHealth};
    use kat_testing::MemoryStore;

    /// The status line runs beside the leader's loops and ends with them.
    #[tokio::test]
    async fn the_agent_ends_with_the_leaders_loop() {
        let (snapshots, snapshot) = watch::channel(None);
        let (leaderships, leadership) = watch::channel(None);
        let handle = LeaderHandle {
            store: Arc::new(MemoryStore::default()),
            snapshot,
            shown: None,
            leadership,
            reports: AgentReports::default(),
            store_health: StoreHealth::default(),
            planning: PlanningHealth::default(),
            feed: None,
        };
        let mut loops = AgentLoops::start();
        let (_refused_now, refused_epoch) = watch::channel(None);
        let (_silence_now, silence) = watch::channel(None);
        let (_outside_now, outside) = watch::channel(false);
        let (_silent_now, data_path_silent) = watch::channel(None);
        let (_refused_settings_now, refused_settings) = watch::channel(None);
        let sources = StatusSources {
            handle,
            silence,
            refused_epoch,
            outside,
            data_path_silent,
            refused_settings,
            member: true,
        };
        let told = tell_status(loops.status.clone(), sources, loops.cancel.clone());
        loops.add("status line", told);
        drop(leaderships);
        let early = loops.supervise(pending()).await.unwrap_err();
        assert!(
            early.to_string().contains("`status line` ended early"),
            "{early}"
        );
        drop(snapshots);
    }

    #[test]
    fn systemd_starts_an_agent_again_that_ended() {
        let unit = include_str!("../../../packaging/systemd/kat-agent.service");
        assert!(unit.lines().any(|line| line == "Restart=always"));
        assert!(unit.lines().any(|line| line == "StartLimitIntervalSec=0"));
    }
}
