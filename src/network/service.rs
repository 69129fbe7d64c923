//! The main loop of `kat-net.service`.
//!
//! The service answers the hook as soon as it has started, and reconciles the machine's network
//! with the agent's files in rounds: at every change of the files, and every 30 s, or every 10 s if
//! there are peers. When the service ends, it leaves the network as it is (ARCHITECTURE.md,
//! invariant 5).

use std::{
    future::Future,
    io,
    net::Ipv4Addr,
    os::unix::{fs::PermissionsExt, net::UnixListener as StdListener},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    OVERLAY_LINK,
    links::{self, LinkError, Links},
    reconcile::Reconciler,
};
use crate::{
    containers::{
        attachments::Attachments,
        fence::{DeadlineFence, FenceSources},
        hook_server::HookServer,
        unit_links,
        unit_processes::{UnitProcesses, machine_processes},
        verify::{CgroupReader, proc_cgroups},
    },
    dns::{
        resolved,
        resolved::{SendAnnouncement, tell_resolved},
        source as names,
    },
    hook::JOURNAL_SOCKET,
    isolation::{
        enforcement::{self, EnforcedIsolation},
        refusals,
    },
    nftables::{firewall::Firewall, rule_changes, service_addresses::ServiceBalancer},
    overlay::{announce::sockets::Announcer, kat0::OverlayLink, peers::PeerKeeper},
    silent_peers::{
        exclusion::{self, Excluded},
        probes::RawProbes,
        watcher::{OwedAnswers, PeerWatcher},
    },
    state_files::{StateFiles, StateFilesSnapshot},
    virtual_addresses::keeper::{AddressKeeper, AddressKeeperConfig},
};
use kat_daemon::{
    clock, passed_sockets,
    watchdog::{LoopPulse, LoopPulses},
};
use kat_types::{
    machine::{
        fence::BootTime,
        isolation::ISOLATION_STATE_FILE,
        network::{DEADLINES_FILE, FOLDER, HOOK_SOCKET, OVERLAY_FILE},
    },
    virtual_addresses::{RELEASE_FILE, STATES_FILE},
};

/// Interval of the rounds.
const INTERVAL: Duration = Duration::from_secs(30);
/// Interval of the rounds if there are peers, so that a silent peer is noticed soon.
const PEERS_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of the rounds while something is not in place.
const SHORT_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum duration of a round. The round is aborted well before the watchdog considers it hanging.
const ROUND_LIMIT: Duration = Duration::from_secs(60);

/// Name of the file with the excluded peers, beside the report:
/// [`SILENT_PEERS_FILE`](kat_types::machine::network::SILENT_PEERS_FILE).
const SILENT_PEERS_NAME: &str = "silent-peers.json";

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("{path}: {source}")]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("can't receive signals: {0}")]
    Signal(#[source] io::Error),
}

/// A DNS server: serves the cluster's names, from the snapshots, at an address until cancelled.
pub(crate) type DnsServer = Arc<
    dyn Fn(
            Ipv4Addr,
            watch::Receiver<Arc<StateFilesSnapshot>>,
            CancellationToken,
        ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>>
        + Send
        + Sync,
>;

/// Parameters of the service; see [`NetworkServiceConfig::from_environment`] for the values on a real machine.
pub struct NetworkServiceConfig {
    /// Folder of the agent's files.
    pub folder: PathBuf,
    /// File with the deadlines of instances with `onPartition: stop`.
    pub deadlines: PathBuf,
    /// Root folder for the links of unit files; `None` leaves the links alone.
    pub root: Option<PathBuf>,
    /// The hook's socket; `None` binds [`HOOK_SOCKET`].
    pub listener: Option<StdListener>,
    /// Finds the control group of a process.
    pub cgroups: CgroupReader,
    /// Finds the containers of a unit.
    pub processes: UnitProcesses,
    /// Creates `kat0`; `None` for the default implementation.
    pub overlay: Option<OverlayLink>,
    /// The DNS server, started when `kat0` has an address; `None` for no DNS.
    pub dns: Option<DnsServer>,
    /// Configures systemd-resolved; `None` leaves it alone.
    pub resolved: Option<SendAnnouncement>,
    /// File with the state of the peers; `None` writes none.
    pub report: Option<PathBuf>,
    /// File with the state of isolation; `None` writes none.
    pub isolation_report: Option<PathBuf>,
    /// File with the state of virtual addresses; `None` holds none.
    pub address_report: Option<PathBuf>,
    /// File with the time until which virtual addresses with `onLeaderLoss: release` may be held.
    pub address_release: PathBuf,
    /// Ends the service, as SIGTERM and SIGINT do.
    pub cancel: CancellationToken,
}

impl NetworkServiceConfig {
    /// The configuration of a real machine: the agent's files in [`FOLDER`], and the socket that
    /// systemd passed. This function takes ownership of passed descriptors, so the program has to
    /// call it before anything else.
    pub fn from_environment() -> Self {
        let listener = passed_sockets::take().into_iter().next();
        let listener = listener.map(|(_, socket)| StdListener::from(socket));
        Self {
            folder: FOLDER.into(),
            deadlines: DEADLINES_FILE.into(),
            root: Some("/".into()),
            listener,
            cgroups: proc_cgroups(),
            processes: machine_processes(),
            overlay: None,
            dns: Some(names::server()),
            resolved: Some(tell_resolved()),
            report: Some(OVERLAY_FILE.into()),
            isolation_report: Some(ISOLATION_STATE_FILE.into()),
            address_report: Some(STATES_FILE.into()),
            address_release: RELEASE_FILE.into(),
            cancel: CancellationToken::new(),
        }
    }
}

/// Runs the service until SIGTERM.
///
/// # Errors
/// The service could not start. Later errors are logged, shown in the status and retried.
pub async fn run(config: NetworkServiceConfig) -> Result<(), ServiceError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServiceError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServiceError::Signal)?;
    if let Some(root) = &config.root {
        rebuild_unit_links(root);
    }
    let listener = listener(config.listener).map_err(|source| ServiceError::Socket {
        path: HOOK_SOCKET.into(),
        source,
    })?;
    let links = Links::open()?;
    let files = StateFiles::open(&config.folder);
    let cancel = config.cancel;
    let attachments = Attachments::new(
        Arc::clone(&files),
        links.clone(),
        Arc::clone(&config.cgroups),
        Arc::clone(&config.processes),
    );
    let fence = DeadlineFence::new(FenceSources {
        files: Arc::clone(&files),
        deadlines: config.deadlines,
        journal: JOURNAL_SOCKET.into(),
        clock: Arc::new(|| BootTime::from(clock::since_boot())),
        cgroups: config.cgroups,
        processes: config.processes,
    });
    let enforced = watch::Sender::new(EnforcedIsolation::default());
    let hook = HookServer::new(
        Arc::clone(&files),
        Arc::clone(&attachments),
        Arc::clone(&fence),
        enforced.subscribe(),
    );
    let mut tasks = tokio::task::JoinSet::new();
    let pulses = LoopPulses::default();
    let pulse = pulses.watch("hook socket");
    tasks.spawn(hook.serve(listener, pulse, cancel.clone()));
    tasks.spawn(fence.watch(pulses.watch("fence"), cancel.clone()));
    tasks.spawn(Arc::clone(&files).watch(cancel.clone()));
    if let Some(report) = config.address_report {
        let (keeper, statements) = AddressKeeper::new(AddressKeeperConfig {
            files: files.subscribe(),
            links: links.clone(),
            report,
            release: config.address_release,
            clock: Arc::new(|| BootTime::from(clock::since_boot())),
        });
        let pulse = pulses.watch("virtual addresses");
        tasks.spawn(keeper.run(statements, pulse, cancel.clone()));
    }
    let overlay = config.overlay.unwrap_or_else(|| OverlayLink::new(links));
    let announcer = Arc::new(Announcer::default());
    tasks.spawn(Arc::clone(&announcer).listen(cancel.clone()));
    let heard = Arc::clone(&announcer);
    // Silent peers are left out of what the balancer and DNS read.
    let (exclusions, excluded) = watch::channel(Excluded::default());
    if let Some(report) = &config.report {
        let path = report.with_file_name(SILENT_PEERS_NAME);
        tasks.spawn(exclusion::publish(excluded.clone(), path, cancel.clone()));
    }
    let filtered = watch::Sender::new(files.current());
    let reachable = filtered.subscribe();
    tasks.spawn(exclusion::filter_files(
        files.subscribe(),
        excluded,
        filtered,
        cancel.clone(),
    ));
    let probes = Arc::new(RawProbes::default());
    tasks.spawn(Arc::clone(&probes).serve(cancel.clone()));
    let (running, wireguard) = watch::channel(None);
    let (owed, owed_answers) = watch::channel(OwedAnswers::default());
    let watcher = PeerWatcher {
        folder: config.folder.clone(),
        probes,
        wireguard,
        files: files.subscribe(),
        excluded: exclusions,
        owed,
    };
    tasks.spawn(watcher.watch(pulses.watch("silent peers"), cancel.clone()));
    let peers = PeerKeeper::new(config.folder, announcer, config.report, owed_answers);
    let foreign = watch::Sender::default();
    let firewall = Arc::new(Firewall::installed());
    let restoring = Arc::clone(&firewall).restore_after_changes(
        foreign.subscribe(),
        pulses.watch("firewall"),
        cancel.clone(),
    );
    tasks.spawn(restoring);
    // The balancer runs in its own task, since rounds may wait for the resolution of other
    // machines' names.
    let (trouble, services) = watch::channel(None);
    let pulse = pulses.watch("refused connections");
    tasks.spawn(refusals::follow_refusals(
        enforced.subscribe(),
        config.isolation_report,
        pulse,
        cancel.clone(),
    ));
    let pulse = pulses.watch("service addresses");
    let known = watch::Sender::new(files.current());
    let known_names = known.subscribe();
    tasks.spawn(enforcement::pass_on_known(
        reachable.clone(),
        enforced.subscribe(),
        known,
        cancel.clone(),
    ));
    let balancing = ServiceBalancer::installed(enforced).follow_files(
        reachable,
        foreign.subscribe(),
        trouble,
        pulse,
        cancel.clone(),
    );
    tasks.spawn(balancing);
    let pulse = pulses.watch("changes of rules");
    tasks.spawn(rule_changes::follow_ruleset_changes(
        foreign,
        pulse,
        cancel.clone(),
    ));
    let (announcement, wanted) = watch::channel(None);
    if let Some(tell) = config.resolved {
        tasks.spawn(resolved::announce_until_cancelled(
            tell,
            wanted,
            cancel.clone(),
        ));
    }
    let reconciler = Reconciler::new(
        attachments,
        overlay,
        firewall,
        peers,
        services,
        announcement,
        running,
    );
    let pulse = pulses.watch("reconciliation");
    let names = DnsSupervisor {
        server: config.dns,
        snapshots: known_names,
        running: None,
    };
    let keeping = reconcile_until_cancelled(reconciler, files, heard, names, pulse, cancel.clone());
    tasks.spawn(keeping);
    notify(&[sd_notify::NotifyState::Ready]);

    let mut watchdog = watchdog();
    loop {
        tokio::select! {
            () = cancel.cancelled() => break,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    // A restart by systemd is better than an incomplete service.
                    tracing::error!("a part of the service broke: {error}");
                    cancel.cancel();
                }
            }
            _ = watchdog.tick() => match pulses.stalled() {
                None => notify(&[sd_notify::NotifyState::Watchdog]),
                Some(name) => tracing::error!("{name} hangs; the watchdog is no longer notified"),
            }
        }
    }
    notify(&[sd_notify::NotifyState::Stopping]);
    cancel.cancel();
    let end = async { while tasks.join_next().await.is_some() {} };
    let _ = timeout(Duration::from_secs(5), end).await;
    Ok(())
}

/// Repeats rounds: at every change of the files, and periodically.
async fn reconcile_until_cancelled(
    mut reconciler: Reconciler,
    files: Arc<StateFiles>,
    announcer: Arc<Announcer>,
    mut names: DnsSupervisor,
    pulse: LoopPulse,
    cancel: CancellationToken,
) {
    let mut changes = files.subscribe();
    let mut shown = String::new();
    let mut removal = Box::pin(links::removal(OVERLAY_LINK));
    let mut moved = Box::pin(links::address_change());
    loop {
        pulse.beat();
        let snapshot = changes.borrow_and_update().clone();
        let round = timeout(ROUND_LIMIT, reconciler.round(&snapshot)).await;
        let outcome = round.unwrap_or_else(|_| reconciler.gave_up(ROUND_LIMIT));
        names.follow(outcome.dns_address, &cancel);
        if outcome.status != shown {
            tracing::info!("{}", outcome.status);
            notify(&[sd_notify::NotifyState::Status(&outcome.status)]);
            shown = outcome.status;
        }
        let wait = match (outcome.settled, outcome.peers) {
            (false, _) => SHORT_INTERVAL,
            (true, true) => PEERS_INTERVAL,
            (true, false) => INTERVAL,
        };
        pulse.beat();
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(wait) => files.refresh(),
            changed = changes.changed() => if changed.is_err() { return },
            // The userspace WireGuard service ended, which removed its link. If the kernel's
            // messages are not available, the next round notices that.
            Ok(()) = &mut removal => {
                tracing::warn!("{OVERLAY_LINK} was removed; making it again");
                removal = Box::pin(links::removal(OVERLAY_LINK));
            }
            () = &mut moved => moved = Box::pin(links::address_change()),
            () = announcer.arrived() => {}
        }
    }
}

/// Runs DNS at the machine's address. Restarts the server when the address changes or the server
/// ends.
struct DnsSupervisor {
    server: Option<DnsServer>,
    snapshots: watch::Receiver<Arc<StateFilesSnapshot>>,
    running: Option<(Ipv4Addr, CancellationToken, tokio::task::JoinHandle<()>)>,
}

impl DnsSupervisor {
    fn follow(&mut self, address: Option<Ipv4Addr>, cancel: &CancellationToken) {
        let (Some(server), Some(address)) = (&self.server, address) else {
            return;
        };
        if let Some((at, stop, task)) = &self.running {
            if *at == address && !task.is_finished() {
                return;
            }
            stop.cancel();
        }
        let stop = cancel.child_token();
        let serving = server(address, self.snapshots.clone(), stop.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::warn!(%address, "DNS ended: {error}; trying again");
            }
        });
        self.running = Some((address, stop, task));
    }
}

/// Restores the links of unit files, so that workloads start after a boot without the agent.
fn rebuild_unit_links(root: &Path) {
    match unit_links::rebuild(root) {
        Ok(rebuilt) => {
            for path in &rebuilt.made {
                tracing::info!(path = %path.display(), "linked a unit file");
            }
            for path in &rebuilt.conflicts {
                tracing::warn!(path = %path.display(), "in the way of a unit file and not KAT's");
            }
        }
        Err(error) => tracing::warn!("links of unit files: {error}"),
    }
}

fn listener(passed: Option<StdListener>) -> io::Result<UnixListener> {
    let listener = match passed {
        Some(listener) => listener,
        None => {
            let path = Path::new(HOOK_SOCKET);
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = StdListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
            listener
        }
    };
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn watchdog() -> tokio::time::Interval {
    let period = sd_notify::watchdog_enabled().map_or(INTERVAL, |time| time / 2);
    tokio::time::interval(period.max(Duration::from_millis(100)))
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("the service manager was not told: {error}");
    }
}
