//! KAT's own name on the system bus, `rip.dws.kat1`: read-only objects for this machine's node and
//! instances. `dbus/rip.dws.kat1.xml` is the interface; a test compares it with the served objects.

mod objects;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use zbus::{
    Connection, Variant, fdo::RequestNameFlags, object_server::SignalEmitter, wire::ObjectPath,
};

use self::objects::{InstanceObject, ManagerObject, ManagerObjectSignals};
use super::{Connector, SystemBus, path::escape};
use kat_types::backoff::Backoff;

/// KAT's bus name.
pub const NAME: &str = "rip.dws.kat1";
/// Path of the machine's object.
pub const PATH: &str = "/rip/dws/kat1";
/// Interface of the machine.
pub const MANAGER: &str = "rip.dws.kat1.Manager";
/// Interface of an instance.
pub const INSTANCE: &str = "rip.dws.kat1.Instance";

const DELAYS: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// The published state of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedState {
    pub node: String,
    pub leader: bool,
    pub cluster: String,
    pub status: String,
    /// Instances by id.
    pub instances: BTreeMap<String, PublishedInstance>,
}

/// The published state of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedInstance {
    pub namespace: String,
    pub workload: String,
    /// Phase, as `katcall get instances` shows it.
    pub phase: String,
    /// Reason, as one word, or empty.
    pub reason: String,
    /// Its main unit.
    pub unit: String,
    /// Name of its user.
    pub user: String,
    /// Uid of its user.
    pub uid: u32,
    /// Address on the overlay, or empty.
    pub address: String,
    pub image: String,
    pub restarts: u32,
    /// Generation of the workload.
    pub generation: u64,
    pub health: String,
}

/// Why the name can't be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("{0}")]
    Unreachable(String),
    #[error("{NAME}: {0}")]
    Refused(#[from] zbus::Error),
    /// The connection ended.
    #[error("{NAME}: the connection to the bus ended")]
    Closed,
}

/// Path of an instance's object.
pub fn instance_path(id: &str) -> String {
    format!("{PATH}/instance/{}", escape(id))
}

/// Publishes on the system bus until the sender of `state` is gone. After a lost connection or a
/// refusal it retries, first after 200 ms, at most every 30 s.
pub async fn publish_until_closed(state: watch::Receiver<Arc<PublishedState>>) {
    let mut delays = DELAYS.pauses();
    loop {
        let result = match SystemBus.connect().await {
            Ok(connection) => serve(connection, state.clone()).await,
            Err(reason) => Err(PublishError::Unreachable(reason)),
        };
        match result {
            Ok(()) => return,
            Err(PublishError::Closed) => delays.reset(),
            Err(error) => tracing::warn!("not published on the system bus: {error:#}"),
        }
        sleep(delays.next_pause()).await;
        if state.has_changed().is_err() {
            return;
        }
    }
}

/// Publishes on a connection. Returns `Ok` when the sender of `state` is gone, and
/// [`PublishError::Closed`] when the connection ends.
pub async fn serve(
    connection: Connection,
    mut state: watch::Receiver<Arc<PublishedState>>,
) -> Result<(), PublishError> {
    let mut shown = Arc::clone(&state.borrow_and_update());
    let server = connection.object_server();
    server
        .at(PATH, ManagerObject::new(Arc::clone(&shown)))
        .await?;
    for (id, instance) in &shown.instances {
        server
            .at(instance_path(id), InstanceObject::new(id, instance))
            .await?;
    }
    // The name is requested last, so that all objects exist when it appears.
    if connection.is_bus() {
        connection
            .request_name_with_flags(NAME, RequestNameFlags::DO_NOT_QUEUE)
            .await?;
    }
    loop {
        tokio::select! {
            () = connection.closed() => return Err(PublishError::Closed),
            changed = state.changed() => if changed.is_err() {
                // Closing makes the name disappear at once; an error leaves nothing behind.
                let _ = connection.close().await;
                return Ok(());
            },
        }
        let wanted = Arc::clone(&state.borrow_and_update());
        if *wanted != *shown {
            update(&connection, &shown, &wanted).await?;
            shown = wanted;
        }
    }
}

/// Updates the objects from one state to the next, and sends signals for the changes.
async fn update(
    connection: &Connection,
    old: &PublishedState,
    new: &Arc<PublishedState>,
) -> Result<(), PublishError> {
    let server = connection.object_server();
    let manager = server.interface::<_, ManagerObject>(PATH).await?;
    manager.get_mut().await.set(Arc::clone(new));
    let emitter = manager.signal_emitter();
    let changed = node_changes(old, new);
    if !changed.is_empty() {
        properties_changed(emitter, MANAGER, changed).await?;
        emitter
            .any_node_property_changed(&new.node, &new.status)
            .await?;
    }
    for id in old.instances.keys() {
        if !new.instances.contains_key(id) {
            let path = ObjectPath::try_from(instance_path(id))?;
            server.remove::<InstanceObject, _>(&path).await?;
            emitter.instance_removed(id, path).await?;
        }
    }
    for (id, instance) in &new.instances {
        let path = ObjectPath::try_from(instance_path(id))?;
        match old.instances.get(id) {
            Some(before) if before == instance => continue,
            Some(before) => {
                let object = server.interface::<_, InstanceObject>(&path).await?;
                object.get_mut().await.set(instance);
                let changed = instance_changes(before, instance);
                properties_changed(object.signal_emitter(), INSTANCE, changed).await?;
            }
            None => {
                server.at(&path, InstanceObject::new(id, instance)).await?;
            }
        }
        emitter.instance_changed(id, path, &instance.phase).await?;
    }
    Ok(())
}

/// Sends all changed properties of an object in one signal.
async fn properties_changed(
    emitter: &SignalEmitter<'_>,
    interface: &str,
    changed: BTreeMap<&str, Variant<'_>>,
) -> zbus::Result<()> {
    emitter
        .emit(
            "org.freedesktop.DBus.Properties",
            "PropertiesChanged",
            &(interface, changed, Vec::<&str>::new()),
        )
        .await
}

fn node_changes<'a>(
    old: &PublishedState,
    new: &'a PublishedState,
) -> BTreeMap<&'static str, Variant<'a>> {
    let mut changed = BTreeMap::new();
    for (name, before, after) in [
        ("Node", &old.node, &new.node),
        ("ClusterName", &old.cluster, &new.cluster),
        ("Status", &old.status, &new.status),
    ] {
        if before != after {
            changed.insert(name, Variant::new(after.as_str()));
        }
    }
    if old.leader != new.leader {
        changed.insert("Leader", Variant::new(new.leader));
    }
    changed
}

fn instance_changes<'a>(
    old: &PublishedInstance,
    new: &'a PublishedInstance,
) -> BTreeMap<&'static str, Variant<'a>> {
    let mut changed = BTreeMap::new();
    for (name, before, after) in [
        ("Phase", &old.phase, &new.phase),
        ("Reason", &old.reason, &new.reason),
        ("Address", &old.address, &new.address),
        ("Image", &old.image, &new.image),
        ("Health", &old.health, &new.health),
    ] {
        if before != after {
            changed.insert(name, Variant::new(after.as_str()));
        }
    }
    if old.restarts != new.restarts {
        changed.insert("Restarts", Variant::new(new.restarts));
    }
    if old.generation != new.generation {
        changed.insert("Generation", Variant::new(new.generation));
    }
    changed
}

#[cfg(test)]
mod tests;
