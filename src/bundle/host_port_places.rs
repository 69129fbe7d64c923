//! The places of the files that name a host port.

use super::{
    CARRIED, SourceFile,
    diagnostic::{Class, Diagnostic},
    yaml::{self, YamlNode, YamlValue, item_path, key_path, locate},
};
use kat_types::resource::Protocol;

/// The list of ports, in the documents that may have one.
const PORTS: &str = "spec.ports";

/// A diagnostic for each place that names a host port; one for all of `ports_file` if no place is
/// found.
pub fn host_port_places(
    files: &[SourceFile],
    ports_file: &str,
    (port, protocol): (u16, Protocol),
    message: &str,
    hint: &str,
) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.name != CARRIED) {
        for root in &yaml::read(&file.name, &file.text, &mut Vec::new()).roots {
            for index in 0..count(root) {
                let item = item_path(PORTS, index);
                let path = key_path(&item, "hostPort");
                let Some((node, _)) = locate(root, &path) else {
                    continue;
                };
                let number = text(node).and_then(|text| text.parse::<u16>().ok());
                let written = locate(root, &key_path(&item, "protocol"));
                let written = written.and_then(|(node, _)| text(node));
                let is_of_protocol = written.unwrap_or(Protocol::Tcp.word()) == protocol.word();
                if number == Some(port) && is_of_protocol {
                    found.push(
                        Diagnostic::at(Class::Range, &file.name, node.span, message)
                            .path(path)
                            .hint(hint),
                    );
                }
            }
        }
    }
    if found.is_empty() {
        let diagnostic = Diagnostic::of_file(Class::Range, ports_file, message);
        found.push(diagnostic.hint(hint));
    }
    found
}

fn count(root: &YamlNode) -> usize {
    match locate(root, PORTS).map(|(node, _)| &node.value) {
        Some(YamlValue::Sequence(items)) => items.len(),
        _ => 0,
    }
}

fn text(node: &YamlNode) -> Option<&str> {
    match &node.value {
        YamlValue::Scalar { text, .. } => Some(text),
        YamlValue::Sequence(_) | YamlValue::Mapping(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str, port: (u16, Protocol)) -> Vec<String> {
        let files = [SourceFile {
            name: "VirtualLoadBalancer.kat".to_owned(),
            text: text.to_owned(),
        }];
        let file = "VirtualLoadBalancer.kat";
        let found = host_port_places(&files, file, port, "it is taken", "write another one");
        let found = found.iter().map(|one| {
            let Diagnostic {
                file,
                line,
                column,
                path,
                ..
            } = one;
            format!("{file}:{line}:{column} {path}")
        });
        found.collect()
    }

    #[test]
    fn a_host_port_is_found_by_its_number_and_its_protocol() {
        let text = "kind: VirtualLoadBalancer\nspec:\n  ports:\n    - {containerPort: 80}\n    - {containerPort: 80, hostPort: 9116}\n    - {containerPort: 53, hostPort: 9116, protocol: UDP}\n";
        assert_eq!(
            places(text, (9116, Protocol::Tcp)),
            ["VirtualLoadBalancer.kat:5:37 spec.ports[1].hostPort"]
        );
        assert_eq!(
            places(text, (9116, Protocol::Udp)),
            ["VirtualLoadBalancer.kat:6:37 spec.ports[2].hostPort"]
        );
        assert_eq!(
            places(text, (9115, Protocol::Tcp)),
            ["VirtualLoadBalancer.kat:0:0 "],
            "where it is not written, the file is named"
        );
    }
}
