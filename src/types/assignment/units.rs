//! The containers of an instance beside its main one, and the names of their units.
//!
//! Names of namespaces, workloads, instances and containers have no underscore, so that no unit of one instance has the
//! name of another's.

use std::borrow::Cow;

use super::{Assignment, unit_name};
use crate::resource::{Container, OtherKind, VolumeMount, stop_seconds};

/// What follows the instance in the name of the unit that holds its network.
const NETWORK: &str = "net";

impl Assignment {
    /// It has init containers or sidecars.
    pub fn has_others(&self) -> bool {
        !self.init_containers.is_empty() || !self.sidecars.is_empty()
    }

    /// Its init containers in their order, then its sidecars.
    pub fn others(&self) -> impl Iterator<Item = (OtherKind, &Container)> {
        let inits = self.init_containers.iter();
        let inits = inits.map(|one| (OtherKind::Init, one));
        inits.chain(self.sidecars.iter().map(|one| (OtherKind::Sidecar, one)))
    }

    /// What all its containers mount.
    pub fn mounts(&self) -> impl Iterator<Item = &VolumeMount> {
        let others = self.others().map(|(_, one)| one);
        std::iter::once(&self.container)
            .chain(others)
            .flat_map(|one| &one.volume_mounts)
    }

    /// The images that its containers run, as Podman is told to pull them, the main one's first.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        let others = self.others().map(|(_, one)| one.image.as_ref());
        let others = others.map(|image| image.unwrap_or(&self.image));
        std::iter::once(&self.image)
            .chain(others)
            .map(String::as_str)
    }

    /// What its containers use together: see [`Container::together`].
    pub fn together(&self) -> Cow<'_, Container> {
        Container::together(&self.container, &self.init_containers, &self.sidecars)
    }

    /// The same instance as if this container of it were its only one.
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

    /// One for each of its containers, as if that were the only one; the main one first.
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

    /// The unit that holds the network which all its containers share, if there is one: a network that only the main
    /// container uses is that container's own, and that of the machine needs nobody.
    pub fn network_unit(&self) -> Option<String> {
        let holds = self.has_others() && !self.container.host_network;
        holds.then(|| self.beside(NETWORK))
    }

    /// The unit whose process asks for the network.
    pub fn asking_unit(&self) -> String {
        self.network_unit().unwrap_or_else(|| self.unit())
    }

    /// The unit of a container beside the main one.
    pub fn other_unit(&self, kind: OtherKind, container: &Container) -> String {
        let name = container.name.as_deref().unwrap_or_default();
        self.beside(&format!("{}-{name}", kind.word()))
    }

    /// The unit of the container with this name; nothing for a name that it has not.
    pub fn unit_of(&self, name: &str) -> Option<String> {
        if self.container.name.as_deref() == Some(name) {
            return Some(self.unit());
        }
        let mut others = self.others();
        let (kind, container) = others.find(|(_, one)| one.name.as_deref() == Some(name))?;
        Some(self.other_unit(kind, container))
    }

    /// The names of its containers, the main one's first where it has one.
    pub fn container_names(&self) -> Vec<&str> {
        let others = self.others().map(|(_, one)| one);
        std::iter::once(&self.container)
            .chain(others)
            .filter_map(|one| one.name.as_deref())
            .collect()
    }

    /// Seconds that it may take from its stop signal to its end.
    pub fn stop_seconds(&self) -> u32 {
        stop_seconds(&self.container, &self.init_containers, &self.sidecars)
    }

    fn beside(&self, what: &str) -> String {
        let unit = unit_name(&self.namespace, &self.instance);
        let stem = unit.strip_suffix(".service").unwrap_or(&unit);
        format!("{stem}_{what}.service")
    }
}

/// The main unit of the instance that a unit belongs to.
pub fn main_unit(unit: &str) -> Cow<'_, str> {
    match unit.split_once('_') {
        Some((stem, _)) => Cow::Owned(format!("{stem}.service")),
        None => Cow::Borrowed(unit),
    }
}
