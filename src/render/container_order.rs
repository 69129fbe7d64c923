//! The position of each container of an instance among the others, and the container that holds
//! their shared network.

use std::{borrow::Cow, collections::BTreeSet};

use serde::Serialize;

use super::{RenderError, RenderSettings, Renderer, UnitFile, UnitFileKind};
use crate::instance_quadlets::start_seconds;
use kat_types::{
    assignment::Assignment,
    machine::network::ANNOTATION,
    resource::{Container, OtherKind},
};

/// The position of a container in its instance.
#[derive(Debug)]
pub(crate) struct ContainerPosition {
    unit: String,
    name: String,
    /// `None` for the main container.
    pub(crate) kind: Option<OtherKind>,
    /// The container whose network it shares.
    pub(crate) network: Option<String>,
    /// Units that have to run before it.
    pub(crate) requires: Vec<String>,
    /// Units that are started before it; their failure does not stop it.
    pub(crate) wants: Vec<String>,
    /// Whether only the agent may start the instance.
    pub(crate) asks_first: bool,
}

impl ContainerPosition {
    /// One entry for each container, with the instance reduced to that container: the main one
    /// first, then the init containers in their order, then the sidecars.
    ///
    /// The network holder starts first. Each init container starts after the previous one has
    /// ended, sidecars after all of them, and the main container after the sidecars were started.
    /// systemd stops them in reverse order.
    pub(crate) fn all(assignment: &Assignment) -> Vec<(Self, Cow<'_, Assignment>)> {
        let network = assignment.network_unit();
        let place = |unit: String, container: &Container, kind| Self {
            name: container.name.clone().unwrap_or_default(),
            kind,
            network: network.as_deref().map(|unit| stem_of(unit).to_owned()),
            requires: network.iter().cloned().collect(),
            wants: Vec::new(),
            asks_first: assignment.asks_first(),
            unit,
        };
        let mut main = place(assignment.unit(), &assignment.container, None);
        let mut others = Vec::new();
        let mut before: Option<String> = None;
        for (kind, container) in assignment.others() {
            let unit = assignment.other_unit(kind, container);
            let mut one = place(unit.clone(), container, Some(kind));
            one.requires.extend(before.clone());
            match kind {
                OtherKind::Init => {
                    main.requires.push(unit.clone());
                    before = Some(unit);
                }
                OtherKind::Sidecar => main.wants.push(unit),
            }
            others.push((one, Cow::Owned(assignment.only(container))));
        }
        let own = match others.is_empty() {
            true => Cow::Borrowed(assignment),
            false => Cow::Owned(assignment.only(&assignment.container)),
        };
        let mut all = vec![(main, own)];
        all.extend(others);
        all
    }

    /// The unit's name without `.service`, which is also the container's name.
    pub(crate) fn stem(&self) -> &str {
        stem_of(&self.unit)
    }

    /// Whether it is an init container.
    pub(crate) fn is_init(&self) -> bool {
        self.kind == Some(OtherKind::Init)
    }

    /// Such as `sidecar proxy`; `None` for the main container.
    pub(crate) fn other(&self) -> Option<String> {
        self.kind.map(|kind| format!("{kind} {}", self.name))
    }

    /// The value of a passed-through quadlet key for this container. Settings of a shared network
    /// and host names belong to the container that holds the network.
    pub(crate) fn quadlet_value(&self, key: &str, value: &str) -> Option<String> {
        match (key, &self.network) {
            ("AddHost", Some(_)) => return None,
            ("Sysctl", Some(_)) => {}
            _ => return Some(value.to_owned()),
        }
        let own = value.split_whitespace().filter(|one| !of_network(one));
        let own: Vec<&str> = own.collect();
        (!own.is_empty()).then(|| own.join(" "))
    }
}

fn stem_of(unit: &str) -> &str {
    unit.strip_suffix(".service").unwrap_or(unit)
}

/// Whether a sysctl belongs to a network namespace.
fn of_network(setting: &str) -> bool {
    setting.starts_with("net.")
}

/// Values of the template `network.container`.
#[derive(Debug, Serialize)]
struct NetworkValues<'a> {
    instance: &'a str,
    namespace: &'a str,
    workload: &'a str,
    unit: &'a str,
    root: String,
    annotation: &'static str,
    address: String,
    hooks_folder: String,
    hook_program: String,
    hook_file: String,
    resolv_file: String,
    /// Host names of the containers, apart from the instance's name: only the holder of the network
    /// can have entries of /etc/hosts.
    host_names: BTreeSet<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    add_host: Option<&'a str>,
    sysctl: String,
    start_timeout: u32,
}

impl Renderer {
    /// The container that holds the shared network of an instance's containers.
    pub(crate) fn network(
        &self,
        assignment: &Assignment,
        settings: &RenderSettings,
    ) -> Result<UnitFile, RenderError> {
        let unit = assignment.asking_unit();
        let stem = stem_of(&unit);
        let sysctl = assignment.container.quadlet.get("Sysctl");
        let sysctl: Vec<&str> = sysctl
            .into_iter()
            .flat_map(|value| value.split_whitespace())
            .filter(|one| of_network(one))
            .collect();
        let containers = std::iter::once(&assignment.container)
            .chain(&assignment.init_containers)
            .chain(&assignment.sidecars);
        let mut host_names: BTreeSet<&str> = containers
            .filter_map(|container| container.hostname.as_deref())
            .collect();
        host_names.remove(assignment.instance.as_str());
        let values = NetworkValues {
            instance: &assignment.instance,
            namespace: &assignment.namespace,
            workload: &assignment.workload,
            unit: stem,
            root: settings.holder_folder.display().to_string(),
            annotation: ANNOTATION,
            address: assignment.address.to_string(),
            hooks_folder: settings.hooks_folder.display().to_string(),
            hook_program: settings.hook_program.display().to_string(),
            hook_file: settings.hook_file().display().to_string(),
            resolv_file: settings
                .resolv_file(&assignment.namespace)
                .display()
                .to_string(),
            host_names,
            add_host: assignment
                .container
                .quadlet
                .get("AddHost")
                .map(String::as_str),
            sysctl: sysctl.join(" "),
            start_timeout: start_seconds(settings),
        };
        Ok(UnitFile {
            name: format!("{stem}.container"),
            text: self.render("network.container", &values)?,
            kind: UnitFileKind::Quadlet,
        })
    }
}
