//! User managers without sessions: lingering, with logind.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};
use zbus::{Connection, fdo::DBusProxy, names::BusName, proxy::CacheProperties};

use super::{
    ActiveState, JobResult, SystemdError, UnitManager,
    connect::{Connector, SystemBus, UserBus},
    error,
    proxies::{LoginManagerProxy, SYSTEMD},
};
use kat_types::backoff::{Backoff, Pauses};

const LAST_POLL: Duration = Duration::from_millis(250);
const POLLS: Backoff = Backoff::new(Duration::from_millis(5), LAST_POLL);
/// Time in which a manager usually starts or ends. Polls are at most [`EAGER_POLL`] apart in it: runs
/// of Jobs wait for both.
const EAGER: Duration = Duration::from_secs(1);
const EAGER_POLL: Duration = Duration::from_millis(50);
/// Longest wait until logind forgets a removed user.
const FORGET_LIMIT: Duration = Duration::from_secs(20);

/// The functions of logind that KAT uses. A fake replaces it in tests and in the simulation.
#[async_trait]
pub trait UserSessions: Send + Sync {
    /// Enables or disables lingering: whether the manager of `uid` runs from boot on without a
    /// session. Returns before the manager runs or has ended.
    async fn set_linger(&self, uid: u32, linger: bool) -> Result<(), SystemdError>;

    /// Waits until the user's manager answers on its bus, at most `limit`.
    async fn wait_for_user_bus(&self, uid: u32, limit: Duration) -> Result<(), SystemdError>;

    /// Ends the user's sessions and manager now; does nothing when there is none. Otherwise logind
    /// waits 10 s (`UserStopDelaySec=`) after lingering was disabled.
    async fn terminate_user(&self, uid: u32) -> Result<(), SystemdError>;

    /// Waits until `user@UID.service` has stopped, at most `limit`.
    async fn wait_for_user_stopped(&self, uid: u32, limit: Duration) -> Result<(), SystemdError>;

    /// Whether the user's manager runs or is being started.
    async fn user_runs(&self, uid: u32) -> Result<bool, SystemdError>;

    /// Starts the manager of a lingering user after it has ended: logind still takes it for running
    /// then. Does nothing where it runs or is being started.
    async fn start_user(&self, uid: u32, limit: Duration) -> Result<(), SystemdError>;

    /// Ends the user's manager with all its units, and starts it again with the user's present
    /// groups. Does nothing where it does not run.
    async fn restart_user(&self, uid: u32, limit: Duration) -> Result<(), SystemdError>;
}

/// The machine's logind.
pub struct Logind {
    system: Arc<dyn UnitManager>,
    connector: SystemBus,
    connection: Mutex<Option<Connection>>,
}

impl Logind {
    /// `system` is the system manager, which knows when a user manager has stopped.
    pub fn new(system: Arc<dyn UnitManager>) -> Self {
        Self {
            system,
            connector: SystemBus,
            connection: Mutex::default(),
        }
    }

    async fn logind(&self) -> Result<LoginManagerProxy<'static>, SystemdError> {
        let mut slot = self.connection.lock().await;
        let connection = match slot.as_ref().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection.clone(),
            None => self
                .connector
                .connect()
                .await
                .map_err(|reason| error::unreachable("the system", &reason))?,
        };
        *slot = Some(connection.clone());
        LoginManagerProxy::builder(&connection)
            .cache_properties(CacheProperties::No)
            .build()
            .await
            .map_err(|problem| error::map("the system", "login1", problem))
    }

    /// Uids of the users that logind knows: those that linger or have a session.
    pub async fn users(&self) -> Result<Vec<u32>, SystemdError> {
        let users = self.listed().await?;
        Ok(users.into_iter().map(|(uid, _)| uid).collect())
    }

    async fn listed(&self) -> Result<Vec<(u32, String)>, SystemdError> {
        let users = self
            .logind()
            .await?
            .list_users()
            .await
            .map_err(|problem| error::map("the system", "login1 ListUsers", problem))?;
        Ok(users
            .into_iter()
            .map(|(uid, name, _)| (uid, name))
            .collect())
    }

    /// logind keeps a removed user, with its former name, for `UserStopDelaySec=` (10 s) after its
    /// last session. If another user has the uid by now, lingering would start no manager, since
    /// logind looks up the former name. So this waits until logind has forgotten the removed user.
    async fn wait_until_forgotten(&self, uid: u32) -> Result<(), SystemdError> {
        let Ok(Some(user)) = nix::unistd::User::from_uid(uid.into()) else {
            return Ok(());
        };
        let deadline = Instant::now() + FORGET_LIMIT;
        loop {
            let users = self.listed().await?;
            let remembered = users
                .iter()
                .any(|(other, name)| *other == uid && *name != user.name);
            if !remembered || Instant::now() + LAST_POLL >= deadline {
                return Ok(());
            }
            sleep(LAST_POLL).await;
        }
    }
}

#[async_trait]
impl UserSessions for Logind {
    async fn set_linger(&self, uid: u32, linger: bool) -> Result<(), SystemdError> {
        if linger {
            self.wait_until_forgotten(uid).await?;
        }
        let result = self
            .logind()
            .await?
            .set_user_linger(uid, linger, false)
            .await;
        match result {
            Err(problem) if !linger && is_unknown_user(&problem) => Ok(()),
            Err(problem) => Err(error::map(
                "the system",
                &format!("linger of uid {uid}"),
                problem,
            )),
            Ok(()) => Ok(()),
        }
    }

    async fn wait_for_user_bus(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        let deadline = Instant::now() + limit;
        let bus = UserBus::new(uid);
        let mut reason = String::from("no bus yet");
        let mut polls = ManagerPolls::new();
        loop {
            match timeout_at(deadline, manager_answers(&bus)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => reason = why,
                Err(_) => {}
            }
            let poll = polls.next_pause();
            if Instant::now() + poll >= deadline {
                return Err(error::unreachable(
                    &bus.name(),
                    &format!("not there after {} s: {reason}", limit.as_secs()),
                ));
            }
            sleep(poll).await;
        }
    }

    async fn terminate_user(&self, uid: u32) -> Result<(), SystemdError> {
        match self.logind().await?.terminate_user(uid).await {
            Err(problem) if is_unknown_user(&problem) => Ok(()),
            Err(problem) => Err(error::map(
                "the system",
                &format!("sessions of uid {uid}"),
                problem,
            )),
            Ok(()) => Ok(()),
        }
    }

    async fn user_runs(&self, uid: u32) -> Result<bool, SystemdError> {
        let unit = user_unit(uid);
        let state = self.system.active_state(&unit).await?;
        Ok(!state.is_down() && state != ActiveState::Unknown)
    }

    async fn start_user(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        let unit = user_unit(uid);
        // A job for a manager that is being stopped waits for its end.
        let state = self.system.active_state(&unit).await?;
        let may_start =
            state.is_down() || matches!(state, ActiveState::Deactivating | ActiveState::Unknown);
        if !may_start {
            return Ok(());
        }
        // Otherwise systemd refuses a unit that was started too often; the caller pauses between
        // its tries.
        match self.system.reset_failed(&unit).await {
            Ok(()) | Err(SystemdError::NoSuchUnit(_)) => {}
            Err(error) => return Err(error),
        }
        tracing::warn!(
            unit,
            "the manager of a workload's user has ended; starting it"
        );
        // Podman keeps its list of running containers there. It refuses every command while the
        // list has processes that were killed with their manager.
        let folder = format!("user-runtime-dir@{uid}.service");
        match self.system.stop(&folder, limit).await {
            Ok(_) | Err(SystemdError::NoSuchUnit(_)) => {}
            Err(error) => return Err(error),
        }
        let result = self.system.start(&unit, limit).await?;
        done(unit, "start", result)
    }

    async fn restart_user(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        if !self.user_runs(uid).await? {
            return Ok(());
        }
        let unit = user_unit(uid);
        let result = self.system.restart(&unit, limit).await?;
        done(unit, "restart", result)
    }

    async fn wait_for_user_stopped(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        let unit = user_unit(uid);
        let deadline = Instant::now() + limit;
        let mut polls = ManagerPolls::new();
        loop {
            let state = self.system.active_state(&unit).await?;
            if state.is_down() {
                return Ok(());
            }
            let poll = polls.next_pause();
            if Instant::now() + poll >= deadline {
                return Err(SystemdError::JobTimeout { unit, limit });
            }
            sleep(poll).await;
        }
    }
}

/// The pauses between looks at a manager that starts or ends.
struct ManagerPolls {
    eager_until: Instant,
    later: Pauses,
}

impl ManagerPolls {
    fn new() -> Self {
        Self {
            eager_until: Instant::now() + EAGER,
            later: POLLS.pauses(),
        }
    }

    fn next_pause(&mut self) -> Duration {
        let pause = self.later.next_pause();
        match Instant::now() < self.eager_until {
            true => pause.min(EAGER_POLL),
            false => pause,
        }
    }
}

fn done(unit: String, job: &str, result: JobResult) -> Result<(), SystemdError> {
    match result {
        JobResult::Done => Ok(()),
        result => Err(SystemdError::Refused {
            unit,
            name: "job".to_owned(),
            message: format!("its {job} ended as {result:?}"),
        }),
    }
}

fn user_unit(uid: u32) -> String {
    format!("user@{uid}.service")
}

/// Checks that systemd owns its name on the user's bus.
async fn manager_answers(bus: &UserBus) -> Result<(), String> {
    if bus.identity().is_none() {
        return Err("its socket is not there".to_owned());
    }
    let connection = bus.connect().await?;
    let name = BusName::try_from(SYSTEMD).map_err(|problem| problem.to_string())?;
    let owned = async {
        DBusProxy::new(&connection)
            .await?
            .name_has_owner(name)
            .await
    }
    .await
    .map_err(|problem: zbus::fdo::Error| problem.to_string());
    // Closing notifies the bus at once; an error leaves nothing behind either.
    let _ = connection.close().await;
    match owned? {
        true => Ok(()),
        false => Err("its manager is not on the bus".to_owned()),
    }
}

/// Whether logind knows no session and no lingering of the user, or no user has the uid: then it
/// returns ESRCH from the user database.
fn is_unknown_user(problem: &zbus::Error) -> bool {
    match problem {
        zbus::Error::MethodError(name, ..) => matches!(
            name.as_str(),
            "org.freedesktop.login1.NoSuchUser" | "System.Error.ESRCH" | "System.Error.ENOENT"
        ),
        zbus::Error::FDO(error) => {
            matches!(**error, zbus::fdo::Error::UnixProcessIdUnknown(_))
        }
        _ => false,
    }
}
