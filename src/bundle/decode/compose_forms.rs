//! Hints for values that are written as in Compose files.

use super::PathValue;
use crate::yaml::YamlValue;

/// How to write a value that has the form of a Compose file; `None` for any other value.
pub(super) fn hint(at: &PathValue<'_>) -> Option<String> {
    let last = at.path.rsplit('.').next().unwrap_or_default();
    let (name, is_item) = match last.split_once('[') {
        Some((name, _)) => (name, true),
        None => (last, false),
    };
    match (name, is_item, &at.node.value) {
        ("env", false, YamlValue::Mapping(_)) | ("env", true, YamlValue::Scalar { .. }) => {
            Some("write each variable as `- {name: NAME, value: \"VALUE\"}`".to_owned())
        }
        ("ports", true, YamlValue::Scalar { text, .. }) => Some(port(text)),
        _ => None,
    }
}

/// A port as Compose writes it: `[[ADDRESS:]HOST:]CONTAINER[/PROTOCOL]`.
fn port(text: &str) -> String {
    let (numbers, protocol) = text.split_once('/').unwrap_or((text, ""));
    let mut from_the_end = numbers.rsplit(':').map(|part| part.parse::<u16>().ok());
    let container = from_the_end.next().flatten();
    let host = from_the_end.next().flatten();
    let protocol = match protocol.eq_ignore_ascii_case("udp") {
        true => ", protocol: UDP",
        false => "",
    };
    match (container, host) {
        (Some(container), Some(host)) => {
            format!("write `- {{containerPort: {container}, hostPort: {host}{protocol}}}`")
        }
        (Some(container), None) => format!("write `- {{containerPort: {container}{protocol}}}`"),
        (None, _) => "write each port as `- {containerPort: 8080, hostPort: 80}`".to_owned(),
    }
}
