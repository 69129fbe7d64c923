//! JSON Schema of the `*.kat` files, for editors. It is generated from the types and the table of
//! fields.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use kat_bundle::{
    DocumentKind,
    fields::{self, Field, FieldType},
    yaml::{json_of, key_path},
};
use kat_types::resource::{
    AgentConfig, BuildDefinition, ClusterConfiguration, JobDefinition, Namespace, Route,
    VirtualLoadBalancer, Workload,
};

/// The JSON Schema (draft 2020-12) of a kind of document.
pub fn json_schema(kind: DocumentKind) -> Value {
    let mut schema = match kind {
        DocumentKind::Workload => of::<Workload>(),
        DocumentKind::VirtualLoadBalancer => of::<VirtualLoadBalancer>(),
        DocumentKind::JobDefinition => of::<JobDefinition>(),
        DocumentKind::BuildDefinition => of::<BuildDefinition>(),
        DocumentKind::Namespace => of::<Namespace>(),
        DocumentKind::Route => of::<Route>(),
        DocumentKind::ClusterConfiguration => of::<ClusterConfiguration>(),
        DocumentKind::AgentConfig => of::<AgentConfig>(),
    };
    if kind != DocumentKind::AgentConfig
        && let Some(Value::Object(properties)) = schema.get_mut("properties")
    {
        let version = kat_types::resource::API_VERSION;
        properties.insert("apiVersion".to_owned(), json!({ "const": version }));
        properties.insert("kind".to_owned(), json!({ "const": kind.as_str() }));
    }
    finish(kind, "", &mut schema);
    if let Value::Object(members) = &mut schema {
        members.insert("title".to_owned(), Value::from(kind.file()));
    }
    schema
}

fn of<T: JsonSchema>() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// Adds what the table of fields knows, and removes what the files do not have: null, and fields
/// that the types have for other documents.
fn finish(kind: DocumentKind, path: &str, schema: &mut Value) {
    without_null(schema);
    let Value::Object(members) = schema else {
        return;
    };
    members.remove("title");
    if let Some(field) = fields::lookup(kind, path) {
        describe(field, members);
    }
    if let Some(items) = members.get_mut("items") {
        finish(kind, &format!("{path}[]"), items);
        if let Value::Object(items) = items {
            items.remove("description");
        }
    }
    if let Some(Value::Array(choices)) = members.get_mut("anyOf") {
        let of_fields = choices.iter_mut();
        for choice in of_fields.filter(|choice| choice.get("properties").is_some()) {
            finish(kind, path, choice);
            if let Value::Object(choice) = choice {
                choice.retain(|name, _| !["description", "default"].contains(&name.as_str()));
            }
        }
    }
    let Some(Value::Object(properties)) = members.get_mut("properties") else {
        return;
    };
    // The types also have members for another document, which are removed.
    properties.retain(|name, _| fields::lookup(kind, &key_path(path, name)).is_some());
    let mut required = Vec::new();
    for (name, property) in properties.iter_mut() {
        let path = key_path(path, name);
        finish(kind, &path, property);
        if fields::lookup(kind, &path).is_some_and(|field| field.required) {
            required.push(Value::from(name.as_str()));
        }
    }
    members.remove("required");
    if !required.is_empty() {
        members.insert("required".to_owned(), Value::Array(required));
    }
    members.insert("additionalProperties".to_owned(), Value::Bool(false));
    if let Some(FieldType::MappingOr(alone, _)) =
        fields::lookup(kind, path).map(|field| field.value)
    {
        or_alone(members, alone);
    }
}

/// Turns the schema of a mapping into that of the mapping or the value of one of its fields.
fn or_alone(members: &mut Map<String, Value>, field: &str) {
    let alone = members.get("properties").and_then(|all| all.get(field));
    let mut alone = alone.cloned().unwrap_or_default();
    if let Value::Object(alone) = &mut alone {
        alone.remove("description");
    }
    let of_mapping = ["type", "properties", "required", "additionalProperties"];
    let mapping: Map<String, Value> = of_mapping
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), members.remove(name)?)))
        .collect();
    members.insert("anyOf".to_owned(), json!([alone, mapping]));
}

fn describe(field: &Field, members: &mut Map<String, Value>) {
    members.insert("description".to_owned(), Value::from(field.description));
    members.remove("default");
    if let Some(default) = field.default {
        members.insert("default".to_owned(), json_of(default));
    }
    match field.value {
        FieldType::Integer(least, most) => {
            members.remove("format");
            members.insert("minimum".to_owned(), Value::from(least));
            members.insert("maximum".to_owned(), Value::from(most));
        }
        FieldType::IntegerOr(least, most, _) => {
            if let Some(Value::Array(choices)) = members.get_mut("anyOf") {
                for choice in choices {
                    bound(choice, least, most);
                }
            }
        }
        FieldType::Processor | FieldType::Size => {
            members.insert("type".to_owned(), json!(["string", "number"]));
            members.insert("examples".to_owned(), json!([json_of(field.example)]));
        }
        FieldType::Text if field.name() == "value" => {
            members.insert("type".to_owned(), json!(["string", "number", "boolean"]));
        }
        FieldType::Text | FieldType::Cidr | FieldType::TextList => {
            members.insert("examples".to_owned(), json!([json_of(field.example)]));
        }
        _ => {}
    }
}

fn bound(choice: &mut Value, least: u64, most: u64) {
    if let Value::Object(choice) = choice {
        choice.remove("title");
        if choice.get("type") == Some(&Value::from("integer")) {
            choice.remove("format");
            choice.insert("minimum".to_owned(), Value::from(least));
            choice.insert("maximum".to_owned(), Value::from(most));
        }
    }
}

/// Removes null, because optional fields are omitted rather than null.
fn without_null(schema: &mut Value) {
    let null = json!({ "type": "null" });
    let Value::Object(members) = schema else {
        return;
    };
    if let Some(Value::Array(types)) = members.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            members.insert("type".to_owned(), only);
        }
    }
    let Some(Value::Array(choices)) = members.get_mut("anyOf") else {
        return;
    };
    choices.retain(|choice| *choice != null);
    if choices.len() > 1 {
        return;
    }
    let only = choices.pop();
    members.remove("anyOf");
    if let Some(Value::Object(only)) = only {
        for (name, value) in only {
            members.entry(name).or_insert(value);
        }
    }
}
