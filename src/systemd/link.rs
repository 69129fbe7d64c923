//! A connection to a manager, and the task that receives its signals.

use std::{num::NonZeroUsize, sync::Arc};

use futures_util::StreamExt;
use tokio::task::JoinHandle;
use zbus::{
    Connection, MatchRule, Message, MessageStream, OwnedObjectPath,
    fdo::{DBusProxy, NameOwnerChanged},
    message::Type,
    names::BusName,
    proxy::CacheProperties,
};

use super::{
    JobResult, SystemdError, UnitEvent, UnitEvents, error,
    listeners::{BusListeners, JobWaiter},
    path::unit_of_path,
    proxies::{
        JobRemoved, Reloading, SYSTEMD, SYSTEMD_MANAGER, SYSTEMD_PATH, SystemdManagerProxy,
        UnitNew, UnitRemoved,
    },
};

/// Prefix of KAT's units.
const PREFIX: &str = "kat-";
/// Most unread signals before the connection stops reading.
const SIGNALS_UNREAD: NonZeroUsize = match NonZeroUsize::new(256) {
    Some(number) => number,
    None => NonZeroUsize::MIN,
};

/// An open connection. Dropping it closes the connection and ends all streams and waits.
pub(super) struct ManagerLink {
    connection: Connection,
    manager: SystemdManagerProxy<'static>,
    listeners: Arc<BusListeners>,
    task: JoinHandle<()>,
}

impl Drop for ManagerLink {
    fn drop(&mut self) {
        self.task.abort();
        self.listeners.close();
    }
}

impl ManagerLink {
    /// Subscribes to the manager's signals on a new connection.
    pub(super) async fn open(name: &str, connection: Connection) -> Result<Self, SystemdError> {
        Self::try_open(name, connection)
            .await
            .map_err(|error| error::map(name, "subscribe", error))
    }

    async fn try_open(name: &str, connection: Connection) -> zbus::Result<Self> {
        let manager = SystemdManagerProxy::builder(&connection)
            .cache_properties(CacheProperties::No)
            .build()
            .await?;
        // The streams are opened first, so that no signal after the subscription is missed.
        let signals = ManagerSignals::listen(&connection).await?;
        subscribe(&manager).await?;
        let listeners = Arc::new(BusListeners::default());
        let task = tokio::spawn(forward_signals(
            name.to_owned(),
            signals,
            manager.clone(),
            Arc::clone(&listeners),
        ));
        Ok(Self {
            connection,
            manager,
            listeners,
            task,
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.connection.is_closed() && !self.task.is_finished()
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn manager(&self) -> SystemdManagerProxy<'static> {
        self.manager.clone()
    }

    pub(super) fn job_waiter(&self) -> JobWaiter {
        self.listeners.job_waiter()
    }

    /// Queues a job and waits for its end. Errors name `unit`.
    pub(super) async fn job<F>(
        &self,
        manager: &str,
        unit: &str,
        queue: impl FnOnce(SystemdManagerProxy<'static>) -> F + Send,
    ) -> Result<JobResult, SystemdError>
    where
        F: Future<Output = zbus::Result<OwnedObjectPath>> + Send,
    {
        // The waiter is made before the job is queued: the job may end before the answer is read.
        let mut waiter = self.job_waiter();
        let job = queue(self.manager())
            .await
            .map_err(|error| error::map(manager, unit, error))?;
        waiter.result(job.as_str()).await.ok_or_else(|| {
            error::unreachable(
                manager,
                &format!("the connection ended while a job of {unit} ran"),
            )
        })
    }

    pub(super) fn events(&self) -> UnitEvents {
        self.listeners.events()
    }
}

async fn subscribe(manager: &SystemdManagerProxy<'_>) -> zbus::Result<()> {
    match manager.subscribe().await {
        Err(zbus::Error::MethodError(name, ..))
            if name.as_str() == "org.freedesktop.systemd1.AlreadySubscribed" =>
        {
            Ok(())
        }
        other => other,
    }
}

/// The signals of one manager. Every process on a bus can send a signal of any name, so the sender
/// is compared with the unique name that owns `org.freedesktop.systemd1`.
struct ManagerSignals {
    manager: MessageStream,
    properties: MessageStream,
    owners: MessageStream,
    /// Whether the connection is to a bus with names, and not to a peer directly.
    on_bus: bool,
    owner: Option<String>,
}

impl ManagerSignals {
    async fn listen(connection: &Connection) -> zbus::Result<Self> {
        let manager = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(SYSTEMD)
            .path(SYSTEMD_PATH)
            .interface(SYSTEMD_MANAGER)
            .build()?;
        let properties = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender(SYSTEMD)
            .path_namespace("/org/freedesktop/systemd1/unit")
            .interface("org.freedesktop.DBus.Properties")
            .member("PropertiesChanged")
            .build()?;
        let owners = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender("org.freedesktop.DBus")
            .interface("org.freedesktop.DBus")
            .member("NameOwnerChanged")
            .add_arg(SYSTEMD)
            .build()?;
        let queue = Some(SIGNALS_UNREAD);
        let owners = MessageStream::for_match_rule(owners, connection, queue).await?;
        let mut signals = Self {
            manager: MessageStream::for_match_rule(manager, connection, queue).await?,
            properties: MessageStream::for_match_rule(properties, connection, queue).await?,
            owners,
            on_bus: connection.is_bus(),
            owner: None,
        };
        if signals.on_bus {
            let owner = DBusProxy::new(connection)
                .await?
                .get_name_owner(BusName::try_from(SYSTEMD)?)
                .await?;
            signals.owner = Some(owner.to_string());
        }
        Ok(signals)
    }

    fn is_from_owner(&self, message: &Message) -> bool {
        !self.on_bus
            || (self.owner.is_some()
                && message.header().sender().map(|sender| sender.as_str()) == self.owner.as_deref())
    }
}

/// Passes signals on until the connection ends.
async fn forward_signals(
    name: String,
    mut signals: ManagerSignals,
    manager: SystemdManagerProxy<'static>,
    listeners: Arc<BusListeners>,
) {
    loop {
        tokio::select! {
            message = signals.manager.next() => match message {
                Some(Ok(message)) if signals.is_from_owner(&message) => {
                    manager_signal(&message, &listeners);
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            },
            message = signals.properties.next() => match message {
                Some(Ok(message)) if signals.is_from_owner(&message) => {
                    let unit = message
                        .header()
                        .path()
                        .and_then(|path| unit_of_path(path.as_str()));
                    changed(unit.as_deref(), &listeners);
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            },
            message = signals.owners.next() => match message {
                Some(Ok(message)) => {
                    let Some(owner) = new_owner(message) else { continue };
                    signals.owner = owner;
                    // A restarted manager knows no earlier subscriber and no earlier job.
                    if signals.owner.is_none() || subscribe(&manager).await.is_err() {
                        break;
                    }
                    listeners.event(&UnitEvent::All);
                }
                Some(Err(_)) | None => break,
            },
        }
    }
    tracing::debug!(manager = name, "the connection to the manager ended");
    listeners.close();
}

/// The new owner of systemd's name; the outer `None` if the bus itself did not send the message.
fn new_owner(message: Message) -> Option<Option<String>> {
    let from_bus = message
        .header()
        .sender()
        .is_some_and(|sender| sender.as_str() == "org.freedesktop.DBus");
    let signal = NameOwnerChanged::from_message(message)?;
    let arguments = signal.args().ok()?;
    (from_bus && *arguments.name() == SYSTEMD).then(|| {
        arguments
            .new_owner()
            .as_ref()
            .map(|owner| owner.to_string())
    })
}

fn manager_signal(message: &Message, listeners: &BusListeners) {
    if let Some(signal) = JobRemoved::from_message(message.clone()) {
        if let Ok(arguments) = signal.args() {
            listeners.job_ended(
                arguments.job().as_str(),
                JobResult::from_word(arguments.result()),
            );
        }
    } else if let Some(signal) = UnitNew::from_message(message.clone()) {
        if let Ok(arguments) = signal.args() {
            changed(Some(arguments.id()), listeners);
        }
    } else if let Some(signal) = UnitRemoved::from_message(message.clone()) {
        if let Ok(arguments) = signal.args() {
            changed(Some(arguments.id()), listeners);
        }
    } else if let Some(signal) = Reloading::from_message(message.clone())
        && let Ok(arguments) = signal.args()
        && !arguments.active()
    {
        listeners.event(&UnitEvent::All);
    }
}

fn changed(unit: Option<&str>, listeners: &BusListeners) {
    if let Some(unit) = unit
        && unit.starts_with(PREFIX)
    {
        listeners.event(&UnitEvent::Changed(unit.to_owned()));
    }
}
