//! The program's life: listen, follow the files, report, drain.

use std::{
    io,
    net::TcpListener as StdListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{interval, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{ConfigFiles, certificates::server_config},
    connection::PortKind,
    limits::{ConnectionCounts, IngressLimits, RequestRates, RequestsUnderWay},
    metrics::Metrics,
    proxy::{Drain, Ingress},
    upstream::pool::ConnectionPool,
};
use kat_daemon::{passed_sockets, watchdog::LoopPulses};
use kat_types::{
    VERSION,
    encoding::json,
    ingress::{
        FOLDER, INSTANCES, IngressMetrics, IngressStatus, RUN_FOLDER, metrics_file, status_file,
    },
    machine::network::SILENT_PEERS_FILE,
};

/// The port whose connections are TLS; all others are plain.
const TLS_PORT: u16 = 443;
/// Interval of the counters' file and of looking for files whose change was not seen.
const INTERVAL: Duration = Duration::from_secs(10);
/// Interval at which unused connections to instances are closed.
const UNUSED_INTERVAL: Duration = Duration::from_secs(5);

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("the service manager passed no socket; start kat-ingress.socket")]
    NoSocket,
    #[error("a passed socket cannot be used: {0}")]
    Socket(#[source] io::Error),
    #[error("can't receive signals: {0}")]
    Signal(#[source] io::Error),
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    #[error("`{0}` is no instance of kat-ingress")]
    Instance(String),
}

/// Parameters of the service.
pub struct IngressConfig {
    /// Name of this instance, of [`INSTANCES`].
    pub instance: String,
    /// Listening sockets.
    pub listeners: Vec<(StdListener, PortKind)>,
    /// Folder of the agent's files.
    pub folder: PathBuf,
    /// File of the peers that do not answer.
    pub silent_peers: PathBuf,
    /// Folder for status and counters.
    pub run_folder: PathBuf,
    pub limits: IngressLimits,
    /// Begins the end, as SIGTERM does.
    pub cancel: CancellationToken,
}

impl IngressConfig {
    /// The configuration of a real machine. Takes the passed sockets: the program has to call it
    /// before anything else.
    ///
    /// # Errors
    /// The instance's name is unknown, or no socket was passed.
    pub fn from_environment(instance: &str) -> Result<Self, ServiceError> {
        if !INSTANCES.contains(&instance) {
            return Err(ServiceError::Instance(instance.to_owned()));
        }
        let listeners = passed_sockets::take().into_iter().map(|(_, socket)| {
            let listener = StdListener::from(socket);
            let port = listener.local_addr().map_err(ServiceError::Socket)?.port();
            let kind = match port {
                TLS_PORT => PortKind::Tls,
                _ => PortKind::Plain,
            };
            Ok((listener, kind))
        });
        let listeners: Vec<_> = listeners.collect::<Result<_, ServiceError>>()?;
        if listeners.is_empty() {
            return Err(ServiceError::NoSocket);
        }
        Ok(Self {
            instance: instance.to_owned(),
            listeners,
            folder: FOLDER.into(),
            silent_peers: SILENT_PEERS_FILE.into(),
            run_folder: RUN_FOLDER.into(),
            limits: IngressLimits::default(),
            cancel: CancellationToken::new(),
        })
    }
}

/// Runs until SIGTERM and the drain after it.
///
/// # Errors
/// The service could not start. Later errors are logged.
pub async fn run(config: IngressConfig) -> Result<(), ServiceError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServiceError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServiceError::Signal)?;
    let metrics = Arc::<Metrics>::default();
    let files = ConfigFiles::open(&config.folder, &config.silent_peers, Arc::clone(&metrics));
    let current = files.current();
    let drain = Drain::default();
    let ingress = Arc::new(Ingress {
        tls: Arc::new(server_config(Arc::clone(&current))?),
        config: current,
        rates: RequestRates::new(&config.limits),
        under_way: RequestsUnderWay::default(),
        limits: config.limits.clone(),
        metrics: Arc::clone(&metrics),
        counts: ConnectionCounts::default(),
        passwords: crate::config::passwords::PasswordChecker::default(),
        pool: Arc::<ConnectionPool>::default(),
        tracker: TaskTracker::new(),
        drain: drain.clone(),
    });
    let pulses = LoopPulses::default();
    for (listener, kind) in config.listeners {
        listener
            .set_nonblocking(true)
            .map_err(ServiceError::Socket)?;
        let listener = TcpListener::from_std(listener).map_err(ServiceError::Socket)?;
        let pulse = pulses.watch("listener");
        let accepting = Arc::clone(&ingress).accept(listener, kind, pulse);
        ingress.tracker.spawn(accepting);
    }
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(Arc::clone(&files).watch(stop.clone()));
    let report = Report {
        folder: config.run_folder,
        instance: config.instance,
        ingress: Arc::clone(&ingress),
    };
    report.write_status();
    notify(&[sd_notify::NotifyState::Ready]);
    let mut watchdog = watchdog();
    let mut counters = interval(INTERVAL);
    let mut unused = interval(UNUSED_INTERVAL);
    let mut changed = files.subscribe();
    let mut last = IngressMetrics::default();
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = config.cancel.cancelled() => break,
            _ = watchdog.tick() => feed_watchdog(&pulses),
            _ = counters.tick() => {
                refresh(&files).await;
                ingress.rates.forget_quiet();
                ingress.passwords.forget_quiet();
                report.write_metrics(&mut last);
            }
            _ = unused.tick() => ingress.pool.forget_unused(),
            told = next_change(&mut changed) => if told { report.write_status() },
        }
    }
    tracing::info!("draining");
    notify(&[sd_notify::NotifyState::Stopping]);
    drain.draining.cancel();
    report.write_status();
    ingress.tracker.close();
    let lingering = tokio::time::Instant::now() + config.limits.linger;
    let draining = async {
        if tokio::time::timeout_at(lingering, ingress.tracker.wait())
            .await
            .is_err()
        {
            drain.lingered.cancel();
            ingress.tracker.wait().await;
        }
    };
    let fed = async {
        loop {
            watchdog.tick().await;
            notify(&[sd_notify::NotifyState::Watchdog]);
        }
    };
    tokio::select! {
        drained = timeout(config.limits.drain, draining) => if drained.is_err() {
            tracing::warn!("connections were left at the end of the drain");
        },
        () = fed => {}
    }
    drain.end.cancel();
    // The tasks end at once.
    let _ = timeout(Duration::from_secs(2), ingress.tracker.wait()).await;
    report.remove();
    Ok(())
}

/// The files are read beside the runtime's own threads.
async fn refresh(files: &Arc<ConfigFiles>) {
    let files = Arc::clone(files);
    if let Err(error) = tokio::task::spawn_blocking(move || files.refresh()).await {
        tracing::error!(%error, "reading the files failed");
    }
}

/// False for ever if nobody can tell any more.
async fn next_change(changed: &mut watch::Receiver<()>) -> bool {
    if changed.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
    true
}

/// Files below `/run`.
struct Report {
    folder: PathBuf,
    instance: String,
    ingress: Arc<Ingress>,
}

impl Report {
    fn write_status(&self) {
        let config = self.ingress.config.load_full();
        let status = IngressStatus {
            schema: 1,
            version: VERSION.to_owned(),
            pid: std::process::id(),
            draining: self.ingress.drain.draining.is_cancelled(),
            revisions: config.revisions,
            refused: config.refused.clone(),
        };
        self.write(&status_file(&self.instance), &status);
    }

    fn write_metrics(&self, last: &mut IngressMetrics) {
        let read = self.ingress.metrics.read();
        if read != *last {
            self.write(&metrics_file(&self.instance), &read);
            *last = read;
        }
    }

    fn write<T: serde::Serialize>(&self, name: &str, value: &T) {
        let path = self.folder.join(name);
        if let Err(error) = replace(&path, value) {
            tracing::warn!(file = %path.display(), %error, "can't be written");
        }
    }

    fn remove(&self) {
        for name in [status_file(&self.instance), metrics_file(&self.instance)] {
            // It may not exist.
            let _ = std::fs::remove_file(self.folder.join(name));
        }
    }
}

fn replace<T: serde::Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let text = json::bytes(&path.display().to_string(), value)?;
    let partial = path.with_extension("new");
    std::fs::write(&partial, text)?;
    std::fs::rename(&partial, path)
}

fn watchdog() -> tokio::time::Interval {
    let period = sd_notify::watchdog_enabled().map_or(INTERVAL, |time| time / 2);
    interval(period.max(Duration::from_millis(100)))
}

fn feed_watchdog(pulses: &LoopPulses) {
    match pulses.stalled() {
        None => notify(&[sd_notify::NotifyState::Watchdog]),
        Some(name) => tracing::error!("the loop of the {name} hangs"),
    }
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("the service manager was not told: {error}");
    }
}
