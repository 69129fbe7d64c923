//! The objects behind `rip.dws.kat1`.
#![allow(
    clippy::disallowed_types,
    reason = "the interface macro answers GetAll with a HashMap"
)]

use std::sync::Arc;

use zbus::{DBusError, OwnedObjectPath, object_server::SignalEmitter, wire::ObjectPath};

use super::{PublishedInstance, PublishedState, instance_path};
use kat_types::VERSION;

/// Why a call failed.
#[derive(Debug, DBusError)]
#[zbus(prefix = "rip.dws.kat1.Error")]
pub(super) enum CallError {
    /// A D-Bus error.
    #[zbus(error)]
    ZBus(zbus::Error),
    NoSuchInstance(String),
}

/// An instance in the list of instances: id, namespace, workload, phase, health, unit, uid, object.
type ListedInstance = (
    String,
    String,
    String,
    String,
    String,
    String,
    u32,
    OwnedObjectPath,
);

pub(super) struct ManagerObject {
    state: Arc<PublishedState>,
}

impl ManagerObject {
    pub(super) fn new(state: Arc<PublishedState>) -> Self {
        Self { state }
    }

    pub(super) fn set(&mut self, state: Arc<PublishedState>) {
        self.state = state;
    }
}

fn object_of(id: &str) -> Result<OwnedObjectPath, CallError> {
    Ok(OwnedObjectPath::try_from(instance_path(id))?)
}

#[zbus::interface(name = "rip.dws.kat1.Manager", introspection_docs = false)]
impl ManagerObject {
    #[zbus(property)]
    fn node(&self) -> &str {
        &self.state.node
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> &str {
        VERSION
    }

    #[zbus(property)]
    fn leader(&self) -> bool {
        self.state.leader
    }

    #[zbus(property)]
    fn cluster_name(&self) -> &str {
        &self.state.cluster
    }

    #[zbus(property)]
    fn status(&self) -> &str {
        &self.state.status
    }

    #[zbus(out_args("instances"))]
    fn list_instances(&self) -> Result<Vec<ListedInstance>, CallError> {
        self.state
            .instances
            .iter()
            .map(|(id, instance)| {
                Ok((
                    id.clone(),
                    instance.namespace.clone(),
                    instance.workload.clone(),
                    instance.phase.clone(),
                    instance.health.clone(),
                    instance.unit.clone(),
                    instance.uid,
                    object_of(id)?,
                ))
            })
            .collect()
    }

    #[zbus(out_args("instance"))]
    fn get_instance(&self, id: &str) -> Result<OwnedObjectPath, CallError> {
        if self.state.instances.contains_key(id) {
            object_of(id)
        } else {
            Err(CallError::NoSuchInstance(format!(
                "no instance {id} on this machine"
            )))
        }
    }

    #[zbus(signal)]
    async fn instance_changed(
        emitter: &SignalEmitter<'_>,
        id: &str,
        instance: ObjectPath<'_>,
        phase: &str,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn instance_removed(
        emitter: &SignalEmitter<'_>,
        id: &str,
        instance: ObjectPath<'_>,
    ) -> zbus::Result<()>;

    // The name `node_changed` would conflict with the function of the property `Node`.
    #[zbus(signal, name = "NodeChanged")]
    async fn any_node_property_changed(
        emitter: &SignalEmitter<'_>,
        node: &str,
        status: &str,
    ) -> zbus::Result<()>;
}

pub(super) struct InstanceObject {
    id: String,
    instance: PublishedInstance,
}

impl InstanceObject {
    pub(super) fn new(id: &str, instance: &PublishedInstance) -> Self {
        Self {
            id: id.to_owned(),
            instance: instance.clone(),
        }
    }

    pub(super) fn set(&mut self, instance: &PublishedInstance) {
        self.instance = instance.clone();
    }
}

#[zbus::interface(name = "rip.dws.kat1.Instance", introspection_docs = false)]
impl InstanceObject {
    #[zbus(property(emits_changed_signal = "const"))]
    fn id(&self) -> &str {
        &self.id
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn namespace(&self) -> &str {
        &self.instance.namespace
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn workload(&self) -> &str {
        &self.instance.workload
    }

    #[zbus(property)]
    fn phase(&self) -> &str {
        &self.instance.phase
    }

    #[zbus(property)]
    fn reason(&self) -> &str {
        &self.instance.reason
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn unit(&self) -> &str {
        &self.instance.unit
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn user(&self) -> &str {
        &self.instance.user
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn uid(&self) -> u32 {
        self.instance.uid
    }

    #[zbus(property)]
    fn address(&self) -> &str {
        &self.instance.address
    }

    #[zbus(property)]
    fn image(&self) -> &str {
        &self.instance.image
    }

    #[zbus(property)]
    fn restarts(&self) -> u32 {
        self.instance.restarts
    }

    #[zbus(property)]
    fn generation(&self) -> u64 {
        self.instance.generation
    }

    #[zbus(property)]
    fn health(&self) -> &str {
        &self.instance.health
    }
}
