//! Changed fields of a workload's files. They are compared by real values and shown with masked
//! ones, so that a changed secret is noticed and not revealed.

use serde_json::Value;

use crate::view::masked;
use kat_bundle::{DocumentKind, without_defaults};
use kat_types::{
    api::FieldChange,
    encoding::json::NotEncoded,
    store::snapshot::{ParsedWorkload, WorkloadEntry},
};

/// A step into a document.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FieldPathStep {
    Key(String),
    /// The item of a list with this name.
    Named(String),
}

type FieldPath = Vec<FieldPathStep>;
/// Encodes a file's content; `true` masks its values of variables.
type DocumentEncoder = fn(&ParsedWorkload, bool) -> Result<Value, NotEncoded>;

/// Changed fields in the order of the files; none if either version can't be read.
pub(crate) fn changes(
    old: Option<&WorkloadEntry>,
    new: Option<&WorkloadEntry>,
) -> Result<Vec<FieldChange>, NotEncoded> {
    let (Some(Ok(old)), Some(Ok(new))) = (
        old.map(|entry| &entry.parsed),
        new.map(|entry| &entry.parsed),
    ) else {
        return Ok(Vec::new());
    };
    let documents: [(&str, DocumentEncoder); 2] = [
        ("workload.kat", workload),
        ("VirtualLoadBalancer.kat", load_balancer),
    ];
    let mut changes = Vec::new();
    for (file, document) in documents {
        let mut paths = Vec::new();
        let (real_old, real_new) = (document(old, false)?, document(new, false)?);
        compare(&real_old, &real_new, &mut Vec::new(), &mut paths);
        let ports_file = new.ports_file();
        // The whole of it is new where only workload.kat has ports.
        let file_of = |path: &FieldPath| match path.as_slice() {
            [] => ports_file,
            [_, FieldPathStep::Key(name), ..] if name == "ports" => ports_file,
            _ => file,
        };
        let (old, new) = (document(old, true)?, document(new, true)?);
        changes.extend(paths.into_iter().map(|path| FieldChange {
            file: file_of(&path).to_owned(),
            path: written(&path),
            before: at(&old, &path).cloned(),
            after: at(&new, &path).cloned(),
        }));
    }
    Ok(changes)
}

fn workload(parsed: &ParsedWorkload, hidden: bool) -> Result<Value, NotEncoded> {
    let mut workload = parsed.workload.clone();
    if hidden {
        workload.spec = masked(&workload.spec);
    }
    without_defaults(DocumentKind::Workload, &workload)
}

fn load_balancer(parsed: &ParsedWorkload, _: bool) -> Result<Value, NotEncoded> {
    match &parsed.load_balancer {
        Some(balancer) => without_defaults(DocumentKind::VirtualLoadBalancer, balancer),
        None => Ok(Value::Null),
    }
}

/// Collects the paths at which two documents differ, as deep as both have the same shape.
fn compare(old: &Value, new: &Value, here: &mut FieldPath, found: &mut Vec<FieldPath>) {
    if old == new {
        return;
    }
    let steps = match (old, new) {
        (Value::Object(left), Value::Object(right)) => {
            let added = right.keys().filter(|key| !left.contains_key(*key));
            let all = left.keys().chain(added);
            Some(all.cloned().map(FieldPathStep::Key).collect::<Vec<_>>())
        }
        (Value::Array(left), Value::Array(right)) => names_of(left, right),
        _ => None,
    };
    let Some(steps) = steps else {
        found.push(here.clone());
        return;
    };
    for step in steps {
        let left = child(old, &step).unwrap_or(&Value::Null);
        let right = child(new, &step).unwrap_or(&Value::Null);
        here.push(step);
        compare(left, right, here, found);
        here.pop();
    }
}

/// The names of all items of two lists, if each item has a unique name and the common ones are in
/// the same order.
fn names_of(left: &[Value], right: &[Value]) -> Option<Vec<FieldPathStep>> {
    let names = |list: &[Value]| -> Option<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        for item in list {
            let name = item.get("name")?.as_str()?;
            if names.iter().any(|other| other == name) {
                return None;
            }
            names.push(name.to_owned());
        }
        Some(names)
    };
    let (left, right) = (names(left)?, names(right)?);
    let kept = left.iter().filter(|name| right.contains(name));
    if !kept.eq(right.iter().filter(|name| left.contains(name))) {
        return None;
    }
    let added = right.iter().filter(|name| !left.contains(name));
    Some(
        left.iter()
            .chain(added)
            .cloned()
            .map(FieldPathStep::Named)
            .collect(),
    )
}

fn child<'a>(value: &'a Value, step: &FieldPathStep) -> Option<&'a Value> {
    match step {
        FieldPathStep::Key(key) => value.get(key),
        FieldPathStep::Named(name) => value
            .as_array()?
            .iter()
            .find(|item| item.get("name").and_then(Value::as_str) == Some(name)),
    }
}

/// The value at a path; `None` if it is absent or null.
fn at<'a>(document: &'a Value, path: &[FieldPathStep]) -> Option<&'a Value> {
    let found = path
        .iter()
        .try_fold(document, |value, step| child(value, step))?;
    (!found.is_null()).then_some(found)
}

fn written(path: &[FieldPathStep]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            FieldPathStep::Key(key) if text.is_empty() => text.push_str(key),
            FieldPathStep::Key(key) => text.push_str(&format!(".{key}")),
            FieldPathStep::Named(name) => text.push_str(&format!("[{name}]")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(old: Value, new: Value) -> Vec<String> {
        let mut found = Vec::new();
        compare(&old, &new, &mut Vec::new(), &mut found);
        found.iter().map(|path| written(path)).collect()
    }

    #[test]
    fn a_path_leads_to_what_differs_and_no_further() {
        let env = |items: Value| json!({"spec": {"env": items, "replicas": 2}});
        let a = || json!({"name": "A", "value": "1"});
        let found = paths(
            env(json!([a(), {"name": "B", "value": "2"}])),
            env(json!([a(), {"name": "B", "value": "3"}, {"name": "C"}])),
        );
        assert_eq!(found, ["spec.env[B].value", "spec.env[C]"]);
        assert_eq!(
            paths(json!({"args": ["a", "b"]}), json!({"args": ["b"]})),
            ["args"]
        );
        let moved = paths(
            env(json!([a(), {"name": "B"}])),
            env(json!([{"name": "B"}, a()])),
        );
        assert_eq!(moved, ["spec.env"], "the order of variables may matter");
        assert_eq!(
            paths(json!({"x": 1}), json!({"x": 1})),
            Vec::<String>::new()
        );
    }
}
