//! Where a container of an instance stands among the others, and the container that holds the network of all.

use std::borrow::Cow;

use serde::Serialize;

use super::{
    RenderError, RenderSettings, Renderer, UnitFile, UnitFileKind, instance::start_seconds,
};
use kat_types::{
    assignment::Assignment,
    network::ANNOTATION,
    resource::{Container, OtherKind},
};

/// One container among those of its instance.
#[derive(Debug)]
pub(super) struct Place {
    unit: String,
    name: String,
    /// What it is; nothing for the main one.
    pub(super) kind: Option<OtherKind>,
    /// The container whose network it shares.
    pub(super) network: Option<String>,
    /// Units that run before it, and without which it does not.
    pub(super) requires: Vec<String>,
    /// Units that are started before it, if they can be.
    pub(super) wants: Vec<String>,
    /// The instance is started by the agent alone.
    pub(super) asks_first: bool,
}

impl Place {
    /// One for each container, with the instance as if that were its only one: the main one first, then the
    /// init containers in their order, then the sidecars.
    ///
    /// The network is held before anything else, each init container runs when the one before has ended, sidecars when
    /// all have, and the main one when the sidecars were started. systemd stops them the other way round.
    pub(super) fn all(assignment: &Assignment) -> Vec<(Self, Cow<'_, Assignment>)> {
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

    /// The unit's name without `.service`, the container's name too.
    pub(super) fn stem(&self) -> &str {
        stem_of(&self.unit)
    }

    /// It runs before the main one.
    pub(super) fn is_init(&self) -> bool {
        self.kind == Some(OtherKind::Init)
    }

    /// In words; nothing for the main one.
    pub(super) fn other(&self) -> Option<String> {
        self.kind.map(|kind| format!("{kind} {}", self.name))
    }

    /// A key that is passed through, as far as it is this container's: settings of a shared network, and names of
    /// hosts, are those of the container that holds it.
    pub(super) fn quadlet_value(&self, key: &str, value: &str) -> Option<String> {
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

/// A setting of the kernel's that belongs to a network namespace.
fn of_network(setting: &str) -> bool {
    setting.starts_with("net.")
}

/// What `network.container` is rendered from.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    add_host: Option<&'a str>,
    sysctl: String,
    start_timeout: u32,
}

impl Renderer {
    /// The container that holds the network which those of an instance share.
    pub(super) fn network(
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
