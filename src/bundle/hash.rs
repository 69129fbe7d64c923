//! Hashes that show whether something changed (RFC001-KAT 4.5).
//!
//! They are computed over the decoded values, not the texts: comments, the order of keys and
//! written defaults make no difference. Default values are left out, so that a field added by a
//! later version does not change the hash of stored files.

use serde_json::{Map, Value};

use super::{
    Bundle, DocumentKind,
    fields::{self, FieldType},
    yaml::{item_path, json_of, key_path},
};
use kat_types::encoding::{
    digest::sha256_prefix_hex,
    json::{self, NotEncoded},
};

/// Fields whose presence alone has a meaning.
const MARKS: [&str; 3] = [
    "spec.container.resources.gpu",
    "spec.volumes[].simpleClusterStorage",
    "spec.volumes[].tmpfs",
];

/// Fields of a workload that decide about its instances: a change replaces them.
const TEMPLATE: [&str; 8] = [
    "source",
    "restartPolicy",
    "onPartition",
    "container",
    "initContainers",
    "sidecars",
    "volumes",
    "machineAccess",
];

/// 16 hexadecimal digits over the template of an instance: source, build, containers, volumes,
/// carried files, restart policy, `onPartition`, `machineAccess`, ports and health check.
///
/// Replicas, labels, placement, update strategy, ingress, aliases, `reclaim` and `allowSources` are not
/// part of it.
pub fn template_hash(bundle: &Bundle) -> Result<String, NotEncoded> {
    let mut parts = Map::new();
    let workload = document_without_defaults(DocumentKind::Workload, &bundle.workload)?;
    let balancer =
        document_without_defaults(DocumentKind::VirtualLoadBalancer, &bundle.load_balancer)?;
    for name in TEMPLATE {
        copy_spec_field(&mut parts, &workload, name);
    }
    // What happens to the data in the end is not part of an instance's template.
    let volumes = parts.get_mut("volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        volume
            .as_object_mut()
            .map(|members| members.remove("reclaim"));
    }
    for name in ["ports", "healthCheck"] {
        copy_spec_field(&mut parts, &balancer, name);
    }
    // Who may use a host port is enforced around the instance.
    let ports = parts.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        port.as_object_mut()
            .map(|members| members.remove("allowSources"));
    }
    carried(&mut parts, bundle);
    let build = document_without_defaults(DocumentKind::BuildDefinition, &bundle.build)?;
    if !build.is_null() {
        parts.insert("build".to_owned(), build);
    }
    Ok(digest(&Value::Object(parts)))
}

/// 16 hexadecimal digits over the content of all files, except the namespace's own file.
///
/// The generation of a workload grows when this changes (RFC001-KAT 4.2).
pub fn spec_hash(bundle: &Bundle) -> Result<String, NotEncoded> {
    let mut parts = Map::new();
    for (name, value) in [
        (
            "workload",
            document_without_defaults(DocumentKind::Workload, &bundle.workload)?,
        ),
        (
            "loadBalancer",
            document_without_defaults(DocumentKind::VirtualLoadBalancer, &bundle.load_balancer)?,
        ),
        (
            "job",
            document_without_defaults(DocumentKind::JobDefinition, &bundle.job)?,
        ),
        (
            "build",
            document_without_defaults(DocumentKind::BuildDefinition, &bundle.build)?,
        ),
    ] {
        parts.insert(name.to_owned(), value);
    }
    carried(&mut parts, bundle);
    Ok(digest(&Value::Object(parts)))
}

/// Adds the carried files; a workload without such files keeps its earlier hash.
fn carried(parts: &mut Map<String, Value>, bundle: &Bundle) {
    if !bundle.carried.is_empty() {
        let files = bundle.carried.iter();
        let marks = files.map(|file| (file.path.clone(), Value::String(file.mark())));
        parts.insert("files".to_owned(), Value::Object(marks.collect()));
    }
}

/// A document without its defaults; null if there is none.
fn document_without_defaults<T: serde::Serialize>(
    kind: DocumentKind,
    document: &Option<T>,
) -> Result<Value, NotEncoded> {
    match document {
        Some(document) => without_defaults(kind, document),
        None => Ok(Value::Null),
    }
}

/// The content of a document without default values.
pub fn without_defaults<T: serde::Serialize>(
    kind: DocumentKind,
    document: &T,
) -> Result<Value, NotEncoded> {
    let value = json::tree(kind.as_str(), document)?;
    let pruned = prune(kind, "", &value);
    Ok(pruned.unwrap_or_else(|| Value::Object(Map::new())))
}

fn copy_spec_field(parts: &mut Map<String, Value>, document: &Value, name: &str) {
    if let Some(value) = document.get("spec").and_then(|spec| spec.get(name)) {
        parts.insert(name.to_owned(), value.clone());
    }
}

/// A value without defaults; `None` if nothing with a meaning is left.
fn prune(kind: DocumentKind, path: &str, value: &Value) -> Option<Value> {
    let field = fields::lookup(kind, path);
    // A field that once had to be written is part of the hashes of stored files.
    if let Some(field) = field
        && field.optional_since == 1
        && field
            .default
            .is_some_and(|default| json_of(default) == *value)
    {
        return None;
    }
    match value {
        Value::Null => None,
        Value::Array(items) => {
            let empty = || Value::Object(Map::new());
            let items: Vec<Value> = items
                .iter()
                .enumerate()
                .map(|(index, item)| {
                    prune(kind, &item_path(path, index), item).unwrap_or_else(empty)
                })
                .collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(members) => {
            let free = field.is_some_and(|field| field.value == FieldType::TextMap);
            let members: Map<String, Value> = members
                .iter()
                .filter_map(|(key, member)| {
                    let member = match free {
                        true => Some(member.clone()),
                        false => prune(kind, &key_path(path, key), member),
                    };
                    member.map(|member| (key.clone(), member))
                })
                .collect();
            let marks = field.is_some_and(|field| MARKS.contains(&field.path));
            (!members.is_empty() || marks).then_some(Value::Object(members))
        }
        other => Some(other.clone()),
    }
}

fn digest(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    sha256_prefix_hex(text.as_bytes(), 8)
}

/// JSON without spaces, members in the order of their names.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (index, (name, member)) in members.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::String(name.clone()).to_string());
                text.push(':');
                canonical(member, text);
            }
            text.push('}');
        }
        other => text.push_str(&other.to_string()),
    }
}
