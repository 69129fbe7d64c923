//! `v1alpha1.proto` (RFC001-KAT 8.2): the API's types as Protocol Buffers messages, for generated
//! clients. The API speaks JSON; a message's JSON form is what is sent.
//!
//! The file is generated from the schemas of the OpenAPI document and stored in
//! `contrib/proto/kat/v1alpha1.proto`. A test compares it, and `UPDATE_SCHEMA=1` rewrites it. Field
//! numbers never change: they are read from the stored file, new fields get the next number, and
//! the numbers of removed fields stay reserved.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde_json::{Map, Value};

/// The field numbers of one message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Numbers {
    fields: BTreeMap<String, u32>,
    reserved: BTreeSet<u32>,
}

impl Numbers {
    fn highest(&self) -> u32 {
        let fields = self.fields.values().copied().max().unwrap_or(0);
        fields.max(self.reserved.last().copied().unwrap_or(0))
    }
}

/// Lines of watches are not messages: their object has a different type for each kind of list.
const LEFT_OUT: &str = "WatchLineOf";

const HEAD: &str = "// Messages of the API of KAT, version v1alpha1 (RFC001-KAT 8.2). Made from the types in src/types/api.rs;
// do not edit by hand. The API sends the JSON form of these messages.

syntax = \"proto3\";

package kat.v1alpha1;

import \"google/protobuf/struct.proto\";
";

/// Generates the file from the OpenAPI document, with the field numbers of `kept`.
pub(crate) fn text(document: &Value, kept: &str) -> String {
    let mut numbers = read_numbers(kept);
    let schemas = document
        .pointer("/components/schemas")
        .and_then(Value::as_object);
    let mut text = HEAD.to_owned();
    for (name, schema) in schemas.into_iter().flatten() {
        if name.starts_with(LEFT_OUT) || !is_message(schema) {
            continue;
        }
        let numbers = numbers.remove(name).unwrap_or_default();
        message(&mut text, name, schema, numbers, schemas);
    }
    // A removed message keeps its name and numbers, so that they are not reused.
    for (name, numbers) in numbers {
        let mut all = numbers.reserved;
        all.extend(numbers.fields.into_values());
        let _ = writeln!(text, "\n// No longer used.\nmessage {name} {{");
        reserve(&mut text, &all);
        text.push_str("}\n");
    }
    text
}

/// Reads the field numbers of a file that this module wrote.
fn read_numbers(kept: &str) -> BTreeMap<String, Numbers> {
    let mut messages: BTreeMap<String, Numbers> = BTreeMap::new();
    let mut present = None;
    for line in kept.lines() {
        if let Some(rest) = line.strip_prefix("message ") {
            let name = rest
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned();
            present = Some(messages.entry(name).or_default());
        } else if line == "}" {
            present = None;
        } else if let Some(numbers) = present.as_mut() {
            let line = line.trim();
            if line.starts_with("//") {
                continue;
            }
            if let Some(list) = line.strip_prefix("reserved ") {
                let list = list.trim_end_matches(';').split(',');
                numbers
                    .reserved
                    .extend(list.filter_map(|number| number.trim().parse::<u32>().ok()));
            } else if let Some((before, after)) = line.split_once(" = ") {
                let name = before.rsplit(' ').next().unwrap_or_default();
                let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
                if let Ok(number) = digits.parse() {
                    numbers.fields.insert(name.to_owned(), number);
                }
            }
        }
    }
    messages
}

type Schemas<'a> = Option<&'a Map<String, Value>>;

/// Whether a schema is an object with known fields. Other schemas are part of their field's type.
fn is_message(schema: &Value) -> bool {
    let is_object = |schema: &Value| schema.get("type").and_then(Value::as_str) == Some("object");
    let variants = schema.get("oneOf").and_then(Value::as_array);
    is_object(schema) || variants.is_some_and(|variants| variants.iter().all(is_object))
}

/// The fields of an object, or of all variants of a tagged enum together.
fn properties(schema: &Value) -> BTreeMap<&String, &Value> {
    let variants = schema.get("oneOf").and_then(Value::as_array);
    let objects = std::iter::once(schema).chain(variants.into_iter().flatten());
    let mut found = BTreeMap::new();
    for object in objects {
        found.extend(
            object
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten(),
        );
    }
    found
}

fn message(
    text: &mut String,
    name: &str,
    schema: &Value,
    mut numbers: Numbers,
    schemas: Schemas<'_>,
) {
    let fields: Vec<_> = properties(schema)
        .into_iter()
        .map(|(json, schema)| (json, snake(json), schema))
        .collect();
    let gone = numbers
        .fields
        .iter()
        .filter(|(name, _)| !fields.iter().any(|(_, field, _)| field == *name));
    let gone: Vec<u32> = gone.map(|(_, number)| *number).collect();
    numbers.reserved.extend(gone);
    let mut next = numbers.highest();
    let mut lines = Vec::new();
    for (json, field, schema) in fields {
        let number = match numbers.fields.get(&field) {
            Some(number) => *number,
            None => {
                next += 1;
                next
            }
        };
        let mut line = String::new();
        comment(&mut line, "  ", schema);
        let kind = field_type(schema, schemas);
        if let Some(words) = words(schema, schemas) {
            let _ = writeln!(line, "  // One of: {}.", words.join(", "));
        }
        let option = if camel(&field) == *json {
            String::new()
        } else {
            format!(" [json_name = \"{json}\"]")
        };
        let _ = writeln!(line, "  {kind} {field} = {number}{option};");
        lines.push((number, line));
    }
    lines.sort_unstable();
    text.push('\n');
    comment(text, "", schema);
    let _ = writeln!(text, "message {name} {{");
    reserve(text, &numbers.reserved);
    lines.into_iter().for_each(|(_, line)| text.push_str(&line));
    text.push_str("}\n");
}

fn reserve(text: &mut String, numbers: &BTreeSet<u32>) {
    if !numbers.is_empty() {
        let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
        let _ = writeln!(text, "  reserved {};", numbers.join(", "));
    }
}

fn comment(text: &mut String, indent: &str, schema: &Value) {
    let description = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    for line in description.lines() {
        let _ = writeln!(text, "{}", format!("{indent}// {line}").trim_end());
    }
}

/// The referenced schema, or the schema itself. For a nullable schema, the part that is not null.
fn resolve<'a>(schema: &'a Value, schemas: Schemas<'a>) -> (&'a Value, Option<&'a str>, bool) {
    if let Some(variants) = schema.get("anyOf").and_then(Value::as_array) {
        let is_null = |schema: &&Value| schema.get("type").and_then(Value::as_str) == Some("null");
        if let ([first, second], true) = (
            variants.as_slice(),
            variants.iter().any(|one| is_null(&one)),
        ) {
            let rest = if is_null(&first) { second } else { first };
            let (schema, name, _) = resolve(rest, schemas);
            return (schema, name, true);
        }
    }
    let reference = schema.get("$ref").and_then(Value::as_str);
    let name = reference.and_then(|reference| reference.rsplit('/').next());
    let found = name.and_then(|name| schemas?.get(name));
    (found.unwrap_or(schema), name, false)
}

/// The allowed values of a string.
fn words<'a>(schema: &'a Value, schemas: Schemas<'a>) -> Option<Vec<&'a str>> {
    let schema = schema.get("items").unwrap_or(schema);
    let (schema, _, _) = resolve(schema, schemas);
    if let Some(list) = schema.get("enum").and_then(Value::as_array) {
        return list.iter().map(Value::as_str).collect();
    }
    let variants = schema.get("oneOf").and_then(Value::as_array)?;
    let mut found = Vec::new();
    for variant in variants {
        match variant.get("const").and_then(Value::as_str) {
            Some(word) => found.push(word),
            None => found.extend(words(variant, schemas)?),
        }
    }
    Some(found)
}

fn field_type(schema: &Value, schemas: Schemas<'_>) -> String {
    let (kind, optional) = single_type(schema, schemas);
    let plain = !(kind.starts_with("repeated ") || kind.starts_with("map<"));
    if optional && plain {
        format!("optional {kind}")
    } else {
        kind
    }
}

fn single_type(schema: &Value, schemas: Schemas<'_>) -> (String, bool) {
    const ANY: &str = "google.protobuf.Value";
    let (resolved, name, mut optional) = resolve(schema, schemas);
    if let Some(name) = name.filter(|_| is_message(resolved)) {
        return (name.to_owned(), optional);
    }
    if words(resolved, schemas).is_some() {
        return ("string".to_owned(), optional);
    }
    let kind = match resolved.get("type") {
        Some(Value::String(kind)) => Some(kind.as_str()),
        Some(Value::Array(kinds)) => {
            optional |= kinds.iter().any(|kind| kind == "null");
            kinds
                .iter()
                .filter_map(Value::as_str)
                .find(|kind| *kind != "null")
        }
        _ => None,
    };
    let inner = |key: &str| {
        resolved
            .get(key)
            .map_or(ANY.to_owned(), |inner| single_type(inner, schemas).0)
    };
    let kind = match kind {
        Some("string") => "string".to_owned(),
        Some("boolean") => "bool".to_owned(),
        Some("number") => "double".to_owned(),
        Some("integer") => match resolved.get("format").and_then(Value::as_str) {
            Some("uint8" | "uint16" | "uint32") => "uint32",
            Some("int8" | "int16" | "int32") => "int32",
            Some("uint" | "uint64") => "uint64",
            _ => "int64",
        }
        .to_owned(),
        Some("array") => format!("repeated {}", inner("items")),
        Some("object")
            if resolved
                .get("additionalProperties")
                .is_some_and(Value::is_object) =>
        {
            format!("map<string, {}>", inner("additionalProperties"))
        }
        _ => ANY.to_owned(),
    };
    (kind, optional)
}

/// `minVRAM_MB` becomes `min_vram_mb`, `nodeUID` becomes `node_uid`.
fn snake(name: &str) -> String {
    let mut found = String::new();
    let mut before = '_';
    for character in name.chars() {
        if character.is_ascii_uppercase() && !before.is_ascii_uppercase() && before != '_' {
            found.push('_');
        }
        found.push(character.to_ascii_lowercase());
        before = character;
    }
    found
}

/// The JSON name that Protocol Buffers give a field by default.
fn camel(name: &str) -> String {
    let mut found = String::new();
    let mut upper = false;
    for character in name.chars() {
        if character == '_' {
            upper = true;
            continue;
        }
        found.push(if upper {
            character.to_ascii_uppercase()
        } else {
            character
        });
        upper = false;
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::openapi::document;

    #[test]
    fn the_kept_file_is_the_present_one() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../contrib/proto/kat/v1alpha1.proto"
        );
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        let made = text(&document(), &kept);
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap();
        assert!(
            kept == made,
            "contrib/proto/kat/v1alpha1.proto is out of date; run this test with UPDATE_SCHEMA=1"
        );
    }

    /// protoc is needed to build this program, so it exists; its standard messages may be missing.
    #[test]
    fn protoc_accepts_the_file() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib/proto");
        let temporary = tempfile::tempdir().unwrap();
        let google = temporary.path().join("google/protobuf");
        std::fs::create_dir_all(&google).unwrap();
        let any = "syntax = \"proto3\"; package google.protobuf; message Value {}";
        std::fs::write(google.join("struct.proto"), any).unwrap();
        let output = std::process::Command::new("protoc")
            .arg(format!("--proto_path={}", temporary.path().display()))
            .arg(format!("--proto_path={folder}"))
            .args(["--descriptor_set_out=/dev/null", "kat/v1alpha1.proto"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }

    fn document_of(properties: Value) -> Value {
        json!({"components": {"schemas": {"Thing": {"type": "object", "properties": properties}}}})
    }

    #[test]
    fn numbers_stay_with_their_fields_for_good() {
        let string = json!({"type": "string"});
        let first = text(&document_of(json!({"b": string, "d": string})), "");
        assert!(
            first.contains("  string b = 1;\n  string d = 2;\n"),
            "{first}"
        );
        let second = text(&document_of(json!({"a": string, "d": string})), &first);
        assert!(
            second.contains("  reserved 1;\n  string d = 2;\n  string a = 3;\n"),
            "{second}"
        );
        let third = text(&document_of(json!({"b": string, "d": string})), &second);
        assert!(
            third.contains("  reserved 1, 3;\n  string d = 2;\n  string b = 4;\n"),
            "{third}"
        );
        let gone = text(&json!({"components": {"schemas": {}}}), &third);
        assert!(
            gone.contains("message Thing {\n  reserved 1, 2, 3, 4;\n}"),
            "{gone}"
        );
        assert_eq!(text(&json!({"components": {"schemas": {}}}), &gone), gone);
    }

    #[test]
    fn names_keep_their_json_form() {
        for (json, field) in [
            ("creationTimestamp", "creation_timestamp"),
            ("nodeUID", "node_uid"),
            ("minVRAM_MB", "min_vram_mb"),
            ("clusterCIDR", "cluster_cidr"),
            ("ip", "ip"),
        ] {
            assert_eq!(snake(json), field);
            let made = text(&document_of(json!({json: {"type": "string"}})), "");
            let named = made.contains(&format!("[json_name = \"{json}\"]"));
            assert_eq!(named, camel(field) != json, "{made}");
        }
    }

    #[test]
    fn every_type_of_the_api_has_its_own_type() {
        let made = text(&document(), "");
        for line in [
            "  repeated Condition conditions = ",
            "  map<string, string> labels = ",
            "  optional int32 exit_code = ",
            "  optional VirtualLoadBalancerSpec load_balancer = ",
            "  WorkloadStatus status = ",
            "  // One of: Service, Job, DaemonService.",
            "  repeated google.protobuf.Value details = ",
            "message ListOfWorkloadItem {",
        ] {
            assert!(made.contains(line), "{line} is missing in\n{made}");
        }
        assert!(!made.contains("google.protobuf.Value status"), "{made}");
    }
}
