//! Rules about what containers use of their machine, and what can't be combined with it.

use super::{
    diagnostic::{Class, Diagnostic, quote},
    yaml::item_path,
};
use crate::cross_file_rules::ParsedDocument;
use kat_types::resource::{
    Container, DeviceMapping, GpuRequest, Port, WorkloadSpec, security::PROFILES,
};

/// Checks the containers.
pub(super) fn check(
    document: &ParsedDocument<'_>,
    spec: &WorkloadSpec,
    found: &mut Vec<Diagnostic>,
) {
    check_gpus(document, spec, found);
    for (path, container) in spec.containers() {
        check_devices(document, &path, container, found);
        check_profile(document, &path, container, found);
        let is_main = path == "spec.container";
        let message = match (spec.container.host_network, is_main) {
            (true, _) => "settings of the network are the machine's own with hostNetwork",
            (false, false) => {
                "settings of the network are those of all containers of an instance, which quadlet.Sysctl of spec.container has"
            }
            (false, true) => continue,
        };
        if let Some(value) = container.quadlet.get("Sysctl")
            && value.split_whitespace().any(is_of_network)
        {
            let path = format!("{path}.quadlet.Sysctl");
            let message = document.at_value(Class::CrossFile, &path, message.to_owned());
            found.push(message.hint("leave those that begin with `net.` out"));
        }
    }
    // Podman applies them to the container that has the network (podman-run(1), --add-host).
    let others = spec.containers().skip(1);
    for (path, _) in others.filter(|(_, one)| one.quadlet.contains_key("AddHost")) {
        let path = format!("{path}.quadlet.AddHost");
        let message = "names of hosts are those of all containers of an instance, which quadlet.AddHost of spec.container has";
        let message = document.at_value(Class::CrossFile, &path, message.to_owned());
        found.push(message.hint("leave it out"));
    }
}

/// Checks the ports that a document has against the main container.
pub(super) fn check_ports(
    document: &ParsedDocument<'_>,
    spec: &WorkloadSpec,
    ports: &[Port],
    found: &mut Vec<Diagnostic>,
) {
    if !spec.container.host_network {
        return;
    }
    for (index, port) in ports.iter().enumerate() {
        if port.host_port.is_some() {
            let path = format!("{}.hostPort", item_path("spec.ports", index));
            let message = "the program has the machine's ports itself with hostNetwork".to_owned();
            let message = document.at_value(Class::CrossFile, &path, message);
            found.push(message.hint("leave hostPort out"));
        }
    }
}

/// Whether a kernel setting belongs to a network namespace.
fn is_of_network(setting: &str) -> bool {
    setting.starts_with("net.")
}

/// A seccomp profile affects the machine's kernel, so only root of the machine chooses
/// which ones are allowed.
fn check_profile(
    document: &ParsedDocument<'_>,
    path: &str,
    container: &Container,
    found: &mut Vec<Diagnostic>,
) {
    let Some(profile) = container.foreign_profile() else {
        return;
    };
    let path = format!("{path}.quadlet.SeccompProfile");
    let message = format!(
        "`{}` is neither a file below {PROFILES} nor `unconfined`",
        quote(profile)
    );
    let message = document.at_value(Class::CrossFile, &path, message);
    found.push(message.hint(format!("put the profile below {PROFILES} on the machines")));
}

/// The containers of an instance share one GPU, which has one vendor.
fn check_gpus(document: &ParsedDocument<'_>, spec: &WorkloadSpec, found: &mut Vec<Diagnostic>) {
    let requests = spec
        .containers()
        .filter_map(|(path, container)| Some((path, container.resources.gpu.as_ref()?)));
    let mut whole: Option<GpuRequest> = None;
    for (path, request) in requests {
        if let Some(whole) = &whole
            && whole.conflicts_with(request)
        {
            let path = format!("{path}.resources.gpu.driver");
            let message =
                "another container requests a GPU of another vendor, and an instance has one GPU";
            let message = document.at_value(Class::CrossFile, &path, message.to_owned());
            found.push(message.hint("write the same driver for all containers, or leave it out"));
        }
        whole = Some(match &whole {
            Some(whole) => whole.with(request),
            None => request.clone(),
        });
    }
}

fn check_devices(
    document: &ParsedDocument<'_>,
    path: &str,
    container: &Container,
    found: &mut Vec<Diagnostic>,
) {
    let mut places = Vec::new();
    for (index, entry) in container.devices.iter().enumerate() {
        let Some(DeviceMapping {
            container: place, ..
        }) = DeviceMapping::parse(entry)
        else {
            continue;
        };
        if places.contains(&place) {
            let path = item_path(&format!("{path}.devices"), index);
            let message = format!("two devices at `{}` in the container", quote(place));
            let message = document.at_value(Class::CrossFile, &path, message);
            found.push(message.hint("write `HOST:CONTAINER` with another path in the container"));
        }
        places.push(place);
    }
}
