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
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinSet,
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
    nftables::{
        firewall::Firewall,
        rule_changes::{self, RulesetChanges},
        service_addresses::ServiceBalancer,
    },
    overlay::{announce::sockets::Announcer, kat0::OverlayLink, peers::PeerKeeper},
    silent_peers::{
        exclusion::{self, Excluded},
        probes::RawProbes,
        watcher::{OwedAnswers, PeerWatcher, RunningWireGuard},
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
    let terminate = signal(SignalKind::terminate()).map_err(ServiceError::Signal)?;
    let interrupt = signal(SignalKind::interrupt()).map_err(ServiceError::Signal)?;
    if let Some(root) = &config.root {
        rebuild_unit_links(root);
    }
    let listener = listener(config.listener).map_err(|source| ServiceError::Socket {
        path: HOOK_SOCKET.into(),
        source,
    })?;
    let links = Links::open()?;
    let files = StateFiles::open(&config.folder);
    let mut tasks = ServiceTasks::new(config.cancel);
    let enforced = watch::Sender::new(EnforcedIsolation::default());
    let sources = FenceSources {
        files: Arc::clone(&files),
        deadlines: config.deadlines,
        journal: JOURNAL_SOCKET.into(),
        clock: Arc::new(|| BootTime::from(clock::since_boot())),
        cgroups: config.cgroups,
        processes: config.processes,
    };
    let attachments = tasks.serve_hook(listener, sources, links.clone(), enforced.subscribe());
    let followed = Arc::clone(&files);
    tasks.add_unwatched(|cancel| followed.watch(cancel));
    if let Some(report) = config.address_report {
        tasks.hold_addresses(&files, links.clone(), report, config.address_release);
    }
    let overlay = config.overlay.unwrap_or_else(|| OverlayLink::new(links));
    let announcer = Arc::new(Announcer::default());
    let heard = Arc::clone(&announcer);
    let WatchedPeers {
        peers,
        reachable,
        running,
    } = tasks.watch_peers(&files, announcer, config.folder, config.report);
    let foreign = watch::Sender::default();
    let firewall = tasks.restore_firewall(foreign.subscribe());
    let BalancedServices { trouble, known } = tasks.balance_services(
        &files,
        reachable,
        enforced,
        foreign,
        config.isolation_report,
    );
    let (announcement, wanted) = watch::channel(None);
    if let Some(tell) = config.resolved {
        tasks.add_unwatched(|cancel| resolved::announce_until_cancelled(tell, wanted, cancel));
    }
    let reconciler = Reconciler::new(
        attachments,
        overlay,
        firewall,
        peers,
        trouble,
        announcement,
        running,
    );
    let names = DnsSupervisor {
        server: config.dns,
        snapshots: known,
        running: None,
    };
    tasks.add("reconciliation", |pulse, cancel| {
        reconcile_until_cancelled(reconciler, files, heard, names, pulse, cancel)
    });
    notify(&[sd_notify::NotifyState::Ready]);
    tasks.supervise(terminate, interrupt).await;
    Ok(())
}

/// The parts of the service that run beside each other.
struct ServiceTasks {
    tasks: JoinSet<()>,
    pulses: LoopPulses,
    cancel: CancellationToken,
}

/// What the loops about peers share with the rounds.
struct WatchedPeers {
    peers: PeerKeeper,
    /// The agent's files without silent peers.
    reachable: watch::Receiver<Arc<StateFilesSnapshot>>,
    /// Where the rounds put the WireGuard of `kat0`.
    running: watch::Sender<RunningWireGuard>,
}

struct BalancedServices {
    /// The present error of the service addresses.
    trouble: watch::Receiver<Option<String>>,
    /// The agent's files with what the enforced isolation covers, for DNS.
    known: watch::Receiver<Arc<StateFilesSnapshot>>,
}

impl ServiceTasks {
    fn new(cancel: CancellationToken) -> Self {
        Self {
            tasks: JoinSet::new(),
            pulses: LoopPulses::default(),
            cancel,
        }
    }

    /// Adds a loop. It has a pulse of this name, without which the watchdog ends the service.
    fn add<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: &'static str,
        task: impl FnOnce(LoopPulse, CancellationToken) -> F,
    ) {
        let pulse = self.pulses.watch(name);
        self.tasks.spawn(task(pulse, self.cancel.clone()));
    }

    fn add_unwatched<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        task: impl FnOnce(CancellationToken) -> F,
    ) {
        self.tasks.spawn(task(self.cancel.clone()));
    }

    /// Serves the containers' hook, and ends instances at their deadlines.
    fn serve_hook(
        &mut self,
        listener: UnixListener,
        sources: FenceSources,
        links: Links,
        enforced: watch::Receiver<EnforcedIsolation>,
    ) -> Arc<Attachments> {
        let files = Arc::clone(&sources.files);
        let attachments = Attachments::new(
            Arc::clone(&files),
            links,
            Arc::clone(&sources.cgroups),
            Arc::clone(&sources.processes),
        );
        let fence = DeadlineFence::new(sources);
        let hook = HookServer::new(
            files,
            Arc::clone(&attachments),
            Arc::clone(&fence),
            enforced,
        );
        self.add("hook socket", |pulse, cancel| {
            hook.serve(listener, pulse, cancel)
        });
        self.add("fence", |pulse, cancel| fence.watch(pulse, cancel));
        attachments
    }

    fn hold_addresses(
        &mut self,
        files: &StateFiles,
        links: Links,
        report: PathBuf,
        release: PathBuf,
    ) {
        let (keeper, statements) = AddressKeeper::new(AddressKeeperConfig {
            files: files.subscribe(),
            links,
            report,
            release,
            clock: Arc::new(|| BootTime::from(clock::since_boot())),
        });
        self.add("virtual addresses", |pulse, cancel| {
            keeper.run(statements, pulse, cancel)
        });
    }

    /// Listens to the peers' announcements, and watches which peers are silent: the balancer and DNS
    /// read the files without these.
    fn watch_peers(
        &mut self,
        files: &StateFiles,
        announcer: Arc<Announcer>,
        folder: PathBuf,
        report: Option<PathBuf>,
    ) -> WatchedPeers {
        let listening = Arc::clone(&announcer);
        self.add_unwatched(|cancel| listening.listen(cancel));
        let (exclusions, excluded) = watch::channel(Excluded::default());
        if let Some(report) = &report {
            let (path, excluded) = (report.with_file_name(SILENT_PEERS_NAME), excluded.clone());
            self.add_unwatched(|cancel| exclusion::publish(excluded, path, cancel));
        }
        let filtered = watch::Sender::new(files.current());
        let reachable = filtered.subscribe();
        let read = files.subscribe();
        self.add_unwatched(|cancel| exclusion::filter_files(read, excluded, filtered, cancel));
        let probes = Arc::new(RawProbes::default());
        let served = Arc::clone(&probes);
        self.add_unwatched(|cancel| served.serve(cancel));
        let (running, wireguard) = watch::channel(None);
        let (owed, owed_answers) = watch::channel(OwedAnswers::default());
        let watcher = PeerWatcher {
            folder: folder.clone(),
            probes,
            wireguard,
            files: files.subscribe(),
            excluded: exclusions,
            owed,
        };
        self.add("silent peers", |pulse, cancel| watcher.watch(pulse, cancel));
        WatchedPeers {
            peers: PeerKeeper::new(folder, announcer, report, owed_answers),
            reachable,
            running,
        }
    }

    /// Keeps the firewall's table when another program changes it.
    fn restore_firewall(&mut self, foreign: watch::Receiver<RulesetChanges>) -> Arc<Firewall> {
        let firewall = Arc::new(Firewall::installed());
        let restored = Arc::clone(&firewall);
        self.add("firewall", |pulse, cancel| {
            restored.restore_after_changes(foreign, pulse, cancel)
        });
        firewall
    }

    /// Balances the service addresses and enforces isolation, in a task of its own, since rounds may
    /// wait for the resolution of other machines' names. `foreign` gets the changes of rules by other
    /// programs.
    fn balance_services(
        &mut self,
        files: &StateFiles,
        reachable: watch::Receiver<Arc<StateFilesSnapshot>>,
        enforced: watch::Sender<EnforcedIsolation>,
        foreign: watch::Sender<RulesetChanges>,
        isolation_report: Option<PathBuf>,
    ) -> BalancedServices {
        let (trouble_now, trouble) = watch::channel(None);
        let refusing = enforced.subscribe();
        self.add("refused connections", |pulse, cancel| {
            refusals::follow_refusals(refusing, isolation_report, pulse, cancel)
        });
        let known_now = watch::Sender::new(files.current());
        let known = known_now.subscribe();
        let (snapshots, covering) = (reachable.clone(), enforced.subscribe());
        self.add_unwatched(|cancel| {
            enforcement::pass_on_known(snapshots, covering, known_now, cancel)
        });
        let balancer = ServiceBalancer::installed(enforced);
        let changes = foreign.subscribe();
        self.add("service addresses", |pulse, cancel| {
            balancer.follow_files(reachable, changes, trouble_now, pulse, cancel)
        });
        self.add("changes of rules", |pulse, cancel| {
            rule_changes::follow_ruleset_changes(foreign, pulse, cancel)
        });
        BalancedServices { trouble, known }
    }

    /// Runs until a signal or the cancellation, and ends the tasks.
    async fn supervise(mut self, mut terminate: Signal, mut interrupt: Signal) {
        let mut watchdog = watchdog();
        loop {
            tokio::select! {
                () = self.cancel.cancelled() => break,
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        // A restart by systemd is better than an incomplete service.
                        tracing::error!("a part of the service broke: {error}");
                        self.cancel.cancel();
                    }
                }
                _ = watchdog.tick() => match self.pulses.stalled() {
                    None => notify(&[sd_notify::NotifyState::Watchdog]),
                    Some(name) => tracing::error!("{name} hangs; the watchdog is no longer notified"),
                }
            }
        }
        notify(&[sd_notify::NotifyState::Stopping]);
        self.cancel.cancel();
        let end = async { while self.tasks.join_next().await.is_some() {} };
        let _ = timeout(Duration::from_secs(5), end).await;
    }
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
