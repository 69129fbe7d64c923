//! A systemd manager over D-Bus.

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use zbus::{OwnedObjectPath, Variant};

use super::{
    ActiveState, CommandStreams, JobResult, ProcessEnd, SystemdError, TransientEnd, TransientUnit,
    UnitEvents, UnitManager, UnitStatus, UnitUsage,
    connect::{Connector, SocketIdentity},
    error,
    link::ManagerLink,
    proxies::SystemdManagerProxy,
    status,
    transient::{self, TransientRun},
};
use crate::ServiceResult;
use kat_types::backoff::{Backoff, Pauses};

/// Longest waits for the manager's first answer on a new connection, one connection after the other.
/// The manager may be reading its units. systemd 257 was seen to leave a connection that was opened
/// while it reloaded without an answer, and to answer the next one.
const OPEN_LIMITS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(16)];
/// Time after a failed connection in which no other one is tried.
const DELAYS: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Longest wait for a command with passed files to end after it was stopped.
const SESSION_STOP: Duration = Duration::from_secs(5);
/// Job mode: a new job replaces conflicting jobs (systemctl(1), `--job-mode=`).
const MODE: &str = "replace";
/// `LOG_WARNING` of syslog(3).
const LOG_WARNINGS: i32 = 4;
/// Time between the signal that ends a transient unit's command and its kill.
const KILL_AFTER: Duration = Duration::from_secs(1);

/// The manager behind a [`Connector`].
///
/// It connects at the first call, and again after the bus was lost. After a failure, calls fail at
/// once with the same error for a time that increases from 100 ms to 5 s, unless the bus's socket
/// was replaced meanwhile.
pub struct BusManager {
    name: String,
    connector: Arc<dyn Connector>,
    state: Mutex<ManagerConnection>,
}

#[derive(Default)]
struct ManagerConnection {
    link: Option<Arc<ManagerLink>>,
    failure: Option<ConnectFailure>,
}

struct ConnectFailure {
    reason: String,
    delays: Pauses,
    retry_at: Instant,
    socket: Option<SocketIdentity>,
}

impl BusManager {
    /// The manager behind `connector`. Connects at the first call.
    pub fn new(connector: Arc<dyn Connector>) -> Self {
        Self {
            name: connector.name(),
            connector,
            state: Mutex::default(),
        }
    }

    /// Closes the connection, and ends its streams of events. A call that opens one at this moment
    /// keeps it.
    pub fn close(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            state.link = None;
        }
    }

    async fn link(&self) -> Result<Arc<ManagerLink>, SystemdError> {
        let mut state = self.state.lock().await;
        if let Some(link) = &state.link {
            if link.is_alive() {
                return Ok(Arc::clone(link));
            }
            state.link = None;
        }
        let socket = self.connector.identity();
        if let Some(failure) = &state.failure
            && Instant::now() < failure.retry_at
            && failure.socket == socket
        {
            return Err(error::unreachable(&self.name, &failure.reason));
        }
        let opened = self.open().await;
        match opened {
            Ok(link) => {
                let link = Arc::new(link);
                state.link = Some(Arc::clone(&link));
                state.failure = None;
                Ok(link)
            }
            Err(error) => {
                let before = state.failure.as_ref();
                let mut delays = before.map_or(DELAYS.pauses(), |failure| failure.delays);
                let retry_at = Instant::now() + delays.next_pause();
                let reason = match &error {
                    SystemdError::Unreachable { reason, .. } => reason.clone(),
                    other => other.to_string(),
                };
                tracing::debug!(manager = self.name, reason, "no connection to the manager");
                state.failure = Some(ConnectFailure {
                    reason,
                    delays,
                    retry_at,
                    socket,
                });
                Err(error)
            }
        }
    }

    /// Opens a new connection, and another one where the manager does not answer on the first.
    async fn open(&self) -> Result<ManagerLink, SystemdError> {
        for limit in OPEN_LIMITS {
            let connection = self.connector.connect().await;
            let connection =
                connection.map_err(|reason| error::unreachable(&self.name, &reason))?;
            if let Ok(opened) = timeout(limit, ManagerLink::open(&self.name, connection)).await {
                return opened;
            }
        }
        let reason = "the manager did not answer in time";
        Err(error::unreachable(&self.name, reason))
    }

    /// Calls the manager; errors name `unit`.
    async fn call<T, F>(
        &self,
        unit: &str,
        call: impl FnOnce(SystemdManagerProxy<'static>) -> F + Send,
    ) -> Result<T, SystemdError>
    where
        F: Future<Output = zbus::Result<T>> + Send,
    {
        let link = self.link().await?;
        call(link.manager())
            .await
            .map_err(|error| error::map(&self.name, unit, error))
    }

    /// Queues a job and waits for its end, all within `limit`.
    async fn job<F>(
        &self,
        unit: &str,
        limit: Duration,
        queue: impl FnOnce(SystemdManagerProxy<'static>) -> F + Send,
    ) -> Result<JobResult, SystemdError>
    where
        F: Future<Output = zbus::Result<OwnedObjectPath>> + Send,
    {
        let work = async { self.link().await?.job(&self.name, unit, queue).await };
        within(unit, limit, work).await
    }

    /// Runs a transient unit to its end. It runs in a task of its own, which continues when the
    /// caller is dropped.
    async fn transient(
        &self,
        unit: &TransientUnit,
        properties: Vec<(&'static str, Variant<'static>)>,
        streams: Option<CommandStreams>,
        limit: Duration,
    ) -> Result<(JobResult, UnitStatus), SystemdError> {
        let run = TransientRun {
            manager: self.name.clone(),
            link: within(&unit.name, limit, self.link()).await?,
            unit: unit.name.clone(),
        };
        let running = tokio::spawn(run.run(properties, streams, limit));
        running
            .await
            .unwrap_or_else(|error| Err(error::unreachable(&self.name, &error.to_string())))
    }
}

/// The result of `work`, or an error after the time limit.
pub(super) async fn within<T>(
    unit: &str,
    limit: Duration,
    work: impl Future<Output = Result<T, SystemdError>>,
) -> Result<T, SystemdError> {
    timeout(limit, work).await.unwrap_or_else(|_| {
        Err(SystemdError::JobTimeout {
            unit: unit.to_owned(),
            limit,
        })
    })
}

#[async_trait]
impl UnitManager for BusManager {
    async fn reload(&self) -> Result<(), SystemdError> {
        self.call("reload", async |manager| manager.reload().await)
            .await
    }

    async fn start(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        let name = unit.to_owned();
        self.job(unit, limit, async move |manager| {
            manager.start_unit(&name, MODE).await
        })
        .await
    }

    async fn stop(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        let name = unit.to_owned();
        self.job(unit, limit, async move |manager| {
            manager.stop_unit(&name, MODE).await
        })
        .await
    }

    async fn restart(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        let name = unit.to_owned();
        self.job(unit, limit, async move |manager| {
            manager.restart_unit(&name, MODE).await
        })
        .await
    }

    async fn run_transient(
        &self,
        unit: &TransientUnit,
        limit: Duration,
    ) -> Result<TransientEnd, SystemdError> {
        let mut properties = transient::properties(unit, KILL_AFTER)?;
        properties.extend([
            // Units that run every few seconds should only log failures.
            ("LogLevelMax", Variant::new(LOG_WARNINGS)),
            ("SyslogLevel", Variant::new(LOG_WARNINGS)),
            ("StandardOutput", Variant::new("null")),
        ]);
        let (result, status) = self.transient(unit, properties, None, limit).await?;
        let by_itself = result != JobResult::Done && status.result == ServiceResult::ExitCode;
        Ok(TransientEnd {
            result,
            exit_status: by_itself.then_some(status.exec_main_status),
        })
    }

    async fn run_with(
        &self,
        unit: &TransientUnit,
        streams: CommandStreams,
    ) -> Result<ProcessEnd, SystemdError> {
        let properties = transient::properties(unit, SESSION_STOP)?;
        let limit = unit.limit.saturating_add(SESSION_STOP * 4);
        let (result, status) = self
            .transient(unit, properties, Some(streams), limit)
            .await?;
        Ok(match (result, status.exec_main_code) {
            (JobResult::Done, _) => ProcessEnd::Code(0),
            // The time limit was over: how the command reacted to the signal is irrelevant.
            _ if status.result == ServiceResult::Timeout => ProcessEnd::Stopped,
            (JobResult::Failed, 1) => ProcessEnd::Code(status.exec_main_status),
            (JobResult::Failed, 2 | 3) => ProcessEnd::Signal(status.exec_main_status),
            _ => ProcessEnd::Stopped,
        })
    }

    async fn kill(&self, unit: &str, signal: i32) -> Result<(), SystemdError> {
        let name = unit.to_owned();
        self.call(unit, async move |manager| {
            manager.kill_unit(&name, "all", signal).await
        })
        .await
    }

    async fn reset_failed(&self, unit: &str) -> Result<(), SystemdError> {
        let name = unit.to_owned();
        self.call(unit, async move |manager| {
            manager.reset_failed_unit(&name).await
        })
        .await
    }

    async fn status(&self, unit: &str) -> Result<UnitStatus, SystemdError> {
        let link = self.link().await?;
        let status = status::read(&link, unit).await;
        status.map_err(|error| error::map(&self.name, unit, error))
    }

    async fn active_state(&self, unit: &str) -> Result<ActiveState, SystemdError> {
        let link = self.link().await?;
        let states = status::states(&link, unit).await;
        let states = states.map_err(|error| error::map(&self.name, unit, error))?;
        Ok(states.active)
    }

    async fn usage(&self, unit: &str) -> Result<UnitUsage, SystemdError> {
        let link = self.link().await?;
        let usage = status::usage(link.connection(), unit).await;
        usage.map_err(|error| error::map(&self.name, unit, error))
    }

    async fn invocation_id(&self, unit: &str) -> Result<String, SystemdError> {
        let link = self.link().await?;
        let id = status::invocation_id(link.connection(), unit).await;
        id.map_err(|error| error::map(&self.name, unit, error))
    }

    async fn needs_reload(&self, unit: &str) -> Result<bool, SystemdError> {
        let link = self.link().await?;
        let needed = status::needs_reload(link.connection(), unit).await;
        needed.map_err(|error| error::map(&self.name, unit, error))
    }

    async fn list(&self, pattern: &str) -> Result<Vec<String>, SystemdError> {
        let wanted = pattern.to_owned();
        let units = self
            .call(pattern, async move |manager| {
                manager.list_units_by_patterns(&[], &[&wanted]).await
            })
            .await?;
        let mut names: Vec<String> = units
            .into_iter()
            .filter(|unit| unit.load_state != "not-found")
            .map(|unit| unit.name)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    async fn enable(&self, unit: &str) -> Result<(), SystemdError> {
        let name = unit.to_owned();
        self.call(unit, async move |manager| {
            manager
                .enable_unit_files(&[&name], false, false)
                .await
                .map(|_| ())
        })
        .await
    }

    async fn disable(&self, unit: &str) -> Result<(), SystemdError> {
        let name = unit.to_owned();
        self.call(unit, async move |manager| {
            manager
                .disable_unit_files(&[&name], false)
                .await
                .map(|_| ())
        })
        .await
    }

    async fn events(&self) -> Result<UnitEvents, SystemdError> {
        Ok(self.link().await?.events())
    }
}
