//! Compares the table of fields with the types, the decoder and `not_yet`, field by field.

mod documents;
mod effects;

use std::{collections::BTreeSet, path::Path};

use serde_json::{Value, json};

use super::*;
use documents::{another, around, decode, decode_as, has, must, remove, set};
use kat_bundle::{
    fields::{self, Field, FieldStatus, FieldType},
    yaml::json_of,
};
use kat_testing::json_schema;

/// Collects the paths of all properties of a schema.
fn walk(schema: &Value, path: &str, paths: &mut BTreeSet<String>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, property) in properties {
            let path = match path {
                "" => name.clone(),
                path => format!("{path}.{name}"),
            };
            paths.insert(path.clone());
            walk(property, &path, paths);
        }
    }
    if let Some(items) = schema.get("items") {
        walk(items, &format!("{path}[]"), paths);
    }
    for choice in choices(schema) {
        walk(choice, path, paths);
    }
}

/// The schemas of which a value has one.
fn choices(schema: &Value) -> &[Value] {
    let choices = schema.get("anyOf").and_then(Value::as_array);
    choices.map_or(&[], Vec::as_slice)
}

/// The schema of the field at a path of the table.
fn property<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(schema, |schema, part| {
        let (name, is_list) = match part.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (part, false),
        };
        let mut mappings = [schema].into_iter().chain(choices(schema));
        let property = mappings.find_map(|mapping| mapping.get("properties")?.get(name))?;
        match is_list {
            true => property.get("items"),
            false => Some(property),
        }
    })
}

#[test]
fn the_table_and_the_types_have_the_same_fields() {
    for kind in DocumentKind::ALL {
        let mut of_types = BTreeSet::new();
        walk(&json_schema(kind), "", &mut of_types);
        of_types.retain(|path| {
            let mut lists = ["spec.initContainers[].", "spec.sidecars[]."].into_iter();
            let inner = lists.find_map(|list| path.strip_prefix(list));
            // The other fields are those of the main container, which the table has once.
            inner.is_none_or(|inner| ["name", "image"].contains(&inner))
        });
        let of_table: BTreeSet<String> = fields::all()
            .filter(|field| field.kind == kind)
            .map(|field| field.path.to_owned())
            .collect();
        assert_eq!(of_types, of_table, "{kind}");
    }
}

/// Enum words and numeric bounds are equal in the table and in the types.
#[test]
fn the_table_and_the_types_have_the_same_words() {
    for field in fields::all() {
        let schema = json_schema(field.kind);
        let property = property(&schema, field.path).unwrap_or_else(|| panic!("{}", field.path));
        let mut words: Vec<String> = Vec::new();
        if let Some(list) = property.get("enum").and_then(Value::as_array) {
            words.extend(list.iter().map(|word| word.as_str().unwrap().to_owned()));
        }
        for choice in property
            .get("oneOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let word = choice
                .get("const")
                .or_else(|| choice.pointer("/enum/0"))
                .unwrap();
            words.push(word.as_str().unwrap().to_owned());
        }
        match field.value {
            FieldType::Word(_) if field.status == FieldStatus::Identity => {}
            FieldType::Word(table) => {
                words.sort();
                let mut table: Vec<_> = table.to_vec();
                table.sort_unstable();
                assert_eq!(words, table, "{}", field.path);
            }
            _ => assert!(words.is_empty(), "{} has words: {words:?}", field.path),
        }
        let expected = match field.value {
            FieldType::Text | FieldType::Cidr if field.name() == "value" => None,
            FieldType::Text | FieldType::Cidr => Some("string"),
            FieldType::Boolean => Some("boolean"),
            FieldType::Integer(..) => Some("integer"),
            FieldType::TextList | FieldType::List | FieldType::ListOf(_) => Some("array"),
            FieldType::TextMap | FieldType::Mapping => Some("object"),
            _ => None,
        };
        if let Some(expected) = expected {
            assert_eq!(
                property.get("type"),
                Some(&json!(expected)),
                "{} {property}",
                field.path
            );
        }
    }
}

/// Whether the field itself or a parent of the field is refused.
fn covers(found: &[Diagnostic], field: &Field) -> bool {
    let path = field.path.replace("[]", "[0]");
    found.iter().any(|found| {
        found.class == Class::NotYet
            && found.line > 0
            && (path == found.path
                || path.starts_with(&format!("{}.", found.path))
                || path.starts_with(&format!("{}[", found.path)))
    })
}

#[test]
fn every_field_changes_the_bundle_or_is_refused_as_not_yet() {
    let mut tried = 0;
    for field in fields::all() {
        let has_children = fields::children(field.kind, field.path).next().is_some();
        let document = around(field);
        let mut with = document.clone();
        if field.status == FieldStatus::Identity && field.value != FieldType::Text {
            continue;
        }
        set(&mut with, field, json_of(field.example));
        match field.status {
            FieldStatus::NotYet => {
                let (_, found) = must(field, &with);
                assert!(
                    covers(&found, field),
                    "{} {} is accepted",
                    field.kind,
                    field.path
                );
            }
            FieldStatus::Identity | FieldStatus::Effective if has_children => {}
            FieldStatus::Identity | FieldStatus::Effective => {
                let mut without = document.clone();
                remove(&mut without, field);
                let before = decode(field, &without).unwrap_or_else(|_| must(field, &document));
                let (mut after, found) = must(field, &with);
                if before.0 == after {
                    // The field is required, and its parent's example has the same value.
                    (after, _) = must(field, &another(field, &with));
                }
                assert_ne!(
                    before.0, after,
                    "{} {} changes nothing",
                    field.kind, field.path
                );
                assert!(
                    !covers(&found, field),
                    "{} is refused: {}",
                    field.path,
                    lines(&found)
                );
            }
        }
        tried += 1;
    }
    assert!(tried > 150, "only {tried} fields were tried");
}

#[test]
fn every_default_written_is_as_if_it_were_not_written() {
    // The written default decodes to a value and an absent field to `None`; both mean the same.
    let kept = ["spec.onNodeLoss"];
    for field in fields::all() {
        let Some(default) = field.default else {
            continue;
        };
        let mut without = around(field);
        remove(&mut without, field);
        let mut with = without.clone();
        set(&mut with, field, json_of(default));
        let (before, _) = must(field, &without);
        let (after, found) = must(field, &with);
        if !kept.contains(&field.path) {
            assert_eq!(before, after, "{} {}", field.kind, field.path);
        }
        let parent_refused = fields::lookup(field.kind, field.parent().trim_end_matches("[]"))
            .is_some_and(|parent| parent.status == FieldStatus::NotYet);
        if !parent_refused {
            assert!(
                !covers(&found, field),
                "{} with its default is refused",
                field.path
            );
        }
    }
}

#[test]
fn every_required_field_is_missed() {
    for field in fields::all().filter(|field| field.required) {
        let mut document = around(field);
        if !has(&document, field) {
            set(&mut document, field, json_of(field.example));
        }
        must(field, &document);
        remove(&mut document, field);
        let found = decode(field, &document).expect_err(field.path);
        let path = field.path.replace("[]", "[0]");
        assert!(
            found
                .iter()
                .any(|found| found.class == Class::Missing && found.path == path),
            "{} {path}: {}",
            field.kind,
            lines(&found)
        );
    }
}

#[test]
fn every_field_refuses_another_type() {
    for field in fields::all() {
        let wrong = match field.value {
            FieldType::TextList | FieldType::List | FieldType::ListOf(_) => json!({"a": "b"}),
            FieldType::Mapping | FieldType::TextMap => json!(["a"]),
            _ => json!(["a", ["b"]]),
        };
        let mut document = around(field);
        set(&mut document, field, wrong);
        let path = field.path.replace("[]", "[0]");
        // `kind` and `apiVersion` accept certain words only, so any other type is out of range.
        let expected = match field.status {
            FieldStatus::Identity if path == "kind" || path == "apiVersion" => Class::Range,
            _ => Class::Type,
        };
        for mode in [DecodeMode::Strict, DecodeMode::Stored] {
            // A stored document of another version is accepted here.
            if expected == Class::Range && mode == DecodeMode::Stored {
                continue;
            }
            let found = decode_as(field.kind, &document, mode).expect_err(field.path);
            let at = found
                .iter()
                .find(|found| found.path == path)
                .unwrap_or_else(|| panic!("{path}: {}", lines(&found)));
            assert_eq!(at.class, expected, "{at}");
            assert!(at.line > 0 && at.column > 0, "{at}");
        }
    }
}

#[test]
fn every_number_has_its_bounds() {
    for field in fields::all() {
        let (FieldType::Integer(least, most) | FieldType::IntegerOr(least, most, _)) = field.value
        else {
            continue;
        };
        let path = field.path.replace("[]", "[0]");
        let try_one = |value: Value| {
            let mut document = around(field);
            if path == "spec.nodeLossTimeoutSeconds" {
                document["spec"]["agentTickSeconds"] = json!(1);
            }
            set(&mut document, field, value);
            let found = decode(field, &document).err().unwrap_or_default();
            found.into_iter().find(|found| {
                found.path == path && matches!(found.class, Class::Range | Class::Type)
            })
        };
        for good in [least, most] {
            assert_eq!(try_one(json!(good)), None, "{path}: {good}");
        }
        for bad in [json!(most + 1), json!(u64::MAX), json!(-1)] {
            let found = try_one(bad.clone()).unwrap_or_else(|| panic!("{path}: {bad}"));
            assert_eq!(found.class, Class::Range, "{found}");
        }
        if least > 0 {
            assert_eq!(
                try_one(json!(least - 1)).map(|found| found.class),
                Some(Class::Range)
            );
        }
        assert_eq!(
            try_one(json!(1.5)).map(|found| found.class),
            Some(Class::Type),
            "{path}"
        );
    }
}

#[test]
fn unknown_fields_are_named_at_every_level() {
    for field in fields::all() {
        if !matches!(field.value, FieldType::Mapping | FieldType::MappingOr(..)) {
            continue;
        }
        let mut document = around(field);
        if !has(&document, field) {
            set(&mut document, field, json_of(field.example));
        }
        let pointer = format!("/{}", field.path.replace("[]", "/0").replace('.', "/"));
        let place = document.pointer_mut(&pointer).unwrap();
        place["xyzzy"] = json!(1);
        let found = decode(field, &document).expect_err(field.path);
        assert_eq!(found.len(), 1, "{}", lines(&found));
        assert_eq!(found[0].class, Class::Unknown);
        assert_eq!(
            found[0].path,
            format!("{}.xyzzy", field.path.replace("[]", "[0]"))
        );
        let known = found[0].hint.as_deref().unwrap();
        for child in fields::children(field.kind, field.path) {
            assert!(known.contains(child.name()), "{known} lacks {}", child.path);
        }
        assert!(
            decode_as(field.kind, &document, DecodeMode::Stored).is_ok(),
            "{}",
            field.path
        );
    }
}

/// The published schemas are generated from the types. `UPDATE_SCHEMA=1` writes them.
#[test]
fn the_published_schemas_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/schema");
    for kind in DocumentKind::ALL {
        let stem = kind.file().split('.').next().unwrap().to_lowercase();
        let path = folder.join(format!("{stem}.schema.json"));
        let schema = json_schema(kind);
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            let text = serde_json::to_string_pretty(&schema).unwrap();
            std::fs::write(&path, text + "\n").unwrap();
            continue;
        }
        let published = std::fs::read_to_string(&path).unwrap_or_default();
        let published: Value = serde_json::from_str(&published).unwrap_or_default();
        assert!(
            published == schema,
            "{} is not current: run the tests with UPDATE_SCHEMA=1",
            path.display()
        );
    }
}
