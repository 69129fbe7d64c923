//! Fields that are valid and have no effect yet: refused at apply, never accepted silently.

use super::{
    Bundle, CARRIED, DocumentKind, SourceFile,
    diagnostic::{Class, Diagnostic, Span, sort},
    fields::{self, Field, FieldStatus},
    yaml::{self, YamlNode, YamlValue, item_path, key_path, locate},
};

/// Every field of a bundle that has no effect yet; a field with its default is accepted.
pub fn not_yet(bundle: &Bundle) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for file in bundle.files.iter().filter(|file| file.name != CARRIED) {
        let SourceFile { name, text } = file;
        for root in yaml::read(name, text, &mut Vec::new()).roots {
            let kind = match locate(&root, "kind").map(|(node, _)| &node.value) {
                Some(YamlValue::Scalar { text, .. }) => DocumentKind::from_word(text),
                _ => None,
            };
            if let Some(kind) = kind {
                walk(name, kind, &root, "", &mut found);
            }
        }
    }
    sort(&mut found);
    found
}

/// As [`not_yet`], for the text of `cluster.kat`.
pub fn not_yet_cluster(text: &str, file: &str) -> Vec<Diagnostic> {
    single(text, file, DocumentKind::ClusterConfiguration)
}

/// As [`not_yet`], for the text of `/etc/kat/agent.yaml`.
pub fn not_yet_agent_config(text: &str, file: &str) -> Vec<Diagnostic> {
    single(text, file, DocumentKind::AgentConfig)
}

fn single(text: &str, file: &str, kind: DocumentKind) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for root in yaml::read(file, text, &mut Vec::new()).roots {
        walk(file, kind, &root, "", &mut found);
    }
    sort(&mut found);
    found
}

fn walk(file: &str, kind: DocumentKind, node: &YamlNode, path: &str, found: &mut Vec<Diagnostic>) {
    match &node.value {
        YamlValue::Scalar { .. } => {}
        YamlValue::Sequence(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(file, kind, item, &item_path(path, index), found);
            }
        }
        YamlValue::Mapping(entries) => {
            for entry in entries {
                let path = key_path(path, &entry.key);
                let Some(field) = fields::lookup(kind, &path) else {
                    continue;
                };
                match refused(field, &entry.node) {
                    Some((message, hint)) => found.push(
                        Diagnostic::at(Class::NotYet, file, span_of_key(entry), message)
                            .path(path)
                            .hint(hint),
                    ),
                    None if field.status == FieldStatus::NotYet => {}
                    None => walk(file, kind, &entry.node, &path, found),
                }
            }
        }
    }
}

/// Position of the key, including its value if both are on one line.
fn span_of_key(entry: &yaml::MappingEntry) -> Span {
    let one_line = entry.key_span.start.line == entry.node.span.end.line
        && matches!(entry.node.value, YamlValue::Scalar { .. });
    match one_line {
        true => Span {
            start: entry.key_span.start,
            end: entry.node.span.end,
        },
        false => entry.key_span,
    }
}

fn refused(field: &Field, node: &YamlNode) -> Option<(String, String)> {
    let name = field.name();
    match field.status {
        FieldStatus::Identity | FieldStatus::Effective => None,
        FieldStatus::NotYet => {
            if let Some(default) = field.default {
                if yaml::to_json(node) == yaml::json_of(default) {
                    return None;
                }
                return Some((
                    format!("not yet: {name} is not built in this version"),
                    format!("leave it out, or write its default `{default}`"),
                ));
            }
            Some((
                format!("not yet: {name} is not built in this version"),
                "leave it out".to_owned(),
            ))
        }
    }
}
