//! `kat-agent run`: the service that decides and converges.

use std::{os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use tokio::{net::UnixListener, sync::watch, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    NetworkFiles, Reporter, Statuses,
    desired::{self, Desired},
    host_files,
    identity::Identity,
    init::{read_agent_config, read_identity, render_settings},
    keys::Keys,
    logs::JournalLogs,
    machine::{LeaderApi, ThisMachine},
    network_files, paths,
    service_status::{ServiceStatus, tell_status},
    stores,
    supervisor::{Listed, Supervisor},
    worker::Tools,
};
use crate::{
    api::{self, ApiConfig, Limits, Listeners, SocketAccess, SocketListener, TlsListener},
    host::{
        files::{self, Access},
        users::{Users, accounts::Accounts},
    },
    leader::{self, LeaderConfig},
    network::state,
    pki,
    pulse::Pulses,
    render::Renderer,
    store::{EtcdStore, Mirror, StateStore, keys},
    systemd::{Journal, Logind, ManagerSource, Managers},
};

/// Time to live of a leadership without a renewal.
const LEASE: Duration = Duration::from_secs(5);
/// Longest start of etcd.
const ETCD_LIMIT: Duration = Duration::from_secs(90);
/// Between two looks at the certificates.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);
/// Largest stored desired list.
const DESIRED_LIMIT: u64 = 64 << 20;

/// Runs until SIGTERM, which leaves every workload as it is.
pub async fn run() -> anyhow::Result<()> {
    let identity = read_identity()?;
    let config = read_agent_config()?;
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let managers: Arc<dyn ManagerSource> = Arc::new(Managers::new());
    let pulses = Pulses::default();
    let status = ServiceStatus::start(&mut tasks, &pulses, &cancel);

    let (lists, listed) = watch::channel(read_stored_desired());
    let statuses = Statuses::default();
    let network = NetworkFiles::new(state::FOLDER.into());
    network.write_node(&super::init::node_network(&identity, &config))?;
    let tools = Arc::new(tools(&identity, &managers).await?);
    let host_files = host_files::wanted(&tools.renderer, &tools.settings, &identity)?;
    host_files::renew(&host_files, managers.system().as_ref()).await?;
    let mut supervisor = Supervisor::new(Arc::clone(&tools), statuses.clone(), network.clone());
    supervisor.pulses = pulses.clone();
    tasks.spawn(supervisor.run(listed.clone(), cancel.clone()));

    let keys = Keys::new(
        Users::new()
            .accounts()?
            .group(crate::render::ETCD_USER)
            .map(|group| group.gid),
    );
    let renewed = keys.renew(&identity, Timestamp::now())?;
    if !renewed.is_empty() {
        tracing::info!(?renewed, "certificates were renewed");
    }
    status.say("starting etcd");
    let started = managers.system().start(host_files::ETCD, ETCD_LIMIT).await;
    if !matches!(started, Ok(crate::systemd::JobResult::Done)) {
        tracing::error!(
            ?started,
            "etcd did not start; workloads run on, nothing can be changed"
        );
    }
    let leader_store = stores::leader(&identity, &keys).await?;
    let node_store = stores::node(&identity, &keys).await?;

    let clock: Arc<dyn Fn() -> Timestamp + Send + Sync> = Arc::new(Timestamp::now);
    let endpoint = identity
        .advertise
        .first()
        .context("the machine has no address")?;
    let handle = leader::start(
        Arc::new(leader_store.clone()),
        LeaderConfig {
            candidate: identity.node.clone(),
            lease: LEASE,
            endpoint: std::net::SocketAddr::new(*endpoint, identity.cluster.spec.api_port)
                .to_string(),
            clock: Arc::clone(&clock),
            pulses: pulses.clone(),
        },
        cancel.clone(),
    );

    let certificate =
        pki::tls::CurrentIdentity::new(&keys.leaf("node")?, &keys.cluster_authority()?)?;
    let listeners = listeners(&identity, &keys, &certificate)?;
    let api_config = ApiConfig {
        handle: handle.clone(),
        logs: Arc::new(JournalLogs {
            journal: Arc::clone(&tools.logs),
            node: identity.node.clone(),
        }),
        clock: Arc::clone(&clock),
        node_name: identity.node.clone(),
        limits: Limits::default(),
        pulses,
    };
    tasks.spawn(api::serve(api_config, listeners, cancel.clone()));

    tasks.spawn(follow_desired(
        identity.clone(),
        node_store.clone(),
        lists,
        cancel.clone(),
    ));
    tasks.spawn(follow_network(
        identity.clone(),
        node_store.clone(),
        network,
        cancel.clone(),
    ));
    let (published, reports) = watch::channel(Arc::default());
    let tick = Duration::from_secs(u64::from(identity.cluster.spec.agent_tick_seconds));
    let lists_for_bus = listed.clone();
    let reporter = Reporter {
        identity: Arc::clone(&identity),
        statuses,
        lists: listed,
        sink: Arc::new(LeaderApi::new(&identity, &keys)),
        facts: Arc::new(ThisMachine::new(&config, Arc::clone(&managers)).await?),
        published,
        clock,
    };
    tasks.spawn(reporter.run(tick, cancel.clone()));
    tasks.spawn(super::bus::serve(
        Arc::clone(&identity),
        lists_for_bus,
        handle.clone(),
        reports,
        cancel.clone(),
    ));
    tasks.spawn(renew(
        Arc::clone(&identity),
        keys,
        certificate,
        leader_store,
        node_store,
        cancel.clone(),
    ));
    tasks.spawn(tell_status(status, handle, cancel.clone()));

    whole_until(wait_for_end(), &mut tasks).await?;
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
    Ok(())
}

/// Waits for `end` while every task runs. A half agent must not look like a whole one: when a task
/// ends before, the agent does too, and systemd starts it again.
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

/// The list of before the last stop. It is acted on at once, but nothing is removed against it.
fn read_stored_desired() -> Listed {
    match files::read_bounded(Path::new(paths::DESIRED), DESIRED_LIMIT) {
        Ok(content) => match serde_json::from_slice::<Desired>(&content) {
            Ok(desired) => Listed {
                known: true,
                confirmed: false,
                desired: Arc::new(desired),
            },
            Err(error) => {
                tracing::error!(path = paths::DESIRED, %error, "the stored list can't be read; waiting for etcd");
                Listed::default()
            }
        },
        Err(error) if error.is_not_found() => Listed::default(),
        Err(error) => {
            tracing::error!(%error, "the stored list can't be read; waiting for etcd");
            Listed::default()
        }
    }
}

async fn tools(identity: &Identity, managers: &Arc<dyn ManagerSource>) -> anyhow::Result<Tools> {
    Ok(Tools {
        managers: Arc::clone(managers),
        sessions: Arc::new(Logind::new(managers.system())),
        accounts: Arc::new(Users::new()),
        renderer: Arc::new(Renderer::installed()?),
        logs: Arc::new(Journal::new()),
        settings: render_settings(identity),
        domain: identity.cluster.spec.cluster_domain.clone(),
        overlay_address: identity.overlay_address(),
        root: "/".into(),
        monotonic: Arc::new(super::machine::monotonic_microseconds),
        limits_enforced: super::machine::limits_enforced(),
    })
}

/// Follows this machine's list, keeps it on the disk, and hands it on.
async fn follow_desired(
    identity: Arc<Identity>,
    store: EtcdStore,
    lists: watch::Sender<Listed>,
    cancel: CancellationToken,
) {
    let prefix = keys::node_desired(&identity.node);
    let store: Arc<dyn StateStore> = Arc::new(store);
    let mut mirror = Mirror::start(store, &prefix, cancel.clone());
    while let Some(Ok(state)) = cancel.run_until_cancelled(mirror.changed()).await {
        if !state.confirmed {
            continue;
        }
        let desired = match desired::read(&state.entries, &identity.node) {
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
        if let Err(error) = store_desired(&desired) {
            tracing::error!(%error, "the desired list can't be kept on the disk");
        }
        lists.send_replace(Listed {
            known: true,
            confirmed: true,
            desired,
        });
    }
}

fn store_desired(desired: &Desired) -> anyhow::Result<()> {
    let content = serde_json::to_vec(desired)?;
    files::write_if_changed(Path::new(paths::DESIRED), &content, Access::mode(0o600))?;
    Ok(())
}

/// Keeps `kat-net`'s files of names and peers.
async fn follow_network(
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

fn listeners(
    identity: &Identity,
    keys: &Keys,
    certificate: &Arc<pki::tls::CurrentIdentity>,
) -> anyhow::Result<Listeners> {
    let config = pki::tls::server_config(Arc::clone(certificate), &keys.cluster_authority()?)?;
    let port = identity.cluster.spec.api_port;
    let tls = TlsListener {
        listener: api::bind(port).with_context(|| format!("port {port} for the API"))?,
        config: Arc::new(move || Arc::clone(&config)),
    };
    let access = if identity.etcd {
        SocketAccess::Admin
    } else {
        SocketAccess::ThisMachine
    };
    Ok(Listeners {
        tls: vec![tls],
        sockets: vec![SocketListener {
            listener: api_socket()?,
            access,
        }],
    })
}

/// The socket for root and the group `kat`.
fn api_socket() -> anyhow::Result<UnixListener> {
    let path = Path::new(paths::API_SOCKET);
    files::ensure_folder(Path::new(paths::RUN), Access::mode(0o755))?;
    files::remove(path)?;
    let listener = UnixListener::bind(path).with_context(|| paths::API_SOCKET.to_owned())?;
    let group = Accounts::read(Path::new("/"))?
        .group("kat")
        .map(|group| group.gid);
    nix::unistd::chown(path, None, group.map(nix::unistd::Gid::from_raw))
        .context(paths::API_SOCKET)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
        .context(paths::API_SOCKET)?;
    Ok(listener)
}

/// Renews leaves before they run out and uses them at once.
async fn renew(
    identity: Arc<Identity>,
    keys: Keys,
    certificate: Arc<pki::tls::CurrentIdentity>,
    leader_store: EtcdStore,
    node_store: EtcdStore,
    cancel: CancellationToken,
) {
    let mut unused = false;
    while cancel
        .run_until_cancelled(sleep(RENEWAL_INTERVAL))
        .await
        .is_some()
    {
        let renewed = match keys.renew(&identity, Timestamp::now()) {
            Ok(renewed) if renewed.is_empty() && !unused => continue,
            Ok(renewed) => renewed,
            Err(error) => {
                tracing::error!(%error, "certificates can't be renewed");
                continue;
            }
        };
        tracing::info!(?renewed, "certificates were renewed");
        let used = async {
            certificate.replace(&keys.leaf("node")?)?;
            leader_store
                .reconnect(&stores::options(&identity, &keys, "leader-etcd")?)
                .await?;
            node_store
                .reconnect(&stores::options(&identity, &keys, "node-etcd")?)
                .await?;
            anyhow::Ok(())
        };
        let used = used.await;
        unused = used.is_err();
        if let Err(error) = used {
            tracing::error!(%error, "renewed certificates can't be used yet");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::{
        leader::{LeaderHandle, Reports},
        store::MemoryStore,
    };

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

    /// The leader's loops run beside the others: the status line ends with them.
    #[tokio::test]
    async fn the_agent_ends_with_the_leaders_loop() {
        let (snapshots, snapshot) = watch::channel(None);
        let (leaderships, leadership) = watch::channel(None);
        let handle = LeaderHandle {
            store: Arc::new(MemoryStore::default()),
            snapshot,
            leadership,
            reports: Reports::default(),
        };
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let status = ServiceStatus::start(&mut tasks, &Pulses::default(), &cancel);
        tasks.spawn(tell_status(status, handle, cancel));
        drop(leaderships);
        let early = whole_until(pending(), &mut tasks).await.unwrap_err();
        assert!(early.to_string().contains("ended early"), "{early}");
        drop(snapshots);
    }

    #[test]
    fn systemd_starts_an_agent_again_that_ended() {
        let unit = include_str!("../../packaging/systemd/kat-agent.service");
        assert!(unit.lines().any(|line| line == "Restart=always"));
        assert!(unit.lines().any(|line| line == "StartLimitIntervalSec=0"));
    }
}
