//! Init containers and sidecars of an instance, and the names of their units.
//!
//! Names of namespaces, workloads, instances and containers have no underscore, so that units of
//! different instances have different names.

use std::borrow::Cow;

use super::{Assignment, unit_name};
use crate::resource::{Container, OtherKind, VolumeMount, stop_seconds};

/// Suffix of the name of the unit that holds an instance's network.
const NETWORK: &str = "net";

impl Assignment {
    /// Whether it has init containers or sidecars.
    pub fn has_others(&self) -> bool {
        !self.init_containers.is_empty() || !self.sidecars.is_empty()
    }

    /// Its init containers in their order, then its sidecars.
    pub fn others(&self) -> impl Iterator<Item = (OtherKind, &Container)> {
        let inits = self.init_containers.iter();
        let inits = inits.map(|one| (OtherKind::Init, one));
        inits.chain(self.sidecars.iter().map(|one| (OtherKind::Sidecar, one)))
    }

    /// The volume mounts of all its containers.
    pub fn mounts(&self) -> impl Iterator<Item = &VolumeMount> {
        let others = self.others().map(|(_, one)| one);
        std::iter::once(&self.container)
            .chain(others)
            .flat_map(|one| &one.volume_mounts)
    }

    /// The images of its containers, in the form in which Podman pulls them, the main one's first.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        let others = self.others().map(|(_, one)| one.image.as_ref());
        let others = others.map(|image| image.unwrap_or(&self.image));
        std::iter::once(&self.image)
            .chain(others)
            .map(String::as_str)
    }

    /// Its containers combined into one: see [`Container::together`].
    pub fn together(&self) -> Cow<'_, Container> {
        Container::together(&self.container, &self.init_containers, &self.sidecars)
    }

    /// The instance as if this container were its only one.
    pub fn only(&self, container: &Container) -> Self {
        let image = container.image.as_ref();
        Self {
            image: image.unwrap_or(&self.image).clone(),
            container: Container {
                host_network: self.container.host_network,
                ..container.clone()
            },
            init_containers: Vec::new(),
            sidecars: Vec::new(),
            ..self.clone()
        }
    }

    /// The instance once for each of its containers, as if that were the only one; the main one
    /// first.
    pub fn each(&self) -> Vec<Cow<'_, Self>> {
        if !self.has_others() {
            return vec![Cow::Borrowed(self)];
        }
        let others = self.others().map(|(_, one)| self.only(one));
        std::iter::once(self.only(&self.container))
            .chain(others)
            .map(Cow::Owned)
            .collect()
    }

    /// The unit that holds the network that all its containers share, if there is one. A network
    /// that only the main container uses is that container's own, and the machine's network needs
    /// no unit.
    pub fn network_unit(&self) -> Option<String> {
        let holds = self.has_others() && !self.container.host_network;
        holds.then(|| self.beside(NETWORK))
    }

    /// The unit whose process requests the network.
    pub fn asking_unit(&self) -> String {
        self.network_unit().unwrap_or_else(|| self.unit())
    }

    /// The unit of an init container or a sidecar.
    pub fn other_unit(&self, kind: OtherKind, container: &Container) -> String {
        let name = container.name.as_deref().unwrap_or_default();
        self.beside(&format!("{}-{name}", kind.word()))
    }

    /// The units of all its containers, the main one's first, and that of its network last.
    pub fn units(&self) -> Vec<String> {
        let others = self.others().map(|(kind, one)| self.other_unit(kind, one));
        std::iter::once(self.unit())
            .chain(others)
            .chain(self.network_unit())
            .collect()
    }

    /// The unit of the container with this name; `None` if there is no such container.
    pub fn unit_of(&self, name: &str) -> Option<String> {
        if self.container.name.as_deref() == Some(name) {
            return Some(self.unit());
        }
        let mut others = self.others();
        let (kind, container) = others.find(|(_, one)| one.name.as_deref() == Some(name))?;
        Some(self.other_unit(kind, container))
    }

    /// The names of its containers, the main one's first if it has one.
    pub fn container_names(&self) -> Vec<&str> {
        let others = self.others().map(|(_, one)| one);
        std::iter::once(&self.container)
            .chain(others)
            .filter_map(|one| one.name.as_deref())
            .collect()
    }

    /// Maximum seconds from its stop signal to its end.
    pub fn stop_seconds(&self) -> u32 {
        stop_seconds(&self.container, &self.init_containers, &self.sidecars)
    }

    fn beside(&self, what: &str) -> String {
        let unit = unit_name(&self.namespace, &self.instance);
        let stem = unit.strip_suffix(".service").unwrap_or(&unit);
        format!("{stem}_{what}.service")
    }
}

/// The main unit of the instance to which a unit belongs.
pub fn main_unit(unit: &str) -> Cow<'_, str> {
    match unit.split_once('_') {
        Some((stem, _)) => Cow::Owned(format!("{stem}.service")),
        None => Cow::Borrowed(unit),
    }
}
