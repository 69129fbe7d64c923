//! `kat-agent run`: the service with the leader, the workers and the reporter.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::{Notify, oneshot, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    blocking::may_block,
    paths,
    supervisor::{DesiredList, Supervisor},
};
use crate::{
    NetworkFiles, Reporter, Statuses,
    cluster::{
        cluster_cache::ClusterCache,
        identity::MachineIdentity,
        keys::MachineKeys,
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
        kept_position::PositionFile,
        store_watch::{FollowedStore, follow_desired, follow_known, follow_network},
    },
    disk::{ballast::Ballast, eviction::Evictor, pressure as disks, pressure::DiskWatch},
    etcd::{
        authorities::{AuthorityKeeper, AuthorityUses, SystemdEtcd},
        member::{MemberParts, RunningMember, etcd_group},
        membership, stores,
    },
    exec::{LocalSessions, sessions::ClusterSessions},
    images::{collector::Collector, unused::ImageCare},
    local_api::{
        listeners::{
            agent_listener, agent_tls, all_own_instances, known_peers, leader_source, listeners,
            own_instances, state_members,
        },
        logs::{ClusterLogs, JournalLogs},
        standalone as local,
    },
    network::host_ports::SystemListeners,
    reporter::OwnLeaderFirst,
    secrets::Secrets,
    service::status_line::{ServiceStatus, StatusSources, tell_status},
    volumes::{
        Volumes, earlier_grants,
        moves::{OtherMachines, OwnVolumes, VolumeMoves},
        removals::VolumeRemovals,
    },
    worker::{WorkerTools, users::machine_options::MachineOptions},
};
use kat_api as api;
use kat_api::{AgentPort, ApiConfig, ApiLimits, InstanceLogs, InstanceSessions, OverviewRelay};
use kat_daemon::watchdog::LoopPulses;
use kat_host::users::Users;
use kat_registry::Registries;
use kat_render::Renderer;
use kat_store::{
    AbsentStore, LocalStateSource, PrefixStateSource, StateSource, follow_source_from,
};
use kat_systemd::{Journal, Logind, ManagerSource, Managers};
use kat_types::{
    machine::{network, root::Root},
    resource::AgentConfig,
};

/// Runs until SIGTERM, which leaves every workload running.
pub(crate) async fn run() -> anyhow::Result<()> {
    let identity = read_identity()?;
    recovery::refuse_unfinished()?;
    if let Err(error) = recovery::forget_unpacked(Path::new(paths::STATE)) {
        tracing::error!("what an earlier restore unpacked is left: {error:#}");
    }
    let config = read_agent_config()?;
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let managers: Arc<dyn ManagerSource> = Arc::new(Managers::new());
    let pulses = LoopPulses::default();
    let status = ServiceStatus::start(&mut tasks, &pulses, &cancel);

    let root = Root::new("/");
    let stored = DesiredList::stored(Path::new(paths::DESIRED));
    earlier_grants::record(&root, &config, &stored.desired)?;
    let (lists, listed) = watch::channel(stored);
    let statuses = Statuses::default();
    let network = NetworkFiles::new(network::FOLDER.into());
    network.write_node(&setup::node_network(&identity, &config))?;
    let tools = Arc::new(tools(&identity, &config, &managers).await?);
    let stored = ClusterCache::stored();
    let host_files =
        host_files::needed_files(&tools.renderer, &tools.settings, &identity, &stored)?;
    host_files::renew(&host_files, managers.system().as_ref()).await?;
    let mut supervisor = Supervisor::new(Arc::clone(&tools), statuses.clone(), network.clone());
    supervisor.pulses = pulses.clone();
    let writes = supervisor.writes.clone();
    tasks.spawn(writes.clone().run(pulses.clone(), cancel.clone()));
    let memory = fence::FenceMemory {
        path: paths::REACHED.into(),
        monotonic: Arc::clone(&tools.monotonic),
    };
    let (reached_now, reached) = watch::channel(memory.recall());
    let (silence_now, silence) = watch::channel(None);
    let (outside_now, outside) = watch::channel(false);
    let (fenced_now, fenced) = watch::channel(DesiredList::default());
    let fence = fence::PartitionFence {
        timeout: Duration::from_secs(identity.cluster.spec.node_loss_timeout_seconds.into()),
        list_age: fence::LIST_AGE,
        lists: listed.clone(),
        reached,
        fenced: fenced_now,
        memory: Some(memory),
    };
    tasks.spawn(fence.run(cancel.clone()));
    let removals = VolumeRemovals {
        lists: listed.clone(),
        volumes: Arc::clone(&tools.volumes),
        statuses: statuses.clone(),
        pulses: pulses.clone(),
    };
    tasks.spawn(removals.run(cancel.clone()));
    if identity.etcd {
        let ballast = Ballast::new(&root, Arc::new(disks::measure_free_space));
        tasks.spawn(ballast.run(pulses.clone(), cancel.clone()));
    }
    let base = &identity.cluster.spec.volume_base_path;
    let disks = DiskWatch::new(&root, base, &config, Arc::new(disks::measure_free_space));
    let disks = Arc::new(disks);
    let look = Arc::clone(&disks).run(
        tools.volumes.disks().clone(),
        statuses.clone(),
        pulses.clone(),
        cancel.clone(),
    );
    tasks.spawn(look);
    let collector = Collector {
        lists: listed.clone(),
        tools: Arc::clone(&tools),
        disks: Arc::clone(&disks),
        statuses: statuses.clone(),
        pulses: pulses.clone(),
    };
    tasks.spawn(may_block(collector.run(cancel.clone())));
    let parts = (statuses.clone(), Arc::clone(&tools.monotonic));
    let evictor = Evictor::new(
        &root,
        base,
        &config,
        Arc::new(disks::measure_free_space),
        parts,
    );
    // This process does not start instances that an earlier one evicted.
    let (evicted_now, evicted) = watch::channel(evictor.evicted());
    supervisor.evicted = evicted;
    tasks.spawn(evictor.run(listed.clone(), evicted_now, pulses.clone(), cancel.clone()));
    tasks.spawn(may_block(supervisor.run(fenced, cancel.clone())));

    let (known_now, known) = watch::channel(Arc::new(stored));
    let clock: Arc<dyn Fn() -> Timestamp + Send + Sync> = Arc::new(Timestamp::now);
    let (published, reports) = watch::channel(Arc::default());
    let keys = MachineKeys::new(etcd_group(&identity)?);
    let system = managers.system();
    let now = known.borrow().clone();
    if membership::give_up_outdated(&identity, &keys, &now, system.as_ref()).await? {
        tracing::info!("systemd starts kat-agent anew");
        end_in_order(&cancel, &mut tasks).await;
        return Ok(());
    }
    let member = if identity.etcd {
        status.say("starting etcd");
        let parts = MemberParts {
            identity: &identity,
            config: &config,
            keys: &keys,
            known: &known,
            system: managers.system(),
            renderer: Arc::clone(&tools.renderer),
            clock: Arc::clone(&clock),
            pulses: &pulses,
        };
        Some(RunningMember::start(parts, &mut tasks, &cancel).await?)
    } else {
        None
    };
    let now = known.borrow().clone();
    let stream_is_read = Arc::new(AtomicBool::new(false));
    let position = PositionFile {
        path: paths::POSITION.into(),
        cluster_uid: identity.cluster_uid.clone(),
    };
    let (known_state, epochs) = position.known();
    let (handle, store, source, relay) = match &member {
        Some(member) => {
            let handle = member.handle.clone();
            let source: Arc<dyn StateSource> = Arc::new(MemberStateSource {
                own: Arc::new(LocalStateSource::new(member.feed.clone(), &identity.node)),
                stream: Arc::new(RemoteStateSource::new(&identity, &keys, &known, &epochs)),
                stream_next: AtomicBool::new(false),
            });
            let store = FollowedStore::Leader(member.store.clone());
            (handle, store, source, None)
        }
        None => {
            let store = match keys.is_etcd_client() {
                true => FollowedStore::Node(stores::node(&identity, &keys, &now).await?),
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
                Arc::clone(&identity),
                listed.clone(),
                reports.clone(),
                cancel.clone(),
            );
            let source: Arc<dyn StateSource> = Arc::new(WorkerStateSource {
                stream: RemoteStateSource::new(&identity, &keys, &known, &epochs),
                etcd,
                was_etcd: AtomicBool::new(false),
                is_read: Arc::clone(&stream_is_read),
            });
            let members = StoreMembers {
                identity: Arc::clone(&identity),
                keys: keys.clone(),
                known: known.clone(),
            };
            let reader = OverviewReader::new(
                &identity.node,
                Arc::new(members),
                Arc::clone(&clock),
                silence.clone(),
                shown,
            );
            tasks.spawn(Arc::clone(&reader).run(cancel.clone()));
            let relay: Arc<dyn OverviewRelay> = reader;
            (handle, store, source, Some(relay))
        }
    };
    let followed = follow_source_from(source, known_state, cancel.clone());
    let state = followed.mirror;
    let copy = state.clone();
    tasks.spawn(position.follow(
        followed.confirmed,
        Arc::clone(&epochs),
        writes.clone(),
        pulses.clone(),
        cancel.clone(),
    ));

    let uses = AuthorityUses::default();
    let keeper_pulses = pulses.clone();
    // A machine that does not hold the store says them too: the others then know its certificates
    // when it becomes a member.
    let member_keys = keys.member_keys()?;
    let certificates = ServerCertificates::read(&identity, &keys)?;
    let leader = leader_source(&identity, &handle, &known);
    let members = state_members(&identity, &known);
    let listeners = listeners(&identity, &keys, &known, &certificates, leader, members)?;
    let here: Arc<dyn InstanceLogs> = Arc::new(JournalLogs {
        journal: Arc::clone(&tools.logs),
        managers: Arc::clone(&managers),
    });
    let sessions_here: Arc<dyn InstanceSessions> = Arc::new(LocalSessions::new(
        Arc::clone(&managers),
        tools.root.path().to_owned(),
    ));
    let agents = PeerAgents::new(&identity, &keys, &known);
    let port = AgentPort {
        listener: agent_listener(&identity)?,
        config: agent_tls(&certificates)?,
        knows: known_peers(&known),
        find: own_instances(&identity, &listed),
        all: all_own_instances(&identity, &listed),
        logs: Arc::clone(&here),
        sessions: Arc::clone(&sessions_here),
        copies: Arc::new(OwnVolumes {
            node: identity.node.clone(),
            lists: listed.clone(),
            volumes: Arc::clone(&tools.volumes),
        }),
        limits: ApiLimits::default(),
        pulses: pulses.clone(),
    };
    let moves = VolumeMoves {
        node: identity.node.clone(),
        lists: listed.clone(),
        volumes: Arc::clone(&tools.volumes),
        statuses: statuses.clone(),
        source: Arc::new(OtherMachines(agents.clone())),
        pulses: pulses.clone(),
    };
    tasks.spawn(moves.run(cancel.clone()));
    tasks.spawn(api::serve_agent(port, cancel.clone()));
    let api_config = ApiConfig {
        handle: handle.clone(),
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
        clock: Arc::clone(&clock),
        new_uid: Arc::new(api::random_uid),
        node_name: identity.node.clone(),
        limits: ApiLimits::default(),
        pulses: pulses.clone(),
        joining: member.as_ref().map(|member| member.joining.clone()),
        images: Some(Arc::new(Registries::new()?)),
        relay,
    };
    tasks.spawn(api::serve(api_config, listeners, cancel.clone()));

    tasks.spawn(may_block(follow_desired(
        identity.node.clone(),
        state.clone(),
        paths::DESIRED.into(),
        lists,
        writes.clone(),
        pulses.clone(),
        cancel.clone(),
    )));
    tasks.spawn(may_block(follow_network(
        identity.clone(),
        state.clone(),
        network,
        writes.clone(),
        pulses.clone(),
        cancel.clone(),
    )));
    tasks.spawn(may_block(follow_known(
        identity.clone(),
        state,
        store.clone(),
        keys.clone(),
        known_now,
        writes,
        pulses.clone(),
        cancel.clone(),
    )));
    let (turned, turn) = oneshot::channel();
    let follow_role = membership::follow(
        identity.clone(),
        keys.clone(),
        Arc::clone(&managers),
        known.clone(),
        pulses.clone(),
        cancel.clone(),
    );
    let until = cancel.clone();
    tasks.spawn(async move {
        follow_role.await;
        let _ = turned.send(());
        // This task only ends with the agent, so it is never the reason of an early end.
        until.cancelled().await;
    });
    let tick = Duration::from_secs(u64::from(identity.cluster.spec.agent_tick_seconds));
    let lists_for_bus = listed.clone();
    let reporter = Reporter {
        identity: Arc::clone(&identity),
        statuses,
        lists: listed,
        sink: Arc::new(OwnLeaderFirst {
            handle: handle.clone(),
            others: Arc::new(LeaderApi::new(&identity, &keys, known.clone())),
        }),
        facts: Arc::new(
            ThisMachine::new(
                &identity,
                &config,
                Arc::clone(&managers),
                known.clone(),
                Arc::clone(&tools.volumes),
                disks,
            )
            .await?
            .with_member_keys(member_keys)
            .with_authorities(uses.clone())
            .with_state_stream(stream_is_read)
            .with_refused_epoch(epochs.refused()),
        ),
        published,
        reached: reached_now,
        silence: silence_now,
        outside: outside_now,
        clock,
        pulses,
    };
    tasks.spawn(reporter.run(tick, cancel.clone()));
    tasks.spawn(super::bus::serve(
        Arc::clone(&identity),
        lists_for_bus,
        handle.clone(),
        reports,
        cancel.clone(),
    ));
    let changed = Arc::new(Notify::new());
    if let Some(member) = &member {
        let keeper = AuthorityKeeper {
            identity: Arc::clone(&identity),
            keys: keys.clone(),
            known: known.clone(),
            snapshot: handle.snapshot.clone(),
            etcd: Arc::new(SystemdEtcd(managers.system())),
            signing: Arc::clone(&member.signing),
            uses: uses.clone(),
            trust: Arc::clone(&certificates.trust),
            restarted: Default::default(),
            tried: Default::default(),
            signed: Default::default(),
            changed: Arc::clone(&changed),
            pulses: keeper_pulses,
        };
        tasks.spawn(keeper.run(cancel.clone()));
    }
    let succession = SuccessionWatch {
        identity: Arc::clone(&identity),
        keys: keys.clone(),
        known: known.clone(),
        state: copy,
        changed: Arc::clone(&changed),
    };
    tasks.spawn(succession.run(cancel.clone()));
    let renewal = CertificateRenewal {
        identity: Arc::clone(&identity),
        keys,
        certificates,
        store,
        known,
        changed,
        uses,
        admin_connection: paths::ADMIN_CONNECTION.into(),
    };
    tasks.spawn(renewal.run(cancel.clone()));
    tasks.spawn(tell_status(
        status,
        StatusSources {
            handle,
            silence,
            refused_epoch: epochs.refused(),
            outside,
            member: identity.etcd,
        },
        cancel.clone(),
    ));

    let end = async {
        tokio::select! {
            ended = wait_for_end() => ended,
            Ok(()) = turn => {
                tracing::info!("this machine's part in the cluster's store changes; systemd starts kat-agent anew");
                Ok(())
            }
        }
    };
    whole_until(end, &mut tasks).await?;
    end_in_order(&cancel, &mut tasks).await;
    Ok(())
}

async fn end_in_order(cancel: &CancellationToken, tasks: &mut JoinSet<()>) {
    tracing::info!("stopping; workloads run on");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    cancel.cancel();
    let all = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(Duration::from_secs(8), all)
        .await
        .is_err()
    {
        tracing::warn!("some tasks did not end in time");
    }
}

/// Waits for `end` while every task runs. When a task ends early the agent ends, too, and systemd
/// restarts it: an agent with missing tasks must not look healthy.
async fn whole_until(
    end: impl Future<Output = anyhow::Result<()>>,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    tokio::select! {
        ended = end => ended,
        ended = tasks.join_next() => anyhow::bail!("a task of the agent ended early: {ended:?}"),
    }
}

async fn wait_for_end() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

async fn tools(
    identity: &MachineIdentity,
    config: &AgentConfig,
    managers: &Arc<dyn ManagerSource>,
) -> anyhow::Result<WorkerTools> {
    let base = &identity.cluster.spec.volume_base_path;
    let root = Root::new("/");
    Ok(WorkerTools {
        managers: Arc::clone(managers),
        sessions: Arc::new(Logind::new(managers.system())),
        accounts: Arc::new(Users::new()),
        renderer: Arc::new(Renderer::installed()?),
        logs: Arc::new(Journal::new()),
        settings: render_settings(identity),
        domain: identity.cluster.spec.cluster_domain.clone(),
        overlay_address: identity.overlay_address(),
        root: root.clone(),
        monotonic: Arc::new(crate::cluster::machine::monotonic_microseconds),
        limits_enforced: crate::cluster::machine::limits_enforced(),
        network: Arc::new(crate::health::probe::OverlayProbeNetwork),
        volumes: Arc::new(Volumes::new(&root, base, config)),
        secrets: Secrets::new(&root, &identity.node, &render_settings(identity)),
        listeners: Arc::new(SystemListeners {
            overlay: identity.cluster.spec.cluster_cidr,
        }),
        options: MachineOptions::new(&root, config),
        images: ImageCare::new(&root, config),
    })
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use kat_leader::{AgentReports, LeaderHandle, PlanningHealth, StoreHealth};
    use kat_testing::MemoryStore;

    #[tokio::test]
    async fn the_agent_ends_with_any_of_its_tasks() {
        let mut tasks = JoinSet::new();
        tasks.spawn(pending());
        whole_until(ready(Ok(())), &mut tasks).await.unwrap();
        tasks.spawn(async {});
        let early = whole_until(pending(), &mut tasks).await.unwrap_err();
        assert!(early.to_string().contains("ended early"), "{early}");
        tasks.spawn(async { panic!("as a task may") });
        let panicked = whole_until(pending(), &mut tasks).await.unwrap_err();
        assert!(panicked.to_string().contains("ended early"), "{panicked}");
    }

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
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let status = ServiceStatus::start(&mut tasks, &LoopPulses::default(), &cancel);
        let (_refused_now, refused_epoch) = watch::channel(None);
        let (_silence_now, silence) = watch::channel(None);
        let (_outside_now, outside) = watch::channel(false);
        let sources = StatusSources {
            handle,
            silence,
            refused_epoch,
            outside,
            member: true,
        };
        tasks.spawn(tell_status(status, sources, cancel));
        drop(leaderships);
        let early = whole_until(pending(), &mut tasks).await.unwrap_err();
        assert!(early.to_string().contains("ended early"), "{early}");
        drop(snapshots);
    }

    #[test]
    fn systemd_starts_an_agent_again_that_ended() {
        let unit = include_str!("../../../packaging/systemd/kat-agent.service");
        assert!(unit.lines().any(|line| line == "Restart=always"));
        assert!(unit.lines().any(|line| line == "StartLimitIntervalSec=0"));
    }
}
