//! What containers have of their machine, and what does not go with it.

use super::{
    cross::Document,
    diagnostic::{Class, Diagnostic, quote},
    yaml::item_path,
};
use crate::resource::{Device, VirtualLoadBalancerSpec, WorkloadSpec};

/// Checks the main container, with the ports of its load balancer.
pub(super) fn check(
    document: &Document<'_>,
    spec: &WorkloadSpec,
    balancer: Option<(&Document<'_>, &VirtualLoadBalancerSpec)>,
    found: &mut Vec<Diagnostic>,
) {
    let container = &spec.container;
    let mut places = Vec::new();
    for (index, entry) in container.devices.iter().enumerate() {
        let Some(Device {
            container: place, ..
        }) = Device::parse(entry)
        else {
            continue;
        };
        if places.contains(&place) {
            let path = item_path("spec.container.devices", index);
            let message = format!("two devices at `{}` in the container", quote(place));
            let message = document.at_value(Class::CrossFile, &path, message);
            found.push(message.hint("write `HOST:CONTAINER` with another path in the container"));
        }
        places.push(place);
    }
    if !container.host_network {
        return;
    }
    if let Some(value) = container.quadlet.get("Sysctl")
        && value.split_whitespace().any(|one| one.starts_with("net."))
    {
        let message = "settings of the network are the machine's own with hostNetwork".to_owned();
        let path = "spec.container.quadlet.Sysctl";
        let message = document.at_value(Class::CrossFile, path, message);
        found.push(message.hint("leave those that begin with `net.` out"));
    }
    let Some((document, balancer)) = balancer else {
        return;
    };
    for (index, port) in balancer.ports.iter().enumerate() {
        if port.host_port.is_some() {
            let path = format!("{}.hostPort", item_path("spec.ports", index));
            let message = "the program has the machine's ports itself with hostNetwork".to_owned();
            let message = document.at_value(Class::CrossFile, &path, message);
            found.push(message.hint("leave hostPort out"));
        }
    }
}
